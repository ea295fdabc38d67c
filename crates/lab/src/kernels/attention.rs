//! The kernels of `attention.cu`. [`crate::Attention`] calls them.

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::elements;
use super::shape::Matrix;

/// The running result of queries, whose softmax is computed online.
#[derive(Debug)]
pub(crate) struct Running {
    /// For each query, the sum of the values, weighted by the exponentials of their scores.
    pub(crate) output: CudaSlice<f32>,
    /// For each query, its largest score.
    pub(crate) maximum: CudaSlice<f32>,
    /// For each query, the sum of the exponentials.
    pub(crate) sum: CudaSlice<f32>,
}

impl Kernels {
    /// Folds a block into the running result: all its keys, and then all its values. There is a row for each query in
    /// `shape`. If `causal`, query `i` sees only the keys up to `i`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub(crate) fn attend(
        &self,
        stream: &CudaStream,
        running: &mut Running,
        queries: &impl DevicePtr<f32>,
        keys_values: &impl DevicePtr<f32>,
        shape: Matrix,
        causal: bool,
    ) -> anyhow::Result<()> {
        let call = self.call("attend", &self.attend, stream)?;
        let (rows, width) = call.expect_matrix("queries", queries.len(), shape)?;
        call.expect_length("output", running.output.len(), queries.len())?;
        let keys = keys_values.len() / (2 * shape.columns).max(1);
        call.expect_matrix(
            "keys_values",
            keys_values.len(),
            Matrix { rows: 2 * keys, columns: shape.columns },
        )?;
        let (keys, causal) = (call.index("keys_values", keys)?, u32::from(causal));
        let scale = 1.0 / (shape.columns as f32).sqrt();
        let (queries, _queries_read) = queries.device_ptr(stream);
        let (keys_values, _keys_values_read) = keys_values.device_ptr(stream);
        let (output, _output_written) = running.output.device_ptr_mut(stream);
        let (maximum, _maximum_written) = running.maximum.device_ptr_mut(stream);
        let (sum, _sum_written) = running.sum.device_ptr_mut(stream);
        // SAFETY: the kernel is attend(float*, float*, float*, const float*, const float*, float, unsigned, unsigned,
        // unsigned, unsigned); the buffers hold rows × width, rows, rows, rows × width, and 2 × keys × width elements.
        unsafe {
            call.launch(
                elements(rows),
                &[&output, &maximum, &sum, &queries, &keys_values, &scale, &rows, &keys, &width, &causal],
            )
        }
    }

    /// Computes `matrix[row][column] /= divisors[row]`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn divide_rows(
        &self,
        stream: &CudaStream,
        matrix: &mut impl DevicePtrMut<f32>,
        divisors: &impl DevicePtr<f32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("divide_rows", &self.divide_rows, stream)?;
        let (rows, columns) = call.expect_matrix("matrix", matrix.len(), shape)?;
        call.expect_length("divisors", divisors.len(), shape.rows)?;
        let (divisors, _read) = divisors.device_ptr(stream);
        let (matrix, _written) = matrix.device_ptr_mut(stream);
        // SAFETY: the kernel is divide_rows(float*, const float*, unsigned, unsigned); the buffers hold rows × columns and
        // rows elements.
        unsafe { call.launch(elements(rows * columns), &[&matrix, &divisors, &rows, &columns]) }
    }
}
