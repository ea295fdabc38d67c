//! The kernels of `elementwise.cu`, which handle each element on its own.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::elements;

impl Kernels {
    /// Computes `x[i] = value`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn fill(
        &self,
        stream: &CudaStream,
        x: &mut impl DevicePtrMut<f32>,
        value: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("fill", &self.fill, stream)?;
        let n = call.index("x", x.len())?;
        let (x, _written) = x.device_ptr_mut(stream);
        // SAFETY: the kernel is fill(float*, float, unsigned), and `x` holds n elements.
        unsafe { call.launch(elements(n), &[&x, &value, &n]) }
    }

    /// Computes `y[i] += a · x[i]`. `x` and `y` have the same length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn axpy(
        &self,
        stream: &CudaStream,
        y: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
        a: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("axpy", &self.axpy, stream)?;
        let n = call.index("y", y.len())?;
        call.expect_length("x", x.len(), y.len())?;
        let (x, _read) = x.device_ptr(stream);
        let (y, _written) = y.device_ptr_mut(stream);
        // SAFETY: the kernel is axpy(float*, const float*, float, unsigned); both buffers hold n elements.
        unsafe { call.launch(elements(n), &[&y, &x, &a, &n]) }
    }

    /// Computes `x[i] *= factor`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn scale(
        &self,
        stream: &CudaStream,
        x: &mut impl DevicePtrMut<f32>,
        factor: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("scale", &self.scale, stream)?;
        let n = call.index("x", x.len())?;
        let (x, _written) = x.device_ptr_mut(stream);
        // SAFETY: the kernel is scale(float*, float, unsigned), and `x` holds n elements.
        unsafe { call.launch(elements(n), &[&x, &factor, &n]) }
    }

    /// Descends along a gradient: `parameters[i] -= learning_rate · gradient[i]`. Both have the same length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn sgd_step(
        &self,
        stream: &CudaStream,
        parameters: &mut impl DevicePtrMut<f32>,
        gradient: &impl DevicePtr<f32>,
        learning_rate: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("sgd_step", &self.sgd_step, stream)?;
        let n = call.index("parameters", parameters.len())?;
        call.expect_length("gradient", gradient.len(), parameters.len())?;
        let (gradient, _read) = gradient.device_ptr(stream);
        let (parameters, _written) = parameters.device_ptr_mut(stream);
        // SAFETY: the kernel is sgd_step(float*, const float*, float, unsigned); both buffers hold n elements.
        unsafe { call.launch(elements(n), &[&parameters, &gradient, &learning_rate, &n]) }
    }

    /// Descends with momentum: first `velocity[i] = momentum · velocity[i] + gradient[i]`, then
    /// `parameters[i] -= learning_rate · velocity[i]`. All three have the same length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn momentum_step(
        &self,
        stream: &CudaStream,
        parameters: &mut impl DevicePtrMut<f32>,
        velocity: &mut impl DevicePtrMut<f32>,
        gradient: &impl DevicePtr<f32>,
        learning_rate: f32,
        momentum: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("momentum_step", &self.momentum_step, stream)?;
        let n = call.index("parameters", parameters.len())?;
        call.expect_length("velocity", velocity.len(), parameters.len())?;
        call.expect_length("gradient", gradient.len(), parameters.len())?;
        let (gradient, _read) = gradient.device_ptr(stream);
        let (velocity, _velocity_written) = velocity.device_ptr_mut(stream);
        let (parameters, _written) = parameters.device_ptr_mut(stream);
        // SAFETY: the kernel is momentum_step(float*, float*, const float*, float, float, unsigned); all three buffers
        // hold n elements.
        unsafe {
            call.launch(elements(n), &[&parameters, &velocity, &gradient, &learning_rate, &momentum, &n])
        }
    }
}
