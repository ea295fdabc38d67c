//! `cp.async`: copies from global to shared memory that end when their thread waits for them. Until then nothing orders
//! them, not even for the thread itself.

use super::access::Home;
use super::block::{Machine, Stop};
use super::fault::Access as Kind;
use super::file::Mask;
use virtual_gpu_ptx::instruction::{Address, Slot, Space};

/// Copies of a block that are kept under way. Of more, the oldest end by themselves, as they may.
const MOST_UNDER_WAY: usize = 1 << 16;

/// A copy under way. Its source was read when it began.
#[derive(Clone, Copy, Debug)]
struct Copy {
    lane: usize,
    /// The instruction.
    pc: usize,
    /// The number of its group among the thread's.
    group: u64,
    /// The first byte in shared memory.
    offset: usize,
    len: usize,
    bytes: [u8; 16],
}

/// A block's copies.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// In the order in which they began.
    under_way: Vec<Copy>,
    /// Groups that each thread has committed.
    committed: Vec<u64>,
}

impl Copies {
    /// Begins a block of so many threads.
    pub(super) fn start(&mut self, lanes: usize) {
        self.under_way.clear();
        self.committed.clear();
        self.committed.resize(lanes, 0);
    }
}

impl Machine<'_> {
    /// `cp.async`: of `len` bytes the first `present` are copied, the others become zero.
    pub(super) fn begin_copies(
        &mut self,
        to: Address,
        from: Address,
        len: usize,
        present: Slot,
        mask: &Mask,
    ) -> Result<(), Stop> {
        self.changes += 1;
        self.looks += 1;
        for lane in mask.lanes() {
            let mut bytes = [0; 16];
            let present = (self.block.files.word_of(present, lane) as usize).min(len);
            let source = self.address_of(from, lane);
            self.check_alignment(Space::Global, Kind::Read, lane, source, len as u64)?;
            if present == len {
                self.read_bytes(Space::Global, Kind::Read, lane, source, &mut bytes[..len])?;
            } else {
                for (at, byte) in bytes[..present].chunks_exact_mut(1).enumerate() {
                    self.read_bytes(Space::Global, Kind::Read, lane, source + at as u64, byte)?;
                }
            }
            let target = self.address_of(to, lane);
            self.check_alignment(Space::Shared, Kind::Write, lane, target, len as u64)?;
            let Some((Home::Shared, offset)) = self.locate(Space::Shared, target, len as u64) else {
                return Err(self.bad_address(Space::Shared, Kind::Write, lane, target, len as u64));
            };
            self.watch_copy(lane, offset, len as u64);
            let group = self.block.copies.committed[lane];
            let copy = Copy { lane, pc: self.pc, group, offset: offset as usize, len, bytes };
            self.block.copies.under_way.push(copy);
        }
        let under_way = &mut self.block.copies.under_way;
        let excess = under_way.len().saturating_sub(MOST_UNDER_WAY);
        let oldest: Vec<Copy> = under_way.drain(..excess).collect();
        oldest.into_iter().for_each(|copy| self.end_copy(copy));
        Ok(())
    }

    /// `cp.async.commit_group`: what each thread has begun and not committed is a group.
    pub(super) fn commit_copies(&mut self, mask: &Mask) {
        for lane in mask.lanes() {
            self.block.copies.committed[lane] += 1;
        }
    }

    /// `cp.async.wait_group`: ends all groups of each thread but the last `pending`.
    pub(super) fn end_copies(&mut self, pending: u32, mask: &Mask) {
        for copy in std::mem::take(&mut self.block.copies.under_way) {
            let committed = self.block.copies.committed[copy.lane];
            if mask.has(copy.lane) && copy.group + u64::from(pending) < committed {
                self.end_copy(copy);
            } else {
                self.block.copies.under_way.push(copy);
            }
        }
    }

    fn end_copy(&mut self, copy: Copy) {
        self.changes += 1;
        let Copy { lane, pc, offset, len, bytes, .. } = copy;
        let shared = &mut self.block.shared;
        shared.bytes[offset..offset + len].copy_from_slice(&bytes[..len]);
        shared.written.mark(offset as u64..(offset + len) as u64);
        if self.block.shadow.is_on {
            self.block.shadow.end_copy(offset as u64, len as u64, lane, pc);
        }
    }
}
