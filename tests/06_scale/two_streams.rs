//! A rank with a compute stream and a communicator's stream.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use lab::Kernels;

/// A rank without event tracking, so that only the exercise orders its work.
pub(super) struct Rank {
    pub(super) comm: Comm,
    pub(super) compute: Arc<CudaStream>,
    pub(super) kernels: Kernels,
}

impl Rank {
    pub(super) fn new(comm: Comm) -> anyhow::Result<Self> {
        // SAFETY: events or a synchronize call must order all uses on different streams; the checks verify this.
        let compute = unsafe { lab::untracked_compute_stream(&comm)? };
        Ok(Self { kernels: Kernels::load(comm.context())?, comm, compute })
    }

    pub(super) fn number(&self) -> usize {
        self.comm.rank()
    }

    pub(super) fn synchronize(&self) -> anyhow::Result<()> {
        self.compute.synchronize()?;
        Ok(self.comm.stream().synchronize()?)
    }
}
