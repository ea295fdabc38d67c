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
        let Some(offset) = self.watched(space, address, len) else { return };
        let found = self.block.shadow.access(offset, len, thread, self.pc, How::Read, is_atomic);
        self.note_race(found, thread, Kind::Read, offset, len);
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
        let Some(offset) = self.watched(space, address, len) else { return };
        let Machine { block, pc, .. } = self;
        // If all threads write the same value, the order of the writes makes no difference.
        let changes = block.shared.bytes[offset as usize..][..bytes.len()] != *bytes;
        let found = block.shadow.access(offset, len, thread, *pc, How::Write(changes), is_atomic);
        self.note_race(found, thread, Kind::Write, offset, len);
    }

    /// Records that a thread changes shared memory atomically.
    pub(crate) fn watch_atomic(&mut self, space: Space, thread: usize, address: u64, len: u64) {
        let Some(offset) = self.watched(space, address, len) else { return };
        let found = self.block.shadow.access(offset, len, thread, self.pc, How::Write(true), true);
        self.note_race(found, thread, Kind::Atomic, offset, len);
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
        }
    }

    /// Records that a thread starts a copy to shared memory.
    pub(crate) fn watch_copy(&mut self, thread: usize, offset: u64, len: u64) {
        let Some(offset) = self.watched(Space::Shared, offset, len) else { return };
        let found = self.block.shadow.begin_copy(offset, len, thread, self.pc);
        self.note_race(found, thread, Kind::Write, offset, len);
    }

    /// Returns the offset in shared memory if the access lies within it and race detection is on.
    fn watched(&self, space: Space, address: u64, len: u64) -> Option<u64> {
        let (space, offset) = concrete(space, address);
        let size = self.shared_size as u64;
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= size);
        (self.block.shadow.is_on && space == Space::Shared && is_inside).then_some(offset)
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
        let bytes = bytes_of(&self.kernel.code()[pc].operation);
        let earlier = self.report(other, Some((Space::Shared, access, offset, bytes)));
        self.pc = here;
        let (variable, offset) = self.kernel.shared_location(offset);
        let location = SharedLocation { variable, offset };
        let (in_warp, under_way) = (other / 32 == thread / 32, found.earlier.is_under_way());
        self.race = Some(Box::new(Race { earlier, later, location, in_warp, under_way }));
        self.block.shadow.is_on = false;
    }

    fn note_race(&mut self, found: Option<Unordered>, thread: usize, kind: Kind, offset: u64, len: u64) {
        if let Some(found) = found {
            self.report_race(found, thread, kind, offset, len);
        }
    }
}

/// Returns the number of bytes that a memory instruction accesses.
fn bytes_of(operation: &Operation) -> u64 {
    match operation {
        Operation::Load(access) | Operation::Store(access) => {
            u64::from(access.bytes) * access.values.len() as u64
        }
        Operation::Atomic(atomic) => u64::from(atomic.kind.bytes()),
        Operation::CopyToShared { bytes, .. } => u64::from(*bytes),
        Operation::LoadMatrices(_) | Operation::BulkCopy(_) | Operation::TensorCopy(_) => 16,
        Operation::BulkReduction(reduction) => u64::from(reduction.kind.bytes()),
        Operation::Mbarrier(_) => 8,
        Operation::LoadFragment(access) | Operation::StoreFragment(access) => {
            u64::from(access.fragment.piece())
        }
        _ => 0,
    }
}
