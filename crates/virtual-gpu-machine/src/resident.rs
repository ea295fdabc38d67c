//! Chooses which block runs next. A block runs to its end unless its threads wait for something; then it is suspended,
//! and other blocks run. As many blocks are resident at the same time as on a real GPU.

use std::collections::VecDeque;

use crate::block::{Block, Progress};
use crate::fault::Stop;
use crate::launch::Execution;
use crate::machine::Machine;
use crate::progress;
use crate::together::Pause;

impl Machine<'_> {
    /// Runs every block and returns what the launch did.
    pub(crate) fn run(mut self) -> Result<Execution, Stop> {
        let outcome = self.run_blocks();
        self.drain_record();
        if let Err(mut fault) = outcome {
            fault.printed = self.printed;
            return Err(fault);
        }
        Ok(Execution {
            instructions: self.instructions,
            bytes_read: self.bytes_read,
            bytes_written: self.bytes_written,
            bytes_of_blocks: self.bytes_of_blocks,
            shared_bytes: self.shared_bytes,
            longest_thread: self.longest_thread,
            touched: self.touched,
            unwritten: self.unwritten,
            unnoticed: self.unnoticed,
            race: self.race,
            device_race: self.device_race,
            printed: self.printed,
        })
    }

    fn run_blocks(&mut self) -> Result<(), Stop> {
        let grid = self.launch.grid.map(u64::from);
        let all = grid.into_iter().product::<u64>();
        let room = usize::try_from(self.launch.resident.max(1)).unwrap_or(usize::MAX);
        let mut started = 0;
        let mut suspended: VecDeque<Block> = VecDeque::new();
        // Blocks that have ended, whose state is reused for the next blocks.
        let mut vacant: Vec<Block> = Vec::new();
        // How many suspended blocks have had a turn since other launches last had theirs.
        let mut turns = 0;
        self.prepare();
        loop {
            if self.together.is_some() && turns > suspended.len() {
                turns = 0;
                self.let_others_run(Pause::Slice);
            }
            if started < all && suspended.len() < room {
                let [x, y, z] = [started % grid[0], started / grid[0] % grid[1], started / grid[0] / grid[1]];
                self.start_block([x as u32, y as u32, z as u32]);
                started += 1;
            } else if let Some(at) = suspended.iter().position(|block| !self.repeats(block)) {
                turns += 1;
                suspended.rotate_left(at);
                let Some(block) = suspended.pop_front() else { continue };
                vacant.push(std::mem::replace(self.block, block));
                self.block.progress = Progress::default();
                self.block.shadow.is_on &= self.race.is_none();
            } else if suspended.is_empty() {
                return Ok(());
            } else if self.together.is_some() {
                turns = 0;
                let (waiting, unstarted) = (suspended.len() as u64, all - started);
                let at = first(&suspended);
                std::mem::swap(self.block, &mut suspended[at]);
                let stop = self.waits_forever(waiting, unstarted);
                std::mem::swap(self.block, &mut suspended[at]);
                if !self.let_others_run(Pause::Waits(Box::new(stop.at.clone()))) {
                    return Err(stop);
                }
                continue;
            } else {
                return Err(self.all_wait(&mut suspended, all - started));
            }
            let pause = self.run_block()?;
            self.bytes_of_blocks += self.record.end_block();
            if pause == progress::Pause::Ended {
                self.end_observing();
            } else {
                let next = vacant.pop();
                let is_ready = next.is_some();
                suspended.push_back(std::mem::replace(self.block, next.unwrap_or_default()));
                if !is_ready {
                    self.prepare();
                }
            }
        }
    }

    /// Returns whether a suspended block would only repeat what it did before.
    fn repeats(&self, block: &Block) -> bool {
        block.progress.repeats_at == Some(self.changes)
    }

    /// Returns the fault for a launch in which every resident block repeats itself, so that nothing can ever change.
    fn all_wait(&mut self, suspended: &mut VecDeque<Block>, unstarted: u64) -> Stop {
        let waiting = suspended.len() as u64;
        if let Some(block) = suspended.remove(first(suspended)) {
            *self.block = block;
        }
        self.waits_forever(waiting, unstarted)
    }
}

/// Returns which of the suspended blocks comes first in the grid.
fn first(suspended: &VecDeque<Block>) -> usize {
    let order = |block: &Block| {
        let [x, y, z] = block.index;
        [z, y, x]
    };
    (0..suspended.len()).min_by_key(|&at| order(&suspended[at])).unwrap_or(0)
}
