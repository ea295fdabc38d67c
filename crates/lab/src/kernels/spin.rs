//! The kernel of `spin.cu`, which only takes time.

use cudarc::driver::{CudaStream, LaunchConfig};

use super::Kernels;

impl Kernels {
    /// Keeps the stream busy for at least this many nanoseconds of the GPU's global timer, without touching memory. Use
    /// it to delay a producer: code that forgets to wait for the producer then reads too early on any GPU.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn spin(&self, stream: &CudaStream, nanoseconds: u64) -> anyhow::Result<()> {
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel is spin(unsigned long long) and uses no memory.
        unsafe { self.call("spin", &self.spin, stream)?.launch(one, &[&nanoseconds]) }
    }
}
