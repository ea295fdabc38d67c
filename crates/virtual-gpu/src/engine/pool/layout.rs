//! Where the allocations of a memory pool are, so that the pool fragments as a real one does.
//!
//! A position is an offset in the pool. Positions are bookkeeping only: `DeviceMemory` chooses the addresses of
//! allocations, far apart, to detect wrong accesses. CUDA does not document how a pool places allocations, except that:
//!
//! - A pool takes and releases memory in larger units than allocations, and can't release memory that backs an
//!   outstanding allocation (`cuMemPoolTrimTo` in cuda.h).
//! - Memory that is freed in a stream can be reused at once by a later allocation in this stream, and by other streams
//!   once the free is done (CUDA C++ Programming Guide, "Stream Ordered Memory Allocator").
//! - If no hole is long enough, the driver remaps unused memory of the pool to contiguous addresses before it takes
//!   more from the GPU (NVIDIA's blog, "Using the NVIDIA CUDA Stream-Ordered Memory Allocator, Part 1").
//!
//! Everything else is a choice. Allocations are placed first-fit, which is simple to predict and keeps the end of the
//! pool empty, and take exactly as many bytes as were requested.

use std::ops::Range;

use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::number_map::NumberMap;

/// A pool takes, remaps, and releases memory in granules of this many bytes. CUDA documents no number for pools; this is
/// the minimum that NVIDIA GPUs report through `cuMemGetAllocationGranularity`.
pub(in crate::engine) const GRANULE: u64 = 2 << 20;

/// The use of a block of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// In use by the allocation with this number.
    Taken(u64),
    /// Was in use by the allocation with this number. The stream has not run the free yet.
    Freeing(u64, StreamHandle),
}

impl Use {
    fn is_of(self, allocation: u64) -> bool {
        matches!(self, Self::Taken(number) | Self::Freeing(number, _) if number == allocation)
    }

    /// Returns whether a new allocation in `stream` can have the block.
    fn is_available_in(self, stream: StreamHandle) -> bool {
        match self {
            Self::Free => true,
            Self::Taken(_) => false,
            Self::Freeing(_, by) => by == stream,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    len: u64,
    used_for: Use,
}

/// The place of an allocation in its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    number: u64,
    positions: Range<u64>,
}

/// The blocks of a pool.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Blocks by position. They cover all granules that the pool has reserved, and nothing else.
    blocks: NumberMap<Block>,
    /// The positions of the blocks that are not taken: few, if a program allocates much and frees little.
    idle: NumberMap<()>,
    reserved: u64,
    used: u64,
    /// The number of allocations so far.
    placed: u64,
}

impl Layout {
    /// Returns the number of bytes that the pool holds.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns the number of bytes that are allocated, or freed by an operation that has not run yet.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the lengths of the holes for an allocation in `stream`.
    pub(super) fn holes(&self, stream: StreamHandle) -> impl Iterator<Item = u64> {
        self.ranges_for(stream).map(|hole| hole.end - hole.start)
    }

    /// Places an allocation of `bytes` in `stream`: in the first hole that is long enough, or else at the end. There,
    /// the pool needs more granules. It moves whole granules that are free, and passes the number of missing bytes to
    /// `reserve`, which takes them from the GPU.
    ///
    /// # Errors
    /// Changes nothing and returns the error of `reserve`.
    pub(super) fn place<E>(
        &mut self,
        bytes: u64,
        stream: StreamHandle,
        reserve: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<Place, E> {
        let fitting = self.ranges_for(stream).find(|hole| hole.end - hole.start >= bytes);
        let start = match fitting {
            Some(hole) => hole.start,
            None => self.grow(bytes, stream, reserve)?,
        };
        Ok(self.take(start..start + bytes))
    }

    /// Marks an allocation as freed by an operation of `stream` that has not run yet.
    pub(super) fn free_in(&mut self, place: &Place, stream: StreamHandle) {
        for start in self.blocks_of(place) {
            if let Some(block) = self.blocks.get_mut(start) {
                block.used_for = Use::Freeing(place.number, stream);
            }
            self.idle.insert(start, ());
        }
    }

    /// Frees what nothing has reused of an allocation.
    pub(super) fn free(&mut self, place: &Place) {
        for start in self.blocks_of(place) {
            if let Some(block) = self.blocks.get_mut(start) {
                block.used_for = Use::Free;
                self.used -= block.len;
                self.idle.insert(start, ());
                let end = start + block.len;
                self.join(end);
                self.join(start);
            }
        }
    }

    /// Releases free granules, those at the end first, while at least `keep` bytes remain. Returns the number of
    /// released bytes.
    pub(super) fn trim(&mut self, keep: u64) -> u64 {
        let spare = self.reserved.saturating_sub(keep).min(self.reserved - self.used);
        if spare < GRANULE {
            return 0;
        }
        let released = self.unmap(spare - spare % GRANULE, u64::MAX);
        self.reserved -= released;
        released
    }

    /// Returns the blocks that are not taken and start before a position.
    fn idle_blocks(&self, before: u64) -> impl DoubleEndedIterator<Item = (u64, &Block)> {
        self.idle.range(0..before).filter_map(|(start, ())| Some((start, self.blocks.get(start)?)))
    }

    /// Returns the holes for an allocation in `stream`: the longest ranges that it could have.
    fn ranges_for(&self, stream: StreamHandle) -> impl Iterator<Item = Range<u64>> {
        let available =
            self.idle_blocks(u64::MAX).filter(move |(_, block)| block.used_for.is_available_in(stream));
        let mut ranges = available.map(|(start, block)| start..start + block.len).peekable();
        std::iter::from_fn(move || {
            let mut hole = ranges.next()?;
            while let Some(next) = ranges.next_if(|next| next.start == hole.end) {
                hole.end = next.end;
            }
            Some(hole)
        })
    }

    /// Makes room for `bytes` at the end. Returns the position of the first.
    fn grow<E>(
        &mut self,
        bytes: u64,
        stream: StreamHandle,
        reserve: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<u64, E> {
        let end = self.blocks.last_before(u64::MAX).map_or(0, |(start, block)| start + block.len);
        let start =
            self.ranges_for(stream).last().filter(|hole| hole.end == end).map_or(end, |hole| hole.start);
        // More than any GPU has, but without an overflow.
        let missing =
            (bytes - (end - start)).checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX - GRANULE + 1);
        let movable: u64 = self.free_granules(start).map(|range| range.end - range.start).sum();
        let moved = missing.min(movable);
        reserve(missing - moved)?;
        self.unmap(moved, start);
        self.reserved += missing - moved;
        self.blocks.insert(end, Block { len: missing, used_for: Use::Free });
        self.idle.insert(end, ());
        self.join(end);
        Ok(start)
    }

    /// Returns the ranges of whole granules that are free, and start before a position.
    fn free_granules(&self, before: u64) -> impl DoubleEndedIterator<Item = Range<u64>> {
        let free = self.idle_blocks(before).filter(|(_, block)| block.used_for == Use::Free);
        let whole = free.map(|(start, block)| {
            let end = start + block.len;
            start.next_multiple_of(GRANULE)..end - end % GRANULE
        });
        whole.filter(|range| !range.is_empty())
    }

    /// Removes up to `bytes` of free granules before a position, the last ones first. Returns how many bytes it removed.
    fn unmap(&mut self, bytes: u64, before: u64) -> u64 {
        let mut left = bytes;
        let ranges: Vec<_> = self.free_granules(before).rev().collect();
        for range in ranges {
            if left == 0 {
                break;
            }
            let start = range.end - left.min(range.end - range.start);
            self.split(start);
            self.split(range.end);
            self.blocks.remove(start);
            self.idle.remove(start);
            left -= range.end - start;
        }
        bytes - left
    }

    /// Gives a range, which is available, to a new allocation.
    fn take(&mut self, positions: Range<u64>) -> Place {
        self.split(positions.start);
        self.split(positions.end);
        for start in self.blocks.numbers(positions.clone()) {
            if let Some(Block { len, used_for: Use::Free }) = self.blocks.remove(start) {
                self.used += len;
            }
            self.idle.remove(start);
        }
        let number = self.placed;
        self.placed += 1;
        let len = positions.end - positions.start;
        self.blocks.insert(positions.start, Block { len, used_for: Use::Taken(number) });
        Place { number, positions }
    }

    /// Returns the positions of the blocks that an allocation still has.
    fn blocks_of(&self, place: &Place) -> Vec<u64> {
        let near = self.blocks.range(place.positions.clone());
        near.filter(|(_, block)| block.used_for.is_of(place.number)).map(|(start, _)| start).collect()
    }

    /// Splits the block that has a position inside it.
    fn split(&mut self, at: u64) {
        let Some((start, block)) = self.blocks.last_before_mut(at) else { return };
        let end = start + block.len;
        if at < end {
            block.len = at - start;
            let used_for = block.used_for;
            self.blocks.insert(at, Block { len: end - at, used_for });
            if self.idle.get(start).is_some() {
                self.idle.insert(at, ());
            }
        }
    }

    /// Joins the block that starts at a position with the block before it, if both are free.
    fn join(&mut self, at: u64) {
        let Some(&Block { len, used_for: Use::Free }) = self.blocks.get(at) else { return };
        if let Some((start, before)) = self.blocks.last_before_mut(at)
            && before.used_for == Use::Free
            && start + before.len == at
        {
            before.len += len;
            self.blocks.remove(at);
            self.idle.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: StreamHandle = StreamHandle(16);
    const OTHER: StreamHandle = StreamHandle(32);
    const MIB: u64 = 1 << 20;

    /// A pool that can reserve any number of bytes.
    fn place(layout: &mut Layout, bytes: u64, stream: StreamHandle) -> Place {
        let Ok(place) = layout.place(bytes, stream, |_| Ok::<(), std::convert::Infallible>(()));
        assert_eq!(place.positions.end - place.positions.start, bytes);
        assert_is_consistent(layout);
        place
    }

    fn free(layout: &mut Layout, place: &Place) {
        layout.free(place);
        assert_is_consistent(layout);
    }

    fn assert_is_consistent(layout: &Layout) {
        let (mut end, mut reserved, mut used, mut was_free) = (0, 0, 0, false);
        for (start, block) in layout.blocks.range(0..u64::MAX) {
            assert!(block.len > 0 && start >= end, "{layout:?}");
            assert!(start == end || (start % GRANULE == 0 && end % GRANULE == 0), "{layout:?}");
            let is_free = block.used_for == Use::Free;
            assert!(start > end || !is_free || !was_free, "two free neighbors: {layout:?}");
            reserved += block.len;
            used += if is_free { 0 } else { block.len };
            (end, was_free) = (start + block.len, is_free);
        }
        assert_eq!((layout.reserved, layout.used), (reserved, used), "{layout:?}");
        let idle =
            layout.blocks.range(0..u64::MAX).filter(|(_, block)| !matches!(block.used_for, Use::Taken(_)));
        assert_eq!(layout.idle.numbers(0..u64::MAX), idle.map(|(start, _)| start).collect::<Vec<_>>());
        assert_eq!((end % GRANULE, reserved % GRANULE), (0, 0), "{layout:?}");
    }

    #[test]
    fn an_allocation_takes_the_first_hole_that_is_long_enough() {
        let mut layout = Layout::default();
        let sizes = [3, 1, 2, 1, 3, 1].map(|size| place(&mut layout, size * MIB, ONE));
        for index in [0, 2, 4] {
            free(&mut layout, &sizes[index]);
        }
        assert_eq!(place(&mut layout, 2 * MIB, ONE).positions, 0..2 * MIB);
        assert_eq!(place(&mut layout, 3 * MIB, ONE).positions, 7 * MIB..10 * MIB);
        assert_eq!(place(&mut layout, 2 * MIB, ONE).positions, 4 * MIB..6 * MIB);
        assert_eq!(place(&mut layout, MIB, ONE).positions, 2 * MIB..3 * MIB);
        assert_eq!(layout.reserved(), 12 * MIB);
    }

    #[test]
    fn neighboring_holes_join() {
        let mut layout = Layout::default();
        let places = [(); 8].map(|()| place(&mut layout, MIB, ONE));
        for index in [2, 4, 3] {
            free(&mut layout, &places[index]);
        }
        assert!(layout.holes(ONE).eq([3 * MIB]));
        assert_eq!(place(&mut layout, 3 * MIB, ONE).positions, 2 * MIB..5 * MIB);
    }

    #[test]
    fn whole_free_granules_move_to_the_end_before_the_pool_grows() {
        let mut layout = Layout::default();
        let places = [(); 4].map(|()| place(&mut layout, 2 * MIB, ONE));
        free(&mut layout, &places[0]);
        free(&mut layout, &places[2]);
        // Two granules move, and one is new.
        place(&mut layout, 6 * MIB, ONE);
        assert_eq!((layout.reserved(), layout.used()), (10 * MIB, 10 * MIB));
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let mut layout = Layout::default();
        let first = place(&mut layout, 2 * MIB, ONE);
        place(&mut layout, MIB, ONE);
        free(&mut layout, &first);
        let before = format!("{layout:?}");
        assert_eq!(layout.place(8 * MIB, ONE, Err), Err(6 * MIB));
        assert!(layout.place(u64::MAX, ONE, |_| Err(())).is_err());
        assert_eq!(format!("{layout:?}"), before);
    }

    #[test]
    fn only_its_stream_reuses_memory_before_the_free_has_run() {
        let mut layout = Layout::default();
        let freed = place(&mut layout, 4 * MIB, ONE);
        layout.free_in(&freed, ONE);
        assert_eq!(layout.trim(0), 0);
        assert_eq!(place(&mut layout, 2 * MIB, OTHER).positions, 4 * MIB..6 * MIB);
        let reused = place(&mut layout, MIB, ONE);
        assert_eq!((reused.positions.clone(), layout.used()), (0..MIB, 6 * MIB));
        // The reused part stays in use after the free has run.
        free(&mut layout, &freed);
        assert_eq!(layout.used(), 3 * MIB);
        assert!(layout.holes(OTHER).eq([3 * MIB]));
        assert_eq!(layout.trim(0), 2 * MIB);
        assert_is_consistent(&layout);
        free(&mut layout, &reused);
        assert_eq!((layout.used(), layout.reserved()), (2 * MIB, 4 * MIB));
    }

    #[test]
    fn trimming_releases_whole_free_granules_down_to_what_is_to_be_kept() {
        let mut layout = Layout::default();
        let places = [(); 8].map(|()| place(&mut layout, MIB, ONE));
        for index in [1, 2, 3, 5, 6, 7] {
            free(&mut layout, &places[index]);
        }
        // Of four granules, two are free, and two are half in use.
        assert_eq!(layout.trim(5 * MIB), 2 * MIB);
        assert_is_consistent(&layout);
        assert_eq!(layout.trim(0), 2 * MIB);
        assert_is_consistent(&layout);
        assert_eq!((layout.reserved(), layout.used()), (4 * MIB, 2 * MIB));
    }

    #[test]
    fn any_sequence_of_calls_keeps_the_layout_consistent() {
        let mut layout = Layout::default();
        let (mut live, mut freeing) = (Vec::<Place>::new(), Vec::<Place>::new());
        let mut random = 7_u64;
        for _ in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (choice, any) = (random >> 60, (random >> 20) as usize);
            let stream = if random & 1 << 40 == 0 { ONE } else { OTHER };
            match choice {
                0..7 => live.push(place(&mut layout, any as u64 % (5 * MIB) + 1, stream)),
                7..11 if !live.is_empty() => free(&mut layout, &live.swap_remove(any % live.len())),
                11..13 if !live.is_empty() => {
                    let freed = live.swap_remove(any % live.len());
                    layout.free_in(&freed, stream);
                    freeing.push(freed);
                }
                13..15 if !freeing.is_empty() => {
                    free(&mut layout, &freeing.swap_remove(any % freeing.len()));
                }
                _ => {
                    let (before, keep) = (layout.reserved(), any as u64 % (64 * MIB));
                    let released = layout.trim(keep);
                    assert_eq!(layout.reserved(), before - released);
                    assert!(released == 0 || layout.reserved() >= keep);
                    assert_is_consistent(&layout);
                }
            }
            for place in &live {
                let block = layout.blocks.get(place.positions.start).unwrap();
                assert_eq!(block.used_for, Use::Taken(place.number));
                assert_eq!(block.len, place.positions.end - place.positions.start);
            }
        }
        for place in live.iter().chain(&freeing) {
            free(&mut layout, place);
        }
        assert_eq!(layout.trim(0) % GRANULE, 0);
        assert_eq!((layout.reserved(), layout.used()), (0, 0));
    }
}
