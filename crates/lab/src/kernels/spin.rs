//! The kernel of `spin.cu`, which only takes time.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{CudaStream, LaunchConfig};

use super::Kernels;
use crate::check::Timelines;

/// The shortest delay that can hide other work, in nanoseconds. Only checks about time use delays this long.
pub(crate) const LONG_DELAY: u64 = 100_000;

/// Whether this process has delayed a stream for [`LONG_DELAY`] or longer.
static HAS_DELAYED: AtomicBool = AtomicBool::new(false);

/// Returns whether this process has delayed a stream for [`LONG_DELAY`] or longer.
pub(crate) fn has_delayed() -> bool {
    HAS_DELAYED.load(Ordering::Relaxed)
}

impl Kernels {
    /// Keeps the stream busy for at least this many nanoseconds of the GPU's global timer, without touching memory. Use
    /// it to delay a producer: code that forgets to wait for the producer then reads too early on any GPU.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn spin(&self, stream: &CudaStream, nanoseconds: u64) -> anyhow::Result<()> {
        if nanoseconds >= LONG_DELAY && !HAS_DELAYED.swap(true, Ordering::Relaxed) {
            Timelines::record()?;
        }
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel is spin(unsigned long long) and uses no memory.
        unsafe { self.call("spin", &self.spin, stream)?.launch(one, &[&nanoseconds]) }
    }
}
