// mistake: no rank has less to do than one GPU alone
// fails: data_parallel::each_step_is_that_of_one_gpu
// says: a batch of 24 samples, but buffers for 12

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
    let all = samples.batch(batch)?;
    model.forward(&all)?;
    model.backward(&all, 1.0)?;
    average_in_place(comm, &mut model.gradient_and_loss_mut())?;
    model.descend(learning_rate)?;
    model.loss()
}
