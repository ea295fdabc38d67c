//! Chooses which block runs next. A block runs to its end unless its threads wait for something; then it is suspended,
//! and other blocks run. As many blocks are resident at the same time as on a real GPU.

use std::collections::VecDeque;

use crate::block::Progress;
use crate::cluster::Suspended;
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
        Ok(self.finish())
    }

    /// Returns what the blocks did.
    pub(crate) fn finish(self) -> Execution {
        Execution {
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
            is_divided: self.is_divided,
        }
    }

    fn run_blocks(&mut self) -> Result<(), Stop> {
        let all = self.cluster_grid().into_iter().product::<u64>();
        let blocks = self.cluster_blocks() as u64;
        let room = usize::try_from((self.launch.resident / blocks).max(1)).unwrap_or(usize::MAX);
        let mut started: u64 = 0;
        let mut may_divide = self.launch.division.threads > 1;
        let mut suspended: VecDeque<Suspended> = VecDeque::new();
        // Clusters that have ended, whose state is reused for the next ones.
        let mut vacant: Vec<Suspended> = Vec::new();
        // How many suspended clusters have had a turn since other launches last had theirs.
        let mut turns = 0;
        self.prepare();
        loop {
            if self.together.is_some() && turns > suspended.len() {
                turns = 0;
                self.let_others_run(Pause::Slice);
            }
            // The first blocks may have less to do than the others.
            if may_divide
                && started.is_power_of_two()
                && suspended.is_empty()
                && self.is_worth_dividing(started, all)
            {
                if self.run_divided(started..all) {
                    return Ok(());
                }
                may_divide = false;
            }
            if started < all && suspended.len() < room {
                self.start_cluster(started);
                started += 1;
            } else if let Some(at) = suspended.iter().position(|cluster| !cluster.repeats(self.changes)) {
                turns += 1;
                suspended.rotate_left(at);
                let Some(mut cluster) = suspended.pop_front() else { continue };
                self.swap_cluster(&mut cluster);
                vacant.push(cluster);
                self.block.progress = Progress::default();
                self.block.shadow.is_on &= self.race.is_none();
            } else if suspended.is_empty() {
                return Ok(());
            } else if self.together.is_some() {
                turns = 0;
                let stop = self.all_wait(&mut suspended, (all - started) * blocks);
                if !self.let_others_run(Pause::Waits(Box::new(stop.at.clone()))) {
                    return Err(stop);
                }
                continue;
            } else {
                return Err(self.all_wait(&mut suspended, (all - started) * blocks));
            }
            if self.run_cluster()? == progress::Pause::Suspended {
                let next = vacant.pop();
                let is_ready = next.is_some();
                let mut cluster = next.unwrap_or_default();
                self.swap_cluster(&mut cluster);
                suspended.push_back(cluster);
                if !is_ready {
                    self.prepare();
                }
            }
        }
    }

    /// Returns the fault for a launch in which every resident block repeats itself, so that nothing can ever change.
    fn all_wait(&mut self, suspended: &mut VecDeque<Suspended>, unstarted: u64) -> Stop {
        let waiting = suspended.iter().map(Suspended::waiting).sum();
        let Some(first) = suspended.iter_mut().min_by_key(|cluster| cluster.position()) else {
            return self.waits_forever(waiting, unstarted);
        };
        self.swap_cluster(first);
        let stop = self.waits_forever(waiting, unstarted);
        self.swap_cluster(first);
        stop
    }
}
