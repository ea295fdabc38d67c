//! How many blocks of a kernel are resident on a multiprocessor at the same time.
//!
//! The rules come from NVIDIA's `cuda_occupancy.h` for compute capability 9.0, except for registers: every kernel is
//! assumed to use [`REGISTERS_PER_THREAD`], so registers never limit the number of blocks.

use crate::device::{
    MAX_BLOCKS_PER_MULTIPROCESSOR, MAX_THREADS_PER_MULTIPROCESSOR, MULTIPROCESSORS, REGISTERS,
    REGISTERS_PER_THREAD, SHARED_PER_MULTIPROCESSOR, SHARED_RESERVED_PER_BLOCK, WARP,
};

/// Shared memory is allocated in multiples of this many bytes.
const SHARED_UNIT: u64 = 128;

/// The sizes, in KiB, that the shared part of a multiprocessor's memory can have; the rest is L1 cache.
const SHARED_SIZES: [u64; 10] = [0, 8, 16, 32, 64, 100, 132, 164, 196, 228];

/// The multiprocessor resources that a kernel uses, apart from threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The maximum number of threads in a block.
    pub max_threads: u32,
    /// The number of bytes of static shared memory.
    pub static_shared: u32,
    /// The number of bytes of dynamic shared memory that a launch may request.
    pub max_dynamic_shared: u32,
    /// The share of a multiprocessor's memory that the program prefers to use as shared memory, in percent, if it has a
    /// preference.
    pub carveout: Option<u32>,
}

/// The block size that makes the best use of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The number of threads in a block; 0 if no block fits.
    pub threads: u32,
    /// The number of blocks that fill the GPU.
    pub blocks: u32,
}

impl Usage {
    /// Returns how many blocks of `threads` threads and `dynamic` bytes of dynamic shared memory are resident at the
    /// same time; 0 if a launch would be rejected.
    pub fn blocks(&self, threads: u32, dynamic: u64) -> u32 {
        let allocated = self.allocated(dynamic);
        if threads == 0 || threads > self.max_threads || dynamic > u64::from(self.max_dynamic_shared) {
            return 0;
        }
        let warps = threads.div_ceil(WARP);
        let by_warps = MAX_THREADS_PER_MULTIPROCESSOR / WARP / warps;
        let by_registers = REGISTERS / (REGISTERS_PER_THREAD * WARP) / warps;
        // A block that would not fit gets more shared memory than the program prefers.
        let shared = self.wished().max(at_least(allocated));
        let by_shared = u32::try_from(shared / allocated).unwrap_or(u32::MAX);
        by_warps.min(by_registers).min(by_shared).min(MAX_BLOCKS_PER_MULTIPROCESSOR)
    }

    /// Returns the number of bytes of dynamic shared memory that each block can have if `blocks` of them are resident;
    /// `None` if that many never fit.
    pub fn dynamic_shared(&self, blocks: u32, threads: u32) -> Option<u64> {
        if blocks == 0 || self.blocks(threads, 0) < blocks {
            return None;
        }
        let shared = match blocks {
            1 => u64::from(SHARED_PER_MULTIPROCESSOR),
            _ => self.wished().max(at_least(1)),
        };
        let each = shared / u64::from(blocks) / SHARED_UNIT * SHARED_UNIT;
        Some(each.saturating_sub(self.fixed()).min(u64::from(self.max_dynamic_shared)))
    }

    /// Returns the largest of the block sizes that keep the most threads resident. `dynamic` returns the number of
    /// bytes of dynamic shared memory for a block size; blocks larger than `limit` are not considered, unless `limit`
    /// is 0.
    pub fn suggest(&self, limit: u32, mut dynamic: impl FnMut(u32) -> u64) -> Suggestion {
        let limit = if limit == 0 { self.max_threads } else { limit.min(self.max_threads) };
        let mut best = Suggestion { threads: 0, blocks: 0 };
        let mut most = 0;
        // Start at the limit and go down one warp at a time.
        for warps in (1..=limit.div_ceil(WARP)).rev() {
            let threads = (warps * WARP).min(limit);
            let blocks = self.blocks(threads, dynamic(threads));
            if threads * blocks > most {
                most = threads * blocks;
                best = Suggestion { threads, blocks: blocks * MULTIPROCESSORS };
            }
            if most == MAX_THREADS_PER_MULTIPROCESSOR {
                break;
            }
        }
        best
    }

    /// Returns the number of bytes that a block uses before any dynamic shared memory.
    fn fixed(&self) -> u64 {
        u64::from(self.static_shared) + u64::from(SHARED_RESERVED_PER_BLOCK)
    }

    fn allocated(&self, dynamic: u64) -> u64 {
        self.fixed().saturating_add(dynamic).checked_next_multiple_of(SHARED_UNIT).unwrap_or(u64::MAX)
    }

    /// Returns the number of bytes of shared memory that the program prefers for a multiprocessor.
    fn wished(&self) -> u64 {
        let percent = u64::from(self.carveout.unwrap_or(100));
        at_least(percent * u64::from(SHARED_PER_MULTIPROCESSOR) / 100)
    }
}

/// Returns the smallest size for a multiprocessor's shared memory that can hold this many bytes, or the largest size if
/// none can.
fn at_least(bytes: u64) -> u64 {
    let sizes = SHARED_SIZES.map(|size| size << 10);
    sizes.into_iter().find(|&size| size >= bytes).unwrap_or(u64::from(SHARED_PER_MULTIPROCESSOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Usage =
        Usage { max_threads: 1024, static_shared: 0, max_dynamic_shared: 48 << 10, carveout: None };

    #[test]
    fn the_scarcest_resource_limits_the_blocks() {
        // 2048 threads, 32 blocks.
        assert_eq!(
            [1024, 1000, 256, 64, 32, 1].map(|threads| PLAIN.blocks(threads, 0)),
            [2, 2, 8, 32, 32, 32]
        );
        // There are 228 KiB of shared memory, and each block uses 1 KiB more than it requests.
        assert_eq!(PLAIN.blocks(32, 48 << 10), 4);
        assert_eq!(PLAIN.blocks(32, (48 << 10) + 1), 0, "not opted in");
        let large = Usage { max_dynamic_shared: 227 << 10, ..PLAIN };
        assert_eq!([113, 114, 227].map(|kib| large.blocks(32, kib << 10)), [2, 1, 1]);
        assert_eq!([0, 1025].map(|threads| PLAIN.blocks(threads, 0)), [0, 0]);
    }

    #[test]
    fn a_preference_for_cache_leaves_less_shared_memory() {
        let wish = |percent| Usage { carveout: Some(percent), ..PLAIN };
        // 50% of 228 KiB is 114 KiB, and the next larger size is 132 KiB.
        assert_eq!(wish(50).blocks(32, 32 << 10), 4);
        assert_eq!(wish(0).blocks(32, 32 << 10), 1, "a block always fits");
        assert_eq!(wish(100), Usage { carveout: Some(100), ..PLAIN });
    }

    #[test]
    fn blocks_with_the_returned_shared_memory_are_resident_and_no_more_fits() {
        let large = Usage { max_dynamic_shared: 227 << 10, static_shared: 0, ..PLAIN };
        for blocks in 1..=32 {
            let room = large.dynamic_shared(blocks, 32).unwrap();
            assert!(large.blocks(32, room) >= blocks, "{blocks}: {room}");
            assert!(room == 227 << 10 || large.blocks(32, room + SHARED_UNIT) < blocks, "{blocks}: {room}");
        }
        assert_eq!(large.dynamic_shared(3, 1024), None);
        assert_eq!(large.dynamic_shared(0, 32), None);
    }

    #[test]
    fn the_suggestion_is_the_largest_of_the_best() {
        assert_eq!(PLAIN.suggest(0, |_| 0), Suggestion { threads: 1024, blocks: 264 });
        assert_eq!(PLAIN.suggest(700, |_| 0), Suggestion { threads: 512, blocks: 528 });
        // At 64 bytes per thread, 1024 threads need 64 KiB, which is more than is allowed.
        assert_eq!(PLAIN.suggest(0, |threads| u64::from(threads) * 64).threads, 512);
        assert_eq!(PLAIN.suggest(0, |_| 1 << 20), Suggestion { threads: 0, blocks: 0 });
        let bounded = Usage { max_threads: 100, ..PLAIN };
        assert_eq!(bounded.suggest(0, |_| 0), Suggestion { threads: 64, blocks: 32 * 132 });
    }
}
