//! The kernels of `rows.cu`, which put rows in another order.

use anyhow::ensure;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::{Call, elements};
use super::shape::Matrix;

impl Kernels {
    /// Computes `out[i] = x[indices[i]]` for the rows of two matrices with this number of columns. `out` has as many rows
    /// as there are indices. A row whose index is not a row of `x` becomes NaN.
    ///
    /// # Errors
    /// See [`Kernels`]. Also fails if there are no columns, or if `x` is not a number of whole rows.
    pub fn gather_rows(
        &self,
        stream: &CudaStream,
        out: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
        indices: &impl DevicePtr<u32>,
        columns: usize,
    ) -> anyhow::Result<()> {
        let call = self.call("gather_rows", &self.gather_rows, stream)?;
        let moved = call.expect_matrix("out", out.len(), Matrix { rows: indices.len(), columns })?;
        let rows_in = whole_rows(&call, "x", x.len(), moved.1)?;
        launch(&call, out, x, indices, moved, rows_in)
    }

    /// Computes `out[indices[i]] = x[i]` for the rows of two matrices with this number of columns. `x` has as many rows
    /// as there are indices, which differ from each other. A row whose index is not a row of `out` is dropped, and a row
    /// of `out` without an index stays as it is.
    ///
    /// # Errors
    /// See [`Kernels`]. Also fails if there are no columns, or if `out` is not a number of whole rows.
    pub fn scatter_rows(
        &self,
        stream: &CudaStream,
        out: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
        indices: &impl DevicePtr<u32>,
        columns: usize,
    ) -> anyhow::Result<()> {
        let call = self.call("scatter_rows", &self.scatter_rows, stream)?;
        let moved = call.expect_matrix("x", x.len(), Matrix { rows: indices.len(), columns })?;
        let rows_out = whole_rows(&call, "out", out.len(), moved.1)?;
        launch(&call, out, x, indices, moved, rows_out)
    }

    /// Computes `out[r]`, the sum of the rows `x[i]` with `indices[i] == r`, for two matrices with this number of columns.
    /// `x` has as many rows as there are indices. This is the gradient of `gather_rows`.
    ///
    /// # Errors
    /// See [`Kernels`]. Also fails if there are no columns, or if `out` is not a number of whole rows.
    pub fn sum_rows(
        &self,
        stream: &CudaStream,
        out: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
        indices: &impl DevicePtr<u32>,
        columns: usize,
    ) -> anyhow::Result<()> {
        let call = self.call("sum_rows", &self.sum_rows, stream)?;
        let (rows, columns) = call.expect_matrix("x", x.len(), Matrix { rows: indices.len(), columns })?;
        let rows_out = whole_rows(&call, "out", out.len(), columns)?;
        let (x, _x_read) = x.device_ptr(stream);
        let (indices, _indices_read) = indices.device_ptr(stream);
        let (out, _written) = out.device_ptr_mut(stream);
        // SAFETY: the kernel is sum_rows(float*, const float*, const unsigned*, unsigned, unsigned, unsigned); the
        // buffers hold rows_out × columns, rows × columns, and rows elements.
        unsafe {
            call.launch(elements(rows_out * columns), &[&out, &x, &indices, &rows, &rows_out, &columns])
        }
    }
}

/// Returns the number of rows in a matrix, which must not have a partial one.
fn whole_rows(call: &Call<'_>, argument: &str, len: usize, columns: u32) -> anyhow::Result<u32> {
    let (columns, kernel) = (columns as usize, call.kernel);
    ensure!(
        columns > 0 && len.is_multiple_of(columns),
        "kernel `{kernel}`: `{argument}` has {len} elements, which are not whole rows of {columns}"
    );
    call.index(argument, len)?;
    call.index(argument, len / columns)
}

/// Launches a kernel that moves one row for each index. An index must be below `limit`, the number of rows in the other matrix.
fn launch(
    call: &Call<'_>,
    out: &mut impl DevicePtrMut<f32>,
    x: &impl DevicePtr<f32>,
    indices: &impl DevicePtr<u32>,
    (rows, columns): (u32, u32),
    limit: u32,
) -> anyhow::Result<()> {
    let (x, _x_read) = x.device_ptr(call.stream);
    let (indices, _indices_read) = indices.device_ptr(call.stream);
    let (out, _written) = out.device_ptr_mut(call.stream);
    // SAFETY: both kernels are (float*, const float*, const unsigned*, unsigned, unsigned, unsigned). `indices` holds rows
    // elements. The matrix with a row per index holds rows × columns elements, and the other matrix holds limit × columns.
    // The kernel checks each index.
    unsafe { call.launch(elements(rows * columns), &[&out, &x, &indices, &rows, &limit, &columns]) }
}
