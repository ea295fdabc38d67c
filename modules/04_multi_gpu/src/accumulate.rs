//! Gradient accumulation: a batch too large for the GPU's memory is processed in several passes, but makes one step.
//!
//! A rank sums the gradients of its micro-batches. The parameters don't change between micro-batches, because all of
//! them belong to one step.

use std::ops::Range;

use collectives::all_reduce::average_in_place;
use cudarc::driver::CudaSlice;
use cudarc::nccl::Comm;
use lab::digits::DeviceSamples;
use lab::{Kernels, Perceptron};

/// Sums the gradients of micro-batches.
pub struct Accumulator {
    kernels: Kernels,
    /// One element for each parameter, followed by the loss.
    total: CudaSlice<f32>,
}

impl Accumulator {
    /// Creates an accumulator for the gradients of `model`, on the model's GPU.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn new(model: &Perceptron) -> anyhow::Result<Self> {
        let stream = model.stream();
        let total = stream.alloc_zeros(model.gradient_and_loss().len())?;
        Ok(Self { kernels: Kernels::load(stream.context())?, total })
    }

    /// Makes one step of gradient descent over a batch of `batch_len` samples, jointly with all other ranks.
    /// `micro_batches` are this rank's part of the batch, in one or more pieces. Their number may differ between ranks.
    /// Returns the mean loss over the entire batch in nats, which is the same on every rank.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
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
        // Make one step of many micro-batches:
        // 1. it is the step that one GPU would make with the entire batch: every sample has the same influence, no
        //    matter which piece it is in;
        // 2. the sum contains nothing from earlier steps;
        // 3. a step makes one all-reduce, no matter how many micro-batches there are, and the host waits for none of them;
        // 4. `self.descend` makes the step, and returns the loss.
        todo!("Make one step of many micro-batches")
        // ANCHOR_END: step
    }

    /// Takes a step with the gradient in `total`, and copies the loss, which is the last element of `total`, to the host.
    fn descend(&self, model: &mut Perceptron, learning_rate: f32) -> anyhow::Result<f32> {
        let (stream, parameters) = (model.stream().clone(), model.parameters().len());
        let gradient = self.total.slice(..parameters);
        self.kernels.sgd_step(&stream, &mut model.parameters_mut(), &gradient, learning_rate)?;
        let loss = stream.clone_dtoh(&self.total.slice(parameters..))?;
        Ok(loss[0])
    }
}
