//! The kernels of `half.cu`, which convert between `f32` and `f16`.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use half::f16;

use super::Kernels;
use super::launch::elements;

impl Kernels {
    /// Computes `y[i] = factor · x[i]`, and rounds it to the nearest `f16`, which is infinity from 65520 on. Both have the
    /// same length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn to_f16(
        &self,
        stream: &CudaStream,
        y: &mut impl DevicePtrMut<f16>,
        x: &impl DevicePtr<f32>,
        factor: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("to_f16", &self.to_f16, stream)?;
        let n = call.index("y", y.len())?;
        call.expect_length("x", x.len(), y.len())?;
        let (x, _read) = x.device_ptr(stream);
        let (y, _written) = y.device_ptr_mut(stream);
        // SAFETY: the kernel is to_f16(unsigned short*, const float*, float, unsigned); both buffers hold n elements.
        unsafe { call.launch(elements(n), &[&y, &x, &factor, &n]) }
    }

    /// Computes `y[i] = factor · x[i]` in `f32`. Both have the same length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn from_f16(
        &self,
        stream: &CudaStream,
        y: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f16>,
        factor: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("from_f16", &self.from_f16, stream)?;
        let n = call.index("y", y.len())?;
        call.expect_length("x", x.len(), y.len())?;
        let (x, _read) = x.device_ptr(stream);
        let (y, _written) = y.device_ptr_mut(stream);
        // SAFETY: the kernel is from_f16(float*, const unsigned short*, float, unsigned); both buffers hold n elements.
        unsafe { call.launch(elements(n), &[&y, &x, &factor, &n]) }
    }
}
