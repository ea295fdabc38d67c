//! Memory pools: how much memory they hold, and how much is in use.

mod holes;

use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemPool_attribute as Attribute, CUmemoryPool, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use lab::Check;

use crate::fails;

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = vec![
        Check::new("pools::a_pool_counts_what_is_used_and_held", counts),
        Check::new("pools::a_threshold_keeps_memory_until_it_is_trimmed", threshold),
        Check::new("pools::the_current_pool_serves_a_gpu_s_streams", current_pool),
        Check::new("pools::a_pool_of_another_gpu", pool_of_another_gpu),
        Check::new("pools::a_destroyed_pool_lives_as_long_as_its_memory", destroyed_in_use),
        Check::new("pools::a_bounded_pool_is_not_exceeded", bounded),
        Check::new("pools::nothing_can_be_allocated_and_freed", nothing),
        Check::new("pools::bad_arguments_are_named", bad_arguments),
    ];
    checks.extend(holes::checks());
    checks
}

const MIB: u64 = 1 << 20;

/// Returns the properties of a pool on GPU `device`.
fn properties(device: i32) -> sys::CUmemPoolProps {
    sys::CUmemPoolProps {
        allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        win32SecurityAttributes: std::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    }
}

fn create(properties: &sys::CUmemPoolProps) -> Result<CUmemoryPool, DriverError> {
    // SAFETY: the properties are valid.
    unsafe { result::mem_pool::create(properties) }
}

fn figure(pool: CUmemoryPool, attribute: Attribute) -> Result<u64, DriverError> {
    let mut value = 0u64;
    // SAFETY: no attribute is longer than 8 bytes.
    unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut value).cast()) }?;
    Ok(value)
}

fn set_figure(pool: CUmemoryPool, attribute: Attribute, mut value: u64) -> Result<(), DriverError> {
    // SAFETY: no attribute is longer than 8 bytes.
    unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut value).cast()) }
}

/// Returns the bytes in use and the bytes held, each as the current value and the maximum.
fn figures(pool: CUmemoryPool) -> anyhow::Result<[u64; 4]> {
    Ok([
        figure(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        figure(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        figure(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
        figure(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
    ])
}

fn stream(gpu: usize) -> anyhow::Result<Arc<CudaStream>> {
    Ok(CudaContext::new(gpu)?.new_stream()?)
}

fn default_pool(device: i32) -> Result<CUmemoryPool, DriverError> {
    // SAFETY: a nonexistent device is rejected.
    unsafe { result::device::get_default_mem_pool(device) }
}

fn counts() -> anyhow::Result<()> {
    let stream = stream(0)?;
    let pool = default_pool(0)?;
    assert_eq!(figures(pool)?, [0; 4]);
    let first = stream.alloc_zeros::<u8>(3 << 20)?;
    let second = stream.alloc_zeros::<u8>(100)?;
    assert_eq!(figures(pool)?, [3 * MIB + 100, 3 * MIB + 100, 4 * MIB, 4 * MIB]);
    drop(first);
    // The memory was freed in stream order, and is released at the next synchronization.
    assert_eq!(figures(pool)?, [100, 3 * MIB + 100, 4 * MIB, 4 * MIB]);
    stream.synchronize()?;
    assert_eq!(figures(pool)?, [100, 3 * MIB + 100, 2 * MIB, 4 * MIB]);
    set_figure(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)?;
    set_figure(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
    assert_eq!(figures(pool)?, [100, 100, 2 * MIB, 2 * MIB]);
    // Memory from cuMemAlloc does not come from a pool.
    // SAFETY: the memory is never read.
    let plain = unsafe { result::malloc_sync(1 << 20) }?;
    assert_eq!(figures(pool)?[0], 100);
    // SAFETY: the memory was allocated above, and is freed once.
    unsafe { result::free_sync(plain) }?;
    drop(second);
    Ok(())
}

fn threshold() -> anyhow::Result<()> {
    let stream = stream(0)?;
    let pool = default_pool(0)?;
    set_figure(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 6 * MIB)?;
    assert_eq!(figure(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)?, 6 * MIB);
    drop(stream.alloc_zeros::<u8>(10 << 20)?);
    stream.synchronize()?;
    assert_eq!(figures(pool)?, [0, 10 * MIB, 6 * MIB, 10 * MIB]);
    // SAFETY: the pool is alive.
    unsafe { result::mem_pool::trim_to(pool, 100 << 20) }?;
    assert_eq!(figures(pool)?[2], 6 * MIB);
    // SAFETY: as above.
    unsafe { result::mem_pool::trim_to(pool, 0) }?;
    assert_eq!(figures(pool)?[2], 0);

    let reuse = Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
    assert_eq!(figure(pool, reuse)?, 1);
    set_figure(pool, reuse, 0)?;
    assert_eq!(figure(pool, reuse)?, 0);
    Ok(())
}

fn current_pool() -> anyhow::Result<()> {
    let stream = stream(0)?;
    let (default, own) = (default_pool(0)?, create(&properties(0))?);
    // SAFETY: the pools are alive.
    unsafe {
        assert_eq!(result::device::get_mem_pool(0)?, default);
        result::device::set_mem_pool(0, own)?;
        assert_eq!(result::device::get_mem_pool(0)?, own);
        assert_eq!(default_pool(0)?, default);
    }
    let buffer = stream.alloc_zeros::<u8>(1000)?;
    assert_eq!((figures(own)?[0], figures(default)?[0]), (1000, 0));
    // SAFETY: the pool is not used below.
    unsafe { result::mem_pool::destroy(own) }?;
    // SAFETY: the call needs only a device.
    assert_eq!(unsafe { result::device::get_mem_pool(0) }?, default);
    assert_eq!(stream.clone_dtoh(&buffer)?, [0; 1000]);
    Ok(())
}

fn pool_of_another_gpu() -> anyhow::Result<()> {
    let _context = CudaContext::new(1)?;
    let stream = stream(0)?;
    let pool = create(&properties(1))?;
    let words = ["a memory pool of GPU 1 can't be the current one of GPU 0"];
    // SAFETY: the pool and the stream are alive, and the memory is freed once.
    unsafe {
        fails(result::device::set_mem_pool(0, pool), CUresult::CUDA_ERROR_INVALID_VALUE, &words);
        let address = result::mem_pool::alloc_async(pool, 64, stream.cu_stream())?;
        result::memset_d8_async(address, 3, 64, stream.cu_stream())?;
        let mut bytes = [0u8; 64];
        result::memcpy_dtoh_async(&mut bytes, address, stream.cu_stream())?;
        assert_eq!(bytes, [3; 64]);
        assert_eq!(figures(pool)?[0], 64);
        result::free_async(address, stream.cu_stream())?;
    }
    assert_eq!(figures(pool)?[0], 0);
    Ok(())
}

fn destroyed_in_use() -> anyhow::Result<()> {
    let stream = stream(0)?;
    let pool = create(&properties(0))?;
    // SAFETY: the pool is alive until it is destroyed; the memory is freed once.
    unsafe {
        let address = result::mem_pool::alloc_async(pool, 64, stream.cu_stream())?;
        result::mem_pool::destroy(pool)?;
        result::memset_d8_async(address, 3, 64, stream.cu_stream())?;
        let more = result::mem_pool::alloc_async(pool, 64, stream.cu_stream());
        fails(more, CUresult::CUDA_ERROR_INVALID_VALUE, &["is not a memory pool, or is no longer one"]);
        result::free_sync(address)?;
    }
    Ok(stream.synchronize()?)
}

fn bounded() -> anyhow::Result<()> {
    let stream = stream(0)?;
    // The maximum is rounded up to granules of 2 MiB.
    let pool = create(&sys::CUmemPoolProps { maxSize: 3 << 20, ..properties(0) })?;
    // SAFETY: the pool and the stream are alive.
    unsafe {
        let address = result::mem_pool::alloc_async(pool, 4 << 20, stream.cu_stream())?;
        let words = ["the memory pool of GPU 0 may hold 4 MiB, but 5 bytes were requested"];
        let more = result::mem_pool::alloc_async(pool, 5, stream.cu_stream());
        fails(more, CUresult::CUDA_ERROR_OUT_OF_MEMORY, &words);
        result::free_async(address, stream.cu_stream())?;
        let all = result::mem_pool::alloc_async(pool, 3 << 20, stream.cu_stream())?;
        result::free_async(all, stream.cu_stream())?;
    }
    Ok(())
}

/// CUDA's manual lists 0 bytes as an error of `cuMemAlloc`, but not of `cuMemAllocAsync`. cubecl allocates 0 bytes for
/// each kernel that has no metadata.
fn nothing() -> anyhow::Result<()> {
    let stream = stream(0)?;
    let default = default_pool(0)?;
    // SAFETY: no byte of the memory is used, and each allocation is freed once.
    unsafe {
        for made in [
            result::malloc_async(stream.cu_stream(), 0)?,
            result::mem_pool::alloc_async(default, 0, stream.cu_stream())?,
        ] {
            assert_eq!(made, 0);
            result::free_async(made, stream.cu_stream())?;
        }
        fails(result::malloc_sync(0), CUresult::CUDA_ERROR_INVALID_VALUE, &["can't allocate 0 bytes"]);
    }
    let empty = stream.alloc_zeros::<f32>(0)?;
    assert_eq!(stream.clone_dtoh(&empty)?, Vec::<f32>::new());
    assert_eq!(figure(default, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, 0);
    Ok(())
}

fn bad_arguments() -> anyhow::Result<()> {
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let default = default_pool(0)?;
    fails(create(&properties(8)), invalid, &["there is no GPU 8"]);
    let host = |kind| sys::CUmemLocation { type_: kind, id: 0 };
    let node = host(sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA);
    let unsupported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    let made = create(&sys::CUmemPoolProps { location: node, ..properties(0) });
    fails(made, unsupported, &["memory pools in host memory"]);
    let host = host(sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST);
    let made = create(&sys::CUmemPoolProps { location: host, ..properties(0) });
    fails(made, invalid, &["location type 2"]);
    let handles = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
    let made = create(&sys::CUmemPoolProps { handleTypes: handles, ..properties(0) });
    fails(made, unsupported, &["shared through handles of type 0x8"]);
    let made = create(&sys::CUmemPoolProps { reserved: [1; 54], ..properties(0) });
    fails(made, invalid, &["reserved bytes must be 0"]);

    let used = Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    fails(set_figure(default, used, 0), invalid, &["can only be read"]);
    let high = Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    fails(set_figure(default, high, 7), invalid, &["can only be set to 0, not to 7"]);
    fails(default_pool(9), CUresult::CUDA_ERROR_INVALID_DEVICE, &["no GPU 9"]);
    // SAFETY: an invalid pool is refused.
    unsafe {
        let words = ["the default memory pool of GPU 0 can't be destroyed"];
        fails(result::mem_pool::destroy(default), invalid, &words);
        let unknown = 0x44_0000 as CUmemoryPool;
        fails(result::mem_pool::trim_to(unknown, 0), invalid, &["0x440000 is not a memory pool"]);
    }
    Ok(())
}
