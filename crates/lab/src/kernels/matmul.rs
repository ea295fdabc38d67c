//! The kernels of `matmul.cu`: matrix products.

use anyhow::ensure;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, LaunchConfig};

use super::Kernels;
use super::launch::Call;
use super::shape::{Matrix, Product};

/// The number of rows and columns in a tile of a matrix product, as in `matmul.cu`.
const TILE: u32 = 16;
/// A grid's limit in y (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
const MOST_ROWS_OF_BLOCKS: u32 = 65_535;

impl Kernels {
    /// Computes `c = a · b`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn matmul(
        &self,
        stream: &CudaStream,
        c: &mut impl DevicePtrMut<f32>,
        a: &impl DevicePtr<f32>,
        b: &impl DevicePtr<f32>,
        shape: Product,
    ) -> anyhow::Result<()> {
        product(&self.call("matmul", &self.matmul, stream)?, c, a, b, shape)
    }

    /// Computes `c = aᵀ · b`, where the buffer `a` has k rows and m columns.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn matmul_ta(
        &self,
        stream: &CudaStream,
        c: &mut impl DevicePtrMut<f32>,
        a: &impl DevicePtr<f32>,
        b: &impl DevicePtr<f32>,
        shape: Product,
    ) -> anyhow::Result<()> {
        product(&self.call("matmul_ta", &self.matmul_ta, stream)?, c, a, b, shape)
    }

    /// Computes `c = a · bᵀ`, where the buffer `b` has n rows and k columns.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn matmul_tb(
        &self,
        stream: &CudaStream,
        c: &mut impl DevicePtrMut<f32>,
        a: &impl DevicePtr<f32>,
        b: &impl DevicePtr<f32>,
        shape: Product,
    ) -> anyhow::Result<()> {
        product(&self.call("matmul_tb", &self.matmul_tb, stream)?, c, a, b, shape)
    }
}

/// Launches a matrix product. It may read `a` or `b` as its transpose.
fn product(
    call: &Call<'_>,
    c: &mut impl DevicePtrMut<f32>,
    a: &impl DevicePtr<f32>,
    b: &impl DevicePtr<f32>,
    Product { m, n, k }: Product,
) -> anyhow::Result<()> {
    call.expect_matrix("c", c.len(), Matrix { rows: m, columns: n })?;
    call.expect_matrix("a", a.len(), Matrix { rows: m, columns: k })?;
    call.expect_matrix("b", b.len(), Matrix { rows: k, columns: n })?;
    let (m, n, k) = (call.index("m", m)?, call.index("n", n)?, call.index("k", k)?);
    ensure!(
        m.div_ceil(TILE) <= MOST_ROWS_OF_BLOCKS,
        "kernel `{}`: {m} rows are more than fit in a grid",
        call.kernel
    );
    let (a, _a_read) = a.device_ptr(call.stream);
    let (b, _b_read) = b.device_ptr(call.stream);
    let (c, _written) = c.device_ptr_mut(call.stream);
    let shape = LaunchConfig {
        grid_dim: (n.div_ceil(TILE), m.div_ceil(TILE), 1),
        block_dim: (TILE, TILE, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: all three kernels are (float*, const float*, const float*, unsigned, unsigned, unsigned), for blocks of
    // 16 × 16 threads. The buffers hold m × n, m × k, and k × n elements, whichever of them is read as its transpose.
    unsafe { call.launch(shape, &[&c, &a, &b, &m, &n, &k]) }
}
