//! Barriers within a block.

use crate::convergence::{ConvergenceGroup, Next, PendingBarrier, Readiness};
use crate::fault::{FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use crate::order::Order;
use virtual_gpu_ptx::instruction::{Barrier, Operation, Reduction, ReductionTarget};

impl Machine<'_> {
    /// `bar` and `barrier`: the threads of `mask` arrive.
    pub(crate) fn barrier(&mut self, barrier: &Barrier, mask: &Mask) -> Result<Next, Stop> {
        let Some(thread) = mask.first() else { return Ok(Next::Follow) };
        let id = self.block.files.word_of(barrier.id, thread);
        if id > 15 {
            return Err(self.fault(FaultKind::NoSuchBarrier { id }, thread));
        }
        let expected = match barrier.threads {
            Some(threads) => self.block.files.word_of(threads, thread),
            None => self.threads as u32,
        };
        let yes = barrier
            .reduction
            .map_or(0, |(_, condition, _)| self.block.files.where_true(condition, mask).count() as u32);
        let arriving = mask.count() as u32;
        if self.block.barriers.is_empty() && arriving >= expected {
            self.answer(self.pc, mask, yes, arriving);
            self.note_barrier(mask, mask);
            return Ok(Next::Follow);
        }
        let at = self.pending_barrier(id, barrier, expected);
        let pending = &mut self.block.barriers[at];
        pending.arrived += arriving;
        pending.yes += yes;
        pending.from = pending.from.or(mask);
        if !barrier.arrives_only {
            pending.waiting.push((self.pc, *mask));
        }
        if pending.arrived < pending.expected {
            return Ok(if barrier.arrives_only { Next::Follow } else { Next::Leave(*mask) });
        }
        let complete = self.block.barriers.swap_remove(at);
        self.release(&complete, Some((self.pc, *mask)))?;
        Ok(Next::Regroup)
    }

    /// Returns the index of a barrier that some threads have already reached, or of a new one.
    fn pending_barrier(&mut self, id: u32, barrier: &Barrier, expected: u32) -> usize {
        let barriers = &mut self.block.barriers;
        if let Some(at) = barriers.iter().position(|pending| pending.id == id) {
            return at;
        }
        barriers.push(PendingBarrier {
            id,
            arrived: 0,
            expected,
            for_all: barrier.threads.is_none(),
            yes: 0,
            from: Mask::NONE,
            waiting: Vec::new(),
        });
        barriers.len() - 1
    }

    /// Releases a barrier that all threads have reached: the waiting threads become ready, except for the group that is
    /// running.
    pub(crate) fn release(
        &mut self,
        barrier: &PendingBarrier,
        running: Option<(usize, Mask)>,
    ) -> Result<(), Stop> {
        self.check_alignment_of(barrier)?;
        let to = barrier.waiting.iter().fold(Mask::NONE, |all, (_, mask)| all.or(mask));
        self.note_barrier(&barrier.from, &to);
        for &(pc, waiting) in &barrier.waiting {
            self.answer(pc, &waiting, barrier.yes, barrier.arrived);
            if running != Some((pc, waiting)) {
                let group = ConvergenceGroup { pc: pc + 1, mask: waiting, state: Readiness::Ready };
                self.block.groups.push(group);
            }
        }
        Ok(())
    }

    /// Records that the threads in `to` have waited for the threads in `from`.
    fn note_barrier(&mut self, from: &Mask, to: &Mask) {
        self.observe_barrier(from, to);
        self.order(Order::Barrier { from: *from, to: *to });
    }

    /// Checks that all threads of a warp have reached the same instruction if the barrier is `.aligned`.
    fn check_alignment_of(&mut self, barrier: &PendingBarrier) -> Result<(), Stop> {
        let code = self.kernel.code();
        let is_aligned =
            |pc: usize| matches!(&code[pc].operation, Operation::Barrier(barrier) if barrier.aligned);
        if !barrier.waiting.iter().any(|&(pc, _)| is_aligned(pc)) {
            return Ok(());
        }
        for (at, (pc, mask)) in barrier.waiting.iter().enumerate() {
            for (other_pc, other) in &barrier.waiting[at + 1..] {
                let shared_warp = (0..self.block.files.chunks / 2)
                    .find(|&warp| mask.warp(warp) != 0 && other.warp(warp) != 0);
                if let (Some(warp), true) = (shared_warp, pc != other_pc) {
                    let thread = warp * 32 + mask.warp(warp).trailing_zeros() as usize;
                    let kind = FaultKind::DivergentBarrier {
                        waiting: mask.count() as u32,
                        expected: barrier.expected,
                        ended: self.block.ended().count() as u32,
                    };
                    self.pc = *pc;
                    return Err(self.fault(kind, thread));
                }
            }
        }
        Ok(())
    }

    /// Stores the result of `bar.red` for the threads that arrived at `pc`.
    fn answer(&mut self, pc: usize, mask: &Mask, yes: u32, all: u32) {
        let kernel = self.kernel;
        let Operation::Barrier(Barrier { reduction: Some((what, _, target)), .. }) =
            &kernel.code()[pc].operation
        else {
            return;
        };
        let truth = match what {
            Reduction::Count | Reduction::Any => yes != 0,
            Reduction::All => yes == all,
        };
        match *target {
            ReductionTarget::Word(slot) => {
                for thread in mask.threads() {
                    self.block.files.set_word(slot, thread, yes);
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
