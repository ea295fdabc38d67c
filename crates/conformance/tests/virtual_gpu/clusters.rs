//! Clusters: launches with a size, the rules about sizes, and the reports about wrong kernels.

use cudarc::driver::sys::{self, CUfunction_attribute, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, PushKernelArg};
use cudarc::nvrtc::Ptx;
use lab::Check;
use std::ffi::c_void;
use std::sync::Arc;

use crate::device::shape;
use crate::fails;
use crate::raw::address;

const PTX: &str = include_str!("../ptx/clusters.ptx");
/// The number of threads in a block.
const THREADS: u32 = 64;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("clusters::a_histogram_in_distributed_shared_memory", histogram),
        Check::new("clusters::blocks_read_each_others_tiles", neighbor),
        Check::new("clusters::a_read_before_the_barrier_is_reported", unordered),
        Check::new("clusters::a_block_that_may_not_have_started_is_reported", not_started),
        Check::new("clusters::a_block_that_may_have_ended_is_reported", ended),
        Check::new("clusters::a_barrier_that_one_thread_never_reaches", stuck),
        Check::new("clusters::a_kernel_compiled_for_one_size", compiled),
        Check::new("clusters::sizes_that_are_not_allowed", sizes),
        Check::new("clusters::attributes_of_functions", attributes),
        Check::new("clusters::a_node_of_a_graph", in_a_graph),
        Check::new("clusters::in_a_process_that_shares_memory", sharing),
    ]
}

fn kernel(name: &str) -> anyhow::Result<(Arc<CudaStream>, CudaFunction)> {
    let context = CudaContext::new(0)?;
    let function = context.load_module(Ptx::from_src(PTX))?.load_function(name)?;
    Ok((context.default_stream(), function))
}

/// `cuLaunchKernelEx` with the size of a cluster.
fn launch(
    stream: &CudaStream,
    function: &CudaFunction,
    [grid, cluster]: [u32; 2],
    dynamic_shared: u32,
    parameters: &mut [*mut c_void],
) -> Result<(), cudarc::driver::DriverError> {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 };
    let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
    let config = sys::CUlaunchConfig {
        gridDimX: grid,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: THREADS,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: dynamic_shared,
        hStream: stream.cu_stream(),
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    // SAFETY: everything pointed to outlives the call, and the parameters are those of the kernel.
    unsafe {
        let function = function.cu_function();
        sys::cuLaunchKernelEx(&config, function, parameters.as_mut_ptr(), std::ptr::null_mut()).result()
    }
}

/// A graph's node keeps the size of its clusters when its parameters change.
fn in_a_graph() -> anyhow::Result<()> {
    use sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as CLUSTER;
    let (stream, function) = kernel("neighbor")?;
    let to = stream.alloc_zeros::<i32>(2 * THREADS as usize)?;
    let (at, right) = (address(&to), 0_i32);
    let mut arguments = [parameter(&at), parameter(&right)];
    let parameters = sys::CUDA_KERNEL_NODE_PARAMS {
        func: function.cu_function(),
        gridDimX: 2,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: THREADS,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: arguments.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    };
    let null = std::ptr::null_mut::<c_void>();
    let (mut graph, mut node, mut exec) = (null.cast(), null.cast(), null.cast());
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 2, y: 1, z: 1 };
    let mut kept = sys::CUlaunchAttributeValue { pad: [0; 64] };
    // SAFETY: everything pointed to outlives the calls, and the arguments are those of the kernel.
    let size = unsafe {
        sys::cuGraphCreate(&raw mut graph, 0).result()?;
        sys::cuGraphAddKernelNode_v2(&raw mut node, graph, null.cast(), 0, &parameters).result()?;
        sys::cuGraphKernelNodeSetAttribute(node, CLUSTER, &value).result()?;
        sys::cuGraphKernelNodeSetParams_v2(node, &parameters).result()?;
        sys::cuGraphKernelNodeGetAttribute(node, CLUSTER, &raw mut kept).result()?;
        sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0).result()?;
        sys::cuGraphLaunch(exec, stream.cu_stream()).result()?;
        kept.clusterDim.x
    };
    assert_eq!(size, 2);
    assert_eq!(stream.clone_dtoh(&to)?[..2], [100, 101]);
    // SAFETY: nothing uses them afterwards.
    unsafe {
        sys::cuGraphExecDestroy(exec).result()?;
        sys::cuGraphDestroy(graph).result()?;
    }
    Ok(())
}

/// Returns the pointer to a parameter.
fn parameter<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

fn histogram() -> anyhow::Result<()> {
    let (stream, function) = kernel("histogram")?;
    let input: Vec<i32> = (0..5000).map(|at| at * at % 97).collect();
    for cluster in [1, 2, 4] {
        let part = 96 / cluster as i32 + 1;
        let bins = stream.alloc_zeros::<i32>(part as usize * cluster as usize)?;
        let numbers = stream.clone_htod(&input)?;
        let (to, from, count) = (address(&bins), address(&numbers), input.len() as i32);
        let mut parameters = [parameter(&to), parameter(&part), parameter(&from), parameter(&count)];
        launch(&stream, &function, [8, cluster], part as u32 * 4, &mut parameters)?;
        let mut expected = vec![0; bins.len()];
        input.iter().for_each(|&number| expected[number as usize] += 1);
        assert_eq!(stream.clone_dtoh(&bins)?, expected, "clusters of {cluster}");
    }
    Ok(())
}

/// Runs `neighbor` on four blocks in clusters of two.
fn run_neighbor(wrong: i32) -> anyhow::Result<Result<Vec<i32>, cudarc::driver::DriverError>> {
    let (stream, function) = kernel("neighbor")?;
    let to = stream.alloc_zeros::<i32>(4 * THREADS as usize)?;
    let at = address(&to);
    launch(&stream, &function, [4, 2], 0, &mut [parameter(&at), parameter(&wrong)])?;
    Ok(stream.clone_dtoh(&to))
}

fn neighbor() -> anyhow::Result<()> {
    let expected: Vec<i32> = (0..4).flat_map(|block| (0..64).map(move |at| (block ^ 1) * 100 + at)).collect();
    assert_eq!(run_neighbor(0)??, expected);
    Ok(())
}

/// A process that shares memory with others runs its kernels in turns.
fn sharing() -> anyhow::Result<()> {
    let _context = kernel("neighbor")?;
    // SAFETY: cudarc's own memory comes from a pool, so this needs memory of its own.
    let at = unsafe { cudarc::driver::result::malloc_sync(64)? };
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the result is writable.
    unsafe { sys::cuIpcGetMemHandle(&raw mut handle, at) }.result()?;
    neighbor()?;
    // SAFETY: nothing uses the memory anymore.
    unsafe { cudarc::driver::result::free_sync(at)? };
    Ok(())
}

fn unordered() -> anyhow::Result<()> {
    let words = [
        "kernel `neighbor` has a data race in shared memory",
        "clusters.cu:37",
        "clusters.cu:43",
        "of `tile` of block (",
        "nothing makes one access wait for the other",
        "help: add `cluster.sync()` between clusters.cu:",
    ];
    fails(run_neighbor(2)?, CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn not_started() -> anyhow::Result<()> {
    let words = [
        "kernel `neighbor` accesses the shared memory of a block that may not have started",
        "clusters.cu:34",
        "nothing makes this thread wait until block (1,0,0) has started",
        "help: call `cluster.sync()` before the first access",
    ];
    fails(run_neighbor(1)?, CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn ended() -> anyhow::Result<()> {
    let words = [
        "kernel `neighbor` accesses the shared memory of a block that may have ended",
        "clusters.cu:43",
        "nothing makes block (",
        "wait for this access before it ends",
        "help: call `cluster.sync()` after the last access",
    ];
    fails(run_neighbor(3)?, CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn stuck() -> anyhow::Result<()> {
    let (stream, function) = kernel("stuck")?;
    let flag = stream.alloc_zeros::<i32>(1)?;
    let at = address(&flag);
    launch(&stream, &function, [2, 2], 0, &mut [parameter(&at)])?;
    let words = [
        "kernel `stuck` has threads waiting at a cluster's barrier that others never reach",
        "127 of 128 threads of the cluster have arrived",
        "block (1,0,0), thread (63,0,0) has not arrived: it waits here",
        "clusters.cu:53",
        "every thread of the cluster that has not returned must reach the same cluster.sync()",
    ];
    fails(stream.clone_dtoh(&flag), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, &words);
    Ok(())
}

fn compiled() -> anyhow::Result<()> {
    let (stream, function) = kernel("place")?;
    let mut to = stream.alloc_zeros::<i32>(24)?;
    let mut config = shape(4, 32);
    config.grid_dim = (4, 6, 1);
    // SAFETY: there is an element for each block.
    unsafe { stream.launch_builder(&function).arg(&mut to).launch(config)? };
    for (at, got) in (0..).zip(stream.clone_dtoh(&to)?) {
        let (x, y) = (at % 4 % 2, at / 4 % 2);
        assert_eq!(got, y * 10 + x + 100 * (2 * y + x), "block {at}");
    }
    config.grid_dim = (4, 3, 1);
    // SAFETY: as above.
    let odd = unsafe { stream.launch_builder(&function).arg(&mut to).launch(config).map(drop) };
    let words = ["launch of `place`: grid dimension y is 3", "not a multiple of the cluster's 2 blocks"];
    fails(odd, CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE, &words);
    let at = address(&to);
    let words = ["clusters of 4 x 1 x 1 blocks: the kernel requires 2 x 2 x 1"];
    let other = launch(&stream, &function, [4, 4], 0, &mut [parameter(&at)]);
    fails(other, CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE, &words);
    Ok(())
}

fn sizes() -> anyhow::Result<()> {
    let (stream, function) = kernel("stuck")?;
    let flag = stream.clone_htod(&[1])?;
    let at = address(&flag);
    let code = CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    for (sizes, words) in [
        ([6, 4], "grid dimension x is 6, which is not a multiple of the cluster's 4 blocks"),
        ([16, 16], "16 x 1 x 1 blocks in a cluster: there must be 1 to 8"),
        ([8, 0], "0 x 1 x 1 blocks in a cluster"),
    ] {
        fails(launch(&stream, &function, sizes, 0, &mut [parameter(&at)]), code, &[words]);
    }
    let allowed = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
    function.set_attribute(allowed, 1)?;
    launch(&stream, &function, [16, 16], 0, &mut [parameter(&at)])?;
    stream.synchronize()?;
    Ok(())
}

fn attributes() -> anyhow::Result<()> {
    use CUfunction_attribute::*;
    let (stream, function) = kernel("neighbor")?;
    let get = |function: &CudaFunction, attribute| function.get_attribute(attribute);
    assert_eq!(get(&function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)?, 0);
    for attribute in [
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
    ] {
        function.set_attribute(attribute, 1)?;
    }
    function.set_attribute(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2)?;
    let mut to = stream.alloc_zeros::<i32>(2 * THREADS as usize)?;
    // SAFETY: there is an element for each thread.
    unsafe { stream.launch_builder(&function).arg(&mut to).arg(&0).launch(shape(2, THREADS))? };
    assert_eq!(stream.clone_dtoh(&to)?[..2], [100, 101]);

    let (_, place) = kernel("place")?;
    assert_eq!(get(&place, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)?, 2);
    assert_eq!(get(&place, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH)?, 1);
    let words = ["kernel `place` was compiled for a fixed cluster size"];
    let set = place.set_attribute(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4);
    fails(set, CUresult::CUDA_ERROR_NOT_PERMITTED, &words);
    Ok(())
}
