//! Cooperative launches, blocks that wait for each other, and kernels that never end.

use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, PushKernelArg};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::shape;
use crate::fails;

const COOPERATIVE: &str = include_str!("../ptx/cooperative.ptx");

/// The number of blocks of 1024 threads that an H100 can hold: two on each of its 132 multiprocessors.
const RESIDENT: u32 = 264;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("cooperative::a_grid_synchronizes", grid_synchronizes),
        Check::new("cooperative::more_blocks_than_fit_are_refused", too_large),
        Check::new("cooperative::an_ordinary_launch_has_no_grid_barrier", ordinary),
        Check::new("cooperative::an_earlier_block_waits_for_a_later_one", earlier_waits),
        Check::new("cooperative::a_kernel_that_can_never_end", never_ends),
        Check::new("cooperative::a_kernel_that_always_does_something_new", counts_for_ever),
    ]
}

fn load(kernel: &str) -> (Arc<CudaStream>, CudaFunction) {
    let context = CudaContext::new(0).unwrap();
    let function = context.load_module(Ptx::from_src(COOPERATIVE)).unwrap().load_function(kernel).unwrap();
    (context.default_stream(), function)
}

fn grid_synchronizes() -> anyhow::Result<()> {
    let (stream, function) = load("reverse_steps");
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH;
    assert_eq!(stream.context().attribute(attribute)?, 1);
    let count = 20 * 1024;
    let (mut data, mut out) = (stream.alloc_zeros::<i32>(count)?, stream.alloc_zeros::<i32>(count)?);
    let mut launch = stream.launch_builder(&function);
    launch.arg(&mut data).arg(&mut out).arg(&3_i32);
    // SAFETY: both buffers have an element for each thread.
    unsafe { launch.launch_cooperative(shape(20, 1024))? };
    let n = count as i32;
    let expected: Vec<i32> = (0..n).map(|i| 3 * (n - 1 - i) + 3).collect();
    assert_eq!(stream.clone_dtoh(&out)?, expected);
    Ok(())
}

fn too_large() -> anyhow::Result<()> {
    let (stream, function) = load("for_ever");
    let code = CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    let words = ["cooperative launch of `for_ever`: 265 x 1 x 1 = 265 blocks, but only 264 fit", "132 multi"];
    // SAFETY: the kernel takes no arguments, and the launch is refused.
    let launched = unsafe { stream.launch_builder(&function).launch_cooperative(shape(RESIDENT + 1, 1024)) };
    fails(launched, code, &words);
    // Only the call itself returns the error.
    Ok(stream.synchronize()?)
}

fn ordinary() -> anyhow::Result<()> {
    let (stream, function) = load("reverse_steps");
    let (mut data, mut out) = (stream.alloc_zeros::<i32>(64)?, stream.alloc_zeros::<i32>(64)?);
    let mut launch = stream.launch_builder(&function);
    launch.arg(&mut data).arg(&mut out).arg(&1_i32);
    // SAFETY: both buffers have an element for each thread.
    unsafe { launch.launch(shape(2, 32))? };
    fails(stream.synchronize(), CUresult::CUDA_ERROR_LAUNCH_FAILED, &["executed a trap"]);
    Ok(())
}

fn earlier_waits() -> anyhow::Result<()> {
    let (stream, function) = load("first_waits_for_last");
    let (mut flag, mut out) = (stream.alloc_zeros::<i32>(1)?, stream.alloc_zeros::<i32>(500)?);
    // SAFETY: `out` has an element for each block.
    unsafe { stream.launch_builder(&function).arg(&mut flag).arg(&mut out).launch(shape(500, 1024))? };
    assert_eq!(stream.clone_dtoh(&out)?[..2], [7, 1]);
    Ok(())
}

fn never_ends() -> anyhow::Result<()> {
    let (stream, function) = load("barrier_by_hand");
    let (mut arrived, mut go) = (stream.alloc_zeros::<i32>(1)?, stream.alloc_zeros::<i32>(1)?);
    let mut out = stream.alloc_zeros::<i32>(300 * 1024)?;
    let mut launch = stream.launch_builder(&function);
    launch.arg(&mut arrived).arg(&mut go).arg(&mut out);
    // SAFETY: `out` has an element for each thread.
    unsafe { launch.launch(shape(300, 1024))? };
    let words = [
        "kernel `barrier_by_hand` does not end",
        "so do all 264 blocks that fit on the GPU at the same time; 36 more start once one of these ends",
        "cooperative.cu:2",
        "launched",
        "virtual_gpu/cooperative.rs:",
    ];
    fails(stream.synchronize(), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, &words);
    Ok(())
}

fn counts_for_ever() -> anyhow::Result<()> {
    let (stream, function) = load("counts_for_ever");
    let mut at = stream.alloc_zeros::<i32>(1)?;
    // SAFETY: `at` has one element, which is never written.
    unsafe { stream.launch_builder(&function).arg(&mut at).launch(shape(1, 1))? };
    let words = ["kernel `counts_for_ever` does not end", "instructions in that thread"];
    fails(stream.synchronize(), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, &words);
    Ok(())
}
