//! Sends and receives that fail, or whose rank aborts.

use super::TransferGroup;
use super::message::{MessageKey, Moving};
use crate::Locked;
use virtual_gpu::engine::Failure;
use virtual_gpu_core::handle::{CommId, PointToPointId, Rank, SequenceNumber};

impl Locked<'_> {
    /// A message has failed at its other end, in another process.
    pub(crate) fn message_lost(&mut self, key: MessageKey, failure: &Failure) {
        let calls = self.transfer_groups_at(key);
        if calls.is_empty()
            && let Some(entry) = self.nccl.communicators.get_mut(&key.comm)
        {
            entry.traffic.lost.insert(key, failure.clone());
        }
        for id in calls {
            self.fail_transfers(id, failure);
        }
    }

    /// A message could not be moved: both ends fail.
    pub(crate) fn message_failed(&mut self, moved: &Moving, failure: &Failure) {
        for id in moved.calls().into_iter().flatten() {
            if let Some(group) = self.nccl.transfer_group_mut(id) {
                group.running -= 1;
            }
            self.fail_transfers(id, failure);
        }
    }

    /// Makes what a rank launched together fail: now, where its stream has come to it, or when it does.
    pub(crate) fn fail_transfers(&mut self, id: PointToPointId, failure: &Failure) {
        let Some(entry) = self.nccl.communicators.get_mut(&id.comm) else { return };
        entry.note_failure(failure);
        let Some(group) = entry.traffic.transfer_groups.get_mut(&id) else { return };
        let open = group.open.clone();
        if group.failure.is_none() {
            group.failure = Some(failure.clone());
            for (key, own) in open {
                self.publish_lost_message(key, key.rank(own.other()), failure);
            }
        }
        self.leave_if_over(id);
    }

    /// Takes a rank's messages away that are not being moved yet.
    pub(crate) fn cancel_transfers(&mut self, comm: CommId, rank: Rank) {
        let Some(entry) = self.nccl.communicators.get_mut(&comm) else { return };
        let at = |sequence| PointToPointId { comm, rank, sequence: SequenceNumber(sequence) };
        let own = entry.traffic.transfer_groups.range_mut(at(0)..=at(u64::MAX));
        let mut cancelled = Vec::new();
        for (&id, group) in own {
            group.cancelled = true;
            cancelled.push(id);
        }
        for id in cancelled {
            self.leave_if_over(id);
        }
    }

    /// Lets a stream go on whose sends and receives have failed or were cancelled, once none of them is being moved.
    pub(super) fn leave_if_over(&mut self, id: PointToPointId) {
        let Some(group) = self.nccl.transfer_group_mut(id) else { return };
        let TransferGroup { op, arrived, cancelled, running, failure, .. } = group;
        if !*arrived || *running > 0 || (failure.is_none() && !*cancelled) {
            return;
        }
        let (stream, failure, cancelled) = (op.stream, failure.clone(), *cancelled);
        if let Some(entry) = self.nccl.communicators.get_mut(&id.comm) {
            entry.traffic.transfer_groups.remove(&id);
        }
        if let Some(failure) = failure.filter(|_| !cancelled) {
            self.engine.fail_stream(stream, &failure);
        }
        self.engine.finish(stream);
    }
}
