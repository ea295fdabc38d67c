//! The training itself: on GPUs, divided in one of four ways, and on the host for comparison.

use std::ops::Range;
use std::sync::Arc;

use anyhow::ensure;
use clap::ValueEnum;
use collectives::all_reduce::average_in_place;
use collectives::broadcast::broadcast;
use collectives::timing::gpu_milliseconds;
use cudarc::driver::{CudaSlice, CudaStream};
use cudarc::nccl::Comm;
use indicatif::{ProgressBar, ProgressStyle};
use init::rendezvous::rendezvous;
use lab::Perceptron;
use lab::digits::{DeviceSamples, Digits};
use lab::perceptron::{HostPerceptron, Layout};
use m04_multi_gpu::data_parallel::{self, shard};
use m04_multi_gpu::hybrid::{self, Groups, Mesh, on_mesh};
use m04_multi_gpu::sharded_optimizer::{ShardedOptimizer, padded_len};

/// What the ranks divide among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// The batch
    Data,
    /// The batch, and the optimizer's state (here with momentum)
    Sharded,
    /// The model
    Tensor,
    /// The batch and the model: the rows of a mesh divide the batch, the columns the model
    Hybrid,
}

/// The model to train, the number of steps, and the data.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub mode: Mode,
    pub hidden: usize,
    pub learning_rate: f32,
    /// How many ranks divide the batch, and how many divide the model.
    pub mesh: Mesh,
    /// The samples of each step, with one list per pass over the digits.
    pub epochs: Vec<Vec<Range<usize>>>,
}

/// The result of one rank.
pub(crate) struct Rank {
    /// The hidden units whose parameters it has.
    pub units: Range<usize>,
    pub parameters: Vec<f32>,
    /// The mean loss over the batch in each step.
    pub losses: Vec<f32>,
}

/// The result of the host.
pub(crate) struct Serial {
    pub parameters: Vec<f64>,
    pub losses: Vec<f64>,
}

/// The fraction of a velocity that the sharded optimizer keeps.
const MOMENTUM: f64 = 0.5;

/// Trains on the host, in double precision, with whole batches.
pub(crate) fn on_the_host(plan: &Plan, digits: &Digits) -> Serial {
    let mut model = HostPerceptron::new(plan.hidden, 0);
    let mut velocity = vec![0.0; model.parameters().len()];
    let kept = if plan.mode == Mode::Sharded { MOMENTUM } else { 0.0 };
    let mut losses = Vec::new();
    for batch in plan.epochs.iter().flatten() {
        let (loss, gradient) = model.loss_and_gradient(&digits.train, batch.clone());
        velocity.iter_mut().zip(gradient).for_each(|(velocity, slope)| *velocity = kept * *velocity + slope);
        model.descend(&velocity, plan.learning_rate.into());
        losses.push(loss);
    }
    Serial { parameters: model.parameters().to_vec(), losses }
}

/// Trains on GPUs. Rank 0 reports each epoch.
///
/// # Errors
/// Returns the errors of all ranks that failed.
pub(crate) fn on_gpus(
    plan: &Plan,
    streams: &[Arc<CudaStream>],
    digits: &Digits,
) -> anyhow::Result<Vec<Rank>> {
    let run = |rank, stream: &Arc<CudaStream>| Run { plan, rank, stream: stream.clone() };
    match plan.mode {
        Mode::Data => rendezvous(streams, |comm| {
            let mut part = run(comm.rank(), &comm.stream()).part(0, comm.rank(), digits)?;
            data_parallel::start_equal(&comm, &mut part.model)?;
            let Part { run, samples, model, units } = &mut part;
            let losses =
                run.train(|batch| data_parallel::step(&comm, model, samples, batch, plan.learning_rate))?;
            run.end(model, units.clone(), losses)
        }),
        Mode::Sharded => rendezvous(streams, |comm| {
            let mut part = run(comm.rank(), &comm.stream()).part(0, comm.rank(), digits)?;
            broadcast(&comm, &mut part.model.parameters_mut(), 0)?;
            let Part { run, samples, model, units } = &mut part;
            let mut sharded = Sharded::new(&comm, model)?;
            let losses = run.train(|batch| sharded.step(&comm, model, samples, batch, plan.learning_rate))?;
            run.end(model, units.clone(), losses)
        }),
        Mode::Tensor | Mode::Hybrid => on_mesh(streams, plan.mesh, |groups| {
            let (row, column) = (groups.data.rank(), groups.tensor.rank());
            let rank = row * plan.mesh.tensor + column;
            let mut part = run(rank, &groups.data.stream()).part(column, row, digits)?;
            hybrid::start_equal(&groups, &mut part.model)?;
            let Part { run, samples, model, units } = &mut part;
            let losses =
                run.train(|batch| step_on_mesh(&groups, model, samples, batch, plan.learning_rate))?;
            run.end(model, units.clone(), losses)
        }),
    }
}

/// Makes a step with the samples of this rank's row.
fn step_on_mesh(
    groups: &Groups,
    model: &mut Perceptron,
    samples: &DeviceSamples,
    batch: Range<usize>,
    learning_rate: f32,
) -> anyhow::Result<f32> {
    let (own, weight) = own_samples(&groups.data, batch);
    hybrid::step(groups, model, &samples.batch(own)?, weight, learning_rate)
}

/// Returns this rank's samples of the batch, and the weight with which the ranks' average equals the mean over the
/// batch.
fn own_samples(comm: &Comm, batch: Range<usize>) -> (Range<usize>, f32) {
    let own = shard(batch.clone(), comm.rank(), comm.world_size());
    let weight = (own.len() * comm.world_size()) as f32 / batch.len() as f32;
    (own, weight)
}

/// One rank's run.
struct Run<'a> {
    plan: &'a Plan,
    rank: usize,
    stream: Arc<CudaStream>,
}

/// A run, with the rank's part of the model.
struct Part<'a> {
    run: Run<'a>,
    samples: DeviceSamples,
    model: Perceptron,
    units: Range<usize>,
}

impl<'a> Run<'a> {
    /// Creates the part of the model for `column`. Each row has its own seed.
    fn part(self, column: usize, row: usize, digits: &Digits) -> anyhow::Result<Part<'a>> {
        let Plan { hidden, mesh, epochs, .. } = self.plan;
        let longest = epochs.iter().flatten().map(Range::len).max().unwrap_or(1);
        let units = shard(0..*hidden, column, mesh.tensor);
        let room = longest.div_ceil(mesh.data);
        let model = Perceptron::of_units(&self.stream, *hidden, units.clone(), room, row as u64)?;
        Ok(Part { samples: digits.train.to_device(&self.stream)?, model, units, run: self })
    }

    /// Makes all steps, and returns the loss of each.
    fn train(&self, mut step: impl FnMut(Range<usize>) -> anyhow::Result<f32>) -> anyhow::Result<Vec<f32>> {
        let steps: usize = self.plan.epochs.iter().map(Vec::len).sum();
        let progress = if self.rank == 0 { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
        progress.set_style(ProgressStyle::with_template("{bar:40} step {pos} of {len}  {msg}")?);
        let mut losses = Vec::new();
        for (epoch, batches) in self.plan.epochs.iter().enumerate() {
            let mut next = batches.iter().cloned();
            let _epoch = lab::nvtx::range(&format!("epoch {}", epoch + 1));
            let milliseconds = gpu_milliseconds(&self.stream, 0, batches.len(), || {
                let _step = lab::nvtx::range("step");
                let loss = step(next.next().unwrap_or_default())?;
                ensure!(
                    loss.is_finite(),
                    "the loss is {loss} in epoch {}: is the learning rate too large?",
                    epoch + 1
                );
                progress.set_message(format!("loss {loss:.3}"));
                progress.inc(1);
                losses.push(loss);
                Ok(())
            })?;
            if let (0, Some(loss)) = (self.rank, losses.last()) {
                let epoch = epoch + 1;
                progress.suspend(|| {
                    println!("epoch {epoch:>3}  loss {loss:.3}  {milliseconds:.3} ms per step");
                });
            }
        }
        progress.finish_and_clear();
        Ok(losses)
    }

    fn end(&self, model: &Perceptron, units: Range<usize>, losses: Vec<f32>) -> anyhow::Result<Rank> {
        let parameters = self.stream.clone_dtoh(&model.parameters())?;
        self.stream.synchronize()?;
        Ok(Rank { units, parameters, losses })
    }
}

/// A part of an optimizer, and the padded buffers that it works on.
struct Sharded {
    optimizer: ShardedOptimizer,
    parameters: CudaSlice<f32>,
    gradient: CudaSlice<f32>,
}

impl Sharded {
    fn new(comm: &Comm, model: &Perceptron) -> anyhow::Result<Self> {
        let (stream, len) = (comm.stream(), padded_len(model.parameters().len(), comm.world_size()));
        Ok(Self {
            optimizer: ShardedOptimizer::new(comm, len)?,
            parameters: stream.alloc_zeros(len)?,
            gradient: stream.alloc_zeros(len)?,
        })
    }

    fn step(
        &mut self,
        comm: &Comm,
        model: &mut Perceptron,
        samples: &DeviceSamples,
        batch: Range<usize>,
        learning_rate: f32,
    ) -> anyhow::Result<f32> {
        let Self { optimizer, parameters, gradient } = self;
        let (stream, len) = (comm.stream(), model.parameters().len());
        let (own, weight) = own_samples(comm, batch);
        let own = samples.batch(own)?;
        model.forward(&own)?;
        model.backward(&own, weight)?;
        average_in_place(comm, &mut model.gradient_and_loss_mut().slice_mut(len..))?;

        stream.memcpy_dtod(&model.gradient_and_loss().slice(..len), &mut gradient.slice_mut(..len))?;
        stream.memcpy_dtod(&model.parameters(), &mut parameters.slice_mut(..len))?;
        optimizer.step(comm, &mut parameters.as_view_mut(), &gradient.as_view(), learning_rate)?;
        stream.memcpy_dtod(&parameters.slice(..len), &mut model.parameters_mut())?;
        model.loss()
    }
}

/// Assembles the whole model. Returns it with the first rank whose part differs from it in any bit, if there is one.
///
/// # Errors
/// Fails if the parts don't cover the whole model, or if a parameter is NaN.
pub(crate) fn assemble(ranks: &[Rank], hidden: usize) -> anyhow::Result<(Vec<f32>, Option<usize>)> {
    let layout = Layout { hidden };
    let mut whole = vec![f32::NAN; layout.parameters()];
    let indices: Vec<usize> = (0..whole.len()).collect();
    for rank in ranks.iter().rev() {
        let places = layout.of_units(&indices, rank.units.clone());
        ensure!(places.len() == rank.parameters.len(), "a part of {} parameters", rank.parameters.len());
        places.into_iter().zip(&rank.parameters).for_each(|(place, value)| whole[place] = *value);
    }
    ensure!(whole.iter().all(|value| !value.is_nan()), "parameters are missing, or are no numbers");
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let differs = |rank: &Rank| bits(&layout.of_units(&whole, rank.units.clone())) != bits(&rank.parameters);
    let stray = ranks.iter().position(differs);
    Ok((whole, stray))
}
