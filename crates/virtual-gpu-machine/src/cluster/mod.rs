//! Clusters: blocks that run at the same time and access each other's shared memory.
//!
//! The running block is in [`Machine::block`](crate::machine::Machine::block), and the others of its cluster are here. They
//! take turns. If a launch has no clusters, each block is alone in one.

mod barrier;
mod order;
mod visit;

use std::collections::VecDeque;

use crate::block::{Block, Progress};
use crate::consistency::Knowledge;
use crate::fault::{FaultKind, Stop};
use crate::machine::Machine;
use crate::order::Phase;
use crate::progress::Pause;
use barrier::Barrier;
use order::ClusterOrder;

/// The other blocks of the running block's cluster.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// The running block's rank.
    pub(crate) rank: usize,
    /// The blocks by rank; the running block's place holds no block. Empty if the running block is alone.
    others: Vec<Block>,
    /// Whether each block has ended.
    ended: Vec<bool>,
    barrier: Barrier,
    order: ClusterOrder,
    /// For each of the last phases, what the threads that arrived at it knew. Kept only if launches on other GPUs access
    /// the same memory.
    pub(crate) known: VecDeque<(Phase, Knowledge)>,
}

impl Cluster {
    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.others.len().max(1)
    }

    /// Returns whether the running block is alone.
    pub(crate) fn is_alone(&self) -> bool {
        self.others.is_empty()
    }
}

/// A cluster that is not running.
#[derive(Debug, Default)]
pub(crate) struct Suspended {
    /// The block that ran last.
    block: Block,
    cluster: Cluster,
}

impl Suspended {
    /// Returns the blocks that have not ended.
    fn blocks(&self) -> impl Iterator<Item = &Block> {
        let Self { block, cluster: Cluster { rank, others, ended, .. } } = self;
        let all = (0..).zip(others).map(move |(at, other)| if at == *rank { block } else { other });
        let alone = others.is_empty().then_some(block);
        all.zip(ended).filter(|(_, ended)| !**ended).map(|(block, _)| block).chain(alone)
    }

    /// Returns whether all blocks would only repeat what they did before.
    pub(crate) fn repeats(&self, changes: u64) -> bool {
        self.blocks().all(|block| block.progress.repeats_at == Some(changes))
    }

    /// Returns the number of blocks that have not ended.
    pub(crate) fn waiting(&self) -> u64 {
        self.blocks().count() as u64
    }

    /// Returns the index of its first block in the grid, as a number that sorts as the grid does.
    pub(crate) fn position(&self) -> Option<[u32; 3]> {
        let of = |block: &Block| {
            let [x, y, z] = block.index;
            [z, y, x]
        };
        self.blocks().map(of).min()
    }
}

impl Machine<'_> {
    /// Exchanges the running cluster with another one.
    pub(crate) fn swap_cluster(&mut self, other: &mut Suspended) {
        std::mem::swap(self.block, &mut other.block);
        std::mem::swap(&mut self.cluster, &mut other.cluster);
    }

    /// Returns the number of clusters along each axis.
    pub(crate) fn cluster_grid(&self) -> [u64; 3] {
        let (grid, size) = (self.launch.grid, self.launch.cluster);
        std::array::from_fn(|axis| u64::from(grid[axis] / size[axis].max(1)))
    }

    /// Returns the number of blocks in a cluster.
    pub(crate) fn cluster_blocks(&self) -> usize {
        self.launch.cluster.iter().map(|&extent| extent.max(1) as usize).product()
    }

    /// Starts the blocks of the cluster with this number.
    pub(crate) fn start_cluster(&mut self, number: u64) {
        let [columns, rows, _] = self.cluster_grid();
        let [width, height, depth] = self.launch.cluster.map(|extent| extent.max(1));
        let first = [number % columns, number / columns % rows, number / columns / rows];
        let first: [u32; 3] = std::array::from_fn(|axis| first[axis] as u32 * [width, height, depth][axis]);
        let blocks = self.cluster_blocks();
        self.cluster.barrier.start(blocks);
        self.cluster.known.clear();
        if blocks == 1 {
            self.start_block(first);
            return;
        }
        let is_new = self.cluster.others.is_empty();
        self.cluster.others.resize_with(blocks, Block::default);
        self.cluster.ended.clear();
        self.cluster.ended.resize(blocks, false);
        for rank in 0..blocks {
            self.switch_to(rank);
            if is_new {
                self.prepare();
            }
            let at = rank as u32;
            let [x, y, z] = [at % width, at / width % height, at / width / height];
            self.start_block([first[0] + x, first[1] + y, first[2] + z]);
        }
        let now = self.all_blocks().map(|block| block.shadow.now()).max().unwrap_or(0);
        self.block.shadow.advance_to(now);
        self.cluster.order.start(blocks, now);
    }

    /// Returns the blocks of the running cluster.
    fn all_blocks(&self) -> impl Iterator<Item = &Block> {
        (0..self.cluster.len()).map(|rank| self.block_at(rank))
    }

    /// Returns the block with this rank in the running cluster.
    pub(crate) fn block_at(&self, rank: usize) -> &Block {
        if rank == self.cluster.rank { self.block } else { &self.cluster.others[rank] }
    }

    /// Returns the block with this rank in the running cluster.
    pub(crate) fn block_at_mut(&mut self, rank: usize) -> &mut Block {
        if rank == self.cluster.rank { self.block } else { &mut self.cluster.others[rank] }
    }

    /// Makes another block of the cluster the running one.
    fn switch_to(&mut self, rank: usize) {
        let Cluster { rank: own, others, .. } = &mut self.cluster;
        let now = self.block.shadow.now();
        std::mem::swap(self.block, &mut others[*own]);
        std::mem::swap(self.block, &mut others[rank]);
        *own = rank;
        self.block.shadow.advance_to(now);
    }

    /// Runs what happens in the block with this rank.
    pub(crate) fn in_block<T>(&mut self, rank: usize, act: impl FnOnce(&mut Self) -> T) -> T {
        let own = self.cluster.rank;
        if rank == own {
            return act(self);
        }
        self.switch_to(rank);
        let done = act(self);
        self.switch_to(own);
        done
    }

    /// Runs the blocks of the cluster to their end, or until it is time to run other clusters.
    pub(crate) fn run_cluster(&mut self) -> Result<Pause, Stop> {
        if self.cluster.is_alone() {
            return self.run_one_block();
        }
        loop {
            let (mut has_run, mut has_time) = (false, true);
            for rank in 0..self.cluster.len() {
                let progress = &self.block_at(rank).progress;
                if self.cluster.ended[rank] || progress.repeats_at == Some(self.changes) {
                    continue;
                }
                has_run = true;
                self.switch_to(rank);
                self.block.progress = Progress::default();
                self.block.shadow.is_on &= self.race.is_none();
                match self.run_one_block()? {
                    Pause::Ended => {
                        self.cluster.ended[rank] = true;
                        self.check_visits_at_end();
                    }
                    Pause::Suspended => has_time &= self.block.progress.repeats_at.is_some(),
                }
            }
            if self.cluster.ended.iter().all(|&ended| ended) {
                return Ok(Pause::Ended);
            }
            if let Some(stop) = self.cluster_only_tests() {
                return Err(stop);
            }
            if !has_run || !has_time {
                return Ok(Pause::Suspended);
            }
        }
    }

    fn run_one_block(&mut self) -> Result<Pause, Stop> {
        let pause = self.run_block()?;
        self.bytes_of_blocks += self.record.end_block();
        if pause == Pause::Ended {
            self.end_observing();
        }
        Ok(pause)
    }

    /// Returns a fault if the blocks of the cluster only test mbarrier objects or wait for the cluster's barrier, so that no
    /// thread of the cluster can complete a phase.
    fn cluster_only_tests(&mut self) -> Option<Stop> {
        let running = |rank: &usize| !self.cluster.ended[*rank];
        let changes = self.changes - self.clock_reads;
        let tests = |rank: &usize| self.block_at(*rank).mbarriers.has_only_failed(changes);
        let mut blocks = (0..self.cluster.len()).filter(running);
        let first = blocks.clone().find(tests)?;
        if !blocks.all(|rank| tests(&rank) || self.block_at(rank).waits_for_cluster()) {
            return None;
        }
        self.switch_to(first);
        self.incomplete_phase()
    }

    /// Switches to the block that a report about the running cluster describes: one that waits for something other than the
    /// cluster's barrier, if there is one.
    pub(crate) fn switch_to_waiting(&mut self) {
        let running = |rank: &usize| !self.cluster.is_alone() && !self.cluster.ended[*rank];
        let blocks = || (0..self.cluster.len()).filter(running);
        let elsewhere = blocks().find(|&rank| !self.block_at(rank).waits_for_cluster());
        if let Some(rank) = elsewhere.or(blocks().next()) {
            self.switch_to(rank);
        }
    }

    /// Returns a fault if threads wait for the cluster's barrier.
    pub(crate) fn incomplete_cluster_barrier(&mut self) -> Option<Stop> {
        let (rank, pc, thread) = (0..self.cluster.len()).find_map(|rank| {
            let group = self.block_at(rank).groups.iter().find(|group| group.waits_for_cluster())?;
            Some((rank, group.pc, group.mask.first()?))
        })?;
        let missing = self.missing_at_cluster_barrier()?;
        let (arrived, expected) = self.arrived_at_cluster_barrier();
        let kind = FaultKind::ClusterBarrier { arrived, expected, missing: Box::new(missing) };
        if !self.cluster.is_alone() {
            self.switch_to(rank);
        }
        self.pc = pc;
        Some(self.fault(kind, thread))
    }
}
