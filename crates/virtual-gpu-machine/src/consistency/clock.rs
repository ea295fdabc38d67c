//! What happened before what, for threads of several launches.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::stamp::Stamp;

/// What a thread knows to have happened.
///
/// Most threads learn of other threads at a barrier, so a clock counts the barriers of whole blocks. Other threads are
/// listed one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Launches that came before the thread's own, one bit each.
    launches: Vec<u64>,
    /// For each block of a launch, the number of barriers of the whole block whose earlier accesses are known.
    blocks: BTreeMap<(u32, u32), u32>,
    /// For each thread of a block, the last of its releases whose earlier accesses are known.
    threads: BTreeMap<(u32, u32, u16), u32>,
    /// For each thread of a block, a write that was observed, by its number of releases, which no other access has.
    observed: BTreeMap<(u32, u32, u16), u32>,
}

impl Clock {
    /// Returns a clock that knows these launches.
    pub(crate) fn of_launches(launches: impl Iterator<Item = u32>) -> Self {
        let mut clock = Self::default();
        for launch in launches {
            let word = launch as usize / 64;
            clock.launches.resize(clock.launches.len().max(word + 1), 0);
            clock.launches[word] |= 1 << (launch % 64);
        }
        clock
    }

    /// Returns the launches that the clock knows at least a part of.
    pub(crate) fn all_launches(&self) -> impl Iterator<Item = u32> {
        let whole = (0_u32..).zip(&self.launches).flat_map(|(word, &bits)| {
            (0..64).filter(move |bit| bits & 1 << bit != 0).map(move |bit| word * 64 + bit)
        });
        let parts = self.blocks.keys().map(|&(launch, _)| launch);
        whole.chain(parts).chain(self.threads.keys().map(|&(launch, ..)| launch))
    }

    pub(crate) fn join(&mut self, other: &Self) {
        self.launches.resize(self.launches.len().max(other.launches.len()), 0);
        if self.launches.iter().zip(&other.launches).any(|(own, other)| other & !own != 0) {
            self.launches.iter_mut().zip(&other.launches).for_each(|(own, other)| *own |= other);
            // Their parts need not be listed anymore.
            let Self { launches, blocks, threads, observed } = self;
            blocks.retain(|&(launch, _), _| !has(launches, launch));
            threads.retain(|&(launch, ..), _| !has(launches, launch));
            observed.retain(|&(launch, ..), _| !has(launches, launch));
        }
        let Self { launches, blocks, threads, observed } = self;
        for (&block, &barriers) in other.blocks.iter().filter(|((launch, _), _)| !has(launches, *launch)) {
            let known = blocks.entry(block).or_default();
            *known = barriers.max(*known);
        }
        for (own, other) in [(threads, &other.threads), (observed, &other.observed)] {
            for (&thread, &number) in other.iter().filter(|((launch, ..), _)| !has(launches, *launch)) {
                let known = own.entry(thread).or_default();
                *known = number.max(*known);
            }
        }
    }

    /// Records that a strong write was observed.
    pub(crate) fn observe(&mut self, write: &Stamp) {
        self.observed.insert((write.launch, write.block, write.thread), write.releases);
    }

    /// Records that everything before a block's barrier with this number is known.
    pub(crate) fn know_block(&mut self, block: (u32, u32), barriers: u32) {
        let known = self.blocks.entry(block).or_default();
        *known = barriers.max(*known);
    }

    /// Records that everything before a thread's release with this number is known.
    pub(crate) fn know_thread(&mut self, (launch, block): (u32, u32), thread: u16, release: u32) {
        self.threads.insert((launch, block, thread), release);
    }

    /// Returns whether the access is known to have happened, whichever thread of its block made it.
    pub(crate) fn covers_block(&self, stamp: &Stamp) -> bool {
        has(&self.launches, stamp.launch)
            || self.blocks.get(&stamp.block()).is_some_and(|&barriers| barriers > stamp.barriers)
    }

    /// Returns whether the access is known to have happened.
    pub(crate) fn covers(&self, stamp: &Stamp) -> bool {
        let thread = (stamp.launch, stamp.block, stamp.thread);
        self.covers_block(stamp)
            || self.threads.get(&thread).is_some_and(|&release| release >= stamp.releases)
            || self.observed.get(&thread) == Some(&stamp.releases)
    }
}

/// Returns whether a launch's bit is set.
fn has(launches: &[u64], launch: u32) -> bool {
    launches.get(launch as usize / 64).is_some_and(|bits| bits & 1 << (launch % 64) != 0)
}

/// The fences of kind `.sc` so far, in their order in this run, as a thread's last one has seen them: with scope `.sys`, or
/// all on one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    gpu: Option<u16>,
    /// The number of fences that added something.
    number: u64,
    clock: Arc<Clock>,
}

impl Sequence {
    pub(crate) fn new(gpu: Option<u16>) -> Self {
        Self { gpu, ..Self::default() }
    }

    /// Adds a fence by a thread that knows `known`. What other threads of its block do until the block's next barrier counts
    /// as seen, too: that only makes newer values visible, which is always allowed.
    pub(crate) fn add(&mut self, block: (u32, u32), barriers: u32, known: &Clock) {
        let has_block = self.clock.blocks.get(&block).is_some_and(|&known| known > barriers);
        if !has_block {
            let clock = Arc::make_mut(&mut self.clock);
            clock.join(known);
            clock.know_block(block, barriers + 1);
            self.number += 1;
        }
    }

    /// Replaces what is known about single blocks of a launch that has ended.
    pub(crate) fn end_launch(&mut self, launch: u32) {
        if self.clock.all_launches().any(|known| known == launch) {
            Arc::make_mut(&mut self.clock).join(&Clock::of_launches(std::iter::once(launch)));
        }
    }

    pub(crate) fn join(&mut self, other: &Self) {
        if self.gpu == other.gpu && self.number < other.number {
            self.clone_from(other);
        }
    }
}

/// What a thread knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    /// What happened before, whatever the order in which threads ran. It decides about races.
    pub(crate) order: Arc<Clock>,
    /// What happened before in this run because of the order of fences: those with scope `.sys`, and those on the same GPU.
    /// It decides, too, which values a read can return.
    pub(crate) fences: [Sequence; 2],
}

impl Knowledge {
    pub(crate) fn of(order: Arc<Clock>, gpu: u16) -> Self {
        Self { order, fences: [None, Some(gpu)].map(Sequence::new) }
    }

    /// Returns whether it is that of a thread on this GPU.
    pub(crate) fn is_of(&self, gpu: u16) -> bool {
        self.fences[1].gpu == Some(gpu)
    }

    pub(crate) fn join(&mut self, other: &Self) {
        join(&mut self.order, &other.order);
        self.fences.iter_mut().zip(&other.fences).for_each(|(own, other)| own.join(other));
    }

    /// Returns whether a read must see what an access has written.
    pub(crate) fn must_see(&self, stamp: &Stamp) -> bool {
        self.order.covers(stamp) || self.fences.iter().any(|fences| fences.clock.covers(stamp))
    }

    pub(crate) fn update(&mut self, change: impl Fn(&mut Clock)) {
        change(Arc::make_mut(&mut self.order));
    }
}

/// Joins `other` into `own`, without a copy if one of them is known already.
pub(crate) fn join(own: &mut Arc<Clock>, other: &Arc<Clock>) {
    if Arc::ptr_eq(own, other) {
        return;
    }
    if **own == Clock::default() {
        own.clone_from(other);
        return;
    }
    Arc::make_mut(own).join(other);
}
