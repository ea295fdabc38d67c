// mistake: replicas keep the parameters they were made with
// fails: data_parallel::every_replica_starts_with_rank_0s_parameters
// says: rank 1: parameter 0 (w1) starts as
// says: these are still its own: nothing was broadcast

use std::ops::Range;

use collectives::all_reduce::average_in_place;
use cudarc::nccl::Comm;
use lab::Perceptron;
use lab::digits::DeviceSamples;

pub fn shard(batch: Range<usize>, rank: usize, world_size: usize) -> Range<usize> {
    let cut = |rank: usize| batch.start + batch.len() * rank / world_size;
    cut(rank)..cut(rank + 1)
}

pub fn start_equal(_comm: &Comm, _model: &mut Perceptron) -> anyhow::Result<()> {
    Ok(())
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
