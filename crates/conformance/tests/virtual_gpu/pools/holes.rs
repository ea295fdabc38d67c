//! Memory pools: where freed memory leaves holes, and which of them later allocations can use.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemPool_attribute as Attribute, CUmemoryPool, CUresult};
use cudarc::driver::{CudaSlice, CudaStream, DriverError, result};
use lab::Check;

use super::{MIB, create, default_pool, figure, figures, properties, set_figure, stream};
use crate::fails;
use crate::frees::hold;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("pools::freed_memory_leaves_holes", holes),
        Check::new("pools::equal_sizes_reuse_holes", equal_sizes),
        Check::new("pools::neighboring_holes_are_one", neighbors),
        Check::new("pools::whole_free_granules_are_remapped", remapped),
        Check::new("pools::trimming_releases_only_whole_free_granules", trimmed),
        Check::new("pools::only_its_own_stream_reuses_memory_before_the_free_is_done", own_stream),
        Check::new("pools::a_fragmented_pool_may_have_no_room", no_room),
        Check::new("pools::memory_held_by_a_pool_is_not_free", held),
    ]
}

fn allocate(stream: &Arc<CudaStream>, bytes: u64) -> Result<CudaSlice<u8>, DriverError> {
    // SAFETY: the bytes are never read.
    unsafe { stream.alloc(bytes as usize) }
}

/// Allocates eight buffers of 1 MiB, which fill four granules, and frees the ones with these numbers. The pool holds
/// its memory until it is trimmed.
fn eight(stream: &Arc<CudaStream>, freed: &[usize]) -> anyhow::Result<Vec<CudaSlice<u8>>> {
    let threshold = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    set_figure(default_pool(0)?, threshold, u64::MAX)?;
    let buffers = (0..8).map(|_| allocate(stream, MIB)).collect::<Result<Vec<_>, _>>()?;
    let all = buffers.into_iter().enumerate();
    let kept = all.filter(|(number, _)| !freed.contains(number)).map(|(_, buffer)| buffer).collect();
    stream.synchronize()?;
    Ok(kept)
}

/// The numbers of every other buffer.
const EVERY_OTHER: [usize; 4] = [0, 2, 4, 6];

/// The example in the lesson `multi_gpu/pools`, with the same numbers.
fn holes() -> anyhow::Result<()> {
    let (stream, pool) = (stream(0)?, default_pool(0)?);
    let all = eight(&stream, &[])?;
    assert_eq!(figures(pool)?, [8 * MIB; 4]);
    let kept: Vec<_> = all.into_iter().skip(1).step_by(2).collect();
    // Each granule backs an outstanding allocation, so nothing can be released.
    set_figure(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0)?;
    stream.synchronize()?;
    assert_eq!(figures(pool)?, [4 * MIB, 8 * MIB, 8 * MIB, 8 * MIB]);
    // 4 MiB are free, and the pool grows by 4 MiB.
    let long = allocate(&stream, 4 * MIB)?;
    assert_eq!(figures(pool)?, [8 * MIB, 8 * MIB, 12 * MIB, 12 * MIB]);
    drop(long);
    stream.synchronize()?;
    assert_eq!(figures(pool)?, [4 * MIB, 8 * MIB, 8 * MIB, 12 * MIB]);
    drop(kept);
    stream.synchronize()?;
    assert_eq!(figures(pool)?, [0, 8 * MIB, 0, 12 * MIB]);
    Ok(())
}

fn equal_sizes() -> anyhow::Result<()> {
    let (stream, pool) = (stream(0)?, default_pool(0)?);
    let kept = eight(&stream, &EVERY_OTHER)?;
    let again = EVERY_OTHER.map(|_| allocate(&stream, MIB));
    assert_eq!(figures(pool)?, [8 * MIB; 4]);
    drop((kept, again));
    Ok(())
}

fn neighbors() -> anyhow::Result<()> {
    let (stream, pool) = (stream(0)?, default_pool(0)?);
    let kept = eight(&stream, &[1, 2, 5])?;
    let long = allocate(&stream, 2 * MIB)?;
    assert_eq!(figures(pool)?[2], 8 * MIB);
    drop((kept, long));
    Ok(())
}

fn remapped() -> anyhow::Result<()> {
    let (stream, pool) = (stream(0)?, default_pool(0)?);
    // The second and fourth granules are free, and so is 1 MiB of the third.
    let kept = eight(&stream, &[2, 3, 5, 6, 7])?;
    assert_eq!(figures(pool)?, [3 * MIB, 8 * MIB, 8 * MIB, 8 * MIB]);
    let long = allocate(&stream, 5 * MIB)?;
    assert_eq!(figures(pool)?, [8 * MIB; 4]);
    drop((kept, long));
    Ok(())
}

fn trimmed() -> anyhow::Result<()> {
    let (stream, pool) = (stream(0)?, default_pool(0)?);
    // Three of the four granules are free.
    let kept = eight(&stream, &[0, 1, 2, 3, 5, 6, 7])?;
    let trim_to = |keep: u64| -> anyhow::Result<[u64; 4]> {
        // SAFETY: the pool is alive.
        unsafe { result::mem_pool::trim_to(pool, keep as usize) }?;
        figures(pool)
    };
    assert_eq!(trim_to(9 * MIB)?, [MIB, 8 * MIB, 8 * MIB, 8 * MIB]);
    // At least this many bytes remain.
    assert_eq!(trim_to(5 * MIB)?[2], 6 * MIB);
    assert_eq!(trim_to(0)?[2], 2 * MIB);
    // Setting a high-water mark to 0 resets it to the current value.
    set_figure(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
    assert_eq!(figures(pool)?, [MIB, 8 * MIB, 2 * MIB, 2 * MIB]);
    drop(kept);
    assert_eq!(trim_to(0)?, [0, 8 * MIB, 0, 2 * MIB]);
    Ok(())
}

fn own_stream() -> anyhow::Result<()> {
    let (own, pool) = (stream(0)?, default_pool(0)?);
    let other = own.context().new_stream()?;
    let buffer = allocate(&own, 4 * MIB)?;
    own.synchronize()?;
    let let_go = hold(&own)?;
    drop(buffer);
    assert_eq!(figures(pool)?, [4 * MIB; 4]);
    let elsewhere = allocate(&other, 4 * MIB)?;
    assert_eq!(figures(pool)?, [8 * MIB; 4]);
    let again = allocate(&own, 3 * MIB)?;
    assert_eq!(figures(pool)?, [8 * MIB; 4]);
    let_go();
    own.synchronize()?;
    // The free is done, but 3 of its 4 MiB are in use again.
    assert_eq!(figures(pool)?, [7 * MIB, 8 * MIB, 8 * MIB, 8 * MIB]);
    drop((elsewhere, again));
    Ok(())
}

/// Allocates from a pool, for the rest of the process.
fn allocate_from(pool: CUmemoryPool, bytes: u64, stream: &CudaStream) -> Result<u64, DriverError> {
    // SAFETY: the pool and the stream are alive.
    unsafe { result::mem_pool::alloc_async(pool, bytes as usize, stream.cu_stream()) }
}

fn free(address: u64, stream: &CudaStream) -> Result<(), DriverError> {
    // SAFETY: the caller frees each address once.
    unsafe { result::free_async(address, stream.cu_stream()) }
}

fn no_room() -> anyhow::Result<()> {
    let stream = stream(0)?;
    let pool = create(&sys::CUmemPoolProps { maxSize: 4 << 20, ..properties(0) })?;
    let addresses =
        (0..4).map(|_| allocate_from(pool, MIB, &stream)).collect::<Result<Vec<_>, DriverError>>()?;
    free(addresses[0], &stream)?;
    free(addresses[2], &stream)?;
    let words = ["may hold 4 MiB, but 2 MiB were requested; the pool has 2 MiB in holes of at most 1 MiB"];
    let refused = allocate_from(pool, 2 * MIB, &stream);
    fails(refused, CUresult::CUDA_ERROR_OUT_OF_MEMORY, &words);
    free(addresses[1], &stream)?;
    let long = allocate_from(pool, 3 * MIB, &stream)?;
    assert_eq!(figures(pool)?, [4 * MIB; 4]);
    free(long, &stream)?;
    Ok(free(addresses[3], &stream)?)
}

fn held() -> anyhow::Result<()> {
    let stream = stream(0)?;
    let (_, all) = result::mem_get_info()?;
    let part = all as u64 / 16;
    let pool = create(&properties(0))?;
    set_figure(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
    for address in (0..15).map(|_| allocate_from(pool, part, &stream)).collect::<Vec<_>>() {
        free(address?, &stream)?;
    }
    stream.synchronize()?;
    assert_eq!(figure(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?, 15 * part);
    assert_eq!(result::mem_get_info()?.0 as u64, part);
    // Another pool does not get the memory before this one releases it.
    let default = default_pool(0)?;
    let refused = allocate_from(default, 2 * part, &stream);
    fails(
        refused,
        CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        &["GPU 0 has 5120 MiB free, but 10240 MiB were requested"],
    );
    // SAFETY: the pool is alive, and not used below.
    unsafe {
        result::mem_pool::trim_to(pool, 0)?;
        result::mem_pool::destroy(pool)?;
    }
    free(allocate_from(default, 2 * part, &stream)?, &stream)?;
    stream.synchronize()?;
    assert_eq!(result::mem_get_info()?, (all, all));
    Ok(())
}
