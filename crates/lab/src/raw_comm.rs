//! A rank's part of a communicator, for NCCL's calls that cudarc's `Comm` does not have.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::Id;
use cudarc::nccl::result::{self, NcclError};
use cudarc::nccl::sys::{self, ncclComm_t};

use crate::explain::Readable;

/// NCCL's communicator, and what every rank knows of it. Dropping it aborts it.
#[derive(Debug)]
pub struct RawComm {
    pub(crate) comm: ncclComm_t,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
}

impl RawComm {
    /// Joins a world as rank `rank`. Every rank must call it, with the same id, from its own thread.
    #[track_caller]
    pub(crate) fn from_rank(
        stream: Arc<CudaStream>,
        rank: usize,
        world_size: usize,
        id: Id,
    ) -> anyhow::Result<Self> {
        stream.context().bind_to_thread()?;
        let id = sys::ncclUniqueId { internal: *id.internal() };
        let mut comm = null_mut();
        // SAFETY: the result is writable.
        unsafe {
            result::comm_init_rank(&mut comm, c_int::try_from(world_size)?, id, c_int::try_from(rank)?)
        }
        .readable()?;
        Ok(Self { comm, stream, rank, world_size })
    }

    /// Returns the stream of the communicator's work.
    pub fn stream(&self) -> Arc<CudaStream> {
        self.stream.clone()
    }

    /// Returns this rank's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }
}

impl Drop for RawComm {
    fn drop(&mut self) {
        // SAFETY: nothing uses the communicator after this. There is nothing to do about an error.
        let _: Result<_, NcclError> = unsafe { result::comm_abort(self.comm) };
    }
}
