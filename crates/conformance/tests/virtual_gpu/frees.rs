//! One stream frees memory while another stream uses it: the report is the same, regardless of which comes first.
//!
//! Event tracking is off, because cudarc would add the missing wait.

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use lab::{Check, Kernels};

use crate::device::untracked;
use crate::host_functions::launch;
use crate::{contains, fails, text};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("frees::a_copy_and_a_free_race_alike_in_either_order", || {
            alike(&|stream, buffer, _| Ok(stream.memset_zeros(buffer)?))
        }),
        Check::new("frees::a_kernel_and_a_free_race_alike_in_either_order", || {
            alike(&|stream, buffer, kernels| kernels.scale(stream, buffer, 2.0))
        }),
        Check::new("frees::a_collective_and_a_free_race_alike_in_either_order", collective),
        Check::new("frees::later_work_is_reported_as_use_after_free", enqueued_later),
        Check::new("frees::a_second_free_is_refused_at_the_call", freed_twice),
        Check::new("frees::freed_memory_can_be_allocated_again", allocated_anew),
    ]
}

fn two_streams(gpu: usize) -> anyhow::Result<[Arc<CudaStream>; 2]> {
    let context = untracked(gpu);
    Ok([context.new_stream()?, context.new_stream()?])
}

/// Blocks a stream until the returned function is called.
pub(crate) fn hold(stream: &CudaStream) -> anyhow::Result<impl FnOnce() + use<>> {
    let (let_go, held) = channel::<()>();
    launch(stream, move || held.recv().unwrap_or_default())?;
    Ok(move || drop(let_go))
}

type Use<'a> = &'a dyn Fn(&Arc<CudaStream>, &mut CudaSlice<f32>, &Kernels) -> anyhow::Result<()>;

/// Uses memory on stream 2 and frees it on stream 1, in either order and unordered. All reports must be the same.
fn alike(used: Use<'_>) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for (gpu, held) in [None, Some(0), Some(1)].into_iter().enumerate() {
        let streams = two_streams(gpu)?;
        let kernels = Kernels::load(streams[0].context())?;
        let mut buffer = streams[0].alloc_zeros::<f32>(1000)?;
        streams[0].synchronize()?;
        let let_go = held.map(|held| hold(&streams[held])).transpose()?;
        used(&streams[1], &mut buffer, &kernels)?;
        drop(buffer);
        if let (Some(held), Some(let_go)) = (held, let_go) {
            streams[1 - held].synchronize()?;
            let_go();
        }
        let all = streams.iter().try_for_each(|stream| stream.synchronize());
        let Err(error) = all else { anyhow::bail!("no race was reported with {held:?} blocked") };
        reports.push(text(error).replace(&format!("GPU {gpu}"), "GPU"));
    }
    contains(&reports[0], &["data race on GPU", "on stream 2", "freed on stream 1"]);
    assert_eq!(reports[0], reports[1]);
    assert_eq!(reports[0], reports[2]);
    Ok(())
}

/// Rank 0 frees its buffer before rank 1 has called the collective, or after both have.
fn collective() -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for first in [true, false] {
        let id = Id::new().unwrap();
        let freed = Barrier::new(2);
        let said = lab::each_rank(2, |rank| {
            let gpu = 2 * usize::from(first) + rank;
            let [own, other] = two_streams(gpu)?;
            let comm = Comm::from_rank(other.clone(), rank, 2, id).unwrap();
            let mut buffer = own.clone_htod(&[1.0_f32; 1000])?;
            own.synchronize()?;
            if rank == 1 && first {
                freed.wait();
            }
            anyhow::ensure!(comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).is_ok());
            if !first {
                freed.wait();
            }
            if rank == 1 {
                std::mem::forget((comm, buffer));
                return Ok(None);
            }
            drop(buffer);
            let own = own.synchronize();
            if first {
                freed.wait();
            }
            let Err(error) = own.and_then(|()| other.synchronize()) else {
                anyhow::bail!("no race was reported (the free first: {first})");
            };
            std::mem::forget(comm);
            Ok(Some(text(error).replace(&format!("GPU {gpu}"), "GPU")))
        })?;
        reports.extend(said.into_iter().flatten());
    }
    let words = ["data race on GPU", "read and written by ncclAllReduce on stream 2", "freed on stream 1"];
    contains(&reports[0], &words);
    assert_eq!(reports[0], reports[1]);
    Ok(())
}

fn enqueued_later() -> anyhow::Result<()> {
    let [one, two] = two_streams(0)?;
    let kernels = Kernels::load(one.context())?;
    let buffer = one.alloc_zeros::<f32>(1000)?;
    let address = buffer.device_ptr(&one).0;
    one.synchronize()?;
    let let_go = hold(&one)?;
    drop(buffer);
    let mut host = [0_u8; 16];
    // SAFETY: the driver checks the address.
    let copied = unsafe { result::memcpy_dtoh_async(&mut host, address, two.cu_stream()) };
    fails(
        copied,
        CUresult::CUDA_ERROR_INVALID_VALUE,
        &["bytes 0..16 of memory that has been freed", "frees.rs:"],
    );
    // SAFETY: the slice's memory has already been freed; `leak` prevents a second free.
    let mut again = unsafe { two.upgrade_device_ptr::<f32>(address, 1000) };
    kernels.scale(&two, &mut again, 2.0)?;
    let _ = again.leak();
    let synchronized = two.synchronize();
    fails(synchronized, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &["uses freed memory", "drop(buffer)"]);
    let_go();
    Ok(())
}

fn freed_twice() -> anyhow::Result<()> {
    let [one, _] = two_streams(0)?;
    let address = one.alloc_zeros::<f32>(1000)?.leak();
    one.synchronize()?;
    let let_go = hold(&one)?;
    // SAFETY: the driver checks the address to be freed.
    unsafe { result::free_async(address, one.cu_stream())? };
    // SAFETY: as above.
    let again = unsafe { result::free_async(address, one.cu_stream()) };
    fails(again, CUresult::CUDA_ERROR_INVALID_VALUE, &["a pointer that can't be freed", "freed again"]);
    let_go();
    Ok(one.synchronize()?)
}

/// Memory can be allocated again even while the stream that frees it is blocked, because a pool reuses freed memory.
fn allocated_anew() -> anyhow::Result<()> {
    let [one, _] = two_streams(0)?;
    let (_, all) = result::mem_get_info()?;
    let let_go = hold(&one)?;
    for _ in 0..40 {
        // SAFETY: nothing reads it.
        drop(unsafe { one.alloc::<u8>(all / 16) }?);
    }
    let_go();
    one.synchronize()?;
    assert_eq!(result::mem_get_info()?, (all, all));
    Ok(())
}
