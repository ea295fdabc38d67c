//! The memory consistency model for launches on GPUs that access each other's memory. It follows the chapter of the same
//! name in the PTX manual (<https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model>).
//!
//! Each thread has a clock of what it knows to have happened. It learns from barriers, and from a strong read of what
//! another thread wrote, if both have fences (or `.release` and `.acquire`) and all scopes include both threads. Two
//! accesses to the same bytes race if at least one writes, neither thread knows of the other's, and they are not both
//! strong with sufficient scopes.
//!
//! In three respects, the model follows the hardware and not the manual's words, which promise less. What a thread has
//! published with a fence is also published by another thread's write after a barrier. What a thread has read before a
//! barrier is acquired by another thread's fence after it. A strong access to a vector of at most 16 bytes is one access.

mod cells;
mod clock;
mod observer;
mod stamp;
mod variable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cells::{CELL, Cells, Row};
use clock::Sequence;
pub(crate) use clock::{Clock, Knowledge};
pub use observer::Missing;
pub(crate) use observer::Observer;
use observer::merge;
pub(crate) use stamp::Stamp;
pub(crate) use variable::SIZE as LARGEST;
use variable::{Variable, Writer};

use crate::fault::{MemoryAccess, ThreadReport};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::memory::AllocationId;
use virtual_gpu_ptx::Kernel;
use virtual_gpu_ptx::instruction::{Fence, Scope, Space};

/// What launches on several GPUs did to memory.
#[derive(Debug, Default)]
pub struct Consistency {
    launches: BTreeMap<u32, Known>,
    /// The first launch that is not forgotten.
    first: u32,
    cells: Map<(u64, AllocationId), Cells>,
    variables: Map<(Place, u64), Variable>,
    /// The fences of kind `.sc`: those with scope `.sys`, and those on each GPU.
    fences: Map<Option<u16>, Sequence>,
}

/// Memory that a strong access uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// An allocation: its address and identity.
    Device(u64, AllocationId),
    /// A block's shared memory: its launch and number.
    Shared(u32, u32),
}

/// A launch, as the model knows it.
#[derive(Debug)]
struct Known {
    gpu: u16,
    kernel: Arc<Kernel>,
    grid: [u32; 3],
    block: [u32; 3],
    /// What came before it.
    base: Arc<Clock>,
    /// What its ended blocks knew.
    end: Clock,
}

/// Unordered accesses by threads of two launches, or of two blocks of a launch.
#[derive(Clone, Debug)]
pub struct DeviceRace {
    /// The access that was executed first in this run, with its launch.
    pub earlier: (usize, ThreadReport),
    /// The later access, at which the race was detected, with its launch.
    pub later: (usize, ThreadReport),
    /// Where both happened: the allocation's address, and the offset in bytes.
    pub at: (u64, u64),
    /// Whether both accesses are strong, so that only a scope is too small.
    pub scope_is_too_small: bool,
    /// Why nothing orders the accesses, if that is clear, and the write of the flag that should have.
    pub why: Option<(Option<ThreadReport>, Missing)>,
}

impl Consistency {
    /// Adds a launch with this number, grid, and block, which comes after other launches.
    pub fn begin(
        &mut self,
        launch: usize,
        kernel: Arc<Kernel>,
        gpu: usize,
        [grid, block]: [[u32; 3]; 2],
        after: &[usize],
    ) {
        let mut base = Clock::of_launches(after.iter().map(|&launch| launch as u32));
        for known in after.iter().filter_map(|&launch| self.launches.get(&(launch as u32))) {
            base.join(&known.end);
        }
        let (base, gpu, end) = (Arc::new(base), gpu as u16, Clock::default());
        self.launches.insert(launch as u32, Known { gpu, kernel, grid, block, base, end });
    }

    /// Ends a launch and returns the other launches that it has learned of since it began.
    pub fn end(&mut self, launch: usize) -> Vec<usize> {
        self.fences.values_mut().for_each(|fences| fences.end_launch(launch as u32));
        let Some(known) = self.launches.get(&(launch as u32)) else { return Vec::new() };
        let before: BTreeSet<u32> = known.base.all_launches().collect();
        let all: BTreeSet<u32> = known.end.all_launches().collect();
        let learned = all.difference(&before).filter(|&&other| other as usize != launch);
        learned.map(|&other| other as usize).collect()
    }

    /// Forgets the launches before this one, all of which have ended.
    pub fn forget_before(&mut self, launch: usize) {
        if self.first < launch as u32 {
            self.first = launch as u32;
            self.launches = self.launches.split_off(&self.first);
            self.cells.clear();
            self.variables.clear();
            self.fences.clear();
        }
    }

    /// Starts a block of a launch, given its number and that of its cluster.
    pub(crate) fn start_block(
        &self,
        launch: usize,
        [block, cluster]: [u32; 2],
        threads: usize,
        observer: &mut Observer,
    ) {
        let Some(known) = self.launches.get(&(launch as u32)) else { return };
        observer.start((launch as u32, block), cluster, known.gpu, &known.base, threads);
    }

    /// Ends a block of a launch.
    pub(crate) fn end_block(&mut self, launch: usize, block: u32, observer: &Observer) {
        if let Some(known) = self.launches.get_mut(&(launch as u32)) {
            known.end.join(&observer.end());
        }
        let shared = Place::Shared(launch as u32, block);
        self.variables.retain(|(place, _), _| *place != shared);
    }

    /// Executes a fence.
    pub(crate) fn fence(&mut self, observer: &mut Observer, thread: usize, fence: &Fence) {
        observer.fence(thread, fence);
        if fence.is_sequential && fence.scope >= Scope::Gpu {
            // A fence of the whole system has an order with those of its GPU, too.
            let system = (fence.scope == Scope::System).then_some(None);
            for gpu in system.into_iter().chain([Some(observer.gpu())]) {
                let all = self.fences.entry(gpu).or_insert_with(|| Sequence::new(gpu));
                observer.join_sequence(thread, all);
            }
        }
    }

    /// Records an access and returns an earlier one that it races with, and the byte.
    pub(crate) fn access(
        &mut self,
        place: (u64, AllocationId),
        offset: u64,
        len: u64,
        now: Stamp,
        known: &Knowledge,
        changes: bool,
    ) -> Option<(Stamp, u64)> {
        let first = self.first;
        let races = |earlier: &Stamp| {
            earlier.launch >= first
                && !earlier.is_by_thread_of(&now)
                && !known.order.covers(earlier)
                && !earlier.is_strong_with(&now)
        };
        self.cells.entry(place).or_default().access(offset, len, now, changes, races)
    }

    /// Records weak accesses of threads, `unit` bytes each, if it is clear that none of them races. If not, does nothing and
    /// returns false. The first access has the stamp `first`. All are to the same bytes and read them, or `are_same` is
    /// false, and contiguous threads access contiguous bytes.
    pub(crate) fn access_together(
        &mut self,
        place: (u64, AllocationId),
        (offset, unit): (u64, u64),
        first: Stamp,
        (threads, are_same): (impl Iterator<Item = usize> + Clone, bool),
        observer: &Observer,
    ) -> bool {
        let Some(known) = observer.common_order(threads.clone()) else { return false };
        if !(offset | unit).is_multiple_of(CELL) {
            return false;
        }
        let is_known = |earlier: &Stamp| earlier.launch < self.first || known.covers_block(earlier);
        let cells = self.cells.entry(place).or_default();
        if are_same {
            let stamp =
                |thread| Stamp { thread: thread as u16, releases: observer.releases(thread), ..first };
            return cells.read_same(offset / CELL..(offset + unit) / CELL, threads.map(stamp), is_known);
        }
        let releases = |after| observer.releases(usize::from(first.thread) + after);
        cells.access_row(&Row { offset, unit, threads: threads.count(), first, releases }, is_known)
    }

    /// A strong read of `bytes`, which memory has now: replaces them with what the thread sees, and returns whether that
    /// is not the newest value.
    pub(crate) fn read(
        &mut self,
        at: (Place, u64),
        now: Stamp,
        observer: &mut Observer,
        bytes: &mut [u8],
        must_be_newest: bool,
    ) -> bool {
        let variable = self.variables.entry(at).or_insert_with(|| Variable::new(bytes));
        variable.notice(bytes);
        let thread = usize::from(now.thread);
        let (value, is_old) = if must_be_newest {
            let Some(value) = variable.last() else { return false };
            value.note_reader(now);
            (value, false)
        } else {
            let (known, seen) = observer.reader(thread);
            let Some(read) = variable.read(now, known, seen, bytes) else { return false };
            read
        };
        if let Some(writer) = value.writer.clone() {
            observer.read(thread, &now, &writer);
        }
        is_old
    }

    /// A strong write of `bytes`, which memory had until now, by a thread whose stamp `now` is. An atomic also publishes
    /// what the value before it published.
    pub(crate) fn write(
        &mut self,
        at: (Place, u64),
        now: Stamp,
        (mut messages, knew): (variable::Messages, Knowledge),
        [old, new]: [&[u8]; 2],
        is_atomic: bool,
    ) {
        let variable = self.variables.entry(at).or_insert_with(|| Variable::new(old));
        variable.notice(old);
        let last = variable.last().and_then(|last| last.writer.clone());
        if let Some(last) = last
            && (is_atomic && last.stamp.is_strong_with(&now) || last.stamp.is_by_thread_of(&now))
        {
            for (own, other) in messages.iter_mut().zip(&last.messages) {
                merge(own, other.as_ref());
            }
        }
        variable.write(new, Writer { stamp: now, messages, knew });
    }

    /// Describes an access, unless its launch is forgotten.
    pub(crate) fn report(&self, stamp: &Stamp, address: u64, bytes: u32) -> Option<ThreadReport> {
        let Known { kernel, grid, block, .. } = self.launches.get(&stamp.launch)?;
        let access = MemoryAccess { space: Space::Global, access: stamp.access, address, bytes };
        Some(ThreadReport {
            kernel: kernel.name().to_owned(),
            block: index(stamp.block, *grid),
            thread: index(stamp.thread.into(), *block),
            ptx_line: kernel.line(stamp.pc as usize),
            cuda_line: kernel.cuda_line(stamp.pc as usize).cloned(),
            access: Some(access),
        })
    }
}

/// Returns the index of the element with this number.
fn index(number: u32, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (x.max(1), y.max(1));
    [number % x, number / x % y, number / x / y]
}

#[cfg(test)]
mod tests;
