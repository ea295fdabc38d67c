//! A communicator that can continue without lost ranks. cudarc has no safe call for that.

use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut, DevicePtr, DevicePtrMut};
use cudarc::nccl::Id;
use cudarc::nccl::result::{self, NcclError, NcclStatus};
use cudarc::nccl::sys::{self, ncclDataType_t, ncclRedOp_t, ncclResult_t};

use crate::explain::Readable;
use crate::raw_comm::RawComm;

/// `NCCL_SHRINK_ABORT`: cancels the work in flight first.
const SHRINK_ABORT: c_int = 1;

/// A rank's part of a communicator that can be shrunk. Dropping it aborts it.
///
/// It needs NCCL 2.27 or later, so a check that uses it calls [`crate::Check::shrinks_communicators`].
#[derive(Debug)]
pub struct ElasticComm(RawComm);

impl ElasticComm {
    /// Joins a world as rank `rank`. Every rank must call it, with the same id, from its own thread.
    ///
    /// # Errors
    /// Returns NCCL's error, or the driver's.
    #[track_caller]
    pub fn from_rank(
        stream: Arc<CudaStream>,
        rank: usize,
        world_size: usize,
        id: Id,
    ) -> anyhow::Result<Self> {
        RawComm::from_rank(stream, rank, world_size, id).map(Self)
    }

    /// Enqueues a sum over all ranks, in place. Every rank must call it, with a buffer of the same length. If NCCL already
    /// knows that a rank is lost, nothing is enqueued, and the sum never arrives.
    ///
    /// # Errors
    /// Returns NCCL's error, except `ncclRemoteError`: "a remote process exiting prematurely".
    #[track_caller]
    pub fn sum(&self, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let stream = self.stream.cu_stream().cast();
        self.in_place(buffer, |pointer, count| {
            let (float, sum) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
            // SAFETY: the buffer has this many elements, and work on the stream keeps it until the sum is done.
            match unsafe { result::all_reduce(pointer, pointer, count, float, sum, self.comm, stream) } {
                Err(NcclError(ncclResult_t::ncclRemoteError)) => Ok(NcclStatus::Success),
                called => called,
            }
        })
    }

    /// Enqueues a broadcast from rank `root`, in place. Every rank must call it, with the same root and a buffer of the
    /// same length.
    ///
    /// # Errors
    /// Returns NCCL's error.
    #[track_caller]
    pub fn broadcast(&self, buffer: &mut CudaViewMut<f32>, root: usize) -> anyhow::Result<()> {
        let (root, stream) = (c_int::try_from(root)?, self.stream.cu_stream().cast());
        self.in_place(buffer, |pointer, count| {
            let float = ncclDataType_t::ncclFloat32;
            // SAFETY: as for the sum.
            unsafe { result::broadcast(pointer, pointer, count, float, root, self.comm, stream) }
        })
    }

    /// Makes a call with the address and the length of a buffer that it reads and writes.
    #[track_caller]
    fn in_place(
        &self,
        buffer: &mut CudaViewMut<f32>,
        call: impl FnOnce(*mut c_void, usize) -> Result<NcclStatus, NcclError>,
    ) -> anyhow::Result<()> {
        let count = buffer.len();
        let (pointer, _record) = buffer.device_ptr_mut(&self.stream);
        call(pointer as _, count).readable().map(drop)
    }

    /// Sends this rank's number to all ranks, and returns the numbers of all of them, in rank order. Waits. Every rank
    /// must call it.
    ///
    /// # Errors
    /// Returns NCCL's error, or the driver's.
    #[track_caller]
    pub fn gather(&self, number: u64) -> anyhow::Result<Vec<u64>> {
        let own = self.stream.clone_htod(&[number])?;
        let mut all = self.stream.alloc_zeros::<u64>(self.world_size)?;
        let called = {
            let (own, _read) = own.device_ptr(&self.stream);
            let (all, _written) = all.device_ptr_mut(&self.stream);
            // SAFETY: the buffers have one element, and one for each rank.
            unsafe {
                result::all_gather(
                    own as _,
                    all as _,
                    1,
                    ncclDataType_t::ncclUint64,
                    self.comm,
                    self.stream.cu_stream().cast(),
                )
            }
        };
        called.readable()?;
        let all = self.stream.clone_dtoh(&all)?;
        self.stream.synchronize()?;
        Ok(all)
    }

    /// Cancels the work in flight, and returns a communicator without the lost ranks, on the same stream. The other ranks
    /// keep their order. Each of them must call it, with the same list, which is not empty.
    ///
    /// # Errors
    /// Returns NCCL's error.
    #[track_caller]
    pub fn shrink(self, lost: &[usize]) -> anyhow::Result<Self> {
        let mut list = lost.iter().map(|&rank| c_int::try_from(rank)).collect::<Result<Vec<_>, _>>()?;
        let count = c_int::try_from(list.len())?;
        let mut comm = null_mut();
        // SAFETY: the list has this many elements, the result is writable, and a null pointer stands for the parent's
        // configuration.
        let called = unsafe {
            sys::ncclCommShrink(self.comm, list.as_mut_ptr(), count, &mut comm, null_mut(), SHRINK_ABORT)
        };
        called.result().readable()?;
        let rank = self.rank - lost.iter().filter(|&&other| other < self.rank).count();
        let world_size = self.world_size - lost.len();
        Ok(Self(RawComm { comm, stream: self.stream.clone(), rank, world_size }))
    }
}

impl Deref for ElasticComm {
    type Target = RawComm;

    fn deref(&self) -> &RawComm {
        &self.0
    }
}
