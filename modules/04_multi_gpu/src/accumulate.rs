//! Gradient accumulation: a batch that doesn't fit on the GPUs, a piece at a time.
//!
//! Activations take memory for each sample of a pass. So a rank cuts its part of a batch into micro-batches, makes one
//! pass after the other, and sums their gradients. Parameters must not change in between, since all of it is one step; so
//! the ranks have nothing to tell each other either, until the last micro-batch is done.

use std::ops::Range;

use collectives::all_reduce::average_in_place;
use cudarc::driver::CudaSlice;
use cudarc::nccl::Comm;
use lab::digits::DeviceSamples;
use lab::{Kernels, Perceptron};

/// Where the gradients of micro-batches are summed.
pub struct Accumulator {
    kernels: Kernels,
    /// As many as the model has parameters, and behind them the loss.
    total: CudaSlice<f32>,
}

impl Accumulator {
    /// One for the gradients of `model`, on its GPU.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn new(model: &Perceptron) -> anyhow::Result<Self> {
        let stream = model.stream();
        let total = stream.alloc_zeros(model.gradient_and_loss().len())?;
        Ok(Self { kernels: Kernels::load(stream.context())?, total })
    }

    /// One step of gradient descent over a batch of `batch_len` samples, all ranks together. `micro_batches` are this rank's
    /// part of it, one or more pieces; ranks may have different numbers of them. Returns the mean loss over the whole batch, the
    /// same number on every rank.
    ///
    /// # Errors
    /// What the driver and NCCL answer.
    pub fn step(
        &mut self,
        comm: &Comm,
        model: &mut Perceptron,
        samples: &DeviceSamples,
        micro_batches: &[Range<usize>],
        batch_len: usize,
        learning_rate: f32,
    ) -> anyhow::Result<f32> {
        let stream = comm.stream();
        // ANCHOR: step
        // Sum the micro-batches in `self.total`, average that over the ranks, once, and step.
        // Of a micro-batch, `samples.batch(range)`, `model.forward(&own)` and `model.backward(&own, weight)` leave in
        // `model.gradient_and_loss()` `weight` × its means, in place of those of the one before. `self.total` still holds the
        // last step's. `self.kernels.axpy(&stream, &mut self.total, &x, 1.0)` adds x to it, `stream.memset_zeros(&mut self.total)`
        // clears it. Which weight makes the average over the ranks the mean over the batch? `self.descend(…)` is below.
        todo!("Sum the micro-batches in `self.total`, average that over the ranks, once, and step")
        // ANCHOR_END: step
    }

    /// Steps with the gradient in `total`, and brings the loss behind it to the host.
    fn descend(&self, model: &mut Perceptron, learning_rate: f32) -> anyhow::Result<f32> {
        let (stream, parameters) = (model.stream().clone(), model.parameters().len());
        let gradient = self.total.slice(..parameters);
        self.kernels.sgd_step(&stream, &mut model.parameters_mut(), &gradient, learning_rate)?;
        let loss = stream.clone_dtoh(&self.total.slice(parameters..))?;
        Ok(loss[0])
    }
}
