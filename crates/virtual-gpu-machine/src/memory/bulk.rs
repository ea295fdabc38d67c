//! `cp.async.bulk`: copies between global and shared memory, in pieces of 16 bytes.
//!
//! A copy to shared memory reads its source when it is issued, and completes when a thread tests its mbarrier. A copy to
//! global memory completes immediately, which PTX permits.

use super::bytes::Location;
use super::copies::{BULK, Copy};
use crate::fault::{Access as Kind, FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use virtual_gpu_core::tensor_map::PIECE;
use virtual_gpu_ptx::instruction::{BulkCopy, BulkReduction, Slot, Space};

impl Machine<'_> {
    /// Executes `cp.async.bulk`. It is not inlined, because that would make every other operation slower.
    #[inline(never)]
    pub(crate) fn bulk_copy(&mut self, copy: &BulkCopy, mask: &Mask) -> Result<(), Stop> {
        self.changes += 1;
        self.looks += 1;
        for thread in mask.threads() {
            let size = self.bulk_size(copy.bytes, thread)?;
            let (to, from) = (self.address_of(copy.to, thread), self.address_of(copy.from, thread));
            let begin = self.block.copies.begun;
            for at in (0..u64::from(size)).step_by(PIECE) {
                let mut bytes = [0; PIECE];
                match copy.mbarrier {
                    Some(_) => {
                        self.read_bytes(Space::Global, Kind::Read, thread, from + at, &mut bytes)?;
                        self.begin_piece(thread, to + at, bytes)?;
                    }
                    None => {
                        self.read_piece(thread, from + at, &mut bytes)?;
                        self.write_bytes(Space::Global, Kind::Write, thread, to + at, &bytes)?;
                    }
                }
            }
            if let Some(mbarrier) = copy.mbarrier {
                self.end_oldest_copies();
                let copies = begin..self.block.copies.begun;
                self.complete_after((Space::Shared, mbarrier), thread, copies, size)?;
            }
        }
        Ok(())
    }

    /// Executes `cp.reduce.async.bulk`.
    #[inline(never)]
    pub(crate) fn bulk_reduction(&mut self, reduction: &BulkReduction, mask: &Mask) -> Result<(), Stop> {
        self.changes += 1;
        self.looks += 1;
        for thread in mask.threads() {
            let size = self.bulk_size(reduction.bytes, thread)?;
            let (to, from) = (self.address_of(reduction.to, thread), self.address_of(reduction.from, thread));
            self.check_alignment(Space::Global, Kind::Atomic, thread, to, PIECE as u64)?;
            for at in (0..u64::from(size)).step_by(PIECE) {
                let mut bytes = [0; PIECE];
                self.read_piece(thread, from + at, &mut bytes)?;
                self.reduce_elements(thread, to + at, &bytes, (reduction.op, reduction.kind))?;
            }
        }
        Ok(())
    }

    /// Returns the number of bytes that a thread copies.
    fn bulk_size(&self, bytes: Slot, thread: usize) -> Result<u32, Stop> {
        let size = self.block.files.word_of(bytes, thread);
        match (size as usize).is_multiple_of(PIECE) {
            true => Ok(size),
            false => {
                let why = "the size of a bulk copy must be a multiple of 16 bytes";
                Err(self.fault(FaultKind::Undefined(why), thread))
            }
        }
    }

    /// Reads a piece from shared memory.
    fn read_piece(&mut self, thread: usize, address: u64, bytes: &mut [u8; PIECE]) -> Result<(), Stop> {
        self.watch_read(Space::Shared, thread, address, PIECE as u64, false);
        self.read_bytes(Space::Shared, Kind::Read, thread, address, bytes)
    }

    /// Begins to copy a piece to shared memory.
    pub(super) fn begin_piece(
        &mut self,
        thread: usize,
        address: u64,
        bytes: [u8; PIECE],
    ) -> Result<(), Stop> {
        let len = PIECE as u64;
        self.check_alignment(Space::Shared, Kind::Write, thread, address, len)?;
        let Some((location @ Location::Shared, offset)) = self.locate(Space::Shared, address, len) else {
            return Err(self.bad_address(Space::Shared, Kind::Write, thread, address, len));
        };
        self.note_overrun(location, offset, Kind::Write, thread, len);
        self.watch_copy(thread, offset, len);
        let (number, pc, offset, len) = (self.block.copies.begun, self.pc, offset as usize, PIECE);
        self.block.copies.begun += 1;
        self.block.copies.under_way.push(Copy { thread, number, pc, group: BULK, offset, len, bytes });
        Ok(())
    }
}
