// mistake: a shard counts as much as another, however long it is
// fails: data_parallel::uneven_shards_count_by_their_samples
// says: the mean of the shards' means: a shard of more samples must count for more

use std::ops::Range;

use collectives::all_reduce::average_in_place;
use collectives::broadcast::broadcast;
use cudarc::nccl::Comm;
use lab::Perceptron;
use lab::digits::DeviceSamples;

pub fn shard(batch: Range<usize>, rank: usize, world_size: usize) -> Range<usize> {
    let cut = |rank: usize| batch.start + batch.len() * rank / world_size;
    cut(rank)..cut(rank + 1)
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
    let own = shard(batch, comm.rank(), comm.world_size());
    let own = samples.batch(own)?;
    model.forward(&own)?;
    model.backward(&own, 1.0)?;
    average_in_place(comm, &mut model.gradient_and_loss_mut())?;
    model.descend(learning_rate)?;
    model.loss()
}
