//! Which block runs next. A block runs to its end, unless its threads wait for something: then it is suspended, and
//! others run, as many together as the GPU would hold.
//!
//! That a block waits is decided, not guessed: if all its threads come to the same place again with the same values in
//! their registers, and nothing was written meanwhile, then they do the same for ever, until another block writes.

use std::collections::VecDeque;

use super::block::{Block, Machine, Stop};
use super::call::CallStack;
use super::fault::FaultKind;
use super::file::{Files, Mask};
use super::schedule::{Gate, Group};

/// Rounds after which a block that goes round in a loop is suspended, where others could run.
const SLICE: u64 = 256;

/// Why a block does not run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    Ended,
    /// Others shall have their turn.
    Suspended,
}

/// How a block was at the end of a round.
#[derive(Debug)]
struct Snapshot {
    /// [`Machine::changes`] then.
    changes: u64,
    /// [`Machine::looks`] then.
    looks: u64,
    files: Files,
    groups: Vec<Group>,
    gates: Vec<Gate>,
    stacks: Vec<CallStack>,
    exits: Vec<(usize, Mask)>,
}

impl Snapshot {
    fn of(block: &Block, changes: u64, looks: u64) -> Self {
        Self {
            changes,
            looks,
            files: block.files.clone(),
            groups: block.groups.clone(),
            gates: block.gates.clone(),
            stacks: block.stacks.clone(),
            exits: block.exits.clone(),
        }
    }

    fn is(&self, block: &Block, changes: u64) -> bool {
        self.changes == changes
            && self.groups == block.groups
            && self.gates == block.gates
            && self.exits == block.exits
            && self.stacks == block.stacks
            && self.files == block.files
    }
}

/// Whether a block gets anywhere.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Rounds since the block was started or resumed.
    rounds: u64,
    snapshot: Option<Snapshot>,
    /// The number of changes at which the block was found to repeat itself.
    repeats_at: Option<u64>,
}

impl Machine<'_> {
    /// Runs every block.
    pub(super) fn run_blocks(&mut self) -> Result<(), Stop> {
        let grid = self.launch.grid.map(u64::from);
        let all = grid.into_iter().product::<u64>();
        let room = usize::try_from(self.launch.resident.max(1)).unwrap_or(usize::MAX);
        let mut started = 0;
        let mut suspended: VecDeque<Block> = VecDeque::new();
        // Blocks that have ended, made ready for the next to start.
        let mut vacant: Vec<Block> = Vec::new();
        self.prepare();
        loop {
            if started < all && suspended.len() < room {
                let [x, y, z] = [started % grid[0], started / grid[0] % grid[1], started / grid[0] / grid[1]];
                self.start_block([x as u32, y as u32, z as u32]);
                self.gather();
                started += 1;
            } else if let Some(at) = suspended.iter().position(|block| !self.repeats(block)) {
                suspended.rotate_left(at);
                let Some(block) = suspended.pop_front() else { continue };
                vacant.push(std::mem::replace(self.block, block));
                self.block.watch = Watch::default();
                self.block.shadow.is_on &= self.race.is_none();
            } else if suspended.is_empty() {
                return Ok(());
            } else {
                return Err(self.all_wait(&mut suspended, all - started));
            }
            if self.run_block()? == Pause::Suspended {
                let next = vacant.pop();
                let is_ready = next.is_some();
                suspended.push_back(std::mem::replace(self.block, next.unwrap_or_default()));
                if !is_ready {
                    self.prepare();
                }
            }
        }
    }

    /// All that could run in the block has had its turn.
    pub(super) fn end_round(&mut self) -> Result<Option<Pause>, Stop> {
        let changes = self.changes;
        let watch = &mut self.block.watch;
        watch.rounds += 1;
        let rounds = watch.rounds;
        if let Some(snapshot) = self.block.watch.snapshot.take() {
            if snapshot.is(self.block, changes) {
                if snapshot.looks == self.looks {
                    // It does not even look whether something has changed.
                    return Err(self.waits_forever(1, 0));
                }
                self.block.watch.repeats_at = Some(changes);
                return Ok(Some(Pause::Suspended));
            }
            self.block.watch.snapshot = Some(snapshot);
        }
        if rounds.is_power_of_two() {
            self.block.watch.snapshot = Some(Snapshot::of(self.block, changes, self.looks));
        }
        if rounds < SLICE {
            return Ok(None);
        }
        self.block.watch.snapshot = None;
        Ok(Some(Pause::Suspended))
    }

    /// Whether a suspended block would do what it did before.
    fn repeats(&self, block: &Block) -> bool {
        block.watch.repeats_at == Some(self.changes)
    }

    /// Every resident block repeats itself: nothing can ever change.
    fn all_wait(&mut self, suspended: &mut VecDeque<Block>, unstarted: u64) -> Stop {
        let waiting = suspended.len() as u64;
        let order = |block: &Block| {
            let [x, y, z] = block.index;
            [z, y, x]
        };
        let first = (0..suspended.len()).min_by_key(|&at| order(&suspended[at])).unwrap_or(0);
        if let Some(block) = suspended.remove(first) {
            *self.block = block;
        }
        self.waits_forever(waiting, unstarted)
    }

    /// The fault of the running block's thread that is furthest behind.
    fn waits_forever(&mut self, waiting: u64, unstarted: u64) -> Stop {
        let group = self.block.groups.iter().min_by_key(|group| group.pc).copied();
        self.pc = group.map_or(0, |group| group.pc);
        let lane = group.and_then(|group| group.mask.first()).unwrap_or(0);
        self.fault(FaultKind::WaitsForever { waiting, unstarted }, lane)
    }
}
