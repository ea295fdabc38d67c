//! The device memory functions: allocations, copies, and memsets.

use std::ffi::c_uint;
use std::sync::Arc;

use virtual_gpu_core::status::CudaResult;

use crate::engine;
use crate::guard::Rights;
use crate::host_range::HostRange;
use crate::pointer::{Out, Source};
use crate::stream::synchronize_stream;
use crate::types::{Context, DevicePointer, Stream, stream};

pub(crate) fn allocate(to: Out<DevicePointer>, bytes: usize) -> CudaResult<()> {
    engine::may_synchronize("cuMemAlloc");
    to.give(engine::get()?.allocate(bytes as u64)?)
}

pub(crate) fn allocate_in(to: Out<DevicePointer>, bytes: usize, of: Stream) -> CudaResult<()> {
    to.give(engine::get()?.allocate_in(stream(of), bytes as u64)?)
}

pub(crate) fn free(address: DevicePointer) -> CudaResult<()> {
    engine::may_synchronize("cuMemFree");
    engine::get()?.free(address)
}

pub(crate) fn free_in(address: DevicePointer, of: Stream) -> CudaResult<()> {
    engine::get()?.free_in(stream(of), address)
}

pub(crate) fn memory_info(free: Out<usize>, total: Out<usize>) -> CudaResult<()> {
    let (free_bytes, total_bytes) = engine::get()?.memory_info()?;
    free.give(free_bytes as usize)?;
    total.give(total_bytes as usize)
}

pub(crate) fn copy_from_host(to: DevicePointer, from: Source<u8>, bytes: usize) -> CudaResult<()> {
    let host = HostRange::new(from.address(), bytes)?;
    engine::get()?.copy_from_host_now(to, bytes as u64, || host.read())
}

pub(crate) fn copy_from_host_in(
    to: DevicePointer,
    from: Source<u8>,
    bytes: usize,
    of: Stream,
) -> CudaResult<()> {
    let host = HostRange::new(from.address(), bytes)?;
    let kind = host.kind(Rights::Read)?;
    engine::get()?.copy_from_host(stream(of), to, bytes as u64, Arc::new(move || host.read()), kind)
}

/// Copies to the host and waits for the copy to finish, whether the bytes go to pageable or pinned memory.
pub(crate) fn copy_to_host(to: Out<u8>, from: DevicePointer, bytes: usize) -> CudaResult<()> {
    let host = HostRange::new(to.address(), bytes)?;
    host.write(&engine::get()?.copy_to_host_now(from, bytes as u64)?);
    Ok(())
}

pub(crate) fn copy_to_host_in(to: Out<u8>, from: DevicePointer, bytes: usize, of: Stream) -> CudaResult<()> {
    let host = HostRange::new(to.address(), bytes)?;
    let kind = host.kind(Rights::None)?;
    let write = Arc::new(move |bytes: &[u8]| host.write(bytes));
    engine::get()?.copy_to_host(stream(of), from, bytes as u64, write, kind)
}

pub(crate) fn copy(to: DevicePointer, from: DevicePointer, bytes: usize) -> CudaResult<()> {
    copy_in(to, from, bytes, std::ptr::null_mut())?;
    wait_if_asked()
}

/// Finishes a copy between GPU addresses, or a memset, that has no stream argument. Returns immediately unless the
/// context requires synchronous copies.
fn wait_if_asked() -> CudaResult<()> {
    match engine::get()?.has_synchronous_copies()? {
        true => synchronize_stream(std::ptr::null_mut()),
        false => Ok(()),
    }
}

pub(crate) fn copy_in(to: DevicePointer, from: DevicePointer, bytes: usize, of: Stream) -> CudaResult<()> {
    engine::get()?.copy(stream(of), to, from, bytes as u64)
}

/// Copies between GPUs. With unified addressing, the addresses alone determine the contexts.
pub(crate) fn copy_peer(
    to: DevicePointer,
    _: Context,
    from: DevicePointer,
    _: Context,
    bytes: usize,
    of: Stream,
) -> CudaResult<()> {
    copy_in(to, from, bytes, of)
}

pub(crate) fn set_8(at: DevicePointer, value: u8, count: usize) -> CudaResult<()> {
    set_8_in(at, value, count, std::ptr::null_mut())?;
    wait_if_asked()
}

pub(crate) fn set_8_in(at: DevicePointer, value: u8, count: usize, of: Stream) -> CudaResult<()> {
    engine::get()?.set(stream(of), at, [value], count as u64)
}

pub(crate) fn set_16(at: DevicePointer, value: u16, count: usize) -> CudaResult<()> {
    set_16_in(at, value, count, std::ptr::null_mut())?;
    wait_if_asked()
}

pub(crate) fn set_16_in(at: DevicePointer, value: u16, count: usize, of: Stream) -> CudaResult<()> {
    engine::get()?.set(stream(of), at, value.to_le_bytes(), count as u64)
}

pub(crate) fn set_32(at: DevicePointer, value: c_uint, count: usize) -> CudaResult<()> {
    set_32_in(at, value, count, std::ptr::null_mut())?;
    wait_if_asked()
}

pub(crate) fn set_32_in(at: DevicePointer, value: c_uint, count: usize, of: Stream) -> CudaResult<()> {
    engine::get()?.set(stream(of), at, value.to_le_bytes(), count as u64)
}
