//! Data parallelism the older way: one thread drives all GPUs, and the first of them does all the talking.
//!
//! GPU 0 has the batch and the parameters that count. In each step it sends both to the others, a part of the batch to each; they
//! send their gradients back; GPU 0 sums them and steps. No NCCL, no ranks, and little to go wrong; but all of it passes through
//! one GPU's links, the more the more GPUs there are, while an AllReduce spreads it evenly.
//! (PyTorch's `DataParallel` works like this, and its own documentation recommends the other way.)

use std::ops::Range;
use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceSlice};
use lab::digits::{Batch, DeviceSamples, PIXELS};
use lab::{Kernels, Perceptron};

/// A model on one GPU, and room for the samples that it is sent.
pub struct Replica {
    /// All of the model. Replica 0's parameters are those that count.
    pub model: Perceptron,
    pixels: CudaSlice<f32>,
    labels: CudaSlice<u32>,
}

/// All GPUs, as their one thread sees them.
pub struct SingleProcess {
    /// In the order of the streams that they were made with; replica 0 is on GPU 0.
    pub replicas: Vec<Replica>,
    /// On GPU 0: where another replica's gradient and loss arrive, before they are added to its own.
    arrived: CudaSlice<f32>,
    kernels: Kernels,
    /// What passed between GPU 0 and the others so far.
    pub bytes: usize,
}

/// The samples of `batch` for replica `index` of `count`: parts that differ by one sample at most.
pub fn part(batch: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    let cut = |index: usize| batch.start + batch.len() * index / count;
    cut(index)..cut(index + 1)
}

/// Copies all of `from` to `to`, on another GPU, in the order of both GPUs' streams, and counts its bytes. Returns at once.
fn send<T>(bytes: &mut usize, from: &CudaView<T>, to: &mut CudaViewMut<T>) -> anyhow::Result<()> {
    if from.is_empty() {
        return Ok(());
    }
    let stream = to.stream().clone();
    stream.memcpy_dtod(from, to)?;
    // cudarc has the copy wait for what `from`'s stream did, but not that stream for the copy, before it writes there again.
    from.stream().join(&stream)?;
    *bytes += from.num_bytes();
    Ok(())
}

impl Replica {
    /// Forward and backward over samples on this replica's own GPU: leaves `weight` × the means over them in the model's
    /// `gradient_and_loss`. Returns at once.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn compute(&mut self, own: &Batch<'_>, weight: f32) -> anyhow::Result<()> {
        self.model.forward(own)?;
        self.model.backward(own, weight)
    }

    /// The same over samples on another GPU: they are sent first.
    ///
    /// # Errors
    /// What the driver answers.
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
    /// A replica for each stream, with `hidden` units, and with room for `room` samples. Each starts from a seed of its own,
    /// replica 0 from `seed`.
    ///
    /// # Errors
    /// There is no stream, or what the driver answers.
    pub fn new(streams: &[Arc<CudaStream>], hidden: usize, room: usize, seed: u64) -> anyhow::Result<Self> {
        let stream = streams.first().context("no stream, so no GPU")?;
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

    /// Gives every other replica the parameters of replica 0. Returns at once.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn refresh(&mut self) -> anyhow::Result<()> {
        let Self { replicas, bytes, .. } = self;
        let (first, others) = replicas.split_first_mut().context("no replica")?;
        // ANCHOR: refresh
        // Send the first model's parameters to all others.
        // `send(bytes, &from, &mut to)` is above; of a replica, `model.parameters()` and `model.parameters_mut()` are views.
        todo!("Send the first model's parameters to all others")
        // ANCHOR_END: refresh
    }

    /// Forward and backward on all replicas, each over its part of the samples `batch`, which lie on GPU 0. Each then has in its
    /// `gradient_and_loss` what its part adds to the means over the whole batch. Returns at once.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn scatter(&mut self, samples: &DeviceSamples, batch: &Range<usize>) -> anyhow::Result<()> {
        let Self { replicas, bytes, .. } = self;
        let count = replicas.len();
        // ANCHOR: scatter
        // Have every replica compute over its part.
        // `part(batch, index, count)` says which, and `samples.batch(range)?` are these samples on GPU 0. Replica 0 has them
        // where it is: `compute(&own, weight)`; to the others they are sent: `compute_sent(bytes, &own, weight)`. In the end
        // all contributions are summed: which weight has each sample of the batch count for 1 / its length?
        todo!("Have every replica compute over its part")
        // ANCHOR_END: scatter
    }

    /// Adds the gradients and losses of all other replicas to those of replica 0. Returns at once.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn gather(&mut self) -> anyhow::Result<()> {
        let Self { replicas, arrived, kernels, bytes } = self;
        let (first, others) = replicas.split_first_mut().context("no replica")?;
        let stream = first.model.stream().clone();
        // ANCHOR: gather
        // Send what each of the others has to `arrived`, and add it to the first model's.
        // `model.gradient_and_loss()` and `model.gradient_and_loss_mut()` are views, and `arrived.as_view_mut()` is one of that
        // whole buffer; `kernels.axpy(&stream, &mut to, arrived, 1.0)` adds, on GPU 0.
        todo!("Send what each of the others has to `arrived`, and add it to the first model's")
        // ANCHOR_END: gather
    }

    /// One step of gradient descent over the samples `batch`, which lie on GPU 0. Leaves the new parameters in replica 0, and
    /// returns the mean loss over the whole batch.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn step(
        &mut self,
        samples: &DeviceSamples,
        batch: &Range<usize>,
        learning_rate: f32,
    ) -> anyhow::Result<f32> {
        // ANCHOR: step
        // Put the three together, step on GPU 0, and return the loss there.
        // `model.descend(learning_rate)` steps, `model.loss()` brings the loss to the host. When are the others' parameters old?
        todo!("Put the three together, step on GPU 0, and return the loss there")
        // ANCHOR_END: step
    }
}
