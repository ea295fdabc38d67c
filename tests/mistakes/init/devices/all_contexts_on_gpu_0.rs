// mistake: every context is made on GPU 0
// fails: devices::stream_i_is_on_gpu_i
// says: stream 1 of 2 is on GPU 0, expected GPU 1

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaContext, CudaStream};

pub fn open(count: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    let available = usize::try_from(CudaContext::device_count()?)?;
    ensure!(count <= available, "{count} GPUs were asked for, but there are {available}");
    (0..count).map(|_| Ok(CudaContext::new(0)?.new_stream()?)).collect()
}
