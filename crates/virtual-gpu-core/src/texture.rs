//! Texture and surface objects: what kernels read and write through handles.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::array::{Format, Geometry, Level};

/// What happens to a coordinate outside of a texture, with the numbers of `CUaddress_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressMode {
    /// The texture repeats.
    Wrap = 0,
    /// The nearest element is read.
    Clamp = 1,
    /// The texture repeats, each second time reversed.
    Mirror = 2,
    /// The border color is read.
    Border = 3,
}

impl AddressMode {
    /// Returns the mode with this number, if there is one.
    pub fn numbered(number: u32) -> Option<Self> {
        [Self::Wrap, Self::Clamp, Self::Mirror, Self::Border].get(number as usize).copied()
    }
}

/// How a texture is read (`CUDA_TEXTURE_DESC`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// The address mode of each dimension.
    pub modes: [AddressMode; 3],
    /// Whether the nearest elements are mixed; otherwise, one element is read.
    pub is_linear: bool,
    /// Whether integers stay integers; otherwise, 8-bit and 16-bit integers become numbers from 0 or -1 to 1.
    pub keeps_integers: bool,
    /// Whether the texture extends from 0 to 1 along each dimension; otherwise, from 0 to its number of elements.
    pub is_normalized: bool,
    /// Whether colors are converted from sRGB.
    pub is_srgb: bool,
    /// Whether the nearest levels of a mipmap are mixed; otherwise, one level is read.
    pub mixes_levels: bool,
    /// A number that is added to each level that a kernel requests.
    pub level_bias: f32,
    /// The first and the last level that may be read.
    pub level_range: [f32; 2],
    /// What is read outside of a texture with [`AddressMode::Border`].
    pub border: [f32; 4],
}

impl Sampling {
    /// Returns whether the channels of elements with this format are returned as floating-point numbers, which can be
    /// mixed.
    pub fn returns_floats(&self, format: Format) -> bool {
        // Integers of 32 bits are never promoted (`CU_TRSF_READ_AS_INTEGER` in the driver API).
        format.channel.is_float() || !self.keeps_integers && format.channel.bytes() < 4
    }

    /// Returns the mode for a dimension. Without normalized coordinates, a texture can't repeat: CUDA clamps instead
    /// (`cudaTextureDesc` in the runtime API).
    pub fn mode(&self, dimension: usize) -> AddressMode {
        match self.modes[dimension] {
            AddressMode::Wrap | AddressMode::Mirror if !self.is_normalized => AddressMode::Clamp,
            mode => mode,
        }
    }
}

/// A texture object.
#[derive(Clone, Debug, PartialEq)]
pub struct Texture {
    /// The dimensions.
    pub geometry: Geometry,
    /// The format of its elements.
    pub format: Format,
    /// Its levels, largest first; more than one only for a mipmapped array.
    pub levels: Vec<Level>,
    /// How it is read.
    pub sampling: Sampling,
    /// Whether it reads a buffer as a row of elements, which are found by their index only.
    pub is_buffer: bool,
    /// Whether `tld4` may read it (`CUDA_ARRAY3D_TEXTURE_GATHER`).
    pub can_gather: bool,
}

/// A surface object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surface {
    /// The dimensions.
    pub geometry: Geometry,
    /// The format of its elements.
    pub format: Format,
    /// The elements.
    pub level: Level,
}

/// What a handle stands for.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Object {
    Texture(Texture),
    Surface(Surface),
}

/// The objects of a context, by handle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objects(BTreeMap<u64, Arc<Object>>);

/// No objects.
pub static NO_OBJECTS: Objects = Objects(BTreeMap::new());

impl Objects {
    /// Returns the object with this handle.
    pub fn get(&self, handle: u64) -> Option<&Arc<Object>> {
        self.0.get(&handle)
    }

    /// Adds an object.
    pub fn insert(&mut self, handle: u64, object: Object) {
        self.0.insert(handle, Arc::new(object));
    }

    /// Removes an object.
    pub fn remove(&mut self, handle: u64) {
        self.0.remove(&handle);
    }
}
