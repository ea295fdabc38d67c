//! Fusion: many small tensors in one call.
//!
//! A small message takes as long as its way does, however small it is. A model has many small tensors: sent one by one, each
//! pays for the way again. In one group, NCCL launches them together; in one flat buffer they *are* one.

use std::collections::HashMap;

use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaSlice, CudaViewMut};
use cudarc::nccl::{Comm, group_end, group_start};
use lab::Readable;

/// The tensors in an order that is the same on every rank: that of their names.
pub fn in_order(tensors: &mut HashMap<String, CudaSlice<f32>>) -> Vec<CudaViewMut<'_, f32>> {
    // ANCHOR: in_order
    // Bring the tensors into the order of their names, each as a view.
    // A `HashMap` goes through its entries in an order of its own, another one in each map. Calls have no names: NCCL puts the
    // first call of one rank together with the first one of the others.
    let mut named: Vec<_> = tensors.iter_mut().collect();
    named.sort_by_key(|(name, _)| *name);
    named.into_iter().map(|(_, tensor)| tensor.as_view_mut()).collect()
    // ANCHOR_END: in_order
}

/// Replaces each tensor by its average over all ranks, with a call for each. Every rank must call it, with the same lengths in
/// the same order. Returns at once.
///
/// # Errors
/// NCCL refuses.
pub fn average_each(comm: &Comm, tensors: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    tensors.iter_mut().try_for_each(|tensor| average_in_place(comm, tensor))
}

/// As [`average_each`], all of it in one group. No group is left open after an error.
///
/// # Errors
/// As [`average_each`].
pub fn average_grouped(comm: &Comm, tensors: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    // ANCHOR: average_grouped
    // Make the same calls, in one group.
    // `average_each` makes them. End the group also where it fails.
    group_start().readable()?;
    let called = average_each(comm, tensors);
    let ended = group_end().readable();
    called.and(ended).map(drop)
    // ANCHOR_END: average_grouped
}

/// As [`average_each`], with one call: packs the tensors into one flat buffer, averages that, and unpacks it. There is at least
/// one element.
///
/// # Errors
/// As [`average_each`], or what the driver answers.
pub fn average_fused(comm: &Comm, tensors: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    // ANCHOR: average_fused
    // Pack, average once, and unpack.
    // The tensors lie in the flat buffer one behind the other: where does each begin? `stream.memcpy_dtod(from, to)` copies as
    // many elements as `from` has.
    let stream = comm.stream();
    let total = tensors.iter().map(|tensor| tensor.len()).sum();
    let mut flat = stream.alloc_zeros::<f32>(total)?;
    let mut at = 0;
    for tensor in tensors.iter() {
        stream.memcpy_dtod(tensor, &mut flat.slice_mut(at..at + tensor.len()))?;
        at += tensor.len();
    }
    average_in_place(comm, &mut flat.as_view_mut())?;
    at = 0;
    for tensor in tensors {
        stream.memcpy_dtod(&flat.slice(at..at + tensor.len()), tensor)?;
        at += tensor.len();
    }
    Ok(())
    // ANCHOR_END: average_fused
}
