//! `barrier.cluster`: all threads of a cluster wait for each other.

use super::Cluster;
use crate::block::Block;
use crate::convergence::{ConvergenceGroup, Next, Readiness};
use crate::fault::{Stop, ThreadReport};
use crate::machine::Machine;
use crate::mask::Mask;
use crate::order::{Order, Phase};
use virtual_gpu_ptx::instruction::ClusterBarrier;

/// The barrier of a cluster.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// The number of complete phases.
    phase: u32,
    /// For each block, the threads that have arrived in the current phase.
    arrived: Vec<Mask>,
    /// For each block, the threads that have arrived in the last complete phase and have not waited for it.
    unwaited: Vec<Mask>,
    /// For each block, the time when its first thread arrived in the current phase.
    first: Vec<Option<u32>>,
    /// The same in the last complete phase; `None` if an arrival was `.relaxed`, or a thread had ended.
    last: Option<Vec<u32>>,
    /// Whether an arrival in the current phase was `.relaxed`.
    is_relaxed: bool,
}

impl Barrier {
    /// Starts a cluster.
    pub(super) fn start(&mut self, blocks: usize) {
        self.phase = 0;
        for threads in [&mut self.arrived, &mut self.unwaited] {
            threads.clear();
            threads.resize(blocks, Mask::NONE);
        }
        self.first.clear();
        self.first.resize(blocks, None);
        (self.last, self.is_relaxed) = (None, false);
    }
}

impl ConvergenceGroup {
    pub(crate) fn waits_for_cluster(&self) -> bool {
        self.state == Readiness::WaitingForCluster
    }
}

impl Block {
    /// Returns whether threads wait for the cluster's barrier, and none can go on.
    pub(super) fn waits_for_cluster(&self) -> bool {
        let may_run = |group: &ConvergenceGroup| matches!(group.state, Readiness::Ready | Readiness::Yielded);
        self.groups.iter().any(ConvergenceGroup::waits_for_cluster) && !self.groups.iter().any(may_run)
    }
}

impl Machine<'_> {
    /// Executes `barrier.cluster`.
    #[inline(never)]
    pub(crate) fn cluster_barrier(
        &mut self,
        barrier: ClusterBarrier,
        group: &ConvergenceGroup,
        mask: &Mask,
    ) -> Result<Next, Stop> {
        self.changes += 1;
        match barrier {
            ClusterBarrier::Arrive { releases } => self.arrive_in_cluster(releases, mask),
            ClusterBarrier::Wait => self.wait_for_cluster(group, mask),
        }
    }

    fn arrive_in_cluster(&mut self, releases: bool, mask: &Mask) -> Result<Next, Stop> {
        let rank = self.cluster.rank;
        let barrier = &mut self.cluster.barrier;
        let pending = barrier.arrived[rank].or(&barrier.unwaited[rank]);
        if let Some(thread) = pending.and(mask).first() {
            let why = "a thread arrives at the cluster's barrier again, and has not waited since it arrived";
            return Err(self.undefined(why, thread));
        }
        barrier.arrived[rank] = barrier.arrived[rank].or(mask);
        // What any of the block's threads did so far happened before it.
        barrier.first[rank].get_or_insert(self.block.shadow.now() + 1);
        barrier.is_relaxed |= !releases;
        let phase = Phase::Cluster(self.cluster.barrier.phase);
        self.order(match releases {
            true => Order::Arrival(*mask, phase),
            false => Order::RelaxedArrival(*mask, phase),
        });
        Ok(if self.complete_cluster_barrier() { Next::Regroup } else { Next::Follow })
    }

    fn wait_for_cluster(&mut self, group: &ConvergenceGroup, mask: &Mask) -> Result<Next, Stop> {
        let rank = self.cluster.rank;
        let barrier = &mut self.cluster.barrier;
        let (ready, blocked) = (mask.and(&barrier.unwaited[rank]), mask.and(&barrier.arrived[rank]));
        if let Some(thread) = mask.without(&ready).without(&blocked).first() {
            let why = "a thread waits for the cluster's barrier, but has not arrived at it";
            return Err(self.undefined(why, thread));
        }
        if !ready.is_empty() {
            barrier.unwaited[rank] = barrier.unwaited[rank].without(&ready);
            let phase = Phase::Cluster(barrier.phase.wrapping_sub(1));
            self.order(Order::Wait(ready, phase));
            self.cluster.order.meet(rank);
            self.raise_floors();
        }
        if blocked.is_empty() {
            return Ok(Next::Follow);
        }
        let state = Readiness::WaitingForCluster;
        self.block.groups.push(ConvergenceGroup { pc: group.pc, mask: blocked, state });
        Ok(Next::Leave(blocked))
    }

    /// Completes the phase if all threads of the cluster have arrived or ended, and makes the threads that wait for it
    /// ready. Returns whether it is complete.
    pub(crate) fn complete_cluster_barrier(&mut self) -> bool {
        let barrier = &self.cluster.barrier;
        if barrier.arrived.iter().all(Mask::is_empty) {
            return false;
        }
        let all = Mask::first_threads(self.threads);
        let is_here = |(rank, arrived): (usize, &Mask)| {
            all.without(arrived).without(&self.block_at(rank).ended()).is_empty()
        };
        if !barrier.arrived.iter().enumerate().all(is_here) {
            return false;
        }
        // A thread that has ended without having arrived has not released what it did.
        let is_full = barrier.arrived.iter().all(|arrived| *arrived == all);
        for rank in 0..self.cluster.len() {
            let ended = self.block_at(rank).ended();
            let barrier = &mut self.cluster.barrier;
            let arrived = std::mem::replace(&mut barrier.arrived[rank], Mask::NONE);
            barrier.unwaited[rank] = barrier.unwaited[rank].or(&arrived).without(&ended);
            for group in self.block_at_mut(rank).groups.iter_mut().filter(|group| group.waits_for_cluster()) {
                group.state = Readiness::Ready;
            }
        }
        self.changes += 1;
        let barrier = &mut self.cluster.barrier;
        barrier.phase += 1;
        let first = barrier.first.iter_mut().map(|first| first.take().unwrap_or(0)).collect();
        let is_relaxed = std::mem::take(&mut barrier.is_relaxed);
        barrier.last = (is_full && !is_relaxed).then_some(first);
        true
    }

    /// Forgets what is known to all threads, once a block, or the whole cluster, has waited for the last phase.
    fn raise_floors(&mut self) {
        let Cluster { rank, barrier, order, .. } = &mut self.cluster;
        let Some(last) = &barrier.last else { return };
        if barrier.unwaited[*rank].is_empty() {
            self.block.shadow.raise_floor(last[*rank]);
        }
        if barrier.unwaited.iter().all(Mask::is_empty) {
            order.raise_floors(|rank| last[rank]);
            barrier.last = None;
        }
    }

    /// Records that threads of the running block have ended.
    pub(crate) fn leave_cluster(&mut self, gone: &Mask) {
        let rank = self.cluster.rank;
        if let Some(unwaited) = self.cluster.barrier.unwaited.get_mut(rank) {
            *unwaited = unwaited.without(gone);
        }
        self.complete_cluster_barrier();
    }

    /// Returns the number of threads that have arrived at the barrier, and the number that it waits for.
    pub(super) fn arrived_at_cluster_barrier(&self) -> (u32, u32) {
        let blocks = self.all_blocks().zip(&self.cluster.barrier.arrived);
        let arrived = blocks.map(|(block, arrived)| arrived.without(&block.ended()).count()).sum::<u64>();
        let ended = self.all_blocks().map(|block| block.ended().count()).sum::<u64>();
        let all = (self.threads * self.cluster.len()) as u64;
        (arrived as u32, all.saturating_sub(ended) as u32)
    }

    /// Returns where a thread is that has not arrived at the barrier.
    pub(super) fn missing_at_cluster_barrier(&self) -> Option<ThreadReport> {
        (0..self.cluster.len()).find_map(|rank| {
            let (block, arrived) = (self.block_at(rank), &self.cluster.barrier.arrived[rank]);
            let groups = block.groups.iter().map(|group| (group.pc, group.mask));
            let all = groups.chain(block.barriers.iter().flat_map(|barrier| barrier.waiting.iter().copied()));
            let mut missing = all.map(|(pc, mask)| (pc, mask.without(arrived)));
            let (pc, mask) = missing.find(|(_, mask)| !mask.is_empty())?;
            Some(self.report_of((rank, mask.first()?), pc, None))
        })
    }
}
