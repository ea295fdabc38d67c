//! The virtual clock: intervals between events.

use std::sync::Arc;

use cudarc::driver::sys::{CUevent_flags, CUresult};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use lab::{Check, Kernels};

use crate::{contains, fails, text};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("time::a_spin_takes_as_long_as_it_was_asked_to", spin_takes_its_time),
        Check::new("time::two_streams_overlap_and_one_does_not", overlap),
        Check::new("time::a_wait_for_a_context_includes_its_destroyed_streams", destroyed_stream),
        Check::new("time::a_query_returns_false_and_then_true", query),
        Check::new("time::a_rank_waits_for_the_slowest", slowest_rank),
        Check::new("time::events_without_a_time_are_refused", no_time),
    ]
}

const MILLISECOND: u64 = 1_000_000;

fn gpu(ordinal: usize) -> anyhow::Result<(Arc<CudaContext>, Kernels)> {
    let context = CudaContext::new(ordinal)?;
    let kernels = Kernels::load(&context)?;
    Ok((context, kernels))
}

fn mark(stream: &CudaStream) -> anyhow::Result<CudaEvent> {
    Ok(stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?)
}

fn spin_takes_its_time() -> anyhow::Result<()> {
    let (context, kernels) = gpu(0)?;
    let stream = context.new_stream()?;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let start = mark(&stream)?;
        kernels.spin(&stream, MILLISECOND)?;
        let end = mark(&stream)?;
        seen.push(start.elapsed_ms(&end)?);
    }
    assert!((1.0..1.01).contains(&seen[0]), "{seen:?} ms");
    assert_eq!(seen[0], seen[1], "the same on every run");
    Ok(())
}

fn overlap() -> anyhow::Result<()> {
    let (context, kernels) = gpu(0)?;
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    for (second, most) in [(&one, 2.05), (&other, 1.05)] {
        let start = mark(&one)?;
        kernels.spin(&one, MILLISECOND)?;
        kernels.spin(second, MILLISECOND)?;
        one.join(second)?;
        let elapsed = start.elapsed_ms(&mark(&one)?)?;
        assert!(elapsed < most && elapsed > most - 0.1, "{elapsed} ms, expected just below {most}");
    }
    Ok(())
}

/// "cuStreamDestroy … the function will return immediately and the resources associated with hStream will be released
/// automatically once the device has completed all work in hStream."
fn destroyed_stream() -> anyhow::Result<()> {
    let (context, kernels) = gpu(0)?;
    let stream = context.new_stream()?;
    for _ in 0..2 {
        let start = mark(&stream)?;
        let other = context.new_stream()?;
        kernels.spin(&other, MILLISECOND)?;
        drop(other);
        context.synchronize()?;
        let elapsed = start.elapsed_ms(&mark(&stream)?)?;
        assert!((1.0..1.1).contains(&elapsed), "{elapsed} ms");
    }
    Ok(())
}

fn query() -> anyhow::Result<()> {
    let (context, kernels) = gpu(0)?;
    let stream = context.new_stream()?;
    kernels.spin(&stream, MILLISECOND)?;
    let end = mark(&stream)?;
    assert!(!end.try_is_complete()?, "a launch returns before the kernel ends");
    let polls = (0..100_000).find(|_| end.try_is_complete().unwrap());
    assert!(polls.is_some(), "polling ends");
    assert!(context.new_event(None)?.try_is_complete()?, "an event that was never recorded is complete");
    Ok(())
}

/// A collective ends on every rank when it ends on the rank that arrived last.
fn slowest_rank() -> anyhow::Result<()> {
    let id = Id::new().unwrap();
    let elapsed = lab::each_rank(3, |rank| {
        let (context, kernels) = gpu(rank)?;
        let stream = context.new_stream()?;
        let comm = Comm::from_rank(stream.clone(), rank, 3, id).unwrap();
        let mut buffer = stream.alloc_zeros::<f32>(1)?;
        stream.synchronize()?;
        let start = mark(&stream)?;
        kernels.spin(&stream, if rank == 1 { 3 * MILLISECOND } else { 0 })?;
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        let end = mark(&stream)?;
        Ok(start.elapsed_ms(&end)?)
    })?;
    assert!(elapsed.iter().all(|elapsed| (2.9..3.2).contains(elapsed)), "{elapsed:?} ms");
    Ok(())
}

fn no_time() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let (timed, untimed) = (mark(&stream)?, stream.record_event(None)?);
    let error = timed.elapsed_ms(&untimed).unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_INVALID_HANDLE);
    contains(&text(error), &["CU_EVENT_DISABLE_TIMING"]);
    let never = context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
    let error = timed.elapsed_ms(&never).unwrap_err();
    contains(&text(error), &["never recorded"]);
    // cudarc itself rejects this, so use the driver's function.
    let other = CudaContext::new(1)?;
    let other = other.new_stream()?;
    let far = mark(&other)?;
    // SAFETY: both events are alive.
    let elapsed = unsafe { result::event::elapsed(timed.cu_event(), far.cu_event()) };
    fails(elapsed, CUresult::CUDA_ERROR_INVALID_HANDLE, &["different GPUs"]);
    Ok(())
}
