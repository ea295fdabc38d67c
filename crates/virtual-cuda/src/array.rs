//! CUDA arrays and mipmapped arrays, and copies that involve arrays.

use std::ffi::{c_int, c_uint, c_void};

use virtual_gpu::engine::{ArrayDescription, ArrayHandle, Region, most_linear_elements};
use virtual_gpu_core::array::{Channel, Format, Geometry};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::engine;
use crate::memory;
use crate::pointer::{Out, Source};
use crate::rows::{Copy3D, Volume};
use crate::types::{Device, DevicePointer, Stream, handle};

/// `CUarray`
pub type Array = *mut c_void;

/// `CUmipmappedArray`
pub type MipmappedArray = *mut c_void;

/// `CUDA_ARRAY_DESCRIPTOR`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PlaneDescription {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VolumeDescription {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}

/// The numbers of `CUarray_format` that are not supported: formats of video, of compressed blocks, and of normalized
/// integers.
const OTHER_FORMATS: [std::ops::RangeInclusive<c_uint>; 5] =
    [0x50..=0x50, 0x91..=0x9f, 0xa1..=0xa9, 0xb0..=0xb5, 0xc0..=0xcb];

/// Returns a format.
///
/// # Errors
/// Returns `InvalidValue` unless it exists, and `NotSupported` for a format that is not supported.
pub(crate) fn format(number: c_uint, channels: c_uint) -> CudaResult<Format> {
    let Some(channel) = Channel::numbered(number) else {
        if OTHER_FORMATS.iter().any(|numbers| numbers.contains(&number)) {
            let message = format!("virtual GPU: the array format {number:#x} is not supported");
            return Err(Error::new(CudaStatus::NotSupported, message));
        }
        return Err(invalid(format!("there is no array format {number:#x}")));
    };
    match channels {
        1 | 2 | 4 => Ok(Format { channel, channels: channels as u8 }),
        _ => Err(invalid(format!("an element must have 1, 2, or 4 channels, not {channels}"))),
    }
}

pub(crate) fn array_handle(array: Array) -> ArrayHandle {
    ArrayHandle(array as u64)
}

impl VolumeDescription {
    fn description(&self) -> CudaResult<ArrayDescription> {
        let extent = [self.width, self.height, self.depth].map(|extent| extent as u64);
        Ok(ArrayDescription { extent, format: format(self.format, self.channels)?, flags: self.flags })
    }
}

const DESCRIPTION: &str = "the pointer to the description of the array";

/// `cuArrayCreate`
pub(crate) fn create(to: Out<Array>, description: Source<PlaneDescription>) -> CudaResult<()> {
    let PlaneDescription { width, height, format, channels } = description.value(DESCRIPTION)?;
    create_described(to, &VolumeDescription { width, height, depth: 0, format, channels, flags: 0 })
}

/// `cuArray3DCreate`
pub(crate) fn create_3d(to: Out<Array>, description: Source<VolumeDescription>) -> CudaResult<()> {
    create_described(to, &description.value(DESCRIPTION)?)
}

fn create_described(to: Out<Array>, description: &VolumeDescription) -> CudaResult<()> {
    to.check("the result pointer")?;
    let description = description.description()?;
    engine::may_synchronize("cuArrayCreate");
    to.give(handle(engine::get()?.create_array(description)?.0))
}

/// `cuArrayDestroy`
pub(crate) fn destroy(array: Array) -> CudaResult<()> {
    engine::may_synchronize("cuArrayDestroy");
    engine::get()?.destroy_array(array_handle(array), false)
}

/// `cuArrayGetDescriptor`
pub(crate) fn description(to: Out<PlaneDescription>, array: Array) -> CudaResult<()> {
    let ArrayDescription { extent: [width, height, _], format, .. } =
        engine::get()?.array_description(array_handle(array))?;
    to.give(PlaneDescription {
        width: width as usize,
        height: height as usize,
        format: format.channel as c_uint,
        channels: format.channels.into(),
    })
}

/// `cuArray3DGetDescriptor`
pub(crate) fn description_3d(to: Out<VolumeDescription>, array: Array) -> CudaResult<()> {
    let ArrayDescription { extent, format, flags } = engine::get()?.array_description(array_handle(array))?;
    let [width, height, depth] = extent.map(|extent| extent as usize);
    let (format, channels) = (format.channel as c_uint, format.channels.into());
    to.give(VolumeDescription { width, height, depth, format, channels, flags })
}

/// `cuMipmappedArrayCreate`
pub(crate) fn create_mipmapped(
    to: Out<MipmappedArray>,
    description: Source<VolumeDescription>,
    levels: c_uint,
) -> CudaResult<()> {
    to.check("the result pointer")?;
    let description = description.value(DESCRIPTION)?.description()?;
    engine::may_synchronize("cuMipmappedArrayCreate");
    to.give(handle(engine::get()?.create_mipmapped_array(description, levels)?.0))
}

/// `cuMipmappedArrayDestroy`
pub(crate) fn destroy_mipmapped(array: MipmappedArray) -> CudaResult<()> {
    engine::may_synchronize("cuMipmappedArrayDestroy");
    engine::get()?.destroy_array(array_handle(array), true)
}

/// `cuMipmappedArrayGetLevel`
pub(crate) fn level(to: Out<Array>, array: MipmappedArray, level: c_uint) -> CudaResult<()> {
    to.give(handle(engine::get()?.level_of_array(array_handle(array), level)?.0))
}

/// `cuDeviceGetTexture1DLinearMaxWidth`
pub(crate) fn most_linear(
    to: Out<usize>,
    number: c_uint,
    channels: c_uint,
    device: Device,
) -> CudaResult<()> {
    engine::get()?.check_device(device as c_int)?;
    format(number, channels)?;
    to.give(most_linear_elements() as usize)
}

/// Returns the rows of an array that a copy accesses on one side.
///
/// # Errors
/// Returns `InvalidValue` with what is wrong.
pub(crate) fn region(name: &str, side: &Volume, copy: &Copy3D) -> CudaResult<Region> {
    let wrong = |what: String| Err(invalid(format!("the copy's {name}: {what}")));
    if side.lod != 0 {
        return wrong(format!("the level of detail must be 0, not {}", side.lod));
    }
    let (_, format, level) = engine::get()?.elements_of_array(ArrayHandle(side.array as u64))?;
    let size = format.bytes();
    let place = [side.x, side.y, side.z].map(|at| at as u64);
    let counts = [copy.width, copy.height, copy.depth].map(|count| count as u64);
    if !(place[0].is_multiple_of(size) && counts[0].is_multiple_of(size)) {
        return wrong(format!(
            "x and the width must be multiples of the {size} bytes of an element: {} and {}",
            place[0], counts[0]
        ));
    }
    let [width, rows, planes] = level.extent;
    for (((name, at), count), extent) in
        ["byte", "row", "plane"].into_iter().zip(place).zip(counts).zip([width * size, rows, planes])
    {
        let end = at.saturating_add(count);
        if end > extent {
            return wrong(format!("the copy extends to {name} {end}, but the array ends at {extent}"));
        }
    }
    let [x, y, z] = place;
    let ([width, height, depth], pitch, slice) = (counts, level.pitch, level.slice);
    Ok(Region { start: level.byte_at(x, y, z), width, height, depth, pitch, slice })
}

/// Returns the address of bytes in a 1D array.
///
/// # Errors
/// Returns `InvalidValue` if the array is not a 1D array or does not have these bytes.
fn bytes_of(array: Array, offset: usize, bytes: usize) -> CudaResult<DevicePointer> {
    let (geometry, _, level) = engine::get()?.elements_of_array(array_handle(array))?;
    if geometry != Geometry::Line {
        return Err(invalid(format!(
            "this copy is for 1D arrays, and the array is {}: copy it with cuMemcpy2D or cuMemcpy3D",
            geometry.name()
        )));
    }
    let (offset, end) = (offset as u64, (offset as u64).saturating_add(bytes as u64));
    match end <= level.bytes() {
        true => Ok(level.address + offset),
        false => Err(invalid(format!(
            "bytes {offset}..{end} are not all in the array, which has {} bytes",
            level.bytes()
        ))),
    }
}

/// `cuMemcpyHtoA`
pub(crate) fn copy_from_host(to: Array, offset: usize, from: Source<u8>, bytes: usize) -> CudaResult<()> {
    memory::copy_from_host(bytes_of(to, offset, bytes)?, from, bytes)
}

/// `cuMemcpyHtoAAsync`
pub(crate) fn copy_from_host_in(
    to: Array,
    offset: usize,
    from: Source<u8>,
    bytes: usize,
    of: Stream,
) -> CudaResult<()> {
    memory::copy_from_host_in(bytes_of(to, offset, bytes)?, from, bytes, of)
}

/// `cuMemcpyAtoH`
pub(crate) fn copy_to_host(to: Out<u8>, from: Array, offset: usize, bytes: usize) -> CudaResult<()> {
    memory::copy_to_host(to, bytes_of(from, offset, bytes)?, bytes)
}

/// `cuMemcpyAtoHAsync`
pub(crate) fn copy_to_host_in(
    to: Out<u8>,
    from: Array,
    offset: usize,
    bytes: usize,
    of: Stream,
) -> CudaResult<()> {
    memory::copy_to_host_in(to, bytes_of(from, offset, bytes)?, bytes, of)
}

/// `cuMemcpyDtoA`
pub(crate) fn copy_from_device(
    to: Array,
    offset: usize,
    from: DevicePointer,
    bytes: usize,
) -> CudaResult<()> {
    memory::copy(bytes_of(to, offset, bytes)?, from, bytes)
}

/// `cuMemcpyAtoD`
pub(crate) fn copy_to_device(to: DevicePointer, from: Array, offset: usize, bytes: usize) -> CudaResult<()> {
    memory::copy(to, bytes_of(from, offset, bytes)?, bytes)
}

/// `cuMemcpyAtoA`
pub(crate) fn copy_between(
    to: Array,
    to_offset: usize,
    from: Array,
    from_offset: usize,
    bytes: usize,
) -> CudaResult<()> {
    memory::copy(bytes_of(to, to_offset, bytes)?, bytes_of(from, from_offset, bytes)?, bytes)
}
