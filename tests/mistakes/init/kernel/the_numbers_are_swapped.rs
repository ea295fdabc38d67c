// mistake: n stands where the kernel has a, and a where it has n
// fails: kernel::nothing_beside_the_buffer_is_touched
// says: was the kernel launched, and with its arguments in their order?

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, CudaView, CudaViewMut, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use lab::kernels::ELEMENTWISE;

pub const THREADS: u32 = 256;

pub fn load(context: &Arc<CudaContext>) -> anyhow::Result<CudaFunction> {
    let module = context.load_module(Ptx::from_src(ELEMENTWISE))?;
    Ok(module.load_function("axpy")?)
}

pub fn grid(n: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (n.div_ceil(THREADS), 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

pub fn axpy(
    stream: &CudaStream,
    kernel: &CudaFunction,
    y: &mut CudaViewMut<f32>,
    x: &CudaView<f32>,
    a: f32,
) -> anyhow::Result<()> {
    let (y_len, x_len) = (y.len(), x.len());
    ensure!(y_len == x_len, "y has {y_len} elements, and x has {x_len}");
    let n = u32::try_from(y_len)?;
    if n == 0 {
        return Ok(());
    }
    let mut launch = stream.launch_builder(kernel);
    launch.arg(y).arg(x).arg(&n).arg(&a);
    // SAFETY: none is claimed: this mistake is run only to see what its check says.
    unsafe { launch.launch(grid(n)) }?;
    Ok(())
}
