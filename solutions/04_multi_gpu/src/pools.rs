//! Memory pools: where GPU memory comes from, and how to see how much is in use.
//!
//! cudarc allocates with `cuMemAllocAsync`, from a pool that the driver keeps for each GPU. Freeing memory returns it
//! to the pool, in stream order.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::sys::CUmemPool_attribute::{
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as RESERVED, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as RESERVED_HIGH,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED, CU_MEMPOOL_ATTR_USED_MEM_HIGH as USED_HIGH,
};
use cudarc::driver::{CudaSlice, CudaStream, CudaView};
use lab::{Kernels, MemoryPool};

/// The statistics of one GPU's memory pool, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// The number of bytes that are allocated and not yet freed.
    pub used: u64,
    /// The maximum of `used` since the mark was last reset.
    pub used_high: u64,
    /// The number of bytes that the pool holds on the GPU.
    pub reserved: u64,
    /// The maximum of `reserved` since the mark was last reset.
    pub reserved_high: u64,
}

impl PoolReport {
    /// Returns the share of the reserved memory that is not in use, from 0 to 1; 0 if nothing is reserved. If it stays high, memory may be
    /// fragmented.
    pub fn idle_share(&self) -> f64 {
        1.0 - self.used as f64 / (self.reserved as f64).max(self.used as f64).max(1.0)
    }
}

/// Returns the statistics of the pool on the stream's GPU.
///
/// # Errors
/// Returns any error from the driver.
pub fn report(stream: &CudaStream) -> anyhow::Result<PoolReport> {
    // ANCHOR: report
    // Read the four statistics:
    // 1. they describe the pool on the stream's GPU, no matter which GPU that is;
    // 2. `used` and `reserved` are as of now, and the other two are the marks.
    let pool = MemoryPool::of_gpu(stream.context().ordinal())?;
    Ok(PoolReport {
        used: pool.figure(USED)?,
        used_high: pool.figure(USED_HIGH)?,
        reserved: pool.figure(RESERVED)?,
        reserved_high: pool.figure(RESERVED_HIGH)?,
    })
    // ANCHOR_END: report
}

/// Calls `work` this many times, with the index of the call. Earlier work on the stream is already done. After each call, waits for the stream, and reports the
/// memory that is in use and reserved at that time, and their maxima during the call.
///
/// # Errors
/// Returns any error from `work` or the driver.
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

/// Calls `work` once, and reports on the call.
fn watch_once(
    stream: &CudaStream,
    pool: &MemoryPool,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<PoolReport> {
    // ANCHOR: watch
    // Report on one call of `work`:
    // 1. both marks cover only this call; earlier work on the stream is already done;
    // 2. the report shows the pool after all of the call's work on the stream is done;
    // 3. an error of `work` is returned.
    pool.reset(USED_HIGH)?;
    pool.reset(RESERVED_HIGH)?;
    work()?;
    stream.synchronize()?;
    report(stream)
    // ANCHOR_END: watch
}

/// Measures how far apart vectors are. It allocates all its buffers at the start, so measuring allocates nothing.
pub struct Distances {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    difference: CudaSlice<f32>,
    sum: CudaSlice<f32>,
}

impl Distances {
    /// Creates the buffers for vectors of at most `longest` elements.
    ///
    /// # Errors
    /// Fails if `longest` is 0. Also returns any error from the driver.
    pub fn new(stream: &Arc<CudaStream>, longest: usize) -> anyhow::Result<Self> {
        ensure!(longest > 0, "`longest` must be at least 1");
        // ANCHOR: new
        // Load the kernels, and allocate both buffers:
        // 1. `difference` has room for a vector of exactly `longest` elements: `squared` rejects longer ones;
        // 2. `sum` has room for one number.

        Ok(Self {
            stream: stream.clone(),
            kernels: Kernels::load(stream.context())?,
            difference: stream.alloc_zeros(longest)?,
            sum: stream.alloc_zeros(1)?,
        })
        // ANCHOR_END: new
    }

    /// Returns the sum of the squares of the elements of a − b. Both have at least one element. Waits for the GPU.
    ///
    /// # Errors
    /// Fails if a and b differ in length or are longer than `longest`. Also returns any error from the driver.
    pub fn squared(&mut self, a: &CudaView<f32>, b: &CudaView<f32>) -> anyhow::Result<f32> {
        let (len, room) = (a.len(), self.difference.len());
        ensure!(len == b.len(), "vectors of {len} and {} elements", b.len());
        ensure!(len <= room, "vectors of {len} elements, where there is room for {room}");
        // ANCHOR: squared
        // Compute the squared distance:
        // 1. nothing is allocated, because the buffers already exist;
        // 2. a buffer may be longer than these vectors, and may contain values from earlier ones;
        // 3. `a` and `b` are only read;
        // 4. the GPU computes the sum, and only the sum is copied to the host.
        let Self { stream, kernels, difference, sum } = self;
        let mut difference = difference.slice_mut(..len);
        stream.memcpy_dtod(a, &mut difference)?;
        kernels.axpy(stream, &mut difference, b, -1.0)?;
        kernels.sum_of_squares(stream, sum, &difference)?;
        Ok(stream.clone_dtoh(sum)?[0])
        // ANCHOR_END: squared
    }
}

/// Frees a buffer that its own stream and `user`, another stream on the same GPU, may still be using. Its memory
/// returns to the pool once both are done. cudarc's event tracking may be off. Returns without waiting for the GPU.
///
/// # Errors
/// Returns any error from the driver.
pub fn release(buffer: CudaSlice<f32>, user: &CudaStream) -> anyhow::Result<()> {
    // ANCHOR: release
    // Free the buffer after the work on both streams:
    // 1. the buffer is freed after all work that has been enqueued on its own stream and on `user` so far;
    // 2. its bytes return to the pool;
    // 3. the host does not wait for the GPU.
    buffer.stream().join(user)?;
    drop(buffer);
    Ok(())
    // ANCHOR_END: release
}

/// The sizes of one layer's buffers, in elements.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// Parameters live as long as the run.
    pub parameters: usize,
    /// Activations live for one step. In the next step, they may have another size.
    pub activations: usize,
}

/// The buffers of all layers, in the order of the layers.
pub struct Buffers {
    /// One buffer for each layer's parameters.
    pub parameters: Vec<CudaSlice<f32>>,
    /// One buffer for each layer's activations.
    pub activations: Vec<CudaSlice<f32>>,
}

/// Allocates buffers of zeros for all layers. They do not fragment the pool: when the activations are freed, a buffer as long as
/// all of them fits in their place.
///
/// # Errors
/// Returns the errors of the driver.
pub fn allocate(stream: &Arc<CudaStream>, layers: &[Layer]) -> anyhow::Result<Buffers> {
    // ANCHOR: allocate
    // Allocate the buffers of all layers:
    // 1. each layer has a buffer for its parameters and a buffer for its activations, both all zeros;
    // 2. in an empty pool, the memory of all activations becomes one hole when they are freed.
    let parameters =
        layers.iter().map(|layer| stream.alloc_zeros(layer.parameters)).collect::<Result<_, _>>()?;
    let activations =
        layers.iter().map(|layer| stream.alloc_zeros(layer.activations)).collect::<Result<_, _>>()?;
    Ok(Buffers { parameters, activations })
    // ANCHOR_END: allocate
}
