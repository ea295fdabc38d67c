//! Ranks in separate processes: correct programs and their results, processes that end early, and all kinds of bad
//! input.

mod bootstrap;
mod garbage;
mod ids;
mod killed;
mod nonblocking;
mod values;

use std::net::TcpListener;

use anyhow::{Context, ensure};
use cudarc::nccl::sys::{self, ncclComm_t, ncclResult_t};
use lab::Check;

use crate::one_sided;
use crate::rank_processes::{Plan, Program, run};
use crate::raw::{Function, address, answer};
use crate::twins::{Said, TestRank, driver, peer, said};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl_processes::any_mix_of_processes_and_threads", values::any_mix),
        Check::new("nccl_processes::every_function", values::every_function),
        Check::new("nccl_processes::a_thread_with_two_ranks", || all_right(&plan("grouped", &[1, 1]))),
        Check::new("nccl_processes::not_blocking", || all_right(&plan("not_blocking", &[1, 2, 1]))),
        Check::new("nccl_processes::an_address_for_all", bootstrap::an_address_for_all),
        Check::new("nccl_processes::an_id_makes_one_communicator", ids::one_communicator),
        Check::new("nccl_processes::an_address_makes_any_number", ids::any_number_by_address),
        Check::new("nccl_processes::an_interface_by_name", bootstrap::an_interface_by_name),
        Check::new("nccl_processes::a_gpu_for_each_process", bootstrap::a_gpu_for_each_process),
        Check::new("nccl_processes::virtual_time_is_shared", virtual_time_is_shared),
        Check::new("nccl_processes::order_goes_through_another_process", order_through_another),
        Check::new("nccl_processes::killed_in_a_collective", || {
            killed::killed("waits", "rank 2 is gone: process")
        }),
        Check::new("nccl_processes::killed_in_a_split", || {
            killed::killed("splits", "rank 2 is gone: process")
        }),
        Check::new("nccl_processes::killed_in_a_receive", || {
            killed::killed("receives", "rank 2 is gone: process")
        }),
        Check::new("nccl_processes::killed_while_no_rank_waits", || {
            killed::killed("polls", "ncclRemoteError")
        }),
        Check::new("nccl_processes::the_others_shrink_after_a_kill", killed::the_others_shrink),
        Check::new("nccl_processes::killed_while_the_others_initialize", || {
            killed::killed("initializes", "ncclRemoteError: virtual GPU: rank 2 is gone: process")
        }),
        Check::new("nccl_processes::the_root_is_killed", killed::root_is_killed),
        Check::new("nccl_processes::the_root_returns_first", || all_right(&plan("root_returns", &[1, 1, 1]))),
        Check::new("nccl_processes::the_root_returns_early", killed::root_returns_early),
        Check::new("nccl_processes::random_programs", || all_right(&plan("random", &[1, 2, 1]))),
        Check::new("nccl_processes::killed_before_all_join", bootstrap::killed_before_all_join),
        Check::new("nccl_processes::a_rank_that_never_joins", bootstrap::a_rank_that_never_joins),
        Check::new("nccl_processes::two_ranks_with_one_number", bootstrap::two_ranks_with_one_number),
        Check::new("nccl_processes::world_sizes_that_differ", bootstrap::world_sizes_that_differ),
        Check::new("nccl_processes::an_id_of_a_process_that_has_ended", bootstrap::an_id_of_an_ended_process),
        Check::new("nccl_processes::a_port_in_use", bootstrap::a_port_in_use),
        Check::new("nccl_processes::garbage_on_the_port", garbage::garbage_on_the_port),
        Check::new("nccl_processes::garbage_instead_of_the_root", garbage::garbage_instead_of_the_root),
    ]
}

/// The programs that these checks' processes run.
pub(crate) const PROGRAMS: [(&str, Program); 21] = [
    ("sums", values::sums),
    ("again", ids::again),
    ("functions", values::functions),
    ("grouped", values::grouped),
    ("times", times),
    ("relays", relays),
    ("waits", killed::waits),
    ("waits_for_the_root", killed::waits_for_the_root),
    ("splits", killed::splits),
    ("receives", killed::receives),
    ("polls", killed::polls),
    ("shrinks", killed::shrinks),
    ("not_blocking", nonblocking::not_blocking),
    ("initializes", killed::initializes),
    ("root_returns", killed::root_returns),
    ("random", crate::random::programs_of_processes),
    ("joins", |_| Ok(())),
    ("one_sided_neighbors", one_sided::neighbors),
    ("one_sided_again", one_sided::again),
    ("one_sided_counts", one_sided::counts),
    ("one_sided_deregistered", one_sided::deregistered),
];

const SHORT: [(&str, &str); 1] = [("VIRTUAL_GPU_TIMEOUT", "2")];
/// A timeout long enough that a check fails if any wait times out.
const LONG: [(&str, &str); 1] = [("VIRTUAL_GPU_TIMEOUT", "60")];

fn plan<'a>(program: &'a str, layout: &'a [usize]) -> Plan<'a> {
    Plan { program, layout, wrong: false, env: &[] }
}

fn all_right(plan: &Plan<'_>) -> anyhow::Result<()> {
    for (rank, said) in run(plan)?.into_iter().enumerate() {
        ensure!(said.is_ok(), "{:?}, rank {rank}: {}", plan.layout, said.unwrap_err());
    }
    Ok(())
}

/// Checks that every rank's error contains these words.
fn all_report(plan: &Plan<'_>, words: &[&str]) -> anyhow::Result<()> {
    for (rank, said) in run(plan)?.into_iter().enumerate() {
        reported(&format!("rank {rank}"), said, words)?;
    }
    Ok(())
}

fn reported(who: &str, said: Said, words: &[&str]) -> anyhow::Result<()> {
    let Err(text) = said else { anyhow::bail!("{who} received no error") };
    for word in words {
        ensure!(text.contains(word), "{who}: no `{word}` in:\n{text}");
    }
    Ok(())
}

/// Returns a port that was free a moment ago.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A collective starts when the last rank is ready, so it waits for a kernel in another process.
fn virtual_time_is_shared() -> anyhow::Result<()> {
    all_right(&plan("times", &[1, 1]))
}

fn times(me: &TestRank) -> Said {
    let event =
        || driver(me.own.stream.record_event(Some(cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT)));
    let buffer = me.buffer(4);
    me.all_reduce(&buffer)?;
    let first = event()?;
    let large = if me.rank == 0 { 4 << 20 } else { 4 };
    // On the `classroom` node, setting 16 MiB takes several milliseconds.
    let mut copy = driver(me.own.stream.alloc_zeros::<f32>(large))?;
    driver(me.own.stream.memset_zeros(&mut copy))?;
    me.all_reduce(&buffer)?;
    let last = event()?;
    me.wait()?;
    let elapsed = driver(first.elapsed_ms(&last))?;
    let least = (4u64 << 22) as f32 / (3.35e12 / 1e4) * 1e3;
    if elapsed >= least {
        Ok(())
    } else {
        Err(format!("{elapsed} ms, but at least {least} ms were expected"))
    }
}

/// Messages through a rank in another process order one stream's write before another stream's use.
fn order_through_another() -> anyhow::Result<()> {
    all_right(&plan("relays", &[1, 1]))?;
    let wrong = run(&Plan { wrong: true, ..plan("relays", &[1, 1]) })?;
    reported(
        "rank 0",
        wrong.into_iter().next().context("rank 0")?,
        &["data race", "written by a memset", "nccl_processes.rs:"],
    )
}

fn relays(me: &TestRank) -> Said {
    let (token, mut data) = (me.buffer(1), me.buffer(64));
    let second = me.second();
    if me.rank == 1 {
        me.receive(&token, 0)?;
        driver(second.stream.join(&me.own.stream))?;
        said(second.call(Function::Send, address(&token), 0, peer(0, 1)))?;
        return driver(second.stream.synchronize());
    }
    let back = me.buffer(1);
    if me.wrong {
        // The message is sent before the write.
        me.send(&token, 1)?;
    }
    driver(me.own.stream.memset_zeros(&mut data))?;
    if !me.wrong {
        me.send(&token, 1)?;
    }
    said(second.call(Function::Recv, 0, address(&back), peer(1, 1)))?;
    driver(second.stream.memset_zeros(&mut data))?;
    me.wait()?;
    driver(second.stream.synchronize())
}

fn async_error(comm: ncclComm_t) -> ncclResult_t {
    let mut code = ncclResult_t::ncclSuccess;
    // SAFETY: the communicator is alive, and the code is writable.
    answer(unsafe { sys::ncclCommGetAsyncError(comm, &mut code) }).unwrap();
    code
}
