//! CUDA arrays: the format of their elements, and where each element lies in device memory.
//!
//! A program can't see the layout of an array, so the layout is our own: rows without gaps, one after the other. An array
//! is one allocation. The rules are those of `cuArray3DCreate` in the CUDA driver API.

/// The type of a channel, with the numbers of `CUarray_format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "CUDA's types")]
pub enum Channel {
    U8 = 0x01,
    U16 = 0x02,
    U32 = 0x03,
    S8 = 0x08,
    S16 = 0x09,
    S32 = 0x0a,
    F16 = 0x10,
    F32 = 0x20,
}

impl Channel {
    /// Returns the type with this number, if there is one.
    pub fn numbered(number: u32) -> Option<Self> {
        use Channel::*;
        [U8, U16, U32, S8, S16, S32, F16, F32].into_iter().find(|&channel| channel as u32 == number)
    }

    /// Returns a channel's size in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 | Self::F16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
        }
    }

    /// Returns whether channels are signed integers.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32)
    }

    /// Returns whether channels are floating-point numbers.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32)
    }
}

/// The format of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The type of each channel.
    pub channel: Channel,
    /// The number of channels: 1, 2, or 4.
    pub channels: u8,
}

impl Format {
    /// Returns an element's size in bytes, at most 16.
    pub fn bytes(self) -> u64 {
        self.channel.bytes() * u64::from(self.channels)
    }
}

/// The number and meaning of an array's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Geometry {
    /// Rows of elements.
    Line,
    /// A plane of rows.
    Plane,
    /// A stack of planes.
    Volume,
    /// A list of rows.
    Lines,
    /// A list of planes.
    Planes,
    /// Six planes: the faces of a cube.
    Cube,
    /// A list of cubes.
    Cubes,
}

impl Geometry {
    /// Returns whether the last extent is a number of layers.
    pub fn is_layered(self) -> bool {
        matches!(self, Self::Lines | Self::Planes | Self::Cube | Self::Cubes)
    }

    /// Returns the name that CUDA uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Line => "1D",
            Self::Plane => "2D",
            Self::Volume => "3D",
            Self::Lines => "1D layered",
            Self::Planes => "2D layered",
            Self::Cube => "cubemap",
            Self::Cubes => "layered cubemap",
        }
    }
}

/// Elements in device memory: those of an array, of one level of a mipmapped array, or of a buffer that a texture reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The address of the first element.
    pub address: u64,
    /// The number of elements in a row, of rows, and of planes or layers. Each is at least 1.
    pub extent: [u64; 3],
    /// The distance between two rows in bytes.
    pub pitch: u64,
    /// The distance between two planes or layers in bytes.
    pub slice: u64,
}

impl Level {
    /// Creates a level whose elements of `bytes` bytes follow each other without gaps.
    pub fn packed(address: u64, extent: [u64; 3], bytes: u64) -> Self {
        let pitch = extent[0] * bytes;
        Self { address, extent, pitch, slice: pitch * extent[1] }
    }

    /// Returns the number of bytes from one plane to the end of the last.
    pub fn bytes(&self) -> u64 {
        self.slice * self.extent[2]
    }

    /// Returns the address of the byte in a column, counted in bytes, of a row and a plane.
    pub fn byte_at(&self, column: u64, row: u64, plane: u64) -> u64 {
        self.address + plane * self.slice + row * self.pitch + column
    }

    /// Returns the column, counted in bytes, the row, and the plane of the byte at an address; `None` if the byte is not in
    /// the level.
    pub fn place_of(&self, address: u64) -> Option<[u64; 3]> {
        let offset = address.checked_sub(self.address).filter(|&offset| offset < self.bytes())?;
        let in_plane = offset % self.slice;
        Some([in_plane % self.pitch, in_plane / self.pitch, offset / self.slice])
    }

    /// Returns the extent of the next smaller level of a mipmap. A number of layers stays the same.
    pub fn next_extent([width, height, depth]: [u64; 3], is_layered: bool) -> [u64; 3] {
        let half = |extent: u64| (extent / 2).max(1);
        [half(width), half(height), if is_layered { depth } else { half(depth) }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_follow_each_other() {
        let format = Format { channel: Channel::S16, channels: 2 };
        let level = Level::packed(1000, [5, 3, 2], format.bytes());
        assert_eq!((level.pitch, level.slice, level.bytes()), (20, 60, 120));
        assert_eq!(level.byte_at(4, 2, 1), 1000 + 60 + 40 + 4);
        assert_eq!(level.place_of(1000 + 60 + 40 + 4), Some([4, 2, 1]));
        assert_eq!((level.place_of(999), level.place_of(1120)), (None, None));
    }

    #[test]
    fn levels_halve_but_layers_stay() {
        assert_eq!(Level::next_extent([7, 1, 4], false), [3, 1, 2]);
        assert_eq!(Level::next_extent([7, 1, 4], true), [3, 1, 4]);
    }

    #[test]
    fn formats_have_the_numbers_of_cuda() {
        assert_eq!(Channel::numbered(0x20), Some(Channel::F32));
        assert_eq!(Channel::numbered(0x0b), None);
        assert_eq!(Format { channel: Channel::F32, channels: 4 }.bytes(), 16);
    }
}
