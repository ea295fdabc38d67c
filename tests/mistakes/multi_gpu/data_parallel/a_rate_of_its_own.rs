// mistake: the learning rate is not the one that was asked for
// fails: data_parallel::each_step_is_that_of_one_gpu
// says: look at the weight, and at the learning rate

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
    let own = shard(batch.clone(), comm.rank(), comm.world_size());
    let weight = (own.len() * comm.world_size()) as f32 / batch.len() as f32;
    let own = samples.batch(own)?;
    model.forward(&own)?;
    model.backward(&own, weight)?;
    average_in_place(comm, &mut model.gradient_and_loss_mut())?;
    model.descend(0.1)?;
    model.loss()
}
