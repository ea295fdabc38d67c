//! The kernels of `vector.cu`: some reduce a vector to one number, and others apply one number to each element of a
//! vector.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::{Call, elements, reduction};

impl Kernels {
    /// Computes `sum[0]`, the sum of all `x[i]²`, or 0 if there are none. The order depends only on the length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn sum_of_squares(
        &self,
        stream: &CudaStream,
        sum: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        reduction(&self.call("sum_of_squares", &self.sum_of_squares, stream)?, "sum", sum, x)
    }

    /// Computes `most[0]`, the largest `x[i]`, or −∞ if there are none. NaNs are ignored.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn maximum(
        &self,
        stream: &CudaStream,
        most: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        reduction(&self.call("maximum", &self.maximum, stream)?, "most", most, x)
    }

    /// Computes `x[i] = exp(x[i] − shift[0])`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn exp_minus(
        &self,
        stream: &CudaStream,
        x: &mut impl DevicePtrMut<f32>,
        shift: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        by_one_number(&self.call("exp_minus", &self.exp_minus, stream)?, x, "shift", shift)
    }

    /// Computes `x[i] /= divisor[0]`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn divide(
        &self,
        stream: &CudaStream,
        x: &mut impl DevicePtrMut<f32>,
        divisor: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        by_one_number(&self.call("divide", &self.divide, stream)?, x, "divisor", divisor)
    }

    /// Adds to `count[0]` the number of elements that are infinite or NaN.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn count_not_finite(
        &self,
        stream: &CudaStream,
        count: &mut impl DevicePtrMut<u32>,
        x: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        let call = self.call("count_not_finite", &self.count_not_finite, stream)?;
        let n = call.index("x", x.len())?;
        call.expect_length("count", count.len(), 1)?;
        let (x, _read) = x.device_ptr(stream);
        let (count, _written) = count.device_ptr_mut(stream);
        // SAFETY: the kernel is count_not_finite(unsigned*, const float*, unsigned); the buffers hold 1 and n elements.
        unsafe { call.launch(elements(n), &[&count, &x, &n]) }
    }
}

/// Launches a kernel that combines each element with a number from a separate buffer. `name` is the number's
/// argument.
fn by_one_number(
    call: &Call<'_>,
    x: &mut impl DevicePtrMut<f32>,
    name: &str,
    number: &impl DevicePtr<f32>,
) -> anyhow::Result<()> {
    let n = call.index("x", x.len())?;
    call.expect_length(name, number.len(), 1)?;
    let (number, _read) = number.device_ptr(call.stream);
    let (x, _written) = x.device_ptr_mut(call.stream);
    // SAFETY: both kernels are (float*, const float*, unsigned); the buffers hold n and 1 elements.
    unsafe { call.launch(elements(n), &[&x, &number, &n]) }
}
