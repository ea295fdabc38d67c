//! Reads of textures, and accesses to surfaces.

use super::register::{Slot, Value};

/// `.geom`: the dimensions that an instruction expects of a texture or surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum Shape {
    D1,
    D2,
    D3,
    A1d,
    A2d,
    Cube,
    ACube,
}

impl Shape {
    /// Returns whether the first coordinate is an index into an array of textures or surfaces.
    pub fn has_index(self) -> bool {
        matches!(self, Self::A1d | Self::A2d | Self::ACube)
    }

    /// Returns the number of coordinates without the index.
    pub fn dimensions(self) -> usize {
        match self {
            Self::D1 | Self::A1d => 1,
            Self::D2 | Self::A2d => 2,
            Self::D3 | Self::Cube | Self::ACube => 3,
        }
    }
}

/// How `tex` chooses a level of a mipmap.
#[derive(Clone, Debug, PartialEq)]
pub enum Detail {
    /// The first level.
    Base,
    /// `.level`: a number of type `.f32`.
    Level(Slot),
    /// `.grad`: how much each coordinate changes from one pixel to the next, along both axes of the picture.
    Gradients([Box<[Slot]>; 2]),
}

/// The type in which `tex` returns channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelType {
    /// `.u32`, `.s32`, `.f32`: 32 bits as the texture has them.
    Bits,
    /// `.f16`: each channel in a register of its own.
    Half,
    /// `.f16x2`: two channels in each register.
    HalfPair,
}

/// `tex` and `tld4`
#[derive(Clone, Debug, PartialEq)]
pub struct TextureFetch {
    /// The dimensions.
    pub shape: Shape,
    /// The handle of the texture object.
    pub handle: Slot,
    /// The index into an array of textures, if the shape has one.
    pub index: Option<Slot>,
    /// The coordinates.
    pub coordinates: Box<[Slot]>,
    /// Whether coordinates have the type `.s32`; otherwise `.f32`.
    pub is_integer: bool,
    /// The level.
    pub detail: Detail,
    /// For `tld4`: the channel of the four nearest elements to return.
    pub gathered: Option<u8>,
    /// The type of the results.
    pub result: ChannelType,
    /// The results.
    pub d: Box<[Slot]>,
}

/// `txq` and `suq`: a property of a texture or surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum Property {
    Width,
    Height,
    Depth,
    ArraySize,
    MipmapLevels,
    NormalizedCoordinates,
    MemoryLayout,
}

/// `txq` and `suq`
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectQuery {
    /// Whether the object is a surface; otherwise, a texture.
    pub is_surface: bool,
    /// The handle.
    pub handle: Slot,
    /// The property.
    pub property: Property,
    /// The level of a mipmap, if stated.
    pub level: Option<Slot>,
    /// The result.
    pub d: Slot,
}

/// `.clamp`: what happens outside of a surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// The kernel stops.
    Trap,
    /// The nearest element is accessed.
    Clamp,
    /// A load returns 0, and a store does nothing.
    Zero,
}

/// `suld` and `sust`
#[derive(Clone, Debug, PartialEq)]
pub struct SurfaceAccess {
    /// Whether it is a store.
    pub is_store: bool,
    /// The dimensions.
    pub shape: Shape,
    /// What happens outside of the surface.
    pub outside: Outside,
    /// The handle of the surface object.
    pub handle: Slot,
    /// The index into an array of surfaces, if the shape has one.
    pub index: Option<Slot>,
    /// The coordinates, the first of which counts bytes.
    pub coordinates: Box<[Slot]>,
    /// The size in bytes of each value.
    pub bytes: u8,
    /// The values.
    pub values: Box<[Value]>,
}
