// mistake: every rank steps all parameters, with an optimizer that remembers all of them
// fails: sharded_optimizer::each_rank_remembers_its_part_alone
// says: it remembers the whole: each rank has only its part to step

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
            momentum: Momentum::new(&stream, padded_len, MOMENTUM)?,
            gradient: stream.alloc_zeros(padded_len)?,
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
        average_part(comm, gradient, &mut self.gradient.slice_mut(self.own.clone()))?;
        all_gather_in_place(comm, &mut self.gradient.as_view_mut())?;
        self.momentum.step(parameters, &self.gradient.as_view(), learning_rate)
    }
}
