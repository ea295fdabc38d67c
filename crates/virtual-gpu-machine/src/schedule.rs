//! Which lanes run next: those at the lowest instruction, until they have kept the others waiting for too long. A round
//! is over when all that could run have had their turn.

use super::block::{Machine, Stop};
use super::fault::FaultKind;
use super::file::Mask;
use super::resident::Pause;
use virtual_gpu_ptx::instruction::{
    Barrier, Condition, Instruction, Operation, Reduction, ReductionTarget, Slot,
};

/// Backward branches that a group may take in one turn, if it did something that could be waiting for them:
/// an atomic, a volatile load, a sleep.
const PATIENCE_WITH_SPINNING: u32 = 16;

/// The same for a group that only computes: a loop whose other lanes are done.
const PATIENCE: u32 = 1 << 16;

/// The same where there are no others: so often it is looked whether it gets anywhere.
const PATIENCE_ALONE: u32 = 1 << 12;

/// Lanes at the same instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Group {
    pub(super) pc: usize,
    pub(super) mask: Mask,
    pub(super) state: Readiness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// Kept others waiting; runs again when they have had their turn.
    Yielded,
    /// Waits for other lanes of its warp.
    Waiting,
}

/// A barrier that some threads have reached.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gate {
    id: u32,
    arrived: u32,
    expected: u32,
    /// Whether it is for all threads of the block. It then waits for none that has ended.
    for_all: bool,
    /// Threads for which the predicate of `bar.red` held.
    yes: u32,
    /// All that have arrived.
    from: Mask,
    /// The barrier's instruction and the threads that wait there.
    waiting: Vec<(usize, Mask)>,
}

/// What the running group does after an instruction.
pub(super) enum Next {
    /// The following instruction.
    Follow,
    /// All lanes of the group go there.
    Jump(usize),
    /// The lanes of the mask go there, the others follow.
    Split(usize, Mask),
    /// The lanes of the mask leave the group.
    Leave(Mask),
    /// The following instruction, where others may have come to.
    Regroup,
    /// The same instruction again, together with those that wait there.
    Join,
}

impl Machine<'_> {
    /// Puts all threads of the block at the kernel's start.
    pub(super) fn gather(&mut self) {
        let mask = Mask::first_lanes(self.lanes);
        if !mask.is_empty() {
            self.block.groups.push(Group { pc: 0, mask, state: Readiness::Ready });
        }
    }

    /// Runs the block to its end, or until others should have their turn.
    pub(super) fn run_block(&mut self) -> Result<Pause, Stop> {
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

    /// Takes the lanes to run next out of the list.
    fn next_group(&mut self) -> Result<Result<Group, Pause>, Stop> {
        loop {
            if let Some(pc) = self.lowest_ready() {
                let mask = self.take_groups_at(pc, Mask::NONE);
                return Ok(Ok(Group { pc, mask, state: Readiness::Ready }));
            }
            let yielded = self.block.groups.iter_mut().filter(|group| group.state == Readiness::Yielded);
            if yielded.map(|group| group.state = Readiness::Ready).count() > 0 {
                match self.end_round()? {
                    None => continue,
                    Some(pause) => return Ok(Err(pause)),
                }
            }
            if self.block.groups.is_empty() && self.block.gates.iter().all(|gate| gate.waiting.is_empty()) {
                return Ok(Err(Pause::Ended));
            }
            self.go_on_without_ended()?;
        }
    }

    fn lowest_ready(&self) -> Option<usize> {
        let ready = self.block.groups.iter().filter(|group| group.state == Readiness::Ready);
        ready.map(|group| group.pc).min()
    }

    /// Removes every group at `pc` and returns its lanes and those of `mask`.
    fn take_groups_at(&mut self, pc: usize, mut mask: Mask) -> Mask {
        self.block.groups.retain(|group| {
            if group.pc == pc {
                mask = mask.or(&group.mask);
            }
            group.pc != pc
        });
        mask
    }

    /// Nobody can run, and somebody waits. Who only waits for threads that have ended goes on; if all wait for others, that is a
    /// fault.
    fn go_on_without_ended(&mut self) -> Result<(), Stop> {
        for at in 0..self.block.groups.len() {
            let Group { pc, mut mask, .. } = self.block.groups[at];
            let Some(members) = self.kernel.code()[pc].operation.members() else { continue };
            mask = self
                .block
                .groups
                .iter()
                .filter(|group| group.pc == pc)
                .fold(mask, |all, group| all.or(&group.mask));
            if self.incomplete_warps(&mask, members) != mask {
                let here = self.block.groups.iter_mut().filter(|group| group.pc == pc);
                here.for_each(|group| group.state = Readiness::Ready);
                return Ok(());
            }
        }
        let ended = self.ended().count() as u32;
        let held_up = |gate: &Gate| gate.for_all && gate.arrived + ended >= gate.expected;
        if let Some(at) = self.block.gates.iter().position(held_up) {
            let gate = &self.block.gates[at];
            if !gate.waiting.iter().any(|&(pc, _)| self.was_left_out(pc)) {
                let mut gate = self.block.gates.swap_remove(at);
                gate.from = gate.from.or(&self.ended());
                return self.open(&gate, None);
            }
        }
        Err(self.stuck())
    }

    /// The fault of those that wait for others that never come.
    fn stuck(&mut self) -> Stop {
        if let Some(&Group { pc, mask, .. }) = self.block.groups.first() {
            self.pc = pc;
            let lane = mask.first().unwrap_or(0);
            let present = mask.warp(lane / 32);
            let members = self.members_at(pc, lane);
            return self.fault(FaultKind::DivergentWarp { members, present }, lane);
        }
        let gates = &self.block.gates;
        let gate = gates.iter().find(|gate| !gate.waiting.is_empty()).unwrap_or(&gates[0]);
        let (pc, mask) = gate.waiting.first().copied().unwrap_or((self.pc, Mask::NONE));
        let kind = FaultKind::DivergentBarrier {
            waiting: gate.arrived,
            expected: gate.expected,
            ended: self.ended().count() as u32,
        };
        self.pc = pc;
        self.fault(kind, mask.first().unwrap_or(0))
    }

    /// Lanes that have ended.
    pub(super) fn ended(&self) -> Mask {
        self.block.exits.iter().fold(Mask::NONE, |all, (_, mask)| all.or(mask))
    }

    /// Whether threads that have ended passed a barrier by, and did what comes behind it: it stands in a condition. Those that
    /// only returned did not, and a barrier does not wait for them: <https://docs.nvidia.com/cuda/parallel-thread-execution>,
    /// `exit`.
    fn was_left_out(&self, barrier: usize) -> bool {
        let code = self.kernel.code();
        self.block.exits.iter().any(|&(exit, _)| {
            let start = start_of_straight_line(code, exit);
            start < exit && ((start..exit).contains(&barrier) || leads_to(code, barrier, start))
        })
    }

    /// Runs a group until it ends, waits, or others are further behind.
    fn run_group(&mut self, mut group: Group) -> Result<(), Stop> {
        let kernel = self.kernel;
        let code = kernel.code();
        let mut limit = self.lowest_ready().unwrap_or(usize::MAX);
        let mut active = group.mask.count();
        let mut turns = 0;
        let mut communicates = false;
        loop {
            if group.pc >= limit {
                self.leave(group, Readiness::Ready);
                return Ok(());
            }
            self.pc = group.pc;
            self.pending += 1;
            let instruction = &code[group.pc];
            let guarded;
            let mask = match instruction.guard {
                None => &group.mask,
                Some(condition) => {
                    guarded = self.block.files.where_true(condition, &group.mask);
                    &guarded
                }
            };
            communicates |= instruction.operation.communicates();
            let next = self.execute(&instruction.operation, &group, mask)?;
            match next {
                Next::Follow => group.pc += 1,
                Next::Jump(target) => {
                    if target <= group.pc {
                        turns += 1;
                        self.check_limit(active, &group.mask)?;
                        if turns > self.patience(communicates) {
                            group.pc = target;
                            self.leave(group, Readiness::Yielded);
                            return Ok(());
                        }
                    }
                    group.pc = target;
                }
                Next::Split(target, taken) => {
                    self.settle(&group.mask);
                    self.check_limit(0, &group.mask)?;
                    let stays = group.mask.without(&taken);
                    let (low, high) = match target <= group.pc {
                        true => ((target, taken), (group.pc + 1, stays)),
                        false => ((group.pc + 1, stays), (target, taken)),
                    };
                    self.block.groups.push(Group { pc: high.0, mask: high.1, state: Readiness::Ready });
                    turns += u32::from(target <= group.pc);
                    (group.pc, group.mask) = low;
                    if turns > self.patience(communicates) {
                        self.leave(group, Readiness::Yielded);
                        return Ok(());
                    }
                    limit = limit.min(high.0);
                    active = group.mask.count();
                }
                Next::Join => {
                    self.settle(&group.mask);
                    group.mask = self.take_groups_at(group.pc, group.mask);
                    active = group.mask.count();
                }
                Next::Regroup => {
                    group.pc += 1;
                    limit = self.lowest_ready().unwrap_or(usize::MAX);
                }
                Next::Leave(gone) => {
                    self.settle(&group.mask);
                    group.mask = group.mask.without(&gone);
                    group.pc += 1;
                    if group.mask.is_empty() {
                        return Ok(());
                    }
                    limit = self.lowest_ready().unwrap_or(usize::MAX);
                    active = group.mask.count();
                }
            }
        }
    }

    /// Backward branches that the running group may take in one turn.
    fn patience(&self, communicates: bool) -> u32 {
        match communicates {
            true => PATIENCE_WITH_SPINNING,
            false if self.block.groups.is_empty() => PATIENCE_ALONE,
            false => PATIENCE,
        }
    }

    /// Puts the running group back into the list.
    fn leave(&mut self, group: Group, state: Readiness) {
        self.settle(&group.mask);
        self.block.groups.push(Group { state, ..group });
    }

    /// Adds what the running group has executed to its lanes' clocks.
    pub(super) fn settle(&mut self, mask: &Mask) {
        let pending = std::mem::take(&mut self.pending);
        if pending == 0 {
            return;
        }
        for (clocks, &lanes) in self.block.clocks.chunks_exact_mut(super::file::WIDTH).zip(&mask.0) {
            for (lane, clock) in clocks.iter_mut().enumerate() {
                *clock += if lanes & 1 << lane != 0 { pending } else { 0 };
            }
        }
        self.instructions += pending * mask.count();
    }

    pub(super) fn check_limit(&self, active: u64, mask: &Mask) -> Result<(), Stop> {
        let lane = mask.first().unwrap_or(0);
        let (all, own) = (self.launch.instruction_limit, self.launch.thread_limit);
        if self.instructions + self.pending * active > all {
            return Err(self.fault(FaultKind::Endless { limit: all, of_thread: false }, lane));
        }
        if self.block.clocks[lane] + self.pending > own {
            return Err(self.fault(FaultKind::Endless { limit: own, of_thread: true }, lane));
        }
        Ok(())
    }

    /// Of a group, the lanes that have to wait for others of their warp. None waits for one that has ended.
    pub(super) fn incomplete_warps(&self, group: &Mask, members: Slot) -> Mask {
        let mut waits = Mask::NONE;
        let awaited = Mask::first_lanes(self.lanes).without(&self.ended());
        for warp in 0..self.block.files.chunks / 2 {
            let present = group.warp(warp);
            let awaited = awaited.warp(warp);
            let mut left = present;
            let mut incomplete = 0;
            while left != 0 {
                let together = self.lanes_with_same(members, warp, left);
                left &= !together;
                let lane = warp * 32 + together.trailing_zeros() as usize;
                let named = self.block.files.word_of(members, lane);
                if named & awaited & !present != 0 {
                    incomplete |= together;
                }
            }
            waits.set_warp(warp, incomplete);
        }
        waits
    }

    /// Of some lanes of a warp, those that have the first one's mask of members: a warp can do several exchanges at once,
    /// each among other lanes.
    pub(super) fn lanes_with_same(&self, members: Slot, warp: usize, lanes: u32) -> u32 {
        if members.is_uniform() {
            return lanes;
        }
        let mask_of = |lane: u32| self.block.files.word_of(members, warp * 32 + lane as usize);
        let first = mask_of(lanes.trailing_zeros());
        (0..32)
            .filter(|&lane| lanes & 1 << lane != 0 && mask_of(lane) == first)
            .fold(0, |all, lane| all | 1 << lane)
    }

    pub(super) fn somebody_waits_at(&self, pc: usize) -> bool {
        self.block.groups.iter().any(|other| other.pc == pc)
    }

    /// Sets lanes aside that wait for others of their warp.
    pub(super) fn set_waiting(&mut self, pc: usize, mask: Mask) {
        self.block.groups.push(Group { pc, mask, state: Readiness::Waiting });
    }

    fn members_at(&self, pc: usize, lane: usize) -> u32 {
        let members = self.kernel.code()[pc].operation.members();
        members.map_or(0, |slot| self.block.files.word_of(slot, lane))
    }

    /// `bar.sync` and its kin: the lanes of `mask` arrive.
    pub(super) fn barrier(&mut self, barrier: &Barrier, mask: &Mask) -> Result<Next, Stop> {
        let Some(lane) = mask.first() else { return Ok(Next::Follow) };
        let id = self.block.files.word_of(barrier.id, lane);
        if id > 15 {
            return Err(self.fault(FaultKind::NoSuchBarrier { id }, lane));
        }
        let expected = match barrier.threads {
            Some(threads) => self.block.files.word_of(threads, lane),
            None => self.lanes as u32,
        };
        let yes = barrier.reduction.map_or(0, |(_, condition, _)| self.count_true(condition, mask));
        let arriving = mask.count() as u32;
        if self.block.gates.is_empty() && arriving >= expected {
            self.answer(self.pc, mask, yes, arriving);
            self.note_barrier(mask, mask);
            return Ok(Next::Follow);
        }
        let at = match self.block.gates.iter().position(|gate| gate.id == id) {
            Some(at) => at,
            None => {
                self.block.gates.push(Gate {
                    id,
                    arrived: 0,
                    expected,
                    for_all: barrier.threads.is_none(),
                    yes: 0,
                    from: Mask::NONE,
                    waiting: Vec::new(),
                });
                self.block.gates.len() - 1
            }
        };
        let gate = &mut self.block.gates[at];
        gate.arrived += arriving;
        gate.yes += yes;
        gate.from = gate.from.or(mask);
        if !barrier.arrives_only {
            gate.waiting.push((self.pc, *mask));
        }
        if gate.arrived < gate.expected {
            return Ok(if barrier.arrives_only { Next::Follow } else { Next::Leave(*mask) });
        }
        let gate = self.block.gates.swap_remove(at);
        self.open(&gate, Some((self.pc, *mask)))?;
        Ok(Next::Regroup)
    }

    /// All have arrived: those that wait go on, but for the group that runs already.
    fn open(&mut self, gate: &Gate, running: Option<(usize, Mask)>) -> Result<(), Stop> {
        self.check_alignment_of(gate)?;
        let to = gate.waiting.iter().fold(Mask::NONE, |all, (_, mask)| all.or(mask));
        self.note_barrier(&gate.from, &to);
        for &(pc, waiting) in &gate.waiting {
            self.answer(pc, &waiting, gate.yes, gate.arrived);
            if running != Some((pc, waiting)) {
                self.block.groups.push(Group { pc: pc + 1, mask: waiting, state: Readiness::Ready });
            }
        }
        Ok(())
    }

    /// The threads of `to` have waited for those of `from`.
    fn note_barrier(&mut self, from: &Mask, to: &Mask) {
        if !self.block.shadow.is_on {
            return;
        }
        let all = Mask::first_lanes(self.lanes);
        match *from == all && *to == all {
            true => self.block.shadow.synchronise_all(),
            false => self.block.shadow.synchronise(*from, *to),
        }
    }

    fn count_true(&self, condition: Condition, mask: &Mask) -> u32 {
        self.block.files.where_true(condition, mask).count() as u32
    }

    /// All threads of a warp must have come to the same barrier instruction, where one of them asks for it (`.aligned`).
    fn check_alignment_of(&mut self, gate: &Gate) -> Result<(), Stop> {
        let code = self.kernel.code();
        let is_aligned =
            |pc: usize| matches!(&code[pc].operation, Operation::Barrier(barrier) if barrier.aligned);
        if !gate.waiting.iter().any(|&(pc, _)| is_aligned(pc)) {
            return Ok(());
        }
        for (at, (pc, mask)) in gate.waiting.iter().enumerate() {
            for (other_pc, other) in &gate.waiting[at + 1..] {
                let shared_warp = (0..self.block.files.chunks / 2)
                    .find(|&warp| mask.warp(warp) != 0 && other.warp(warp) != 0);
                if let (Some(warp), true) = (shared_warp, pc != other_pc) {
                    let lane = warp * 32 + mask.warp(warp).trailing_zeros() as usize;
                    let kind = FaultKind::DivergentBarrier {
                        waiting: mask.count() as u32,
                        expected: gate.expected,
                        ended: self.ended().count() as u32,
                    };
                    self.pc = *pc;
                    return Err(self.fault(kind, lane));
                }
            }
        }
        Ok(())
    }

    /// Hands the answer of `bar.red` to the lanes that asked at `pc`.
    fn answer(&mut self, pc: usize, mask: &Mask, yes: u32, all: u32) {
        let kernel = self.kernel;
        let Operation::Barrier(Barrier { reduction: Some((what, _, target)), .. }) =
            &kernel.code()[pc].operation
        else {
            return;
        };
        let truth = match what {
            Reduction::Count => yes != 0,
            Reduction::All => yes == all,
            Reduction::Any => yes != 0,
        };
        match *target {
            ReductionTarget::Word(slot) => {
                for lane in mask.lanes() {
                    self.block.files.set_word(slot, lane, yes);
                }
            }
            ReductionTarget::Predicate(predicate) => {
                for chunk in 0..self.block.files.chunks {
                    let bits = if truth { u16::MAX } else { 0 };
                    self.block.files.set_predicate(predicate, chunk, bits, mask.0[chunk]);
                }
            }
        }
    }
}

/// Where the instructions begin that are always executed before the one at `end`, with no branch in between.
fn start_of_straight_line(code: &[Instruction], end: usize) -> usize {
    let is_target = |at: usize| {
        code.iter().any(|one| matches!(one.operation, Operation::Branch { target } if target as usize == at))
    };
    let goes_elsewhere = |at: usize| {
        matches!(code[at].operation, Operation::Branch { .. } | Operation::Exit | Operation::Return)
    };
    let mut start = end;
    while start > 0 && !is_target(start) && !goes_elsewhere(start - 1) {
        start -= 1;
    }
    start
}

/// Whether a thread can come from one instruction to another. From a function that is called it can come anywhere.
fn leads_to(code: &[Instruction], from: usize, to: usize) -> bool {
    let mut seen = vec![false; code.len()];
    let mut left = vec![from];
    while let Some(at) = left.pop() {
        if at == to || matches!(code.get(at), Some(Instruction { operation: Operation::Return, .. })) {
            return true;
        }
        if at >= code.len() || std::mem::replace(&mut seen[at], true) {
            continue;
        }
        let Instruction { guard, operation, .. } = &code[at];
        if let Operation::Branch { target } = operation {
            left.push(*target as usize);
        }
        let ends = matches!(operation, Operation::Branch { .. } | Operation::Exit);
        if guard.is_some() || !ends {
            left.push(at + 1);
        }
    }
    false
}
