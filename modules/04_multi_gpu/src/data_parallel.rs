//! Data parallelism: every rank has the whole model, and computes the gradient of its own part of each batch.
//!
//! The ranks average their gradients, so each step is the step of one GPU on the whole batch.

use std::ops::Range;

use collectives::all_reduce::average_in_place;
use collectives::broadcast::broadcast;
use cudarc::nccl::Comm;
use lab::Perceptron;
use lab::digits::DeviceSamples;

/// Returns the samples of `batch` that `rank` processes. `rank` is below `world_size`.
pub fn shard(batch: Range<usize>, rank: usize, world_size: usize) -> Range<usize> {
    // ANCHOR: shard
    // Cut the batch into one shard for each rank, and return that of `rank`:
    // 1. the shards follow each other in the order of ranks, and together they are the batch, without gap or overlap;
    // 2. the longest has at most one sample more than the shortest, so shards may be empty;
    // 3. the result is a range of the same samples that `batch` counts: it starts at `batch.start` for rank 0.
    todo!("Cut the batch into one shard for each rank, and return that of `rank`")
    // ANCHOR_END: shard
}

/// Gives every replica the parameters of rank 0. Every rank must call it. Returns without waiting for the GPU.
///
/// # Errors
/// Returns NCCL's errors.
pub fn start_equal(comm: &Comm, model: &mut Perceptron) -> anyhow::Result<()> {
    // ANCHOR: start_equal
    // Copy rank 0's parameters to every rank:
    // 1. before, each rank has parameters from a seed of its own;
    // 2. afterwards, all have those of rank 0, after one collective.
    todo!("Copy rank 0's parameters to every rank")
    // ANCHOR_END: start_equal
}

/// Makes one step of gradient descent over the samples `batch`, with all ranks together. Returns the mean loss over the whole batch in
/// nats, which is the same number on every rank.
///
/// # Errors
/// Returns the errors of the driver and of NCCL.
pub fn step(
    comm: &Comm,
    model: &mut Perceptron,
    samples: &DeviceSamples,
    batch: Range<usize>,
    learning_rate: f32,
) -> anyhow::Result<f32> {
    // ANCHOR: step
    // Make the step of one GPU with the whole batch:
    // 1. this rank computes with its own shard alone;
    // 2. every sample of the batch has the same influence, also where the shards differ in length;
    // 3. one collective averages the gradient and the loss;
    // 4. every replica steps with the same gradient, and returns the same loss;
    // 5. only the loss is copied to the host.
    todo!("Make the step of one GPU with the whole batch")
    // ANCHOR_END: step
}
