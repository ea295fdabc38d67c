//! The bodies of the virtual memory functions, and of those that say which GPU may access memory.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use virtual_gpu::engine::{GRANULARITY, MakeShared, MemoryAccess, MemoryHandle, PoolHandle};
use virtual_gpu_core::status::{CudaResult, invalid, unsupported};

use crate::engine;
use crate::managed::MemoryLocation;
use crate::pointer::{Out, Source};
use crate::pool::Pool;
use crate::shared_memory;
use crate::types::DevicePointer;

/// `CUmemAllocationProp`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AllocationProperties {
    pub(crate) allocation_type: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location: MemoryLocation,
    pub(crate) handle_metadata: *const c_void,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemAccessDesc`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AccessDescription {
    pub(crate) location: MemoryLocation,
    pub(crate) flags: c_uint,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: c_uint = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub(crate) const POSIX_FILE_DESCRIPTOR: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`, `CU_MEM_LOCATION_TYPE_HOST_NUMA`, and `CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT`
const ON_HOST: std::ops::RangeInclusive<c_uint> = 2..=4;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`
const PROTECTED: c_uint = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ`
const READABLE: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const WRITABLE: c_uint = 3;
/// The most locations that one call may list, which is more than any machine has.
const MOST_LOCATIONS: usize = 4096;

fn check_flags(flags: c_ulonglong, function: &str) -> CudaResult<()> {
    match flags {
        0 => Ok(()),
        _ => Err(invalid(format!("{function}: the flags must be 0, not {flags:#x}"))),
    }
}

/// Returns the GPU at a location.
fn gpu(location: MemoryLocation, function: &str) -> CudaResult<usize> {
    match location.kind {
        ON_DEVICE => engine::get()?.check_device(location.id),
        kind if ON_HOST.contains(&kind) => Err(unsupported(format_args!("{function} for host memory"))),
        kind => Err(invalid(format!("{function}: there is no location type {kind}"))),
    }
}

/// Returns the GPU that memory with these properties is on.
fn gpu_of(properties: &AllocationProperties, function: &str) -> CudaResult<usize> {
    if properties.allocation_type != PINNED {
        let message =
            format!("{function}: the allocation type must be 1 (pinned), not {}", properties.allocation_type);
        return Err(invalid(message));
    }
    gpu(properties.location, function)
}

pub(crate) fn granularity(
    to: Out<usize>,
    properties: Source<AllocationProperties>,
    option: c_uint,
) -> CudaResult<()> {
    const FUNCTION: &str = "cuMemGetAllocationGranularity";
    gpu_of(&properties.value("the properties of the memory")?, FUNCTION)?;
    if option > 1 {
        return Err(invalid(format!("{FUNCTION}: there is no option {option}")));
    }
    to.give(GRANULARITY as usize)
}

pub(crate) fn reserve(
    to: Out<DevicePointer>,
    size: usize,
    alignment: usize,
    _hint: DevicePointer,
    flags: c_ulonglong,
) -> CudaResult<()> {
    to.check("cuMemAddressReserve: the pointer to the result")?;
    check_flags(flags, "cuMemAddressReserve")?;
    to.give(engine::get()?.reserve(size as u64, alignment as u64)?)
}

pub(crate) fn free(address: DevicePointer, size: usize) -> CudaResult<()> {
    engine::get()?.free_reservation(address, size as u64)
}

pub(crate) fn create(
    to: Out<c_ulonglong>,
    size: usize,
    properties: Source<AllocationProperties>,
    flags: c_ulonglong,
) -> CudaResult<()> {
    const FUNCTION: &str = "cuMemCreate";
    to.check(&format!("{FUNCTION}: the pointer to the result"))?;
    check_flags(flags, FUNCTION)?;
    let properties = properties.value("the properties of the memory")?;
    let device = gpu_of(&properties, FUNCTION)?;
    let make: Option<MakeShared> = match properties.handle_types {
        0 => None,
        POSIX_FILE_DESCRIPTOR => Some(shared_memory::make_physical),
        other => return Err(unsupported(format_args!("memory shared through handles of type {other:#x}"))),
    };
    if properties.usage != 0 {
        return Err(unsupported(format_args!("memory for usage {:#x}", properties.usage)));
    }
    if properties.reserved != [0; 4] {
        return Err(invalid("cuMemCreate: the reserved bytes of the properties must be 0"));
    }
    to.give(engine::get()?.create_memory(device, size as u64, make)?.0)
}

pub(crate) fn release(handle: c_ulonglong) -> CudaResult<()> {
    engine::get()?.release_memory(MemoryHandle(handle))
}

/// Returns the properties of memory. Compression is a wish that is not granted.
pub(crate) fn properties(to: Out<AllocationProperties>, handle: c_ulonglong) -> CudaResult<()> {
    let engine = engine::get()?;
    let device = engine.device_of_memory(MemoryHandle(handle))?;
    let is_shareable = engine.is_shareable(MemoryHandle(handle))?;
    to.give(AllocationProperties {
        allocation_type: PINNED,
        handle_types: if is_shareable { POSIX_FILE_DESCRIPTOR } else { 0 },
        location: MemoryLocation { kind: ON_DEVICE, id: device as c_int },
        handle_metadata: std::ptr::null(),
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    })
}

pub(crate) fn retain(to: Out<c_ulonglong>, address: *mut c_void) -> CudaResult<()> {
    to.check("cuMemRetainAllocationHandle: the pointer to the result")?;
    to.give(engine::get()?.retain_memory(address as u64)?.0)
}

pub(crate) fn map(
    address: DevicePointer,
    size: usize,
    offset: usize,
    handle: c_ulonglong,
    flags: c_ulonglong,
) -> CudaResult<()> {
    check_flags(flags, "cuMemMap")?;
    if offset != 0 {
        return Err(invalid(format!("cuMemMap: the offset must be 0, not {offset}")));
    }
    engine::get()?.map_memory(address, size as u64, MemoryHandle(handle))
}

pub(crate) fn unmap(address: DevicePointer, size: usize) -> CudaResult<()> {
    engine::get()?.unmap_memory(address, size as u64)
}

/// Reads a list of who may access memory.
pub(crate) fn accesses(
    list: Source<AccessDescription>,
    count: usize,
    function: &str,
) -> CudaResult<Vec<(usize, MemoryAccess)>> {
    if count == 0 || count > MOST_LOCATIONS {
        return Err(invalid(format!("{function}: {count} is not a number of locations")));
    }
    let access = |AccessDescription { location, flags }| {
        let access = match flags {
            PROTECTED => MemoryAccess::None,
            WRITABLE => MemoryAccess::ReadWrite,
            READABLE => return Err(unsupported(format_args!("{function} for reading only"))),
            _ => return Err(invalid(format!("{function}: {flags} are not access flags"))),
        };
        Ok((gpu(location, function)?, access))
    };
    list.values(count)?.into_iter().map(access).collect()
}

fn flags(access: MemoryAccess) -> c_uint {
    match access {
        MemoryAccess::None => PROTECTED,
        MemoryAccess::ReadWrite => WRITABLE,
    }
}

pub(crate) fn set_access(
    address: DevicePointer,
    size: usize,
    list: Source<AccessDescription>,
    count: usize,
) -> CudaResult<()> {
    let engine = engine::get()?;
    let accesses = accesses(list, count, "cuMemSetAccess")?;
    accesses
        .into_iter()
        .try_for_each(|(device, access)| engine.set_access(address, size as u64, device, access))
}

pub(crate) fn access(
    to: Out<c_ulonglong>,
    location: Source<MemoryLocation>,
    address: DevicePointer,
) -> CudaResult<()> {
    let device = gpu(location.value("the location")?, "cuMemGetAccess")?;
    to.give(flags(engine::get()?.access(address, device)?).into())
}

/// `cuMemPoolSetAccess`. A pool's own GPU can always access its memory.
pub(crate) fn set_pool_access(pool: Pool, list: Source<AccessDescription>, count: usize) -> CudaResult<()> {
    let (engine, pool) = (engine::get()?, PoolHandle(pool as u64));
    let owner = engine.device_of_pool(pool)?;
    for (device, access) in accesses(list, count, "cuMemPoolSetAccess")? {
        match access {
            MemoryAccess::None if device == owner => {
                return Err(unsupported("cuMemPoolSetAccess that excludes the pool's own GPU"));
            }
            access if device != owner => {
                engine.set_pool_access(pool, device, access == MemoryAccess::ReadWrite)?;
            }
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn pool_access(to: Out<c_uint>, pool: Pool, location: Source<MemoryLocation>) -> CudaResult<()> {
    let (engine, pool) = (engine::get()?, PoolHandle(pool as u64));
    engine.device_of_pool(pool)?;
    let device = gpu(location.value("the location")?, "cuMemPoolGetAccess")?;
    let can_access = engine.pool_access(pool, device)?;
    to.give(flags(if can_access { MemoryAccess::ReadWrite } else { MemoryAccess::None }))
}
