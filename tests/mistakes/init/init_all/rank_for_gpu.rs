// mistake: the rank is taken for the number of the GPU
// fails: init_all::an_identity_is_rank_world_size_and_gpu
// says: the identity of rank 0 is reported as
// says: gpu: 0 }, expected

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use lab::Readable;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub rank: usize,
    pub world_size: usize,
    pub gpu: usize,
}

pub fn communicators(streams: &[Arc<CudaStream>]) -> anyhow::Result<Vec<Comm>> {
    Comm::from_devices(streams.to_vec()).readable()
}

pub fn identity(communicator: &Comm) -> Identity {
    let rank = communicator.rank();
    Identity { rank, world_size: communicator.world_size(), gpu: rank }
}
