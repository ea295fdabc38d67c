//! What other processes need of the ranks of this one, sent once a rank's stream has come to a call.

use super::Nccl;
use super::buffer::Share;
use super::event::{Arrival, Event, MessageName};
use super::point_to_point::{MessageKey, ReadyEnd};
use super::session::Outgoing;
use super::transfer::Direction;
use super::wire::Payload;
use virtual_gpu::engine::Failure;
use virtual_gpu_core::handle::{CollectiveId, PointToPointId, Rank};
use virtual_gpu_core::status::CudaStatus;

impl Nccl {
    /// Tells the other processes that a rank's stream has come to a collective, and what the rank gives.
    pub(crate) fn publish_arrival(&self, id: CollectiveId, rank: Rank) {
        let mut guard = self.lock();
        let mut state = guard.locked();
        let Some(call) = state.nccl.call(id).filter(|call| call.failure.is_none()) else { return };
        let ranks = call.parts.len();
        if let Some(report) = state.failure_of_part(call, rank) {
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            return state.fail_collective(id, &failure);
        }
        let Some(part) = call.parts[rank].as_ref() else { return };
        let (Ok((share, buffers)), operation) = (Share::of_part(&state, rank, part), part.operation) else {
            return;
        };
        let Some(stamp) = part.op().and_then(|op| state.stamp(op)) else { return };
        let Some((own, link)) = state.link_of(id.comm) else { return };
        drop(guard);
        let given = {
            let mut memories = self.memories([share.device].into_iter());
            self.give(&mut memories, &share, buffers.send, operation.given(rank, ranks)).and_then(|payload| {
                Ok((payload, self.scale(&mut memories, &share, &operation, buffers.scale)?.0))
            })
        };
        let (payload, scale) = match given {
            Ok(given) => given,
            Err(failure) => return self.lock().locked().fail_collective(id, &failure),
        };
        let arrival = Arrival { stamp, bytes: (0, 0), scale, payload };
        let others = link.others.clone();
        let outgoing =
            Outgoing::new(own, &link, others, &Event::Arrived { rank, sequence: id.sequence, arrival });
        let mut guard = self.lock();
        // It may have failed, or the rank have aborted, in the meantime.
        if guard.locked().published(id, rank) {
            guard.nccl.send(outgoing);
        }
    }

    /// Tells other processes that a rank's stream has come to the messages that it sends them, with their bytes, and to those
    /// that it gets.
    pub(crate) fn publish_ends(&self, id: PointToPointId) {
        let (Some((own, link)), Some(ready)) = ({
            let mut guard = self.lock();
            let mut state = guard.locked();
            (state.link_of(id.comm), state.ends_to_publish(id))
        }) else {
            return;
        };
        let failed = ready.iter().find_map(|ready| {
            let &MessageName { from, to, sequence } = &ready.message;
            self.lock().locked().failed_end(MessageKey { comm: id.comm, from, to, sequence })
        });
        if let Some(report) = failed {
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            return self.lock().locked().fail_transfers(id, &failure);
        }
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
                Err(failure) => self.lock().locked().fail_transfers(id, &failure),
            }
        }
    }
}
