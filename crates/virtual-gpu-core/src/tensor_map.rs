//! Tensor maps: where a tensor lies in device memory, and which part of it one instruction copies to or from shared
//! memory.
//!
//! A program treats the 128 bytes of a `CUtensorMap` as opaque, so their contents are our own. The rules are those of the
//! PTX manual, section "Tensors", and of `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col` in the CUDA driver API.

/// The size of a map in bytes (`CUtensorMap`).
pub const BYTES: usize = 128;

/// The number of bytes that stay together wherever they are placed in shared memory.
pub const PIECE: usize = 16;

/// The most dimensions of a tensor.
pub const MOST_DIMENSIONS: usize = 5;

/// The most elements along one dimension.
pub const MOST_ELEMENTS: u64 = 1 << 32;

/// The distance between two elements is less than this number of bytes.
pub const STRIDES_END: u64 = 1 << 40;

/// The first bytes of every map.
const MARK: [u8; 4] = *b"TMAP";

/// The type of a tensor's elements, with the numbers of `CUtensorMapDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "CUDA's types")]
pub enum ElementType {
    U8 = 0,
    U16 = 1,
    U32 = 2,
    I32 = 3,
    U64 = 4,
    I64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    Bf16 = 9,
    /// `f32`, whose subnormal numbers become 0 when they are copied to shared memory.
    F32Flushed = 10,
}

impl ElementType {
    /// Returns the type with this number, if there is one.
    pub fn numbered(number: u32) -> Option<Self> {
        use ElementType::*;
        [U8, U16, U32, I32, U64, I64, F16, F32, F64, Bf16, F32Flushed].get(number as usize).copied()
    }

    /// Returns an element's size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 | Self::F32Flushed => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Returns whether elements are floating-point numbers.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64 | Self::Bf16 | Self::F32Flushed)
    }

    /// Returns the bytes of a NaN, repeated in a whole piece.
    fn nan(self) -> [u8; PIECE] {
        let mut piece = [0xff; PIECE];
        for element in piece.chunks_exact_mut(self.bytes()) {
            // The sign is positive, as in PTX's canonical NaN.
            if let Some(last) = element.last_mut() {
                *last = 0x7f;
            }
        }
        piece
    }
}

/// How pieces are rearranged in shared memory, with the numbers of `CUtensorMapSwizzle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named by the bytes in which pieces change places")]
pub enum Swizzle {
    None = 0,
    B32 = 1,
    B64 = 2,
    B128 = 3,
}

impl Swizzle {
    /// Returns the pattern with this number, if there is one.
    pub fn numbered(number: u32) -> Option<Self> {
        [Self::None, Self::B32, Self::B64, Self::B128].get(number as usize).copied()
    }

    /// Returns the number of bytes in which pieces change places; `None` if they don't.
    pub fn span(self) -> Option<usize> {
        (self != Self::None).then_some(PIECE << self as u32)
    }

    /// Returns where the byte for an address in shared memory is placed. The manual's section "Swizzling Modes" draws the
    /// patterns: the number of a piece within its span is combined, by exclusive or, with that of its 128 bytes.
    pub fn place(self, address: u64) -> u64 {
        let pieces = (1 << self as u32) - 1;
        address ^ ((address >> 7 & pieces) << 4)
    }
}

/// What one instruction copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A box.
    Tile {
        /// The number of elements to step over along each dimension.
        size: [u16; MOST_DIMENSIONS],
    },
    /// Pixels of images in the layout NWC, NHWC, or NDHWC, in the order in which a filter visits them.
    Im2col {
        /// The first position of the filter along W, H, and D.
        lower: [i16; 3],
        /// The last position of the filter along W, H, and D, from the tensor's last element.
        upper: [i16; 3],
        /// The number of elements along C.
        channels: u16,
        /// The number of pixels.
        pixels: u16,
    },
}

/// A tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// The type of the elements.
    pub element: ElementType,
    /// The number of dimensions.
    pub rank: usize,
    /// The device address of the first element.
    pub address: u64,
    /// The number of elements along each dimension, innermost first.
    pub dimensions: [u64; MOST_DIMENSIONS],
    /// The distance in bytes between two elements along each dimension but the innermost.
    pub strides: [u64; MOST_DIMENSIONS - 1],
    /// The step between copied elements along each dimension; the innermost is ignored.
    pub steps: [u8; MOST_DIMENSIONS],
    /// How pieces are rearranged in shared memory.
    pub swizzle: Swizzle,
    /// Whether elements outside of the tensor become NaN; otherwise, they become 0.
    pub fills_with_nan: bool,
    /// What one instruction copies.
    pub part: Part,
}

/// At most 16 bytes of a part that stay together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset in the part, as if nothing were rearranged.
    pub offset: u64,
    /// The number of bytes that are outside of the tensor, before those inside.
    pub skipped: usize,
    /// The number of bytes inside of the tensor.
    pub len: usize,
    /// The device address of the first byte inside.
    pub address: u64,
}

impl TensorMap {
    /// Returns the map as a program keeps it.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(MARK);
        bytes.extend([self.element as u8, self.rank as u8, self.swizzle as u8, self.fills_with_nan.into()]);
        bytes.extend(self.address.to_le_bytes());
        self.dimensions.iter().chain(&self.strides).for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes.extend(self.steps);
        match self.part {
            Part::Tile { size } => {
                bytes.push(0);
                size.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            }
            Part::Im2col { lower, upper, channels, pixels } => {
                bytes.push(1);
                lower.iter().chain(&upper).for_each(|value| bytes.extend(value.to_le_bytes()));
                [channels, pixels].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            }
        }
        bytes.resize(BYTES, 0);
        std::array::from_fn(|at| bytes[at])
    }

    /// Returns the map that a program keeps in these bytes; `None` if they were not made by [`Self::to_bytes`].
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&MARK)?;
        let mut take = |len: usize| {
            let (taken, left) = rest.split_at_checked(len)?;
            rest = left;
            let mut value = [0; 8];
            value[..len].copy_from_slice(taken);
            Some(u64::from_le_bytes(value))
        };
        let element = ElementType::numbered(take(1)? as u32)?;
        let rank = take(1)? as usize;
        let swizzle = Swizzle::numbered(take(1)? as u32)?;
        let fills_with_nan = take(1)? != 0;
        let address = take(8)?;
        let mut map = Self {
            element,
            rank,
            address,
            dimensions: [0; MOST_DIMENSIONS],
            strides: [0; MOST_DIMENSIONS - 1],
            steps: [0; MOST_DIMENSIONS],
            swizzle,
            fills_with_nan,
            part: Part::Tile { size: [0; MOST_DIMENSIONS] },
        };
        for value in map.dimensions.iter_mut().chain(&mut map.strides) {
            *value = take(8)?;
        }
        for step in &mut map.steps {
            *step = take(1)? as u8;
        }
        match take(1)? {
            0 => {
                let mut size = [0; MOST_DIMENSIONS];
                for value in &mut size {
                    *value = take(2)? as u16;
                }
                map.part = Part::Tile { size };
            }
            _ => {
                let mut corners = [0; 6];
                for value in &mut corners {
                    *value = take(2)? as i16;
                }
                let [w, h, d, to_w, to_h, to_d] = corners;
                let (lower, upper) = ([w, h, d], [to_w, to_h, to_d]);
                map.part = Part::Im2col { lower, upper, channels: take(2)? as u16, pixels: take(2)? as u16 };
            }
        }
        let is_sound = (1..=MOST_DIMENSIONS).contains(&rank)
            && map.steps[..rank].iter().all(|&step| step > 0)
            && map.dimensions[..rank].iter().all(|size| (1..=MOST_ELEMENTS).contains(size))
            && map.strides[..rank - 1].iter().all(|&stride| stride < STRIDES_END);
        is_sound.then_some(map)
    }

    /// Returns the number of bytes in a part, which count as transactions of an mbarrier object.
    pub fn part_bytes(&self) -> u64 {
        (self.row_count() * self.row_bytes()) as u64
    }

    /// Returns the number of bytes that a part takes in shared memory.
    pub fn extent(&self) -> u64 {
        (self.row_count() * self.pitch()) as u64
    }

    /// Returns the bytes that elements outside of the tensor have in shared memory.
    pub fn fill(&self) -> [u8; PIECE] {
        if self.fills_with_nan { self.element.nan() } else { [0; PIECE] }
    }

    /// Returns the number of bytes along the innermost dimension of a part.
    fn row_bytes(&self) -> usize {
        let elements = match self.part {
            Part::Tile { size } => size[0],
            Part::Im2col { channels, .. } => channels,
        };
        usize::from(elements) * self.element.bytes()
    }

    /// Returns the distance in bytes between two rows in shared memory. With a pattern, each row takes the whole span.
    fn pitch(&self) -> usize {
        self.swizzle.span().unwrap_or(0).max(self.row_bytes())
    }

    fn row_count(&self) -> usize {
        match self.part {
            Part::Tile { .. } => (1..self.rank).map(|at| self.count(at)).product(),
            Part::Im2col { pixels, .. } => pixels.into(),
        }
    }

    /// Returns the number of elements that are copied along a dimension of a tile.
    fn count(&self, at: usize) -> usize {
        match self.part {
            Part::Tile { size } => usize::from(size[at]).div_ceil(self.steps[at].into()),
            Part::Im2col { .. } => 0,
        }
    }

    /// Calls `act` with each piece of the part at these coordinates, innermost first, in the order of its offsets.
    /// `offsets` are those of im2col, along W, H, and D.
    ///
    /// # Errors
    /// Fails as soon as `act` does.
    pub fn each_piece<E>(
        &self,
        coordinates: &[i32],
        offsets: &[u16],
        mut act: impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = [0_i64; MOST_DIMENSIONS];
        for (to, from) in at.iter_mut().zip(coordinates) {
            *to = i64::from(*from);
        }
        let start = at;
        let pitch = self.pitch();
        for row in 0..self.row_count() {
            self.row(&at, offsets, (row * pitch) as u64, &mut act)?;
            match self.part {
                Part::Tile { .. } => {
                    let mut rest = row + 1;
                    for dimension in 1..self.rank {
                        let count = self.count(dimension);
                        let step = i64::from(self.steps[dimension]);
                        at[dimension] = start[dimension] + (rest % count) as i64 * step;
                        rest /= count;
                    }
                }
                Part::Im2col { lower, upper, .. } => self.next_pixel(&mut at, lower, upper),
            }
        }
        Ok(())
    }

    /// Goes to the next position of the filter: along W within the bounding box, then along H and D, then to the next
    /// image.
    fn next_pixel(&self, at: &mut [i64; MOST_DIMENSIONS], lower: [i16; 3], upper: [i16; 3]) {
        let last = self.rank - 1;
        for dimension in 1..last {
            at[dimension] += i64::from(self.steps[dimension]);
            let end = self.dimensions[dimension] as i64 - 1 + i64::from(upper[dimension - 1]);
            if at[dimension] <= end {
                return;
            }
            at[dimension] = i64::from(lower[dimension - 1]);
        }
        at[last] += 1;
    }

    /// Calls `act` with each piece of a row.
    fn row<E>(
        &self,
        at: &[i64; MOST_DIMENSIONS],
        offsets: &[u16],
        offset: u64,
        act: &mut impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut address = Some(self.address);
        for dimension in 1..self.rank {
            let moved =
                offsets.get(dimension - 1).filter(|_| dimension + 1 < self.rank).copied().unwrap_or(0);
            let coordinate = at[dimension] + i64::from(moved);
            let inside = u64::try_from(coordinate).ok().filter(|&at| at < self.dimensions[dimension]);
            address = address
                .zip(inside)
                .map(|(address, at)| address.wrapping_add(at.wrapping_mul(self.strides[dimension - 1])));
        }
        let size = self.element.bytes() as i64;
        let (first, end) = (at[0] * size, self.dimensions[0] as i64 * size);
        for within in (0..self.row_bytes() as i64).step_by(PIECE) {
            // The bytes of this piece, from the start of the tensor's row.
            let (start, after) = (first + within, first + within + PIECE as i64);
            let (from, to) = (start.clamp(0, end), after.clamp(0, end));
            let len = if address.is_some() { (to - from).max(0) as usize } else { 0 };
            act(Piece {
                offset: offset + within as u64,
                skipped: if len > 0 { (from - start) as usize } else { 0 },
                len,
                address: address.unwrap_or(0).wrapping_add(from as u64),
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A matrix of 6 rows and 10 columns of `f32`, whose rows are 64 bytes apart.
    fn matrix(size: [u16; 2]) -> TensorMap {
        TensorMap {
            element: ElementType::F32,
            rank: 2,
            address: 0x1000,
            dimensions: [10, 6, 0, 0, 0],
            strides: [64, 0, 0, 0],
            steps: [1; MOST_DIMENSIONS],
            swizzle: Swizzle::None,
            fills_with_nan: false,
            part: Part::Tile { size: [size[0], size[1], 0, 0, 0] },
        }
    }

    fn pieces(map: &TensorMap, coordinates: &[i32], offsets: &[u16]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let Ok(()) = map.each_piece(coordinates, offsets, |piece| {
            pieces.push(piece);
            Ok::<_, std::convert::Infallible>(())
        });
        pieces
    }

    #[test]
    fn a_map_survives_being_kept_in_bytes() {
        let tile = matrix([8, 2]);
        let im2col = TensorMap {
            fills_with_nan: true,
            swizzle: Swizzle::B128,
            part: Part::Im2col { lower: [-1, -2, -3], upper: [1, 2, 3], channels: 8, pixels: 1024 },
            ..tile
        };
        for map in [tile, im2col] {
            assert_eq!(TensorMap::from_bytes(&map.to_bytes()), Some(map));
        }
        assert_eq!(TensorMap::from_bytes(&[0; BYTES]), None);
        let no_step = TensorMap { steps: [0; MOST_DIMENSIONS], ..tile };
        assert_eq!(TensorMap::from_bytes(&no_step.to_bytes()), None);
        let empty = TensorMap { dimensions: [10, 0, 0, 0, 0], ..tile };
        assert_eq!(TensorMap::from_bytes(&empty.to_bytes()), None);
        let large = TensorMap { dimensions: [10, u64::MAX, 0, 0, 0], ..tile };
        assert_eq!(TensorMap::from_bytes(&large.to_bytes()), None);
        let wide = TensorMap { strides: [u64::MAX, 0, 0, 0], ..tile };
        assert_eq!(TensorMap::from_bytes(&wide.to_bytes()), None);
    }

    #[test]
    fn a_tile_inside_is_copied_row_by_row() {
        let pieces = pieces(&matrix([4, 2]), &[2, 1], &[]);
        let expected = [(0, 0x1000 + 64 + 8), (16, 0x1000 + 128 + 8)];
        let expected = expected.map(|(offset, address)| Piece { offset, skipped: 0, len: 16, address });
        assert_eq!(pieces, expected);
    }

    #[test]
    fn what_is_outside_of_the_tensor_is_left_out() {
        // Columns -1 to 2 and 8 to 11, and a row above the tensor.
        let left = pieces(&matrix([4, 1]), &[-1, 0], &[]);
        assert_eq!(left, [Piece { offset: 0, skipped: 4, len: 12, address: 0x1000 }]);
        let right = pieces(&matrix([4, 1]), &[8, 5], &[]);
        assert_eq!(right, [Piece { offset: 0, skipped: 0, len: 8, address: 0x1000 + 5 * 64 + 32 }]);
        for outside in [[0, -1], [0, 6], [-4, 0], [10, 0]] {
            assert_eq!(pieces(&matrix([4, 1]), &outside, &[])[0].len, 0, "{outside:?}");
        }
    }

    #[test]
    fn steps_leave_out_elements() {
        let mut map = matrix([4, 4]);
        map.steps[1] = 3;
        assert_eq!(map.part_bytes(), 32);
        let addresses: Vec<u64> = pieces(&map, &[0, 1], &[]).iter().map(|piece| piece.address).collect();
        assert_eq!(addresses, [0x1000 + 64, 0x1000 + 4 * 64]);
    }

    #[test]
    fn im2col_visits_the_positions_of_a_filter() {
        // A 3x3 image with 4 channels, a 2x2 filter, and padding of 1: the filter has 4x4 positions.
        let map = TensorMap {
            rank: 4,
            dimensions: [4, 3, 3, 1, 0],
            strides: [16, 48, 144, 0],
            part: Part::Im2col { lower: [-1, -1, 0], upper: [0, 0, 0], channels: 4, pixels: 16 },
            ..matrix([0, 0])
        };
        let visited = |offsets: [u16; 2]| -> Vec<Option<u64>> {
            let pieces = pieces(&map, &[0, -1, -1, 0], &offsets);
            pieces.iter().map(|piece| (piece.len > 0).then(|| (piece.address - 0x1000) / 16)).collect()
        };
        let pixel = |w: i64, h: i64| {
            (0..3).contains(&w).then_some(())?;
            (0..3).contains(&h).then_some((h * 3 + w) as u64)
        };
        for [moved_w, moved_h] in [[0, 0], [1, 0], [0, 1], [1, 1]] {
            let expected: Vec<_> = (-1..3)
                .flat_map(|h| (-1..3).map(move |w| (w, h)))
                .map(|(w, h)| pixel(w + i64::from(moved_w), h + i64::from(moved_h)))
                .collect();
            assert_eq!(visited([moved_w, moved_h]), expected, "{moved_w} {moved_h}");
        }
    }

    #[test]
    fn a_pattern_moves_whole_pieces_within_its_span() {
        // Row r of 128 bytes: piece p is at p ^ (r % 8).
        for (row, piece) in [(0, 5), (3, 5), (9, 0)] {
            let placed = Swizzle::B128.place(row * 128 + piece * 16 + 7);
            assert_eq!(placed, row * 128 + (piece ^ (row % 8)) * 16 + 7);
        }
        assert_eq!(Swizzle::B64.place(0x180), 0x180 ^ 0x30);
        assert_eq!(Swizzle::B32.place(0x180), 0x180 ^ 0x10);
        assert_eq!(Swizzle::None.place(0x3f8), 0x3f8);
    }

    #[test]
    fn nan_has_the_width_of_the_element() {
        assert_eq!(ElementType::F16.nan()[..4], [0xff, 0x7f, 0xff, 0x7f]);
        assert!(f32::from_le_bytes([0xff, 0xff, 0xff, 0x7f]).is_nan());
        assert_eq!(ElementType::F32.nan()[..4], [0xff, 0xff, 0xff, 0x7f]);
    }
}
