//! A sharded optimizer: each rank keeps a part of the optimizer's state, and updates that part of the parameters for all ranks.
//!
//! This is stage 1 of ZeRO (S. Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020,
//! arXiv 1910.02054).

use std::ops::Range;

use collectives::all_gather::all_gather_in_place;
use collectives::reduce_scatter::average_part;
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::Momentum;

/// The fraction of a velocity that each step keeps.
const MOMENTUM: f32 = 0.5;

/// Returns how long the parameter and gradient buffers must be so that all ranks have parts of the same length. The
/// elements after the last parameter are padding.
pub fn padded_len(parameters: usize, world_size: usize) -> usize {
    // ANCHOR: padded_len
    // Find the shortest length that holds all parameters in equal parts:
    // 1. it is a multiple of the world size;
    // 2. no parameter is lost, and there is no more padding than necessary.
    parameters.next_multiple_of(world_size)
    // ANCHOR_END: padded_len
}

/// One rank's part of an optimizer.
pub struct ShardedOptimizer {
    /// The optimizer for the parameters of this part.
    pub momentum: Momentum,
    /// This rank's part of the averaged gradient.
    gradient: CudaSlice<f32>,
    /// The range in the buffers that is this rank's part.
    own: Range<usize>,
}

impl ShardedOptimizer {
    /// Creates the part for the communicator's rank, for buffers of [`padded_len`] elements. The parts are in rank order.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn new(comm: &Comm, padded_len: usize) -> anyhow::Result<Self> {
        // ANCHOR: new
        // Create the optimizer for this rank's part:
        // 1. all parts have the same length, and together they make up the buffer;
        // 2. its velocities and its gradient are as long as the part.
        let (stream, len) = (comm.stream(), padded_len / comm.world_size());
        Ok(Self {
            momentum: Momentum::new(&stream, len, MOMENTUM)?,
            gradient: stream.alloc_zeros(len)?,
            own: comm.rank() * len..(comm.rank() + 1) * len,
        })
        // ANCHOR_END: new
    }

    /// Makes one step, jointly with all other ranks. All ranks have the same parameters before the step, and again after it. `gradient`
    /// is this rank's own, computed from its samples. Both buffers have [`padded_len`] elements. Returns without waiting for the GPU.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    pub fn step(
        &mut self,
        comm: &Comm,
        parameters: &mut CudaViewMut<f32>,
        gradient: &CudaView<f32>,
        learning_rate: f32,
    ) -> anyhow::Result<()> {
        // ANCHOR: step
        // Make the step of a single optimizer, in parts:
        // 1. this rank updates its own part, using the average of that part's gradient over all ranks;
        // 2. after the step, all ranks have all of the new parameters;
        // 3. the optimizer's state is kept from step to step;
        // 4. two collectives: each rank gets its part of the average, and then all parts of the parameters;
        // 5. the host does not wait for the GPU.
        average_part(comm, gradient, &mut self.gradient.as_view_mut())?;
        let mut own = parameters.slice_mut(self.own.clone());
        self.momentum.step(&mut own, &self.gradient.as_view(), learning_rate)?;
        all_gather_in_place(comm, parameters)
        // ANCHOR_END: step
    }
}
