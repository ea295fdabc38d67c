//! Tests that a kernel's time follows the bytes that it touches, and those that it touches again, on a DGX H100's figures.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::child;
use crate::device::untracked;

const PTX: &str = include_str!("../ptx/product.ptx");

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("traffic::a_product_with_tiles_is_as_much_faster_as_on_a_gpu", tiles),
        Check::new("traffic::two_small_kernels_of_two_streams_take_as_long_as_one", side_by_side),
    ]
}

/// Runs a function of this file in a process with a DGX H100's figures, and returns the milliseconds that it prints.
fn milliseconds(function: &str) -> anyhow::Result<Vec<f32>> {
    let (well, said) = child::start(function, &[("VIRTUAL_GPU_TOPOLOGY", "dgx-h100")])?;
    assert!(well, "{said}");
    Ok(said.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

fn functions<const N: usize>(
    stream: &Arc<CudaStream>,
    names: [&str; N],
) -> anyhow::Result<[CudaFunction; N]> {
    let module = stream.context().load_module(Ptx::from_src(PTX))?;
    Ok(names.map(|name| module.load_function(name).unwrap()))
}

/// Prints the times of a product in which each thread reads device memory for each factor, and of one whose blocks copy
/// tiles of 32 × 32 elements to shared memory.
pub(crate) fn products() -> anyhow::Result<()> {
    // One block for each of 121 of the 132 multiprocessors.
    const EXTENT: usize = 11 * 32;
    lab::attach(1)?;
    let stream = untracked(0).new_stream()?;
    let factors = [0; 2].map(|_| stream.alloc_zeros::<f32>(EXTENT * EXTENT).unwrap());
    let mut product = stream.alloc_zeros::<f32>(EXTENT * EXTENT)?;
    let grid = (EXTENT / 32) as u32;
    let shape = LaunchConfig { grid_dim: (grid, grid, 1), block_dim: (32, 32, 1), shared_mem_bytes: 0 };
    for function in functions(&stream, ["naive", "tiled"])? {
        let mark = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let start = mark()?;
        let mut launch = stream.launch_builder(&function);
        let extent = EXTENT as i32;
        launch.arg(&factors[0]).arg(&factors[1]).arg(&mut product).arg(&extent);
        // SAFETY: the arguments are those of the kernels in product.cu.
        unsafe { launch.launch(shape) }?;
        println!("{}", start.elapsed_ms(&mark()?)?);
    }
    Ok(())
}

/// On an H200, products of 1024 × 1024 and 4096 × 4096 elements took 1.46 and 1.48 times as long without tiles. Published
/// figures for an A6000 give 1.5: <https://siboehm.com/articles/22/CUDA-MMM>, kernels 2 and 3.
fn tiles() -> anyhow::Result<()> {
    let times = milliseconds("traffic::products")?;
    let [naive, tiled] = times[..] else { anyhow::bail!("{} times", times.len()) };
    let ratio = naive / tiled;
    assert!((1.5 * 0.75..1.5 * 1.25).contains(&ratio), "{naive} ms without tiles, {tiled} ms with them");
    Ok(())
}

/// Prints the times of two kernels of one block, first on one stream and then on two.
pub(crate) fn two_kernels() -> anyhow::Result<()> {
    lab::attach(1)?;
    let first = untracked(0).new_stream()?;
    let second = first.context().new_stream()?;
    let data = first.alloc_zeros::<f32>(1000)?;
    let mut results = [first.alloc_zeros::<f32>(1)?, first.alloc_zeros::<f32>(1)?];
    first.synchronize()?;
    let [reread] = functions(&first, ["reread"])?;
    for other in [&first, &second] {
        let start = first.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        other.join(&first)?;
        for (stream, result) in [&first, other].into_iter().zip(&mut results) {
            let mut launch = stream.launch_builder(&reread);
            launch.arg(&data).arg(&1000_i32).arg(result);
            // SAFETY: the arguments are those of the kernel in product.cu.
            unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }?;
        }
        first.join(other)?;
        let end = first.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        println!("{}", start.elapsed_ms(&end)?);
    }
    Ok(())
}

fn side_by_side() -> anyhow::Result<()> {
    let times = milliseconds("traffic::two_kernels")?;
    let [one_stream, two_streams] = times[..] else { anyhow::bail!("{} times", times.len()) };
    let ratio = one_stream / two_streams;
    assert!((1.9..2.1).contains(&ratio), "{one_stream} ms on one stream, {two_streams} ms on two");
    Ok(())
}
