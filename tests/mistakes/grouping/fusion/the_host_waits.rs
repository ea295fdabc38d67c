// mistake: the host waits for the average before it unpacks
// fails: fusion::no_way_waits_on_the_host
// says: does it wait on the host?

use std::collections::HashMap;

use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaSlice, CudaViewMut};
use cudarc::nccl::{Comm, group_end, group_start};
use lab::Readable;

pub fn in_order(tensors: &mut HashMap<String, CudaSlice<f32>>) -> Vec<CudaViewMut<'_, f32>> {
    let mut named: Vec<_> = tensors.iter_mut().collect();
    named.sort_by_key(|(name, _)| *name);
    named.into_iter().map(|(_, tensor)| tensor.as_view_mut()).collect()
}

pub fn average_each(comm: &Comm, tensors: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    tensors.iter_mut().try_for_each(|tensor| average_in_place(comm, tensor))
}

pub fn average_grouped(comm: &Comm, tensors: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    group_start().readable()?;
    let called = average_each(comm, tensors);
    let ended = group_end().readable();
    called.and(ended).map(drop)
}

pub fn average_fused(comm: &Comm, tensors: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    let stream = comm.stream();
    let total = tensors.iter().map(|tensor| tensor.len()).sum();
    let mut flat = stream.alloc_zeros::<f32>(total)?;
    let mut at = 0;
    for tensor in tensors.iter() {
        stream.memcpy_dtod(tensor, &mut flat.slice_mut(at..at + tensor.len()))?;
        at += tensor.len();
    }
    average_in_place(comm, &mut flat.as_view_mut())?;
    stream.synchronize()?;
    at = 0;
    for tensor in tensors {
        stream.memcpy_dtod(&flat.slice(at..at + tensor.len()), tensor)?;
        at += tensor.len();
    }
    Ok(())
}
