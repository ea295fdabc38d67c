//! `cp.async.bulk`: copies between global and shared memory, in pieces of 16 bytes; and `st.async`, which stores in the
//! shared memory of another block.
//!
//! A copy to shared memory reads its source when it is issued, and completes when a thread tests its mbarrier. A copy to
//! global memory completes immediately, which PTX permits.

use super::bytes::Location;
use super::copies::{BULK, Copy};
use crate::fault::{Access as Kind, Stop};
use crate::machine::Machine;
use crate::mask::{Mask, bits};
use crate::shadow::How;
use virtual_gpu_core::tensor_map::PIECE;
use virtual_gpu_ptx::instruction::{
    Address, AtomicOp, AtomicType, BulkCopy, BulkReduction, Slot, Space, StoreAsync,
};

impl Machine<'_> {
    /// Executes `cp.async.bulk`. It is not inlined, because that would make every other operation slower.
    #[inline(never)]
    pub(crate) fn bulk_copy(&mut self, copy: &BulkCopy, mask: &Mask) -> Result<(), Stop> {
        self.changes += 1;
        self.looks += 1;
        for thread in mask.threads() {
            let size = self.bulk_size(copy.bytes, thread)?;
            let (to, from) = (self.address_of(copy.to, thread), self.address_of(copy.from, thread));
            let targets = match copy.mbarrier {
                Some(mbarrier) => self.targets(to, mbarrier, copy.blocks, thread)?,
                None => Vec::new(),
            };
            for at in (0..u64::from(size)).step_by(PIECE) {
                let mut bytes = [0; PIECE];
                match copy.source {
                    Space::Shared => self.read_piece(thread, from + at, &mut bytes)?,
                    _ => self.read_bytes(Space::Global, Kind::Read, thread, from + at, &mut bytes)?,
                }
                for target in &targets {
                    self.begin_piece(thread, target.to + at, &bytes, None)?;
                }
                if copy.mbarrier.is_none() {
                    self.write_bytes(Space::Global, Kind::Write, thread, to + at, &bytes)?;
                }
            }
            self.complete_targets(&targets, thread, size)?;
        }
        Ok(())
    }

    /// Returns where a thread's copy to shared memory goes: to the block that its addresses belong to, or to the blocks that
    /// `.multicast::cluster` names.
    pub(super) fn targets(
        &self,
        to: u64,
        mbarrier: Address,
        blocks: Option<Slot>,
        thread: usize,
    ) -> Result<Vec<Target>, Stop> {
        let mbarrier = self.address_of(mbarrier, thread);
        let Some(blocks) = blocks else {
            let Some((rank, _)) = self.owner(to) else {
                return Err(self.bad_address(Space::Shared, Kind::Write, thread, to, PIECE as u64));
            };
            return Ok(vec![Target { rank, to, mbarrier, begin: self.block_at(rank).copies.begun }]);
        };
        let blocks = self.block.files.word_of(blocks, thread) as u16;
        bits(blocks)
            .map(|rank| {
                if rank >= self.cluster.len() {
                    let why = "`.multicast::cluster` names a block that the cluster does not have";
                    return Err(self.undefined(why, thread));
                }
                let [to, mbarrier] = [to, mbarrier].map(|address| self.address_in(rank, address));
                Ok(Target { rank, to, mbarrier, begin: self.block_at(rank).copies.begun })
            })
            .collect()
    }

    /// Lets each target's mbarrier object wait for a copy of `size` bytes.
    pub(super) fn complete_targets(
        &mut self,
        targets: &[Target],
        thread: usize,
        size: u32,
    ) -> Result<(), Stop> {
        for &Target { rank, mbarrier, begin, .. } in targets {
            self.in_block(rank, Self::end_oldest_copies);
            let copies = begin..self.block_at(rank).copies.begun;
            self.complete_after((rank, mbarrier), thread, copies, size)?;
        }
        Ok(())
    }

    /// Executes `st.async` and `red.async`.
    #[inline(never)]
    pub(crate) fn store_async(&mut self, store: &StoreAsync, mask: &Mask) -> Result<(), Stop> {
        self.changes += 1;
        self.looks += 1;
        let size = usize::from(store.bytes);
        let all = size * store.values.len();
        for thread in mask.threads() {
            let to = self.address_of(store.address, thread);
            self.check_alignment(Space::Shared, Kind::Write, thread, to, all as u64)?;
            let mut bytes = [0; 32];
            for (element, &value) in bytes.chunks_exact_mut(size).zip(&store.values) {
                element.copy_from_slice(&self.value_of(value, thread).to_le_bytes()[..size]);
            }
            let targets = self.targets(to, store.mbarrier, None, thread)?;
            for (at, piece) in (0..).step_by(PIECE).zip(bytes[..all].chunks(PIECE)) {
                self.begin_piece(thread, to + at, piece, store.reduction)?;
            }
            self.complete_targets(&targets, thread, all as u32)?;
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
            if let Some(mbarrier) = reduction.mbarrier {
                let targets = self.targets(to, mbarrier, None, thread)?;
                for at in (0..u64::from(size)).step_by(PIECE) {
                    let mut bytes = [0; PIECE];
                    self.read_piece(thread, from + at, &mut bytes)?;
                    self.begin_piece(thread, to + at, &bytes, Some((reduction.op, reduction.kind)))?;
                }
                self.complete_targets(&targets, thread, size)?;
                continue;
            }
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
                Err(self.undefined(why, thread))
            }
        }
    }

    /// Reads a piece from shared memory.
    fn read_piece(&mut self, thread: usize, address: u64, bytes: &mut [u8; PIECE]) -> Result<(), Stop> {
        self.watch_read(Space::Shared, thread, address, PIECE as u64, false);
        self.read_bytes(Space::Shared, Kind::Read, thread, address, bytes)
    }

    /// Begins to copy at most 16 bytes to shared memory, or to combine them with those in it.
    pub(super) fn begin_piece(
        &mut self,
        thread: usize,
        address: u64,
        from: &[u8],
        reduction: Option<(AtomicOp, AtomicType)>,
    ) -> Result<(), Stop> {
        let len = from.len() as u64;
        let kind = if reduction.is_some() { Kind::Atomic } else { Kind::Write };
        self.check_alignment(Space::Shared, kind, thread, address, len)?;
        let (rank, location, offset) = match self.locate(Space::Shared, address, len) {
            Some((location @ Location::Shared, offset)) => (self.cluster.rank, location, offset),
            Some((location @ Location::Other(rank), offset)) => (rank, location, offset),
            _ => return Err(self.bad_address(Space::Shared, kind, thread, address, len)),
        };
        self.note_overrun(location, offset, kind, thread, len);
        match (location, reduction) {
            (Location::Other(_), _) => {
                let how = (reduction.is_some(), true);
                self.visit((rank, offset, len), thread, How::Write(true), how);
            }
            (_, Some(_)) => self.watch_atomic(Space::Shared, thread, address, len),
            (_, None) => self.watch_copy(thread, offset, len),
        }
        let mut bytes = [0; PIECE];
        bytes[..from.len()].copy_from_slice(from);
        let (issuer, pc, offset, len) = (self.cluster.rank, self.pc, offset as usize, from.len());
        let copies = &mut self.block_at_mut(rank).copies;
        let number = copies.begun;
        copies.begun += 1;
        copies.under_way.push(Copy {
            thread,
            rank: issuer,
            number,
            pc,
            group: BULK,
            offset,
            len,
            bytes,
            reduction,
        });
        Ok(())
    }
}

/// Where a copy to shared memory goes.
pub(super) struct Target {
    /// The rank of the block in its cluster.
    rank: usize,
    /// The first address.
    pub(super) to: u64,
    /// The address of the mbarrier object.
    mbarrier: u64,
    /// The number of copies to the block so far.
    begin: u64,
}
