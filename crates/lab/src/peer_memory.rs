//! Memory that kernels on other GPUs can access. cudarc allocates from a pool, whose memory other GPUs can't access
//! by default, and has no safe call to allow it.

use std::ffi::c_int;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::sys::{self, CUdevice, CUdeviceptr, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};

/// Words of a GPU's memory that are 0 at first. Kernels on another GPU can access them after [`enable_peer_access`]
/// for that GPU's context. Dropping it frees the memory, so no kernel on any GPU may still use it.
#[derive(Debug)]
pub struct PeerMemory {
    address: CUdeviceptr,
    words: usize,
    stream: Arc<CudaStream>,
}

impl PeerMemory {
    /// Allocates this many words of 32 bits on the stream's GPU, and waits until they are 0.
    ///
    /// # Errors
    /// Returns any error from the driver.
    #[track_caller]
    pub fn zeroed(stream: &Arc<CudaStream>, words: usize) -> anyhow::Result<Self> {
        stream.context().bind_to_thread()?;
        let bytes = size_of::<u32>() * words.max(1);
        // SAFETY: the memory is set before anything reads it.
        let address = unsafe { result::malloc_sync(bytes) }?;
        let memory = Self { address, words, stream: stream.clone() };
        // SAFETY: the memory has this many bytes.
        unsafe { result::memset_d8_async(address, 0, bytes, stream.cu_stream()) }?;
        stream.synchronize()?;
        Ok(memory)
    }

    /// Returns the address of the first word. It is the same for every GPU.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Waits for all work on the memory's own stream, and returns the words.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn read(&self) -> anyhow::Result<Vec<u32>> {
        self.stream.context().bind_to_thread()?;
        self.stream.synchronize()?;
        let mut words = vec![0; self.words];
        // SAFETY: the memory has this many words.
        unsafe { result::memcpy_dtoh_sync(&mut words, self.address) }?;
        Ok(words)
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        // There is nothing to do about an error.
        let _ = self.stream.context().bind_to_thread();
        // SAFETY: the memory was allocated here, and its owner promises that nothing uses it.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Lets kernels on the context's GPU access the [`PeerMemory`] on another GPU. Does nothing if they already can, or
/// if it is the same GPU.
///
/// # Errors
/// Fails if the GPUs can't access each other's memory. Returns any other error from the driver.
#[track_caller]
pub fn enable_peer_access(context: &Arc<CudaContext>, peer: usize) -> anyhow::Result<()> {
    let own = context.ordinal();
    if own == peer {
        return Ok(());
    }
    let other = CudaContext::new(peer).with_context(|| format!("GPU {peer}"))?;
    context.bind_to_thread()?;
    let can = can_access(context.cu_device(), other.cu_device())?;
    ensure!(can, "GPU {own} can't access the memory of GPU {peer}: no link between them allows it");
    // SAFETY: both contexts are alive.
    match unsafe { sys::cuCtxEnablePeerAccess(other.cu_ctx(), 0) } {
        CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        error => Err(DriverError(error).into()),
    }
}

/// Returns whether kernels on each of the first `gpus` GPUs can access the memory of each other one.
///
/// # Errors
/// Returns any error from the driver.
pub(crate) fn have_peer_access(gpus: usize) -> anyhow::Result<bool> {
    let devices = (0..gpus as c_int).map(|gpu| Ok(result::device::get(gpu)?));
    let devices = devices.collect::<anyhow::Result<Vec<_>>>()?;
    for (from, own) in devices.iter().enumerate() {
        for (to, other) in devices.iter().enumerate() {
            if from != to && !can_access(*own, *other)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn can_access(own: CUdevice, other: CUdevice) -> anyhow::Result<bool> {
    let mut can = 0;
    // SAFETY: the result is writable.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, own, other) }.result()?;
    Ok(can != 0)
}
