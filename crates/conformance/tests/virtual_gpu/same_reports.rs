//! Tests that a wrong program causes the same reports regardless of thread timing.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use cudarc::driver::CudaContext;
use cudarc::nccl::safe::{Comm, Id, ReduceOp, group_end, group_start};
use lab::{Check, Kernels, Readable};

use crate::child;

pub(crate) fn checks() -> Vec<Check> {
    let of = |name, program: &'static str, finds| Check::new(name, move || same(program, finds));
    vec![
        of("same_reports::of_races_in_eight_threads", "same_reports::races", "data race"),
        of("same_reports::of_races_in_one_thread", "same_reports::races_of_one_thread", "data race"),
        of("same_reports::of_a_count_that_differs", "same_reports::count", "differs between ranks"),
        of("same_reports::of_a_rank_that_leaves", "same_reports::leaves", "rank 5"),
        of("same_reports::of_two_communicators_in_two_orders", "same_reports::orders", "deadlock"),
    ]
}

/// The environment variable that determines how long the ranks pause.
const PAUSE: &str = "LAB_TESTS_PAUSE";

const RANKS: usize = 8;

/// Runs a program four times with different thread timings. The order of the reports may differ.
fn same(program: &str, finds: &str) -> anyhow::Result<()> {
    let reports = |pause: &str| {
        let (well, said) = child::start(program, &[(PAUSE, pause)])?;
        ensure!(!well && said.contains(finds), "{program} got:\n{said}");
        let mut reports: Vec<String> = said.split("virtual GPU: ").skip(1).map(str::to_owned).collect();
        reports.sort_unstable();
        Ok(reports)
    };
    let first = reports("0")?;
    for pause in ["1", "2", "3"] {
        let again = reports(pause)?;
        ensure!(first == again, "{}\nand then\n{}", first.join("\n"), again.join("\n"));
    }
    Ok(())
}

/// Sleeps for up to 6 ms, depending on the rank, the call, and the run.
fn pause(rank: usize, call: u64) -> anyhow::Result<()> {
    let run: u64 = std::env::var(PAUSE)?.parse()?;
    std::thread::sleep(Duration::from_millis((rank as u64 * 5 + call * 2 + run * 3) % 7));
    Ok(())
}

/// Runs a rank in each of eight threads, and collects their errors.
fn each(work: impl Fn(usize, Id) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    lab::attach(RANKS)?;
    let id = Id::new().readable()?;
    let reported = lab::each_rank(RANKS, |rank| {
        pause(rank, 0)?;
        Ok(work(rank, id).err().map(|error| format!("rank {rank}: {error:#}")))
    })?;
    let reported: Vec<String> = reported.into_iter().flatten().collect();
    ensure!(reported.is_empty(), "{}", reported.join("\n"));
    Ok(())
}

/// Each rank's all-reduce does not wait for the kernel that fills its buffer.
pub(crate) fn races() -> anyhow::Result<()> {
    each(|rank, id| {
        let compute = CudaContext::new(rank)?.new_stream()?;
        // SAFETY: the mistake under test is that the two streams are unordered.
        unsafe { compute.context().disable_event_tracking() };
        let kernels = Kernels::load(compute.context())?;
        let comm = Comm::from_rank(compute.context().new_stream()?, rank, RANKS, id).readable()?;
        let mut buffer = compute.alloc_zeros::<f32>(1000)?;
        compute.synchronize()?;
        pause(rank, 1)?;
        kernels.scale(&compute, &mut buffer.as_view_mut(), 2.0)?;
        pause(rank, 2)?;
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).readable()?;
        comm.stream().synchronize()?;
        Ok(compute.synchronize()?)
    })
}

/// Causes the same races with one thread and a group.
pub(crate) fn races_of_one_thread() -> anyhow::Result<()> {
    let streams = lab::streams(RANKS)?;
    let mut ranks = Vec::new();
    for stream in &streams {
        // SAFETY: the mistake under test is that the two streams are unordered.
        unsafe { stream.context().disable_event_tracking() };
        let buffer = stream.alloc_zeros::<f32>(1000)?;
        stream.synchronize()?;
        ranks.push((Kernels::load(stream.context())?, buffer));
    }
    let comm_streams =
        streams.iter().map(|stream| stream.context().new_stream()).collect::<Result<_, _>>()?;
    let comms = Comm::from_devices(comm_streams).readable()?;
    for (rank, (stream, (kernels, buffer))) in streams.iter().zip(&mut ranks).enumerate() {
        pause(rank, 1)?;
        kernels.scale(stream, &mut buffer.as_view_mut(), 2.0)?;
    }
    group_start().readable()?;
    for (comm, (_, buffer)) in comms.iter().zip(&mut ranks) {
        comm.all_reduce_in_place(buffer, &ReduceOp::Sum).readable()?;
    }
    group_end().readable()?;
    let reported: Vec<String> =
        comms.iter().filter_map(|comm| Some(comm.stream().synchronize().err()?.to_string())).collect();
    ensure!(reported.is_empty(), "{}", reported.join("\n"));
    Ok(())
}

fn all_reduce(comm: &Comm, count: usize) -> anyhow::Result<()> {
    let mut buffer = comm.stream().alloc_zeros::<f32>(count)?;
    comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).readable()?;
    Ok(comm.stream().synchronize()?)
}

/// Rank 3 passes one element fewer than the other ranks.
pub(crate) fn count() -> anyhow::Result<()> {
    each(|rank, id| {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let comm = Comm::from_rank(stream, rank, RANKS, id).readable()?;
        all_reduce(&comm, 100)?;
        pause(rank, 1)?;
        all_reduce(&comm, if rank == 3 { 99 } else { 100 })
    })
}

/// Rank 5 returns without making the last call.
pub(crate) fn leaves() -> anyhow::Result<()> {
    each(|rank, id| {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let comm = Comm::from_rank(stream, rank, RANKS, id).readable()?;
        all_reduce(&comm, 100)?;
        pause(rank, 1)?;
        if rank == 5 {
            return Ok(());
        }
        all_reduce(&comm, 100)
    })
}

/// Odd ranks use the two communicators in reverse order and wait in between.
pub(crate) fn orders() -> anyhow::Result<()> {
    lab::attach(RANKS)?;
    let other = Id::new().readable()?;
    each(|rank, id| {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let one = Comm::from_rank(stream.clone(), rank, RANKS, id).readable()?;
        let two = Comm::from_rank(stream.context().new_stream()?, rank, RANKS, other).readable()?;
        pause(rank, 1)?;
        let [first, second] = if rank % 2 == 0 { [&one, &two] } else { [&two, &one] };
        all_reduce(first, 100).context("the first")?;
        all_reduce(second, 100).context("the second")
    })
}
