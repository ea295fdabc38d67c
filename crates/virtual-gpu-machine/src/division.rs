//! Divides the blocks of a launch among several threads.
//!
//! Even a kernel with mistakes must have the same values, reports, and times on every run: those of its blocks in
//! order. So each thread runs consecutive blocks, and keeps their writes apart from device memory. If no thread's
//! blocks accessed bytes that another thread's blocks wrote, the result is that of all blocks in order, and the writes
//! are copied to device memory. Otherwise, the machine forgets everything, and runs the blocks in order. It does the
//! same if a block failed or waited, if the launch has executed too many instructions, or if a write could not be kept.
//!
//! Atomics in device memory are postponed, and executed in the order of the blocks.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::block::{State, give_back, take_state};
use crate::fault::Access;
use crate::launch::{Execution, Launch};
use crate::machine::Machine;
use crate::memory::touched::Accessed;
use crate::memory::view::{MOST_UPDATES, View};
use crate::progress::Pause;
use virtual_gpu_core::memory::DeviceMemory;
use virtual_gpu_core::team::run_together;
use virtual_gpu_core::thread::cores;
use virtual_gpu_ptx::Kernel;
use virtual_gpu_ptx::instruction::{Operation, Space};

/// The number of parts into which each thread's blocks are divided. A thread that has finished its own parts takes
/// parts of other threads, whose cores may be busy with other work.
const PARTS_PER_THREAD: u64 = 16;

/// The number of instructions, across all threads of the launch, from which other cores are worth their start: one or
/// two milliseconds on one core.
const WORTH_DIVIDING: u64 = 2 << 20;

/// The number of instructions for each atomic in device memory from which other cores are worth their start, because
/// one thread executes all postponed atomics.
const INSTRUCTIONS_PER_UPDATE: u64 = 64;

/// The number of threads of this process that run kernels.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Whether several threads run the blocks of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    /// The most threads that run blocks at the same time, including the calling one.
    pub threads: usize,
    /// The fewest instructions in the remaining blocks, across all their threads, for which they are divided. The
    /// blocks that have ended show how many there will be.
    pub from: u64,
}

impl Division {
    /// All blocks run on the calling thread.
    pub const NONE: Self = Self { threads: 1, from: u64::MAX };

    /// The blocks may run on all cores on which no other kernel of this process is running.
    pub fn among_idle_cores() -> Self {
        let idle = cores().saturating_sub(RUNNING.load(Ordering::Relaxed));
        Self { threads: idle.max(1), from: WORTH_DIVIDING }
    }
}

/// Counts threads in [`RUNNING`] for as long as it exists.
pub(crate) struct Running(usize);

impl Running {
    pub(crate) fn new(threads: usize) -> Self {
        RUNNING.fetch_add(threads, Ordering::Relaxed);
        Self(threads)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Consecutive blocks that one thread has run, in order.
struct Done {
    blocks: Range<u64>,
    /// What they did, part by part.
    executions: Vec<Execution>,
    accessed: Vec<Accessed>,
    /// What they have written is in here, not in device memory.
    state: State,
}

impl Done {
    /// Creates a value for blocks that begin with number `first`.
    fn nothing(first: u64) -> Self {
        Self { blocks: first..first, executions: Vec::new(), accessed: Vec::new(), state: take_state() }
    }
}

impl Machine<'_> {
    /// Returns whether the blocks after the first `started` ones may be divided, and are worth it. The first `started`
    /// blocks have ended.
    pub(crate) fn is_worth_dividing(&self, started: u64, all: u64) -> bool {
        let Division { threads, from } = self.launch.division;
        let per_block = self.instructions / started.max(1);
        let atomics = self.atomics.saturating_mul(all - started) / started.max(1);
        threads > 1
            && all - started > 1
            && per_block.saturating_mul(all - started) >= from
            && atomics <= MOST_UPDATES as u64
            && self.atomics * INSTRUCTIONS_PER_UPDATE <= self.instructions
            && self.together.is_none()
            && self.launch.cluster == [1; 3]
            && self.kernel.code().iter().all(|instruction| is_independent(&instruction.operation))
    }

    /// Runs blocks on several threads. Returns false if they must run in order instead; then nothing has changed.
    pub(crate) fn run_divided(&mut self, blocks: Range<u64>) -> bool {
        let threads = self.launch.division.threads.min((blocks.end - blocks.start) as usize);
        let (have_ended, mut done) = run_parts(self.kernel, self.launch, &self.memory, blocks, threads);
        let is_valid = have_ended && self.is_as_in_order(&done);
        done.sort_unstable_by_key(|done| done.blocks.start);
        for Done { executions, mut state, accessed, .. } in done {
            if is_valid && let Some(memory) = self.memory.whole() {
                state.writes.apply(&accessed, memory);
                accessed.into_iter().for_each(|accessed| self.record.add(accessed));
                executions.into_iter().for_each(|execution| self.add(execution));
                self.is_divided = true;
            }
            state.writes.clear();
            give_back(state);
        }
        is_valid
    }

    /// Returns whether running the blocks in order would have had the same result.
    fn is_as_in_order(&self, done: &[Done]) -> bool {
        let executions = done.iter().flat_map(|done| &done.executions);
        let instructions: u64 = executions.map(|execution| execution.instructions).sum();
        self.instructions + instructions <= self.launch.instruction_limit
            && done.iter().all(|done| done.state.writes.is_complete())
            && !depend_on_each_other(done)
    }

    /// Adds what later blocks did.
    fn add(&mut self, later: Execution) {
        self.instructions += later.instructions;
        self.bytes_read += later.bytes_read;
        self.bytes_written += later.bytes_written;
        self.bytes_of_blocks += later.bytes_of_blocks;
        self.shared_bytes += later.shared_bytes;
        self.longest_thread = self.longest_thread.max(later.longest_thread);
        self.unwritten = self.unwritten.take().or(later.unwritten);
        self.unnoticed = self.unnoticed.take().or(later.unnoticed);
        self.race = self.race.take().or(later.race);
    }
}

/// The blocks that have not been started. Each thread has consecutive ones, so that what it writes is often
/// consecutive, too.
struct Unstarted {
    of_threads: Vec<Mutex<Range<u64>>>,
    /// The number of blocks in a part.
    part: u64,
}

impl Unstarted {
    fn new(blocks: Range<u64>, threads: usize) -> Self {
        let count = blocks.end - blocks.start;
        let bound =
            |thread: usize| blocks.start + (u128::from(count) * thread as u128 / threads as u128) as u64;
        let of_threads = (0..threads).map(|thread| Mutex::new(bound(thread)..bound(thread + 1))).collect();
        Self { of_threads, part: count.div_ceil(threads as u64 * PARTS_PER_THREAD) }
    }

    /// Returns the next part of this thread's blocks, or else of a thread that still has unstarted blocks.
    fn next(&self, thread: usize) -> Option<Range<u64>> {
        let threads = self.of_threads.len();
        let mut order = (0..threads).map(|at| &self.of_threads[(thread + at) % threads]);
        order.find_map(|blocks| {
            let mut blocks = blocks.lock().unwrap_or_else(PoisonError::into_inner);
            let next = blocks.start..blocks.end.min(blocks.start + self.part);
            blocks.start = next.end;
            (!next.is_empty()).then_some(next)
        })
    }
}

/// Runs blocks on several threads. Returns false if a block failed or waited.
fn run_parts(
    kernel: &Kernel,
    launch: &Launch<'_>,
    memory: &DeviceMemory,
    blocks: Range<u64>,
    threads: usize,
) -> (bool, Vec<Done>) {
    let _running = Running::new(threads - 1);
    let (unstarted, must_stop) = (Unstarted::new(blocks, threads), AtomicBool::new(false));
    let work = |thread: usize| {
        let mut all: Vec<Done> = Vec::new();
        while !must_stop.load(Ordering::Relaxed)
            && let Some(blocks) = unstarted.next(thread)
        {
            let mut done = match all.pop_if(|done| done.blocks.end == blocks.start) {
                Some(done) => done,
                None => Done::nothing(blocks.start),
            };
            done.blocks.end = blocks.end;
            match run_part(kernel, launch, memory, blocks, &mut done.state) {
                Some(execution) => done.executions.push(execution),
                None => must_stop.store(true, Ordering::Relaxed),
            }
            all.push(done);
        }
        all.iter_mut().for_each(|done| done.accessed = done.state.record.drain());
        all
    };
    let (begun, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    run_together(threads - 1, &|| {
        let of_thread = work(begun.fetch_add(1, Ordering::Relaxed));
        done.lock().unwrap_or_else(PoisonError::into_inner).extend(of_thread);
    });
    (!must_stop.into_inner(), done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs some blocks. Returns `None` if one failed or waited.
fn run_part(
    kernel: &Kernel,
    launch: &Launch<'_>,
    memory: &DeviceMemory,
    blocks: Range<u64>,
    State { block, record, writes }: &mut State,
) -> Option<Execution> {
    let mut machine = Machine::new(kernel, launch, View::Apart(memory, writes), (block, record));
    machine.prepare();
    for block in blocks {
        machine.start_cluster(block);
        if !matches!(machine.run_cluster(), Ok(Pause::Ended)) {
            return None;
        }
    }
    Some(machine.finish())
}

/// Returns whether some blocks accessed bytes that other blocks wrote, or bytes that any block changed by an atomic and
/// accessed in another way, too.
fn depend_on_each_other(done: &[Done]) -> bool {
    // Atomics depend on nothing but other accesses, even by the same blocks.
    let atomics = done.len();
    let all = || {
        done.iter().enumerate().flat_map(move |(at, done)| {
            let accessed = done.accessed.iter();
            accessed.map(move |it| (if it.access == Access::Atomic { atomics } else { at }, it))
        })
    };
    let mut written: Vec<(usize, u64, u64, usize)> = Vec::new();
    for (own, Accessed { slot, access, ranges }) in all() {
        if *access != Access::Read {
            written.extend(ranges.iter().map(|range| (*slot, range.start, range.end, own)));
        }
    }
    written.sort_unstable();
    let mut merged: Vec<(usize, u64, u64, usize)> = Vec::new();
    for (slot, start, end, own) in written {
        match merged.last_mut() {
            Some(last) if last.0 == slot && start < last.2 => {
                if last.3 != own {
                    return true;
                }
                last.2 = last.2.max(end);
            }
            _ => merged.push((slot, start, end, own)),
        }
    }
    all().filter(|(_, of)| of.access == Access::Read).any(|(own, of)| {
        let mut at = 0;
        of.ranges.iter().any(|read| {
            at += merged[at..].partition_point(|&(slot, _, end, _)| (slot, end) <= (of.slot, read.start));
            let mut overlapping = merged[at..].iter().take_while(|it| (it.0, it.1) < (of.slot, read.end));
            overlapping.any(|it| it.3 != own)
        })
    })
}

/// Returns whether the operation's effect is the same in every order of the blocks, if no block accesses bytes that
/// another block writes.
fn is_independent(operation: &Operation) -> bool {
    match operation {
        // Atomics in device memory can be postponed if nothing reads what they return.
        Operation::Atomic(atomic) => atomic.space == Space::Shared || atomic.destination.is_none(),
        // These use nothing but registers, memory that can be accessed apart, and what belongs to the block.
        Operation::Nothing
        | Operation::Fence(_)
        | Operation::Word { .. }
        | Operation::Half { .. }
        | Operation::Long { .. }
        | Operation::LongWord { .. }
        | Operation::Widen { .. }
        | Operation::Narrow { .. }
        | Operation::InsertWord { .. }
        | Operation::InsertLong { .. }
        | Operation::Float32 { .. }
        | Operation::Float64 { .. }
        | Operation::Float16 { .. }
        | Operation::Convert { .. }
        | Operation::Carry(_)
        | Operation::Compare { .. }
        | Operation::TestNumber { .. }
        | Operation::SelectWord { .. }
        | Operation::SelectLong { .. }
        | Operation::Logic { .. }
        | Operation::SetPredicate { .. }
        | Operation::ReadClock { .. }
        | Operation::Load(_)
        | Operation::Store(_)
        | Operation::CopyToShared { .. }
        | Operation::CommitCopies
        | Operation::WaitForCopies { .. }
        | Operation::IsSpace { .. }
        | Operation::Branch { .. }
        | Operation::Call(_)
        | Operation::Return
        | Operation::Exit
        | Operation::Trap
        | Operation::Barrier(_)
        | Operation::WarpBarrier { .. }
        | Operation::Shuffle { .. }
        | Operation::Vote { .. }
        | Operation::Match { .. }
        | Operation::Redux { .. }
        | Operation::LoadMatrices(_)
        | Operation::StoreMatrices(_)
        | Operation::TransposeMatrix { .. }
        | Operation::Elect { .. }
        | Operation::MultiplyMatrices(_)
        | Operation::LoadFragment(_)
        | Operation::StoreFragment(_)
        | Operation::MultiplyFragments(_)
        | Operation::ActiveMask { .. }
        | Operation::Sleep { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Ranges<'a> = &'a [(u64, u64)];

    fn done(accessed: &[(usize, Access, Ranges<'_>)]) -> Done {
        let of = |&(slot, access, ranges): &(_, _, Ranges<'_>)| {
            let ranges = ranges.iter().map(|&(start, end)| start..end).collect();
            Accessed { slot, access, ranges }
        };
        Done { accessed: accessed.iter().map(of).collect(), ..Done::nothing(0) }
    }

    #[test]
    fn blocks_depend_on_each_other_if_some_write_what_others_access() {
        use Access::{Read, Write};
        let one = || {
            done(&[
                (0, Read, &[(0, 64)]),
                (1, Read, &[(0, 8), (32, 40)]),
                (1, Write, &[(0, 4), (8, 12), (40, 44)]),
            ])
        };
        let depends = |access: &[(usize, Access, Ranges<'_>)]| depend_on_each_other(&[one(), done(access)]);
        assert!(!depends(&[]));
        assert!(!depends(&[(0, Read, &[(0, 64)]), (2, Write, &[(0, 64)])]));
        assert!(!depends(&[(1, Read, &[(4, 8), (12, 40), (44, 100)]), (1, Write, &[(12, 16), (44, 64)])]));
        for at in [0, 3, 8, 11, 40, 43] {
            assert!(
                depends(&[(1, Write, &[(at, at + 1)])]) && depends(&[(1, Read, &[(at, at + 1)])]),
                "byte {at}"
            );
        }
        assert!(depends(&[(1, Write, &[(16, 100)])]) && depends(&[(1, Read, &[(16, 100)])]));
        assert!(depends(&[(1, Write, &[(30, 33)])]) && depends(&[(0, Write, &[(63, 64)])]));
        assert!(!depends(&[(1, Write, &[(24, 32), (44, 48)])]) && !depends(&[(0, Write, &[(64, 65)])]));
    }

    #[test]
    fn blocks_depend_on_each_other_if_some_read_or_write_what_atomics_change() {
        use Access::{Atomic, Read, Write};
        let one = || done(&[(0, Atomic, &[(0, 64), (80, 84)]), (1, Write, &[(0, 4)])]);
        let depends = |access: &[(usize, Access, Ranges<'_>)]| depend_on_each_other(&[one(), done(access)]);
        assert!(!depends(&[(0, Atomic, &[(8, 12), (60, 90)])]));
        assert!(!depends(&[(0, Atomic, &[(8, 12)]), (0, Read, &[(64, 80)]), (0, Write, &[(84, 90)])]));
        for at in [0, 20, 63, 80, 83] {
            let byte = &[(at, at + 1)][..];
            assert!(depends(&[(0, Read, byte)]) && depends(&[(0, Write, byte)]), "byte {at}");
            assert!(depends(&[(0, Atomic, &[(8, 12)]), (0, Read, byte)]), "byte {at}");
        }
        // Also by the same blocks.
        assert!(depends(&[(2, Atomic, &[(0, 4)]), (2, Read, &[(0, 4)])]));
        assert!(depends(&[(1, Atomic, &[(0, 4)])]));
    }

    #[test]
    fn every_block_runs_once() {
        for (blocks, threads) in [(1..2, 1), (1..3, 2), (1..101, 3), (7..8 + 4096, 16)] {
            let unstarted = Unstarted::new(blocks.clone(), threads);
            let mut all: Vec<u64> = std::iter::from_fn(|| unstarted.next(threads - 1)).flatten().collect();
            all.sort_unstable();
            assert_eq!(all, blocks.collect::<Vec<_>>());
        }
    }
}
