//! Point-to-point calls. The sends and receives that a rank launches together are one operation of its stream, an
//! exchange: it is done when each of its messages is. The `k`th send from one rank to another goes to the `k`th receive
//! there; it moves as soon as both ends' streams have come to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::call::{CallKey, Checked, Missing, Request};
use super::communicator::LastCall;
use super::event::{Arrived, Event, MessageName, Stamp};
use super::run::Job;
use super::transfer::{Direction, Transfer};
use crate::engine::{Awaited, Failure, OpRef, State, Touched, Work};
use crate::order::View;
use crate::report::Report;
use crate::time::Ticket;
use crate::time::trace::Label;
use crate::time::tuning::point_to_point;
use virtual_gpu_core::source_location::Site;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

/// The `number`th message of a clique's rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MessageKey {
    pub(super) clique: u64,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) number: u64,
}

impl MessageKey {
    fn of(clique: u64, rank: usize, transfer: &Transfer, number: u64) -> Self {
        let peer = transfer.peer as usize;
        match transfer.direction {
            Direction::Send => Self { clique, from: rank, to: peer, number },
            Direction::Receive => Self { clique, from: peer, to: rank, number },
        }
    }

    /// The rank at an end.
    pub(super) fn rank(&self, end: Direction) -> usize {
        match end {
            Direction::Send => self.from,
            Direction::Receive => self.to,
        }
    }
}

/// An exchange: its rank, and which of that rank's exchanges it is.
pub(super) type ExchangeKey = (usize, u64);

/// All point-to-point traffic of a clique.
#[derive(Default)]
pub(super) struct Traffic {
    pub(super) exchanges: BTreeMap<ExchangeKey, Exchange>,
    /// Messages that have not been moved, of which at least one end was called.
    messages: BTreeMap<MessageKey, Message>,
    /// Messages that have failed at their other end, in another process, before this one was called.
    lost: BTreeMap<MessageKey, Failure>,
    /// Messages to a peer that a rank has called an end of, by rank, peer and end.
    called: BTreeMap<(usize, usize, bool), u64>,
}

/// What one rank launched together.
pub(super) struct Exchange {
    pub(super) op: OpRef,
    pub(super) device: usize,
    /// Its stream has come to it.
    arrived: bool,
    /// The processes at the other ends of its messages know so.
    told: bool,
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

impl Exchange {
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
    place: Place,
    pub(super) transfer: Transfer,
    pub(super) buffer: u64,
    is_captured: bool,
    pub(super) site: Site,
}

/// Where an end of a message is.
#[derive(Clone)]
enum Place {
    /// Here, in this one of its rank's exchanges.
    Here(u64),
    /// In another process; its arrival, once it has come to it.
    Elsewhere(Option<Arc<Arrived>>),
}

/// What is known of an end of a message.
enum Known<'a> {
    NotCalled,
    Here(ExchangeKey, &'a Exchange),
    Elsewhere(Option<&'a Arc<Arrived>>),
    /// It was called, and its exchange is gone.
    Gone,
}

impl Known<'_> {
    /// Whether its message can be moved, as far as this end goes.
    fn is_ready(&self) -> bool {
        match self {
            Self::Here(_, exchange) => {
                exchange.arrived && exchange.told && !exchange.cancelled && exchange.failure.is_none()
            }
            Self::Elsewhere(arrived) => arrived.is_some(),
            Self::NotCalled | Self::Gone => false,
        }
    }
}

/// An end of a message that other processes are told of.
pub(super) struct ReadyEnd {
    pub(super) message: MessageName,
    pub(super) end: Direction,
    pub(super) called: End,
    pub(super) device: usize,
    /// The place of its exchange among all operations.
    pub(super) enqueued: u64,
    pub(super) stamp: Stamp,
    /// Bytes that its exchange sends, and that it receives.
    pub(super) bytes: (u64, u64),
    /// Who is told.
    pub(super) process: u16,
}

/// An end of a message that is moved.
pub(super) enum MovingEnd {
    /// With its GPU, and the place of its exchange among all operations.
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
pub(crate) struct Moving {
    pub(super) key: MessageKey,
    pub(super) ends: [MovingEnd; 2],
}

impl Moving {
    /// The exchanges at its ends, of those that are here.
    fn places(&self) -> [Option<ExchangeKey>; 2] {
        [Direction::Send, Direction::Receive].map(|end| match &self.ends[end as usize] {
            MovingEnd::Here(End { place: Place::Here(exchange), .. }, ..) => {
                Some((self.key.rank(end), *exchange))
            }
            _ => None,
        })
    }
}

/// A message that an exchange waits for.
pub(super) struct Pending {
    pub(super) key: MessageKey,
    /// The exchange's own end.
    pub(super) own: End,
    /// The other end, where it was called.
    pub(super) other: Option<End>,
    pub(super) missing: Missing,
}

impl Traffic {
    /// How many messages to or from `peer` a rank has called its end of.
    pub(super) fn called(&self, rank: usize, peer: usize, end: Direction) -> u64 {
        self.called.get(&(rank, peer, end == Direction::Send)).copied().unwrap_or(0)
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.exchanges.is_empty()
    }

    fn end(&self, key: MessageKey, end: Direction) -> Option<&End> {
        self.messages.get(&key)?.ends[end as usize].as_ref()
    }

    /// What is known of one end of a message.
    fn known(&self, key: MessageKey, end: Direction) -> Known<'_> {
        match self.end(key, end).map(|end| &end.place) {
            None => Known::NotCalled,
            Some(Place::Elsewhere(arrived)) => Known::Elsewhere(arrived.as_ref()),
            Some(Place::Here(exchange)) => {
                let place = (key.rank(end), *exchange);
                self.exchanges.get(&place).map_or(Known::Gone, |exchange| Known::Here(place, exchange))
            }
        }
    }

    /// Notes a call; returns the message's key.
    fn add(&mut self, clique: u64, rank: usize, end: End) -> MessageKey {
        let direction = end.transfer.direction;
        let counted =
            self.called.entry((rank, end.transfer.peer as usize, direction == Direction::Send)).or_default();
        *counted += 1;
        let key = MessageKey::of(clique, rank, &end.transfer, *counted);
        let message =
            self.messages.entry(key).or_insert_with(|| Message { ends: [None, None], running: false });
        message.ends[direction as usize] = Some(end);
        key
    }
}

impl super::Nccl {
    pub(super) fn exchange_mut(&mut self, clique: u64, place: ExchangeKey) -> Option<&mut Exchange> {
        self.cliques.get_mut(&clique)?.traffic.exchanges.get_mut(&place)
    }

    /// The messages that hold up an exchange, in the order of its calls.
    pub(super) fn pending(&self, clique: u64, place: ExchangeKey) -> Vec<Pending> {
        let Some(clique) = self.cliques.get(&clique) else { return Vec::new() };
        let traffic = &clique.traffic;
        let Some(exchange) = traffic.exchanges.get(&place) else { return Vec::new() };
        if exchange.failure.is_some() {
            return Vec::new();
        }
        let pending = exchange.open.iter().filter_map(|&(key, own)| {
            let other = own.other();
            let rank = &clique.ranks[key.rank(other)];
            let missing = match traffic.known(key, other) {
                Known::NotCalled => rank.absence(),
                Known::Gone => Missing::Gone,
                Known::Here(_, peer) if peer.cancelled || peer.failure.is_some() => Missing::Gone,
                Known::Elsewhere(Some(_)) => return None,
                // It is moved, or the other ends are being told of it first.
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
}

impl super::Nccl {
    /// The calls here that need what one of these ranks has still to do.
    pub(super) fn held_up_by(&self, clique: u64, lost: &[usize]) -> Vec<CallKey> {
        let Some(entry) = self.cliques.get(&clique) else { return Vec::new() };
        let collectives = entry.calls.iter().filter(|(_, call)| {
            let come = |rank: usize| call.parts[rank].as_ref().is_some_and(|part| part.arrived);
            call.failure.is_none() && !lost.iter().all(|&rank| come(rank))
        });
        let collectives = collectives.map(|(&number, _)| CallKey::Collective { clique, number });
        let exchanges = entry.traffic.exchanges.iter().filter(|(_, exchange)| {
            exchange.failure.is_none()
                && exchange.open.iter().any(|&(key, own)| {
                    let other = own.other();
                    lost.contains(&key.rank(other)) && !entry.traffic.known(key, other).is_ready()
                })
        });
        let exchanges = exchanges.map(|(&(rank, number), _)| CallKey::Exchange { clique, rank, number });
        let assemblies = entry.assemblies.keys().filter(|&&number| self.lacks_any((clique, number), lost));
        let assemblies = assemblies.map(|&number| CallKey::Assembly { clique, number });
        collectives.chain(exchanges).chain(assemblies).collect()
    }
}

impl State {
    /// Enqueues the sends and receives that a rank launches together, on the first one's stream, to come after others.
    pub(super) fn enqueue_exchange(
        &mut self,
        clique: u64,
        rank: usize,
        transfers: Vec<Checked>,
        after: Vec<Awaited>,
    ) -> NcclResult<()> {
        let owner = self.current_thread();
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else {
            return Err(Error::new(NcclStatus::InvalidArgument, "the communicator is gone"));
        };
        entry.check_all_there()?;
        let (number, device) = (entry.ranks[rank].exchanges + 1, entry.ranks[rank].device);
        let (stream, site) = (transfers[0].stream, transfers[0].site.clone());
        let work = Work::Collective(CallKey::Exchange { clique, rank, number });
        let Awaited { op, when, .. } = self.enqueue(stream, work, after, site)?;
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return Ok(()) };
        entry.ranks[rank].exchanges = number;
        entry.used_by(rank, owner);
        let mut bytes = [0; 2];
        let (mut open, mut called) = (Vec::new(), Vec::new());
        for Checked { request, captured, site, .. } in transfers {
            let Request::Transfer(transfer, buffer) = request else { continue };
            called.push((transfer, captured.is_some(), site.clone()));
            entry.ranks[rank].last = Some(LastCall { request, op, site: site.clone(), told_not_yet: false });
            if transfer.peer as usize != rank {
                bytes[transfer.direction as usize] += transfer.bytes();
            }
            let is_captured = captured.is_some();
            let end = End { place: Place::Here(number), transfer, buffer, is_captured, site };
            open.push((entry.traffic.add(clique, rank, end), transfer.direction));
        }
        let moved = point_to_point(self.time.preset(), bytes[0].max(bytes[1]));
        self.time.communicates(&when, moved, || {
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
        let exchange = Exchange {
            op,
            device,
            arrived: false,
            told: messages.iter().all(|(key, own)| entry.ranks[key.rank(own.other())].process.is_none()),
            cancelled: false,
            failure: lost,
            open,
            running: 0,
            bytes,
            touched: Vec::new(),
            view: View::default(),
            partners: Vec::new(),
        };
        entry.traffic.exchanges.insert((rank, number), exchange);
        for (transfer, is_captured, site) in called {
            let event = Event::End { rank, transfer, is_captured, site };
            self.publish_to(clique, transfer.peer as usize, &event);
        }
        for key in messages.into_iter().map(|(key, _)| key).collect::<BTreeSet<_>>() {
            self.compare_ends(key);
        }
        Ok(())
    }

    /// Once both ends are called: do they agree?
    fn compare_ends(&mut self, key: MessageKey) {
        let Some(clique) = self.nccl.cliques.get(&key.clique) else { return };
        let Some(Message { ends: [Some(send), Some(receive)], .. }) = clique.traffic.messages.get(&key)
        else {
            return;
        };
        let is_same = send.transfer.agrees(&receive.transfer);
        if is_same && send.is_captured == receive.is_captured {
            return;
        }
        let MessageKey { from, to, number, .. } = key;
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
            Report::new(format!("ranks disagree about message {number} from rank {from} to rank {to}"))
                .at(format!("rank {from}: {}", words(send)), &send.site)
                .at(format!("rank {to}: {}", words(receive)), &receive.site)
                .help(help);
        let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
        for place in self.exchanges_at(key) {
            self.fail_exchange(key.clique, place, &failure);
        }
    }

    /// The exchanges at a message's ends, of those that are here.
    fn exchanges_at(&self, key: MessageKey) -> Vec<ExchangeKey> {
        let Some(clique) = self.nccl.cliques.get(&key.clique) else { return Vec::new() };
        let ends = [Direction::Send, Direction::Receive].map(|end| clique.traffic.known(key, end));
        let here = ends.into_iter().filter_map(|known| match known {
            Known::Here(place, _) => Some(place),
            _ => None,
        });
        here.collect()
    }

    /// A rank of another process has called its end of a message.
    pub(super) fn end_elsewhere(
        &mut self,
        clique: u64,
        rank: usize,
        (transfer, is_captured): (Transfer, bool),
        site: Site,
    ) {
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return };
        let end = End { place: Place::Elsewhere(None), transfer, buffer: 0, is_captured, site };
        let key = entry.traffic.add(clique, rank, end);
        self.compare_ends(key);
    }

    /// The stream of a rank of another process has come to its end of a message.
    pub(super) fn end_ready_elsewhere(
        &mut self,
        key: MessageKey,
        end: Direction,
        arrived: Arc<Arrived>,
    ) -> Option<Job> {
        let traffic = &mut self.nccl.cliques.get_mut(&key.clique)?.traffic;
        let own = traffic.messages.get_mut(&key)?.ends[end as usize].as_mut()?;
        if end == Direction::Send && arrived.payload.len() as u64 != own.transfer.bytes() {
            return None;
        }
        own.place = Place::Elsewhere(Some(arrived));
        if !traffic.known(key, end.other()).is_ready() {
            return None;
        }
        Some(Job::Messages(vec![self.take_message(key)?]))
    }

    /// A message has failed at its other end, in another process.
    pub(super) fn message_lost(&mut self, key: MessageKey, failure: &Failure) {
        let places = self.exchanges_at(key);
        if places.is_empty()
            && let Some(entry) = self.nccl.cliques.get_mut(&key.clique)
        {
            entry.traffic.lost.insert(key, failure.clone());
        }
        for place in places {
            self.fail_exchange(key.clique, place, failure);
        }
    }

    /// The ends of an exchange whose other ends are in other processes, as those are told of them now.
    pub(super) fn ends_to_tell(&mut self, clique: u64, place: ExchangeKey) -> Option<Vec<ReadyEnd>> {
        let exchange = self.nccl.exchange_mut(clique, place)?;
        let (op, device, [sent, got]) = (exchange.op, exchange.device, exchange.bytes);
        if exchange.cancelled || exchange.failure.is_some() {
            return None;
        }
        let open = exchange.open.clone();
        let mut ready = Vec::new();
        for (key, end) in open {
            let entry = self.nccl.cliques.get(&clique)?;
            let Some(process) = entry.ranks[key.rank(end.other())].process else { continue };
            let called = entry.traffic.end(key, end)?.clone();
            let MessageKey { from, to, number, .. } = key;
            ready.push(ReadyEnd {
                message: MessageName { from, to, number },
                end,
                called,
                device,
                enqueued: self.enqueued_as(op)?,
                stamp: self.stamp(op)?,
                bytes: (sent, got),
                process: process.number,
            });
        }
        Some(ready)
    }

    /// A rank's stream has come to an exchange. Returns the messages that can be moved now.
    pub(super) fn arrive_at_exchange(&mut self, clique: u64, place: ExchangeKey) -> Option<Job> {
        let exchange = self.nccl.exchange_mut(clique, place)?;
        exchange.arrived = true;
        if exchange.cancelled || exchange.failure.is_some() {
            self.leave_if_over(clique, place);
            return None;
        }
        if !exchange.told {
            return Some(Job::Ends(clique, place));
        }
        self.ready_messages(clique, place)
    }

    /// The processes at the other ends of an exchange's messages know that its stream has come to it. Returns the messages
    /// that can be moved now.
    pub(super) fn told_ends(&mut self, clique: u64, place: ExchangeKey) -> Option<Job> {
        let exchange = self.nccl.exchange_mut(clique, place)?;
        exchange.told = true;
        self.ready_messages(clique, place)
    }

    fn ready_messages(&mut self, clique: u64, place: ExchangeKey) -> Option<Job> {
        let open = self.nccl.exchange_mut(clique, place)?.open.clone();
        let mut ready = Vec::new();
        for (key, own) in open {
            let traffic = &self.nccl.cliques.get(&clique)?.traffic;
            if !traffic.known(key, own.other()).is_ready() {
                continue;
            }
            if let Some(report) = self.failed_end(key) {
                let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
                for place in self.exchanges_at(key) {
                    self.fail_exchange(clique, place, &failure);
                }
                break;
            }
            ready.extend(self.take_message(key));
        }
        (!ready.is_empty()).then_some(Job::Messages(ready))
    }

    /// The report where the GPU at one end of a message, here, has failed.
    pub(super) fn failed_end(&self, key: MessageKey) -> Option<Report> {
        let traffic = &self.nccl.cliques.get(&key.clique)?.traffic;
        [Direction::Send, Direction::Receive].into_iter().find_map(|end| {
            let Known::Here(_, exchange) = traffic.known(key, end) else { return None };
            let called = traffic.end(key, end)?;
            self.failed_gpu(exchange.op, key.rank(end), &called.request(), &called.site)
        })
    }

    /// Takes a message to be moved, if both ends' streams have come to it.
    fn take_message(&mut self, key: MessageKey) -> Option<Moving> {
        let known = &self.nccl.cliques.get(&key.clique)?.traffic;
        let enqueued = [Direction::Send, Direction::Receive].map(|end| match known.known(key, end) {
            Known::Here(_, exchange) => self.enqueued_as(exchange.op),
            _ => None,
        });
        let traffic = &mut self.nccl.cliques.get_mut(&key.clique)?.traffic;
        let moving = |end: Direction| {
            let known = traffic.known(key, end);
            let called = traffic.end(key, end).filter(|_| known.is_ready())?.clone();
            match known {
                Known::Here(_, exchange) => {
                    Some(MovingEnd::Here(called, exchange.device, enqueued[end as usize]?))
                }
                Known::Elsewhere(arrived) => Some(MovingEnd::Elsewhere(called, arrived?.clone())),
                Known::NotCalled | Known::Gone => None,
            }
        };
        let ends = [moving(Direction::Send)?, moving(Direction::Receive)?];
        let message = traffic.messages.get_mut(&key).filter(|message| !message.running)?;
        message.running = true;
        let moving = Moving { key, ends };
        for place in moving.places().into_iter().flatten() {
            if let Some(exchange) = traffic.exchanges.get_mut(&place) {
                exchange.running += 1;
            }
        }
        Some(moving)
    }

    /// A message has been moved: tells both ends' exchanges what it touched, and what comes before what. Returns the
    /// exchanges whose last message it was.
    pub(super) fn message_moved(&mut self, moved: Moving, touched: [Option<Touched>; 2]) -> Vec<ExchangeKey> {
        let places = moved.places();
        let Moving { key, ends } = moved;
        let Some(clique) = self.nccl.cliques.get_mut(&key.clique) else { return Vec::new() };
        clique.traffic.messages.remove(&key);
        // Of each end: the bytes that its exchange sends and receives, its place in time, and what was before it.
        let mut known = Vec::new();
        for (place, end) in places.into_iter().zip(&ends) {
            known.push(match (place, end) {
                (_, MovingEnd::Elsewhere(_, arrived)) => {
                    (arrived.bytes, Some(Ticket::elsewhere(arrived.ready)), Some(arrived.view.clone()))
                }
                (place, _) => {
                    let exchange = place.and_then(|place| self.nccl.exchange_mut(key.clique, place));
                    let Some((op, bytes)) = exchange.map(|exchange| (exchange.op, exchange.bytes)) else {
                        return Vec::new();
                    };
                    (bytes, self.ticket_of(op), self.first_of(op).map(|(_, view)| view))
                }
            });
        }
        // Messages that move together share their GPU's links.
        let bytes = if key.from == key.to { 0 } else { known[0].0[0].max(known[1].0[1]) };
        // What was before the send is before what follows the receive. A send may be done before its receive begins.
        let sent = known[0].2.take();
        let tickets = known.into_iter().map(|(_, ticket, _)| ticket).collect::<Vec<_>>();
        let mut over = Vec::new();
        for ((place, touched), (end, partner)) in
            places.into_iter().zip(touched).zip([(Direction::Send, 1), (Direction::Receive, 0)])
        {
            let Some(place) = place else { continue };
            let Some(exchange) = self.nccl.exchange_mut(key.clique, place) else { continue };
            exchange.touched.extend(touched);
            exchange.partners.extend(tickets[partner].clone().map(|ticket| (ticket, bytes)));
            if let (Direction::Receive, Some(view)) = (end, &sent) {
                exchange.view.join(view);
            }
            exchange.open.retain(|open| *open != (key, end));
            exchange.running -= 1;
            if exchange.open.is_empty() && exchange.failure.is_none() && !exchange.cancelled {
                over.push(place);
            }
        }
        over.dedup();
        for place in places.into_iter().flatten() {
            self.leave_if_over(key.clique, place);
        }
        over
    }

    /// A message could not be moved: both exchanges fail.
    pub(super) fn message_failed(&mut self, moved: &Moving, failure: &Failure) {
        let clique = moved.key.clique;
        for place in moved.places().into_iter().flatten() {
            if let Some(exchange) = self.nccl.exchange_mut(clique, place) {
                exchange.running -= 1;
            }
            self.fail_exchange(clique, place, failure);
        }
    }

    /// Makes an exchange fail that can't be complete: now, where its stream has come to it, or when it does.
    pub(super) fn fail_exchange(&mut self, clique: u64, place: ExchangeKey, failure: &Failure) {
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return };
        entry.note_failure(failure);
        let Some(exchange) = entry.traffic.exchanges.get_mut(&place) else { return };
        let open = exchange.open.clone();
        if exchange.failure.is_none() {
            exchange.failure = Some(failure.clone());
            for (key, own) in open {
                self.publish_lost_message(key, key.rank(own.other()), failure);
            }
        }
        self.leave_if_over(clique, place);
    }

    /// Takes a rank's exchanges out of whatever is not being moved yet.
    pub(super) fn cancel_exchanges(&mut self, clique: u64, rank: usize) {
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return };
        let own = entry.traffic.exchanges.range_mut((rank, 0)..=(rank, u64::MAX));
        let mut places = Vec::new();
        for (&place, exchange) in own {
            exchange.cancelled = true;
            places.push(place);
        }
        for place in places {
            self.leave_if_over(clique, place);
        }
    }

    /// Lets the stream of an exchange that has failed or was cancelled go on, once nothing of it is being moved.
    fn leave_if_over(&mut self, clique: u64, place: ExchangeKey) {
        let Some(exchange) = self.nccl.exchange_mut(clique, place) else { return };
        let Exchange { op, arrived, cancelled, running, failure, .. } = exchange;
        if !*arrived || *running > 0 || (failure.is_none() && !*cancelled) {
            return;
        }
        let (stream, failure, cancelled) = (op.stream, failure.clone(), *cancelled);
        if let Some(entry) = self.nccl.cliques.get_mut(&clique) {
            entry.traffic.exchanges.remove(&place);
        }
        if let Some(failure) = failure.filter(|_| !cancelled) {
            self.fail_stream(stream, &failure);
        }
        self.finish(stream);
    }
}
