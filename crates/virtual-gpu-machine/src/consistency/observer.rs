//! What the threads of one block know.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::clock::{Clock, Knowledge, Sequence};
use super::stamp::Stamp;
use super::variable::{Messages, Writer};
use virtual_gpu_ptx::instruction::{Fence, Scope};

/// Why a thread that has read a flag doesn't know what the flag's writer did before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The writer has no fence before the write.
    WritersFence,
    /// The fence before the write has too small a scope.
    ScopeOfWritersFence,
    /// The reader has no fence after the read.
    ReadersFence,
    /// The fence after the read has too small a scope.
    ScopeOfReadersFence,
    /// The read or the write of the flag has too small a scope.
    ScopeOfFlag,
    /// The flag's writer has waited for the access, but only after its last fence.
    LaterFence,
    /// The flag's writer has not waited for the thread of its block that made the access.
    BarrierBeforeFlag,
    /// Another thread of the reader's block has waited, and this thread has not waited for that one.
    BarrierAfterWait,
}

/// A message that a thread could not receive.
#[derive(Clone, Debug)]
pub(crate) struct Missed {
    pub(crate) knew: Knowledge,
    pub(crate) flag: Stamp,
    pub(crate) why: Missing,
}

/// The number of messages that are kept to explain a race.
const MISSED: usize = 8;

/// A message that a thread receives at its next fence.
#[derive(Clone, Debug)]
struct Pending {
    /// The scope that the fence must have.
    needed: Scope,
    message: Knowledge,
    writer: Writer,
    has_narrow_fence: bool,
}

impl Pending {
    /// Returns whether the message is of this write, and needs a fence of this scope.
    fn is_of(&self, write: &Stamp, needed: Scope) -> bool {
        self.writer.stamp == *write && self.needed == needed
    }
}

/// What a thread knows, and what it publishes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Thread {
    pub(crate) known: Knowledge,
    /// The number of releases so far.
    releases: u32,
    /// The number of new values that the thread has seen in variables that it had read before.
    seen: u64,
    /// What the thread's fences have published, by scope.
    released: Messages,
    /// The scope of a release that applies only to the next write.
    release_next: Option<Scope>,
    pending: Vec<Pending>,
    /// The number of `pending` messages before the last read.
    before_last_read: usize,
    missed: Vec<Missed>,
    /// The flags whose messages the thread has received last, with what their writers knew.
    received: Vec<(Stamp, Knowledge)>,
}

impl Thread {
    /// Returns what the thread knows, including what it did itself.
    fn publish(&mut self, block: (u32, u32), thread: u16) -> Knowledge {
        let mut all = self.known.clone();
        let releases = self.releases;
        all.update(|clock| clock.know_thread(block, thread, releases));
        self.releases += 1;
        all
    }
}

/// A block's threads.
#[derive(Debug, Default)]
struct Threads {
    all: Vec<Thread>,
    /// Whether one of them may have changed since the block's start.
    have_changed: bool,
}

impl Threads {
    /// Starts the threads of a block. Those of the block before it often are the same, and need not be made again.
    fn start(&mut self, base: &Arc<Clock>, gpu: u16, count: usize) {
        let is_same = |first: &Thread| Arc::ptr_eq(&first.known.order, base) && first.known.is_of(gpu);
        if self.have_changed || self.all.len() != count || !self.all.first().is_some_and(is_same) {
            let first = Thread { known: Knowledge::of(base.clone(), gpu), ..Thread::default() };
            *self = Self { all: vec![first; count], have_changed: false };
        }
    }
}

impl Index<usize> for Threads {
    type Output = Thread;

    fn index(&self, thread: usize) -> &Thread {
        &self.all[thread]
    }
}

impl IndexMut<usize> for Threads {
    fn index_mut(&mut self, thread: usize) -> &mut Thread {
        self.have_changed = true;
        &mut self.all[thread]
    }
}

/// What the threads of a block know.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    block: (u32, u32),
    /// The number of the block's cluster.
    cluster: u32,
    gpu: u16,
    barriers: u32,
    threads: Threads,
}

impl Observer {
    /// Starts a block of a launch.
    pub(crate) fn start(
        &mut self,
        block: (u32, u32),
        cluster: u32,
        gpu: u16,
        base: &Arc<Clock>,
        threads: usize,
    ) {
        (self.block, self.cluster, self.gpu, self.barriers) = (block, cluster, gpu, 0);
        self.threads.start(base, gpu, threads);
    }

    /// Returns the stamp of an access now.
    pub(crate) fn stamp(&self, thread: usize, pc: usize) -> Stamp {
        Stamp {
            launch: self.block.0,
            block: self.block.1,
            cluster: self.cluster,
            thread: thread as u16,
            gpu: self.gpu,
            barriers: self.barriers,
            releases: self.threads[thread].releases,
            pc: pc as u32,
            access: crate::fault::Access::Read,
            scope: None,
        }
    }

    pub(crate) fn knowledge(&self, thread: usize) -> &Knowledge {
        &self.threads[thread].known
    }

    /// Returns what came before the next access of each of these threads, if that is the same for all.
    pub(crate) fn common_order(&self, mut threads: impl Iterator<Item = usize>) -> Option<&Arc<Clock>> {
        let first = &self.threads[threads.next()?].known.order;
        let is_first = |thread| Arc::ptr_eq(first, &self.threads[thread].known.order);
        (!self.threads.have_changed || threads.all(is_first)).then_some(first)
    }

    /// Returns the number of a thread's releases so far.
    pub(crate) fn releases(&self, thread: usize) -> u32 {
        self.threads[thread].releases
    }

    /// Returns what a thread knows, and the number of new values that it has seen.
    pub(crate) fn reader(&mut self, thread: usize) -> (&Knowledge, &mut u64) {
        let Thread { known, seen, .. } = &mut self.threads[thread];
        (known, seen)
    }

    /// Returns why a thread doesn't know of an access, if that is clear, and the flag whose message lacks it.
    pub(crate) fn why_unknown(&self, thread: usize, access: &Stamp) -> Option<(Option<Stamp>, Missing)> {
        let Thread { pending, missed, .. } = &self.threads[thread];
        let waits = pending.iter().rev().find(|pending| pending.message.order.covers(access));
        let waits = waits.map(|pending| {
            let why =
                if pending.has_narrow_fence { Missing::ScopeOfReadersFence } else { Missing::ReadersFence };
            (Some(pending.writer.stamp), why)
        });
        let knew = |missed: &&Missed| missed.knew.order.covers(access);
        let missed = || missed.iter().rev().find(knew).map(|missed| (Some(missed.flag), missed.why));
        let of_others = || {
            let knows = self.threads.all.iter().any(|other| other.known.order.covers(access));
            knows.then_some((None, Missing::BarrierAfterWait))
        };
        let received = || self.threads[thread].received.iter().rev();
        let later = || {
            let (flag, _) = received().find(|(_, knew)| knew.order.covers(access))?;
            Some((Some(*flag), Missing::LaterFence))
        };
        let before = || {
            let is_of_block = |flag: &Stamp| flag.block() == access.block() && flag.thread != access.thread;
            let (flag, _) = received().find(|(flag, _)| is_of_block(flag))?;
            Some((Some(*flag), Missing::BarrierBeforeFlag))
        };
        waits.or_else(missed).or_else(of_others).or_else(later).or_else(before)
    }

    /// Prepares a strong write: returns its stamp's number of releases and what the write publishes to its readers.
    pub(crate) fn write(&mut self, thread: usize, scope: Scope) -> (Messages, Knowledge) {
        let block = self.block;
        let entry = &mut self.threads[thread];
        let knew = entry.publish(block, thread as u16);
        let mut messages = Messages::default();
        let levels = scope as usize + 1;
        for (level, message) in messages.iter_mut().enumerate().take(levels) {
            message.clone_from(&entry.released[level]);
            if entry.release_next.is_some_and(|release| level <= release as usize) {
                merge(message, Some(&knew));
            }
        }
        entry.release_next = None;
        (messages, knew)
    }

    /// Ends a strong write, so that no other access has its number.
    pub(crate) fn end_write(&mut self, thread: usize) {
        self.threads[thread].releases += 1;
    }

    /// Records that a thread has read what `writer` wrote.
    pub(crate) fn read(&mut self, thread: usize, now: &Stamp, writer: &Writer) {
        let entry = &mut self.threads[thread];
        entry.before_last_read = entry.pending.len();
        if writer.stamp.is_by_thread_of(now) {
            return;
        }
        if writer.stamp.is_strong_with(now) && !entry.known.order.covers(&writer.stamp) {
            entry.known.update(|clock| clock.observe(&writer.stamp));
        }
        let needed = writer.stamp.scope_with(now);
        let (level, missed) = (needed as usize, entry.missed.len());
        let mut miss = |why| {
            if missed == MISSED {
                entry.missed.remove(0);
            }
            entry.missed.push(Missed { knew: writer.knew.clone(), flag: writer.stamp, why });
        };
        if !writer.stamp.is_strong_with(now) {
            return miss(Missing::ScopeOfFlag);
        }
        match &writer.messages[level] {
            Some(message) => {
                if !entry.pending.iter().any(|pending| pending.is_of(&writer.stamp, needed)) {
                    let (message, writer) = (message.clone(), writer.clone());
                    entry.pending.push(Pending { needed, message, writer, has_narrow_fence: false });
                }
                // A message that is only a part of what the writer knew explains nothing about the rest.
            }
            None if writer.messages[0].is_some() => miss(Missing::ScopeOfWritersFence),
            None => miss(Missing::WritersFence),
        }
    }

    /// Executes a fence. `is_implied` is the fence of a single `.acquire` or `.release`.
    pub(crate) fn fence(&mut self, thread: usize, fence: &Fence) {
        let block = self.block;
        let entry = &mut self.threads[thread];
        if fence.acquires {
            let from = if fence.is_implied { entry.before_last_read.min(entry.pending.len()) } else { 0 };
            let rest = entry.pending.split_off(from);
            for mut pending in rest {
                if fence.scope >= pending.needed {
                    entry.known.join(&pending.message);
                    if entry.received.len() == MISSED {
                        entry.received.remove(0);
                    }
                    entry.received.push((pending.writer.stamp, pending.writer.knew));
                } else {
                    pending.has_narrow_fence = true;
                    entry.pending.push(pending);
                }
            }
        }

        match (fence.releases, fence.is_implied) {
            (true, true) => entry.release_next = Some(fence.scope),
            (true, false) => {
                let published = entry.publish(block, thread as u16);
                for level in 0..=fence.scope as usize {
                    entry.released[level] = Some(published.clone());
                }
            }
            (false, _) => {}
        }
    }

    /// Puts a thread's fence into the sequence of all fences of its kind.
    pub(crate) fn join_sequence(&mut self, thread: usize, all: &mut Sequence) {
        let Knowledge { order, fences } = &mut self.threads[thread].known;
        all.add(self.block, self.barriers, order);
        fences.iter_mut().for_each(|fences| fences.join(all));
    }

    /// Returns the GPU that the block runs on.
    pub(crate) fn gpu(&self) -> u16 {
        self.gpu
    }

    /// Records a barrier: the threads in `to` have waited for the threads in `from`. What one of these has published with a
    /// fence is visible, so the others' later writes publish it, too.
    pub(crate) fn barrier(&mut self, from: &[usize], to: &[usize]) {
        let is_whole = from.len() == self.threads.all.len() && to.len() == self.threads.all.len();
        let mut all = Thread { known: Knowledge::of(Arc::default(), self.gpu), ..Thread::default() };
        for &thread in from {
            let entry = &self.threads[thread];
            all.known.join(&entry.known);
            for (own, other) in all.released.iter_mut().zip(&entry.released) {
                merge(own, other.as_ref());
            }
            for pending in &entry.pending {
                // Since the last barrier, most threads have the same messages.
                if !all.pending.iter().any(|known| known.is_of(&pending.writer.stamp, pending.needed)) {
                    all.pending.push(pending.clone());
                }
            }
            all.missed.extend(entry.missed.iter().cloned());
            all.received.extend(entry.received.iter().cloned());
        }
        all.missed.truncate(MISSED);
        all.received.truncate(MISSED);
        let block = self.block;
        if is_whole {
            self.barriers += 1;
            let barriers = self.barriers;
            all.known.update(|clock| clock.know_block(block, barriers));
        } else {
            for &thread in from {
                let releases = self.threads[thread].releases;
                all.known.update(|clock| clock.know_thread(block, thread as u16, releases));
                self.threads[thread].releases += 1;
            }
        }
        for &thread in to {
            let entry = &mut self.threads[thread];
            match is_whole {
                true => entry.known.clone_from(&all.known),
                false => entry.known.join(&all.known),
            }
            for (own, other) in entry.released.iter_mut().zip(&all.released) {
                match is_whole {
                    true => own.clone_from(other),
                    false => merge(own, other.as_ref()),
                }
            }
            entry.pending.clone_from(&all.pending);
            entry.before_last_read = entry.pending.len();
            entry.missed.clone_from(&all.missed);
            entry.received.clone_from(&all.received);
        }
    }

    /// Records that the lanes of a warp have exchanged values. Each of them now knows what the others knew, but what they
    /// did themselves is not ordered.
    pub(crate) fn exchange(&mut self, threads: &[usize]) {
        let mut all = Knowledge::of(Arc::default(), self.gpu);
        threads.iter().for_each(|&thread| all.join(&self.threads[thread].known));
        threads.iter().for_each(|&thread| self.threads[thread].known.join(&all));
    }

    /// Makes threads publish what they know at a barrier with threads of other blocks, and returns it.
    pub(crate) fn arrive(&mut self, threads: impl Iterator<Item = usize>) -> Knowledge {
        let mut all = Knowledge::of(Arc::default(), self.gpu);
        let block = self.block;
        threads.for_each(|thread| all.join(&self.threads[thread].publish(block, thread as u16)));
        all
    }

    /// Records that threads learn what others have published at a barrier.
    pub(crate) fn learn(&mut self, threads: impl Iterator<Item = usize>, message: &Knowledge) {
        threads.for_each(|thread| self.threads[thread].known.join(message));
    }

    /// Returns how many messages each thread would receive at a fence.
    #[cfg(test)]
    pub(crate) fn pending(&self) -> Vec<usize> {
        self.threads.all.iter().map(|thread| thread.pending.len()).collect()
    }

    /// Returns what all threads knew at the end.
    pub(crate) fn end(&self) -> Clock {
        let mut end = Clock::default();
        let mut last: Option<&Arc<Clock>> = None;
        for thread in &self.threads.all {
            if !last.is_some_and(|last| Arc::ptr_eq(last, &thread.known.order)) {
                end.join(&thread.known.order);
            }
            last = Some(&thread.known.order);
        }
        end
    }
}

/// Adds `other` to `own`.
pub(crate) fn merge(own: &mut Option<Knowledge>, other: Option<&Knowledge>) {
    match (own, other) {
        (Some(own), Some(other)) => own.join(other),
        (own @ None, Some(other)) => *own = Some(other.clone()),
        (_, None) => {}
    }
}
