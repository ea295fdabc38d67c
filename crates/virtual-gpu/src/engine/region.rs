//! The rows of memory that a copy or a set accesses.

/// Rows of equally many bytes at regular distances, in slices at regular distances. A contiguous range is one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The address of the first byte.
    pub start: u64,
    /// The number of bytes in a row.
    pub width: u64,
    /// The number of rows in a slice.
    pub height: u64,
    /// The number of slices.
    pub depth: u64,
    /// The distance between two rows in bytes, at least the width.
    pub pitch: u64,
    /// The distance between two slices in bytes, at least the height times the pitch.
    pub slice: u64,
}

impl Region {
    /// Returns the region of `len` contiguous bytes.
    pub fn line(start: u64, len: u64) -> Self {
        Self { start, width: len, height: 1, depth: 1, pitch: len, slice: len }
    }

    /// Returns the number of bytes in all rows, or the largest number if there are more.
    pub fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }

    /// Returns the number of bytes from the start of the first row to the end of the last row. Returns `None` if the
    /// region is larger than the address space.
    pub fn extent(&self) -> Option<u64> {
        if self.bytes() == 0 {
            return Some(0);
        }
        let slices = self.slice.checked_mul(self.depth - 1)?;
        let rows = self.pitch.checked_mul(self.height - 1)?;
        let extent = slices.checked_add(rows)?.checked_add(self.width)?;
        self.start.checked_add(extent).map(|_| extent)
    }

    /// Returns the address of each row's first byte, in ascending order. The region must not be larger than the address
    /// space.
    pub fn rows(&self) -> impl Iterator<Item = u64> + use<> {
        let Self { start, width, height, depth, pitch, slice } = *self;
        let slices = if width == 0 { 0 } else { depth };
        (0..slices).flat_map(move |z| (0..height).map(move |y| start + z * slice + y * pitch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_at_regular_distances() {
        let region = Region { start: 100, width: 3, height: 2, depth: 2, pitch: 10, slice: 50 };
        assert_eq!(region.rows().collect::<Vec<_>>(), [100, 110, 150, 160]);
        assert_eq!((region.bytes(), region.extent()), (12, Some(63)));
        assert_eq!(Region::line(7, 5).rows().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_region_without_bytes_has_no_rows() {
        for [width, height, depth] in [[0, 2, 2], [3, 0, 2], [3, 2, 0]] {
            let region = Region { start: 100, width, height, depth, pitch: 10, slice: 50 };
            assert_eq!((region.rows().count(), region.extent()), (0, Some(0)));
        }
    }

    #[test]
    fn a_region_beyond_the_address_space_has_no_extent() {
        let region = Region { start: 1, width: 3, height: u64::MAX, depth: 1, pitch: 10, slice: 0 };
        assert_eq!(region.extent(), None);
        assert_eq!(Region::line(u64::MAX, 2).extent(), None);
    }
}
