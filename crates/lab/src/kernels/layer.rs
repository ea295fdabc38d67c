//! The kernels of `layer.cu`: biases, ReLU, and their gradients.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::elements;
use super::shape::Matrix;

impl Kernels {
    /// Computes `matrix[row][column] += bias[column]`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn add_bias(
        &self,
        stream: &CudaStream,
        matrix: &mut impl DevicePtrMut<f32>,
        bias: &impl DevicePtr<f32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("add_bias", &self.add_bias, stream)?;
        let (rows, columns) = call.expect_matrix("matrix", matrix.len(), shape)?;
        call.expect_length("bias", bias.len(), shape.columns)?;
        let (bias, _read) = bias.device_ptr(stream);
        let (matrix, _written) = matrix.device_ptr_mut(stream);
        // SAFETY: the kernel is add_bias(float*, const float*, unsigned, unsigned); the buffers hold rows × columns and
        // columns elements.
        unsafe { call.launch(elements(rows * columns), &[&matrix, &bias, &rows, &columns]) }
    }

    /// Computes `sums[column]`, the sum over the rows of `matrix[row][column]`, which is the gradient of a bias. The
    /// sums are 0 if there are no rows.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn column_sums(
        &self,
        stream: &CudaStream,
        sums: &mut impl DevicePtrMut<f32>,
        matrix: &impl DevicePtr<f32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("column_sums", &self.column_sums, stream)?;
        let (rows, columns) = call.expect_matrix("matrix", matrix.len(), shape)?;
        call.expect_length("sums", sums.len(), shape.columns)?;
        let (matrix, _read) = matrix.device_ptr(stream);
        let (sums, _written) = sums.device_ptr_mut(stream);
        // SAFETY: the kernel is column_sums(float*, const float*, unsigned, unsigned); the buffers hold columns and
        // rows × columns elements.
        unsafe { call.launch(elements(columns), &[&sums, &matrix, &rows, &columns]) }
    }

    /// Computes `x[i] = max(x[i], 0)`. A NaN stays a NaN.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn relu(&self, stream: &CudaStream, x: &mut impl DevicePtrMut<f32>) -> anyhow::Result<()> {
        let call = self.call("relu", &self.relu, stream)?;
        let n = call.index("x", x.len())?;
        let (x, _written) = x.device_ptr_mut(stream);
        // SAFETY: the kernel is relu(float*, unsigned), and `x` holds n elements.
        unsafe { call.launch(elements(n), &[&x, &n]) }
    }

    /// Sets `gradient[i] = 0` where `activation[i]`, ReLU's result, is 0. Both have the same length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn relu_gradient(
        &self,
        stream: &CudaStream,
        gradient: &mut impl DevicePtrMut<f32>,
        activation: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        let call = self.call("relu_gradient", &self.relu_gradient, stream)?;
        let n = call.index("gradient", gradient.len())?;
        call.expect_length("activation", activation.len(), gradient.len())?;
        let (activation, _read) = activation.device_ptr(stream);
        let (gradient, _written) = gradient.device_ptr_mut(stream);
        // SAFETY: the kernel is relu_gradient(float*, const float*, unsigned); both buffers hold n elements.
        unsafe { call.launch(elements(n), &[&gradient, &activation, &n]) }
    }
}
