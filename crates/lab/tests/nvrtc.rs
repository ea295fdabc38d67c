//! Compiles a kernel while the program runs. Without NVRTC, the test is reported as ignored instead of passed.

use std::process::ExitCode;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{self, compile_ptx};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

fn main() -> ExitCode {
    let name = "nvrtc::a_kernel_compiled_at_run_time_computes_correctly";
    let trial = Trial::ignorable_test(name, || {
        // SAFETY: the call only loads a shared library by its well-known names; NVRTC's initializers have no
        // preconditions.
        if !unsafe { nvrtc::sys::is_culib_present() } {
            return Ok(Completion::ignored_with("NVRTC (libnvrtc.so.12) is not installed here"));
        }
        compile_and_launch()
            .map(|()| Completion::Completed)
            .map_err(|error| Failed::from(format!("{error:#}")))
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

const SOURCE: &str = r#"
extern "C" __global__ void mix(const float *a, const int *b, float *out, int n) {
    __shared__ float tile[64];
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    tile[t] = i < n ? a[i] : 0.0f;
    __syncthreads();
    if (i >= n) return;
    float sum = 0.0f;
    for (int k = 0; k < 64; k += b[i]) sum += tile[k] * (k % 7);
    out[i] = sum + sqrtf(fabsf(tile[63 - t]));
}
"#;

fn compile_and_launch() -> anyhow::Result<()> {
    lab::attach(1)?;
    let context = CudaContext::new(0)?;
    let module = context.load_module(compile_ptx(SOURCE)?)?;
    let stream = context.new_stream()?;
    let n = 150;
    let a: Vec<f32> = (0..n).map(|i| (i % 11) as f32 - 5.0).collect();
    let b: Vec<i32> = (0..n).map(|i| i % 5 + 1).collect();
    let (on_a, on_b) = (stream.clone_htod(&a)?, stream.clone_htod(&b)?);
    let mut out = stream.alloc_zeros::<f32>(a.len())?;
    let mix = module.load_function("mix")?;
    let mut launch = stream.launch_builder(&mix);
    launch.arg(&on_a).arg(&on_b).arg(&mut out).arg(&n);
    let shape = LaunchConfig { grid_dim: (3, 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments match the kernel's, and the kernel stays below `n`.
    unsafe { launch.launch(shape) }?;
    let got = stream.clone_dtoh(&out)?;
    for (i, got) in got.iter().enumerate() {
        let tile = |k: usize| a.get(i / 64 * 64 + k).copied().unwrap_or(0.0);
        // Integers this small are summed without rounding in any order.
        let sum: f32 = (0..64).step_by(b[i] as usize).map(|k| tile(k) * (k % 7) as f32).sum();
        let expected = sum + tile(63 - i % 64).abs().sqrt();
        anyhow::ensure!(*got == expected, "element {i}: {got}, not {expected}");
    }
    Ok(())
}
