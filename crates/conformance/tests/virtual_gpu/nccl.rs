//! Tests cudarc on the virtual libraries: communicators, collectives, and the reports when they fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nccl::result::{NcclError, get_uniqueid, group_end, group_start};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use cudarc::nccl::sys;
use lab::{Check, Readable};

use crate::{contains, text};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl::a_rank_that_runs_a_kernel_is_waited_for", waited_for),
        Check::new("nccl::an_abort_succeeds_while_the_process_ends", abort_at_exit),
        Check::new("nccl::every_rank_gets_the_sum", every_rank_gets_the_sum),
        Check::new("nccl::a_broadcast_comes_from_its_root", a_broadcast_comes_from_its_root),
        Check::new("nccl::the_other_collectives", the_other_collectives),
        Check::new("nccl::a_communicator_dropped_in_flight", dropped_in_flight),
        Check::new("nccl::an_abort_after_a_query_succeeds", abort_after_a_query),
        Check::new("nccl::a_wait_inside_an_open_group", wait_inside_a_group),
        Check::new(
            "nccl::one_thread_drives_several_gpus_in_a_group",
            one_thread_drives_several_gpus_in_a_group,
        ),
        Check::new(
            "nccl::one_thread_that_calls_for_one_rank_alone_is_stopped",
            one_thread_that_calls_for_one_rank_alone_is_stopped,
        ),
        Check::new(
            "nccl::ranks_that_disagree_are_named_with_their_calls",
            ranks_that_disagree_are_named_with_their_calls,
        ),
        Check::new(
            "nccl::a_rank_that_never_calls_is_named_at_once",
            a_rank_that_never_calls_is_named_at_once,
        ),
        Check::new(
            "nccl::leaving_without_a_call_differs_from_dropping_the_communicator",
            leaving_without_a_call_differs_from_dropping_the_communicator,
        ),
        Check::new(
            "nccl::a_cycle_over_two_communicators_is_a_deadlock",
            a_cycle_over_two_communicators_is_a_deadlock,
        ),
        Check::new("nccl::an_id_for_each_thread_ends_by_timeout", an_id_for_each_thread_ends_by_timeout),
        Check::new(
            "nccl::bad_ids_ranks_and_pointers_are_refused_by_name",
            bad_ids_ranks_and_pointers_are_refused_by_name,
        ),
    ]
}

pub(crate) fn stream(gpu: usize) -> Arc<CudaStream> {
    CudaContext::new(gpu).unwrap().new_stream().unwrap()
}

/// Returns NCCL's text for this thread's last error.
pub(crate) fn last_error() -> String {
    // SAFETY: NCCL ignores the communicator; the text lives as long as the process.
    unsafe { std::ffi::CStr::from_ptr(sys::ncclGetLastError(std::ptr::null_mut())) }
        .to_string_lossy()
        .into_owned()
}

/// Runs one thread per rank, on GPUs `first..first + n`, so that tests can use different GPUs.
pub(crate) fn ranks<T: Send>(first: usize, n: usize, work: impl Fn(usize, Comm) -> T + Sync) -> Vec<T> {
    let id = Id::new().unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|rank| {
                let work = &work;
                scope.spawn(move || {
                    let stream = stream(first + rank);
                    let Ok(comm) = Comm::from_rank(stream, rank, n, id) else { panic!("{}", last_error()) };
                    work(rank, comm)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn every_rank_gets_the_sum() -> anyhow::Result<()> {
    for n in 1..=5 {
        let results = ranks(0, n, |rank, comm| {
            let stream = comm.stream();
            let input: Vec<f32> = (0..1001).map(|i| (i * (rank + 1)) as f32).collect();
            let send = stream.clone_htod(&input).unwrap();
            let mut receive = stream.alloc_zeros::<f32>(1001).unwrap();
            comm.all_reduce(&send, &mut receive, &ReduceOp::Sum).unwrap();
            stream.clone_dtoh(&receive).unwrap()
        });
        let factor = n * (n + 1) / 2;
        let expected: Vec<f32> = (0..1001).map(|i| (i * factor) as f32).collect();
        assert!(results.iter().all(|result| *result == expected), "{n} ranks");
    }
    Ok(())
}

fn a_broadcast_comes_from_its_root() -> anyhow::Result<()> {
    for root in 0..3 {
        let results = ranks(0, 3, |rank, comm| {
            let stream = comm.stream();
            let mut buffer = stream.clone_htod(&vec![rank as f32 + 0.5; 77]).unwrap();
            comm.broadcast_in_place(&mut buffer, root).unwrap();
            stream.clone_dtoh(&buffer).unwrap()
        });
        assert!(results.iter().all(|result| *result == [root as f32 + 0.5; 77]), "root {root}");
    }
    Ok(())
}

fn one_thread_drives_several_gpus_in_a_group() -> anyhow::Result<()> {
    let comms = Comm::from_devices((0..4).map(stream).collect()).unwrap();
    let mut buffers: Vec<_> =
        comms.iter().map(|comm| comm.stream().clone_htod(&[comm.rank() as f32; 3]).unwrap()).collect();
    group_start().unwrap();
    for (comm, buffer) in comms.iter().zip(&mut buffers) {
        comm.all_reduce_in_place(buffer, &ReduceOp::Max).unwrap();
    }
    group_end().unwrap();
    for (comm, buffer) in comms.iter().zip(&buffers) {
        assert_eq!(comm.stream().clone_dtoh(buffer).unwrap(), [3.0; 3]);
    }
    Ok(())
}

/// The calls are not in a group, or a rank is missing from the group.
fn one_thread_that_calls_for_one_rank_alone_is_stopped() -> anyhow::Result<()> {
    let comms = Comm::from_devices((0..3).map(stream).collect()).unwrap();
    let mut buffers: Vec<_> =
        comms.iter().map(|comm| comm.stream().clone_htod(&[comm.rank() as f32; 3]).unwrap()).collect();
    assert!(comms[0].all_reduce_in_place(&mut buffers[0], &ReduceOp::Max).is_err());
    assert!(last_error().contains("deadlock: ranks 1 and 2 are missing from a group"), "{}", last_error());
    for (first, whole) in [(1, false), (0, true)] {
        group_start().unwrap();
        for (comm, buffer) in comms.iter().zip(&mut buffers).skip(first) {
            comm.all_reduce_in_place(buffer, &ReduceOp::Max).unwrap();
        }
        assert_eq!(group_end().is_ok(), whole, "{}", last_error());
    }
    assert_eq!(comms[0].stream().clone_dtoh(&buffers[0]).unwrap(), [2.0; 3]);
    Ok(())
}

fn ranks_that_disagree_are_named_with_their_calls() -> anyhow::Result<()> {
    let reports = ranks(0, 3, |rank, comm| {
        let stream = comm.stream();
        let mut buffer = stream.alloc_zeros::<f32>(10 + rank / 2).unwrap();
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        let error = text(stream.synchronize().unwrap_err());
        std::mem::forget(comm);
        error
    });
    for report in &reports {
        assert!(report.contains("the 1st collective on this communicator differs between ranks"), "{report}");
        assert!(report.contains("ranks 0 and 1: ncclAllReduce(count 10, float32, sum)"), "{report}");
        assert!(report.contains("rank 2: ncclAllReduce(count 11, float32, sum)"), "{report}");
        assert!(report.contains("crates/conformance/tests/virtual_gpu/nccl.rs:"), "{report}");
        assert_eq!(report, &reports[0]);
    }
    Ok(())
}

fn a_rank_that_never_calls_is_named_at_once() -> anyhow::Result<()> {
    let reports = ranks(0, 3, |rank, comm| {
        let stream = comm.stream();
        let mut buffer = stream.alloc_zeros::<f32>(10).unwrap();
        stream.synchronize().unwrap();
        let mut report = String::new();
        if rank != 1 {
            comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
            report = text(stream.synchronize().unwrap_err());
        }
        std::mem::forget(comm);
        report
    });
    assert!(!reports[0].contains("not proved"), "{}", reports[0]);
    assert!(reports[0].contains("rank 1 never makes the call: its thread has ended"), "{}", reports[0]);
    assert!(reports[0].contains("ranks 0 and 2 wait in ncclAllReduce"), "{}", reports[0]);
    Ok(())
}

fn leaving_without_a_call_differs_from_dropping_the_communicator() -> anyhow::Result<()> {
    for (makes_the_call, words) in [
        (
            false,
            ["rank 1 never called it, and has aborted its communicator", "an early return, or a condition"],
        ),
        (
            true,
            ["rank 1 has called it, but has aborted its communicator", "synchronize before you drop a Comm"],
        ),
    ] {
        let dropped = std::sync::Barrier::new(2);
        // A failure is sticky, so each round uses different GPUs.
        let first = 2 * usize::from(makes_the_call);
        let reports = ranks(first, 2, |rank, comm| {
            let stream = comm.stream();
            let mut buffer = stream.alloc_zeros::<f32>(10).unwrap();
            stream.synchronize().unwrap();
            if rank == 1 {
                if makes_the_call {
                    comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
                }
                drop(comm);
                dropped.wait();
                return String::new();
            }
            dropped.wait();
            comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
            text(stream.synchronize().unwrap_err())
        });
        contains(&reports[0], &words);
    }
    Ok(())
}

fn a_cycle_over_two_communicators_is_a_deadlock() -> anyhow::Result<()> {
    let id = Id::new().unwrap();
    let reports = ranks(0, 2, |rank, first| {
        let second = Comm::from_rank(first.context().new_stream().unwrap(), rank, 2, id).unwrap();
        let order = if rank == 0 { [&first, &second] } else { [&second, &first] };
        let mut errors = Vec::new();
        for comm in order {
            let mut buffer = comm.stream().alloc_zeros::<f32>(4).unwrap();
            comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
            if let Err(error) = comm.stream().synchronize() {
                errors.push(text(error));
                break;
            }
        }
        std::mem::forget((first, second));
        errors.pop().unwrap_or_default()
    });
    assert!(reports[0].contains("deadlock"), "{}", reports[0]);
    assert!(reports[0].contains("its thread is waiting in cuStreamSynchronize"), "{}", reports[0]);
    Ok(())
}

fn an_id_for_each_thread_ends_by_timeout() -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let id = Id::new().unwrap();
                let error = Comm::from_rank(stream(rank), rank, 2, id).unwrap_err();
                assert!(error == NcclError(sys::ncclResult_t::ncclTimeout));
                assert!(last_error().contains("never joined"), "{}", last_error());
            });
        }
    });
    Ok(())
}

fn bad_ids_ranks_and_pointers_are_refused_by_name() -> anyhow::Result<()> {
    let gpu = stream(0);
    let id = Id::new().unwrap();
    assert!(Comm::from_rank(gpu.clone(), 3, 2, id).is_err());
    assert!(last_error().contains("rank 3 of 2"), "{}", last_error());
    assert!(Comm::from_rank(gpu.clone(), 0, 1, Id::uninit([7; 128])).is_err());
    assert!(last_error().contains("not an id from ncclGetUniqueId"), "{}", last_error());
    get_uniqueid().unwrap();

    let comm = Comm::from_rank(gpu.clone(), 0, 1, id).unwrap();
    let send = gpu.alloc_zeros::<f32>(10).unwrap();
    let mut short = gpu.alloc_zeros::<f32>(9).unwrap();
    assert!(comm.all_reduce(&send, &mut short, &ReduceOp::Sum).is_err());
    let report = last_error();
    assert!(report.contains("rank 0's receive buffer can't be used"), "{report}");
    assert!(report.contains("bytes 0..40: 4 bytes outside"), "{report}");
    Ok(())
}

/// Returns values that depend on the rank and the position; sums of five of them are exact.
fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + rank * 13) % 101) as f32 - 50.0).collect()
}

fn the_other_collectives() -> anyhow::Result<()> {
    const COUNT: usize = 333;
    for n in 1..=5 {
        ranks(0, n, |rank, comm| {
            let stream = comm.stream();
            let whole = values(rank, COUNT * n);
            let send = stream.clone_htod(&whole).unwrap();
            let sums: Vec<f32> =
                (0..COUNT * n).map(|i| (0..n).map(|rank| values(rank, COUNT * n)[i]).sum()).collect();

            let mut part = stream.alloc_zeros::<f32>(COUNT).unwrap();
            comm.reduce_scatter(&send, &mut part, &ReduceOp::Sum).unwrap();
            assert_eq!(stream.clone_dtoh(&part).unwrap(), sums[rank * COUNT..(rank + 1) * COUNT]);

            let mut all = stream.alloc_zeros::<f32>(COUNT * n).unwrap();
            comm.all_gather(&part, &mut all).unwrap();
            assert_eq!(stream.clone_dtoh(&all).unwrap(), sums);

            for root in 0..n {
                let mut reduced = stream.clone_htod(&vec![0.5; COUNT * n]).unwrap();
                comm.reduce(&send, Some(&mut reduced), &ReduceOp::Sum, root as i32).unwrap();
                let expected = if rank == root { sums.clone() } else { vec![0.5; COUNT * n] };
                assert_eq!(stream.clone_dtoh(&reduced).unwrap(), expected, "root {root}");
            }
        });
    }
    Ok(())
}

/// The report is the same on every run, whether or not the collective was done when the communicator was dropped.
fn dropped_in_flight() -> anyhow::Result<()> {
    let reports = ranks(0, 2, |_, comm| {
        let stream = comm.stream();
        let mut buffer = stream.alloc_zeros::<f32>(10).unwrap();
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        drop(comm);
        text(stream.synchronize().unwrap_err())
    });
    assert!(
        reports[0].contains("rank 0 aborts its communicator while a collective may be in flight"),
        "{}",
        reports[0]
    );
    assert!(reports[1].contains("rank 1 aborts its communicator"), "{}", reports[1]);
    assert!(reports[1].contains("ncclAllReduce(count 10, float32, sum)"), "{}", reports[1]);
    Ok(())
}

/// One rank never makes the call. The others query the stream, find that the call isn't done, abort, and continue with
/// a communicator of their own, because the stream can be used again.
fn abort_after_a_query() -> anyhow::Result<()> {
    let (old, new) = (Id::new().unwrap(), Id::new().unwrap());
    let sums = lab::each_rank(3, |rank| {
        let stream = stream(rank);
        let comm = Comm::from_rank(stream.clone(), rank, 3, old).readable()?;
        if rank == 1 {
            return Ok(Vec::new());
        }
        let mut buffer = stream.clone_htod(&[rank as f32 + 1.0; 10])?;
        let mut sum = stream.alloc_zeros::<f32>(10)?;
        comm.all_reduce(&buffer, &mut sum, &ReduceOp::Sum).readable()?;
        let done = stream.record_event(None)?;
        for _ in 0..100 {
            assert!(!done.try_is_complete()?);
        }
        drop(comm);
        stream.synchronize()?;
        let comm = Comm::from_rank(stream.clone(), rank / 2, 2, new).readable()?;
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).readable()?;
        let sums = stream.clone_dtoh(&buffer)?;
        stream.synchronize()?;
        Ok(sums)
    })?;
    assert_eq!(sums, [vec![4.0; 10], vec![], vec![4.0; 10]]);
    Ok(())
}

fn wait_inside_a_group() -> anyhow::Result<()> {
    let comms = Comm::from_devices(vec![stream(0)]).unwrap();
    let (own, other) = (comms[0].stream(), stream(0));
    let mut buffer = own.alloc_zeros::<f32>(10)?;
    own.synchronize()?;
    group_start().unwrap();
    comms[0].all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
    other.synchronize()?;
    let report = text(own.synchronize().unwrap_err());
    assert!(report.contains("inside an open group does not wait for the group's calls"), "{report}");
    assert!(report.contains("group_end()?"), "{report}");
    group_end().unwrap();
    Ok(own.synchronize()?)
}

/// Rank 1's kernel takes longer than the timeout, and rank 0 waits for it.
pub(crate) fn late() -> anyhow::Result<()> {
    lab::attach(2)?;
    let id = Id::new().unwrap();
    lab::each_rank(2, |rank| {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let kernels = lab::Kernels::load(stream.context())?;
        let comm = Comm::from_rank(stream.clone(), rank, 2, id).unwrap();
        let mut buffer = stream.clone_htod(&[1.0f32; 4])?;
        if rank == 1 {
            kernels.spin(&stream, 20_000_000)?;
            stream.synchronize()?;
        }
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        anyhow::ensure!(stream.clone_dtoh(&buffer)? == [2.0; 4]);
        Ok(())
    })?;
    Ok(())
}

fn waited_for() -> anyhow::Result<()> {
    let (is_well, said) = crate::child::start("nccl::late", &[("VIRTUAL_GPU_TIMEOUT", "0.1")])?;
    anyhow::ensure!(is_well, "{said}");
    Ok(())
}

/// Drops a communicator after the driver has shut down. Exit handlers run in reverse order, so the program's own
/// handler, which is registered first, runs last.
pub(crate) fn aborts_at_exit() -> anyhow::Result<()> {
    static KEPT: AtomicPtr<Comm> = AtomicPtr::new(std::ptr::null_mut());
    extern "C" fn drop_kept() {
        // SAFETY: the pointer came from a box, and nothing else takes it.
        drop(unsafe { Box::from_raw(KEPT.load(Ordering::Relaxed)) });
        println!("dropped");
    }
    // SAFETY: `drop_kept` takes no arguments.
    unsafe { libc::atexit(drop_kept) };
    lab::attach(1)?;
    let stream = CudaContext::new(0)?.new_stream()?;
    let comm = Comm::from_rank(stream, 0, 1, Id::new().unwrap()).unwrap();
    KEPT.store(Box::into_raw(Box::new(comm)), Ordering::Relaxed);
    Ok(())
}

fn abort_at_exit() -> anyhow::Result<()> {
    let (is_well, said) = crate::child::start("nccl::aborts_at_exit", &[])?;
    anyhow::ensure!(is_well && said.contains("dropped"), "{said}");
    Ok(())
}
