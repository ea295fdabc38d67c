// mistake: the host waits until the parameters are gathered
// fails: sharded_optimizer::a_step_returns_at_once
// says: does it wait on the host?

use std::ops::Range;

use collectives::all_gather::all_gather_in_place;
use collectives::reduce_scatter::average_part;
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::Momentum;

const MOMENTUM: f32 = 0.5;

pub fn padded_len(parameters: usize, world_size: usize) -> usize {
    parameters.next_multiple_of(world_size)
}

pub struct ShardedOptimizer {
    pub momentum: Momentum,
    gradient: CudaSlice<f32>,
    own: Range<usize>,
}

impl ShardedOptimizer {
    pub fn new(comm: &Comm, padded_len: usize) -> anyhow::Result<Self> {
        let (stream, len) = (comm.stream(), padded_len / comm.world_size());
        Ok(Self {
            momentum: Momentum::new(&stream, len, MOMENTUM)?,
            gradient: stream.alloc_zeros(len)?,
            own: comm.rank() * len..(comm.rank() + 1) * len,
        })
    }

    pub fn step(
        &mut self,
        comm: &Comm,
        parameters: &mut CudaViewMut<f32>,
        gradient: &CudaView<f32>,
        learning_rate: f32,
    ) -> anyhow::Result<()> {
        average_part(comm, gradient, &mut self.gradient.as_view_mut())?;
        let mut own = parameters.slice_mut(self.own.clone());
        self.momentum.step(&mut own, &self.gradient.as_view(), learning_rate)?;
        all_gather_in_place(comm, parameters)?;
        Ok(comm.stream().synchronize()?)
    }
}
