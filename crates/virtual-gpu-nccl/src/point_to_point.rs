//! Point-to-point calls. The sends and receives that a rank launches together are one operation of its stream: it is done
//! when each of its messages is. The `k`th send from one rank to another goes to the `k`th receive there. A message moves as
//! soon as both ends' streams have come to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::call::{Checked, Request};
use super::communicator::LastCall;
use super::event::{Arrived, Event, MessageName, Stamp};
use super::run::Job;
use super::session::ProcessNumber;
use super::transfer::{Direction, Transfer};
use super::{Locked, State};
use virtual_gpu::engine::{Awaited, Failure, Missing, Touched};
use virtual_gpu::order::View;
use virtual_gpu::report::Report;
use virtual_gpu::time::Ticket;
use virtual_gpu::time::trace::Label;
use virtual_gpu::time::tuning::point_to_point;
use virtual_gpu_core::handle::{
    CallKey, CollectiveId, CommId, ManagementId, OpRef, PointToPointId, SequenceNumber,
};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaStatus, NcclResult};

/// A message from one rank of a communicator to another: the `sequence`th between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MessageKey {
    pub(super) comm: CommId,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) sequence: SequenceNumber,
}

impl MessageKey {
    fn of(comm: CommId, rank: usize, transfer: &Transfer, sequence: SequenceNumber) -> Self {
        let peer = transfer.peer as usize;
        match transfer.direction {
            Direction::Send => Self { comm, from: rank, to: peer, sequence },
            Direction::Receive => Self { comm, from: peer, to: rank, sequence },
        }
    }

    /// What the rank at an end launched together, its `sequence`th such group.
    fn call_at(&self, end: Direction, sequence: SequenceNumber) -> PointToPointId {
        PointToPointId { comm: self.comm, rank: self.rank(end), sequence }
    }

    /// The rank at an end.
    pub(super) fn rank(&self, end: Direction) -> usize {
        match end {
            Direction::Send => self.from,
            Direction::Receive => self.to,
        }
    }
}

/// All point-to-point traffic of a communicator.
#[derive(Default)]
pub(super) struct Traffic {
    pub(super) transfer_groups: BTreeMap<PointToPointId, TransferGroup>,
    /// Messages that have not been moved, of which at least one end was called.
    messages: BTreeMap<MessageKey, Message>,
    /// Messages that have failed at their other end, in another process, before this one was called.
    lost: BTreeMap<MessageKey, Failure>,
    /// Messages to a peer that a rank has called an end of, by rank, peer and end.
    called: HashMap<Route, SequenceNumber>,
}

/// One direction between two ranks, at one end.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Route {
    rank: usize,
    peer: usize,
    end: Direction,
}

/// What one rank launched together.
pub(super) struct TransferGroup {
    pub(super) op: OpRef,
    pub(super) device: usize,
    /// Its stream has come to it.
    arrived: bool,
    /// The processes at the other ends of its messages know so.
    published: bool,
    /// Its rank has aborted.
    cancelled: bool,
    failure: Option<Failure>,
    /// Messages that have not been moved, with its end of each.
    open: Vec<(MessageKey, Direction)>,
    /// How many of them are being moved.
    running: usize,
    /// Bytes that it sends, and that it receives.
    bytes: [u64; 2],
    /// What the messages that were moved have touched here, what had happened before they were sent, and the other ends'
    /// places in time, with the bytes that shared the links.
    pub(super) touched: Vec<Touched>,
    pub(super) view: View,
    pub(super) partners: Vec<(Ticket, u64)>,
}

impl TransferGroup {
    /// Its functions, as a report names it.
    pub(super) fn what(&self) -> &'static str {
        let (reads, writes) = self
            .touched
            .iter()
            .flat_map(|touched| &touched.touches)
            .fold((false, false), |(reads, writes), touch| (reads || !touch.writes, writes || touch.writes));
        match (reads, writes) {
            (true, false) => "ncclSend",
            (false, true) => "ncclRecv",
            _ => "ncclSend and ncclRecv",
        }
    }
}

struct Message {
    ends: [Option<End>; 2],
    running: bool,
}

/// One end of a message, as it was called.
#[derive(Clone)]
pub(super) struct End {
    location: EndLocation,
    pub(super) transfer: Transfer,
    pub(super) buffer: u64,
    is_captured: bool,
    pub(super) call_site: CallSite,
}

/// Where an end of a message is.
#[derive(Clone)]
enum EndLocation {
    /// Here, in this one of its rank's groups of sends and receives.
    Here(SequenceNumber),
    /// In another process; its arrival, once it has come to it.
    Elsewhere(Option<Arc<Arrived>>),
}

/// What is known of an end of a message.
enum Known<'a> {
    NotCalled,
    Here(PointToPointId, &'a TransferGroup),
    Elsewhere(Option<&'a Arc<Arrived>>),
    /// It was called, and its group is gone.
    Gone,
}

impl Known<'_> {
    /// Whether its message can be moved, as far as this end goes.
    fn is_ready(&self) -> bool {
        match self {
            Self::Here(_, group) => {
                group.arrived && group.published && !group.cancelled && group.failure.is_none()
            }
            Self::Elsewhere(arrived) => arrived.is_some(),
            Self::NotCalled | Self::Gone => false,
        }
    }
}

/// An end of a message that other processes are published of.
pub(super) struct ReadyEnd {
    pub(super) message: MessageName,
    pub(super) end: Direction,
    pub(super) called: End,
    pub(super) device: usize,
    /// The place of its group among all operations.
    pub(super) enqueued: u64,
    pub(super) stamp: Stamp,
    /// Bytes that its group sends, and that it receives.
    pub(super) bytes: (u64, u64),
    /// Who is published.
    pub(super) process: ProcessNumber,
}

/// An end of a message that is moved.
pub(super) enum MovingEnd {
    /// With its GPU, and the place of its group among all operations.
    Here(End, usize, u64),
    Elsewhere(End, Arc<Arrived>),
}

impl MovingEnd {
    pub(super) fn end(&self) -> &End {
        match self {
            Self::Here(end, ..) | Self::Elsewhere(end, _) => end,
        }
    }

    /// Its GPU, if that is here.
    pub(super) fn device(&self) -> Option<usize> {
        match self {
            Self::Here(_, device, _) => Some(*device),
            Self::Elsewhere(..) => None,
        }
    }
}

impl End {
    pub(super) fn request(&self) -> Request {
        Request::Transfer(self.transfer, self.buffer)
    }
}

/// A message that is moved, with its ends.
pub(super) struct Moving {
    pub(super) key: MessageKey,
    pub(super) ends: [MovingEnd; 2],
}

impl Moving {
    /// The calls at its ends, of those that are here.
    fn calls(&self) -> [Option<PointToPointId>; 2] {
        [Direction::Send, Direction::Receive].map(|end| match &self.ends[end as usize] {
            MovingEnd::Here(End { location: EndLocation::Here(sequence), .. }, ..) => {
                Some(self.key.call_at(end, *sequence))
            }
            _ => None,
        })
    }
}

/// A message that a rank's sends and receives wait for.
pub(super) struct Pending {
    pub(super) key: MessageKey,
    /// The rank's own end.
    pub(super) own: End,
    /// The other end, where it was called.
    pub(super) other: Option<End>,
    pub(super) missing: Missing,
}

impl Traffic {
    /// How many messages to or from `peer` a rank has called its end of.
    pub(super) fn called(&self, rank: usize, peer: usize, end: Direction) -> u64 {
        self.called.get(&Route { rank, peer, end }).copied().unwrap_or_default().0
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.transfer_groups.is_empty()
    }

    fn end(&self, key: MessageKey, end: Direction) -> Option<&End> {
        self.messages.get(&key)?.ends[end as usize].as_ref()
    }

    /// What is known of one end of a message.
    fn known(&self, key: MessageKey, end: Direction) -> Known<'_> {
        match self.end(key, end).map(|end| &end.location) {
            None => Known::NotCalled,
            Some(EndLocation::Elsewhere(arrived)) => Known::Elsewhere(arrived.as_ref()),
            Some(EndLocation::Here(sequence)) => {
                let id = key.call_at(end, *sequence);
                self.transfer_groups.get(&id).map_or(Known::Gone, |group| Known::Here(id, group))
            }
        }
    }

    /// Notes a call; returns the message's key.
    fn add(&mut self, comm: CommId, rank: usize, end: End) -> MessageKey {
        let direction = end.transfer.direction;
        let route = Route { rank, peer: end.transfer.peer as usize, end: direction };
        let counted = self.called.entry(route).or_default();
        *counted = counted.next();
        let key = MessageKey::of(comm, rank, &end.transfer, *counted);
        let message =
            self.messages.entry(key).or_insert_with(|| Message { ends: [None, None], running: false });
        message.ends[direction as usize] = Some(end);
        key
    }
}

impl State {
    pub(super) fn transfer_group_mut(&mut self, id: PointToPointId) -> Option<&mut TransferGroup> {
        self.communicators.get_mut(&id.comm)?.traffic.transfer_groups.get_mut(&id)
    }

    /// The messages that hold up what a rank launched together, in the order of its calls.
    pub(super) fn pending(&self, id: PointToPointId) -> Vec<Pending> {
        let Some(comm) = self.communicators.get(&id.comm) else { return Vec::new() };
        let traffic = &comm.traffic;
        let Some(group) = traffic.transfer_groups.get(&id) else { return Vec::new() };
        if group.failure.is_some() {
            return Vec::new();
        }
        let pending = group.open.iter().filter_map(|&(key, own)| {
            let other = own.other();
            let rank = &comm.ranks[key.rank(other)];
            let missing = match traffic.known(key, other) {
                Known::NotCalled => rank.absence(),
                Known::Gone => Missing::Gone,
                Known::Here(_, peer) if peer.cancelled || peer.failure.is_some() => Missing::Gone,
                Known::Elsewhere(Some(_)) => return None,
                // It is moved, or the other ends are being published first.
                Known::Here(_, peer) if peer.arrived => return None,
                Known::Here(_, peer) => Missing::InStream(peer.op),
                Known::Elsewhere(_) if rank.left.is_some() => Missing::Gone,
                Known::Elsewhere(_) => Missing::Elsewhere,
            };
            let (own, other) = (traffic.end(key, own)?.clone(), traffic.end(key, other).cloned());
            Some(Pending { key, own, other, missing })
        });
        pending.collect()
    }

    /// The calls here that need what one of these ranks has still to do.
    pub(super) fn held_up_by(&self, comm: CommId, lost: &[usize]) -> Vec<CallKey> {
        let Some(entry) = self.communicators.get(&comm) else { return Vec::new() };
        let collectives = entry.calls.iter().filter(|(_, call)| {
            let come = |rank: usize| call.parts[rank].as_ref().is_some_and(|part| part.arrived);
            call.failure.is_none() && !lost.iter().all(|&rank| come(rank))
        });
        let collectives =
            collectives.map(|(&sequence, _)| CallKey::Collective(CollectiveId { comm, sequence }));
        let transfer_groups = entry.traffic.transfer_groups.iter().filter(|(_, group)| {
            group.failure.is_none()
                && group.open.iter().any(|&(key, own)| {
                    let other = own.other();
                    lost.contains(&key.rank(other)) && !entry.traffic.known(key, other).is_ready()
                })
        });
        let transfer_groups = transfer_groups.map(|(&id, _)| CallKey::PointToPoint(id));
        let management_calls = entry.management_calls.keys().map(|&sequence| ManagementId { comm, sequence });
        let management_calls =
            management_calls.filter(|&id| self.lacks_any(id, lost)).map(CallKey::Management);
        collectives.chain(transfer_groups).chain(management_calls).collect()
    }
}

impl Locked<'_> {
    /// Enqueues the sends and receives that a rank launches together, on the first one's stream, to come after others.
    pub(super) fn enqueue_transfers(
        &mut self,
        (comm, rank): (CommId, usize),
        transfers: Vec<Checked>,
        after: Vec<Awaited>,
    ) -> NcclResult<()> {
        let owner = self.engine.current_thread();
        let entry = self.nccl.communicator(comm)?;
        entry.check_all_there()?;
        let (sequence, device) = (entry.ranks[rank].transfer_groups.next(), entry.ranks[rank].device);
        let id = PointToPointId { comm, rank, sequence };
        let (stream, call_site) = (transfers[0].stream, transfers[0].call_site.clone());
        let Awaited { op, when, .. } =
            self.engine.enqueue_call(stream, CallKey::PointToPoint(id), after, call_site)?;
        let entry = self.nccl.communicator_mut(comm)?;
        entry.ranks[rank].transfer_groups = sequence;
        entry.used_by(rank, owner);
        let mut bytes = [0; 2];
        let (mut open, mut called) = (Vec::new(), Vec::new());
        for Checked { request, captured, call_site, .. } in transfers {
            let Request::Transfer(transfer, buffer) = request else { continue };
            called.push((transfer, captured.is_some(), call_site.clone()));
            entry.ranks[rank].last =
                Some(LastCall { request, op, call_site: call_site.clone(), was_polled: false });
            if transfer.peer as usize != rank {
                bytes[transfer.direction as usize] += transfer.bytes();
            }
            let is_captured = captured.is_some();
            let end = End { location: EndLocation::Here(sequence), transfer, buffer, is_captured, call_site };
            open.push((entry.traffic.add(comm, rank, end), transfer.direction));
        }
        let moved = point_to_point(self.engine.time.preset(), bytes[0].max(bytes[1]));
        self.engine.time.communicates(&when, moved, || {
            let name = match bytes {
                [_, 0] => "ncclSend",
                [0, _] => "ncclRecv",
                _ => "ncclSend and ncclRecv",
            };
            let label = Label::new("collective", name).with("rank", rank);
            label.with("bytes sent", bytes[0]).with("bytes received", bytes[1])
        });
        let messages = open.clone();
        let lost = messages.iter().find_map(|(key, _)| entry.traffic.lost.remove(key));
        let group = TransferGroup {
            op,
            device,
            arrived: false,
            published: messages.iter().all(|(key, own)| entry.ranks[key.rank(own.other())].process.is_none()),
            cancelled: false,
            failure: lost,
            open,
            running: 0,
            bytes,
            touched: Vec::new(),
            view: View::default(),
            partners: Vec::new(),
        };
        entry.traffic.transfer_groups.insert(id, group);
        for (transfer, is_captured, call_site) in called {
            let event = Event::End { rank, transfer, is_captured, call_site };
            self.publish_to(comm, transfer.peer as usize, &event);
        }
        for key in messages.into_iter().map(|(key, _)| key).collect::<BTreeSet<_>>() {
            self.compare_ends(key);
        }
        Ok(())
    }

    /// Once both ends are called: do they agree?
    fn compare_ends(&mut self, key: MessageKey) {
        let Some(comm) = self.nccl.communicators.get(&key.comm) else { return };
        let Some(Message { ends: [Some(send), Some(receive)], .. }) = comm.traffic.messages.get(&key) else {
            return;
        };
        let is_same = send.transfer.agrees(&receive.transfer);
        if is_same && send.is_captured == receive.is_captured {
            return;
        }
        let MessageKey { from, to, sequence, .. } = key;
        let words = |end: &End| match end.is_captured {
            true => format!("{}, captured in a graph", end.transfer),
            false => end.transfer.to_string(),
        };
        let help = match is_same {
            true => "a send and its receive have to be both captured in a graph, or both not",
            false => {
                "a send and its receive need the same count and type; between two ranks they pair up in the order of their calls"
            }
        };
        let report =
            Report::new(format!("ranks disagree about message {sequence} from rank {from} to rank {to}"))
                .at(format!("rank {from}: {}", words(send)), &send.call_site)
                .at(format!("rank {to}: {}", words(receive)), &receive.call_site)
                .help(help);
        let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
        for id in self.transfer_groups_at(key) {
            self.fail_transfers(id, &failure);
        }
    }

    /// The calls at a message's ends, of those that are here.
    fn transfer_groups_at(&self, key: MessageKey) -> Vec<PointToPointId> {
        let Some(comm) = self.nccl.communicators.get(&key.comm) else { return Vec::new() };
        let ends = [Direction::Send, Direction::Receive].map(|end| comm.traffic.known(key, end));
        let here = ends.into_iter().filter_map(|known| match known {
            Known::Here(id, _) => Some(id),
            _ => None,
        });
        here.collect()
    }

    /// A rank of another process has called its end of a message.
    pub(super) fn end_elsewhere(
        &mut self,
        comm: CommId,
        rank: usize,
        (transfer, is_captured): (Transfer, bool),
        call_site: CallSite,
    ) {
        let Some(entry) = self.nccl.communicators.get_mut(&comm) else { return };
        let end = End { location: EndLocation::Elsewhere(None), transfer, buffer: 0, is_captured, call_site };
        let key = entry.traffic.add(comm, rank, end);
        self.compare_ends(key);
    }

    /// The stream of a rank of another process has come to its end of a message.
    pub(super) fn end_ready_elsewhere(
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

    /// A message has failed at its other end, in another process.
    pub(super) fn message_lost(&mut self, key: MessageKey, failure: &Failure) {
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

    /// The ends of messages whose other ends are in other processes, as they are published now.
    pub(super) fn ends_to_publish(&mut self, id: PointToPointId) -> Option<Vec<ReadyEnd>> {
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
    pub(super) fn arrive_at_transfers(&mut self, id: PointToPointId) -> Option<Job> {
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
    pub(super) fn published_ends(&mut self, id: PointToPointId) -> Option<Job> {
        let group = self.nccl.transfer_group_mut(id)?;
        group.published = true;
        self.ready_messages(id)
    }

    fn ready_messages(&mut self, id: PointToPointId) -> Option<Job> {
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
    pub(super) fn failed_end(&self, key: MessageKey) -> Option<Report> {
        let traffic = &self.nccl.communicators.get(&key.comm)?.traffic;
        [Direction::Send, Direction::Receive].into_iter().find_map(|end| {
            let Known::Here(_, group) = traffic.known(key, end) else { return None };
            let called = traffic.end(key, end)?;
            self.failed_gpu(group.op, key.rank(end), &called.request(), &called.call_site)
        })
    }

    /// Takes a message to be moved, if both ends' streams have come to it.
    fn take_message(&mut self, key: MessageKey) -> Option<Moving> {
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
    pub(super) fn message_moved(
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

    /// A message could not be moved: both ends fail.
    pub(super) fn message_failed(&mut self, moved: &Moving, failure: &Failure) {
        for id in moved.calls().into_iter().flatten() {
            if let Some(group) = self.nccl.transfer_group_mut(id) {
                group.running -= 1;
            }
            self.fail_transfers(id, failure);
        }
    }

    /// Makes what a rank launched together fail: now, where its stream has come to it, or when it does.
    pub(super) fn fail_transfers(&mut self, id: PointToPointId, failure: &Failure) {
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
    pub(super) fn cancel_transfers(&mut self, comm: CommId, rank: usize) {
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
    fn leave_if_over(&mut self, id: PointToPointId) {
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
