//! Data parallelism the older way: one thread drives all GPUs, and everything passes through GPU 0.
//!
//! GPU 0 has the batch and the master parameters. It sends both to the other GPUs, sums the gradients that they send back, and
//! makes the step. PyTorch's `DataParallel` works like this, and its documentation recommends `DistributedDataParallel` instead.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceSlice};
use lab::digits::{Batch, DeviceSamples, PIXELS};
use lab::{Kernels, Perceptron};

/// A model on one GPU, with space for the samples that it receives.
pub struct Replica {
    /// The entire model. Replica 0 has the master parameters.
    pub model: Perceptron,
    pixels: CudaSlice<f32>,
    labels: CudaSlice<u32>,
}

/// All GPUs, which are driven by one thread.
pub struct SingleProcess {
    /// The replicas, in the order of their streams; replica 0 is on GPU 0.
    pub replicas: Vec<Replica>,
    /// A buffer on GPU 0 that receives another replica's gradient and loss.
    arrived: CudaSlice<f32>,
    kernels: Kernels,
    /// The number of bytes copied between GPU 0 and the others so far.
    pub bytes: usize,
}

/// Returns the samples in `batch` for replica `index` of `count`. The parts differ in length by at most one sample.
pub fn part(batch: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    let cut = |index: usize| batch.start + batch.len() * index / count;
    cut(index)..cut(index + 1)
}

/// Copies all of `from` to `to`, which is on another GPU, in stream order on both GPUs, and counts the bytes. Returns
/// without waiting for the GPUs.
fn send<T>(bytes: &mut usize, from: &CudaView<T>, to: &mut CudaViewMut<T>) -> anyhow::Result<()> {
    if from.is_empty() {
        return Ok(());
    }
    let stream = to.stream().clone();
    stream.memcpy_dtod(from, to)?;
    // cudarc makes the copy wait for `from`'s stream. But it does not make that stream wait for the copy before the
    // stream overwrites `from`.
    from.stream().join(&stream)?;
    *bytes += from.num_bytes();
    Ok(())
}

impl Replica {
    /// Runs the forward and backward passes over samples on this replica's own GPU. Leaves their mean gradient and
    /// loss, multiplied by `weight`, in the model's `gradient_and_loss`. Returns without waiting for the GPU.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn compute(&mut self, own: &Batch<'_>, weight: f32) -> anyhow::Result<()> {
        self.model.forward(own)?;
        self.model.backward(own, weight)
    }

    /// Copies samples from another GPU to this GPU, and then computes with them in the same way.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn compute_sent(&mut self, bytes: &mut usize, own: &Batch<'_>, weight: f32) -> anyhow::Result<()> {
        let Self { model, pixels, labels } = self;
        send(bytes, &own.pixels, &mut pixels.slice_mut(..own.pixels.len()))?;
        send(bytes, &own.labels, &mut labels.slice_mut(..own.labels.len()))?;
        let own =
            Batch { pixels: pixels.slice(..own.pixels.len()), labels: labels.slice(..own.labels.len()) };
        model.forward(&own)?;
        model.backward(&own, weight)
    }
}

impl SingleProcess {
    /// Creates a replica for each stream, with `hidden` units and space for `room` samples. Each replica has its own
    /// seed; replica 0 has `seed`.
    ///
    /// # Errors
    /// Fails if there is no stream. Also returns any error from the driver.
    pub fn new(streams: &[Arc<CudaStream>], hidden: usize, room: usize, seed: u64) -> anyhow::Result<Self> {
        let stream = streams.first().context("at least one stream is needed")?;
        let replica = |(stream, seed): (&Arc<CudaStream>, u64)| {
            let model = Perceptron::new(stream, hidden, room, seed)?;
            Ok(Replica {
                model,
                pixels: stream.alloc_zeros(room * PIXELS)?,
                labels: stream.alloc_zeros(room)?,
            })
        };
        let replicas: Vec<Replica> =
            streams.iter().zip(seed..).map(replica).collect::<anyhow::Result<_>>()?;
        let arrived = stream.alloc_zeros(replicas[0].model.gradient_and_loss().len())?;
        Ok(Self { arrived, kernels: Kernels::load(stream.context())?, replicas, bytes: 0 })
    }

    /// Gives replica 0's parameters to every other replica. Returns without waiting for the GPUs.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn refresh(&mut self) -> anyhow::Result<()> {
        let Self { replicas, bytes, .. } = self;
        let (first, others) = replicas.split_first_mut().context("no replica")?;
        // ANCHOR: refresh
        // Send the first model's parameters to every other model:
        // 1. each of the others ends up with them, bit for bit;
        // 2. they are sent once to each of the others, with `send`, which counts the bytes.
        for other in others {
            send(bytes, &first.model.parameters(), &mut other.model.parameters_mut())?;
        }
        Ok(())
        // ANCHOR_END: refresh
    }

    /// Runs the forward and backward passes on all replicas, each over its part of the samples `batch`, which are on GPU 0. Afterwards,
    /// each `gradient_and_loss` is that part's contribution to the mean over the entire batch. Returns without waiting for the GPUs.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn scatter(&mut self, samples: &DeviceSamples, batch: &Range<usize>) -> anyhow::Result<()> {
        let Self { replicas, bytes, .. } = self;
        let count = replicas.len();
        // ANCHOR: scatter
        // Let every replica compute with its part of the batch:
        // 1. replica 0 computes with its part in place, and the others are sent theirs;
        // 2. each replica is sent only its own part;
        // 3. the sum of what all replicas compute is the mean over the batch, in which each sample counts the same.
        for (index, replica) in replicas.iter_mut().enumerate() {
            let own = samples.batch(part(batch, index, count))?;
            let weight = own.len() as f32 / batch.len() as f32;
            match index {
                0 => replica.compute(&own, weight)?,
                _ => replica.compute_sent(bytes, &own, weight)?,
            }
        }
        Ok(())
        // ANCHOR_END: scatter
    }

    /// Adds all other replicas' gradients and losses to replica 0's. Returns without waiting for the GPUs.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn gather(&mut self) -> anyhow::Result<()> {
        let Self { replicas, arrived, kernels, bytes } = self;
        let (first, others) = replicas.split_first_mut().context("no replica")?;
        let stream = first.model.stream().clone();
        // ANCHOR: gather
        // Add what the others computed to the first model's gradient and loss:
        // 1. each of the others sends its gradient and loss once, to `arrived`;
        // 2. the sum ends up in the first model, and contains every replica's contribution once;
        // 3. the host does not wait for any GPU.
        for other in others {
            send(bytes, &other.model.gradient_and_loss(), &mut arrived.as_view_mut())?;
            kernels.axpy(&stream, &mut first.model.gradient_and_loss_mut(), arrived, 1.0)?;
        }
        Ok(())
        // ANCHOR_END: gather
    }

    /// Makes one step of gradient descent over the samples `batch`, which are on GPU 0. Leaves the new parameters in
    /// replica 0, and returns the mean loss over the entire batch in nats.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn step(
        &mut self,
        samples: &DeviceSamples,
        batch: &Range<usize>,
        learning_rate: f32,
    ) -> anyhow::Result<f32> {
        // ANCHOR: step
        // Make the step that one GPU would make with the whole batch:
        // 1. every replica computes with replica 0's parameters;
        // 2. in each step, the parameters are sent to each replica once;
        // 3. replica 0 steps with the sum of all contributions, and its loss is returned.
        self.refresh()?;
        self.scatter(samples, batch)?;
        self.gather()?;
        let first = &mut self.replicas[0].model;
        first.descend(learning_rate)?;
        first.loss()
        // ANCHOR_END: step
    }
}
