//! Launches a kernel over all elements of a buffer.
//!
//! The kernel is `axpy(float* y, const float* x, float a, unsigned int n)`, which computes `y[i] += a * x[i]`. Its source is in
//! `crates/lab/kernels/elementwise.cu`, and its PTX in `lab::kernels::ELEMENTWISE`.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, CudaView, CudaViewMut, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use lab::kernels::ELEMENTWISE;

/// The number of threads per block.
pub const THREADS: u32 = 256;

/// Loads the kernel `axpy` on the GPU of the context.
///
/// # Errors
/// Fails if the driver fails.
pub fn load(context: &Arc<CudaContext>) -> anyhow::Result<CudaFunction> {
    // ANCHOR: load
    // Load the kernel:
    // 1. the PTX is that of `ELEMENTWISE`;
    // 2. the result is its kernel `axpy`, ready to launch on any stream of this context.
    todo!("Load the kernel")
    // ANCHOR_END: load
}

/// Returns the launch configuration for `n` elements.
pub fn grid(n: u32) -> LaunchConfig {
    // ANCHOR: grid
    // Say how many blocks there are, and how many threads each has:
    // 1. a block has `THREADS` threads;
    // 2. each of the `n` elements has a thread;
    // 3. there are no more blocks than that takes;
    // 4. blocks and threads are counted in x only, and there is no shared memory.
    todo!("Say how many blocks there are, and how many threads each has")
    // ANCHOR_END: grid
}

/// Adds `a * x[i]` to every `y[i]`.
///
/// # Errors
/// Fails if the lengths of `y` and `x` differ, if there are more elements than fit a `u32`, or if the driver fails.
pub fn axpy(
    stream: &CudaStream,
    kernel: &CudaFunction,
    y: &mut CudaViewMut<f32>,
    x: &CudaView<f32>,
    a: f32,
) -> anyhow::Result<()> {
    // ANCHOR: axpy
    // Launch the kernel over all elements:
    // 1. the arguments have the order and the types of the kernel's parameters;
    // 2. if `y` and `x` differ in length, the result is an error that has both lengths, and nothing is launched;
    // 3. over no elements, nothing is launched, and the result is `Ok`;
    // 4. the call returns as soon as the kernel is enqueued;
    // 5. a SAFETY comment explains why the launch is sound.
    todo!("Launch the kernel over all elements")
    // ANCHOR_END: axpy
}
