//! Mixed precision: the model computes in `f16`, and a copy of its weights in `f32` collects the small updates.
//!
//! The loss is multiplied by a scale, so that small gradients don't become 0 in `f16`. The scale adapts: it is as large as the gradients
//! allow. (P. Micikevicius and others, "Mixed Precision Training", 2017, arXiv 1710.03740.)

use collectives::dtypes::average_halves;
use cudarc::driver::{CudaSlice, CudaViewMut};
use cudarc::nccl::Comm;
use half::f16;
use lab::{Kernels, Momentum};

/// The fraction of a velocity that each step keeps.
const MOMENTUM: f32 = 0.5;

/// The factor of the loss, and with it of every gradient.
pub struct LossScale {
    /// The factor for the next step, a power of 2.
    pub scale: f32,
    /// The number of good steps after which the scale doubles.
    interval: u32,
    /// The number of good steps in a row since the scale last changed.
    good_steps: u32,
}

impl LossScale {
    /// Starts with the factor `scale`.
    pub fn new(scale: f32, interval: u32) -> Self {
        Self { scale, interval, good_steps: 0 }
    }

    /// Adapts the scale after a step: `overflowed` is true if the gradient was too large for `f16`.
    pub fn update(&mut self, overflowed: bool) {
        // ANCHOR: update
        // Adapt the scale for the next step:
        // 1. an overflow halves it, and so does each further overflow;
        // 2. after `interval` good steps in a row, it doubles;
        // 3. an overflow resets the count of good steps, and so does doubling.
        todo!("Adapt the scale for the next step")
        // ANCHOR_END: update
    }
}

/// One rank's replica of the weights, with its optimizer.
pub struct Trainer {
    /// The weights that the model computes with.
    pub weights: CudaSlice<f16>,
    /// The same weights in `f32`, which the optimizer updates.
    pub master: CudaSlice<f32>,
    /// The factor that the model multiplies its loss by.
    pub loss_scale: LossScale,
    kernels: Kernels,
    momentum: Momentum,
    /// Room for the averaged gradient, in `f32`.
    gradient: CudaSlice<f32>,
    /// Room for the number of elements that are infinite or NaN.
    not_finite: CudaSlice<u32>,
}

impl Trainer {
    /// Creates a replica with these weights, which are the same on every rank, on the communicator's stream.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn new(comm: &Comm, weights: &[f32], loss_scale: LossScale) -> anyhow::Result<Self> {
        let stream = comm.stream();
        let kernels = Kernels::load(stream.context())?;
        let master = stream.clone_htod(weights)?;
        let mut halves = stream.alloc_zeros(weights.len())?;
        kernels.to_f16(&stream, &mut halves, &master, 1.0)?;
        Ok(Self {
            weights: halves,
            master,
            loss_scale,
            kernels,
            momentum: Momentum::new(&stream, weights.len(), MOMENTUM)?,
            gradient: stream.alloc_zeros(weights.len())?,
            not_finite: stream.alloc_zeros(1)?,
        })
    }

    /// Takes one step with the average of the ranks' gradients, or skips it on all ranks. `gradient` is this rank's own, of the scaled
    /// loss, and may be overwritten. Returns whether the step was made, which is the same on every rank.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    pub fn step(
        &mut self,
        comm: &Comm,
        gradient: &mut CudaViewMut<f16>,
        learning_rate: f32,
    ) -> anyhow::Result<bool> {
        let stream = comm.stream();
        // ANCHOR: step
        // Update the weights in `f32` as one GPU would, unless the gradient of any rank overflowed:
        // 1. if an element is infinite or NaN on any rank, all ranks skip the step, which changes neither weights nor velocities;
        // 2. otherwise, the optimizer updates `master` with the average, divided by the scale; `weights` is then `master`, rounded;
        // 3. the ranks decide without asking each other: one collective, whose elements are `f16`;
        // 4. every rank adapts its scale after every step, made or skipped;
        // 5. the host waits for the GPU once, and reads one number.
        todo!("Update the weights in `f32` as one GPU would, unless the gradient of any rank overflowed")
        // ANCHOR_END: step
    }
}
