//! Checks for the release of a buffer that two streams use.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED;
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream};
use lab::{Expected, Kernels, MemoryPool, ensure, irregular, with_host_waits};

use crate::multi_gpu::pools::release;

/// How long each of the two streams is busy, in nanoseconds.
pub(super) struct Spins {
    pub(super) own: u64,
    pub(super) other: u64,
}

/// The number of elements of the released buffer.
const LEN: usize = 1 << 16;
/// The value that later work writes to the freed memory.
const LATER: f32 = -7.0e7;

/// A released buffer's own stream, and another stream that also uses the buffer.
struct Streams {
    own: Arc<CudaStream>,
    other: Arc<CudaStream>,
    kernels: Kernels,
}

impl Streams {
    fn new() -> anyhow::Result<Self> {
        let own = lab::streams(1)?.remove(0);
        let context = own.context();
        // SAFETY: `release` or a synchronize call must order all uses on different streams, and the check verifies this.
        unsafe { context.disable_event_tracking() };
        let (other, kernels) = (context.new_stream()?, Kernels::load(context)?);
        lab::name_stream(&own, "owner")?;
        lab::name_stream(&other, "user")?;
        kernels.spin(&own, 0)?;
        Ok(Self { own, other, kernels })
    }

    fn both(&self) -> [&Arc<CudaStream>; 2] {
        [&self.own, &self.other]
    }

    fn synchronize(&self) -> anyhow::Result<()> {
        self.other.synchronize()?;
        Ok(self.own.synchronize()?)
    }

    /// Returns a buffer of zeros for each stream.
    fn zeros(&self) -> anyhow::Result<[CudaSlice<f32>; 2]> {
        Ok([self.own.alloc_zeros(LEN)?, self.other.alloc_zeros(LEN)?])
    }

    /// Enqueues a late read of the buffer on each stream. Returns the events after these reads.
    fn read(
        &self,
        buffer: &CudaSlice<f32>,
        spins: &Spins,
        read: &mut [CudaSlice<f32>; 2],
    ) -> anyhow::Result<Vec<CudaEvent>> {
        let mut ends = Vec::new();
        for ((stream, spin), read) in self.both().into_iter().zip([spins.own, spins.other]).zip(read) {
            self.kernels.spin(stream, spin)?;
            self.kernels.axpy(stream, read, buffer, 1.0)?;
            ends.push(stream.record_event(None)?);
        }
        Ok(ends)
    }

    /// Compares the values that each stream read with the buffer's values.
    fn compare(&self, values: &[f32], read: &[CudaSlice<f32>; 2]) -> anyhow::Result<()> {
        const REUSED: &str = "the memory was freed, and used again, before it was read";
        let names = ["its own stream", "the other stream"];
        for ((stream, name), read) in self.both().into_iter().zip(names).zip(read) {
            let name = format!("what {name} read from the buffer");
            Expected::of(&name, values)
                .if_instead(&vec![LATER; LEN], REUSED)
                .if_instead(&vec![0.0; LEN], REUSED)
                .exactly(&stream.clone_dtoh(read)?)?;
        }
        Ok(())
    }
}

/// Releases a buffer that two streams have yet to read, and allocates memory again on both streams. Then compares the
/// values that the streams read.
pub(super) fn released(spins: Spins) -> anyhow::Result<()> {
    let streams = Streams::new()?;
    let pool = MemoryPool::of_gpu(streams.own.context().ordinal())?;
    let values = irregular::integers(0, LEN);
    let mut read = streams.zeros()?;
    streams.synchronize()?;
    let before = pool.figure(USED)?;
    let buffer = streams.own.clone_htod(&values)?;
    streams.own.synchronize()?;
    let in_use = pool.figure(USED)? - before;

    let ends = streams.read(&buffer, &spins, &mut read)?;
    let ((), waits) = with_host_waits(|| release(buffer, &streams.other))?;
    let done = ends.iter().map(CudaEvent::try_is_complete).collect::<Result<Vec<_>, _>>()?;
    ensure!(
        done.contains(&false),
        "`release` returned only when all work was done: make the owner stream wait for the user stream, and not the \
         host{waits}"
    );
    let mut next = streams.zeros()?;
    for (stream, next) in streams.both().into_iter().zip(&mut next) {
        streams.kernels.fill(stream, next, LATER)?;
    }
    streams.synchronize().context("`release` returned, but then the GPU failed")?;
    streams.compare(&values, &read)?;
    drop(next);
    streams.synchronize()?;
    let after = pool.figure(USED)?;
    ensure!(
        after == before,
        "{after} bytes of the pool are in use, expected {before}, as before the buffer was allocated{}",
        match after == before + in_use {
            true => ": its bytes are still in use, so the buffer was never freed",
            false => "",
        }
    );
    Ok(())
}
