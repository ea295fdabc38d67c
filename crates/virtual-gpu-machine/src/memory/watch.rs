//! Checks each thread's accesses to shared memory for races.

use super::address::concrete;
use crate::fault::Access as Kind;
use crate::machine::Machine;
use crate::race::{Race, SharedLocation};
use crate::shadow::{How, Stamp, Unordered};
use virtual_gpu_ptx::instruction::{Operation, Space};

impl Machine<'_> {
    /// Records that a thread loads from shared memory.
    pub(crate) fn watch_read(
        &mut self,
        space: Space,
        thread: usize,
        address: u64,
        len: u64,
        is_atomic: bool,
    ) {
        self.watch(space, thread, (address, len), How::Read, is_atomic, Kind::Read);
    }

    /// Records that a thread stores `bytes` to shared memory.
    pub(crate) fn watch_write(
        &mut self,
        space: Space,
        thread: usize,
        address: u64,
        bytes: &[u8],
        is_atomic: bool,
    ) {
        let len = bytes.len() as u64;
        let Some((rank, offset)) = self.watched(space, address, len) else { return };
        // If all threads write the same value, the order of the writes makes no difference.
        let changes = self.block_at(rank).shared.bytes[offset as usize..][..bytes.len()] != *bytes;
        self.watch(space, thread, (address, len), How::Write(changes), is_atomic, Kind::Write);
    }

    /// Records that a thread changes shared memory atomically.
    pub(crate) fn watch_atomic(&mut self, space: Space, thread: usize, address: u64, len: u64) {
        self.watch(space, thread, (address, len), How::Write(true), true, Kind::Atomic);
    }

    /// Records a thread's access to shared memory.
    fn watch(
        &mut self,
        space: Space,
        thread: usize,
        (address, len): (u64, u64),
        how: How,
        is_atomic: bool,
        kind: Kind,
    ) {
        let Some((rank, offset)) = self.watched(space, address, len) else { return };
        if rank == self.cluster.rank {
            let found = self.block.shadow.access(offset, len, thread, self.pc, how, is_atomic);
            self.note_race(found, thread, kind, offset, len);
            self.meet_visits(thread, (offset, len), how, is_atomic);
        } else {
            self.visit((rank, offset, len), thread, how, (is_atomic, false));
        }
    }

    /// Records that a thread uses an mbarrier object that was initialized at `initialized`. It invalidates the object,
    /// which other threads must wait for, or it changes or tests the object atomically.
    pub(crate) fn watch_mbarrier(
        &mut self,
        thread: usize,
        offset: u64,
        how: How,
        is_atomic: bool,
        initialized: Option<Stamp>,
    ) {
        if self.block.shadow.is_on {
            let kind = match (how, is_atomic) {
                (How::Read, _) => Kind::Read,
                (How::Write(_), false) => Kind::Write,
                (How::Write(_), true) => Kind::Atomic,
            };
            let found = self.block.shadow.access(offset, 8, thread, self.pc, how, is_atomic);
            // The last access to the object may hide the initialization.
            let early = initialized.and_then(|initialized| self.block.shadow.unordered(initialized, thread));
            self.note_race(found.or(early), thread, kind, offset, 8);
            self.meet_visits(thread, (offset, 8), how, is_atomic);
        }
    }

    /// Records that a thread starts a copy to shared memory.
    pub(crate) fn watch_copy(&mut self, thread: usize, offset: u64, len: u64) {
        let is_inside = offset + len <= self.shared_size as u64;
        if self.block.shadow.is_on && is_inside {
            let found = self.block.shadow.begin_copy(offset, len, thread, self.pc);
            self.note_race(found, thread, Kind::Write, offset, len);
            self.meet_visits(thread, (offset, len), How::Write(true), false);
        }
    }

    /// Returns the rank of the block whose shared memory contains the access, and the offset there, if race detection is on.
    fn watched(&self, space: Space, address: u64, len: u64) -> Option<(usize, u64)> {
        let (space, address) = concrete(space, address);
        if !self.block.shadow.is_on || space != Space::Shared {
            return None;
        }
        let (rank, offset) = self.owner(address)?;
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.shared_size as u64);
        is_inside.then_some((rank, offset))
    }

    #[cold]
    fn report_race(&mut self, found: Unordered, thread: usize, kind: Kind, offset: u64, len: u64) {
        let later = self.report(thread, Some((Space::Shared, kind, offset, len)));
        let (other, pc) = (found.earlier.thread(), found.earlier.pc());
        let here = std::mem::replace(&mut self.pc, pc);
        let access = match (found.wrote, found.earlier.is_atomic()) {
            (false, _) => Kind::Read,
            (true, false) => Kind::Write,
            (true, true) => Kind::Atomic,
        };
        let bytes = shared_bytes(&self.kernel.code()[pc].operation);
        let earlier = self.report(other, Some((Space::Shared, access, offset, bytes)));
        self.pc = here;
        let (variable, offset) = self.kernel.shared_location(offset);
        let location = SharedLocation { variable, offset };
        let (in_warp, under_way) = (other / 32 == thread / 32, found.earlier.is_under_way());
        let race = Race { earlier, later, location, in_warp, under_way, owner: None, lifetime: None };
        self.race = Some(Box::new(race));
        self.block.shadow.is_on = false;
    }

    fn note_race(&mut self, found: Option<Unordered>, thread: usize, kind: Kind, offset: u64, len: u64) {
        if let Some(found) = found.filter(|found| !self.is_ordered_by_cluster(found.earlier, thread)) {
            self.report_race(found, thread, kind, offset, len);
        }
    }
}

/// Returns the number of bytes of shared memory that a memory instruction accesses.
pub(crate) fn shared_bytes(operation: &Operation) -> u64 {
    match operation {
        Operation::Load(access) | Operation::Store(access) => {
            u64::from(access.bytes) * access.values.len() as u64
        }
        Operation::Atomic(atomic) => u64::from(atomic.kind.bytes()),
        Operation::CopyToShared { bytes, .. } => u64::from(*bytes),
        Operation::LoadMatrices(_)
        | Operation::StoreMatrices(_)
        | Operation::BulkCopy(_)
        | Operation::TensorCopy(_) => 16,
        Operation::BulkReduction(reduction) => u64::from(reduction.kind.bytes()),
        Operation::StoreAsync(store) => u64::from(store.bytes) * store.values.len() as u64,
        Operation::Mbarrier(_) => 8,
        Operation::LoadFragment(access) | Operation::StoreFragment(access) => {
            u64::from(access.fragment.piece())
        }
        _ => 0,
    }
}
