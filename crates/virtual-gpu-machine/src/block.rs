//! The state of a block.

use std::sync::Mutex;

use crate::call_stack::CallStack;
use crate::consistency::Observer;
use crate::convergence::{ConvergenceGroup, PendingBarrier, Readiness};
use crate::mask::Mask;
use crate::mbarrier::Mbarriers;
use crate::memory::copies::Copies;
use crate::memory::touched::Record;
use crate::memory::view::Writes;
use crate::registers::Files;
use crate::shadow::Shadow;
use virtual_gpu_core::memory::Written;

/// A block's shared memory.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    pub(crate) bytes: Vec<u8>,
    pub(crate) written: Written,
}

/// The state of one block, reused from block to block and from launch to launch.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) files: Files,
    pub(crate) shared: SharedMemory,
    pub(crate) local: Vec<u8>,
    /// The number of instructions that each thread had executed when it last changed groups.
    pub(crate) clocks: Vec<u64>,
    pub(crate) groups: Vec<ConvergenceGroup>,
    pub(crate) barriers: Vec<PendingBarrier>,
    pub(crate) mbarriers: Mbarriers,
    /// `blockIdx`
    pub(crate) index: [u32; 3],
    /// Threads that have ended, with the program counter of the instruction that ended them.
    pub(crate) exits: Vec<(usize, Mask)>,
    pub(crate) progress: Progress,
    pub(crate) shadow: Shadow,
    pub(crate) copies: Copies,
    /// What its threads know, if launches on other GPUs access the same memory.
    pub(crate) observer: Observer,
    /// Each thread's stack, if the kernel has functions that may call themselves.
    pub(crate) stacks: Vec<CallStack>,
}

impl Block {
    /// Returns the threads that have ended.
    pub(crate) fn ended(&self) -> Mask {
        self.exits.iter().fold(Mask::NONE, |all, (_, mask)| all.or(mask))
    }

    /// Returns the lowest program counter of a group that is ready.
    pub(crate) fn lowest_ready(&self) -> Option<usize> {
        let ready = self.groups.iter().filter(|group| group.state == Readiness::Ready);
        ready.map(|group| group.pc).min()
    }

    /// Removes every group at `pc` and returns the groups' threads together with the threads in `mask`.
    pub(crate) fn take_groups_at(&mut self, pc: usize, mut mask: Mask) -> Mask {
        self.groups.retain(|group| {
            if group.pc == pc {
                mask = mask.or(&group.mask);
            }
            group.pc != pc
        });
        mask
    }
}

/// Whether a block makes progress.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The number of rounds since the block was started or resumed.
    pub(crate) rounds: u64,
    pub(crate) snapshot: Option<Snapshot>,
    /// The value of [`Machine::changes`](crate::machine::Machine::changes) when the block was found to be repeating
    /// itself.
    pub(crate) repeats_at: Option<u64>,
}

/// A block at the end of a round.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The value of [`Machine::changes`](crate::machine::Machine::changes) at that time.
    changes: u64,
    /// The value of [`Machine::looks`](crate::machine::Machine::looks) at that time.
    pub(crate) looks: u64,
    files: Files,
    groups: Vec<ConvergenceGroup>,
    barriers: Vec<PendingBarrier>,
    stacks: Vec<CallStack>,
    exits: Vec<(usize, Mask)>,
}

impl Snapshot {
    pub(crate) fn of(block: &Block, changes: u64, looks: u64) -> Self {
        Self {
            changes,
            looks,
            files: block.files.clone(),
            groups: block.groups.clone(),
            barriers: block.barriers.clone(),
            stacks: block.stacks.clone(),
            exits: block.exits.clone(),
        }
    }

    /// Returns whether the block is back in this state.
    pub(crate) fn is(&self, block: &Block, changes: u64) -> bool {
        self.changes == changes
            && self.groups == block.groups
            && self.barriers == block.barriers
            && self.exits == block.exits
            && self.stacks == block.stacks
            && self.files == block.files
    }
}

/// A block's state, the record of what the launch touches, and what it writes if that is kept apart.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) block: Block,
    pub(crate) record: Record,
    pub(crate) writes: Writes,
}

/// States that no launch is using. There are never more of them than launches that have run at the same time.
static IDLE: Mutex<Vec<State>> = Mutex::new(Vec::new());

pub(crate) fn take_state() -> State {
    let mut idle = IDLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    idle.pop().unwrap_or_default()
}

pub(crate) fn give_back(state: State) {
    IDLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(state);
}
