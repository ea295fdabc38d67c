//! Provides a GPU that the checks can keep busy.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use lab::Kernels;

/// Returns a stream, and kernels that spin on it. The kernels are already loaded, so loading does not affect later
/// work.
pub(super) fn spinning() -> anyhow::Result<(Arc<CudaStream>, Kernels)> {
    let stream = lab::streams(1)?.remove(0);
    let kernels = Kernels::load(stream.context())?;
    kernels.spin(&stream, 0)?;
    stream.synchronize()?;
    Ok((stream, kernels))
}
