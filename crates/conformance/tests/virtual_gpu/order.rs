//! Races between streams that are created and destroyed, and between ranks in different threads. `races/` contains the
//! pairs of programs.
//!
//! Event tracking is off, because cudarc would add the missing call.

use std::sync::Arc;

use cudarc::driver::result::{self, stream::StreamKind};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use lab::Check;

use crate::device::untracked;
use crate::{contains, text};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("order::a_stream_behind_a_dropped_one", behind_a_dropped_stream),
        Check::new("order::work_of_a_dropped_stream_is_waited_for", behind_dropped_work),
        Check::new("order::a_collective_that_nothing_makes_wait", || collective_beside(false)),
        Check::new("order::a_collective_that_waits", || collective_beside(true)),
    ]
}

/// Returns two streams on GPU 0 and a buffer that has been written.
fn two_streams() -> (Arc<CudaStream>, Arc<CudaStream>, CudaSlice<u8>) {
    let context = untracked(0);
    let (one, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let buffer = one.alloc_zeros(4096).unwrap();
    one.synchronize().unwrap();
    (one, other, buffer)
}

/// Asserts that a report with these words stopped the stream's work.
fn races(stream: &CudaStream, words: &[&str]) -> anyhow::Result<()> {
    let Err(error) = stream.synchronize() else { anyhow::bail!("no race was reported") };
    contains(&text(error), words);
    Ok(())
}

fn behind_a_dropped_stream() -> anyhow::Result<()> {
    let (one, other, mut buffer) = two_streams();
    let third = other.context().new_stream()?;
    third.memset_zeros(&mut buffer)?;
    third.synchronize()?;
    drop(third);
    one.memset_zeros(&mut buffer)?;
    Ok(one.synchronize()?)
}

/// "Any resources associated with the stream are released once the device has completed all work in it", and
/// "cuCtxSynchronize blocks until the current context has completed all preceding requested tasks".
fn behind_dropped_work() -> anyhow::Result<()> {
    let (one, other, mut buffer) = two_streams();
    let context = one.context();
    for _ in 0..3 {
        let third = context.new_stream()?;
        third.memset_zeros(&mut buffer)?;
        drop(third);
        context.synchronize()?;
        one.memset_zeros(&mut buffer)?;
        one.synchronize()?;
    }
    // The default stream waits for work on blocking streams, but for no other streams.
    for (kind, is_waited_for) in [(StreamKind::Default, true), (StreamKind::NonBlocking, false)] {
        let stream = result::stream::create(kind)?;
        let address = buffer.device_ptr(&one).0;
        // SAFETY: the buffer has this length, and lives until the end of the check.
        unsafe {
            result::memset_d8_async(address, 1, 4096, stream)?;
            result::stream::destroy(stream)?;
            result::memset_d8_async(address, 2, 4096, result::stream::null())?;
        }
        if is_waited_for {
            context.default_stream().synchronize()?;
        }
    }
    races(&context.default_stream(), &["data race"])?;
    std::mem::forget((buffer, other));
    Ok(())
}

/// Runs a collective on one stream and a copy on another, on two ranks. `wait` adds the missing call.
fn collective_beside(wait: bool) -> anyhow::Result<()> {
    let id = Id::new().unwrap();
    lab::each_rank(2, |rank| {
        let context = untracked(rank);
        let (compute, comm) = (context.new_stream()?, context.new_stream()?);
        let comm = Comm::from_rank(comm, rank, 2, id).unwrap();
        let mut buffer = compute.alloc_zeros::<f32>(1000)?;
        compute.synchronize()?;
        compute.memcpy_htod(&[1.5; 1000], &mut buffer)?;
        if wait {
            comm.stream().wait(&compute.record_event(None)?)?;
        }
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        if wait {
            assert_eq!(comm.stream().clone_dtoh(&buffer)?, [3.0; 1000]);
            return Ok(());
        }
        let gpu = format!("data race on GPU {rank}");
        let words = [
            &gpu,
            "written by a copy from the host on stream 1",
            "read and written by ncclAllReduce on stream 2",
        ];
        races(&comm.stream(), &words)?;
        std::mem::forget((comm, buffer));
        Ok(())
    })?;
    Ok(())
}
