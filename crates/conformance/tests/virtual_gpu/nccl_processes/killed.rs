//! Processes that are killed, or that return while other processes still need them.

use std::time::{Duration, Instant};

use anyhow::ensure;
use cudarc::driver::CudaSlice;
use cudarc::nccl::sys::{self, ncclResult_t};

use super::nonblocking::{init_without_waiting, poll};
use super::{LONG, async_error, plan, reported};
use crate::nccl_management::{ABORT, shrink, sum};
use crate::rank_processes::{Plan, Process, run, start};
use crate::raw::{Function, address, answer, floats};
use crate::twins::{Said, TestRank, driver, said, split};

/// Kills the last process while it sleeps. The others must get an error long before their timeout.
pub(super) fn killed(program: &str, words: &str) -> anyhow::Result<()> {
    let mut processes = start(&Plan { env: &LONG, ..plan(program, &[1, 1, 1]) })?;
    kill_and_check(&mut processes, 2, &[words])
}

pub(super) fn root_is_killed() -> anyhow::Result<()> {
    let mut processes = start(&Plan { env: &LONG, ..plan("waits_for_the_root", &[1, 1, 1]) })?;
    // Messages between the other processes go through the root.
    kill_and_check(&mut processes, 0, &["gone: process"])
}

fn kill_and_check(processes: &mut Vec<Process>, which: usize, words: &[&str]) -> anyhow::Result<()> {
    for process in &*processes {
        process.line("ready")?;
    }
    // The other processes are in the call that waits, or will be soon.
    std::thread::sleep(Duration::from_millis(50));
    let mut victim = processes.remove(which);
    victim.child.kill()?;
    let since = Instant::now();
    for process in processes {
        reported("a survivor", process.said()?, words)?;
    }
    // On an idle machine, this takes milliseconds.
    ensure!(since.elapsed() < Duration::from_secs(30), "an error after {:?}", since.elapsed());
    victim.child.wait()?;
    Ok(())
}

/// Prints that this rank is ready. If this is the rank that will be killed, it sleeps from this point on.
fn ready(me: &TestRank, sleeper: usize) {
    println!("ready");
    if me.rank == sleeper {
        std::thread::sleep(Duration::from_secs(60));
    }
}

pub(super) fn waits(me: &TestRank) -> Said {
    waits_for(me, me.n - 1)
}

pub(super) fn waits_for_the_root(me: &TestRank) -> Said {
    waits_for(me, 0)
}

fn waits_for(me: &TestRank, sleeper: usize) -> Said {
    let buffer = me.buffer(4);
    me.all_reduce(&buffer)?;
    me.wait()?;
    ready(me, sleeper);
    me.all_reduce(&buffer)?;
    let Err(text) = me.wait() else { return Ok(()) };
    remote_error(me, &buffer).map_or(Err(text), Err)
}

/// Describes how the communicator fails to report a remote error. Returns `None` if it reports an error immediately, and
/// again at its next call.
fn remote_error(me: &TestRank, buffer: &CudaSlice<f32>) -> Option<String> {
    let code = async_error(me.own.comm);
    if code != ncclResult_t::ncclRemoteError {
        return Some(format!("ncclCommGetAsyncError reported {code:?}"));
    }
    let again = me.own.call(Function::AllReduce, address(buffer), address(buffer), floats(4));
    match again {
        Err((ncclResult_t::ncclRemoteError, _)) => None,
        other => Some(format!("the next call returned {other:?}")),
    }
}

pub(super) fn splits(me: &TestRank) -> Said {
    ready(me, me.n - 1);
    let mut child = std::ptr::null_mut();
    match split(me.own.comm, 0, &mut child) {
        Err((ncclResult_t::ncclRemoteError, text)) => Err(text),
        other => Err(format!("the split returned {other:?}")),
    }
}

pub(super) fn receives(me: &TestRank) -> Said {
    let buffer = me.buffer(4);
    ready(me, me.n - 1);
    me.receive(&buffer, me.n - 1)?;
    me.wait()
}

pub(super) fn polls(me: &TestRank) -> Said {
    ready(me, me.n - 1);
    loop {
        match async_error(me.own.comm) {
            ncclResult_t::ncclSuccess => std::thread::sleep(Duration::from_millis(1)),
            code => return Err(format!("{code:?}")),
        }
    }
}

pub(super) fn the_others_shrink() -> anyhow::Result<()> {
    let mut processes = start(&Plan { env: &LONG, ..plan("shrinks", &[1, 1, 1, 1]) })?;
    for process in &processes {
        process.line("ready")?;
    }
    processes[3].child.kill()?;
    processes[3].child.wait()?;
    for (rank, process) in processes[..3].iter().enumerate() {
        let said = process.said()?;
        ensure!(said.is_ok(), "rank {rank}: {}", said.unwrap_err());
    }
    Ok(())
}

/// The last rank is killed while the others poll a sum that needs it. They continue without it.
pub(super) fn shrinks(me: &TestRank) -> Said {
    let buffer = me.buffer(4);
    me.all_reduce(&buffer)?;
    me.wait()?;
    if me.rank < me.n - 1 {
        me.all_reduce(&buffer)?;
    }
    ready(me, me.n - 1);
    let event = driver(me.own.stream.record_event(None))?;
    while async_error(me.own.comm) != ncclResult_t::ncclRemoteError {
        if driver(event.try_is_complete())? {
            return Err("the sum is complete without the last rank".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if driver(event.try_is_complete())? {
        return Err("the sum has ended, although no thread has waited for it".to_owned());
    }
    match shrink(&me.own, &[0], ABORT).err() {
        _ if me.rank == 0 => {}
        Some((ncclResult_t::ncclRemoteError, text)) if text.contains("rank 3 is gone: process") => {}
        other => return Err(format!("without rank 0, but with the last one, the shrink returned {other:?}")),
    }
    let left = shrink(&me.own, &[me.n as i32 - 1], ABORT)
        .map_err(|(code, text)| format!("the shrink returned {code:?}: {text}"))?;
    match sum(&left, (me.rank + 1) as f32) {
        6.0 => Ok(()),
        total => Err(format!("the sum over ranks 0 to 2 is {total}")),
    }
}

/// Initializes a communicator for one more rank, which never joins.
pub(super) fn initializes(me: &TestRank) -> Said {
    let comm = init_without_waiting(me, me.n + 1);
    ready(me, me.n - 1);
    let reported = poll(comm);
    // SAFETY: the communicator is alive.
    said(answer(unsafe { sys::ncclCommAbort(comm) }))?;
    reported
}

/// Rank 0, the root, returns before the others are done. Messages between the others still arrive.
pub(super) fn root_returns(me: &TestRank) -> Said {
    let buffer = me.buffer(4);
    me.all_reduce(&buffer)?;
    me.wait()?;
    if me.wrong || me.rank > 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    match (me.rank, me.wrong) {
        (0, true) => {
            me.own.leak();
            return Ok(());
        }
        (0, false) => return Ok(()),
        (_, true) => me.all_reduce(&buffer)?,
        (1, false) => me.send(&buffer, 2)?,
        (_, false) => me.receive(&buffer, 1)?,
    }
    me.wait()
}

/// The others get an error immediately if they still need rank 0, even though their messages go through its process.
pub(super) fn root_returns_early() -> anyhow::Result<()> {
    let mut said = run(&Plan { wrong: true, ..plan("root_returns", &[1, 1, 1]) })?.into_iter();
    ensure!(said.next().is_some_and(|said| said.is_ok()), "rank 0 returned early, with an error");
    for said in said {
        reported("a rank", said, &["rank 0 is gone: process"])?;
    }
    Ok(())
}
