//! A launch that runs at the same time as launches on other GPUs, whose memory it accesses.

use std::collections::hash_map::Entry;

use crate::consistency::{Consistency, DeviceRace, Place, Stamp};
use crate::fault::{Access, ThreadReport};
use crate::machine::Machine;
use crate::mask::Mask;
use crate::memory::bytes::Location;
use crate::memory::touched::{Accessed, Touched};
use crate::order::{Order, Phase};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::memory::DeviceMemory;
use virtual_gpu_ptx::instruction::Fence;

/// The number of phases of a cluster's mbarrier objects and barrier that are kept.
const PHASES: usize = 1024;

/// Why a launch stops for a while.
#[derive(Clone, Debug)]
pub enum Pause {
    /// It is time to let other launches run.
    Slice,
    /// Every thread repeats itself until another launch writes. The report is about the thread that is furthest behind.
    Waits(Box<ThreadReport>),
}

/// Lets other launches run.
pub trait Others {
    /// Lets other launches use the memory and the record. `has_changed`: whether this launch may have changed memory since it
    /// was resumed. Returns whether the launch continues; if not, nothing will ever
    /// change what it waits for.
    fn run(
        &mut self,
        pause: Pause,
        has_changed: bool,
        memory: &mut DeviceMemory,
        consistency: &mut Consistency,
    ) -> bool;
}

/// The other launches, and what all of them did.
pub struct Together<'l> {
    /// What the launches did to memory.
    pub consistency: &'l mut Consistency,
    /// The launch's number there.
    pub launch: usize,
    /// The other launches.
    pub others: Box<dyn Others + 'l>,
    /// Whether the launch's accesses are compared with those of others. If it only shares memory with other processes,
    /// they are not.
    pub observes: bool,
    is_reported: bool,
    /// The machine's count of changes when the launch was resumed.
    changes: u64,
}

impl<'l> Together<'l> {
    /// Prepares the launch with this number.
    pub fn new(
        consistency: &'l mut Consistency,
        launch: usize,
        others: Box<dyn Others + 'l>,
        observes: bool,
    ) -> Self {
        Self { consistency, launch, others, observes, is_reported: false, changes: 0 }
    }
}

impl std::fmt::Debug for Together<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Together").field("launch", &self.launch).finish_non_exhaustive()
    }
}

impl Machine<'_> {
    /// Lets other launches run and returns whether this one continues.
    pub(crate) fn let_others_run(&mut self, pause: Pause) -> bool {
        // The slots may be different afterwards.
        self.drain_record();
        self.last_slot = None;
        let (Some(together), Some(memory)) = (&mut self.together, self.memory.whole()) else { return false };
        let has_changed = self.changes > together.changes;
        self.changes += 1;
        together.changes = self.changes;
        together.others.run(pause, has_changed, memory, together.consistency)
    }

    /// Moves what the launch has touched so far out of the record, whose slots are about to change.
    pub(crate) fn drain_record(&mut self) {
        let touched = self.record.drain().into_iter().filter_map(|Accessed { slot, access, ranges }| {
            let known = self.memory.in_slot(slot)?;
            Some(Touched { allocation: known.id(), base: known.base(), ranges, access })
        });
        let touched: Vec<Touched> = touched.collect();
        if self.touched.is_empty() {
            self.touched = touched;
            return;
        }
        let key = |touched: &Touched| (touched.base, touched.allocation, touched.access);
        let mut places: Map<_, usize> =
            self.touched.iter().enumerate().map(|(place, known)| (key(known), place)).collect();
        for new in touched {
            match places.entry(key(&new)) {
                Entry::Occupied(place) => self.touched[*place.get()].add(new.ranges),
                Entry::Vacant(place) => {
                    place.insert(self.touched.len());
                    self.touched.push(new);
                }
            }
        }
    }

    /// Returns the number of the running block.
    pub(crate) fn block_number(&self) -> u32 {
        self.number_of(self.cluster.rank)
    }

    /// Returns the number of the block with this rank in the running cluster.
    fn number_of(&self, rank: usize) -> u32 {
        let ([x, y, z], [width, height, _]) = (self.block_at(rank).index, self.launch.grid);
        (z * height + y) * width + x
    }

    /// Returns the number of the first block of the running cluster.
    fn cluster_number(&self) -> u32 {
        let size = self.launch.cluster.map(|extent| extent.max(1));
        let [x, y, z] = std::array::from_fn(|axis| self.block.index[axis] / size[axis] * size[axis]);
        let [width, height, _] = self.launch.grid;
        (z * height + y) * width + x
    }

    /// Records that threads of the block with this rank have arrived at a phase, or have waited for it.
    pub(crate) fn observe_phase(&mut self, rank: usize, what: &Order) {
        if !self.is_observed() {
            return;
        }
        let at = |phase: &Phase| self.cluster.known.iter().position(|(known, _)| known == phase);
        match what {
            Order::Arrival(threads, phase) => {
                let at = at(phase);
                let message = self.block_at_mut(rank).observer.arrive(threads.threads());
                let known = &mut self.cluster.known;
                match at {
                    Some(at) => known[at].1.join(&message),
                    None => {
                        if known.len() == PHASES {
                            known.pop_front();
                        }
                        known.push_back((*phase, message));
                    }
                }
            }
            Order::Wait(threads, phase) => {
                if let Some(at) = at(phase) {
                    self.block.observer.learn(threads.threads(), &self.cluster.known[at].1);
                }
            }
            Order::RelaxedArrival(..)
            | Order::Barrier { .. }
            | Order::Warps(_)
            | Order::Exchange(_)
            | Order::Fence(..) => {}
        }
    }

    pub(crate) fn start_observing(&mut self) {
        let (numbers, threads) = ([self.block_number(), self.cluster_number()], self.threads);
        if let Some(together) = self.together.as_ref().filter(|together| together.observes) {
            together.consistency.start_block(together.launch, numbers, threads, &mut self.block.observer);
        }
    }

    pub(crate) fn end_observing(&mut self) {
        let number = self.block_number();
        if let Some(together) = self.together.as_mut().filter(|together| together.observes) {
            together.consistency.end_block(together.launch, number, &self.block.observer);
        }
    }

    /// Records a fence.
    pub(crate) fn observe_fence(&mut self, fence: &Fence, mask: &Mask) {
        let Some(together) = &mut self.together else { return };
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if !together.observes {
            return;
        }
        for thread in mask.threads() {
            together.consistency.fence(&mut self.block.observer, thread, fence);
        }
    }

    /// Records that the threads in `to` have waited for the threads in `from`.
    pub(crate) fn observe_barrier(&mut self, from: &Mask, to: &Mask) {
        if self.is_observed() {
            let [from, to] = [from, to].map(|mask| mask.threads().collect::<Vec<_>>());
            self.block.observer.barrier(&from, &to);
        }
    }

    /// Records that the lanes of a warp have exchanged values.
    pub(crate) fn observe_exchange(&mut self, threads: &Mask) {
        if self.is_observed() {
            self.block.observer.exchange(&threads.threads().collect::<Vec<_>>());
        }
    }

    /// Records an access to device memory by a thread. `changes` is false for a write of what is there already.
    pub(crate) fn observe(
        &mut self,
        location: Location,
        (offset, len): (u64, u64),
        access: Access,
        thread: usize,
        changes: bool,
    ) {
        if !self.is_observed() {
            return;
        }
        let (Some(together), Location::Device(slot)) = (&mut self.together, location) else { return };
        let allocation = self.memory.in_slot(slot).filter(|it| !it.is_shared_with_processes());
        let Some(allocation) = allocation else { return };
        let place = (allocation.base(), allocation.id());
        let mut now = self.block.observer.stamp(thread, self.pc);
        (now.access, now.scope) = (access, self.scope);
        let observer = &self.block.observer;
        let known = observer.knowledge(thread);
        let Some((earlier, byte)) = together.consistency.access(place, offset, len, now, known, changes)
        else {
            return;
        };
        if together.is_reported {
            return;
        }
        together.is_reported = true;
        let consistency = &*together.consistency;
        let report = |stamp: &Stamp| consistency.report(stamp, place.0 + byte, len as u32);
        let why = observer.why_unknown(thread, &earlier);
        let (Some(first), Some(second)) = (report(&earlier), report(&now)) else { return };
        self.device_race = Some(Box::new(DeviceRace {
            earlier: (earlier.launch as usize, first),
            later: (now.launch as usize, second),
            at: (place.0, byte),
            scope_is_too_small: earlier.scope.is_some() && now.scope.is_some(),
            why: why.map(|(flag, why)| (flag.and_then(|flag| report(&flag)), why)),
        }));
    }

    /// Returns the place of a strong access.
    fn place(&self, location: Location) -> Option<Place> {
        match location {
            Location::Device(slot) => {
                let allocation = self.memory.in_slot(slot).filter(|it| !it.is_shared_with_processes())?;
                Some(Place::Device(allocation.base(), allocation.id()))
            }
            Location::Shared => {
                self.together.as_ref().map(|it| Place::Shared(it.launch as u32, self.block_number()))
            }
            Location::Other(rank) => {
                self.together.as_ref().map(|it| Place::Shared(it.launch as u32, self.number_of(rank)))
            }
        }
    }

    /// Replaces what a strong read has found in memory with what the thread sees.
    pub(crate) fn observe_strong_read(
        &mut self,
        (location, offset): (Location, u64),
        thread: usize,
        bytes: &mut [u8],
        is_atomic: bool,
    ) {
        let (Some(scope), Some(place)) = (self.scope, self.place(location)) else { return };
        let Some(together) = &mut self.together else { return };
        let mut now = self.block.observer.stamp(thread, self.pc);
        now.scope = Some(scope);
        let newest = is_atomic || !matches!(location, Location::Device(_));
        let observer = &mut self.block.observer;
        if together.consistency.read((place, offset), now, observer, bytes, newest) {
            // The next read may return something else.
            self.changes += 1;
        }
    }

    /// Records a strong write of `new` over `old`.
    pub(crate) fn observe_strong_write(
        &mut self,
        (location, offset): (Location, u64),
        thread: usize,
        values: [&[u8]; 2],
        is_atomic: bool,
    ) {
        let (Some(scope), Some(place)) = (self.scope, self.place(location)) else { return };
        let Some(together) = &mut self.together else { return };
        let published = self.block.observer.write(thread, scope);
        let mut now = self.block.observer.stamp(thread, self.pc);
        (now.scope, now.access) = (Some(scope), if is_atomic { Access::Atomic } else { Access::Write });
        together.consistency.write((place, offset), now, published, values, is_atomic);
    }

    /// Returns whether accesses are compared with those of other launches.
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        self.together.as_ref().is_some_and(|together| together.observes)
    }
}
