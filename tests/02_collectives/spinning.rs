//! Provides a GPU that can be kept busy.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use lab::Kernels;

/// Returns a stream, and kernels to spin on it. They are already loaded, so loading does not affect what follows.
pub(super) fn spinning() -> anyhow::Result<(Arc<CudaStream>, Kernels)> {
    let stream = lab::streams(1)?.remove(0);
    let kernels = Kernels::load(stream.context())?;
    kernels.spin(&stream, 0)?;
    stream.synchronize()?;
    Ok((stream, kernels))
}
