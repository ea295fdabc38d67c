//! What nothing orders is found; what one more call orders is not. Each pair differs by that call.
//!
//! Event tracking is off in all of them: cudarc would add the missing call.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use lab::Check;

use crate::{contains, text};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("order::two_writes", two_writes),
        Check::new("order::two_writes_with_a_wait", two_writes_with_a_wait),
        Check::new("order::two_writes_with_a_host_wait", two_writes_with_a_host_wait),
        Check::new("order::an_event_recorded_too_early_orders_nothing", event_recorded_too_early),
        Check::new("order::other_parts_of_a_buffer_are_no_race", other_parts_of_a_buffer),
        Check::new("order::a_stream_behind_a_dropped_one", behind_a_dropped_stream),
        Check::new("order::a_buffer_handed_to_another_thread", handed_to_another_thread),
        Check::new("order::a_collective_that_nothing_makes_wait", || collective_beside(false)),
        Check::new("order::a_collective_that_waits", || collective_beside(true)),
        Check::new("order::a_buffer_freed_while_another_stream_uses_it", freed_while_used),
        Check::new("order::cudarc_s_tracking_forgets_a_read_before_the_last", forgotten_read),
        Check::new("order::the_default_stream_beside_a_non_blocking_one", beside_the_default_stream),
    ]
}

/// Two streams of GPU 0 and a written buffer.
fn two_streams() -> (Arc<CudaStream>, Arc<CudaStream>, CudaSlice<u8>) {
    let context = CudaContext::new(0).unwrap();
    // SAFETY: these programs order their streams themselves, or show what happens otherwise.
    unsafe { context.disable_event_tracking() };
    let (one, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let buffer = one.alloc_zeros(4096).unwrap();
    one.synchronize().unwrap();
    (one, other, buffer)
}

/// Asserts that the stream's work was stopped by a report with these words.
fn races(stream: &CudaStream, words: &[&str]) -> anyhow::Result<()> {
    let Err(error) = stream.synchronize() else { anyhow::bail!("no race was reported") };
    contains(&text(error), words);
    Ok(())
}

fn two_writes() -> anyhow::Result<()> {
    let (one, other, mut buffer) = two_streams();
    one.memset_zeros(&mut buffer)?;
    other.memset_zeros(&mut buffer)?;
    let words = [
        "data race on GPU 0",
        "bytes 0..4096 of the buffer of 4 KiB",
        "written by a memset on stream 1",
        "written by a memset on stream 2",
        "nothing makes stream 2 wait for stream 1",
        ": stream_2.wait(&stream_1.record_event(None)?)?",
        "crates/lab/tests/virtual_gpu/order.rs:",
    ];
    races(&other, &words)
}

fn two_writes_with_a_wait() -> anyhow::Result<()> {
    let (one, other, mut buffer) = two_streams();
    one.memset_zeros(&mut buffer)?;
    other.wait(&one.record_event(None)?)?;
    other.memset_zeros(&mut buffer)?;
    Ok(other.synchronize()?)
}

fn two_writes_with_a_host_wait() -> anyhow::Result<()> {
    let (one, other, mut buffer) = two_streams();
    one.memset_zeros(&mut buffer)?;
    one.synchronize()?;
    other.memset_zeros(&mut buffer)?;
    Ok(other.synchronize()?)
}

fn event_recorded_too_early() -> anyhow::Result<()> {
    let (one, other, mut buffer) = two_streams();
    let event = one.record_event(None)?;
    one.memset_zeros(&mut buffer)?;
    other.wait(&event)?;
    other.memset_zeros(&mut buffer)?;
    races(&other, &["data race", "nothing makes stream 2 wait for stream 1"])
}

fn other_parts_of_a_buffer() -> anyhow::Result<()> {
    let (one, other, mut buffer) = two_streams();
    one.memset_zeros(&mut buffer.slice_mut(..100))?;
    other.memset_zeros(&mut buffer.slice_mut(100..))?;
    other.synchronize()?;
    Ok(one.synchronize()?)
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

fn handed_to_another_thread() -> anyhow::Result<()> {
    let (one, other, mut buffer) = two_streams();
    let (send, receive) = std::sync::mpsc::channel::<CudaSlice<u8>>();
    let thread = std::thread::spawn(move || -> anyhow::Result<()> {
        let mut buffer = receive.recv()?;
        other.memset_zeros(&mut buffer)?;
        Ok(other.synchronize()?)
    });
    one.memset_zeros(&mut buffer)?;
    one.synchronize()?;
    send.send(buffer)?;
    thread.join().unwrap()
}

/// A collective on one stream beside a copy on another, on two ranks. `wait` adds the missing call.
fn collective_beside(wait: bool) -> anyhow::Result<()> {
    let id = Id::new().unwrap();
    lab::each_rank(2, |rank| {
        let context = CudaContext::new(rank)?;
        // SAFETY: as in `two_streams`.
        unsafe { context.disable_event_tracking() };
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

fn freed_while_used() -> anyhow::Result<()> {
    let (one, other, mut buffer) = two_streams();
    other.memset_zeros(&mut buffer)?;
    drop(buffer);
    races(&one, &["data race", "freed on stream 1"])
}

fn beside_the_default_stream() -> anyhow::Result<()> {
    let (one, _, mut buffer) = two_streams();
    one.memset_zeros(&mut buffer)?;
    let default = one.context().default_stream();
    default.memset_zeros(&mut buffer)?;
    races(&default, &["written by a memset on the default stream"])
}

/// cudarc keeps one event for the reads of a slice: of two streams that read it, a later write waits for the second.
fn forgotten_read() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    let mut buffer = one.clone_htod(&[1u8; 4096])?;
    let (mut first, mut second) = (one.alloc_zeros::<u8>(4096)?, other.alloc_zeros::<u8>(4096)?);
    one.memcpy_dtod(&buffer, &mut first)?;
    other.memcpy_dtod(&buffer, &mut second)?;
    other.memset_zeros(&mut buffer)?;
    races(&other, &["read by a copy on stream 1", "written by a memset on stream 2"])
}
