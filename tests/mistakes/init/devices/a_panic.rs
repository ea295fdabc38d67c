// mistake: too many is a panic, not an error
// fails: devices::too_many_is_an_error_with_both_numbers
// says: there are not that many GPUs

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

pub fn open(count: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    let available = CudaContext::device_count()? as usize;
    assert!(count <= available, "there are not that many GPUs");
    (0..count).map(|ordinal| Ok(CudaContext::new(ordinal)?.new_stream()?)).collect()
}
