//! Handles a block in which no thread is runnable and at least one is blocked.

use crate::control_flow::{leads_to, start_of_straight_line};
use crate::convergence::{ConvergenceGroup, PendingBarrier, Readiness};
use crate::fault::{FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;

impl Machine<'_> {
    /// Lets threads continue if they are waiting only for threads that have ended. If all threads are waiting for other
    /// threads, that is a fault.
    pub(crate) fn go_on_without_ended(&mut self) -> Result<(), Stop> {
        for at in 0..self.block.groups.len() {
            let ConvergenceGroup { pc, mut mask, .. } = self.block.groups[at];
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
        let ended = self.block.ended().count() as u32;
        let waits_for_ended =
            |barrier: &PendingBarrier| barrier.for_all && barrier.arrived + ended >= barrier.expected;
        if let Some(at) = self.block.barriers.iter().position(waits_for_ended) {
            let barrier = &self.block.barriers[at];
            if !barrier.waiting.iter().any(|&(pc, _)| self.was_left_out(pc)) {
                let mut barrier = self.block.barriers.swap_remove(at);
                barrier.from = barrier.from.or(&self.block.ended());
                return self.release(&barrier, None);
            }
        }
        Err(self.stuck())
    }

    /// Returns a fault for threads that are waiting for threads that will never arrive.
    fn stuck(&mut self) -> Stop {
        if let Some(&ConvergenceGroup { pc, mask, .. }) = self.block.groups.first() {
            self.pc = pc;
            let thread = mask.first().unwrap_or(0);
            let present = mask.warp(thread / 32);
            let members = self.members_at(pc, thread);
            return self.fault(FaultKind::DivergentWarp { members, present }, thread);
        }
        let barriers = &self.block.barriers;
        let barrier = barriers.iter().find(|barrier| !barrier.waiting.is_empty()).unwrap_or(&barriers[0]);
        let (pc, mask) = barrier.waiting.first().copied().unwrap_or((self.pc, Mask::NONE));
        let kind = FaultKind::DivergentBarrier {
            waiting: barrier.arrived,
            expected: barrier.expected,
            ended: self.block.ended().count() as u32,
        };
        self.pc = pc;
        self.fault(kind, mask.first().unwrap_or(0))
    }

    /// Returns whether threads that have ended skipped a conditional barrier and executed what follows it. A barrier
    /// does not wait for threads that simply returned: <https://docs.nvidia.com/cuda/parallel-thread-execution>,
    /// `exit`.
    fn was_left_out(&self, barrier: usize) -> bool {
        let code = self.kernel.code();
        self.block.exits.iter().any(|&(exit, _)| {
            let start = start_of_straight_line(code, exit);
            start < exit && ((start..exit).contains(&barrier) || leads_to(code, barrier, start))
        })
    }
}
