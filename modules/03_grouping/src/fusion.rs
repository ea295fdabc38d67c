//! Fusion: averaging many small tensors with one all-reduce.
//!
//! Every collective has the same latency, no matter how small it is. With one flat buffer, you pay the latency once for all tensors.

use std::collections::HashMap;

use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaSlice, CudaViewMut};
use cudarc::nccl::{Comm, group_end, group_start};
use lab::Readable;

/// Returns a view of each tensor, sorted by name. This order is the same on every rank.
pub fn in_order(tensors: &mut HashMap<String, CudaSlice<f32>>) -> Vec<CudaViewMut<'_, f32>> {
    // ANCHOR: in_order
    // Put the tensors into an order that all ranks share:
    // 1. the views are sorted by the tensors' names, compared as strings: `W` comes before `b`;
    // 2. there is one view for each tensor, and `tensors` may be empty.
    todo!("Put the tensors into an order that all ranks share")
    // ANCHOR_END: in_order
}

/// Replaces each tensor with its average over all ranks, with one all-reduce per tensor. Returns without waiting for the GPU. Every
/// rank must call it, with the same lengths in the same order.
///
/// # Errors
/// Returns any error from NCCL.
pub fn average_each(comm: &Comm, tensors: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    tensors.iter_mut().try_for_each(|tensor| average_in_place(comm, tensor))
}

/// Averages each tensor, like [`average_each`], but in one group. After an error, no group is left open.
///
/// # Errors
/// Fails like [`average_each`].
pub fn average_grouped(comm: &Comm, tensors: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    // ANCHOR: average_grouped
    // Make the calls of `average_each` as one group:
    // 1. NCCL launches all of them, or none if it rejects one;
    // 2. no group is left open, even if one of the calls fails.
    todo!("Make the calls of `average_each` as one group")
    // ANCHOR_END: average_grouped
}

/// Averages each tensor with a single all-reduce: packs the tensors into one flat buffer, averages it, and unpacks it.
/// There is at least one tensor, and each has at least one element.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn average_fused(comm: &Comm, tensors: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    // ANCHOR: average_fused
    // Average all tensors with one call:
    // 1. NCCL gets a single all-reduce, with as many elements as all tensors have together;
    // 2. each tensor ends up with its own average;
    // 3. the tensors share one flat buffer, or two if the all-reduce reads from one and writes to the other;
    // 4. the host does not wait for the GPU.
    todo!("Average all tensors with one call")
    // ANCHOR_END: average_fused
}
