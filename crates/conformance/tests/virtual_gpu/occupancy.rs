//! How many of a kernel's blocks can be resident at the same time, as reported by the driver.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunc_cache, CUfunction_attribute_enum as Attribute, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::shape;
use crate::fails;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("occupancy::blocks_of_a_multiprocessor", blocks),
        Check::new("occupancy::a_block_size_that_fills_the_gpu", block_size),
        Check::new("occupancy::room_for_dynamic_shared_memory", dynamic_shared),
        Check::new("occupancy::clusters_take_all_their_blocks", clusters),
        Check::new("occupancy::bad_arguments_are_named", bad_arguments),
    ]
}

const KERNELS: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry plain() { ret; }
.visible .entry bounded() .maxntid 256, 1, 1 { ret; }
";

fn kernel(name: &str) -> anyhow::Result<(Arc<CudaStream>, CudaFunction)> {
    let context = CudaContext::new(0)?;
    let function = context.load_module(Ptx::from_src(KERNELS))?.load_function(name)?;
    Ok((context.default_stream(), function))
}

fn blocks() -> anyhow::Result<()> {
    let (_stream, plain) = kernel("plain")?;
    let blocks =
        |threads, shared| plain.occupancy_max_active_blocks_per_multiprocessor(threads, shared, None);
    assert_eq!((blocks(1024, 0)?, blocks(256, 0)?, blocks(32, 0)?), (2, 8, 32));
    assert_eq!((blocks(32, 40 << 10)?, blocks(32, 100 << 10)?, blocks(2048, 0)?), (5, 0, 0));
    plain.set_attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10)?;
    assert_eq!(blocks(32, 100 << 10)?, 2);
    plain.set_function_cache_config(CUfunc_cache::CU_FUNC_CACHE_PREFER_L1)?;
    assert_eq!(blocks(32, 40 << 10)?, 1);
    Ok(())
}

extern "C" fn none(_: c_int) -> usize {
    0
}

extern "C" fn per_thread(block_size: c_int) -> usize {
    block_size as usize * 64
}

fn block_size() -> anyhow::Result<()> {
    let (_stream, plain) = kernel("plain")?;
    assert_eq!(plain.occupancy_max_potential_block_size(none, 0, 0, None)?, (264, 1024));
    assert_eq!(plain.occupancy_max_potential_block_size(per_thread, 0, 0, None)?, (528, 512));
    assert_eq!(plain.occupancy_max_potential_block_size(none, 0, 128, None)?, (16 * 132, 128));
    let (_stream, bounded) = kernel("bounded")?;
    assert_eq!(bounded.occupancy_max_potential_block_size(none, 0, 0, None)?, (8 * 132, 256));
    Ok(())
}

fn dynamic_shared() -> anyhow::Result<()> {
    let (_stream, plain) = kernel("plain")?;
    assert_eq!(plain.occupancy_available_dynamic_smem_per_block(1, 128)?, 48 << 10);
    assert_eq!(plain.occupancy_available_dynamic_smem_per_block(6, 128)?, 37 << 10);
    let words = ["3 blocks of 1024 threads can't be resident"];
    let never = plain.occupancy_available_dynamic_smem_per_block(3, 1024);
    fails(never, CUresult::CUDA_ERROR_INVALID_VALUE, &words);
    Ok(())
}

fn clusters() -> anyhow::Result<()> {
    let (stream, plain) = kernel("plain")?;
    let shape = shape(8, 256);
    assert_eq!(plain.occupancy_max_potential_cluster_size(shape, &stream)?, 8);
    let words = ["the launch configuration has no cluster size"];
    let code = CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    fails(plain.occupancy_max_active_clusters(shape, &stream), code, &words);

    let active = |x, y| {
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z: 1 };
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: 8,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 256,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let mut clusters = 0;
        // SAFETY: everything pointed to outlives the call.
        let reported =
            unsafe { sys::cuOccupancyMaxActiveClusters(&raw mut clusters, plain.cu_function(), &config) };
        reported.result().map(|()| clusters)
    };
    assert_eq!(active(1, 1)?, 8 * 132);
    assert_eq!(active(4, 1)?, 8 * 132 / 4);
    fails(active(2, 4), code, &["grid dimension y is 1, which is not a multiple"]);
    Ok(())
}

fn bad_arguments() -> anyhow::Result<()> {
    let (_stream, plain) = kernel("plain")?;
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let none_at_all = plain.occupancy_max_active_blocks_per_multiprocessor(0, 0, None);
    fails(none_at_all, invalid, &["0 threads in a block"]);
    let mut count = 0;
    // SAFETY: the count is writable.
    let flags = unsafe {
        sys::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            &raw mut count,
            plain.cu_function(),
            1,
            0,
            8,
        )
    };
    fails(flags.result(), invalid, &["0x8 are not occupancy flags"]);
    let unknown = 0x30_0000 as sys::CUfunction;
    // SAFETY: an invalid handle is refused and not dereferenced.
    let other = unsafe { sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut count, unknown, 1, 0) };
    fails(other.result(), CUresult::CUDA_ERROR_INVALID_HANDLE, &["0x300000 is not a function"]);
    // SAFETY: as above; the null configuration is not read.
    let nothing = unsafe {
        sys::cuOccupancyMaxPotentialClusterSize(&raw mut count, plain.cu_function(), std::ptr::null())
    };
    fails(nothing.result(), invalid, &["the launch configuration is null"]);
    Ok(())
}
