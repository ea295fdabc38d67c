//! A GPU to be kept busy.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use lab::Kernels;

/// A stream, and the kernels to spin on it. They are loaded: that takes no part in what comes.
pub(super) fn spinning() -> anyhow::Result<(Arc<CudaStream>, Kernels)> {
    let stream = lab::streams(1)?.remove(0);
    let kernels = Kernels::load(stream.context())?;
    kernels.spin(&stream, 0)?;
    stream.synchronize()?;
    Ok((stream, kernels))
}
