//! Which lanes of a warp execute an operation together, and which are still missing.

use crate::convergence::{ConvergenceGroup, Readiness};
use crate::machine::Machine;
use crate::mask::{Mask, lanes_of};
use virtual_gpu_ptx::instruction::Slot;

impl Machine<'_> {
    /// Returns the threads of a group that must wait for other lanes of their warp. No thread waits for a lane that has
    /// ended.
    pub(crate) fn incomplete_warps(&self, group: &Mask, members: Slot) -> Mask {
        let mut waits = Mask::NONE;
        let awaited = Mask::first_threads(self.threads).without(&self.block.ended());
        for warp in 0..self.block.files.chunks / 2 {
            let present = group.warp(warp);
            let awaited = awaited.warp(warp);
            let mut left = present;
            let mut incomplete = 0;
            while left != 0 {
                let together = self.lanes_with_same(members, warp, left);
                left &= !together;
                let first = warp * 32 + together.trailing_zeros() as usize;
                let named = self.block.files.word_of(members, first);
                if named & awaited & !present != 0 {
                    incomplete |= together;
                }
            }
            waits.set_warp(warp, incomplete);
        }
        waits
    }

    /// Returns the lanes that have the same member mask as the first lane. A warp can execute several operations at
    /// once, each with different lanes.
    pub(crate) fn lanes_with_same(&self, members: Slot, warp: usize, lanes: u32) -> u32 {
        if members.is_uniform() {
            return lanes;
        }
        let mask_of = |lane: usize| self.block.files.word_of(members, warp * 32 + lane);
        let first = mask_of(lanes.trailing_zeros() as usize);
        lanes_of(lanes).filter(|&lane| mask_of(lane) == first).fold(0, |all, lane| all | 1 << lane)
    }

    /// Returns whether any threads are waiting at an instruction or will run there.
    pub(crate) fn has_group_at(&self, pc: usize) -> bool {
        self.block.groups.iter().any(|other| other.pc == pc)
    }

    /// Sets aside threads that are waiting for other lanes of their warp.
    pub(crate) fn set_waiting(&mut self, pc: usize, mask: Mask) {
        self.block.groups.push(ConvergenceGroup { pc, mask, state: Readiness::Waiting });
    }

    /// Returns the member mask of the operation at `pc`.
    pub(crate) fn members_at(&self, pc: usize, thread: usize) -> u32 {
        let members = self.kernel.code()[pc].operation.members();
        members.map_or(0, |slot| self.block.files.word_of(slot, thread))
    }
}
