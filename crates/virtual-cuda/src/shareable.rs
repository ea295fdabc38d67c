//! The bodies of the functions that share memory and memory pools through file descriptors
//! (`cuMemExportToShareableHandle` and the like).
//!
//! The program passes a descriptor to another process itself, for example over a Unix socket.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;

use virtual_gpu::engine::{MemoryHandle, MemoryKind, PoolHandle};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::engine;
use crate::interprocess::IpcHandle;
use crate::pointer::{Out, Source};
use crate::pool::Pool;
use crate::shared_file::{Kind, Refused, SharedFile};
use crate::shared_memory;
use crate::types::DevicePointer;
use crate::virtual_memory::POSIX_FILE_DESCRIPTOR;

/// All bits of `CUmemAllocationHandleType`.
const HANDLE_TYPES: c_uint = 0xf;

/// Checks the pointer to the result, the type of a handle, and the flags.
///
/// # Errors
/// Returns `NotSupported` for any type other than a file descriptor, and `InvalidValue` for something else.
fn check<T: Copy>(function: &str, to: Out<T>, kind: c_uint, flags: c_ulonglong) -> CudaResult<()> {
    to.check(&format!("{function}: the pointer to the result"))?;
    if flags != 0 {
        return Err(invalid(format!("{function}: the flags must be 0, not {flags:#x}")));
    }
    match kind {
        POSIX_FILE_DESCRIPTOR => Ok(()),
        other if other.is_power_of_two() && other & HANDLE_TYPES != 0 => {
            let message = format!("virtual GPU: {function} for handles of type {other:#x} is not supported");
            Err(Error::new(CudaStatus::NotSupported, message))
        }
        other => Err(invalid(format!("{function}: {other:#x} is not a type of handle"))),
    }
}

/// Gives a descriptor to the program, which owns it from now on.
fn give(to: Out<u8>, descriptor: OwnedFd) -> CudaResult<()> {
    to.give_all(&descriptor.into_raw_fd().to_ne_bytes())
}

/// Maps the file that a program passes as a handle.
///
/// # Errors
/// Returns `InvalidValue` if it is not a file of this kind.
fn file(function: &str, handle: *mut c_void, kind: Kind, what: &str) -> CudaResult<SharedFile> {
    let number = handle as usize;
    match c_int::try_from(number).ok().map(|descriptor| SharedFile::of_descriptor(descriptor, kind)) {
        Some(Ok(file)) => Ok(file),
        Some(Err(Refused::System(error))) => {
            Err(invalid(format!("{function}: file descriptor {number}: {error}")))
        }
        _ => Err(invalid(format!("{function}: {number} is not a file descriptor of {what}"))),
    }
}

/// `cuMemExportToShareableHandle`
pub(crate) fn export_memory(
    to: Out<u8>,
    handle: c_ulonglong,
    kind: c_uint,
    flags: c_ulonglong,
) -> CudaResult<()> {
    check("cuMemExportToShareableHandle", to, kind, flags)?;
    give(to, engine::get()?.export_memory(MemoryHandle(handle))?)
}

/// `cuMemImportFromShareableHandle`. The program keeps its descriptor.
pub(crate) fn import_memory(to: Out<c_ulonglong>, handle: *mut c_void, kind: c_uint) -> CudaResult<()> {
    const FUNCTION: &str = "cuMemImportFromShareableHandle";
    check(FUNCTION, to, kind, 0)?;
    let engine = engine::get()?;
    let file = file(FUNCTION, handle, Kind::Physical, "memory from cuMemCreate")?;
    let gpu = file.gpu();
    to.give(engine.import_memory(shared_memory::of_file(Arc::new(file)), gpu)?.0)
}

/// `cuMemPoolExportToShareableHandle`
pub(crate) fn export_pool(to: Out<u8>, pool: Pool, kind: c_uint, flags: c_ulonglong) -> CudaResult<()> {
    const FUNCTION: &str = "cuMemPoolExportToShareableHandle";
    check(FUNCTION, to, kind, flags)?;
    let file = engine::get()?.file_of_pool(PoolHandle(pool as u64))?;
    let descriptor = file.descriptor().ok_or_else(|| {
        let message = format!("{FUNCTION}: can't duplicate the pool's file descriptor");
        Error::new(CudaStatus::OperatingSystem, message)
    })?;
    give(to, descriptor)
}

/// `cuMemPoolImportFromShareableHandle`
pub(crate) fn import_pool(
    to: Out<Pool>,
    handle: *mut c_void,
    kind: c_uint,
    flags: c_ulonglong,
) -> CudaResult<()> {
    const FUNCTION: &str = "cuMemPoolImportFromShareableHandle";
    check(FUNCTION, to, kind, flags)?;
    let engine = engine::get()?;
    let file = file(FUNCTION, handle, Kind::Pool, "a memory pool")?;
    let gpu = file.gpu();
    to.give(engine.import_pool(shared_memory::name_of_pool(file), gpu)?.0 as Pool)
}

/// `cuMemPoolExportPointer`
///
/// # Errors
/// Returns `InvalidValue` unless the address is in memory of a pool that can be shared.
pub(crate) fn export_pointer(to: Out<IpcHandle>, address: DevicePointer) -> CudaResult<()> {
    to.check("cuMemPoolExportPointer: the pointer to the result")?;
    let engine = engine::get()?;
    let found = engine.pointer(address)?.filter(|found| found.kind == MemoryKind::Gpu);
    let found = found.and_then(|found| Some((found, found.pool?)));
    let (found, pool) = found
        .ok_or_else(|| invalid(format!("cuMemPoolExportPointer: {address:#x} is not in memory of a pool")))?;
    let of_pool = engine.file_of_pool(pool)?.secret();
    let make = |size, gpu| shared_memory::make(Kind::Memory, size, gpu);
    let key = engine.share_allocation(found.base, make)?;
    to.give(IpcHandle::of(Kind::Memory, found.base, found.id, key, of_pool))
}

/// `cuMemPoolImportPointer`
///
/// # Errors
/// Returns `InvalidValue` unless the data is from the pool that the imported pool stands for.
pub(crate) fn import_pointer(to: Out<DevicePointer>, pool: Pool, data: Source<IpcHandle>) -> CudaResult<()> {
    const FUNCTION: &str = "cuMemPoolImportPointer";
    to.check("cuMemPoolImportPointer: the pointer to the result")?;
    let (engine, pool) = (engine::get()?, PoolHandle(pool as u64));
    let handle = data.value("the data of the pointer")?;
    handle.check(FUNCTION, Kind::Memory, "memory of a pool")?;
    if engine.file_of_pool(pool)?.secret() != handle.pool() {
        return Err(invalid("cuMemPoolImportPointer: the memory is from another pool"));
    }
    let file = handle.open(FUNCTION, Kind::Memory, "memory")?;
    to.give(engine.open_in_pool(pool, shared_memory::of_file(Arc::new(file)))?)
}
