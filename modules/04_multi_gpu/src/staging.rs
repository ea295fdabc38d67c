//! Host memory that GPUs can copy from, and a feed that copies the next batch in time.
//!
//! A `Vec` is in pageable memory, which the system may move; pinned memory stays where it is. Only copies to or from
//! pinned memory are truly asynchronous.

use std::sync::Arc;

use cudarc::driver::sys::CU_MEMHOSTALLOC_WRITECOMBINED;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, PinnedHostSlice, UnifiedSlice};
use lab::Kernels;

/// Pinned memory that the host accesses through its caches, like ordinary memory.
pub const CACHED: u32 = 0;
/// Pinned memory that bypasses the host's caches; cudarc's `alloc_pinned` makes this kind. Writing it from start to end
/// is fast. Every host read goes to memory, and is many times slower.
pub const WRITE_COMBINED: u32 = CU_MEMHOSTALLOC_WRITECOMBINED;

/// Allocates `len` zeros in pinned memory of this kind. This is slow, and may make the GPU wait, so do it once.
fn pinned(stream: &CudaStream, len: usize, kind: u32) -> anyhow::Result<PinnedHostSlice<f32>> {
    // SAFETY: all of the memory is written before it is returned.
    let mut memory = unsafe { stream.context().alloc_pinned_with_flags(len, kind) }?;
    memory.as_mut_slice()?.fill(0.0);
    Ok(memory)
}

/// Copies batches to a GPU, each while the GPU works on the batch before it.
pub struct Feed {
    copies: Arc<CudaStream>,
    slots: [Slot; 2],
    next: usize,
}

/// Buffers for one batch, on the host and on the GPU.
struct Slot {
    staged: PinnedHostSlice<f32>,
    arrived: CudaSlice<f32>,
}

impl Slot {
    /// Allocates buffers for a batch of `len` elements.
    fn new(stream: &Arc<CudaStream>, len: usize) -> anyhow::Result<Self> {
        // ANCHOR: new
        // Allocate both buffers of a slot:
        // 1. `staged` is pinned memory of the kind that is best if the host only writes to it;
        // 2. `arrived` is GPU memory; both have `len` elements.
        todo!("Allocate both buffers of a slot")
        // ANCHOR_END: new
    }
}

impl Feed {
    /// Creates a feed for batches of `len` elements, which it copies on the stream `copies`.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn new(copies: &Arc<CudaStream>, len: usize) -> anyhow::Result<Self> {
        let slots = [Slot::new(copies, len)?, Slot::new(copies, len)?];
        Ok(Self { copies: copies.clone(), slots, next: 0 })
    }

    /// Lets `fill` write the next batch, and copies it to the GPU. Returns once the copy is enqueued, without waiting for the previous
    /// batch. With cudarc's event tracking on, later work on the returned buffer runs after the copy, on any of the GPU's streams.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn next(&mut self, fill: impl FnOnce(&mut [f32])) -> anyhow::Result<&CudaSlice<f32>> {
        // ANCHOR: next
        // Bring the next batch to the GPU:
        // 1. the slots take turns;
        // 2. `fill` never overwrites a batch that is yet to be copied, and the copy never overwrites one that the GPU is still using;
        // 3. the copy starts after `fill` is done;
        // 4. the host does not wait for the copy that it has just enqueued, or for the one before it;
        // 5. each batch takes one copy, and nothing is allocated.
        todo!("Bring the next batch to the GPU")
        // ANCHOR_END: next
    }
}

/// Copies results to the host.
pub struct Results {
    landing: PinnedHostSlice<f32>,
}

impl Results {
    /// Allocates a buffer for `len` results from this stream's GPU.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn new(stream: &CudaStream, len: usize) -> anyhow::Result<Self> {
        // ANCHOR: results
        // Allocate the buffer in which results arrive:
        // 1. it is pinned memory of the kind that is best if the host reads from it;
        // 2. it has `len` elements.
        todo!("Allocate the buffer in which results arrive")
        // ANCHOR_END: results
    }

    /// Starts copying `values` to the host, in stream order. Their number is the `len` that was passed to `new`. Returns without waiting.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn fetch(&mut self, stream: &Arc<CudaStream>, values: &CudaView<f32>) -> anyhow::Result<()> {
        // ANCHOR: fetch
        // Start the copy to `landing`:
        // 1. it runs after all work that is already in the stream;
        // 2. it is one copy, and the host does not wait for it.
        todo!("Start the copy to `landing`")
        // ANCHOR_END: fetch
    }

    /// Returns the values of the last `fetch`. Waits for the copy.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn values(&self) -> anyhow::Result<&[f32]> {
        Ok(self.landing.as_slice()?)
    }
}

/// Returns the sum of factor × `input`. The GPU multiplies and the host sums, both in `shared`: unified memory, which
/// the host and the GPUs access at the same address. Afterwards, `shared` holds the products.
///
/// # Errors
/// Returns any error from the driver.
pub fn scaled_sum(
    stream: &CudaStream,
    kernels: &Kernels,
    shared: &mut UnifiedSlice<f32>,
    input: &[f32],
    factor: f32,
) -> anyhow::Result<f32> {
    // ANCHOR: scaled_sum
    // Multiply on the GPU and sum on the host, in the same memory:
    // 1. the GPU multiplies in `shared`, and the program makes no copies to or from a GPU;
    // 2. the host sums the products that the GPU wrote to `shared`, and they stay there.
    todo!("Multiply on the GPU and sum on the host, in the same memory")
    // ANCHOR_END: scaled_sum
}
