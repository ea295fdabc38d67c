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

/// Loads the `axpy` kernel on the context's GPU.
///
/// # Errors
/// Fails if a driver call fails.
pub fn load(context: &Arc<CudaContext>) -> anyhow::Result<CudaFunction> {
    // ANCHOR: load
    // Load the kernel:
    // 1. the PTX is `ELEMENTWISE`;
    // 2. the result is its `axpy` kernel, ready to be launched on any stream in this context.
    let module = context.load_module(Ptx::from_src(ELEMENTWISE))?;
    Ok(module.load_function("axpy")?)
    // ANCHOR_END: load
}

/// Returns the launch configuration for `n` elements.
pub fn grid(n: u32) -> LaunchConfig {
    // ANCHOR: grid
    // Compute the number of blocks, and of threads in each:
    // 1. a block has `THREADS` threads;
    // 2. each of the `n` elements has a thread;
    // 3. there are no more blocks than necessary;
    // 4. the grid and the blocks extend in x only, and no shared memory is used.
    LaunchConfig { grid_dim: (n.div_ceil(THREADS), 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
    // ANCHOR_END: grid
}

/// Adds `a * x[i]` to every `y[i]`.
///
/// # Errors
/// Fails if the lengths of `y` and `x` differ, if the number of elements doesn't fit in a `u32`, or if a driver call fails.
pub fn axpy(
    stream: &CudaStream,
    kernel: &CudaFunction,
    y: &mut CudaViewMut<f32>,
    x: &CudaView<f32>,
    a: f32,
) -> anyhow::Result<()> {
    // ANCHOR: axpy
    // Launch the kernel over all elements, on `stream`:
    // 1. the arguments match the kernel's parameters in order and type, which neither the driver nor a check compares;
    // 2. if `y` and `x` differ in length, launch nothing, and return an error that contains both lengths;
    // 3. if there are no elements, nothing is launched, and the result is `Ok`;
    // 4. return as soon as the kernel is enqueued;
    // 5. a SAFETY comment, which no check reads, explains why the launch is sound.
    let (y_len, x_len) = (y.len(), x.len());
    ensure!(y_len == x_len, "y has {y_len} elements, but x has {x_len}");
    let n = u32::try_from(y_len)?;
    if n == 0 {
        return Ok(());
    }
    let mut launch = stream.launch_builder(kernel);
    launch.arg(y).arg(x).arg(&a).arg(&n);
    // SAFETY: the kernel is axpy(float*, const float*, float, unsigned). It accesses only indices below n, and both
    // buffers hold n elements.
    unsafe { launch.launch(grid(n)) }?;
    Ok(())
    // ANCHOR_END: axpy
}
