//! Host memory that GPUs copy from, and how to have the next batch there in time.
//!
//! What a `Vec` has is pageable: the operating system may move it, so a GPU can't copy from it by itself. The driver takes it into
//! memory of its own first, or waits. Pinned memory stays where it is, and a copy from or to it is truly asynchronous: the call
//! returns, and the GPU copies when its stream comes to it. Until then the buffer is not the host's to use: cudarc's
//! `as_slice` and `as_mut_slice` wait for that.

use std::sync::Arc;

use cudarc::driver::sys::CU_MEMHOSTALLOC_WRITECOMBINED;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, PinnedHostSlice, UnifiedSlice};
use lab::Kernels;

/// Pinned memory as the host uses all its memory: through its caches.
pub const CACHED: u32 = 0;
/// Pinned memory that the host's caches leave out, as cudarc's `alloc_pinned` has it. Writing it front to back is fast, and so is
/// copying from it; but each read by the host goes all the way to memory, and is many times slower.
pub const WRITE_COMBINED: u32 = CU_MEMHOSTALLOC_WRITECOMBINED;

/// `len` zeros in pinned memory of this kind. That takes long, and may make the GPU wait: do it once.
fn pinned(stream: &CudaStream, len: usize, kind: u32) -> anyhow::Result<PinnedHostSlice<f32>> {
    // SAFETY: all of it is written before it is given to anybody.
    let mut memory = unsafe { stream.context().alloc_pinned_with_flags(len, kind) }?;
    memory.as_mut_slice()?.fill(0.0);
    Ok(memory)
}

/// Brings batches to a GPU, so that one is on its way while another is worked on.
pub struct Feed {
    copies: Arc<CudaStream>,
    slots: [Slot; 2],
    next: usize,
}

/// Where a batch is on the host, and on the GPU.
struct Slot {
    staged: PinnedHostSlice<f32>,
    arrived: CudaSlice<f32>,
}

impl Slot {
    /// Room for a batch of `len` elements.
    fn new(stream: &Arc<CudaStream>, len: usize) -> anyhow::Result<Self> {
        // ANCHOR: new
        // Allocate both buffers: pinned memory that the host only writes, and memory of the GPU.
        // Which kind of pinned memory? `pinned(stream, len, kind)` is above.
        Ok(Self { staged: pinned(stream, len, WRITE_COMBINED)?, arrived: stream.alloc_zeros(len)? })
        // ANCHOR_END: new
    }
}

impl Feed {
    /// For batches of `len` elements, which are copied by the stream `copies`.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn new(copies: &Arc<CudaStream>, len: usize) -> anyhow::Result<Self> {
        let slots = [Slot::new(copies, len)?, Slot::new(copies, len)?];
        Ok(Self { copies: copies.clone(), slots, next: 0 })
    }

    /// The next batch: `fill` writes it, and it goes to the GPU. Returns once it is under way, without waiting for the batch
    /// before it. What is enqueued with the buffer comes after the copy, on any stream of the GPU.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn next(&mut self, fill: impl FnOnce(&mut [f32])) -> anyhow::Result<&CudaSlice<f32>> {
        // ANCHOR: next
        // Take the slot whose turn it is, let `fill` write it, and start the copy.
        // `self.next` counts batches. `staged.as_mut_slice()` waits until the last copy out of this buffer is done, and
        // `self.copies.memcpy_htod(&staged, &mut arrived)` for what the GPU still does with the batch that lies there.
        let slot = &mut self.slots[self.next % 2];
        self.next += 1;
        fill(slot.staged.as_mut_slice()?);
        self.copies.memcpy_htod(&slot.staged, &mut slot.arrived)?;
        Ok(&slot.arrived)
        // ANCHOR_END: next
    }
}

/// Brings results to the host.
pub struct Results {
    landing: PinnedHostSlice<f32>,
}

impl Results {
    /// For `len` results on this stream's GPU.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn new(stream: &CudaStream, len: usize) -> anyhow::Result<Self> {
        // ANCHOR: results
        // Allocate the buffer: pinned memory that the host reads.
        // Which kind is it here?
        Ok(Self { landing: pinned(stream, len, CACHED)? })
        // ANCHOR_END: results
    }

    /// Starts to copy `values` to the host, in the order of the stream; they are as many as was said. Returns at once.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn fetch(&mut self, stream: &Arc<CudaStream>, values: &CudaView<f32>) -> anyhow::Result<()> {
        // ANCHOR: fetch
        // Start the copy, so that the host is free until it is done.
        // `stream.memcpy_dtoh(values, &mut to)` takes a `Vec` as well: does it return at once then?
        Ok(stream.memcpy_dtoh(values, &mut self.landing)?)
        // ANCHOR_END: fetch
    }

    /// What was fetched last. Waits for the copy.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn values(&self) -> anyhow::Result<&[f32]> {
        Ok(self.landing.as_slice()?)
    }
}

/// The sum of factor × `input`, where the GPU multiplies and the host sums, both in `shared`: unified memory, which host
/// and GPU use at the same address, and no line of the program copies. Afterwards `shared` has the products.
///
/// # Errors
/// What the driver answers.
pub fn scaled_sum(
    stream: &CudaStream,
    kernels: &Kernels,
    shared: &mut UnifiedSlice<f32>,
    input: &[f32],
    factor: f32,
) -> anyhow::Result<f32> {
    // ANCHOR: scaled_sum
    // Write the input to `shared`, let the GPU multiply it there, and sum what is there then.
    // `shared` has `as_slice` and `as_mut_slice` as pinned memory has, and they wait in the same way.
    // `kernels.scale(stream, shared, factor)` takes it as it takes a buffer of the GPU.
    shared.as_mut_slice()?.copy_from_slice(input);
    kernels.scale(stream, shared, factor)?;
    Ok(shared.as_slice()?.iter().sum())
    // ANCHOR_END: scaled_sum
}
