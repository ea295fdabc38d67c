//! The device memory functions: allocations, copies, and memsets.

use std::ffi::c_uint;
use std::sync::Arc;

use virtual_gpu::engine::Region;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

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
    let pinned = host.pinned();
    engine::get()?.copy_from_host_now(line(to, bytes), Arc::new(move || host.read()), pinned)
}

pub(crate) fn copy_from_host_in(
    to: DevicePointer,
    from: Source<u8>,
    bytes: usize,
    of: Stream,
) -> CudaResult<()> {
    let host = HostRange::new(from.address(), bytes)?;
    let kind = host.kind(Rights::Read)?;
    engine::get()?.copy_from_host(stream(of), line(to, bytes), Arc::new(move || host.read()), kind)
}

/// Copies to the host and waits for the copy to finish, whether the bytes go to pageable or pinned memory.
pub(crate) fn copy_to_host(to: Out<u8>, from: DevicePointer, bytes: usize) -> CudaResult<()> {
    let host = HostRange::new(to.address(), bytes)?;
    let pinned = host.pinned();
    let write = Arc::new(move |bytes: &[u8]| host.write(bytes));
    engine::get()?.copy_to_host_now(line(from, bytes), write, pinned)
}

pub(crate) fn copy_to_host_in(to: Out<u8>, from: DevicePointer, bytes: usize, of: Stream) -> CudaResult<()> {
    let host = HostRange::new(to.address(), bytes)?;
    let kind = host.kind(Rights::None)?;
    let write = Arc::new(move |bytes: &[u8]| host.write(bytes));
    engine::get()?.copy_to_host(stream(of), line(from, bytes), write, kind)
}

pub(crate) fn copy(to: DevicePointer, from: DevicePointer, bytes: usize) -> CudaResult<()> {
    copy_in(to, from, bytes, std::ptr::null_mut())?;
    wait_if_asked()
}

fn line(start: DevicePointer, bytes: usize) -> Region {
    Region::line(start, bytes as u64)
}

/// Finishes a copy between GPU addresses, or a memset, that has no stream argument. Returns immediately unless the
/// context requires synchronous copies.
pub(crate) fn wait_if_asked() -> CudaResult<()> {
    match engine::get()?.has_synchronous_copies()? {
        true => synchronize_stream(std::ptr::null_mut()),
        false => Ok(()),
    }
}

pub(crate) fn copy_in(to: DevicePointer, from: DevicePointer, bytes: usize, of: Stream) -> CudaResult<()> {
    engine::get()?.copy(stream(of), line(to, bytes), line(from, bytes))
}

/// `cuMemcpyPeer`: like [`copy_peer`], without a stream.
pub(crate) fn copy_peer_now(
    to: DevicePointer,
    _: Context,
    from: DevicePointer,
    _: Context,
    bytes: usize,
) -> CudaResult<()> {
    copy(to, from, bytes)
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
    set_rows(at, 0, [value], [count, 1], of)
}

pub(crate) fn set_16(at: DevicePointer, value: u16, count: usize) -> CudaResult<()> {
    set_16_in(at, value, count, std::ptr::null_mut())?;
    wait_if_asked()
}

pub(crate) fn set_16_in(at: DevicePointer, value: u16, count: usize, of: Stream) -> CudaResult<()> {
    set_rows(at, 0, value.to_le_bytes(), [count, 1], of)
}

pub(crate) fn set_32(at: DevicePointer, value: c_uint, count: usize) -> CudaResult<()> {
    set_32_in(at, value, count, std::ptr::null_mut())?;
    wait_if_asked()
}

pub(crate) fn set_32_in(at: DevicePointer, value: c_uint, count: usize, of: Stream) -> CudaResult<()> {
    set_rows(at, 0, value.to_le_bytes(), [count, 1], of)
}

/// Defines the 2D forms of a memset, without and with a stream. `pitch` is the distance between two rows in bytes, which
/// doesn't matter for one row; the width is in elements.
macro_rules! set_2d {
    ($value:ty, $now:ident, $in_stream:ident) => {
        pub(crate) fn $now(
            at: DevicePointer,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
        ) -> CudaResult<()> {
            $in_stream(at, pitch, value, width, height, std::ptr::null_mut())?;
            wait_if_asked()
        }

        pub(crate) fn $in_stream(
            at: DevicePointer,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
            of: Stream,
        ) -> CudaResult<()> {
            set_rows(at, pitch, value.to_le_bytes(), [width, height], of)
        }
    };
}

set_2d!(u8, set_2d_8, set_2d_8_in);
set_2d!(u16, set_2d_16, set_2d_16_in);
set_2d!(c_uint, set_2d_32, set_2d_32_in);

/// Sets rows of elements. The last array holds the number of elements in a row, and the number of rows.
fn set_rows<const SIZE: usize>(
    at: DevicePointer,
    pitch: usize,
    element: [u8; SIZE],
    [count, height]: [usize; 2],
    of: Stream,
) -> CudaResult<()> {
    let Some(width) = count.checked_mul(SIZE) else {
        return Err(invalid(format!("set of {at:#x}: {count} elements of {SIZE} bytes are too many")));
    };
    let pitch = if height > 1 { pitch } else { width };
    if pitch < width {
        return Err(invalid(format!("set of {at:#x}: a row has {width} bytes, but the pitch is {pitch}")));
    }
    let [width, height, pitch] = [width, height, pitch].map(|it| it as u64);
    let region = Region { start: at, width, height, depth: 1, pitch, slice: 0 };
    engine::get()?.set(stream(of), region, element)
}

/// The alignment of rows in [`allocate_pitch`] in bytes, the same as `CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT`.
const ROW_ALIGNMENT: usize = 512;

/// `cuMemAllocPitch`: allocates `height` rows of at least `width` bytes, and returns the distance between two rows.
///
/// # Errors
/// Returns `InvalidValue` unless the size of the elements is 4, 8, or 16 bytes.
pub(crate) fn allocate_pitch(
    to: Out<DevicePointer>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: c_uint,
) -> CudaResult<()> {
    if !matches!(element, 4 | 8 | 16) {
        return Err(invalid(format!("cuMemAllocPitch: the element size must be 4, 8, or 16, not {element}")));
    }
    if to.is_null() || pitch.is_null() {
        return Err(invalid("cuMemAllocPitch: a result pointer is null"));
    }
    engine::may_synchronize("cuMemAllocPitch");
    let padded = width.checked_next_multiple_of(ROW_ALIGNMENT);
    let bytes = padded.and_then(|padded| Some((padded, padded.checked_mul(height)?)));
    let (padded, bytes) = bytes.ok_or_else(|| {
        let message = format!("cuMemAllocPitch: {height} rows of {width} bytes are more than any GPU has");
        Error::new(CudaStatus::OutOfMemory, message)
    })?;
    to.give(engine::get()?.allocate(bytes as u64)?)?;
    pitch.give(padded)
}
