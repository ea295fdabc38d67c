//! Texture objects and surface objects.

use std::ffi::{c_int, c_uint, c_ulonglong};

use virtual_gpu::engine::{ArrayHandle, ObjectHandle, Resource, ResourceView, TextureRequest};
use virtual_gpu_core::array::{Channel, Format};
use virtual_gpu_core::status::{CudaResult, invalid, unsupported};
use virtual_gpu_core::texture::{AddressMode, Sampling};

use crate::array;
use crate::engine;
use crate::pointer::{Out, Source};

/// `CUDA_RESOURCE_DESC`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ResourceDescription {
    pub(crate) kind: c_uint,
    /// The fields of one of the kinds: an array's handle; or an address, the format and the number of channels, and the
    /// size; or an address, the format and the number of channels, the width, the height, and the pitch.
    pub(crate) fields: [u64; 16],
    pub(crate) flags: c_uint,
}

/// `CUDA_TEXTURE_DESC`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TextureDescription {
    pub(crate) modes: [c_uint; 3],
    pub(crate) filter: c_uint,
    pub(crate) flags: c_uint,
    pub(crate) anisotropy: c_uint,
    pub(crate) level_filter: c_uint,
    pub(crate) level_bias: f32,
    pub(crate) least_level: f32,
    pub(crate) most_level: f32,
    pub(crate) border: [f32; 4],
    pub(crate) reserved: [c_int; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ViewDescription {
    pub(crate) format: c_uint,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) first_level: c_uint,
    pub(crate) last_level: c_uint,
    pub(crate) first_layer: c_uint,
    pub(crate) last_layer: c_uint,
    pub(crate) reserved: [c_uint; 16],
}

/// `CUresourcetype`
const ARRAY: c_uint = 0;
const MIPMAPPED_ARRAY: c_uint = 1;
const LINEAR: c_uint = 2;
const PITCHED: c_uint = 3;

/// `CU_TRSF_READ_AS_INTEGER` and the like. The optimization that `TRILINEAR` disables doesn't exist here.
const INTEGERS: c_uint = 0x01;
const NORMALIZED: c_uint = 0x02;
const SRGB: c_uint = 0x10;
const TRILINEAR: c_uint = 0x20;
const SEAMLESS: c_uint = 0x40;

/// `cuTexObjectCreate`
pub(crate) fn create(
    to: Out<c_ulonglong>,
    resource: Source<ResourceDescription>,
    texture: Source<TextureDescription>,
    view: Source<ViewDescription>,
) -> CudaResult<()> {
    to.check("the result pointer")?;
    let resource = resource_of(&resource.value("the pointer to the resource description")?)?;
    let texture = texture.value("the pointer to the texture description")?;
    let view = match view.is_null() {
        true => None,
        false => Some(view_of(&view.value("the pointer to the view description")?)?),
    };
    let sampling = sampling(&texture)?;
    let TextureDescription { flags, anisotropy, .. } = texture;
    let request = TextureRequest { resource, sampling, flags, anisotropy, view };
    to.give(engine::get()?.create_texture(request)?.0)
}

/// `cuTexObjectDestroy`
pub(crate) fn destroy(texture: c_ulonglong) -> CudaResult<()> {
    engine::get()?.destroy_object(ObjectHandle(texture), false)
}

/// `cuTexObjectGetResourceDesc`
pub(crate) fn resource(to: Out<ResourceDescription>, texture: c_ulonglong) -> CudaResult<()> {
    to.give(described(&request(texture)?.resource))
}

/// `cuTexObjectGetTextureDesc`
pub(crate) fn description(to: Out<TextureDescription>, texture: c_ulonglong) -> CudaResult<()> {
    let TextureRequest { sampling, flags, anisotropy, .. } = request(texture)?;
    to.give(TextureDescription {
        modes: sampling.modes.map(|mode| mode as c_uint),
        filter: sampling.is_linear.into(),
        flags,
        anisotropy,
        level_filter: sampling.mixes_levels.into(),
        level_bias: sampling.level_bias,
        least_level: sampling.level_range[0],
        most_level: sampling.level_range[1],
        border: sampling.border,
        reserved: [0; 12],
    })
}

/// `cuTexObjectGetResourceViewDesc`
///
/// # Errors
/// Returns `InvalidValue` if the texture object was created without a view.
pub(crate) fn view(to: Out<ViewDescription>, texture: c_ulonglong) -> CudaResult<()> {
    let Some(ResourceView { number, extent, levels, layers, .. }) = request(texture)?.view else {
        return Err(invalid("the texture object has no resource view"));
    };
    let [width, height, depth] = extent.map(|extent| extent as usize);
    to.give(ViewDescription {
        format: number,
        width,
        height,
        depth,
        first_level: levels[0],
        last_level: levels[1],
        first_layer: layers[0],
        last_layer: layers[1],
        reserved: [0; 16],
    })
}

/// `cuSurfObjectCreate`
pub(crate) fn create_surface(to: Out<c_ulonglong>, resource: Source<ResourceDescription>) -> CudaResult<()> {
    to.check("the result pointer")?;
    let resource = resource_of(&resource.value("the pointer to the resource description")?)?;
    to.give(engine::get()?.create_surface(resource)?.0)
}

/// `cuSurfObjectDestroy`
pub(crate) fn destroy_surface(surface: c_ulonglong) -> CudaResult<()> {
    engine::get()?.destroy_object(ObjectHandle(surface), true)
}

/// `cuSurfObjectGetResourceDesc`
pub(crate) fn surface_resource(to: Out<ResourceDescription>, surface: c_ulonglong) -> CudaResult<()> {
    to.give(described(&engine::get()?.surface_resource(ObjectHandle(surface))?))
}

fn request(texture: c_ulonglong) -> CudaResult<TextureRequest> {
    engine::get()?.texture_request(ObjectHandle(texture))
}

fn resource_of(resource: &ResourceDescription) -> CudaResult<Resource> {
    let ResourceDescription { kind, fields, flags } = *resource;
    if flags != 0 {
        return Err(invalid(format!("the flags of a resource must be 0, not {flags:#x}")));
    }
    let format = || array::format(fields[1] as c_uint, (fields[1] >> 32) as c_uint);
    let array = ArrayHandle(fields[0]);
    Ok(match kind {
        ARRAY => Resource::Array(array),
        MIPMAPPED_ARRAY => Resource::MipmappedArray(array),
        LINEAR => Resource::Buffer { address: fields[0], format: format()?, bytes: fields[2] },
        PITCHED => {
            let [address, _, width, height, pitch, ..] = fields;
            Resource::Rows { address, format: format()?, width, height, pitch }
        }
        _ => return Err(invalid(format!("there is no resource type {kind}"))),
    })
}

fn described(resource: &Resource) -> ResourceDescription {
    let packed = |format: &Format| format.channel as u64 | u64::from(format.channels) << 32;
    let mut fields = [0; 16];
    let kind = match resource {
        Resource::Array(array) => {
            fields[0] = array.0;
            ARRAY
        }
        Resource::MipmappedArray(array) => {
            fields[0] = array.0;
            MIPMAPPED_ARRAY
        }
        Resource::Buffer { address, format, bytes } => {
            fields[..3].copy_from_slice(&[*address, packed(format), *bytes]);
            LINEAR
        }
        Resource::Rows { address, format, width, height, pitch } => {
            fields[..5].copy_from_slice(&[*address, packed(format), *width, *height, *pitch]);
            PITCHED
        }
    };
    ResourceDescription { kind, fields, flags: 0 }
}

fn sampling(texture: &TextureDescription) -> CudaResult<Sampling> {
    let TextureDescription { modes, filter, flags, anisotropy, level_filter, .. } = *texture;
    if flags & SEAMLESS != 0 {
        return Err(unsupported("CU_TRSF_SEAMLESS_CUBEMAP"));
    }
    if flags & !(INTEGERS | NORMALIZED | SRGB | TRILINEAR) != 0 {
        return Err(invalid(format!("{flags:#x} has flags that textures don't have")));
    }
    if anisotropy > 1 {
        return Err(unsupported("anisotropic filtering (maxAnisotropy above 1)"));
    }
    let is_linear = |filter: c_uint| match filter {
        0 | 1 => Ok(filter == 1),
        _ => Err(invalid(format!("there is no filter mode {filter}"))),
    };
    let mut found = [AddressMode::Clamp; 3];
    for (to, mode) in found.iter_mut().zip(modes) {
        *to =
            AddressMode::numbered(mode).ok_or_else(|| invalid(format!("there is no address mode {mode}")))?;
    }
    Ok(Sampling {
        modes: found,
        is_linear: is_linear(filter)?,
        keeps_integers: flags & INTEGERS != 0,
        is_normalized: flags & NORMALIZED != 0,
        is_srgb: flags & SRGB != 0,
        mixes_levels: is_linear(level_filter)?,
        level_bias: texture.level_bias,
        level_range: [texture.least_level, texture.most_level],
        border: texture.border,
    })
}

/// The channels of `CUresourceViewFormat`, each with 1, 2, and 4 channels, from number 1.
const VIEW_CHANNELS: [Channel; 8] = [
    Channel::U8,
    Channel::S8,
    Channel::U16,
    Channel::S16,
    Channel::U32,
    Channel::S32,
    Channel::F16,
    Channel::F32,
];

/// The last number of `CUresourceViewFormat`; those after the channels are formats of compressed blocks.
const LAST_VIEW: c_uint = 0x22;

fn view_of(view: &ViewDescription) -> CudaResult<ResourceView> {
    let number = view.format;
    let format = match number.checked_sub(1).map(|index| (index / 3, index % 3)) {
        None => None,
        Some((kind, count)) => match VIEW_CHANNELS.get(kind as usize) {
            Some(&channel) => Some(Format { channel, channels: 1 << count }),
            None if number <= LAST_VIEW => {
                return Err(unsupported(format!("the compressed resource view format {number:#x}")));
            }
            None => return Err(invalid(format!("there is no resource view format {number:#x}"))),
        },
    };
    Ok(ResourceView {
        number,
        format,
        extent: [view.width, view.height, view.depth].map(|extent| extent as u64),
        levels: [view.first_level, view.last_level],
        layers: [view.first_layer, view.last_layer],
    })
}
