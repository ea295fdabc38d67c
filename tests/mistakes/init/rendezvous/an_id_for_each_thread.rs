// mistake: every thread makes an id of its own, and waits for others that never come
// fails: rendezvous::rank_i_works_on_stream_i
// says: never came to the communicator
// says: make the id once, and give the same one to every rank

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id};
use lab::{Readable, each_rank};

pub fn rendezvous<T: Send>(
    streams: &[Arc<CudaStream>],
    work: impl Fn(Comm) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    each_rank(streams.len(), |rank| {
        let stream = &streams[rank];
        stream.context().bind_to_thread()?;
        let id = Id::new().readable()?;
        work(Comm::from_rank(stream.clone(), rank, streams.len(), id).readable()?)
    })
}
