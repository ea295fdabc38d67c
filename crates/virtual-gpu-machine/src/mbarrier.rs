//! `mbarrier`: barriers that are objects in shared memory. Their contents are kept outside of it, because PTX leaves the
//! contents open and allows no other access to them.

use std::ops::Range;

use crate::fault::{Access as Kind, FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use crate::memory::address::concrete;
use crate::memory::bytes::Location;
use crate::memory::copies::BULK;
use crate::order::{Order, Phase};
use crate::shadow::{How, Stamp};
use virtual_gpu_ptx::instruction::{Address, Mbarrier, MbarrierOp, Predicate, Slot, Space, Value};

/// The maximum of each count (manual, "Contents of the mbarrier object").
const MOST: i64 = (1 << 20) - 1;

/// The number of rounds in which threads only test mbarrier objects and read clocks, after which nothing is expected to
/// complete a phase. `cuda::barrier` reads the time between its tests, so its registers never repeat.
const MOST_IDLE_ROUNDS: u32 = 1024;

/// The same for threads that have reached the launch's limit, because they sleep between their tests.
const IDLE_ROUNDS_AT_LIMIT: u32 = 2;

/// The maximum number of bulk copies and arrivals of an object that wait for a test.
const MOST_AFTER_COPIES: usize = 1 << 16;

const TOO_MANY: &str = "more threads arrive at an mbarrier than its count allows";

/// The state space and the address of an mbarrier object.
pub(crate) type Place = (Space, Address);

/// An mbarrier object.
#[derive(Debug)]
struct Object {
    /// The offset in shared memory.
    offset: u64,
    /// The access that initialized it.
    initialized: Stamp,
    /// The number of phases that are complete.
    phase: u32,
    expected: u32,
    pending: u32,
    /// The number of transactions that are expected and not complete.
    transactions: i64,
    /// The number of the current phase among the phases of all objects of the block.
    current: u32,
    /// The same for the last phase that is complete.
    completed: Option<u32>,
    /// Arrivals that happen when copies complete.
    after_copies: Vec<AfterCopies>,
    /// The last thread that found the phase incomplete, its instruction, and the block's round at that time.
    tested: Option<(usize, usize, u64)>,
}

/// An arrival, or the completion of transactions, that happens when a thread's copies complete.
#[derive(Debug)]
struct AfterCopies {
    /// The rank of the thread's block in the cluster.
    rank: usize,
    thread: usize,
    /// The numbers of the copies that it waits for.
    copies: Range<u64>,
    /// The number of bytes of a bulk copy, which are transactions; `None` for an arrival.
    bytes: Option<u32>,
}

/// A block's mbarrier objects.
#[derive(Debug, Default)]
pub(crate) struct Mbarriers {
    objects: Vec<Object>,
    /// The number of phases of all objects so far.
    phases: u32,
    /// The number of tests so far that found a phase incomplete.
    pub(crate) failed_tests: u64,
    /// The number of rounds in a row in which threads only failed tests.
    idle_rounds: u32,
    /// The number of changes by anything but the clock, at the end of the last round.
    changes: u64,
}

impl Mbarriers {
    /// Forgets everything at the start of a block.
    pub(crate) fn start(&mut self) {
        let mut objects = std::mem::take(&mut self.objects);
        objects.clear();
        *self = Self { objects, ..Self::default() };
    }

    /// Records that a group has used up its turn, given the number of failed tests before.
    pub(crate) fn note_turn(&mut self, failed_tests: u64) {
        if self.failed_tests == failed_tests {
            self.idle_rounds = 0;
        }
    }

    /// Returns whether threads have only failed tests for many rounds. `changes`: the number of changes by anything but the
    /// clock so far, also in other blocks of the cluster.
    pub(crate) fn has_only_failed(&self, changes: u64) -> bool {
        self.idle_rounds >= MOST_IDLE_ROUNDS && self.changes == changes
    }

    fn next_phase(&mut self) -> u32 {
        self.phases += 1;
        self.phases
    }
}

/// The operands of `mbarrier.arrive`.
#[derive(Clone, Copy)]
struct Arrival {
    state: Option<Slot>,
    count: Slot,
    transactions: Option<Slot>,
    drops: bool,
    completes: bool,
}

/// Threads, by the number of a phase.
#[derive(Default)]
struct ByPhase(Vec<(Phase, Mask)>);

impl ByPhase {
    fn add(&mut self, phase: Phase, thread: usize) {
        match self.0.iter_mut().find(|(known, _)| *known == phase) {
            Some((_, threads)) => *threads = threads.or(&Mask::of(thread)),
            None => self.0.push((phase, Mask::of(thread))),
        }
    }
}

impl Machine<'_> {
    /// Executes an operation on mbarrier objects, thread by thread. It is not inlined, because that would make every other
    /// operation slower.
    #[inline(never)]
    pub(crate) fn mbarrier(&mut self, mbarrier: &Mbarrier, mask: &Mask) -> Result<(), Stop> {
        let place = (mbarrier.space, mbarrier.address);
        match mbarrier.op {
            MbarrierOp::Test { d, phase, acquires } => return self.test(place, mask, d, phase, acquires),
            MbarrierOp::Arrive { state, count, transactions, drops, completes, releases } => {
                let arrival = Arrival { state, count, transactions, drops, completes };
                return self.arrive(place, mask, arrival, releases);
            }
            _ => {}
        }
        self.changes += 1;
        for thread in mask.threads() {
            match mbarrier.op {
                MbarrierOp::Init { count } => {
                    let count = self.block.files.word_of(count, thread);
                    self.initialize(place, thread, count)?;
                }
                MbarrierOp::Invalidate => {
                    let at = self.own_object(place, thread, How::Write(true), false)?;
                    self.block.mbarriers.objects.swap_remove(at);
                }
                MbarrierOp::Expect { transactions } => {
                    let (rank, at) = self.object(place, thread, How::Write(true), true)?;
                    let count = self.block.files.word_of(transactions, thread);
                    self.at_owner(rank, |machine| machine.expect(at, thread, count.into()))?;
                }
                MbarrierOp::Complete { transactions } => {
                    let (rank, at) = self.object(place, thread, How::Write(true), true)?;
                    let count = self.block.files.word_of(transactions, thread);
                    self.at_owner(rank, |machine| {
                        machine.expect(at, thread, -i64::from(count))?;
                        machine.complete_phase(at);
                        Ok(())
                    })?;
                }
                MbarrierOp::ArriveAfterCopies { increments } => {
                    let at = self.own_object(place, thread, How::Write(true), true)?;
                    let (end, rank) = (self.block.copies.begun, self.cluster.rank);
                    let object = &mut self.block.mbarriers.objects[at];
                    object.pending += u32::from(increments);
                    object.after_copies.push(AfterCopies { rank, thread, copies: 0..end, bytes: None });
                    let arrivals = object.after_copies.iter().filter(|after| after.bytes.is_none());
                    let excess = arrivals.count() > object.pending as usize;
                    if i64::from(object.pending) > MOST {
                        return Err(
                            self.undefined("the pending count of an mbarrier exceeds 1048575", thread)
                        );
                    }
                    if excess {
                        return Err(self.undefined(TOO_MANY, thread));
                    }
                }
                MbarrierOp::Test { .. } | MbarrierOp::Arrive { .. } => {}
            }
        }
        Ok(())
    }

    /// Returns the block that has a thread's object, by its rank, and the object's offset in shared memory.
    fn object_offset(&mut self, space: Space, address: u64, thread: usize) -> Result<(usize, u64), Stop> {
        let (space, address) = concrete(space, address);
        if space != Space::Shared {
            return Err(self.undefined("an mbarrier must be in shared memory", thread));
        }
        self.check_alignment(space, Kind::Atomic, thread, address, 8)?;
        match self.locate(space, address, 8) {
            Some((Location::Shared, offset)) => Ok((self.cluster.rank, offset)),
            Some((Location::Other(rank), offset)) => Ok((rank, offset)),
            _ => Err(self.bad_address(space, Kind::Atomic, thread, address, 8)),
        }
    }

    /// Returns the block that has a thread's object, by its rank, and the object's index there. Records the access.
    fn object(
        &mut self,
        (space, address): Place,
        thread: usize,
        how: How,
        is_atomic: bool,
    ) -> Result<(usize, usize), Stop> {
        self.object_at(space, self.address_of(address, thread), thread, how, is_atomic)
    }

    /// The same, given the object's address.
    fn object_at(
        &mut self,
        space: Space,
        address: u64,
        thread: usize,
        how: How,
        is_atomic: bool,
    ) -> Result<(usize, usize), Stop> {
        let (rank, offset) = self.object_offset(space, address, thread)?;
        let objects = &self.block_at(rank).mbarriers.objects;
        let Some(at) = objects.iter().position(|object| object.offset == offset) else {
            return Err(self.undefined("there is no initialized mbarrier at this address", thread));
        };
        let initialized = objects[at].initialized;
        if rank == self.cluster.rank {
            self.watch_mbarrier(thread, offset, how, is_atomic, Some(initialized));
        } else {
            self.visit_mbarrier((rank, offset), thread, initialized);
        }
        Ok((rank, at))
    }

    /// Returns the index of a thread's object, which must be in the shared memory of its own block.
    fn own_object(&mut self, place: Place, thread: usize, how: How, is_atomic: bool) -> Result<usize, Stop> {
        let (rank, at) = self.object(place, thread, how, is_atomic)?;
        match rank == self.cluster.rank {
            true => Ok(at),
            false => {
                let why = "only threads of the block that has an mbarrier can test or invalidate it";
                Err(self.undefined(why, thread))
            }
        }
    }

    /// Runs what a thread of the running block does in the block with this rank.
    fn at_owner<T>(
        &mut self,
        rank: usize,
        act: impl FnOnce(&mut Self) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let index = self.block.index;
        self.in_block(rank, act).map_err(|mut stop| {
            stop.at.block = index;
            stop
        })
    }

    /// `mbarrier.init`. Several threads may initialize an object in the same way, as in the manual's examples.
    fn initialize(&mut self, place: Place, thread: usize, count: u32) -> Result<(), Stop> {
        if !(1..=MOST).contains(&i64::from(count)) {
            return Err(self.undefined("the count of an mbarrier must be from 1 to 1048575", thread));
        }
        let (rank, offset) = self.object_offset(place.0, self.address_of(place.1, thread), thread)?;
        if rank != self.cluster.rank {
            let why = "only threads of the block that has an mbarrier can initialize it";
            return Err(self.undefined(why, thread));
        }
        let known = self.block.mbarriers.objects.iter().find(|object| object.offset == offset);
        let is_new = known.is_none();
        let is_same = known.is_some_and(|object| {
            (object.phase, object.expected, object.pending, object.transactions) == (0, count, count, 0)
                && object.after_copies.is_empty()
        });
        self.watch_mbarrier(thread, offset, How::Write(is_new), false, None);
        if is_new {
            let current = self.block.mbarriers.next_phase();
            let initialized = self.block.shadow.stamp(thread, self.pc);
            self.block.mbarriers.objects.push(Object {
                offset,
                initialized,
                phase: 0,
                expected: count,
                pending: count,
                transactions: 0,
                current,
                completed: None,
                after_copies: Vec::new(),
                tested: None,
            });
        } else if !is_same {
            let why = "an mbarrier must be invalidated before its memory is used for another one";
            return Err(self.undefined(why, thread));
        }
        Ok(())
    }

    /// Changes the number of pending transactions.
    fn expect(&mut self, at: usize, thread: usize, transactions: i64) -> Result<(), Stop> {
        let object = &mut self.block.mbarriers.objects[at];
        object.transactions += transactions;
        match object.transactions.abs() <= MOST {
            true => Ok(()),
            false => Err(self.undefined("an mbarrier can track at most 1048575 transactions", thread)),
        }
    }

    /// Subtracts arrivals from the pending count.
    fn arrive_on(&mut self, at: usize, thread: usize, count: u32) -> Result<(), Stop> {
        let object = &mut self.block.mbarriers.objects[at];
        let Some(pending) = object.pending.checked_sub(count) else {
            return Err(self.undefined(TOO_MANY, thread));
        };
        object.pending = pending;
        self.complete_phase(at);
        Ok(())
    }

    /// Starts the next phase if nothing is pending in this one.
    fn complete_phase(&mut self, at: usize) {
        let object = &mut self.block.mbarriers.objects[at];
        if (object.pending, object.transactions) == (0, 0) {
            object.phase += 1;
            object.pending = object.expected;
            object.tested = None;
            let next = self.block.mbarriers.next_phase();
            let object = &mut self.block.mbarriers.objects[at];
            object.completed = Some(std::mem::replace(&mut object.current, next));
        }
    }

    /// `mbarrier.arrive` and `mbarrier.arrive_drop`
    fn arrive(&mut self, place: Place, mask: &Mask, arrival: Arrival, releases: bool) -> Result<(), Stop> {
        self.changes += 1;
        let mut arrived = ByPhase::default();
        for thread in mask.threads() {
            let (rank, at) = self.object(place, thread, How::Write(true), true)?;
            let files = &self.block.files;
            let count = files.word_of(arrival.count, thread);
            if !(1..=MOST).contains(&i64::from(count)) {
                return Err(self.undefined("the number of arrivals must be from 1 to 1048575", thread));
            }
            let transactions = arrival.transactions.map(|count| files.word_of(count, thread));
            let (phase, state) =
                self.at_owner(rank, |machine| machine.arrive_at(at, thread, (count, transactions), arrival))?;
            arrived.add(phase, thread);
            if let Some(state_slot) = arrival.state {
                self.block.files.set_long(state_slot, thread, state);
            }
        }
        if releases {
            arrived.0.into_iter().for_each(|(phase, threads)| self.order(Order::Arrival(threads, phase)));
        }
        Ok(())
    }

    /// Lets a thread arrive at an object of the running block. Returns the phase, and the state that the arrival returns.
    fn arrive_at(
        &mut self,
        at: usize,
        thread: usize,
        (count, transactions): (u32, Option<u32>),
        arrival: Arrival,
    ) -> Result<(Phase, u64), Stop> {
        if let Some(transactions) = transactions {
            self.expect(at, thread, transactions.into())?;
        }
        let object = &mut self.block.mbarriers.objects[at];
        let state = u64::from(object.phase) << 32 | u64::from(object.pending);
        let phase = Phase::Object(self.cluster.rank, object.current);
        if arrival.drops {
            object.expected = object.expected.saturating_sub(count);
        }
        if !arrival.completes && object.pending == count && object.transactions == 0 {
            let why = "an arrival with `.noComplete` completes the phase of an mbarrier";
            return Err(self.undefined(why, thread));
        }
        self.arrive_on(at, thread, count)?;
        Ok((phase, state))
    }

    /// `mbarrier.test_wait` and `mbarrier.try_wait`, neither of which blocks.
    fn test(
        &mut self,
        place: Place,
        mask: &Mask,
        d: Predicate,
        phase: Value,
        acquires: bool,
    ) -> Result<(), Stop> {
        // A thread of another block could complete the phase.
        self.looks += u64::from(!self.cluster.is_alone());
        let mut complete = Mask::NONE;
        let mut waited = ByPhase::default();
        for thread in mask.threads() {
            let at = self.own_object(place, thread, How::Read, true)?;
            self.arrive_after_copies(at)?;
            let round = self.block.progress.rounds;
            let asked = self.value_of(phase, thread);
            let object = &mut self.block.mbarriers.objects[at];
            let is_current = match phase {
                Value::Word(_) => u64::from(object.phase & 1) == asked,
                Value::Long(_) => u64::from(object.phase) == asked >> 32,
            };
            if is_current {
                object.tested = Some((thread, self.pc, round));
                self.block.mbarriers.failed_tests += 1;
                continue;
            }
            complete = complete.or(&Mask::of(thread));
            if let Some(phase) = object.completed {
                waited.add(Phase::Object(self.cluster.rank, phase), thread);
            }
        }
        for chunk in 0..self.block.files.chunks {
            self.block.files.set_predicate(d, chunk, complete.0[chunk], mask.0[chunk]);
        }
        if acquires {
            waited.0.into_iter().for_each(|(phase, threads)| self.order(Order::Wait(threads, phase)));
        }
        Ok(())
    }

    /// Completes the copies that arrivals wait for, and lets these arrivals happen. Real copies complete on their own;
    /// here, they do when a thread tests the object.
    fn arrive_after_copies(&mut self, at: usize) -> Result<(), Stop> {
        let arrivals = std::mem::take(&mut self.block.mbarriers.objects[at].after_copies);
        if arrivals.is_empty() {
            return Ok(());
        }
        self.changes += 1;
        let (mut ends, mut bulk) = (vec![0; self.threads], Vec::new());
        for AfterCopies { thread, copies, bytes, .. } in &arrivals {
            match bytes {
                Some(_) => bulk.push(copies),
                None => ends[*thread] = copies.end.max(ends[*thread]),
            }
        }
        for copy in std::mem::take(&mut self.block.copies.under_way) {
            let is_complete = match copy.group {
                BULK => bulk.iter().any(|copies| copies.contains(&copy.number)),
                _ => copy.number < ends[copy.thread],
            };
            match is_complete {
                true => self.end_copy(copy),
                false => self.block.copies.under_way.push(copy),
            }
        }
        let own = self.cluster.rank;
        for AfterCopies { rank, thread, bytes, .. } in arrivals {
            let arrival = Order::Arrival(
                Mask::of(thread),
                Phase::Object(own, self.block.mbarriers.objects[at].current),
            );
            match rank == own {
                true => self.order(arrival),
                false => self.order_other(rank, arrival),
            }
            match bytes {
                Some(bytes) => {
                    self.expect(at, thread, -i64::from(bytes))?;
                    self.complete_phase(at);
                }
                None => self.arrive_on(at, thread, 1)?,
            }
        }
        Ok(())
    }

    /// Completes transactions when a bulk copy, whose pieces have these numbers, completes. The object is at an address of
    /// the block with the given rank, to which the data is copied.
    pub(crate) fn complete_after(
        &mut self,
        (target, address): (usize, u64),
        thread: usize,
        copies: Range<u64>,
        bytes: u32,
    ) -> Result<(), Stop> {
        let (rank, at) = self.object_at(Space::Shared, address, thread, How::Write(true), true)?;
        if rank != target {
            let why =
                "the mbarrier of a copy must be in the shared memory of the block that receives the copy";
            return Err(self.undefined(why, thread));
        }
        let after = AfterCopies { rank: self.cluster.rank, thread, copies, bytes: Some(bytes) };
        self.block_at_mut(rank).mbarriers.objects[at].after_copies.push(after);
        // If no thread tests the object, the copies complete on their own at some point.
        match self.block_at(rank).mbarriers.objects[at].after_copies.len() < MOST_AFTER_COPIES {
            true => Ok(()),
            false => self.at_owner(rank, |machine| machine.arrive_after_copies(at)),
        }
    }

    /// Returns a fault if all threads have only failed tests for some time, and one of them has reached a limit.
    #[cold]
    pub(crate) fn only_tests_at_limit(&mut self) -> Option<Stop> {
        if self.block.mbarriers.idle_rounds < IDLE_ROUNDS_AT_LIMIT { None } else { self.incomplete_phase() }
    }

    /// At the end of a round, returns a fault if all threads have only failed tests for many rounds.
    pub(crate) fn only_tests(&mut self) -> Option<Stop> {
        let mbarriers = &mut self.block.mbarriers;
        if mbarriers.objects.is_empty() {
            return None;
        }
        let is_alone = self.cluster.is_alone();
        let changes = self.changes - self.clock_reads;
        match std::mem::replace(&mut mbarriers.changes, changes) == changes {
            true => mbarriers.idle_rounds += 1,
            false => mbarriers.idle_rounds = 0,
        }
        if is_alone && mbarriers.has_only_failed(changes) { self.incomplete_phase() } else { None }
    }

    /// Returns a fault if a thread of a block that repeats itself keeps testing a phase that nothing completes.
    pub(crate) fn incomplete_phase(&mut self) -> Option<Stop> {
        let round = self.block.progress.rounds;
        let is_recent = |tested: &(usize, usize, u64)| tested.2 + 1 >= round;
        let objects = &self.block.mbarriers.objects;
        let object = objects.iter().find(|object| object.tested.as_ref().is_some_and(is_recent))?;
        let (thread, pc, _) = object.tested?;
        let kind = FaultKind::IncompletePhase {
            arrived: object.expected.saturating_sub(object.pending),
            expected: object.expected,
            transactions: object.transactions,
        };
        self.pc = pc;
        Some(self.fault(kind, thread))
    }
}
