//! Ranks as processes: right programs with the right numbers, processes that end, and everything bad that can come in.

mod ids;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cudarc::driver::CudaSlice;
use cudarc::nccl::sys::{self, ncclComm_t, ncclResult_t};
use lab::Check;

use crate::nccl::last_error;
use crate::rank_processes::{Plan, Process, Program, run, spawn, start};
use crate::raw::{Answer, Function, Rank, address, answer, config, floats, in_group, untracked};
use crate::twins::{Place, Said, driver, peer, said, split};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl_processes::any_mix_of_processes_and_threads", any_mix),
        Check::new("nccl_processes::every_function", every_function),
        Check::new("nccl_processes::a_thread_with_two_ranks", || all_right(&plan("grouped", &[1, 1]))),
        Check::new("nccl_processes::not_blocking", || all_right(&plan("not_blocking", &[1, 2, 1]))),
        Check::new("nccl_processes::an_address_for_all", an_address_for_all),
        Check::new("nccl_processes::an_id_makes_one_communicator", ids::one_communicator),
        Check::new("nccl_processes::an_address_makes_any_number", ids::any_number_by_address),
        Check::new("nccl_processes::an_interface_by_name", an_interface_by_name),
        Check::new("nccl_processes::a_gpu_for_each_process", a_gpu_for_each_process),
        Check::new("nccl_processes::virtual_time_is_shared", virtual_time_is_shared),
        Check::new("nccl_processes::order_goes_through_another_process", order_through_another),
        Check::new("nccl_processes::killed_in_a_collective", || killed("waits", "rank 2 is gone: process")),
        Check::new("nccl_processes::killed_in_a_split", || killed("splits", "rank 2 is gone: process")),
        Check::new("nccl_processes::killed_in_a_receive", || killed("receives", "rank 2 is gone: process")),
        Check::new("nccl_processes::killed_while_nobody_waits", || killed("polls", "ncclRemoteError")),
        Check::new("nccl_processes::killed_while_others_ask_for_a_communicator", || {
            killed("asks", "ncclRemoteError: virtual GPU: rank 2 is gone: process")
        }),
        Check::new("nccl_processes::the_host_is_killed", the_host_is_killed),
        Check::new("nccl_processes::the_host_leaves_first", || all_right(&plan("leaves", &[1, 1, 1]))),
        Check::new("nccl_processes::the_host_returns_early", the_host_returns_early),
        Check::new("nccl_processes::random_programs", || all_right(&plan("random", &[1, 2, 1]))),
        Check::new("nccl_processes::killed_before_all_have_come", killed_before_all_have_come),
        Check::new("nccl_processes::a_rank_that_never_comes", a_rank_that_never_comes),
        Check::new("nccl_processes::two_ranks_with_one_number", two_ranks_with_one_number),
        Check::new("nccl_processes::world_sizes_that_differ", world_sizes_that_differ),
        Check::new("nccl_processes::an_id_of_a_process_that_has_ended", an_id_of_an_ended_process),
        Check::new("nccl_processes::a_port_in_use", a_port_in_use),
        Check::new("nccl_processes::garbage_on_the_port", garbage_on_the_port),
        Check::new("nccl_processes::garbage_instead_of_the_host", garbage_instead_of_the_host),
    ]
}

/// What the processes of these checks run.
pub(crate) const PROGRAMS: [(&str, Program); 16] = [
    ("sums", sums),
    ("again", ids::again),
    ("functions", functions),
    ("grouped", grouped),
    ("times", times),
    ("relays", relays),
    ("waits", waits),
    ("waits_for_the_host", waits_for_the_host),
    ("splits", splits),
    ("receives", receives),
    ("polls", polls),
    ("not_blocking", not_blocking),
    ("asks", asks),
    ("leaves", leaves),
    ("random", crate::random::programs_of_processes),
    ("joins", |_| Ok(())),
];

const SHORT: [(&str, &str); 1] = [("VIRTUAL_GPU_TIMEOUT", "2")];
/// Whoever waits for patience to end is told too late.
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

/// Every rank has to be told this.
fn all_told(plan: &Plan<'_>, words: &[&str]) -> anyhow::Result<()> {
    for (rank, said) in run(plan)?.into_iter().enumerate() {
        told(&format!("rank {rank}"), said, words)?;
    }
    Ok(())
}

fn told(who: &str, said: Said, words: &[&str]) -> anyhow::Result<()> {
    let Err(text) = said else { anyhow::bail!("{who} was told nothing") };
    for word in words {
        ensure!(text.contains(word), "{who}: no `{word}` in:\n{text}");
    }
    Ok(())
}

fn any_mix() -> anyhow::Result<()> {
    for layout in [&[1, 1][..], &[2, 2], &[1, 3], &[1, 1, 1, 1], &[3]] {
        all_right(&plan("sums", layout))?;
    }
    Ok(())
}

/// Sums of what differs by rank and place, several times over.
fn sums(place: &Place) -> Said {
    let Place { rank, n, .. } = *place;
    for len in [1usize, 1000, 70_001] {
        let give = |rank: usize| (0..len).map(move |i| ((i * 7 + rank * 13) % 101) as f32);
        let mut buffer = driver(place.own.stream.clone_htod(&give(rank).collect::<Vec<_>>()))?;
        place.all_reduce(&buffer)?;
        let got = driver(place.own.stream.clone_dtoh(&buffer))?;
        let mut all: Vec<_> = (0..n).map(give).collect();
        let expected: Vec<f32> =
            (0..len).map(|_| all.iter_mut().map(|of| of.next().unwrap()).sum()).collect();
        if got != expected {
            return Err(format!("rank {rank}: wrong sums of {len}"));
        }
        driver(place.own.stream.memset_zeros(&mut buffer))?;
    }
    Ok(())
}

fn every_function() -> anyhow::Result<()> {
    for layout in [&[1, 1][..], &[1, 1, 1], &[2, 1, 2]] {
        all_right(&plan("functions", layout))?;
    }
    Ok(())
}

/// Elements of each part.
const LEN: usize = 5;

/// What `rank` gives in its `part`.
fn given(rank: usize, part: usize) -> Vec<f32> {
    (0..LEN).map(|i| (100 * rank + 10 * part + i) as f32).collect()
}

/// Every function of NCCL, on data that says where it came from.
fn functions(place: &Place) -> Said {
    let Place { rank, n, .. } = *place;
    let own = &place.own;
    collectives(own, rank, n)?;

    // Around the ring, and to everyone at once.
    let from = upload(own, &given(rank, 0))?;
    let all = driver(own.stream.alloc_zeros::<f32>(LEN * n))?;
    said(in_group(|| {
        for other in 0..n {
            place.send(&from, other).unwrap();
            let to = address(&all) + (other * LEN * 4) as u64;
            said(own.call(Function::Recv, 0, to, peer(other, LEN))).unwrap();
        }
    }))?;
    expect("sends", own, &all, (0..n).flat_map(|rank| given(rank, 0)).collect())?;
    for round in 0..3 {
        let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
        let (from, to) = (upload(own, &given(rank, round))?, driver(own.stream.alloc_zeros::<f32>(LEN))?);
        said(in_group(|| place.send(&from, next).and_then(|()| place.receive(&to, last)).unwrap()))?;
        expect("a ring", own, &to, given(last, round))?;
    }

    // Even and odd ranks, the last ones first.
    let mut child: ncclComm_t = std::ptr::null_mut();
    // SAFETY: the communicator is alive, and the child can be written.
    said(answer(unsafe {
        sys::ncclCommSplit(own.comm, (rank % 2) as i32, -(rank as i32), &mut child, std::ptr::null_mut())
    }))?;
    let child = Rank::of(child, own.stream.clone());
    let mut siblings: Vec<usize> = (0..n).filter(|other| other % 2 == rank % 2).collect();
    siblings.reverse();
    if (child.n, siblings[child.rank]) != (siblings.len(), rank) {
        return Err(format!("rank {rank} is {} of {} in its half", child.rank, child.n));
    }
    let (gathered, from) =
        (driver(own.stream.alloc_zeros::<f32>(LEN * child.n))?, upload(own, &given(rank, 1))?);
    said(child.call(Function::AllGather, address(&from), address(&gathered), floats(LEN)))?;
    expect("a half", own, &gathered, siblings.iter().flat_map(|&rank| given(rank, 1)).collect())?;

    // The second id's communicator goes through another connection.
    let second = place.second();
    collectives(&second, rank, n)?;
    // SAFETY: the communicators are alive.
    said(answer(unsafe { sys::ncclCommFinalize(second.comm) }))?;
    // SAFETY: as before.
    said(answer(unsafe { sys::ncclCommFinalize(own.comm) }))
}

/// One process has rank 0, and one thread of the other has ranks 1 and 2, in groups.
fn grouped(place: &Place) -> Said {
    let ranks: &[usize] = if place.rank == 0 { &[0] } else { &[1, 2] };
    let streams: Vec<_> =
        ranks.iter().map(|rank| untracked(place.first_gpu + rank).new_stream().unwrap()).collect();
    let mut comms: Vec<ncclComm_t> = vec![std::ptr::null_mut(); ranks.len()];
    said(in_group(|| {
        for ((comm, &rank), stream) in comms.iter_mut().zip(ranks).zip(&streams) {
            stream.context().bind_to_thread().unwrap();
            // SAFETY: the communicator can be written until the group ends.
            said(answer(unsafe { sys::ncclCommInitRank(comm, 3, place.ids[1], rank as i32) })).unwrap();
        }
    }))?;
    let ends: Vec<Rank> = comms.iter().zip(streams).map(|(&comm, stream)| Rank::of(comm, stream)).collect();
    let buffers: Vec<_> = ends.iter().map(|own| upload(own, &given(own.rank, 0)).unwrap()).collect();
    said(in_group(|| {
        for (own, buffer) in ends.iter().zip(&buffers) {
            let at = address(buffer);
            said(own.call(Function::AllReduce, at, at, floats(LEN))).unwrap();
        }
    }))?;
    let sums: Vec<f32> = (0..LEN).map(|i| (0..3).map(|rank| given(rank, 0)[i]).sum()).collect();
    ends.iter().zip(&buffers).try_for_each(|(own, buffer)| expect("a group", own, buffer, sums.clone()))
}

fn upload(own: &Rank, values: &[f32]) -> Result<CudaSlice<f32>, String> {
    driver(own.stream.clone_htod(values))
}

fn expect(what: &str, own: &Rank, got: &CudaSlice<f32>, expected: Vec<f32>) -> Said {
    let got = driver(own.stream.clone_dtoh(got))?;
    if got == expected { Ok(()) } else { Err(format!("{what}: {got:?} and not {expected:?}")) }
}

fn collectives(own: &Rank, rank: usize, n: usize) -> Said {
    let sum = |part: usize| -> Vec<f32> {
        let all: Vec<_> = (0..n).map(|rank| given(rank, part)).collect();
        (0..LEN).map(|i| all.iter().map(|of| of[i]).sum()).collect()
    };
    let parts = |rank: usize| (0..n).flat_map(|part| given(rank, part)).collect::<Vec<_>>();
    let root = n - 1;
    let zeros = |len: usize| driver(own.stream.alloc_zeros::<f32>(len));
    let one = upload(own, &given(rank, 0))?;
    let many = upload(own, &parts(rank))?;
    let call = |function, from: &CudaSlice<f32>, to: &CudaSlice<f32>, with| {
        said(own.call(function, address(from), address(to), with))
    };

    let to = zeros(LEN)?;
    call(Function::AllReduce, &one, &to, floats(LEN))?;
    expect("ncclAllReduce", own, &to, sum(0))?;
    call(Function::Broadcast, &one, &to, peer(root, LEN))?;
    expect("ncclBroadcast", own, &to, given(root, 0))?;
    let to = zeros(LEN)?;
    call(Function::Reduce, &one, &to, peer(root, LEN))?;
    expect("ncclReduce", own, &to, if rank == root { sum(0) } else { vec![0.0; LEN] })?;
    call(Function::ReduceScatter, &many, &to, floats(LEN))?;
    expect("ncclReduceScatter", own, &to, sum(rank))?;
    call(Function::Scatter, &many, &to, peer(root, LEN))?;
    expect("ncclScatter", own, &to, given(root, rank))?;
    let to = zeros(LEN * n)?;
    call(Function::AllGather, &one, &to, floats(LEN))?;
    expect("ncclAllGather", own, &to, (0..n).flat_map(|rank| given(rank, 0)).collect())?;
    call(Function::AllToAll, &many, &to, floats(LEN))?;
    expect("ncclAlltoAll", own, &to, (0..n).flat_map(|from| given(from, rank)).collect())?;
    let to = zeros(LEN * n)?;
    call(Function::Gather, &one, &to, peer(root, LEN))?;
    let gathered =
        if rank == root { (0..n).flat_map(|rank| given(rank, 0)).collect() } else { vec![0.0; LEN * n] };
    expect("ncclGather", own, &to, gathered)
}

/// A port that was free a moment ago.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// With `NCCL_COMM_ID` every process has the same id, whoever comes first.
fn an_address_for_all() -> anyhow::Result<()> {
    let address = format!("127.0.0.1:{}", free_port()?);
    all_right(&Plan { env: &[("NCCL_COMM_ID", &address)], ..plan("sums", &[1, 2]) })
}

fn an_interface_by_name() -> anyhow::Result<()> {
    all_right(&Plan { env: &[("NCCL_SOCKET_IFNAME", "=lo")], ..plan("sums", &[1, 1]) })?;
    let mut process = spawn("joins 0 1 1 0", &[("NCCL_SOCKET_IFNAME", "nothing0")])?;
    ensure!(!process.child.wait()?.success(), "an interface that is not there was taken");
    Ok(())
}

/// The processes of a node share its GPUs, as far as they see them.
fn a_gpu_for_each_process() -> anyhow::Result<()> {
    let one = |gpu: &'static str| [("CUDA_VISIBLE_DEVICES", gpu)];
    let words =
        ["ncclInvalidUsage", "ranks 0 and 1 are both on GPU 3", "with GPU 0 current", "CUDA_VISIBLE_DEVICES"];
    all_told(&Plan { env: &one("3"), ..plan("joins", &[1, 1]) }, &words)?;
    let shared = [("CUDA_VISIBLE_DEVICES", "3"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
    all_right(&Plan { env: &shared, ..plan("sums", &[1, 1]) })?;
    let of = ["4", "1,0"];
    let mut processes = [spawn("sums 0 1 2 0", &one(of[0]))?, spawn("sums 1 1 2 0", &one(of[1]))?];
    let ids = processes[0].line("ids: ")?;
    processes[1].give(&ids)?;
    for process in processes {
        process.said()?.map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

/// A collective starts when the last rank is ready, and so waits for the kernel of another process.
fn virtual_time_is_shared() -> anyhow::Result<()> {
    all_right(&plan("times", &[1, 1]))
}

fn times(place: &Place) -> Said {
    let event =
        || driver(place.own.stream.record_event(Some(cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT)));
    let buffer = place.buffer(4);
    place.all_reduce(&buffer)?;
    let first = event()?;
    let large = if place.rank == 0 { 4 << 20 } else { 4 };
    // On the classroom's node 16 MiB take some milliseconds to be set.
    let mut copy = driver(place.own.stream.alloc_zeros::<f32>(large))?;
    driver(place.own.stream.memset_zeros(&mut copy))?;
    place.all_reduce(&buffer)?;
    let last = event()?;
    place.wait()?;
    let elapsed = driver(first.elapsed_ms(&last))?;
    let least = (4u64 << 22) as f32 / (3.35e12 / 1e4) * 1e3;
    if elapsed >= least {
        Ok(())
    } else {
        Err(format!("{elapsed} ms, and at least {least} ms were expected"))
    }
}

/// What one stream wrote is ordered before another's use by messages through a rank of another process.
fn order_through_another() -> anyhow::Result<()> {
    all_right(&plan("relays", &[1, 1]))?;
    let wrong = run(&Plan { wrong: true, ..plan("relays", &[1, 1]) })?;
    told(
        "rank 0",
        wrong.into_iter().next().context("rank 0")?,
        &["data race", "written by a memset", "nccl_processes.rs:"],
    )
}

fn relays(place: &Place) -> Said {
    let (token, mut data) = (place.buffer(1), place.buffer(64));
    let second = place.second();
    if place.rank == 1 {
        place.receive(&token, 0)?;
        driver(second.stream.join(&place.own.stream))?;
        said(second.call(Function::Send, address(&token), 0, peer(0, 1)))?;
        return driver(second.stream.synchronize());
    }
    let back = place.buffer(1);
    if place.wrong {
        // The message leaves before the write.
        place.send(&token, 1)?;
    }
    driver(place.own.stream.memset_zeros(&mut data))?;
    if !place.wrong {
        place.send(&token, 1)?;
    }
    said(second.call(Function::Recv, 0, address(&back), peer(1, 1)))?;
    driver(second.stream.memset_zeros(&mut data))?;
    place.wait()?;
    driver(second.stream.synchronize())
}

/// The last process goes to sleep, and is killed. The others have to be told within a second.
fn killed(program: &str, words: &str) -> anyhow::Result<()> {
    let mut processes = start(&Plan { env: &LONG, ..plan(program, &[1, 1, 1]) })?;
    end_and_listen(&mut processes, 2, &[words])
}

fn the_host_is_killed() -> anyhow::Result<()> {
    let mut processes = start(&Plan { env: &LONG, ..plan("waits_for_the_host", &[1, 1, 1]) })?;
    // What the guests say to each other goes through the host.
    end_and_listen(&mut processes, 0, &["gone: process"])
}

/// What the others say to each other still arrives.
fn leaves(place: &Place) -> Said {
    let buffer = place.buffer(4);
    place.all_reduce(&buffer)?;
    place.wait()?;
    if place.wrong || place.rank > 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    match (place.rank, place.wrong) {
        (0, true) => {
            place.own.leak();
            return Ok(());
        }
        (0, false) => return Ok(()),
        (_, true) => place.all_reduce(&buffer)?,
        (1, false) => place.send(&buffer, 2)?,
        (_, false) => place.receive(&buffer, 1)?,
    }
    place.wait()
}

/// The others know at once, though what they say still goes through it.
fn the_host_returns_early() -> anyhow::Result<()> {
    let mut said = run(&Plan { wrong: true, ..plan("leaves", &[1, 1, 1]) })?.into_iter();
    ensure!(said.next().is_some_and(|said| said.is_ok()), "rank 0 returned early, and was told so");
    for said in said {
        told("a rank", said, &["rank 0 is gone: process"])?;
    }
    Ok(())
}

fn end_and_listen(processes: &mut Vec<Process>, which: usize, words: &[&str]) -> anyhow::Result<()> {
    for process in &*processes {
        process.line("ready")?;
    }
    // The others are, or will be, in the call that waits.
    std::thread::sleep(Duration::from_millis(50));
    let mut victim = processes.remove(which);
    victim.child.kill()?;
    let since = Instant::now();
    for process in processes {
        told("a survivor", process.said()?, words)?;
    }
    // It takes milliseconds, where nothing else runs.
    ensure!(since.elapsed() < Duration::from_secs(30), "told after {:?}", since.elapsed());
    victim.child.wait()?;
    Ok(())
}

/// Says that it has come so far. The one that is killed goes no further.
fn ready(place: &Place, sleepy: usize) {
    println!("ready");
    if place.rank == sleepy {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn waits(place: &Place) -> Said {
    waits_for(place, place.n - 1)
}

fn waits_for_the_host(place: &Place) -> Said {
    waits_for(place, 0)
}

fn waits_for(place: &Place, sleepy: usize) -> Said {
    let buffer = place.buffer(4);
    place.all_reduce(&buffer)?;
    place.wait()?;
    ready(place, sleepy);
    place.all_reduce(&buffer)?;
    let Err(text) = place.wait() else { return Ok(()) };
    remote_error(place, &buffer).map_or(Err(text), Err)
}

/// That the communicator has failed for good, with the right code. None if so.
fn remote_error(place: &Place, buffer: &CudaSlice<f32>) -> Option<String> {
    let code = async_error(place.own.comm);
    if code != ncclResult_t::ncclRemoteError {
        return Some(format!("ncclCommGetAsyncError says {code:?}"));
    }
    let again = place.own.call(Function::AllReduce, address(buffer), address(buffer), floats(4));
    match again {
        Err((ncclResult_t::ncclRemoteError, _)) => None,
        other => Some(format!("the next call says {other:?}")),
    }
}

fn async_error(comm: ncclComm_t) -> ncclResult_t {
    let mut code = ncclResult_t::ncclSuccess;
    // SAFETY: the communicator is alive, and the code can be written.
    answer(unsafe { sys::ncclCommGetAsyncError(comm, &mut code) }).unwrap();
    code
}

fn splits(place: &Place) -> Said {
    ready(place, place.n - 1);
    let mut child = std::ptr::null_mut();
    match split(place.own.comm, 0, &mut child) {
        Err((ncclResult_t::ncclRemoteError, text)) => Err(text),
        other => Err(format!("the split says {other:?}")),
    }
}

fn receives(place: &Place) -> Said {
    let buffer = place.buffer(4);
    ready(place, place.n - 1);
    place.receive(&buffer, place.n - 1)?;
    place.wait()
}

fn polls(place: &Place) -> Said {
    ready(place, place.n - 1);
    loop {
        match async_error(place.own.comm) {
            ncclResult_t::ncclSuccess => std::thread::sleep(Duration::from_millis(1)),
            code => return Err(format!("{code:?}")),
        }
    }
}

/// The second id's communicator of `n` ranks, which is there once [`done`] says so.
fn asked(place: &Place, n: usize) -> ncclComm_t {
    let mut config = config();
    config.blocking = 0;
    let mut comm: ncclComm_t = std::ptr::null_mut();
    // SAFETY: both pointers are to live values.
    let code = unsafe {
        sys::ncclCommInitRankConfig(&mut comm, n as i32, place.ids[1], place.rank as i32, &mut config)
    };
    assert_eq!(code, ncclResult_t::ncclInProgress);
    comm
}

/// Asks until the communicator has nothing under way.
fn done(comm: ncclComm_t) -> Said {
    loop {
        match async_error(comm) {
            ncclResult_t::ncclSuccess => return Ok(()),
            ncclResult_t::ncclInProgress => std::thread::yield_now(),
            code => {
                return Err(format!("{code:?}: {}", last_error()));
            }
        }
    }
}

/// A communicator, sums, a split and an end, of which no call waits.
fn not_blocking(place: &Place) -> Said {
    let comm = asked(place, place.n);
    done(comm)?;
    let own = Rank::of(comm, place.own.stream.clone());
    let in_progress = |answer: Answer| match answer {
        Err((ncclResult_t::ncclInProgress, _)) => done(comm),
        other => said(other),
    };
    let buffer = upload(&own, &given(place.rank, 0))?;
    let at = address(&buffer);
    in_progress(own.call(Function::AllReduce, at, at, floats(LEN)))?;
    let sums = (0..LEN).map(|i| (0..place.n).map(|rank| given(rank, 0)[i]).sum()).collect();
    expect("a sum", &own, &buffer, sums)?;
    let mut child: ncclComm_t = std::ptr::null_mut();
    in_progress(split(comm, (place.rank % 2) as i32, &mut child))?;
    let half = Rank::of(child, own.stream.clone());
    if half.n != place.n / 2 {
        return Err(format!("{} of {} ranks are in a half", half.n, place.n));
    }
    // SAFETY: the communicator is alive.
    in_progress(answer(unsafe { sys::ncclCommFinalize(comm) }))
}

/// Asks for a communicator of one more rank, which never comes.
fn asks(place: &Place) -> Said {
    let comm = asked(place, place.n + 1);
    ready(place, place.n - 1);
    let told = done(comm);
    // SAFETY: the communicator is alive.
    said(answer(unsafe { sys::ncclCommAbort(comm) }))?;
    told
}

fn killed_before_all_have_come() -> anyhow::Result<()> {
    let mut processes = [spawn("joins 0 1 3 0", &[])?, spawn("joins 1 1 3 0", &[])?];
    let ids = processes[0].line("ids: ")?;
    processes[1].give(&ids)?;
    std::thread::sleep(Duration::from_millis(300));
    let [host, mut guest] = processes;
    guest.child.kill()?;
    guest.child.wait()?;
    let words = ["ncclRemoteError", "rank 1 is gone", "ended before the communicator was made"];
    told("rank 0", host.said()?, &words)
}

fn a_rank_that_never_comes() -> anyhow::Result<()> {
    // Whose id it is decides, and tells the other.
    let mut processes = [spawn("joins 0 1 3 0", &SHORT)?, spawn("joins 2 1 3 0", &LONG)?];
    let ids = processes[0].line("ids: ")?;
    processes[1].give(&ids)?;
    for process in processes {
        let words = ["ncclTimeout", "rank 1 of 3 never came to the communicator", "not proved"];
        told("a rank that came", process.said()?, &words)?;
    }
    Ok(())
}

fn two_ranks_with_one_number() -> anyhow::Result<()> {
    let mut processes =
        [spawn("joins 0 1 3 0", &[])?, spawn("joins 1 1 3 0", &[])?, spawn("joins 1 1 3 0", &[])?];
    let ids = processes[0].line("ids: ")?;
    processes.iter_mut().skip(1).try_for_each(|process| process.give(&ids))?;
    for process in processes {
        let words = ["ncclInvalidUsage", "two ranks of one communicator are both rank 1", "in process"];
        told("a rank", process.said()?, &words)?;
    }
    Ok(())
}

fn world_sizes_that_differ() -> anyhow::Result<()> {
    let mut processes = [spawn("joins 0 1 2 0", &[])?, spawn("joins 1 1 3 0", &[])?];
    let ids = processes[0].line("ids: ")?;
    processes[1].give(&ids)?;
    for process in processes {
        told(
            "a rank",
            process.said()?,
            &["ncclInvalidArgument", "disagree about the world size", "of 2", "of 3"],
        )?;
    }
    Ok(())
}

fn an_id_of_an_ended_process() -> anyhow::Result<()> {
    let mut first = spawn("joins 0 1 2 0", &[])?;
    let ids = first.line("ids: ")?;
    first.child.kill()?;
    first.child.wait()?;
    let mut second = spawn("joins 1 1 2 0", &[])?;
    second.give(&ids)?;
    told("rank 1", second.said()?, &["ncclRemoteError", "which made the id, does not listen at 127.0.0.1:"])
}

fn a_port_in_use() -> anyhow::Result<()> {
    let other = TcpListener::bind("127.0.0.1:0")?;
    let address = other.local_addr()?.to_string();
    let process = spawn("joins 0 1 1 0", &[("NCCL_COMM_ID", &address)])?;
    told("rank 0", process.said()?, &["ncclSystemError", &format!("NCCL_COMM_ID={address}"), "in use"])?;
    for bad in ["nonsense", "127.0.0.1", "127.0.0.1:99999"] {
        let mut process = spawn("joins 0 1 1 0", &[("NCCL_COMM_ID", bad)])?;
        ensure!(!process.child.wait()?.success(), "NCCL_COMM_ID={bad} was taken");
    }
    Ok(())
}

/// Strangers come to the host's port before, while and after its guests do, and disturb nobody.
fn garbage_on_the_port() -> anyhow::Result<()> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let env = [("NCCL_COMM_ID", address.as_str())];
    let host = spawn("sums 0 1 2 0", &env)?;
    host.line("ids: ")?;
    let mut greeting = b"vgpunccl".to_vec();
    greeting.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    let mut other_version = greeting.clone();
    other_version[8] = 99;
    let mut wrong_id = greeting.clone();
    wrong_id.extend([0xa5; 132]);
    let garbage: [&[u8]; 6] =
        [b"", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 5000], &greeting, &other_version, &wrong_id];
    let mut kept = Vec::new();
    for bytes in garbage {
        let mut stream = connect(&address)?;
        // It may have hung up already.
        let _ = stream.write_all(bytes);
        kept.push(stream);
    }
    let mut guest = spawn("sums 1 1 2 0", &env)?;
    guest.give("")?;
    for process in [host, guest] {
        process.said()?.map_err(anyhow::Error::msg)?;
    }
    // Who knew no id was told so, or nothing at all.
    let mut answer = [0; 16];
    kept[5].set_read_timeout(Some(Duration::from_secs(1)))?;
    kept[5].read_exact(&mut answer)?;
    ensure!(answer[12] == 1, "a stranger was welcome: {answer:?}");
    Ok(())
}

fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let since = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error) if since.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Something else listens where the host should: it says nonsense, hangs up, or says nothing.
fn garbage_instead_of_the_host() -> anyhow::Result<()> {
    let cases: [(Option<&[u8]>, &str); 4] = [
        (Some(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "is no process of the virtual GPU"),
        (Some(b""), "is no process of the virtual GPU"),
        (Some(b"vgpunccl\x63\0\0\0\x02\0\0\0"), "another version of the virtual GPU"),
        (None, "does not answer"),
    ];
    for (bytes, words) in cases {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let env = [SHORT[0], ("NCCL_COMM_ID", address.as_str())];
        let mut guest = spawn("joins 1 1 2 0", &env)?;
        guest.give("")?;
        let (mut stream, _) = listener.accept()?;
        if let Some(bytes) = bytes {
            // The guest hangs up as soon as it has read enough.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        told("rank 1", guest.said()?, &[words])?;
    }
    Ok(())
}
