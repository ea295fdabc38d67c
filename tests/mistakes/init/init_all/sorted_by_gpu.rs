// mistake: the streams are sorted by GPU, so that rank i doesn't work on stream i
// fails: init_all::communicator_i_works_on_stream_i
// says: communicator 0 of 2 works on a stream of GPU 0, expected streams[0], which is on GPU 1

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
    let mut sorted = streams.to_vec();
    sorted.sort_by_key(|stream| stream.context().ordinal());
    Comm::from_devices(sorted).readable()
}

pub fn identity(communicator: &Comm) -> Identity {
    Identity {
        rank: communicator.rank(),
        world_size: communicator.world_size(),
        gpu: communicator.stream().context().ordinal(),
    }
}
