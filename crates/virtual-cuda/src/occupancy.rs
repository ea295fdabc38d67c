//! The bodies of the functions that return how many blocks of a kernel are resident at the same time.

use std::ffi::{c_int, c_uint};

use virtual_gpu::device::MULTIPROCESSORS;
use virtual_gpu::engine::{FunctionHandle, LaunchShape};
use virtual_gpu::occupancy::Usage;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::engine;
use crate::pointer::{Out, Source};
use crate::types::{Function, Stream};

/// `CUoccupancyB2DSize`: returns the number of bytes of dynamic shared memory for a block size. May be null.
pub type BlockToShared = Option<unsafe extern "C" fn(c_int) -> usize>;

/// `CUlaunchConfig`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) dynamic_shared: c_uint,
    pub(crate) stream: Stream,
    pub(crate) attributes: Source<LaunchAttribute>,
    pub(crate) attribute_count: c_uint,
}

/// `CUlaunchAttribute`: the attribute number determines what the value contains.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LaunchAttribute {
    pub(crate) number: c_uint,
    pub(crate) _padding: c_uint,
    pub(crate) value: [c_uint; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`
const CLUSTER_DIMENSION: c_uint = 4;

/// Returns the size of a cluster that a launch's attributes state.
pub(crate) fn stated_cluster(attributes: &[LaunchAttribute]) -> Option<[c_uint; 3]> {
    let stated = attributes.iter().rfind(|attribute| attribute.number == CLUSTER_DIMENSION)?;
    let [x, y, z, ..] = stated.value;
    Some([x, y, z])
}

fn usage(function: Function) -> CudaResult<Usage> {
    engine::get()?.usage(FunctionHandle(function as u64))
}

fn threads(block_size: c_int) -> CudaResult<u32> {
    let size = u32::try_from(block_size).ok().filter(|&size| size > 0);
    size.ok_or_else(|| invalid(format!("{block_size} threads in a block: there must be at least one")))
}

/// Checks the flags. Both values mean the same here, because global caching uses none of a multiprocessor's resources.
fn check_flags(flags: c_uint) -> CudaResult<()> {
    match flags {
        0 | 1 => Ok(()),
        _ => Err(invalid(format!("{flags:#x} are not occupancy flags"))),
    }
}

pub(crate) fn blocks(to: Out<c_int>, of: Function, block_size: c_int, dynamic: usize) -> CudaResult<()> {
    blocks_with_flags(to, of, block_size, dynamic, 0)
}

pub(crate) fn blocks_with_flags(
    to: Out<c_int>,
    of: Function,
    block_size: c_int,
    dynamic: usize,
    flags: c_uint,
) -> CudaResult<()> {
    check_flags(flags)?;
    to.give(usage(of)?.blocks(threads(block_size)?, dynamic as u64) as c_int)
}

pub(crate) fn block_size(
    grid: Out<c_int>,
    block: Out<c_int>,
    of: Function,
    to_shared: BlockToShared,
    dynamic: usize,
    limit: c_int,
) -> CudaResult<()> {
    block_size_with_flags(grid, block, of, to_shared, dynamic, limit, 0)
}

pub(crate) fn block_size_with_flags(
    grid: Out<c_int>,
    block: Out<c_int>,
    of: Function,
    to_shared: BlockToShared,
    dynamic: usize,
    limit: c_int,
    flags: c_uint,
) -> CudaResult<()> {
    check_flags(flags)?;
    let limit = u32::try_from(limit)
        .map_err(|_| invalid(format!("the block size limit must not be negative, not {limit}")))?;
    let suggestion = usage(of)?.suggest(limit, |threads| match to_shared {
        // SAFETY: the caller passes a function that accepts any block size.
        Some(to_shared) => unsafe { to_shared(threads as c_int) as u64 },
        None => dynamic as u64,
    });
    grid.give(suggestion.blocks as c_int)?;
    block.give(suggestion.threads as c_int)
}

pub(crate) fn dynamic_shared(
    to: Out<usize>,
    of: Function,
    blocks: c_int,
    block_size: c_int,
) -> CudaResult<()> {
    let threads = threads(block_size)?;
    let wanted = u32::try_from(blocks).ok().filter(|&blocks| blocks > 0);
    let wanted = wanted.ok_or_else(|| invalid(format!("{blocks} blocks: there must be at least one")))?;
    let bytes = usage(of)?.dynamic_shared(wanted, threads).ok_or_else(|| {
        invalid(format!(
            "{blocks} blocks of {threads} threads can't be resident on one multiprocessor at the same time"
        ))
    })?;
    to.give(bytes as usize)
}

/// Checks a launch configuration and returns it.
fn config(of: Source<LaunchConfig>) -> CudaResult<(LaunchConfig, u32)> {
    let config = of.value("the launch configuration")?;
    engine::get()?.check_stream(StreamHandle(config.stream as u64))?;
    let [x, y, z] = config.block;
    let threads = [x, y, z].into_iter().try_fold(1u32, u32::checked_mul).filter(|&threads| threads > 0);
    let threads = threads.ok_or_else(|| invalid(format!("a block can't have {x} x {y} x {z} threads")))?;
    if config.grid.contains(&0) {
        let [x, y, z] = config.grid;
        return Err(invalid(format!("a grid can't have {x} x {y} x {z} blocks")));
    }
    Ok((config, threads))
}

pub(crate) fn cluster_size(to: Out<c_int>, of: Function, launch: Source<LaunchConfig>) -> CudaResult<()> {
    usage(of)?;
    config(launch)?;
    to.give(engine::get()?.largest_cluster(FunctionHandle(of as u64))? as c_int)
}

pub(crate) fn clusters(to: Out<c_int>, of: Function, launch: Source<LaunchConfig>) -> CudaResult<()> {
    let usage = usage(of)?;
    let (config, threads) = config(launch)?;
    let attributes = config.attributes.values(config.attribute_count as usize)?;
    let LaunchConfig { grid, block, dynamic_shared, .. } = config;
    let shape = LaunchShape { grid, block, dynamic_shared, cluster: stated_cluster(&attributes) };
    let Some(size) = engine::get()?.cluster(FunctionHandle(of as u64), &shape)? else {
        let message = "cuOccupancyMaxActiveClusters: the launch configuration has no cluster size";
        return Err(Error::new(CudaStatus::InvalidClusterSize, message));
    };
    let blocks = usage.blocks(threads, u64::from(dynamic_shared)) * MULTIPROCESSORS;
    to.give((blocks / size.into_iter().product::<u32>()) as c_int)
}
