//! Gradient descent with momentum: an optimizer that has something to remember.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};

use crate::kernels::Kernels;

/// An optimizer for so many parameters on one GPU. For each it keeps a velocity, the decaying sum of all its gradients.
/// Everything is enqueued on its stream, and waits for nothing.
#[derive(Debug)]
pub struct Momentum {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    velocity: CudaSlice<f32>,
    momentum: f32,
}

impl Momentum {
    /// An optimizer for `len` parameters, all of whose velocities are 0. In each step, `momentum` of a velocity is kept.
    ///
    /// # Errors
    /// There are no parameters, or what the driver answers.
    pub fn new(stream: &Arc<CudaStream>, len: usize, momentum: f32) -> anyhow::Result<Self> {
        ensure!(len > 0, "an optimizer for no parameters");
        Ok(Self {
            stream: stream.clone(),
            kernels: Kernels::load(stream.context())?,
            velocity: stream.alloc_zeros(len)?,
            momentum,
        })
    }

    /// `velocity = momentum · velocity + gradient`, then `parameters -= learning_rate · velocity`.
    ///
    /// # Errors
    /// `parameters` or `gradient` are not as many as the velocities, or what the driver answers.
    pub fn step(
        &mut self,
        parameters: &mut CudaViewMut<f32>,
        gradient: &CudaView<f32>,
        learning_rate: f32,
    ) -> anyhow::Result<()> {
        let (own, given, slopes) = (self.velocity.len(), parameters.len(), gradient.len());
        ensure!(
            own == given && own == slopes,
            "an optimizer for {own} parameters, but {given} parameters and {slopes} gradients"
        );
        let (stream, velocity) = (&self.stream, &mut self.velocity);
        self.kernels.momentum_step(stream, parameters, velocity, gradient, learning_rate, self.momentum)
    }

    /// Bytes of GPU memory that it keeps from one step to the next.
    pub fn bytes(&self) -> usize {
        self.velocity.num_bytes()
    }
}
