//! The bodies of the memory pool functions.

use std::ffi::{c_int, c_uint, c_void};

use virtual_gpu::engine::{PoolFigure, PoolHandle};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::engine;
use crate::pointer::{Out, Source};
use crate::shared_file::{Kind, SharedFile};
use crate::shared_memory;
use crate::types::{Device, DevicePointer, Stream};
use crate::virtual_memory::POSIX_FILE_DESCRIPTOR;

/// `CUmemoryPool`
pub type Pool = *mut c_void;

/// `CUmemPoolProps`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PoolProperties {
    pub(crate) allocation_type: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location_type: c_uint,
    pub(crate) location: c_int,
    pub(crate) security: *const c_void,
    pub(crate) max_size: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, the only type.
const PINNED: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA`
const ON_HOST_NODE: c_uint = 3;
/// All bits of `CUmemAllocationHandleType`.
const HANDLE_TYPES: c_uint = 0xf;

fn unsupported(what: impl std::fmt::Display) -> Error<CudaStatus> {
    Error::new(CudaStatus::NotSupported, format!("virtual GPU: memory pools {what} are not supported"))
}

fn pool(pool: Pool) -> PoolHandle {
    PoolHandle(pool as u64)
}

pub(crate) fn default_of(to: Out<Pool>, device: Device) -> CudaResult<()> {
    to.give(engine::get()?.default_pool(device)?.0 as Pool)
}

pub(crate) fn current_of(to: Out<Pool>, device: Device) -> CudaResult<()> {
    to.give(engine::get()?.current_pool(device)?.0 as Pool)
}

pub(crate) fn set_current(device: Device, of: Pool) -> CudaResult<()> {
    engine::get()?.set_current_pool(device, pool(of))
}

impl PoolProperties {
    /// Returns the properties of a pool on a GPU.
    pub(crate) fn on(device: usize) -> Self {
        Self {
            allocation_type: PINNED,
            handle_types: 0,
            location_type: ON_DEVICE,
            location: device as c_int,
            security: std::ptr::null(),
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

pub(crate) fn create(to: Out<Pool>, properties: Source<PoolProperties>) -> CudaResult<()> {
    let wanted = properties.value("the properties of the memory pool")?;
    to.check("the pointer to the memory pool")?;
    let device = check_properties(&wanted)?;
    let engine = engine::get()?;
    let file = match wanted.handle_types {
        POSIX_FILE_DESCRIPTOR => {
            let file = SharedFile::new(Kind::Pool, 0, engine.physical(device)).map_err(|error| {
                let message = format!("cuMemPoolCreate: can't share a memory pool: {error}");
                Error::new(CudaStatus::OperatingSystem, message)
            })?;
            Some(file)
        }
        _ => None,
    };
    let made = engine.create_pool(wanted.location, wanted.max_size as u64)?;
    if let Some(file) = file {
        engine.make_pool_shareable(made, shared_memory::name_of_pool(file))?;
    }
    to.give(made.0 as Pool)
}

/// Checks the properties of a memory pool or of an allocation in a graph. Returns the GPU.
pub(crate) fn check_properties(wanted: &PoolProperties) -> CudaResult<usize> {
    if wanted.allocation_type != PINNED {
        let message =
            format!("a memory pool's allocation type must be 1 (pinned), not {}", wanted.allocation_type);
        return Err(invalid(message));
    }
    match wanted.location_type {
        ON_DEVICE => {}
        ON_HOST_NODE => return Err(unsupported("in host memory")),
        other => return Err(invalid(format!("a memory pool can't have location type {other}"))),
    }
    let device = engine::get()?.check_device(wanted.location).map_err(|error| invalid(&*error.message))?;
    if wanted.handle_types & !HANDLE_TYPES != 0 {
        return Err(invalid(format!("{:#x} are not handle types", wanted.handle_types)));
    }
    if !matches!(wanted.handle_types, 0 | POSIX_FILE_DESCRIPTOR) {
        return Err(unsupported(format_args!("shared through handles of type {:#x}", wanted.handle_types)));
    }
    if !wanted.security.is_null() || wanted.reserved != [0; 54] {
        return Err(invalid("a memory pool's win32SecurityAttributes field and reserved bytes must be 0"));
    }
    if wanted.usage != 0 {
        return Err(unsupported(format_args!("for usage {:#x}", wanted.usage)));
    }
    Ok(device)
}

pub(crate) fn destroy(of: Pool) -> CudaResult<()> {
    engine::get()?.destroy_pool(pool(of))
}

pub(crate) fn trim(of: Pool, keep: usize) -> CudaResult<()> {
    engine::get()?.trim_pool(pool(of), keep as u64)
}

/// Reads an attribute. A flag is an `int`; any other attribute has 8 bytes.
pub(crate) fn attribute(of: Pool, attribute: c_uint, value: Out<u8>) -> CudaResult<()> {
    let figure = PoolFigure::from_number(attribute)?;
    let found = engine::get()?.pool_figure(pool(of), figure)?;
    match figure {
        PoolFigure::Reuse(_) => value.give_all(&(found as c_int).to_ne_bytes()),
        _ => value.give_all(&found.to_ne_bytes()),
    }
}

pub(crate) fn set_attribute(of: Pool, attribute: c_uint, value: Source<u8>) -> CudaResult<()> {
    let figure = PoolFigure::from_number(attribute)?;
    let bytes = value.values(if matches!(figure, PoolFigure::Reuse(_)) { 4 } else { 8 })?;
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(&bytes);
    // The first bytes are the least significant.
    engine::get()?.set_pool_figure(pool(of), figure, u64::from_le_bytes(wide))
}

pub(crate) fn allocate(to: Out<DevicePointer>, bytes: usize, of: Pool, stream: Stream) -> CudaResult<()> {
    to.give(engine::get()?.allocate_from(pool(of), StreamHandle(stream as u64), bytes as u64)?)
}
