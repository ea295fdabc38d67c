//! Publishing: sends other processes what they need to know about this process's ranks, once a rank's stream has
//! reached a call.

use super::Nccl;
use super::buffer::Share;
use super::event::{Arrival, Event, MessageName};
use super::point_to_point::{MessageKey, ReadyEnd};
use super::session::Outgoing;
use super::transfer::Direction;
use super::wire::Payload;
use virtual_gpu::engine::Failure;
use virtual_gpu_core::handle::{CallKey, CollectiveId, PointToPointId, Rank};
use virtual_gpu_core::status::{CudaStatus, NcclResult};

impl Nccl {
    /// Tells the other processes that a rank's stream has reached a collective, and sends them the data that the rank
    /// contributes.
    pub(crate) fn publish_arrival(&self, id: CollectiveId, rank: Rank) -> NcclResult<()> {
        let mut guard = self.lock();
        let mut state = guard.locked();
        // The call may have failed since the rank's stream reached it, and its communicator may be gone.
        let call = state.nccl.communicators.get(&id.comm).and_then(|comm| comm.calls.get(&id.sequence));
        let Some(call) = call.filter(|call| call.failure.is_none()) else { return Ok(()) };
        let ranks = call.parts.len();
        if let Some(report) = call.failure_of_part(state.engine, rank) {
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            return state.fail_collective(id, &failure);
        }
        // The rank is in this process and has called.
        let Some(part) = call.parts[rank].as_ref() else { return Ok(()) };
        let (Ok((share, buffers)), operation) = (Share::of_part(&state, rank, part), part.operation) else {
            return Ok(());
        };
        // The rank may have aborted, and its stream may have moved on.
        let Some(stamp) = part.op().and_then(|op| state.stamp(op)) else { return Ok(()) };
        // Only a communicator with ranks in other processes publishes anything.
        let Some((own, link)) = state.nccl.link_of(id.comm)? else { return Ok(()) };
        drop(guard);
        let given = {
            let mut memories = self.memories([share.device].into_iter());
            self.give(&mut memories, &share, buffers.send, operation.given(rank, ranks)).and_then(|payload| {
                Ok((payload, self.scale(&mut memories, &share, &operation, buffers.scale)?.0))
            })
        };
        let (payload, scale) = match given {
            Ok(given) => given,
            Err(failure) => return self.fail_if_known(CallKey::Collective(id), &failure),
        };
        let arrival = Arrival { stamp, bytes: (0, 0), scale, payload };
        let others = link.others.clone();
        let outgoing =
            Outgoing::new(own, &link, others, &Event::Arrived { rank, sequence: id.sequence, arrival });
        let mut guard = self.lock();
        // In the meantime, the call may have failed or the rank may have aborted.
        let comm = guard.nccl.communicators.get_mut(&id.comm);
        let call = comm.and_then(|comm| comm.calls.get_mut(&id.sequence));
        if call.is_some_and(|call| call.published(rank)) {
            guard.nccl.send(outgoing);
        }
        Ok(())
    }

    /// Fails a call, unless its communicator is gone: both locks have been released since the call was checked, so its
    /// ranks may have aborted.
    fn fail_if_known(&self, call: CallKey, failure: &Failure) -> NcclResult<()> {
        let mut guard = self.lock();
        let mut state = guard.locked();
        match state.nccl.communicators.contains_key(&call.comm()) {
            true => state.fail_call(call, failure),
            false => Ok(()),
        }
    }

    /// Tells other processes that a rank's stream has reached the messages that it sends to them and receives from
    /// them, and includes the bytes of the messages that it sends.
    pub(crate) fn publish_ends(&self, id: PointToPointId) -> NcclResult<()> {
        let mut guard = self.lock();
        let mut state = guard.locked();
        // The rank may have aborted since its stream reached the call, and its communicator may be gone.
        let Some(ready) = state.ends_to_publish(id) else { return Ok(()) };
        // Only a communicator with ranks in other processes publishes anything.
        let Some((own, link)) = state.nccl.link_of(id.comm)? else { return Ok(()) };
        let traffic = &state.nccl.communicator(id.comm)?.traffic;
        let failed = ready.iter().find_map(|ready| {
            let &MessageName { from, to, sequence } = &ready.message;
            traffic.failed_end(state.engine, MessageKey { comm: id.comm, from, to, sequence })
        });
        if let Some(report) = failed {
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            return state.fail_transfers(id, &failure);
        }
        drop(guard);
        for ReadyEnd { message, end, called, device, enqueued, stamp, bytes, process } in ready {
            let (request, call_site) = (called.request(), called.call_site.clone());
            let share = Share { rank: id.rank, device, enqueued, request, call_site, is_checked: false };
            let given = match end {
                Direction::Receive => Ok(Payload::default()),
                Direction::Send => {
                    let mut memories = self.memories([device].into_iter());
                    self.give(&mut memories, &share, called.buffer, Some(called.transfer.bytes()))
                }
            };
            match given {
                Ok(payload) => {
                    let arrival = Arrival { stamp, bytes, scale: [0; 8], payload };
                    let event = Event::Ready { message, end, arrival };
                    let outgoing = Outgoing::new(own, &link, vec![process], &event);
                    self.lock().nccl.send(outgoing);
                }
                Err(failure) => self.fail_if_known(CallKey::PointToPoint(id), &failure)?,
            }
        }
        Ok(())
    }
}
