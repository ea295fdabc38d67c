//! Kernels of `vector.cu`: one number of a vector, and a vector by one number.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::{Call, elements, reduction};

impl Kernels {
    /// `sum[0]` = the sum of all `x[i]²`, in an order that depends on the length alone; 0 if there are none.
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

    /// `most[0]` = the largest `x[i]`, −∞ if there are none. A NaN is passed over.
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

    /// `x[i] = exp(x[i] − shift[0])`.
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

    /// `x[i] /= divisor[0]`.
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

    /// Adds to `count[0]` the number of elements that are infinite or not a number.
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
        // SAFETY: the kernel is count_not_finite(unsigned*, const float*, unsigned); 1 and n elements.
        unsafe { call.launch(elements(n), &[&count, &x, &n]) }
    }
}

/// Each element by the one number, named `name`, that lies in another buffer.
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
    // SAFETY: both are (float*, const float*, unsigned); n elements and 1.
    unsafe { call.launch(elements(n), &[&x, &number, &n]) }
}
