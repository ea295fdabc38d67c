//! Where GPU memory comes from, and how to see what becomes of it.
//!
//! cudarc allocates with `cuMemAllocAsync`: memory comes from a pool that the driver keeps for each GPU, and goes back to it, both in
//! the order of a stream. The pool takes memory from the GPU in large pieces, and keeps what lies between. It counts: what is in
//! use, what it holds for that, and the most of either, as a high-water mark.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::sys::CUmemPool_attribute::{
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as RESERVED, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as RESERVED_HIGH,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED, CU_MEMPOOL_ATTR_USED_MEM_HIGH as USED_HIGH,
};
use cudarc::driver::{CudaSlice, CudaStream, CudaView};
use lab::{Kernels, MemoryPool};

/// What the pool of one GPU says, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// Allocated, and not freed.
    pub used: u64,
    /// The most of it since the mark was last reset.
    pub used_high: u64,
    /// Taken from the GPU.
    pub reserved: u64,
    /// The most of it since the mark was last reset.
    pub reserved_high: u64,
}

impl PoolReport {
    /// Which share of what the pool holds is in no use. Much of that for long means that memory is fragmented between
    /// allocations that stay, too small for those that come. 0 if it holds nothing.
    pub fn idle_share(&self) -> f64 {
        1.0 - self.used as f64 / (self.reserved as f64).max(self.used as f64).max(1.0)
    }
}

/// What the pool says that this stream's allocations come from.
///
/// # Errors
/// What the driver answers.
pub fn report(stream: &CudaStream) -> anyhow::Result<PoolReport> {
    // ANCHOR: report
    // Ask the pool of the stream's GPU for its four figures.
    // `MemoryPool::of_gpu(ordinal)` finds a pool, and `pool.figure(USED)` asks it; the four names are imported above. A stream
    // knows its `context()`, which knows its `ordinal()`.
    todo!("Ask the pool of the stream's GPU for its four figures")
    // ANCHOR_END: report
}

/// Does `work` so many times, and reports after each, once all of it is done on the stream: what is in use and held then, and
/// the most there was in this one time.
///
/// # Errors
/// Those of `work`, and what the driver answers.
pub fn watch(
    stream: &CudaStream,
    times: usize,
    mut work: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<PoolReport>> {
    let pool = MemoryPool::of_gpu(stream.context().ordinal())?;
    let mut reports = Vec::new();
    for index in 0..times {
        reports.push(watch_once(stream, &pool, || work(index))?);
    }
    Ok(reports)
}

/// Does `work` once, and reports.
fn watch_once(
    stream: &CudaStream,
    pool: &MemoryPool,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<PoolReport> {
    // ANCHOR: watch
    // Reset the two high-water marks, work, wait for the stream, and report.
    // `pool.reset(USED_HIGH)` sets the mark to what is in use now. A pool gives back what it holds without need when somebody
    // waits for a stream: report before, and it looks like more.
    todo!("Reset the two high-water marks, work, wait for the stream, and report")
    // ANCHOR_END: watch
}

/// Measures how far vectors lie apart. It has all its buffers from the start: measuring allocates nothing.
pub struct Distances {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    difference: CudaSlice<f32>,
    sum: CudaSlice<f32>,
}

impl Distances {
    /// For vectors of at most `longest` elements.
    ///
    /// # Errors
    /// `longest` is 0, or what the driver answers.
    pub fn new(stream: &Arc<CudaStream>, longest: usize) -> anyhow::Result<Self> {
        ensure!(longest > 0, "vectors of no elements");
        // ANCHOR: new
        // Load the kernels, and allocate the two buffers: room for a longest vector, and for one number.
        todo!("Load the kernels, and allocate the two buffers")
        // ANCHOR_END: new
    }

    /// The sum of the squares of a − b. Waits for the GPU.
    ///
    /// # Errors
    /// a and b differ in length, or are longer than was said, or what the driver answers.
    pub fn squared(&mut self, a: &CudaView<f32>, b: &CudaView<f32>) -> anyhow::Result<f32> {
        let (len, room) = (a.len(), self.difference.len());
        ensure!(len == b.len(), "vectors of {len} and {} elements", b.len());
        ensure!(len <= room, "vectors of {len} elements, where there is room for {room}");
        // ANCHOR: squared
        // Compute it in the buffers that are there.
        // `self.difference.slice_mut(..len)` is as much of the buffer as this vector needs. `stream.memcpy_dtod(a, &mut difference)`
        // copies, `kernels.axpy(stream, &mut difference, b, -1.0)` subtracts, and `kernels.sum_of_squares(stream, &mut self.sum,
        // &difference)` and `clone_dtoh` do the rest.
        todo!("Compute it in the buffers that are there")
        // ANCHOR_END: squared
    }
}

/// Frees a buffer that `user`, another stream of its GPU, was given work with, as its own stream was. Its memory goes back to the
/// pool when both are done with it. cudarc's tracking may be off, so that nobody else sees to that. Returns at once.
///
/// # Errors
/// What the driver answers.
pub fn release(buffer: CudaSlice<f32>, user: &CudaStream) -> anyhow::Result<()> {
    // ANCHOR: release
    // Let the free wait for the other stream's work, and free the buffer.
    // `drop(buffer)` frees it, in the order of one stream: which one? `a.join(b)` makes stream a wait for all that b was given
    // so far.
    todo!("Let the free wait for the other stream's work, and free the buffer")
    // ANCHOR_END: release
}
