//! CUDA arrays and mipmapped arrays: each is an allocation, and a description of the elements in it.

use super::context::ContextHandle;
use super::{Engine, State};
use crate::device;
use virtual_gpu_core::array::{Format, Geometry, Level};
use virtual_gpu_core::sorted::SortedMap;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

/// A `CUarray` or a `CUmipmappedArray`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrayHandle(pub u64);

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayDescription {
    /// The width, the height, and the depth or the number of layers, in elements. A dimension that the array doesn't
    /// have is 0.
    pub extent: [u64; 3],
    /// The format of an element.
    pub format: Format,
    /// The sum of `CUDA_ARRAY3D_LAYERED` and the like.
    pub flags: u32,
}

/// `CUDA_ARRAY3D_LAYERED` and the like.
const LAYERED: u32 = 0x01;
const SURFACE: u32 = 0x02;
const CUBEMAP: u32 = 0x04;
const GATHER: u32 = 0x08;

/// The flags of features that are not supported.
const UNSUPPORTED: [(u32, &str); 5] = [
    (0x10, "CUDA_ARRAY3D_DEPTH_TEXTURE"),
    (0x20, "CUDA_ARRAY3D_COLOR_ATTACHMENT"),
    (0x40, "CUDA_ARRAY3D_SPARSE"),
    (0x80, "CUDA_ARRAY3D_DEFERRED_MAPPING"),
    (0x100, "CUDA_ARRAY3D_VIDEO_ENCODE_DECODE"),
];

/// An array, a mipmapped array, or a level of one.
#[derive(Debug)]
pub(super) struct Array {
    pub(super) context: ContextHandle,
    pub(super) description: ArrayDescription,
    pub(super) geometry: Geometry,
    /// Its levels, largest first; one for an array or a level.
    pub(super) levels: Vec<Level>,
    pub(super) part: Part,
}

/// What an [`Array`] is a part of.
#[derive(Debug)]
pub(super) enum Part {
    Whole,
    /// A mipmapped array, with the handle of each level.
    Mipmap(Vec<ArrayHandle>),
    /// A level of a mipmapped array.
    Level,
}

/// All arrays.
pub(super) type Arrays = SortedMap<ArrayHandle, Array>;

impl Array {
    pub(super) fn has_surfaces(&self) -> bool {
        self.description.flags & SURFACE != 0
    }

    pub(super) fn can_gather(&self) -> bool {
        self.description.flags & GATHER != 0
    }
}

impl Engine {
    /// `cuArray3DCreate`: creates an array in the current context. Its elements are considered unwritten.
    ///
    /// # Errors
    /// Returns `InvalidValue` with the field that is wrong, and `NotSupported` for flags that are not supported.
    pub fn create_array(&self, description: ArrayDescription) -> CudaResult<ArrayHandle> {
        let geometry = geometry(&description)?;
        check_extent(&description, geometry, Limits::Array)?;
        self.place_array(description, geometry, None)
    }

    /// `cuMipmappedArrayCreate`: creates as many levels as requested, but at least one, and none after one that has a
    /// single element.
    ///
    /// # Errors
    /// As for [`Self::create_array`].
    pub fn create_mipmapped_array(
        &self,
        description: ArrayDescription,
        levels: u32,
    ) -> CudaResult<ArrayHandle> {
        let geometry = geometry(&description)?;
        check_extent(&description, geometry, Limits::Mipmap)?;
        let [width, height, depth] = description.extent;
        let depth = if geometry.is_layered() { 1 } else { depth };
        let most = width.max(height).max(depth).ilog2() + 1;
        self.place_array(description, geometry, Some(levels.clamp(1, most)))
    }

    /// Allocates a mipmapped array with this many levels, or an array.
    fn place_array(
        &self,
        description: ArrayDescription,
        geometry: Geometry,
        count: Option<u32>,
    ) -> CudaResult<ArrayHandle> {
        let caller = if count.is_some() { "cuMipmappedArrayCreate" } else { "cuArrayCreate" };
        let ArrayDescription { extent, format, flags } = description;
        let mut extent = extent.map(|extent| extent.max(1));
        let (mut levels, mut bytes) = (Vec::new(), 0);
        for _ in 0..count.unwrap_or(1) {
            let level = Level::packed(bytes, extent, format.bytes());
            bytes += level.bytes();
            levels.push(level);
            extent = Level::next_extent(extent, geometry.is_layered());
        }
        let address = self.allocate_in_call(caller, bytes)?;
        for level in &mut levels {
            level.address += address;
        }
        let mut state = self.state();
        let context = state.current_context()?;
        if count.is_none() {
            let array = Array { context, description, geometry, levels, part: Part::Whole };
            return Ok(state.add_array(array));
        }
        let handles = levels.iter().map(|&level| {
            let mut extent = level.extent;
            for (extent, original) in extent.iter_mut().zip(description.extent) {
                *extent *= u64::from(original != 0);
            }
            let description = ArrayDescription { extent, format, flags };
            state.add_array(Array { context, description, geometry, levels: vec![level], part: Part::Level })
        });
        let part = Part::Mipmap(handles.collect());
        Ok(state.add_array(Array { context, description, geometry, levels, part }))
    }

    /// `cuArrayDestroy` and `cuMipmappedArrayDestroy`: first waits for the context's work.
    ///
    /// # Errors
    /// Returns `InvalidHandle` if this is not an array, or not a mipmapped array.
    pub fn destroy_array(&self, handle: ArrayHandle, is_mipmap: bool) -> CudaResult<()> {
        let mut state = self.state();
        let array = state.array_of_kind(handle, is_mipmap)?;
        if let Part::Level = array.part {
            let message =
                format!("{:#x} is a level of a mipmapped array, which is destroyed as a whole", handle.0);
            return Err(Error::new(CudaStatus::InvalidHandle, message));
        }
        let address = array.levels[0].address;
        let levels = match &array.part {
            Part::Mipmap(levels) => levels.clone(),
            _ => Vec::new(),
        };
        for handle in levels.iter().chain([&handle]) {
            state.arrays.remove(handle);
        }
        drop(state);
        self.free(address)
    }

    /// `cuArray3DGetDescriptor`
    ///
    /// # Errors
    /// Returns `InvalidHandle` if this is not an array.
    pub fn array_description(&self, handle: ArrayHandle) -> CudaResult<ArrayDescription> {
        Ok(self.state().array_of_kind(handle, false)?.description)
    }

    /// `cuMipmappedArrayGetLevel`
    ///
    /// # Errors
    /// Returns `InvalidHandle` if this is not a mipmapped array, and `InvalidValue` if it has no such level.
    pub fn level_of_array(&self, handle: ArrayHandle, level: u32) -> CudaResult<ArrayHandle> {
        let state = self.state();
        let Part::Mipmap(levels) = &state.array_of_kind(handle, true)?.part else {
            return Err(not_an_array(handle, true));
        };
        levels.get(level as usize).copied().ok_or_else(|| {
            let message = format!("there is no level {level}: the mipmapped array has {}", levels.len());
            Error::new(CudaStatus::InvalidValue, message)
        })
    }

    /// Returns what a copy needs to know about an array: its dimensions, its format, and where its elements are.
    ///
    /// # Errors
    /// Returns `InvalidValue` if this is not an array.
    pub fn elements_of_array(&self, handle: ArrayHandle) -> CudaResult<(Geometry, Format, Level)> {
        let state = self.state();
        let array = state.array_of_kind(handle, false).map_err(as_invalid_value)?;
        Ok((array.geometry, array.description.format, array.levels[0]))
    }

    /// Returns the array, or the level of a mipmapped array, that an address is in, and the byte's column, row, and
    /// plane.
    pub fn place_in_array(&self, address: u64) -> Option<(ArrayHandle, [u64; 3])> {
        let state = self.state();
        let arrays = state.arrays.entries().iter();
        let mut single = arrays.filter(|(_, array)| !matches!(array.part, Part::Mipmap(_)));
        single.find_map(|(handle, array)| Some((*handle, array.levels[0].place_of(address)?)))
    }
}

impl State {
    fn add_array(&mut self, array: Array) -> ArrayHandle {
        let handle = ArrayHandle(self.new_handle());
        self.arrays.insert(handle, array);
        handle
    }

    /// Returns an array or a mipmapped array.
    pub(super) fn array_of_kind(&self, handle: ArrayHandle, is_mipmap: bool) -> CudaResult<&Array> {
        let array = self.arrays.get(&handle);
        array
            .filter(|array| matches!(array.part, Part::Mipmap(_)) == is_mipmap)
            .ok_or_else(|| not_an_array(handle, is_mipmap))
    }
}

fn not_an_array(handle: ArrayHandle, is_mipmap: bool) -> Error<CudaStatus> {
    let what = if is_mipmap { "a mipmapped array" } else { "a CUDA array" };
    Error::new(CudaStatus::InvalidHandle, format!("{:#x} is not {what}, or it has been destroyed", handle.0))
}

/// Returns the error with the code of functions that take a handle in a structure.
pub(super) fn as_invalid_value(error: Error<CudaStatus>) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidValue, error.message)
}

pub(super) fn refuse<T>(message: String) -> CudaResult<T> {
    Err(invalid(message))
}

/// Returns an array's dimensions.
fn geometry(description: &ArrayDescription) -> CudaResult<Geometry> {
    let ArrayDescription { extent: [width, height, depth], flags, .. } = *description;
    for (flag, name) in UNSUPPORTED {
        if flags & flag != 0 {
            let message = format!("virtual GPU: arrays with {name} are not supported");
            return Err(Error::new(CudaStatus::NotSupported, message));
        }
    }
    if flags > LAYERED | SURFACE | CUBEMAP | GATHER {
        return refuse(format!("{flags:#x} has flags that arrays don't have"));
    }
    if width == 0 {
        return refuse("the width of an array must not be 0".to_owned());
    }
    let geometry = match (flags & LAYERED != 0, flags & CUBEMAP != 0) {
        (is_layered, true) => {
            let is_cube = if is_layered { depth > 0 && depth.is_multiple_of(6) } else { depth == 6 };
            if width != height || !is_cube {
                let depth_must = if is_layered { "a multiple of 6" } else { "6" };
                return refuse(format!(
                    "a cubemap's width and height must be the same, and its depth {depth_must}: \
                     {width} x {height} x {depth}"
                ));
            }
            if is_layered { Geometry::Cubes } else { Geometry::Cube }
        }
        (true, false) if depth == 0 => return refuse("a layered array needs at least 1 layer".to_owned()),
        (true, false) if height == 0 => Geometry::Lines,
        (true, false) => Geometry::Planes,
        (false, false) => match (height, depth) {
            (0, 0) => Geometry::Line,
            (_, 0) => Geometry::Plane,
            (0, _) => return refuse("a 3D array's height must not be 0".to_owned()),
            _ => Geometry::Volume,
        },
    };
    if flags & GATHER != 0 && geometry != Geometry::Plane {
        return refuse("only 2D arrays can have CUDA_ARRAY3D_TEXTURE_GATHER".to_owned());
    }
    Ok(geometry)
}

/// Which of the device's attributes limit an array's extent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limits {
    Array,
    Mipmap,
}

/// Rejects an array that is larger than the device's attributes permit, as the table of `cuArray3DCreate` says.
fn check_extent(description: &ArrayDescription, geometry: Geometry, limits: Limits) -> CudaResult<()> {
    let flags = description.flags;
    // The numbers of attributes such as CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH.
    let textures: &[i32] = match geometry {
        Geometry::Line if limits == Limits::Mipmap => &[77],
        Geometry::Line => &[21],
        Geometry::Plane if limits == Limits::Mipmap => &[73, 74],
        Geometry::Plane if flags & GATHER != 0 => &[45, 46],
        Geometry::Plane => &[22, 23],
        Geometry::Volume => &[24, 25, 26],
        Geometry::Lines => &[42, 0, 43],
        Geometry::Planes => &[27, 28, 29],
        Geometry::Cube => &[52, 52],
        Geometry::Cubes => &[53, 53, 54],
    };
    let surfaces: &[i32] = match geometry {
        Geometry::Line => &[55],
        Geometry::Plane => &[56, 57],
        Geometry::Volume => &[58, 59, 60],
        Geometry::Lines => &[61, 0, 62],
        Geometry::Planes => &[63, 64, 65],
        Geometry::Cube => &[66, 66],
        Geometry::Cubes => &[67, 67, 68],
    };
    let exceeds = |attributes: &[i32]| {
        let each = description.extent.into_iter().zip(attributes).zip(["width", "height", "depth"]);
        each.filter(|((_, attribute), _)| **attribute != 0).find_map(|((extent, &attribute), name)| {
            let limit = device::limit(attribute);
            (extent > limit).then(|| {
                format!("the {name} of a {} array can be at most {limit}, not {extent}", geometry.name())
            })
        })
    };
    let alternate = (geometry == Geometry::Volume).then(|| exceeds(&[47, 48, 49]));
    let too_large = exceeds(textures).filter(|_| alternate != Some(None));
    let too_large = too_large.or_else(|| exceeds(surfaces).filter(|_| flags & SURFACE != 0));
    too_large.map_or(Ok(()), refuse)
}
