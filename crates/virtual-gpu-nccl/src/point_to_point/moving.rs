//! Messages move once both ends' streams have come to them.

use std::sync::Arc;

use super::Known;
use super::message::{EndLocation, MessageKey, Moving, MovingEnd, ReadyEnd};
use crate::Locked;
use crate::event::{Arrived, MessageName};
use crate::run::Job;
use crate::transfer::Direction;
use virtual_gpu::engine::{Failure, Touched};
use virtual_gpu::report::Report;
use virtual_gpu::time::Ticket;
use virtual_gpu_core::handle::PointToPointId;
use virtual_gpu_core::status::CudaStatus;

impl Locked<'_> {
    /// The stream of a rank of another process has come to its end of a message.
    pub(crate) fn end_ready_elsewhere(
        &mut self,
        key: MessageKey,
        end: Direction,
        arrived: Arc<Arrived>,
    ) -> Option<Job> {
        let traffic = &mut self.nccl.communicators.get_mut(&key.comm)?.traffic;
        let own = traffic.messages.get_mut(&key)?.ends[end as usize].as_mut()?;
        if end == Direction::Send && arrived.payload.len() as u64 != own.transfer.bytes() {
            return None;
        }
        own.location = EndLocation::Elsewhere(Some(arrived));
        if !traffic.known(key, end.other()).is_ready() {
            return None;
        }
        Some(Job::Messages(vec![self.take_message(key)?]))
    }

    /// The ends of messages whose other ends are in other processes, as they are published now.
    pub(crate) fn ends_to_publish(&mut self, id: PointToPointId) -> Option<Vec<ReadyEnd>> {
        let group = self.nccl.transfer_group_mut(id)?;
        let (op, device, [sent, got]) = (group.op, group.device, group.bytes);
        if group.cancelled || group.failure.is_some() {
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

    /// A rank's stream has come to what it launched together. Returns the messages that can be moved now.
    pub(crate) fn arrive_at_transfers(&mut self, id: PointToPointId) -> Option<Job> {
        let group = self.nccl.transfer_group_mut(id)?;
        group.arrived = true;
        if group.cancelled || group.failure.is_some() {
            self.leave_if_over(id);
            return None;
        }
        if !group.published {
            return Some(Job::Ends(id));
        }
        self.ready_messages(id)
    }

    /// The processes at the other ends of the messages know that their rank's stream has come to them. Returns the messages
    /// that can be moved now.
    pub(crate) fn published_ends(&mut self, id: PointToPointId) -> Option<Job> {
        let group = self.nccl.transfer_group_mut(id)?;
        group.published = true;
        self.ready_messages(id)
    }

    pub(super) fn ready_messages(&mut self, id: PointToPointId) -> Option<Job> {
        let open = self.nccl.transfer_group_mut(id)?.open.clone();
        let mut ready = Vec::new();
        for (key, own) in open {
            let traffic = &self.nccl.communicators.get(&id.comm)?.traffic;
            if !traffic.known(key, own.other()).is_ready() {
                continue;
            }
            if let Some(report) = self.failed_end(key) {
                let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
                for id in self.transfer_groups_at(key) {
                    self.fail_transfers(id, &failure);
                }
                break;
            }
            ready.extend(self.take_message(key));
        }
        (!ready.is_empty()).then_some(Job::Messages(ready))
    }

    /// The report where the GPU at one end of a message, here, has failed.
    pub(crate) fn failed_end(&self, key: MessageKey) -> Option<Report> {
        let traffic = &self.nccl.communicators.get(&key.comm)?.traffic;
        [Direction::Send, Direction::Receive].into_iter().find_map(|end| {
            let Known::Here(_, group) = traffic.known(key, end) else { return None };
            let called = traffic.end(key, end)?;
            self.failed_gpu(group.op, key.rank(end), &called.request(), &called.call_site)
        })
    }

    /// Takes a message to be moved, if both ends' streams have come to it.
    pub(super) fn take_message(&mut self, key: MessageKey) -> Option<Moving> {
        let known = &self.nccl.communicators.get(&key.comm)?.traffic;
        let enqueued = [Direction::Send, Direction::Receive].map(|end| match known.known(key, end) {
            Known::Here(_, group) => self.engine.enqueued_as(group.op),
            _ => None,
        });
        let traffic = &mut self.nccl.communicators.get_mut(&key.comm)?.traffic;
        let moving = |end: Direction| {
            let known = traffic.known(key, end);
            let called = traffic.end(key, end).filter(|_| known.is_ready())?.clone();
            match known {
                Known::Here(_, group) => Some(MovingEnd::Here(called, group.device, enqueued[end as usize]?)),
                Known::Elsewhere(arrived) => Some(MovingEnd::Elsewhere(called, arrived?.clone())),
                Known::NotCalled | Known::Gone => None,
            }
        };
        let ends = [moving(Direction::Send)?, moving(Direction::Receive)?];
        let message = traffic.messages.get_mut(&key).filter(|message| !message.running)?;
        message.running = true;
        let moving = Moving { key, ends };
        for id in moving.calls().into_iter().flatten() {
            if let Some(group) = traffic.transfer_groups.get_mut(&id) {
                group.running += 1;
            }
        }
        Some(moving)
    }

    /// A message has been moved: notes at both ends what it touched, and what comes before what. Returns the calls whose
    /// last message it was.
    pub(crate) fn message_moved(
        &mut self,
        moved: Moving,
        touched: [Option<Touched>; 2],
    ) -> Vec<PointToPointId> {
        let calls = moved.calls();
        let Moving { key, ends } = moved;
        let Some(comm) = self.nccl.communicators.get_mut(&key.comm) else { return Vec::new() };
        comm.traffic.messages.remove(&key);
        // Of each end: the bytes that its group sends and receives, its place in time, and what was before it.
        let mut known = Vec::new();
        for (id, end) in calls.into_iter().zip(&ends) {
            known.push(match (id, end) {
                (_, MovingEnd::Elsewhere(_, arrived)) => {
                    (arrived.bytes, Some(Ticket::elsewhere(arrived.ready)), Some(arrived.view.clone()))
                }
                (id, _) => {
                    let group = id.and_then(|id| self.nccl.transfer_group_mut(id));
                    let Some((op, bytes)) = group.map(|group| (group.op, group.bytes)) else {
                        return Vec::new();
                    };
                    (bytes, self.engine.ticket_of(op), self.engine.first_of(op).map(|(_, view)| view))
                }
            });
        }
        // Messages that move together share their GPU's links.
        let bytes = if key.from == key.to { 0 } else { known[0].0[0].max(known[1].0[1]) };
        // What was before the send is before what follows the receive. A send may be done before its receive begins.
        let sent = known[0].2.take();
        let tickets = known.into_iter().map(|(_, ticket, _)| ticket).collect::<Vec<_>>();
        let mut over = Vec::new();
        for ((id, touched), (end, partner)) in
            calls.into_iter().zip(touched).zip([(Direction::Send, 1), (Direction::Receive, 0)])
        {
            let Some(id) = id else { continue };
            let Some(group) = self.nccl.transfer_group_mut(id) else { continue };
            group.touched.extend(touched);
            group.partners.extend(tickets[partner].clone().map(|ticket| (ticket, bytes)));
            if let (Direction::Receive, Some(view)) = (end, &sent) {
                group.view.join(view);
            }
            group.open.retain(|open| *open != (key, end));
            group.running -= 1;
            if group.open.is_empty() && group.failure.is_none() && !group.cancelled {
                over.push(id);
            }
        }
        over.dedup();
        for id in calls.into_iter().flatten() {
            self.leave_if_over(id);
        }
        over
    }
}
