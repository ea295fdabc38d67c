//! Moves messages once the streams at both ends have reached them.

use std::sync::Arc;

use super::message::{EndLocation, MessageKey, Moving, MovingEnd, ReadyEnd};
use super::{Known, Traffic};
use crate::Locked;
use crate::collective::failed_gpu;
use crate::event::{Arrived, MessageName};
use crate::run::Job;
use crate::transfer::Direction;
use virtual_gpu::engine::{Failure, State as EngineState, Touched};
use virtual_gpu::report::Report;
use virtual_gpu::time::Ticket;
use virtual_gpu_core::handle::PointToPointId;
use virtual_gpu_core::status::{CudaStatus, NcclResult};

impl Traffic {
    /// Records that the stream of a rank in another process has reached its end of a message. Returns the message if it
    /// can be moved now. A message that has failed in this process may have been forgotten.
    pub(crate) fn ready_elsewhere(
        &mut self,
        engine: &EngineState,
        key: MessageKey,
        end: Direction,
        arrived: Arc<Arrived>,
    ) -> Option<Job> {
        let own = self.messages.get_mut(&key)?.ends[end as usize].as_mut()?;
        if end == Direction::Send && arrived.payload.len() as u64 != own.transfer.bytes() {
            return None;
        }
        own.location = EndLocation::Elsewhere(Some(arrived));
        if !self.known(key, end.other()).is_ready() {
            return None;
        }
        Some(Job::Messages(vec![self.take_message(engine, key)?]))
    }

    /// Returns a report if an end of the message is in this process and its GPU has failed.
    pub(crate) fn failed_end(&self, engine: &EngineState, key: MessageKey) -> Option<Report> {
        [Direction::Send, Direction::Receive].into_iter().find_map(|end| {
            let Known::Here(_, group) = self.known(key, end) else { return None };
            let called = self.end(key, end)?;
            failed_gpu(engine, group.op, key.rank(end), &called.request(), &called.call_site)
        })
    }

    /// Takes a message to be moved if the streams at both ends have reached it.
    fn take_message(&mut self, engine: &EngineState, key: MessageKey) -> Option<Moving> {
        let moving = |end: Direction| {
            let known = self.known(key, end);
            let called = self.end(key, end).filter(|_| known.is_ready())?.clone();
            match known {
                Known::Here(_, group) => {
                    Some(MovingEnd::Here(called, group.device, engine.enqueued_as(group.op)?))
                }
                Known::Elsewhere(arrived) => Some(MovingEnd::Elsewhere(called, arrived?.clone())),
                Known::NotCalled | Known::Gone => None,
            }
        };
        let ends = [moving(Direction::Send)?, moving(Direction::Receive)?];
        let message = self.messages.get_mut(&key).filter(|message| !message.running)?;
        message.running = true;
        let moving = Moving { key, ends };
        for id in moving.calls().into_iter().flatten() {
            if let Some(group) = self.transfer_groups.get_mut(&id) {
                group.running += 1;
            }
        }
        Some(moving)
    }
}

impl Locked<'_> {
    /// Returns the ends of messages whose other ends are in other processes, to be published now. Returns `None` if
    /// these calls have failed or their rank has aborted since its stream reached them; then their communicator may be
    /// gone.
    pub(crate) fn ends_to_publish(&mut self, id: PointToPointId) -> Option<Vec<ReadyEnd>> {
        let group = self.nccl.communicators.get(&id.comm)?.traffic.transfer_groups.get(&id)?;
        let (op, device, [sent, got]) = (group.op, group.device, group.bytes);
        if group.canceled || group.failure.is_some() {
            return None;
        }
        let open = group.open.clone();
        let mut ready = Vec::new();
        for (key, end) in open {
            let entry = self.nccl.communicators.get(&id.comm)?;
            let Some(process) = entry.ranks[key.rank(end.other())].process else { continue };
            let called = entry.traffic.end(key, end)?.clone();
            let MessageKey { from, to, sequence, .. } = key;
            ready.push(ReadyEnd {
                message: MessageName { from, to, sequence },
                end,
                called,
                device,
                enqueued: self.engine.enqueued_as(op)?,
                stamp: self.stamp(op)?,
                bytes: (sent, got),
                process: process.number,
            });
        }
        Some(ready)
    }

    /// Records that a rank's stream has reached the calls that it launched together. Returns the messages that can be
    /// moved now.
    ///
    /// # Errors
    /// Returns `InternalError` if there is no such call.
    pub(crate) fn arrive_at_transfers(&mut self, id: PointToPointId) -> NcclResult<Option<Job>> {
        let group = self.nccl.communicator_mut(id.comm)?.traffic.group_mut(id)?;
        group.arrived = true;
        if group.canceled || group.failure.is_some() {
            self.leave_if_over(id)?;
            return Ok(None);
        }
        if !group.published {
            return Ok(Some(Job::Ends(id)));
        }
        self.ready_messages(id)
    }

    /// Records that the processes at the other ends of the messages know that this rank's stream has reached them.
    /// Returns the messages that can be moved now.
    pub(crate) fn published_ends(&mut self, id: PointToPointId) -> NcclResult<Option<Job>> {
        // The rank may have aborted while the ends were being sent, and then the communicator may be gone.
        let comm = self.nccl.communicators.get_mut(&id.comm);
        let group = comm.and_then(|comm| comm.traffic.transfer_groups.get_mut(&id));
        let Some(group) = group else { return Ok(None) };
        group.published = true;
        self.ready_messages(id)
    }

    fn ready_messages(&mut self, id: PointToPointId) -> NcclResult<Option<Job>> {
        let traffic = &mut self.nccl.communicator_mut(id.comm)?.traffic;
        let open = traffic.group_mut(id)?.open.clone();
        let mut ready = Vec::new();
        for (key, own) in open {
            if !traffic.known(key, own.other()).is_ready() {
                continue;
            }
            if let Some(report) = traffic.failed_end(self.engine, key) {
                self.fail_message(key, &Failure::announce(CudaStatus::LaunchFailed, &report))?;
                break;
            }
            ready.extend(traffic.take_message(self.engine, key));
        }
        Ok((!ready.is_empty()).then_some(Job::Messages(ready)))
    }

    /// Records, at both ends of a message that has been moved, what it touched and how it orders operations. Returns
    /// the calls for which this was the last message.
    ///
    /// # Errors
    /// Returns `InternalError` if the call at one of the message's ends is gone.
    pub(crate) fn message_moved(
        &mut self,
        moved: Moving,
        touched: [Option<Touched>; 2],
    ) -> NcclResult<Vec<PointToPointId>> {
        let calls = moved.calls();
        let Moving { key, ends } = moved;
        let traffic = &mut self.nccl.communicator_mut(key.comm)?.traffic;
        traffic.messages.remove(&key);
        // For each end: the number of bytes that its group sends and receives, its ticket, and what happened before it.
        let mut known = Vec::new();
        for (id, end) in calls.into_iter().zip(&ends) {
            match (id, end) {
                (_, MovingEnd::Elsewhere(_, arrived)) => {
                    let ticket = Ticket::elsewhere(arrived.ready);
                    known.push((arrived.bytes, Some(ticket), Some(arrived.view.clone())));
                }
                (Some(id), MovingEnd::Here(..)) => {
                    let group = traffic.group_mut(id)?;
                    let before = self.engine.first_of(group.op).map(|(_, view)| view);
                    known.push((group.bytes, self.engine.ticket_of(group.op), before));
                }
                // An end that is in this process is always in a group.
                (None, MovingEnd::Here(..)) => return Ok(Vec::new()),
            }
        }
        // Messages that move together share their GPU's links.
        let bytes = if key.from == key.to { 0 } else { known[0].0[0].max(known[1].0[1]) };
        // Operations before the send also come before operations after the receive. A send may finish before its
        // receive begins.
        let sent = known[0].2.take();
        let tickets = known.into_iter().map(|(_, ticket, _)| ticket).collect::<Vec<_>>();
        let mut over = Vec::new();
        for ((id, touched), (end, partner)) in
            calls.into_iter().zip(touched).zip([(Direction::Send, 1), (Direction::Receive, 0)])
        {
            // The other end is in another process.
            let Some(id) = id else { continue };
            let group = traffic.group_mut(id)?;
            group.touched.extend(touched);
            group.partners.extend(tickets[partner].clone().map(|ticket| (ticket, bytes)));
            if let (Direction::Receive, Some(view)) = (end, &sent) {
                group.view.join(view);
            }
            group.open.retain(|open| *open != (key, end));
            group.running -= 1;
            if group.open.is_empty() && group.failure.is_none() && !group.canceled {
                over.push(id);
            }
        }
        over.dedup();
        calls.into_iter().flatten().try_for_each(|id| self.leave_if_over(id))?;
        Ok(over)
    }
}
