// mistake: every thread binds the first stream's context
// fails: rendezvous::every_rank_hears_where_the_others_sit
// says: ranks 0 and 1 are both on GPU 1
// says: bind each rank's own context first

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
        streams[0].context().bind_to_thread()?;
        work(Comm::from_rank(streams[rank].clone(), rank, streams.len(), id).readable()?)
    })
}
