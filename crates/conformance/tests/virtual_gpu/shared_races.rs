//! Races in shared memory, from the launch to the error that the program receives.

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, DriverError, PushKernelArg};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::child;
use crate::device::shape;
use crate::fails;

const RACES: &str = include_str!("../ptx/shared_races.ptx");

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("shared_races::a_missing_barrier_is_reported_with_both_lines", missing_barrier),
        Check::new("shared_races::accesses_ordered_by_a_barrier_are_not_races", barrier),
        Check::new("shared_races::two_writes_at_one_line", one_place),
        Check::new("shared_races::a_copy_that_is_not_waited_for", copy),
        Check::new("shared_races::a_warning_is_printed_once_and_breaks_nothing", warning),
    ]
}

/// Launches `kernel(x, y, how)` with 64 threads and waits for it.
fn run(kernel: &str, how: i32) -> Result<Vec<i32>, DriverError> {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let function = context.load_module(Ptx::from_src(RACES))?.load_function(kernel)?;
    let numbers: Vec<i32> = (0..64).collect();
    let (x, mut y) = (stream.clone_htod(&numbers)?, stream.alloc_zeros::<i32>(64)?);
    let config = shape(1, 64);
    // SAFETY: both buffers have an element for each thread.
    unsafe { stream.launch_builder(&function).arg(&x).arg(&mut y).arg(&how).launch(config)? };
    stream.clone_dtoh(&y)
}

fn missing_barrier() -> anyhow::Result<()> {
    let words = [
        "kernel `neighbor` has a data race in shared memory",
        "block (0,0,0), thread (1,0,0) writes 4 bytes",
        "shared_races.cu:7",
        "block (0,0,0), thread (0,0,0) reads 4 bytes",
        "shared_races.cu:9",
        "byte 4 of `tile`: read after write",
        "launched",
        "virtual_gpu/shared_races.rs:",
        "help: add `__syncthreads()` or, within a warp, `__syncwarp()` between shared_races.cu:7 and shared_races.cu:9",
    ];
    fails(run("neighbor", 0), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

/// Launches a kernel with a race three times, from the same line.
pub(crate) fn repeats() -> anyhow::Result<()> {
    lab::attach(1)?;
    for _ in 0..3 {
        assert_eq!(run("neighbor", 0)?.len(), 64);
    }
    Ok(())
}

fn warning() -> anyhow::Result<()> {
    let (well, said) = child::start("shared_races::repeats", &[("VIRTUAL_GPU_CHECKS", "warn")])?;
    assert!(well, "{said}");
    assert_eq!(said.matches("has a data race in shared memory").count(), 1, "{said}");
    Ok(())
}

fn barrier() -> anyhow::Result<()> {
    let expected: Vec<i32> = (0..64).map(|i| (i + 1) % 64).collect();
    assert_eq!(run("neighbor", 1)?, expected);
    Ok(())
}

fn one_place() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let function = context.load_module(Ptx::from_src(RACES))?.load_function("one_place")?;
    let mut y = stream.alloc_zeros::<i32>(64)?;
    let config = shape(1, 64);
    for (same, words) in [(1, None), (0, Some(["write after write", "only one thread may write there"]))] {
        // SAFETY: the buffer has an element for each thread.
        unsafe { stream.launch_builder(&function).arg(&mut y).arg(&same).launch(config)? };
        match words {
            None => assert_eq!(stream.clone_dtoh(&y)?, [7; 64]),
            Some(words) => fails(stream.synchronize(), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words),
        }
    }
    Ok(())
}

/// A kernel that copies a number to shared memory and reads it before the copy has completed.
const COPY: &str = "\
.version 8.0
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 x)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    .shared .align 4 .b8 tile[4];
    ld.param.u64 %rd1, [x];
    cp.async.ca.shared.global [tile], [%rd1], 4;
    cp.async.commit_group;
    ld.shared.u32 %r1, [tile];
    st.global.u32 [%rd1], %r1;
    ret;
}
";

fn copy() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let function = context.load_module(Ptx::from_src(COPY))?.load_function("copy")?;
    let mut x = stream.clone_htod(&[5_i32])?;
    let config = shape(1, 1);
    // SAFETY: the buffer has an element for the thread.
    unsafe { stream.launch_builder(&function).arg(&mut x).launch(config)? };
    let words = [
        "kernel `copy` has a data race in shared memory",
        "writes 4 bytes",
        "PTX line 10",
        "reads 4 bytes",
        "PTX line 12",
        "the copy started at PTX line 10 is pending until its thread waits for it",
        "help: call `cp.async.wait_all`",
    ];
    fails(stream.synchronize(), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}
