//! `cp.async`: copies from global to shared memory that complete when their thread waits for them. Until then, they are
//! unordered, even for the thread itself.

use super::access::read;
use super::atomic::combine;
use super::bytes::Location;
use super::copies::Copy;
use crate::fault::{Access as Kind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use virtual_gpu_ptx::instruction::{Address, Slot, Space};

/// The maximum number of pending copies in a block. If there are more, the oldest complete on their own, which PTX
/// permits.
const MOST_UNDER_WAY: usize = 1 << 16;

impl Machine<'_> {
    /// `cp.async`: copies the first `present` of `len` bytes and sets the others to zero.
    pub(crate) fn begin_copies(
        &mut self,
        to: Address,
        from: Address,
        len: usize,
        present: Slot,
        mask: &Mask,
    ) -> Result<(), Stop> {
        self.changes += 1;
        self.looks += 1;
        for thread in mask.threads() {
            let mut bytes = [0; 16];
            let present = (self.block.files.word_of(present, thread) as usize).min(len);
            let source = self.address_of(from, thread);
            self.check_alignment(Space::Global, Kind::Read, thread, source, len as u64)?;
            if present == len {
                self.read_bytes(Space::Global, Kind::Read, thread, source, &mut bytes[..len])?;
            } else {
                for (at, byte) in bytes[..present].chunks_exact_mut(1).enumerate() {
                    self.read_bytes(Space::Global, Kind::Read, thread, source + at as u64, byte)?;
                }
            }
            let target = self.address_of(to, thread);
            self.check_alignment(Space::Shared, Kind::Write, thread, target, len as u64)?;
            let found = self.locate(Space::Shared, target, len as u64);
            let Some((location @ Location::Shared, offset)) = found else {
                return Err(self.bad_address(Space::Shared, Kind::Write, thread, target, len as u64));
            };
            self.note_overrun(location, offset, Kind::Write, thread, len as u64);
            self.watch_copy(thread, offset, len as u64);
            let group = self.block.copies.committed[thread];
            let number = self.block.copies.begun;
            self.block.copies.begun += 1;
            let (rank, offset) = (self.cluster.rank, offset as usize);
            let copy = Copy { thread, rank, number, pc: self.pc, group, offset, len, bytes, reduction: None };
            self.block.copies.under_way.push(copy);
        }
        self.end_oldest_copies();
        Ok(())
    }

    /// Completes the oldest copies if too many are pending.
    pub(crate) fn end_oldest_copies(&mut self) {
        let under_way = &mut self.block.copies.under_way;
        let excess = under_way.len().saturating_sub(MOST_UNDER_WAY);
        let oldest: Vec<Copy> = under_way.drain(..excess).collect();
        oldest.into_iter().for_each(|copy| self.end_copy(copy));
    }

    /// `cp.async.commit_group`: for each thread, makes a group of the copies that it has begun but not committed.
    pub(crate) fn commit_copies(&mut self, mask: &Mask) {
        for thread in mask.threads() {
            self.block.copies.committed[thread] += 1;
        }
    }

    /// `cp.async.wait_group`: completes all of each thread's groups except the last `pending`.
    pub(crate) fn end_copies(&mut self, pending: u32, mask: &Mask) {
        for copy in std::mem::take(&mut self.block.copies.under_way) {
            let committed = self.block.copies.committed[copy.thread];
            let is_own = copy.rank == self.cluster.rank && mask.has(copy.thread);
            if is_own && copy.group + u64::from(pending) < committed {
                self.end_copy(copy);
            } else {
                self.block.copies.under_way.push(copy);
            }
        }
    }

    pub(crate) fn end_copy(&mut self, copy: Copy) {
        self.changes += 1;
        let Copy { thread, rank, pc, offset, len, mut bytes, reduction, .. } = copy;
        let mut has_missing = false;
        let shared = &mut self.block.shared;
        let target = &mut shared.bytes[offset..offset + len];
        let place = (offset as u64, len as u64);
        if let Some((op, kind)) = reduction {
            let is_missing = shared.written.first_missing(place.0..place.0 + place.1).is_some();
            has_missing = is_missing && place.0 + place.1 <= self.shared_size as u64;
            let size = usize::from(kind.bytes());
            for (new, old) in bytes[..len].chunks_exact_mut(size).zip(target.chunks_exact(size)) {
                let [new_bits, old] = [&*new, old].map(read);
                new.copy_from_slice(&combine(op, kind, old, new_bits, 0).to_le_bytes()[..size]);
            }
        }
        target.copy_from_slice(&bytes[..len]);
        shared.written.mark(offset as u64..(offset + len) as u64);
        let (offset, len) = place;
        if has_missing && self.unwritten.is_none() {
            let access = (Space::Shared, Kind::Atomic, offset, len);
            self.unwritten = Some(self.report_of((rank, thread), pc, Some(access)));
        }
        if rank != self.cluster.rank {
            self.end_visit((rank, thread), pc, (offset, len));
        } else if self.block.shadow.is_on && offset + len <= self.shared_size as u64 {
            self.block.shadow.end_copy(offset, len, thread, pc);
        }
    }
}
