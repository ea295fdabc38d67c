//! `cp.async.bulk`: copies between global and shared memory, in pieces of 16 bytes.
//!
//! A copy to shared memory reads its source when it is issued, and completes when a thread tests its mbarrier. A copy to
//! global memory completes immediately, which PTX permits.

use super::bytes::Location;
use super::copies::{BULK, Copy};
use crate::fault::{Access as Kind, FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use crate::mbarrier::Place;
use virtual_gpu_ptx::instruction::{BulkCopy, Space};

/// The size of a piece; the size of a copy is a multiple of it.
const PIECE: u64 = 16;

impl Machine<'_> {
    /// Executes `cp.async.bulk`. It is not inlined, because that would make every other operation slower.
    #[inline(never)]
    pub(crate) fn bulk_copy(&mut self, copy: &BulkCopy, mask: &Mask) -> Result<(), Stop> {
        self.changes += 1;
        self.looks += 1;
        for thread in mask.threads() {
            let bytes = self.block.files.word_of(copy.bytes, thread);
            if !u64::from(bytes).is_multiple_of(PIECE) {
                let why = "the size of a bulk copy must be a multiple of 16 bytes";
                return Err(self.fault(FaultKind::Undefined(why), thread));
            }
            let (to, from) = (self.address_of(copy.to, thread), self.address_of(copy.from, thread));
            match copy.mbarrier {
                Some(mbarrier) => {
                    self.begin_bulk_copy((Space::Shared, mbarrier), thread, [to, from], bytes)?;
                }
                None => self.store_in_bulk(thread, [to, from], bytes)?,
            }
        }
        Ok(())
    }

    /// Begins a copy to shared memory.
    fn begin_bulk_copy(
        &mut self,
        mbarrier: Place,
        thread: usize,
        [to, from]: [u64; 2],
        size: u32,
    ) -> Result<(), Stop> {
        let begin = self.block.copies.begun;
        for at in (0..u64::from(size)).step_by(PIECE as usize) {
            let mut bytes = [0; PIECE as usize];
            self.read_bytes(Space::Global, Kind::Read, thread, from + at, &mut bytes)?;
            let target = to + at;
            self.check_alignment(Space::Shared, Kind::Write, thread, target, PIECE)?;
            let Some((Location::Shared, offset)) = self.locate(Space::Shared, target, PIECE) else {
                return Err(self.bad_address(Space::Shared, Kind::Write, thread, target, PIECE));
            };
            self.watch_copy(thread, offset, PIECE);
            let number = self.block.copies.begun;
            self.block.copies.begun += 1;
            let (offset, len) = (offset as usize, PIECE as usize);
            let piece = Copy { thread, number, pc: self.pc, group: BULK, offset, len, bytes };
            self.block.copies.under_way.push(piece);
        }
        self.end_oldest_copies();
        self.complete_after(mbarrier, thread, begin..self.block.copies.begun, size)
    }

    /// Copies to global memory.
    fn store_in_bulk(&mut self, thread: usize, [to, from]: [u64; 2], size: u32) -> Result<(), Stop> {
        for at in (0..u64::from(size)).step_by(PIECE as usize) {
            let mut bytes = [0; PIECE as usize];
            self.watch_read(Space::Shared, thread, from + at, PIECE, false);
            self.read_bytes(Space::Shared, Kind::Read, thread, from + at, &mut bytes)?;
            self.write_bytes(Space::Global, Kind::Write, thread, to + at, &bytes)?;
        }
        Ok(())
    }
}
