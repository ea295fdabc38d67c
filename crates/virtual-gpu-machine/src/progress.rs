//! Whether a block makes progress.
//!
//! The machine determines exactly whether a block is waiting; it does not guess. If all of the block's threads reach
//! the same instructions again with the same register values, and nothing was written in between, they will repeat this
//! until another block writes.

use crate::block::Snapshot;
use crate::fault::{FaultKind, Stop};
use crate::machine::Machine;

/// The number of rounds after which a looping block is suspended, so that other blocks can run.
const SLICE: u64 = 256;

/// Why a block stops running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    Ended,
    /// It is time to let other blocks run.
    Suspended,
}

impl Machine<'_> {
    /// Ends a round, in which every group of the block that could run has had its turn.
    pub(crate) fn end_round(&mut self) -> Result<Option<Pause>, Stop> {
        if let Some(stop) = self.only_tests() {
            return Err(stop);
        }
        let changes = self.changes;
        self.block.files.spread();
        let progress = &mut self.block.progress;
        progress.rounds += 1;
        let rounds = progress.rounds;
        if let Some(snapshot) = progress.snapshot.take() {
            if snapshot.is(self.block, changes) {
                if snapshot.looks == self.looks {
                    // The block does not even check whether something has changed.
                    return Err(self.repeats_forever(1, 0));
                }
                self.block.progress.repeats_at = Some(changes);
                return Ok(Some(Pause::Suspended));
            }
            self.block.progress.snapshot = Some(snapshot);
        }
        if rounds.is_power_of_two() {
            self.block.progress.snapshot = Some(Snapshot::of(self.block, changes, self.looks));
        }
        if rounds < SLICE {
            return Ok(None);
        }
        self.block.progress.snapshot = None;
        Ok(Some(Pause::Suspended))
    }

    /// Returns a fault for the running cluster, all blocks of which wait.
    pub(crate) fn waits_forever(&mut self, waiting: u64, unstarted: u64) -> Stop {
        self.switch_to_waiting();
        let stop = self.incomplete_phase().or_else(|| self.incomplete_cluster_barrier());
        stop.unwrap_or_else(|| self.repeats_forever(waiting, unstarted))
    }

    /// Returns a fault for the running block, located at the thread that is furthest behind.
    fn repeats_forever(&mut self, waiting: u64, unstarted: u64) -> Stop {
        if let Some(stop) = self.incomplete_phase() {
            return stop;
        }
        let group = self.block.groups.iter().min_by_key(|group| group.pc).copied();
        self.pc = group.map_or(0, |group| group.pc);
        let thread = group.and_then(|group| group.mask.first()).unwrap_or(0);
        self.fault(FaultKind::WaitsForever { waiting, unstarted }, thread)
    }
}
