//! A sharded optimizer: each rank keeps a part of what the optimizer has to remember, and makes that part's step for all.
//!
//! With momentum, an optimizer keeps a velocity for each parameter; with Adam it keeps two numbers. In data parallelism all ranks keep
//! the same ones. But a step needs nothing from its neighbours: it can be made in parts, each on one rank. That is
//! the first stage of ZeRO (S. Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
//! 2020, arXiv 1910.02054).

use std::ops::Range;

use collectives::all_gather::all_gather_in_place;
use collectives::reduce_scatter::average_part;
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::Momentum;

/// How much of a velocity is kept in a step.
const MOMENTUM: f32 = 0.5;

/// How long the buffers of parameters and gradients have to be, so that all ranks have parts of one length: the least such
/// length that holds `parameters`. What lies behind them is padding.
pub fn padded_len(parameters: usize, world_size: usize) -> usize {
    // ANCHOR: padded_len
    // Round up to a length that divides by the world size.
    // 10 parameters on 4 ranks: parts of 2 lose two parameters.
    parameters.next_multiple_of(world_size)
    // ANCHOR_END: padded_len
}

/// One rank's part of an optimizer.
pub struct ShardedOptimizer {
    /// The optimizer for the parameters of this part.
    pub momentum: Momentum,
    /// This rank's part of the averaged gradient.
    gradient: CudaSlice<f32>,
    /// Which elements of the buffers are this rank's.
    own: Range<usize>,
}

impl ShardedOptimizer {
    /// The part of the communicator's rank, for buffers of [`padded_len`] elements. Parts lie in the order of ranks.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn new(comm: &Comm, padded_len: usize) -> anyhow::Result<Self> {
        // ANCHOR: new
        // Find this rank's part, and make an optimizer and a gradient buffer of that length.
        // `Momentum::new(&stream, len, MOMENTUM)` is an optimizer for `len` parameters; it starts from velocities of 0.
        let (stream, len) = (comm.stream(), padded_len / comm.world_size());
        Ok(Self {
            momentum: Momentum::new(&stream, len, MOMENTUM)?,
            gradient: stream.alloc_zeros(len)?,
            own: comm.rank() * len..(comm.rank() + 1) * len,
        })
        // ANCHOR_END: new
    }

    /// One step, all ranks together: every rank has the same parameters before, and the same ones after. `gradient` is this
    /// rank's own, over its samples. Both buffers have [`padded_len`] elements. Returns at once.
    ///
    /// # Errors
    /// What the driver and NCCL answer.
    pub fn step(
        &mut self,
        comm: &Comm,
        parameters: &mut CudaViewMut<f32>,
        gradient: &CudaView<f32>,
        learning_rate: f32,
    ) -> anyhow::Result<()> {
        // ANCHOR: step
        // Average this rank's part of the gradient, step with it, and gather the parameters.
        // Two functions of module 02 do the talking: `average_part(comm, send, part)` and `all_gather_in_place(comm, whole)`.
        // Between them, `self.momentum.step(parameters of the part, gradient of the part, learning_rate)`.
        average_part(comm, gradient, &mut self.gradient.as_view_mut())?;
        let mut own = parameters.slice_mut(self.own.clone());
        self.momentum.step(&mut own, &self.gradient.as_view(), learning_rate)?;
        all_gather_in_place(comm, parameters)
        // ANCHOR_END: step
    }
}
