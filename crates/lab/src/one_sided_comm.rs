//! A communicator whose ranks write into each other's memory. cudarc has no safe calls for that.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use cudarc::nccl::Id;
use cudarc::nccl::sys::{self, ncclDataType_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t};

use crate::explain::Readable;
use crate::raw_comm::RawComm;

/// `NCCL_WIN_COLL_SYMMETRIC`: every rank registers a window of the same size, as puts need.
const SYMMETRIC: c_int = 1;

/// A rank's part of a communicator with one-sided calls. Dropping it, and all of its windows, aborts it.
///
/// It needs NCCL 2.29 or later, so a check that uses it calls [`crate::Check::puts_into_windows`].
#[derive(Debug)]
pub struct OneSidedComm(Rc<RawComm>);

/// Memory of a rank's GPU that all ranks of its communicator can write to. In all other ways, it is used like a
/// `CudaSlice`.
///
/// Drop it only after all puts into it are done.
#[derive(Debug)]
pub struct Window {
    memory: ManuallyDrop<CudaSlice<f32>>,
    handle: ncclWindow_t,
    comm: Rc<RawComm>,
}

impl OneSidedComm {
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
        RawComm::from_rank(stream, rank, world_size, id).map(|comm| Self(Rc::new(comm)))
    }

    /// Creates a window with this many elements, all of which are 0. Waits. Every rank must call it, with the same
    /// length.
    ///
    /// # Errors
    /// Returns NCCL's error, or the driver's.
    #[track_caller]
    pub fn window(&self, len: usize) -> anyhow::Result<Window> {
        // NCCL allocates on the GPU of the thread's current context.
        self.stream.context().bind_to_thread()?;
        let (mut memory, mut handle) = (null_mut(), null_mut());
        let bytes = len * size_of::<f32>();
        // SAFETY: the result is writable.
        check(unsafe { sys::ncclMemAlloc(&mut memory, bytes) })?;
        // SAFETY: the memory has this many bytes. It is set before anything reads it, and freed only by the window.
        let mut memory = ManuallyDrop::new(unsafe { self.stream.upgrade_device_ptr(memory as u64, len) });
        self.stream.memset_zeros(&mut *memory)?;
        self.stream.synchronize()?;
        let address = memory.device_ptr(&self.stream).0;
        // SAFETY: the memory has this many bytes, and the result is writable.
        check(unsafe {
            sys::ncclCommWindowRegister(self.comm, address as _, bytes, &mut handle, SYMMETRIC)
        })?;
        Ok(Window { memory, handle, comm: self.0.clone() })
    }

    /// Returns the number of a rank for NCCL.
    fn peer(&self, peer: usize) -> anyhow::Result<c_int> {
        let (rank, world_size) = (self.rank, self.world_size);
        ensure!(
            peer < world_size,
            "rank {rank}: the peer is rank {peer}, but the communicator has {world_size} ranks"
        );
        Ok(c_int::try_from(peer)?)
    }

    /// Enqueues a put: copies the elements `from` of this rank's window to `peer`'s window, where they begin at
    /// element `to`, and then sends `peer` a signal. `peer` makes no call for it.
    ///
    /// # Errors
    /// Fails if the elements are outside of the window, or if there is no such rank. Returns any other error from NCCL.
    #[track_caller]
    pub fn put(&self, window: &Window, from: Range<usize>, peer: usize, to: usize) -> anyhow::Result<()> {
        let len = window.len();
        ensure!(
            from.start <= from.end && from.end <= len && to + from.len() <= len,
            "rank {}: a put of the elements {from:?} to element {to} of a window with {len} elements",
            self.rank
        );
        let (peer, stream, bytes) = (self.peer(peer)?, self.stream.cu_stream(), size_of::<f32>());
        let address = window.device_ptr(&self.stream).0 + (from.start * bytes) as u64;
        // SAFETY: the elements are in the window, which work on the stream keeps until the put is done.
        check(unsafe {
            sys::ncclPutSignal(
                address as _,
                from.len(),
                ncclDataType_t::ncclFloat32,
                peer,
                window.handle,
                to * bytes,
                0,
                0,
                0,
                self.comm,
                stream.cast(),
            )
        })
    }

    /// Enqueues a signal to `peer`, without data.
    ///
    /// # Errors
    /// Fails if there is no such rank. Returns any other error from NCCL.
    #[track_caller]
    pub fn signal(&self, peer: usize) -> anyhow::Result<()> {
        let (peer, stream) = (self.peer(peer)?, self.stream.cu_stream());
        // SAFETY: a signal has no requirements.
        check(unsafe { sys::ncclSignal(peer, 0, 0, 0, self.comm, stream.cast()) })
    }

    /// Lets the stream wait for one signal from each of these ranks, or for several if it is in the list several
    /// times. What a put has written before its signal is then in the window. Does nothing if the list is empty.
    ///
    /// # Errors
    /// Fails if there is no such rank. Returns any other error from NCCL.
    #[track_caller]
    pub fn wait(&self, peers: &[usize]) -> anyhow::Result<()> {
        let mut counts: BTreeMap<c_int, c_int> = BTreeMap::new();
        for &peer in peers {
            *counts.entry(self.peer(peer)?).or_default() += 1;
        }
        if counts.is_empty() {
            return Ok(());
        }
        let describe = |(&peer, &count): (&c_int, &c_int)| ncclWaitSignalDesc_t {
            opCnt: count,
            peer,
            sigIdx: 0,
            ctx: 0,
        };
        let mut signals: Vec<_> = counts.iter().map(describe).collect();
        let (count, stream) = (c_int::try_from(signals.len())?, self.stream.cu_stream());
        // SAFETY: there are this many descriptions.
        check(unsafe { sys::ncclWaitSignal(count, signals.as_mut_ptr(), self.comm, stream.cast()) })
    }
}

#[track_caller]
fn check(result: ncclResult_t) -> anyhow::Result<()> {
    result.result().readable().map(drop)
}

impl Deref for OneSidedComm {
    type Target = RawComm;

    fn deref(&self) -> &RawComm {
        &self.0
    }
}

impl Deref for Window {
    type Target = CudaSlice<f32>;

    fn deref(&self) -> &Self::Target {
        &self.memory
    }
}

impl DerefMut for Window {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.memory
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: nothing uses the slice after this.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        let stream = memory.stream().clone();
        let address = memory.leak();
        let _ = (stream.context().bind_to_thread(), stream.synchronize());
        // SAFETY: the window and its memory belong to this object, and nothing uses them anymore. There is nothing to
        // do about an error.
        unsafe {
            let _ = sys::ncclCommWindowDeregister(self.comm.comm, self.handle);
            let _ = sys::ncclMemFree(address as _);
        }
    }
}
