//! Recursive functions, and the stack space that they need.

use cudarc::driver::sys::{CUlimit_enum as CUlimit, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, PushKernelArg};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::shape;
use crate::fails;

const RECURSION: &str = include_str!("../ptx/recursion.ptx");

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("calls::a_stack_that_is_too_small_is_reported", too_small),
        Check::new("calls::a_larger_stack_is_enough", large_enough),
    ]
}

/// Computes `fibonacci(n + i) + factorial(n)` for each thread `i` of four.
fn run(stream: &std::sync::Arc<CudaStream>, n: i32) -> Result<Vec<i32>, DriverError> {
    let function = stream.context().load_module(Ptx::from_src(RECURSION))?.load_function("depth")?;
    let mut out = stream.alloc_zeros::<i32>(4)?;
    let config = shape(1, 4);
    // SAFETY: the buffer has an element for each thread.
    unsafe { stream.launch_builder(&function).arg(&n).arg(&mut out).launch(config)? };
    stream.clone_dtoh(&out)
}

fn too_small() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let words = [
        "kernel `depth` calls itself too deeply",
        "recursion.cu:",
        "each thread's stack has only 1 KiB",
        "help: does the recursion end? If it does, request a larger stack: cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes)",
    ];
    fails(run(&context.default_stream(), 200), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words);
    // The error has made the context unusable.
    fails(run(&context.default_stream(), 1), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words[..1]);
    Ok(())
}

fn large_enough() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    context.set_limit(CUlimit::CU_LIMIT_STACK_SIZE, 64 << 10)?;
    assert_eq!(run(&context.default_stream(), 10)?, [55, 89, 144, 233].map(|f| f + 3_628_800));
    Ok(())
}
