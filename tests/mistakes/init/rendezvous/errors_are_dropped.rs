// mistake: a rank that fails is left out of the results, and nobody hears of it
// fails: rendezvous::an_error_comes_back_with_its_rank
// says: rank 1 failed, and `rendezvous` returned Ok

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id};
use lab::{Readable, each_rank};

pub fn rendezvous<T: Send>(
    streams: &[Arc<CudaStream>],
    work: impl Fn(Comm) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let id = Id::new().readable()?;
    let results = each_rank(streams.len(), |rank| {
        let stream = &streams[rank];
        stream.context().bind_to_thread()?;
        Ok(work(Comm::from_rank(stream.clone(), rank, streams.len(), id).readable()?).ok())
    })?;
    Ok(results.into_iter().flatten().collect())
}
