// mistake: no context is bound, and NCCL doesn't look at the stream
// fails: rendezvous::every_rank_hears_where_the_others_sit
// says: no context is current on this thread

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
        work(Comm::from_rank(streams[rank].clone(), rank, streams.len(), id).readable()?)
    })
}
