// mistake: to ask for all GPUs is refused, because `<` stands where `<=` should
// fails: devices::stream_i_is_on_gpu_i
// says: GPUs were asked for, but there are

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaContext, CudaStream};

pub fn open(count: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    let available = usize::try_from(CudaContext::device_count()?)?;
    ensure!(count < available, "{count} GPUs were asked for, but there are {available}");
    (0..count).map(|ordinal| Ok(CudaContext::new(ordinal)?.new_stream()?)).collect()
}
