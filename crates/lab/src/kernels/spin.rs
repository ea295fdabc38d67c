//! The kernel of `spin.cu`, which takes time and does nothing else.

use cudarc::driver::{CudaStream, LaunchConfig};

use super::Kernels;

impl Kernels {
    /// Keeps the stream busy for at least so many nanoseconds of the GPU's global timer, and touches no memory. Makes a
    /// late producer: what forgets to wait for it then reads too early on any GPU.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn spin(&self, stream: &CudaStream, nanoseconds: u64) -> anyhow::Result<()> {
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel is spin(unsigned long long) and uses no memory.
        unsafe { self.call("spin", &self.spin, stream)?.launch(one, &[&nanoseconds]) }
    }
}
