//! The kernels of `transformer.cu`: norms, dropout, and GELU.

use anyhow::ensure;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::elements;
use super::shape::Matrix;
use crate::random::SplitMix64;

/// A small number that keeps the norm of a row of zeros finite.
const EPSILON: f32 = 1e-5;

/// Which elements of a buffer are dropped. Each element has a random number, which depends only on the seed and on the
/// element's index in the whole buffer. So a rank with a part of the buffer drops the same elements as one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The seed of the random numbers. Use another one in each layer and in each step.
    pub seed: u64,
    /// The probability that an element is dropped, from 0 to below 1.
    pub probability: f32,
}

impl Dropout {
    /// Returns for each of the first `len` elements whether it is dropped.
    pub fn mask(self, len: usize) -> Vec<bool> {
        let mut random = SplitMix64::new(self.seed);
        (0..len).map(|_| random.next_u64() >> 32 < u64::from(self.threshold())).collect()
    }

    /// Returns the factor of the elements that are not dropped, which keeps the mean.
    pub fn factor(self) -> f32 {
        1.0 / (1.0 - self.probability)
    }

    fn threshold(self) -> u32 {
        (f64::from(self.probability) * f64::powi(2.0, 32)) as u32
    }
}

impl Kernels {
    /// Divides each row of `x` by the square root of the mean of its squares, and writes the result to `y` (RMSNorm,
    /// without weights). A row's result does not depend on the other rows.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn rms_norm(
        &self,
        stream: &CudaStream,
        y: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("rms_norm", &self.rms_norm, stream)?;
        let (rows, columns) = call.expect_matrix("y", y.len(), shape)?;
        call.expect_matrix("x", x.len(), shape)?;
        let (x, _read) = x.device_ptr(stream);
        let (y, _written) = y.device_ptr_mut(stream);
        // SAFETY: the kernel is rms_norm(float*, const float*, float, unsigned, unsigned); both buffers hold
        // rows × columns elements.
        unsafe { call.launch(elements(rows), &[&y, &x, &EPSILON, &rows, &columns]) }
    }

    /// Drops elements of `x`, in place: `x[i]` is element `first + i` of the whole buffer. A dropped element becomes 0,
    /// and each other element is multiplied by [`Dropout::factor`].
    ///
    /// # Errors
    /// Fails if the probability is not from 0 to below 1. Also see [`Kernels`].
    pub fn dropout(
        &self,
        stream: &CudaStream,
        x: &mut impl DevicePtrMut<f32>,
        dropout: Dropout,
        first: usize,
    ) -> anyhow::Result<()> {
        let call = self.call("dropout", &self.dropout, stream)?;
        let n = call.index("x", x.len())?;
        let Dropout { seed, probability } = dropout;
        ensure!(
            (0.0..1.0).contains(&probability),
            "kernel `dropout`: the probability is {probability}, expected 0 to below 1"
        );
        let (first, threshold, factor) = (first as u64, dropout.threshold(), dropout.factor());
        let (x, _written) = x.device_ptr_mut(stream);
        // SAFETY: the kernel is dropout(float*, unsigned long long, unsigned long long, unsigned, float, unsigned), and
        // `x` holds n elements.
        unsafe { call.launch(elements(n), &[&x, &seed, &first, &threshold, &factor, &n]) }
    }

    /// Normalizes each row of `x` to mean 0 and variance 1, multiplies each column by its `gain`, and writes the result to
    /// `y` (LayerNorm, J. Ba and others, 2016, arXiv 1607.06450, without biases). Keeps the normalized rows and one divided
    /// by each row's standard deviation for the backward pass.
    ///
    /// # Errors
    /// See [`Kernels`].
    #[expect(clippy::too_many_arguments, reason = "the kernel has three results")]
    pub fn layer_norm(
        &self,
        stream: &CudaStream,
        y: &mut impl DevicePtrMut<f32>,
        normed: &mut impl DevicePtrMut<f32>,
        inverse: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
        gain: &impl DevicePtr<f32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("layer_norm", &self.layer_norm, stream)?;
        let (rows, columns) = call.expect_matrix("x", x.len(), shape)?;
        call.expect_length("y", y.len(), x.len())?;
        call.expect_length("normed", normed.len(), x.len())?;
        call.expect_length("inverse", inverse.len(), shape.rows)?;
        call.expect_length("gain", gain.len(), shape.columns)?;
        let (x, _x_read) = x.device_ptr(stream);
        let (gain, _gain_read) = gain.device_ptr(stream);
        let (y, _y_written) = y.device_ptr_mut(stream);
        let (normed, _normed_written) = normed.device_ptr_mut(stream);
        let (inverse, _inverse_written) = inverse.device_ptr_mut(stream);
        // SAFETY: the kernel is layer_norm(float*, float*, float*, const float*, const float*, float, unsigned, unsigned),
        // and the lengths have been checked.
        unsafe { call.launch(elements(rows), &[&y, &normed, &inverse, &x, &gain, &EPSILON, &rows, &columns]) }
    }

    /// Adds the gradient of [`layer_norm`](Self::layer_norm)'s input to `x_gradient`. `normed` and `inverse` are from the
    /// forward pass.
    ///
    /// # Errors
    /// See [`Kernels`].
    #[expect(clippy::too_many_arguments, reason = "the kernel needs what the forward pass has kept")]
    pub fn layer_norm_gradient(
        &self,
        stream: &CudaStream,
        x_gradient: &mut impl DevicePtrMut<f32>,
        y_gradient: &impl DevicePtr<f32>,
        normed: &impl DevicePtr<f32>,
        inverse: &impl DevicePtr<f32>,
        gain: &impl DevicePtr<f32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("layer_norm_gradient", &self.layer_norm_gradient, stream)?;
        let (rows, columns) = call.expect_matrix("x_gradient", x_gradient.len(), shape)?;
        call.expect_length("y_gradient", y_gradient.len(), x_gradient.len())?;
        call.expect_length("normed", normed.len(), x_gradient.len())?;
        call.expect_length("inverse", inverse.len(), shape.rows)?;
        call.expect_length("gain", gain.len(), shape.columns)?;
        let (y_gradient, _y_read) = y_gradient.device_ptr(stream);
        let (normed, _normed_read) = normed.device_ptr(stream);
        let (inverse, _inverse_read) = inverse.device_ptr(stream);
        let (gain, _gain_read) = gain.device_ptr(stream);
        let (x_gradient, _written) = x_gradient.device_ptr_mut(stream);
        // SAFETY: the kernel is layer_norm_gradient(float*, const float*, const float*, const float*, const float*,
        // unsigned, unsigned), and the lengths have been checked.
        unsafe {
            call.launch(
                elements(rows),
                &[&x_gradient, &y_gradient, &normed, &inverse, &gain, &rows, &columns],
            )
        }
    }

    /// Computes `dots[column]`, the sum of `a[row][column] · b[row][column]` over the rows.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn column_dots(
        &self,
        stream: &CudaStream,
        dots: &mut impl DevicePtrMut<f32>,
        a: &impl DevicePtr<f32>,
        b: &impl DevicePtr<f32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("column_dots", &self.column_dots, stream)?;
        let (rows, columns) = call.expect_matrix("a", a.len(), shape)?;
        call.expect_length("b", b.len(), a.len())?;
        call.expect_length("dots", dots.len(), shape.columns)?;
        let (a, _a_read) = a.device_ptr(stream);
        let (b, _b_read) = b.device_ptr(stream);
        let (dots, _written) = dots.device_ptr_mut(stream);
        // SAFETY: the kernel is column_dots(float*, const float*, const float*, unsigned, unsigned); the buffers hold
        // columns, rows × columns, and rows × columns elements.
        unsafe { call.launch(elements(columns), &[&dots, &a, &b, &rows, &columns]) }
    }

    /// Computes `y[i] = gelu(x[i])`, approximated by a hyperbolic tangent (D. Hendrycks and K. Gimpel, 2016, arXiv
    /// 1606.08415).
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn gelu(
        &self,
        stream: &CudaStream,
        y: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        let call = self.call("gelu", &self.gelu, stream)?;
        let n = call.index("y", y.len())?;
        call.expect_length("x", x.len(), y.len())?;
        let (x, _read) = x.device_ptr(stream);
        let (y, _written) = y.device_ptr_mut(stream);
        // SAFETY: the kernel is gelu(float*, const float*, unsigned); both buffers hold n elements.
        unsafe { call.launch(elements(n), &[&y, &x, &n]) }
    }

    /// Multiplies `gradient[i]` by the slope of `gelu` at `x[i]`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn gelu_gradient(
        &self,
        stream: &CudaStream,
        gradient: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        let call = self.call("gelu_gradient", &self.gelu_gradient, stream)?;
        let n = call.index("gradient", gradient.len())?;
        call.expect_length("x", x.len(), gradient.len())?;
        let (x, _read) = x.device_ptr(stream);
        let (gradient, _written) = gradient.device_ptr_mut(stream);
        // SAFETY: the kernel is gelu_gradient(float*, const float*, unsigned); both buffers hold n elements.
        unsafe { call.launch(elements(n), &[&gradient, &x, &n]) }
    }
}
