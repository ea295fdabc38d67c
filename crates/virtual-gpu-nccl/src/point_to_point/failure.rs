//! Sends and receives that fail or whose rank aborts.

use super::message::{MessageKey, Moving};
use super::{Traffic, TransferGroup};
use crate::Locked;
use virtual_gpu::engine::Failure;
use virtual_gpu_core::handle::{CommId, PointToPointId, Rank, SequenceNumber};
use virtual_gpu_core::status::NcclResult;

impl Traffic {
    /// Marks a rank's sends and receives as canceled. Returns the groups that contain them.
    fn cancel(&mut self, comm: CommId, rank: Rank) -> Vec<PointToPointId> {
        let at = |sequence| PointToPointId { comm, rank, sequence: SequenceNumber(sequence) };
        let groups = self.transfer_groups.range_mut(at(0)..=at(u64::MAX));
        let cancel = |(&id, group): (&PointToPointId, &mut TransferGroup)| {
            group.canceled = true;
            id
        };
        groups.map(cancel).collect()
    }

    /// Removes a group that has failed or has been canceled, once its stream has reached it and none of its messages is
    /// being moved.
    fn take_if_over(&mut self, id: PointToPointId) -> Option<TransferGroup> {
        let TransferGroup { arrived, canceled, running, failure, .. } = self.transfer_groups.get(&id)?;
        let is_over = *arrived && *running == 0 && (failure.is_some() || *canceled);
        if is_over { self.transfer_groups.remove(&id) } else { None }
    }
}

impl Locked<'_> {
    /// Fails a message whose other end, in another process, has failed.
    ///
    /// # Errors
    /// Returns `InternalError` if its communicator is gone. This is also true of the functions below.
    pub(crate) fn message_lost(&mut self, key: MessageKey, failure: &Failure) -> NcclResult<()> {
        let traffic = &mut self.nccl.communicator_mut(key.comm)?.traffic;
        if traffic.groups_at(key).is_empty() {
            traffic.lost.insert(key, failure.clone());
        }
        self.fail_message(key, failure)
    }

    /// Fails both ends of a message that could not be moved.
    pub(crate) fn message_failed(&mut self, moved: &Moving, failure: &Failure) -> NcclResult<()> {
        for id in moved.calls().into_iter().flatten() {
            self.nccl.communicator_mut(id.comm)?.traffic.group_mut(id)?.running -= 1;
            self.fail_transfers(id, failure)?;
        }
        Ok(())
    }

    /// Fails this process's calls at a message's ends.
    pub(super) fn fail_message(&mut self, key: MessageKey, failure: &Failure) -> NcclResult<()> {
        let groups = self.nccl.communicator(key.comm)?.traffic.groups_at(key);
        groups.into_iter().try_for_each(|id| self.fail_transfers(id, failure))
    }

    /// Fails the calls that a rank launched together: now if its stream has reached them, or otherwise when it does.
    pub(crate) fn fail_transfers(&mut self, id: PointToPointId, failure: &Failure) -> NcclResult<()> {
        let entry = self.nccl.communicator_mut(id.comm)?;
        entry.note_failure(failure);
        // Both ends of a message may be in one group, which is gone after its first failure.
        let Some(group) = entry.traffic.transfer_groups.get_mut(&id) else { return Ok(()) };
        if group.failure.is_none() {
            group.failure = Some(failure.clone());
            for (key, own) in group.open.clone() {
                self.nccl.publish_lost_message(key, key.rank(own.other()), failure)?;
            }
        }
        self.leave_if_over(id)
    }

    /// Cancels a rank's messages that are not being moved yet.
    pub(crate) fn cancel_transfers(&mut self, comm: CommId, rank: Rank) -> NcclResult<()> {
        let canceled = self.nccl.communicator_mut(comm)?.traffic.cancel(comm, rank);
        canceled.into_iter().try_for_each(|id| self.leave_if_over(id))
    }

    /// Lets a stream continue after its sends and receives have failed or been canceled, once none of them is being
    /// moved.
    pub(super) fn leave_if_over(&mut self, id: PointToPointId) -> NcclResult<()> {
        if let Some(group) = self.nccl.communicator_mut(id.comm)?.traffic.take_if_over(id) {
            let stream = group.op.stream;
            if let Some(failure) = group.failure.filter(|_| !group.canceled) {
                self.engine.fail_stream(stream, &failure);
            }
            self.engine.finish(stream);
        }
        Ok(())
    }
}
