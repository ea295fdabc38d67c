// mistake: thread i is the last rank but i, on the stream of thread i
// fails: rendezvous::rank_i_works_on_stream_i
// says: works on a stream of GPU
// says: expected streams[

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id};
use lab::{Readable, each_rank};

pub fn rendezvous<T: Send>(
    streams: &[Arc<CudaStream>],
    work: impl Fn(Comm) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let id = Id::new().readable()?;
    each_rank(streams.len(), |index| {
        let stream = &streams[index];
        stream.context().bind_to_thread()?;
        let rank = streams.len() - 1 - index;
        work(Comm::from_rank(stream.clone(), rank, streams.len(), id).readable()?)
    })
}
