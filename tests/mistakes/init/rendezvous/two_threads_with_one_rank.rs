// mistake: every thread says that it is rank 0
// fails: rendezvous::rank_i_works_on_stream_i
// says: two ranks of one communicator are both rank 0

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id};
use lab::{Readable, each_rank};

pub fn rendezvous<T: Send>(
    streams: &[Arc<CudaStream>],
    work: impl Fn(Comm) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let id = Id::new().readable()?;
    each_rank(streams.len(), |rank| {
        let stream = &streams[rank];
        stream.context().bind_to_thread()?;
        work(Comm::from_rank(stream.clone(), 0, streams.len(), id).readable()?)
    })
}
