//! Texture and surface objects: descriptors that kernels find by their handle.
//!
//! A launch knows the objects that its context has when it is enqueued.

use std::sync::Arc;

use super::array::{Array, ArrayHandle, as_invalid_value, refuse};
use super::context::ContextHandle;
use super::{Engine, State};
use crate::device;
use virtual_gpu_core::array::{Format, Geometry, Level};
use virtual_gpu_core::sorted::SortedMap;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::texture::{Object, Objects, Sampling, Surface, Texture};

/// A `CUtexObject` or a `CUsurfObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectHandle(pub u64);

/// `CUDA_RESOURCE_DESC`: what a texture reads, or a surface accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "CUDA's fields")]
pub enum Resource {
    Array(ArrayHandle),
    MipmappedArray(ArrayHandle),
    /// `CU_RESOURCE_TYPE_LINEAR`
    Buffer {
        address: u64,
        format: Format,
        bytes: u64,
    },
    /// `CU_RESOURCE_TYPE_PITCH2D`
    Rows {
        address: u64,
        format: Format,
        width: u64,
        height: u64,
        pitch: u64,
    },
}

/// `CUDA_RESOURCE_VIEW_DESC`: a part of an array, perhaps in another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceView {
    /// The `CUresourceViewFormat`.
    pub number: u32,
    /// The other format, if there is one.
    pub format: Option<Format>,
    /// The extent, which must be that of the array.
    pub extent: [u64; 3],
    /// The first and the last level.
    pub levels: [u32; 2],
    /// The first and the last layer.
    pub layers: [u32; 2],
}

/// Everything that a program passes to `cuTexObjectCreate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextureRequest {
    /// What it reads.
    pub resource: Resource,
    /// How it is read.
    pub sampling: Sampling,
    /// `CU_TRSF_READ_AS_INTEGER` and the like.
    pub flags: u32,
    /// The maximum ratio of anisotropic filtering.
    pub anisotropy: u32,
    /// The part of the array.
    pub view: Option<ResourceView>,
}

/// What a program has requested of an object.
#[derive(Clone, Copy, Debug)]
enum Request {
    Texture(TextureRequest),
    Surface(Resource),
}

/// All texture and surface objects.
#[derive(Default)]
pub(super) struct AllObjects {
    requests: SortedMap<ObjectHandle, (ContextHandle, Request)>,
    of_context: SortedMap<ContextHandle, Arc<Objects>>,
}

impl AllObjects {
    /// Returns the objects of a context.
    pub(super) fn of(&self, context: ContextHandle) -> Arc<Objects> {
        self.of_context.get(&context).cloned().unwrap_or_default()
    }

    /// Forgets the objects of a context that is destroyed.
    pub(super) fn forget(&mut self, context: ContextHandle) {
        self.requests.retain(|_, (of, _)| *of != context);
        self.of_context.remove(&context);
    }
}

impl Engine {
    /// `cuTexObjectCreate`
    ///
    /// # Errors
    /// Returns `InvalidValue` with what is wrong, and `NotSupported` for a conversion that is not supported.
    pub fn create_texture(&self, request: TextureRequest) -> CudaResult<ObjectHandle> {
        let mut texture = match request.resource {
            Resource::Array(array) => self.texture_of_array(array, false, request.sampling)?,
            Resource::MipmappedArray(array) => {
                if !request.sampling.is_normalized {
                    return refuse(
                        "a texture of a mipmapped array needs CU_TRSF_NORMALIZED_COORDINATES".to_owned(),
                    );
                }
                self.texture_of_array(array, true, request.sampling)?
            }
            Resource::Buffer { address, format, bytes } => {
                self.texture_of_buffer(address, format, bytes, request.sampling)?
            }
            Resource::Rows { address, format, width, height, pitch } => {
                let level = self.rows(address, format, [width, height], pitch)?;
                texture(Geometry::Plane, format, level, request.sampling)
            }
        };
        if let Some(view) = request.view {
            if matches!(request.resource, Resource::Buffer { .. } | Resource::Rows { .. }) {
                return refuse("only a texture of an array can have a resource view".to_owned());
            }
            apply(&view, &mut texture)?;
        }
        check_conversions(&texture)?;
        self.add_object(Object::Texture(texture), Request::Texture(request))
    }

    /// `cuSurfObjectCreate`
    ///
    /// # Errors
    /// Returns `InvalidValue` unless the resource is an array with `CUDA_ARRAY3D_SURFACE_LDST`.
    pub fn create_surface(&self, resource: Resource) -> CudaResult<ObjectHandle> {
        let Resource::Array(handle) = resource else {
            return refuse("a surface must be an array (CU_RESOURCE_TYPE_ARRAY)".to_owned());
        };
        let surface = self.with_array(handle, false, |array| {
            if !array.has_surfaces() {
                let message = "the array of a surface must be created with CUDA_ARRAY3D_SURFACE_LDST";
                return refuse(message.to_owned());
            }
            let format = array.description.format;
            Ok(Surface { geometry: array.geometry, format, level: array.levels[0] })
        })?;
        self.add_object(Object::Surface(surface), Request::Surface(resource))
    }

    /// `cuTexObjectDestroy` and `cuSurfObjectDestroy`. Launches that were enqueued before still find the object.
    ///
    /// # Errors
    /// Returns `InvalidValue` if there is no such object.
    pub fn destroy_object(&self, handle: ObjectHandle, is_surface: bool) -> CudaResult<()> {
        let mut state = self.state();
        let (context, _) = state.request(handle, is_surface)?;
        state.objects.requests.remove(&handle);
        if let Some(objects) = state.objects.of_context.get_mut(&context) {
            Arc::make_mut(objects).remove(handle.0);
        }
        Ok(())
    }

    /// `cuTexObjectGetTextureDesc` and the like: returns what the texture object was created with.
    ///
    /// # Errors
    /// Returns `InvalidValue` if there is no such object.
    pub fn texture_request(&self, handle: ObjectHandle) -> CudaResult<TextureRequest> {
        match self.state().request(handle, false)?.1 {
            Request::Texture(request) => Ok(request),
            Request::Surface(_) => Err(not_an_object(handle, false)),
        }
    }

    /// `cuSurfObjectGetResourceDesc`
    ///
    /// # Errors
    /// Returns `InvalidValue` if there is no such object.
    pub fn surface_resource(&self, handle: ObjectHandle) -> CudaResult<Resource> {
        match self.state().request(handle, true)?.1 {
            Request::Surface(resource) => Ok(resource),
            Request::Texture(_) => Err(not_an_object(handle, true)),
        }
    }

    /// Adds an object to the current context.
    fn add_object(&self, object: Object, request: Request) -> CudaResult<ObjectHandle> {
        let mut state = self.state();
        let context = state.current_context()?;
        let handle = ObjectHandle(state.new_handle());
        state.objects.requests.insert(handle, (context, request));
        let objects = state.objects.of_context.get_or_insert_with(context, Arc::default);
        Arc::make_mut(objects).insert(handle.0, object);
        Ok(handle)
    }

    /// Calls `with` with an array of the current context.
    fn with_array<T>(
        &self,
        handle: ArrayHandle,
        is_mipmap: bool,
        with: impl FnOnce(&Array) -> CudaResult<T>,
    ) -> CudaResult<T> {
        let mut state = self.state();
        let context = state.current_context()?;
        let array = state.array_of_kind(handle, is_mipmap).map_err(as_invalid_value)?;
        if array.context != context {
            return refuse(format!("the array {:#x} belongs to another context", handle.0));
        }
        with(array)
    }

    fn texture_of_array(
        &self,
        handle: ArrayHandle,
        is_mipmap: bool,
        sampling: Sampling,
    ) -> CudaResult<Texture> {
        self.with_array(handle, is_mipmap, |array| {
            Ok(Texture {
                geometry: array.geometry,
                format: array.description.format,
                levels: array.levels.clone(),
                sampling,
                is_buffer: false,
                can_gather: array.can_gather(),
            })
        })
    }

    fn texture_of_buffer(
        &self,
        address: u64,
        format: Format,
        bytes: u64,
        sampling: Sampling,
    ) -> CudaResult<Texture> {
        check_alignment(address)?;
        let elements = bytes / format.bytes();
        let most = device::limit(LINEAR_WIDTH);
        if !(1..=most).contains(&elements) {
            return refuse(format!(
                "a texture of linear memory can have 1 to {most} elements, not {elements}"
            ));
        }
        self.check_range("texture of", address, bytes, &CallSite::here())?;
        let level = Level::packed(address, [elements, 1, 1], format.bytes());
        // Documentation of `cuTexObjectCreate`: address and filter modes are ignored for linear memory.
        let sampling = Sampling { is_linear: false, ..sampling };
        Ok(Texture { is_buffer: true, ..texture(Geometry::Line, format, level, sampling) })
    }

    /// Returns the elements of pitched memory.
    fn rows(&self, address: u64, format: Format, extent: [u64; 2], pitch: u64) -> CudaResult<Level> {
        check_alignment(address)?;
        for ((name, attribute), extent) in [("width", 70), ("height", 71)].into_iter().zip(extent) {
            let most = device::limit(attribute);
            if !(1..=most).contains(&extent) {
                return refuse(format!("the {name} of pitched memory must be 1 to {most}, not {extent}"));
            }
        }
        let ([width, height], unit, most) = (extent, device::limit(51), device::limit(72));
        let row = width * format.bytes();
        if !pitch.is_multiple_of(unit) || pitch > most || pitch < row {
            return refuse(format!(
                "the pitch must be a multiple of {unit}, at least the {row} bytes of a row, and at most {most}: {pitch}"
            ));
        }
        self.check_range("texture of", address, pitch * (height - 1) + row, &CallSite::here())?;
        Ok(Level { address, extent: [width, height, 1], pitch, slice: pitch * height })
    }
}

impl State {
    fn request(&self, handle: ObjectHandle, is_surface: bool) -> CudaResult<(ContextHandle, Request)> {
        let found = self.objects.requests.get(&handle).copied();
        found
            .filter(|(_, request)| matches!(request, Request::Surface(_)) == is_surface)
            .ok_or_else(|| not_an_object(handle, is_surface))
    }
}

/// `CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH`
const LINEAR_WIDTH: i32 = 69;

/// Returns the most elements of a texture of linear memory (`cuDeviceGetTexture1DLinearMaxWidth`).
pub fn most_linear_elements() -> u64 {
    device::limit(LINEAR_WIDTH)
}

fn texture(geometry: Geometry, format: Format, level: Level, sampling: Sampling) -> Texture {
    Texture { geometry, format, levels: vec![level], sampling, is_buffer: false, can_gather: false }
}

fn not_an_object(handle: ObjectHandle, is_surface: bool) -> Error<CudaStatus> {
    let kind = if is_surface { "surface" } else { "texture" };
    let message = format!("{:#x} is not a {kind} object, or it has been destroyed", handle.0);
    Error::new(CudaStatus::InvalidValue, message)
}

/// Checks the address of a texture of memory that is not an array.
fn check_alignment(address: u64) -> CudaResult<()> {
    // CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT
    let alignment = device::limit(14);
    match address.is_multiple_of(alignment) {
        true => Ok(()),
        false => refuse(format!("the address of a texture must be a multiple of {alignment}: {address:#x}")),
    }
}

/// Restricts a texture to a part of an array.
fn apply(view: &ResourceView, texture: &mut Texture) -> CudaResult<()> {
    if let Some(format) = view.format {
        let (new, old) = (format.bytes(), texture.format.bytes());
        if new != old {
            return refuse(format!(
                "the view's elements have {new} bytes, but those of the array have {old}"
            ));
        }
        texture.format = format;
    }
    let is_layered = texture.geometry.is_layered();
    let own = texture.levels[0].extent;
    let dimensions = if is_layered { 2 } else { 3 };
    for ((name, asked), own) in
        ["width", "height", "depth"].into_iter().zip(view.extent).zip(own).take(dimensions)
    {
        if asked.max(1) != own {
            return refuse(format!("the view's {name} must be {own}, as in the array, not {asked}"));
        }
    }
    let [first, last] = view.levels.map(|level| level as usize);
    if first > last || last >= texture.levels.len() {
        let count = texture.levels.len();
        return refuse(format!("the view has the levels {first} to {last}, but the array has {count}"));
    }
    texture.levels = texture.levels[first..=last].to_vec();
    let [first, last] = view.layers.map(u64::from);
    if !is_layered {
        return match (first, last) {
            (0, 0) => Ok(()),
            _ => refuse(format!("the view has the layers {first} to {last}, but the array has no layers")),
        };
    }
    if first > last || last >= own[2] {
        return refuse(format!("the view has the layers {first} to {last}, but the array has {}", own[2]));
    }
    let count = last - first + 1;
    let is_whole = match texture.geometry {
        Geometry::Cube => count == 6,
        Geometry::Cubes => count.is_multiple_of(6),
        _ => true,
    };
    if !is_whole {
        return refuse(format!("a view of {count} layers does not consist of whole cubes"));
    }
    for level in &mut texture.levels {
        level.address += first * level.slice;
        level.extent[2] = count;
    }
    Ok(())
}

/// Rejects conversions that the format does not permit.
fn check_conversions(texture: &Texture) -> CudaResult<()> {
    let Texture { format, sampling, levels, .. } = texture;
    let mixes_levels = sampling.mixes_levels && levels.len() > 1;
    let is_float = sampling.returns_floats(*format);
    if !is_float && (sampling.is_linear || mixes_levels) {
        return refuse(
            "a texture that returns integers can't be filtered: use CU_TR_FILTER_MODE_POINT, or read 8-bit or 16-bit \
             integers without CU_TRSF_READ_AS_INTEGER"
                .to_owned(),
        );
    }
    let is_color = is_float && format.channel.bytes() == 1 && !format.channel.is_signed();
    if sampling.is_srgb && !is_color {
        let message =
            "virtual GPU: CU_TRSF_SRGB is supported only for unsigned 8-bit channels that are read as floats";
        return Err(Error::new(CudaStatus::NotSupported, message));
    }
    Ok(())
}
