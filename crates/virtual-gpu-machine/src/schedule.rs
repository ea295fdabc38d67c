//! Chooses which threads run next: the group at the lowest instruction, until it has used up its turn. A round is over
//! when all groups that could run have had their turn.

use crate::convergence::{ConvergenceGroup, Next, Readiness};
use crate::fault::Stop;
use crate::machine::Machine;
use crate::mask::Mask;
use crate::progress::Pause;
use virtual_gpu_ptx::instruction::Instruction;

/// The maximum number of backward branches that a group may take in one turn if it has executed something that may be
/// waiting for another group: an atomic, a volatile load, or a sleep.
const BRANCHES_OF_SPINNING: u32 = 16;

/// The same for a group that only computes, such as in a loop that the other threads have finished.
const BRANCHES: u32 = 1 << 16;

/// The same if there are no other groups: after this many branches, the block's progress is checked.
const BRANCHES_ALONE: u32 = 1 << 12;

/// The running group.
struct Turn {
    group: ConvergenceGroup,
    /// The instruction at which another group is ready; the maximum if there is none.
    limit: usize,
    /// The number of threads in the group.
    active: u64,
    /// The number of backward branches so far.
    branches: u32,
    /// Whether the group has executed something that may be waiting for another group.
    communicates: bool,
    /// The number of failed tests of mbarrier objects in the block when the turn began.
    failed_tests: u64,
}

impl Machine<'_> {
    /// Runs the block to its end, or until it is time to run other blocks.
    pub(crate) fn run_block(&mut self) -> Result<Pause, Stop> {
        loop {
            match self.next_group()? {
                Ok(group) => self.run_group(group)?,
                Err(Pause::Ended) => break,
                Err(pause) => return Ok(pause),
            }
        }
        let longest = self.block.clocks.iter().max().copied().unwrap_or(0);
        self.longest_thread = self.longest_thread.max(longest);
        Ok(Pause::Ended)
    }

    /// Removes and returns the threads that run next.
    fn next_group(&mut self) -> Result<Result<ConvergenceGroup, Pause>, Stop> {
        loop {
            if let Some(pc) = self.block.lowest_ready() {
                let mask = self.block.take_groups_at(pc, Mask::NONE);
                return Ok(Ok(ConvergenceGroup { pc, mask, state: Readiness::Ready }));
            }
            let yielded = self.block.groups.iter_mut().filter(|group| group.state == Readiness::Yielded);
            if yielded.map(|group| group.state = Readiness::Ready).count() > 0 {
                match self.end_round()? {
                    None => continue,
                    Some(pause) => return Ok(Err(pause)),
                }
            }
            let barriers = &self.block.barriers;
            if self.block.groups.is_empty() && barriers.iter().all(|barrier| barrier.waiting.is_empty()) {
                return Ok(Err(Pause::Ended));
            }
            let waits_for_cluster = self.block.groups.iter().any(ConvergenceGroup::waits_for_cluster);
            match self.go_on_without_ended() {
                Err(_) if waits_for_cluster => {
                    self.block.progress.repeats_at = Some(self.changes);
                    return Ok(Err(Pause::Suspended));
                }
                outcome => outcome?,
            }
        }
    }

    /// Runs a group until it ends, waits, uses up its turn, or reaches another group.
    fn run_group(&mut self, group: ConvergenceGroup) -> Result<(), Stop> {
        let kernel = self.kernel;
        let code = kernel.code();
        let limit = self.block.lowest_ready().unwrap_or(usize::MAX);
        let mut turn = Turn {
            group,
            limit,
            active: group.mask.count(),
            branches: 0,
            communicates: false,
            failed_tests: self.block.mbarriers.failed_tests,
        };
        loop {
            if turn.group.pc >= turn.limit {
                self.suspend(&turn.group, Readiness::Ready);
                return Ok(());
            }
            let next = self.step(&code[turn.group.pc], &mut turn)?;
            let goes_on = match next {
                Next::Follow => {
                    turn.group.pc += 1;
                    continue;
                }
                Next::Jump(target) => self.jump(&mut turn, target)?,
                Next::Split(target, taken) => self.split(&mut turn, target, taken)?,
                Next::Join => {
                    self.settle(&turn.group.mask);
                    turn.group.mask = self.block.take_groups_at(turn.group.pc, turn.group.mask);
                    turn.active = turn.group.mask.count();
                    true
                }
                Next::Regroup => {
                    turn.group.pc += 1;
                    turn.limit = self.block.lowest_ready().unwrap_or(usize::MAX);
                    true
                }
                Next::Leave(gone) => self.leave(&mut turn, &gone),
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Executes one instruction for those of the group's threads for which its guard is true.
    #[inline(always)]
    fn step(&mut self, instruction: &Instruction, turn: &mut Turn) -> Result<Next, Stop> {
        self.pc = turn.group.pc;
        self.pending += 1;
        let guarded;
        self.is_whole = turn.active == self.threads as u64 && instruction.guard.is_none();
        let mask = match instruction.guard {
            None => &turn.group.mask,
            Some(condition) => {
                guarded = self.block.files.where_true(condition, &turn.group.mask);
                &guarded
            }
        };
        turn.communicates |= instruction.operation.communicates();
        self.execute(&instruction.operation, &turn.group, mask)
    }

    /// Makes all threads of the group branch to `target`. Returns whether the group keeps running.
    #[inline]
    fn jump(&mut self, turn: &mut Turn, target: usize) -> Result<bool, Stop> {
        let is_backward = target <= turn.group.pc;
        if is_backward {
            turn.branches += 1;
            self.check_limit(turn.active, &turn.group.mask)?;
        }
        turn.group.pc = target;
        Ok(!(is_backward && self.yields(turn)))
    }

    /// Makes the threads in `taken` branch to `target`, while the others continue with the following instruction. The
    /// part of the group that is behind keeps running, unless its turn is over; returns whether it does.
    fn split(&mut self, turn: &mut Turn, target: usize, taken: Mask) -> Result<bool, Stop> {
        let group = &mut turn.group;
        self.settle(&group.mask);
        self.check_limit(0, &group.mask)?;
        let stays = group.mask.without(&taken);
        let is_backward = target <= group.pc;
        let (low, high) = match is_backward {
            true => ((target, taken), (group.pc + 1, stays)),
            false => ((group.pc + 1, stays), (target, taken)),
        };
        self.block.groups.push(ConvergenceGroup { pc: high.0, mask: high.1, state: Readiness::Ready });
        turn.branches += u32::from(is_backward);
        (group.pc, group.mask) = low;
        if self.yields(turn) {
            return Ok(false);
        }
        turn.limit = turn.limit.min(high.0);
        turn.active = turn.group.mask.count();
        Ok(true)
    }

    /// Removes the threads in `gone` from the group. Returns whether any are left.
    fn leave(&mut self, turn: &mut Turn, gone: &Mask) -> bool {
        self.settle(&turn.group.mask);
        turn.group.mask = turn.group.mask.without(gone);
        turn.group.pc += 1;
        turn.limit = self.block.lowest_ready().unwrap_or(usize::MAX);
        turn.active = turn.group.mask.count();
        turn.active > 0
    }

    /// Suspends the group if it has used up its turn.
    fn yields(&mut self, turn: &Turn) -> bool {
        let most = match turn.communicates {
            true => BRANCHES_OF_SPINNING,
            false if self.block.groups.is_empty() => BRANCHES_ALONE,
            false => BRANCHES,
        };
        if turn.branches > most {
            self.block.mbarriers.note_turn(turn.failed_tests);
            self.suspend(&turn.group, Readiness::Yielded);
        }
        turn.branches > most
    }

    /// Puts the running group back into the list.
    fn suspend(&mut self, group: &ConvergenceGroup, state: Readiness) {
        self.settle(&group.mask);
        self.block.groups.push(ConvergenceGroup { state, ..*group });
    }
}
