//! Data parallelism: every rank has the whole model and learns from its part of each batch.
//!
//! In each step a rank computes the gradient over its own samples, the ranks average their gradients, and each makes the
//! same step from the same parameters. So the replicas stay equal, bit for bit, without ever being compared; and
//! together they do what one GPU does with the whole batch.

use std::ops::Range;

use collectives::all_reduce::average_in_place;
use collectives::broadcast::broadcast;
use cudarc::nccl::Comm;
use lab::Perceptron;
use lab::digits::DeviceSamples;

/// The samples of `batch` that `rank` learns from.
pub fn shard(batch: Range<usize>, rank: usize, world_size: usize) -> Range<usize> {
    // ANCHOR: shard
    // Cut the batch into shards, one for each rank and one behind the other, and return that of `rank`. Together they are
    // the batch. The longest has at most one sample more than the shortest: the last batch of an epoch seldom divides by
    // the world size.
    let cut = |rank: usize| batch.start + batch.len() * rank / world_size;
    cut(rank)..cut(rank + 1)
    // ANCHOR_END: shard
}

/// Gives every replica the parameters of rank 0.
///
/// # Errors
/// What NCCL answers.
pub fn start_equal(comm: &Comm, model: &mut Perceptron) -> anyhow::Result<()> {
    // ANCHOR: start_equal
    // Copy rank 0's parameters to every rank, with one collective. Each rank filled its own from another seed;
    // `model.parameters_mut()` is a view of all of them, in one buffer.
    broadcast(comm, &mut model.parameters_mut(), 0)
    // ANCHOR_END: start_equal
}

/// One step of gradient descent over the samples `batch`, all ranks together. Returns the mean loss over the whole
/// batch, the same number on every rank.
///
/// # Errors
/// What the driver and NCCL answer.
pub fn step(
    comm: &Comm,
    model: &mut Perceptron,
    samples: &DeviceSamples,
    batch: Range<usize>,
    learning_rate: f32,
) -> anyhow::Result<f32> {
    // ANCHOR: step
    // Compute the gradient of this rank's shard, average it over the ranks, step, and return the loss. In `lab`'s terms:
    // `samples.batch(range)` are the samples of a range; `model.forward(&own)`, then `model.backward(&own, weight)`, leave
    // in `model.gradient_and_loss_mut()`, one buffer, `weight` × the means over `own` of the gradient and of the loss, all
    // to be averaged in place; `model.descend(learning_rate)` steps; `model.loss()` brings the loss to the host.
    // Shards differ in length: which weight makes the average over the ranks the mean over the batch?
    let own = shard(batch.clone(), comm.rank(), comm.world_size());
    let weight = (own.len() * comm.world_size()) as f32 / batch.len() as f32;
    let own = samples.batch(own)?;
    model.forward(&own)?;
    model.backward(&own, weight)?;
    average_in_place(comm, &mut model.gradient_and_loss_mut())?;
    model.descend(learning_rate)?;
    model.loss()
    // ANCHOR_END: step
}
