// mistake: the context's default stream instead of a new one
// fails: devices::every_stream_is_a_new_one
// says: has got its default stream, expected a new one

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaContext, CudaStream};

pub fn open(count: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    let available = usize::try_from(CudaContext::device_count()?)?;
    ensure!(count <= available, "{count} GPUs were asked for, but there are {available}");
    (0..count).map(|ordinal| Ok(CudaContext::new(ordinal)?.default_stream())).collect()
}
