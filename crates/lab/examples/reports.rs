//! The four incorrect programs shown in the course's book: `cargo run -p lab --example reports -- deadlock`.

use std::process::ExitCode;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nccl::{Comm, Id, ReduceOp};
use lab::{Kernels, Readable, each_rank, name_stream};

fn main() -> anyhow::Result<ExitCode> {
    lab::attach(2)?;
    let ended = match std::env::args().nth(1).as_deref() {
        Some("race") => race(),
        Some("bounds") => bounds(),
        Some("mismatch") => mismatch(),
        Some("deadlock") => deadlock(),
        _ => anyhow::bail!("name one of the programs: race, bounds, mismatch, or deadlock"),
    };
    // The error's text is the report, which has already been printed.
    Ok(if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Creates two streams on GPU 0, which cudarc doesn't order by itself.
fn two_streams() -> anyhow::Result<(Arc<CudaStream>, Arc<CudaStream>)> {
    let context = CudaContext::new(0)?;
    // SAFETY: these programs must order their streams themselves; the program with the race forgets to.
    unsafe { context.disable_event_tracking() };
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    name_stream(&a, "a")?;
    name_stream(&b, "b")?;
    Ok((a, b))
}

fn race() -> anyhow::Result<()> {
    let (a, b) = two_streams()?;
    let kernels = Kernels::load(a.context())?;
    // ANCHOR: race
    let mut x = a.alloc_zeros(1024)?;
    kernels.scale(&a, &mut x, 2.0)?;
    let values = b.clone_dtoh(&x)?;
    b.synchronize()?;
    // ANCHOR_END: race
    println!("{}", values[0]);
    Ok(())
}

fn bounds() -> anyhow::Result<()> {
    let (stream, _) = two_streams()?;
    let kernels = Kernels::load(stream.context())?;
    // ANCHOR: bounds
    let x = stream.alloc_zeros::<f32>(1000)?;
    // SAFETY: none: the buffer has 1000 elements, not 1024.
    let mut all = unsafe { stream.upgrade_device_ptr::<f32>(x.leak(), 1024) };
    kernels.scale(&stream, &mut all, 2.0)?;
    stream.synchronize()?;
    // ANCHOR_END: bounds
    Ok(())
}

/// Runs two ranks, each with its own thread and communicator.
fn two_ranks(work: impl Fn(&Comm) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    let id = Id::new().readable()?;
    each_rank(2, |rank| {
        let stream = CudaContext::new(rank)?.new_stream()?;
        work(&Comm::from_rank(stream, rank, 2, id).readable()?)
    })?;
    Ok(())
}

fn mismatch() -> anyhow::Result<()> {
    two_ranks(|comm| {
        let stream = comm.stream();
        // ANCHOR: mismatch
        let share = 1000 + comm.rank();
        let mut x = stream.alloc_zeros::<f32>(share)?;
        comm.all_reduce_in_place(&mut x, &ReduceOp::Sum).readable()?;
        stream.synchronize()?;
        // ANCHOR_END: mismatch
        Ok(())
    })
}

fn deadlock() -> anyhow::Result<()> {
    two_ranks(|comm| {
        let (stream, rank) = (comm.stream(), comm.rank());
        // ANCHOR: deadlock
        let mut x = stream.alloc_zeros::<f32>(1000)?;
        if rank == 0 {
            comm.all_reduce_in_place(&mut x, &ReduceOp::Sum).readable()?;
        }
        stream.synchronize()?;
        // ANCHOR_END: deadlock
        Ok(())
    })
}
