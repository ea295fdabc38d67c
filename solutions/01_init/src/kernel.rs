//! A kernel: a function that a GPU runs in many threads at once.
//!
//! This one is `axpy` of `crates/lab/kernels/elementwise.cu`. Every thread runs the same code, and knows its place among the others:
//! ```c
//! extern "C" __global__ void axpy(float* y, const float* x, float a, unsigned int n) {
//!     unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
//!     if (i < n) y[i] += a * x[i];
//! }
//! ```
//! What a GPU loads is not this text but PTX, which a compiler makes of it; `lab::kernels::ELEMENTWISE` is that file's.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, CudaView, CudaViewMut, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use lab::kernels::ELEMENTWISE;

/// Threads in a block.
pub const THREADS: u32 = 256;

/// Loads the kernel `axpy` on the context's GPU.
///
/// # Errors
/// What the driver answers.
pub fn load(context: &Arc<CudaContext>) -> anyhow::Result<CudaFunction> {
    // ANCHOR: load
    // Load the PTX, and take the kernel out of it.
    // What a context loads is a module; it finds kernels by name.
    let module = context.load_module(Ptx::from_src(ELEMENTWISE))?;
    Ok(module.load_function("axpy")?)
    // ANCHOR_END: load
}

/// How to launch a thread for each of `n` elements, in as few blocks of [`THREADS`] threads as there can be. The kernel
/// needs no shared memory.
pub fn grid(n: u32) -> LaunchConfig {
    // ANCHOR: grid
    // Say how many blocks there are, and how many threads a block has.
    // Each is a triple (x, y, z); what is not used is 1. What if `n` does not divide by the threads of a block?
    LaunchConfig { grid_dim: (n.div_ceil(THREADS), 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
    // ANCHOR_END: grid
}

/// Launches `y[i] += a * x[i]` for every element. Returns at once. Over no elements it does nothing.
///
/// # Errors
/// `y` and `x` differ in length (the error says both; nothing was launched), there are more elements than a `u32` counts,
/// or what the driver answers.
pub fn axpy(
    stream: &CudaStream,
    kernel: &CudaFunction,
    y: &mut CudaViewMut<f32>,
    x: &CudaView<f32>,
    a: f32,
) -> anyhow::Result<()> {
    // ANCHOR: axpy
    // Launch the kernel, with the arguments in its own order and of its own types.
    // Nobody compares them with the kernel's: not the compiler, not the driver. So compare the lengths yourself, and say in
    // a SAFETY comment why the launch is sound. A grid of no blocks is refused by the driver.
    let (y_len, x_len) = (y.len(), x.len());
    ensure!(y_len == x_len, "y has {y_len} elements, and x has {x_len}");
    let n = u32::try_from(y_len)?;
    if n == 0 {
        return Ok(());
    }
    let mut launch = stream.launch_builder(kernel);
    launch.arg(y).arg(x).arg(&a).arg(&n);
    // SAFETY: the kernel is axpy(float*, const float*, float, unsigned). It stays below n, and both buffers hold n elements.
    unsafe { launch.launch(grid(n)) }?;
    Ok(())
    // ANCHOR_END: axpy
}
