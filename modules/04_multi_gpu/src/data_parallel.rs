//! Data parallelism: every rank has the entire model, and computes the gradient for its own part of each batch.
//!
//! The ranks average their gradients, so each step is the one that a single GPU would make with the entire batch.

use std::ops::Range;

use collectives::all_reduce::average_in_place;
use collectives::broadcast::broadcast;
use cudarc::nccl::Comm;
use lab::Perceptron;
use lab::digits::DeviceSamples;

/// Returns the samples in `batch` that `rank` processes. `rank` is below `world_size`.
pub fn shard(batch: Range<usize>, rank: usize, world_size: usize) -> Range<usize> {
    // ANCHOR: shard
    // Divide the batch into one shard for each rank, and return the shard for `rank`:
    // 1. the shards are in rank order, and together they make up the batch, without gaps or overlaps;
    // 2. the longest shard has at most one sample more than the shortest one, so shards may be empty;
    // 3. the result counts samples as `batch` does: for rank 0, it starts at `batch.start`.
    todo!("Divide the batch into one shard for each rank, and return the shard for `rank`")
    // ANCHOR_END: shard
}

/// Gives rank 0's parameters to every replica. Every rank must call it. Returns without waiting for the GPU.
///
/// # Errors
/// Returns any error from NCCL.
pub fn start_equal(comm: &Comm, model: &mut Perceptron) -> anyhow::Result<()> {
    // ANCHOR: start_equal
    // Copy rank 0's parameters to every rank:
    // 1. before the call, each rank has parameters from its own seed;
    // 2. after it, all ranks have rank 0's parameters; this takes one collective.
    todo!("Copy rank 0's parameters to every rank")
    // ANCHOR_END: start_equal
}

/// Makes one step of gradient descent over the samples `batch`, jointly with all other ranks. Returns the mean loss
/// over the entire batch in nats, which is the same on every rank.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn step(
    comm: &Comm,
    model: &mut Perceptron,
    samples: &DeviceSamples,
    batch: Range<usize>,
    learning_rate: f32,
) -> anyhow::Result<f32> {
    // ANCHOR: step
    // Make the step that one GPU would make with the whole batch:
    // 1. this rank computes only with its own shard;
    // 2. every sample in the batch has the same influence, even if the shards differ in length;
    // 3. one collective averages the gradient and the loss;
    // 4. every replica steps with the same gradient, and returns the same loss;
    // 5. only the loss is copied to the host.
    todo!("Make the step that one GPU would make with the whole batch")
    // ANCHOR_END: step
}
