//! Gradient descent with momentum, as an example of an optimizer with state.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};

use crate::kernels::Kernels;

/// An optimizer for a fixed number of parameters on one GPU. For each parameter, it keeps a velocity, the decaying sum
/// of all its gradients. Its methods enqueue their work on its stream and do not wait.
#[derive(Debug)]
pub struct Momentum {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    velocity: CudaSlice<f32>,
    momentum: f32,
}

impl Momentum {
    /// Creates an optimizer for `len` parameters, whose velocities start at 0. Each step retains the fraction
    /// `momentum` of the velocity.
    ///
    /// # Errors
    /// Fails if there are no parameters, or if a driver call fails.
    pub fn new(stream: &Arc<CudaStream>, len: usize, momentum: f32) -> anyhow::Result<Self> {
        ensure!(len > 0, "an optimizer needs at least one parameter");
        Ok(Self {
            stream: stream.clone(),
            kernels: Kernels::load(stream.context())?,
            velocity: stream.alloc_zeros(len)?,
            momentum,
        })
    }

    /// Computes `velocity = momentum · velocity + gradient`, then `parameters -= learning_rate · velocity`.
    ///
    /// # Errors
    /// Fails if the numbers of parameters, gradients, and velocities differ, or if a driver call fails.
    pub fn step(
        &mut self,
        parameters: &mut CudaViewMut<f32>,
        gradient: &CudaView<f32>,
        learning_rate: f32,
    ) -> anyhow::Result<()> {
        let (own, given, slopes) = (self.velocity.len(), parameters.len(), gradient.len());
        ensure!(
            own == given && own == slopes,
            "the optimizer is for {own} parameters, but was given {given} parameters and {slopes} gradients"
        );
        let (stream, velocity) = (&self.stream, &mut self.velocity);
        self.kernels.momentum_step(stream, parameters, velocity, gradient, learning_rate, self.momentum)
    }

    /// Returns the number of bytes of GPU memory that the optimizer keeps from one step to the next.
    pub fn bytes(&self) -> usize {
        self.velocity.num_bytes()
    }
}
