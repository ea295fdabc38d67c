// mistake: the host sums before the GPU multiplies
// fails: staging::host_and_gpu_share_the_memory
// says: and before the host sums?

use std::sync::Arc;

use cudarc::driver::sys::CU_MEMHOSTALLOC_WRITECOMBINED;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, PinnedHostSlice, UnifiedSlice};
use lab::Kernels;

pub const CACHED: u32 = 0;
pub const WRITE_COMBINED: u32 = CU_MEMHOSTALLOC_WRITECOMBINED;

fn pinned(stream: &CudaStream, len: usize, kind: u32) -> anyhow::Result<PinnedHostSlice<f32>> {
    // SAFETY: all of it is written before it is given to anybody.
    let mut memory = unsafe { stream.context().alloc_pinned_with_flags(len, kind) }?;
    memory.as_mut_slice()?.fill(0.0);
    Ok(memory)
}

pub struct Feed {
    copies: Arc<CudaStream>,
    slots: [Slot; 2],
    next: usize,
}

struct Slot {
    staged: PinnedHostSlice<f32>,
    arrived: CudaSlice<f32>,
}

impl Slot {
    fn new(stream: &Arc<CudaStream>, len: usize) -> anyhow::Result<Self> {
        Ok(Self { staged: pinned(stream, len, WRITE_COMBINED)?, arrived: stream.alloc_zeros(len)? })
    }
}

impl Feed {
    pub fn new(copies: &Arc<CudaStream>, len: usize) -> anyhow::Result<Self> {
        let slots = [Slot::new(copies, len)?, Slot::new(copies, len)?];
        Ok(Self { copies: copies.clone(), slots, next: 0 })
    }

    pub fn next(&mut self, fill: impl FnOnce(&mut [f32])) -> anyhow::Result<&CudaSlice<f32>> {
        let slot = &mut self.slots[self.next % 2];
        self.next += 1;
        fill(slot.staged.as_mut_slice()?);
        self.copies.memcpy_htod(&slot.staged, &mut slot.arrived)?;
        Ok(&slot.arrived)
    }
}

pub struct Results {
    landing: PinnedHostSlice<f32>,
}

impl Results {
    pub fn new(stream: &CudaStream, len: usize) -> anyhow::Result<Self> {
        Ok(Self { landing: pinned(stream, len, CACHED)? })
    }

    pub fn fetch(&mut self, stream: &Arc<CudaStream>, values: &CudaView<f32>) -> anyhow::Result<()> {
        Ok(stream.memcpy_dtoh(values, &mut self.landing)?)
    }

    pub fn values(&self) -> anyhow::Result<&[f32]> {
        Ok(self.landing.as_slice()?)
    }
}

pub fn scaled_sum(
    stream: &CudaStream,
    kernels: &Kernels,
    shared: &mut UnifiedSlice<f32>,
    input: &[f32],
    factor: f32,
) -> anyhow::Result<f32> {
    shared.as_mut_slice()?.copy_from_slice(input);
    let sum = shared.as_slice()?.iter().sum();
    kernels.scale(stream, shared, factor)?;
    Ok(sum)
}
