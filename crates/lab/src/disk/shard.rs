//! A part of a buffer in a file, with a checksum.

use std::ops::Range;

use anyhow::{Context, ensure};

use super::Disk;

/// One of the parts into which ranks divide a buffer, in rank order. If its length isn't a multiple of the number of
/// ranks, the first parts have one element more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    rank: usize,
    world_size: usize,
    total: usize,
}

/// The length of a file's header: rank, world size, the buffer's length, and the checksum.
const HEADER: usize = 4 * size_of::<u64>();

impl Shard {
    /// Describes the part that `rank` of `world_size` ranks has of a buffer with `total` elements.
    pub fn new(rank: usize, world_size: usize, total: usize) -> Self {
        Self { rank, world_size, total }
    }

    /// Returns the range of the part in the buffer.
    pub fn range(&self) -> Range<usize> {
        let (len, longer) = (self.total / self.world_size, self.total % self.world_size);
        let start = |rank: usize| rank * len + rank.min(longer);
        start(self.rank)..start(self.rank + 1)
    }

    /// Returns the path of the part's file in a folder.
    pub fn path(&self, folder: &str) -> String {
        format!("{folder}/shard-{}-of-{}", self.rank, self.world_size)
    }

    /// Writes the part's file, with a checksum, but doesn't sync it.
    ///
    /// # Errors
    /// Fails if there are more or fewer values than the part has elements, or with the disk's error.
    pub fn write(&self, disk: &dyn Disk, folder: &str, values: &[f32]) -> anyhow::Result<()> {
        let (path, expected) = (self.path(folder), self.range().len());
        ensure!(values.len() == expected, "{path} holds {expected} elements, not {}", values.len());
        disk.write(&path, &self.encode(values))
    }

    /// Reads the part's file.
    ///
    /// # Errors
    /// Fails if the file is missing, torn, damaged, or of another buffer. The error names the file.
    pub fn read(&self, disk: &dyn Disk, folder: &str) -> anyhow::Result<Vec<f32>> {
        let path = self.path(folder);
        let bytes = disk.read(&path)?;
        let expected = HEADER + self.range().len() * size_of::<f32>();
        let values = bytes.get(HEADER..).unwrap_or_default();
        let values: Vec<f32> = values.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let header = self.encode(&values);
        let identity = HEADER - size_of::<u64>();
        ensure!(
            bytes.len() < identity || bytes[..identity] == header[..identity],
            "{path} is not a part of {} elements",
            self.total
        );
        ensure!(bytes.len() == expected, "{path} is torn: it has {} of {expected} bytes", bytes.len());
        (bytes == header)
            .then_some(values)
            .with_context(|| format!("{path} is damaged: its checksum is wrong"))
    }

    fn encode(&self, values: &[f32]) -> Vec<u8> {
        let identity = [self.rank, self.world_size, self.total].map(|number| (number as u64).to_le_bytes());
        let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let checksum = fnv1a(identity.as_flattened().iter().chain(&values));
        [identity.as_flattened(), &checksum.to_le_bytes(), &values].concat()
    }
}

/// Computes the 64-bit FNV-1a hash (G. Fowler and others, RFC 9923).
fn fnv1a<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RecordedDisk;

    #[test]
    fn the_hash_is_that_of_the_reference_implementation() {
        assert_eq!(fnv1a(b"".iter()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a".iter()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar".iter()), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn the_parts_of_all_ranks_are_the_buffer() {
        for (total, world_size) in [(0, 1), (1, 1), (10, 4), (12, 4), (3, 3), (2, 5), (1031, 8)] {
            let ranges: Vec<_> =
                (0..world_size).map(|rank| Shard::new(rank, world_size, total).range()).collect();
            assert!(ranges.iter().flat_map(Clone::clone).eq(0..total), "{ranges:?}");
            assert!(ranges.iter().all(|range| range.len().abs_diff(total / world_size) <= 1));
        }
    }

    #[test]
    fn every_damage_is_found_and_the_file_is_named() {
        let (disk, shard) = (RecordedDisk::default(), Shard::new(1, 3, 10));
        disk.create_folder("a").unwrap();
        shard.write(&disk, "a", &[1.5, f32::NAN, -0.0]).unwrap();
        let read = shard.read(&disk, "a").unwrap();
        assert!(read[0] == 1.5 && read[1].is_nan() && read[2].to_bits() == (-0.0_f32).to_bits());
        let path = shard.path("a");
        let bytes = disk.read(&path).unwrap();
        for len in 0..bytes.len() {
            disk.write(&path, &bytes[..len]).unwrap();
            let error = shard.read(&disk, "a").unwrap_err().to_string();
            assert!(error.starts_with("a/shard-1-of-3 is torn"), "{error}");
        }
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            disk.write(&path, &damaged).unwrap();
            let error = shard.read(&disk, "a").unwrap_err().to_string();
            assert!(error.starts_with("a/shard-1-of-3 is "), "{error}");
        }
        disk.remove(&path).unwrap();
        assert!(shard.read(&disk, "a").unwrap_err().to_string().contains(&path));
        assert!(shard.write(&disk, "a", &[1.0]).unwrap_err().to_string().contains("3 elements, not 1"));
    }
}
