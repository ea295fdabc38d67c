//! NCCL's C functions, for tests of what cudarc's safe layer does not offer or would hide.

use std::cell::Cell;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use cudarc::nccl::result::get_uniqueid;
use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};

use crate::nccl::{last_error, stream};

/// The result of a call; an error holds the code and NCCL's text.
pub(crate) type Answer = Result<(), (ncclResult_t, String)>;

pub(crate) fn answer(code: ncclResult_t) -> Answer {
    match code {
        ncclResult_t::ncclSuccess => Ok(()),
        code => Err((code, last_error())),
    }
}

/// Returns a slice's device address.
pub(crate) fn address<T>(slice: &CudaSlice<T>) -> u64 {
    slice.device_ptr(slice.stream()).0
}

/// One rank's handle to a communicator, used only by this thread. Dropping it destroys the communicator.
pub(crate) struct Rank {
    pub(crate) comm: ncclComm_t,
    pub(crate) rank: usize,
    pub(crate) n: usize,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) leaked: Cell<bool>,
}

/// The arguments of a collective other than its buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    pub(crate) count: usize,
    pub(crate) data_type: ncclDataType_t,
    pub(crate) operator: ncclRedOp_t,
    pub(crate) root: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Send,
    Recv,
}

impl Rank {
    /// Joins a communicator, on the GPU of `stream`.
    pub(crate) fn join(id: ncclUniqueId, rank: usize, n: usize, stream: Arc<CudaStream>) -> Self {
        Self::try_join(id, rank, n, stream).unwrap()
    }

    /// Like [`Self::join`], but returns NCCL's text on failure.
    pub(crate) fn try_join(
        id: ncclUniqueId,
        rank: usize,
        n: usize,
        stream: Arc<CudaStream>,
    ) -> Result<Self, String> {
        hide_own_lines();
        stream.context().bind_to_thread().unwrap();
        let mut comm = std::ptr::null_mut();
        // SAFETY: `comm` is writable.
        let answer = answer(unsafe { sys::ncclCommInitRank(&mut comm, n as i32, id, rank as i32) });
        answer.map_err(|(code, text)| format!("{code:?}: {text}"))?;
        Ok(Self { comm, rank, n, stream, leaked: Cell::default() })
    }

    /// Wraps an existing communicator.
    pub(crate) fn of(comm: ncclComm_t, stream: Arc<CudaStream>) -> Self {
        hide_own_lines();
        let (mut rank, mut n) = (0, 0);
        // SAFETY: both numbers are writable.
        unsafe {
            answer(sys::ncclCommUserRank(comm, &mut rank)).unwrap();
            answer(sys::ncclCommCount(comm, &mut n)).unwrap();
        }
        Self { comm, rank: rank as usize, n: n as usize, stream, leaked: Cell::default() }
    }

    /// Keeps the communicator from being destroyed on drop.
    pub(crate) fn leak(&self) {
        self.leaked.set(true);
    }

    /// Calls a collective, or a send or receive whose peer is the root. The buffer addresses are not checked here.
    pub(crate) fn call(&self, function: Function, send: u64, receive: u64, with: Arguments) -> Answer {
        self.call_on(&self.stream, function, send, receive, with)
    }

    /// Like [`Self::call`], but on another stream.
    pub(crate) fn call_on(
        &self,
        stream: &CudaStream,
        function: Function,
        send: u64,
        receive: u64,
        with: Arguments,
    ) -> Answer {
        let Arguments { count, data_type, operator, root } = with;
        let (from, to) = (send as *const _, receive as *mut _);
        let (comm, stream) = (self.comm, stream.cu_stream().cast());
        // SAFETY: the library checks the addresses. A test that needs the results waits before it drops its buffers.
        answer(unsafe {
            match function {
                Function::AllReduce => sys::ncclAllReduce(from, to, count, data_type, operator, comm, stream),
                Function::Broadcast => sys::ncclBroadcast(from, to, count, data_type, root, comm, stream),
                Function::Reduce => sys::ncclReduce(from, to, count, data_type, operator, root, comm, stream),
                Function::AllGather => sys::ncclAllGather(from, to, count, data_type, comm, stream),
                Function::ReduceScatter => {
                    sys::ncclReduceScatter(from, to, count, data_type, operator, comm, stream)
                }
                Function::AllToAll => sys::ncclAlltoAll(from, to, count, data_type, comm, stream),
                Function::Gather => sys::ncclGather(from, to, count, data_type, root, comm, stream),
                Function::Scatter => sys::ncclScatter(from, to, count, data_type, root, comm, stream),
                Function::Send => sys::ncclSend(from, count, data_type, root, comm, stream),
                Function::Recv => sys::ncclRecv(to, count, data_type, root, comm, stream),
            }
        })
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        if !self.leaked.get() {
            // SAFETY: only this rank uses the communicator.
            unsafe { sys::ncclCommDestroy(self.comm) };
        }
    }
}

/// Returns arguments for `count` floats, with a sum, and with rank 0 as the root or peer.
pub(crate) fn floats(count: usize) -> Arguments {
    Arguments { count, data_type: ncclDataType_t::ncclFloat32, operator: ncclRedOp_t::ncclSum, root: 0 }
}

/// Makes reports show the lines of the checks instead of lines in this file.
fn hide_own_lines() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the library is loaded and stays loaded; its function takes a C string and returns nothing.
        let hide: extern "C" fn(*const std::ffi::c_char) = unsafe {
            let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            let hide = libc::dlsym(library, c"virtualGpuHideLibrary".as_ptr());
            assert!(!hide.is_null());
            std::mem::transmute(hide)
        };
        for file in ["raw.rs", "twins.rs"] {
            let path = format!("{}/tests/virtual_gpu/{file}", env!("CARGO_MANIFEST_DIR"));
            hide(std::ffi::CString::new(path).unwrap().as_ptr());
        }
    });
}

/// Runs a thread for each of `n` ranks, on GPUs starting at `first`.
pub(crate) fn raw_ranks<T: Send>(first: usize, n: usize, work: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let id = get_uniqueid().unwrap();
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..n)
            .map(|rank| scope.spawn(move || work(Rank::join(id, rank, n, stream(first + rank)))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs `calls` in a group, and returns the result of the group's end.
pub(crate) fn in_group(calls: impl FnOnce()) -> Answer {
    // SAFETY: neither function takes arguments.
    unsafe {
        answer(sys::ncclGroupStart()).unwrap();
        calls();
        answer(sys::ncclGroupEnd())
    }
}

/// Makes a communicator for each device with `ncclCommInitAll`.
pub(crate) fn communicators(devices: &[i32]) -> Result<Vec<ncclComm_t>, (ncclResult_t, String)> {
    let mut comms = vec![std::ptr::null_mut(); devices.len()];
    // SAFETY: both arrays have this many elements.
    answer(unsafe { sys::ncclCommInitAll(comms.as_mut_ptr(), devices.len() as i32, devices.as_ptr()) })?;
    Ok(comms)
}

/// Returns `NCCL_CONFIG_INITIALIZER`.
pub(crate) fn config() -> sys::ncclConfig_t {
    const UNSET: i32 = i32::MIN;
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: 23_007,
        blocking: UNSET,
        cgaClusterSize: UNSET,
        minCTAs: UNSET,
        maxCTAs: UNSET,
        netName: std::ptr::null(),
        splitShare: UNSET,
        trafficClass: UNSET,
        commName: std::ptr::null(),
        collnetEnable: UNSET,
        CTAPolicy: UNSET,
        shrinkShare: UNSET,
        nvlsCTAs: UNSET,
        nChannelsPerNetPeer: UNSET,
        nvlinkCentricSched: UNSET,
        graphUsageMode: UNSET,
        numRmaCtx: UNSET,
        maxP2pPeers: UNSET,
    }
}
