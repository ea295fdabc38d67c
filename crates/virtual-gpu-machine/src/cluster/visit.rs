//! Accesses to the shared memory of other blocks of a cluster.

use super::order::{Access, Thread};
use crate::fault::{Access as Kind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use crate::memory::watch::shared_bytes;
use crate::order::Order;
use crate::race::{Lifetime, Race, SharedLocation};
use crate::shadow::{How, Stamp};
use virtual_gpu_ptx::instruction::{Slot, Space, Value};
use virtual_gpu_ptx::window;

/// The bits of an address in shared memory that hold an offset.
const OFFSET: u64 = (1 << window::OFFSET_BITS) - 1;

impl Machine<'_> {
    /// Returns the rank of the block that an address in shared memory belongs to, and the offset there; `None` if the cluster
    /// has no such block.
    #[inline]
    pub(crate) fn owner(&self, address: u64) -> Option<(usize, u64)> {
        let rank = match address >> window::OFFSET_BITS {
            0 => self.cluster.rank,
            named => usize::try_from(named - 1).ok().filter(|&rank| rank < self.cluster.len())?,
        };
        Some((rank, address & OFFSET))
    }

    /// Returns the address with the same offset in the block with this rank.
    pub(crate) fn address_in(&self, rank: usize, address: u64) -> u64 {
        window::of_block(rank as u64) | address & OFFSET
    }

    /// `mapa`
    pub(crate) fn map_address(
        &mut self,
        (d, a): (Value, Value),
        rank: Slot,
        is_generic: bool,
        mask: &Mask,
    ) -> Result<(), Stop> {
        for thread in mask.threads() {
            let address = self.value_of(a, thread);
            let offset = if is_generic { address.wrapping_sub(window::SHARED) } else { address };
            let rank = self.block.files.word_of(rank, thread) as usize;
            if rank >= self.cluster.len() {
                let why = "the cluster has no block with the rank that `mapa` names";
                return Err(self.undefined(why, thread));
            }
            if self.owner(offset).is_none() {
                let why = "`mapa` maps an address that is not in shared memory";
                return Err(self.undefined(why, thread));
            }
            let mapped = self.address_in(rank, offset);
            match d {
                Value::Word(d) => self.block.files.set_word(d, thread, mapped as u32),
                Value::Long(d) => {
                    let base = if is_generic { window::SHARED } else { 0 };
                    self.block.files.set_long(d, thread, base | mapped);
                }
            }
        }
        Ok(())
    }

    /// `getctarank`
    pub(crate) fn block_of_address(&mut self, d: Slot, a: Value, mask: &Mask) -> Result<(), Stop> {
        for thread in mask.threads() {
            let address = self.value_of(a, thread);
            let address = if address >= window::SHARED { address - window::SHARED } else { address };
            let Some((rank, _)) = self.owner(address) else {
                let why = "`getctarank` is given an address that is not in shared memory";
                return Err(self.undefined(why, thread));
            };
            self.block.files.set_word(d, thread, rank as u32);
        }
        Ok(())
    }

    /// Records that some threads of the running block wait for others.
    pub(crate) fn order(&mut self, what: Order) {
        self.observe_phase(self.cluster.rank, &what);
        if !self.block.shadow.is_on {
            return;
        }
        self.block.shadow.order(what, &Mask::first_threads(self.threads));
        if !self.cluster.is_alone() {
            self.cluster.order.push(self.block.shadow.now(), self.cluster.rank, what);
        }
    }

    /// Records that threads of another block have arrived at a phase in the running block.
    pub(crate) fn order_other(&mut self, rank: usize, what: Order) {
        self.observe_phase(rank, &what);
        if self.block.shadow.is_on {
            self.block.shadow.advance_to(self.block.shadow.now() + 1);
            self.cluster.order.push(self.block.shadow.now(), rank, what);
        }
    }

    /// Returns an access by a thread of the running block now.
    fn access_now(&self, thread: usize, bytes: (u64, u64), how: How, is_atomic: bool) -> Access {
        Access {
            time: self.block.shadow.now(),
            thread: (self.cluster.rank, thread),
            pc: self.pc,
            bytes,
            wrote: how != How::Read,
            is_atomic,
            is_under_way: false,
        }
    }

    /// Returns whether an earlier access by a thread of the running block is ordered before a later one by another, through
    /// threads of other blocks.
    pub(crate) fn is_ordered_by_cluster(&self, earlier: Stamp, thread: usize) -> bool {
        let rank = self.cluster.rank;
        !self.cluster.is_alone() && self.cluster.order.orders(&of_stamp(earlier, rank, true), (rank, thread))
    }

    /// Returns whether threads of other blocks have accessed the running block's shared memory, and some of its threads may
    /// not know.
    #[inline]
    pub(crate) fn has_visits(&self) -> bool {
        !self.cluster.is_alone()
            && self.cluster.order.visits.get(self.cluster.rank).is_some_and(|visits| !visits.is_empty())
    }

    /// Compares an access by a thread of the running block to its own shared memory with those of other blocks' threads.
    pub(crate) fn meet_visits(
        &mut self,
        thread: usize,
        (offset, len): (u64, u64),
        how: How,
        is_atomic: bool,
    ) {
        if !self.has_visits() || self.race.is_some() {
            return;
        }
        let now = self.access_now(thread, (offset, len), how, is_atomic);
        let visits = &self.cluster.order.visits[self.cluster.rank];
        let cells = self.block.shadow.cells(offset, len);
        let found =
            cells.flat_map(|cell| visits.of_cell(cell)).find(|earlier| self.races(earlier, &now, how));
        if let Some(earlier) = found.copied() {
            self.report_visit(self.cluster.rank, earlier, now, None);
        }
    }

    /// Records an access by a thread of the running block to another block's shared memory. `is_under_way`: whether it is a
    /// copy that completes later.
    pub(crate) fn visit(
        &mut self,
        (rank, offset, len): (usize, u64, u64),
        thread: usize,
        how: How,
        (is_atomic, is_under_way): (bool, bool),
    ) {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.shared_size as u64);
        if !self.block.shadow.is_on || self.race.is_some() || !is_inside {
            return;
        }
        let now = Access { is_under_way, ..self.access_now(thread, (offset, len), how, is_atomic) };
        let (order, shadow) = (&self.cluster.order, &self.block_at(rank).shadow);
        let since = order.started(rank);
        let all = Mask::first_threads(self.threads);
        let lifetime = if self.cluster.ended[rank] {
            Some(Lifetime::End)
        } else {
            (!order.knows_start(rank, now.thread, &all)).then_some(Lifetime::Start)
        };
        if lifetime.is_some() {
            return self.report_visit(rank, now, now, lifetime);
        }
        let own = |cell| shadow.accesses(cell, since).into_iter().flatten();
        let own = |cell| own(cell).map(|(stamp, wrote)| of_stamp(stamp, rank, wrote));
        let all = |cell| own(cell).chain(order.visits[rank].of_cell(cell).copied());
        let found = shadow.cells(offset, len).flat_map(all).find(|earlier| self.races(earlier, &now, how));
        if let Some(earlier) = found {
            self.report_visit(rank, earlier, now, None);
        }
        let cells = self.block_at(rank).shadow.cells(offset, len);
        self.cluster.order.visits[rank].add(cells, now);
    }

    /// Records that a thread of the running block changes an mbarrier object of another block, which was initialized at
    /// `initialized`.
    pub(crate) fn visit_mbarrier(&mut self, (rank, offset): (usize, u64), thread: usize, initialized: Stamp) {
        self.visit((rank, offset, 8), thread, How::Write(true), (true, false));
        // The last access to the object may hide the initialization.
        let initialized = of_stamp(initialized, rank, true);
        let now = self.access_now(thread, (offset, 8), How::Write(true), true);
        if self.block.shadow.is_on
            && self.race.is_none()
            && !self.cluster.order.orders(&initialized, now.thread)
        {
            self.report_visit(rank, initialized, now, None);
        }
    }

    /// Records that a copy that a thread of another block has started in the running block is complete.
    pub(crate) fn end_visit(&mut self, thread: Thread, pc: usize, (offset, len): (u64, u64)) {
        if self.block.shadow.is_on && offset + len <= self.shared_size as u64 {
            let (cells, now) = (self.block.shadow.cells(offset, len), self.block.shadow.now());
            self.cluster.order.visits[self.cluster.rank].complete(cells, thread, pc, now);
        }
    }

    /// Returns whether a later access races with an earlier one.
    fn races(&self, earlier: &Access, now: &Access, how: How) -> bool {
        (earlier.wrote || now.wrote)
            && !(earlier.wrote && how == How::Write(false))
            && !(earlier.is_atomic && now.is_atomic)
            && !self.cluster.order.orders(earlier, now.thread)
    }

    /// At the end of the running block, looks for accesses by other blocks' threads that none of its threads knew of, so that
    /// it might have ended before them.
    pub(super) fn check_visits_at_end(&mut self) {
        if !self.block.shadow.is_on || self.race.is_some() {
            return;
        }
        let (rank, order) = (self.cluster.rank, &self.cluster.order);
        let visits = order.visits[rank].last_of_each();
        let pending = order.visits[rank].under_way();
        let unknown = || visits.into_iter().find(|visit| !order.is_known_in(rank, visit));
        if let Some(visit) = pending.or_else(unknown) {
            self.report_visit(rank, visit, visit, Some(Lifetime::End));
        }
    }

    #[cold]
    fn report_visit(&mut self, rank: usize, earlier: Access, now: Access, lifetime: Option<Lifetime>) {
        let report = |access: &Access| {
            let (offset, len) = match access.bytes {
                (_, 0) => (now.bytes.0, shared_bytes(&self.kernel.code()[access.pc].operation)),
                known => known,
            };
            let how = Some((Space::Shared, kind_of(access), offset, len));
            self.report_of(access.thread, access.pc, how)
        };
        let (earlier_report, later) = (report(&earlier), report(&now));
        let (variable, offset) = self.kernel.shared_location(now.bytes.0);
        self.race = Some(Box::new(Race {
            earlier: earlier_report,
            later,
            location: SharedLocation { variable, offset },
            in_warp: false,
            under_way: earlier.is_under_way,
            owner: Some(self.block_at(rank).index),
            lifetime,
        }));
        self.block.shadow.is_on = false;
    }
}

/// Returns an access that a block has recorded of its own threads.
fn of_stamp(stamp: Stamp, rank: usize, wrote: bool) -> Access {
    Access {
        time: stamp.time(),
        thread: (rank, stamp.thread()),
        pc: stamp.pc(),
        bytes: (0, 0),
        wrote,
        is_atomic: stamp.is_atomic(),
        is_under_way: stamp.is_under_way(),
    }
}

fn kind_of(access: &Access) -> Kind {
    match (access.wrote, access.is_atomic) {
        (false, _) => Kind::Read,
        (true, false) => Kind::Write,
        (true, true) => Kind::Atomic,
    }
}
