// mistake: the last rank takes all samples that the division leaves over
// fails: data_parallel::shards_are_the_batch_without_gap_or_overlap
// says: spread the remainder

use std::ops::Range;

use collectives::all_reduce::average_in_place;
use collectives::broadcast::broadcast;
use cudarc::nccl::Comm;
use lab::Perceptron;
use lab::digits::DeviceSamples;

pub fn shard(batch: Range<usize>, rank: usize, world_size: usize) -> Range<usize> {
    let length = batch.len() / world_size;
    let start = batch.start + rank * length;
    if rank + 1 == world_size { start..batch.end } else { start..start + length }
}

pub fn start_equal(comm: &Comm, model: &mut Perceptron) -> anyhow::Result<()> {
    broadcast(comm, &mut model.parameters_mut(), 0)
}

pub fn step(
    comm: &Comm,
    model: &mut Perceptron,
    samples: &DeviceSamples,
    batch: Range<usize>,
    learning_rate: f32,
) -> anyhow::Result<f32> {
    let own = shard(batch.clone(), comm.rank(), comm.world_size());
    let weight = (own.len() * comm.world_size()) as f32 / batch.len() as f32;
    let own = samples.batch(own)?;
    model.forward(&own)?;
    model.backward(&own, weight)?;
    average_in_place(comm, &mut model.gradient_and_loss_mut())?;
    model.descend(learning_rate)?;
    model.loss()
}
