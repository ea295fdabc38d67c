//! Point-to-point calls. The sends and receives that a rank launches together are one operation of its stream, an
//! exchange: it is done when each of its messages is. The `k`th send from one rank to another goes to the `k`th receive
//! there; it moves as soon as both ends' streams have come to it.

use std::collections::BTreeMap;

use super::call::{CallKey, Checked, Missing, Request};
use super::communicator::LastCall;
use super::run::Job;
use super::transfer::{Direction, Transfer};
use crate::engine::{Awaited, Failure, OpRef, State, Touched, Work};
use crate::order::View;
use crate::report::Report;
use crate::site::Site;
use crate::status::{CudaStatus, Error, NcclResult, NcclStatus};
use crate::time::Ticket;
use crate::time::trace::Label;
use crate::time::tuning::point_to_point;

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
type ExchangeKey = (usize, u64);

/// All point-to-point traffic of a clique.
#[derive(Default)]
pub(super) struct Traffic {
    pub(super) exchanges: BTreeMap<ExchangeKey, Exchange>,
    /// Messages that have not been moved, of which at least one end was called.
    messages: BTreeMap<MessageKey, Message>,
    /// Messages to a peer that a rank has called an end of, by rank, peer and end.
    called: BTreeMap<(usize, usize, bool), u64>,
}

/// What one rank launched together.
pub(super) struct Exchange {
    pub(super) op: OpRef,
    pub(super) device: usize,
    /// Its stream has come to it.
    arrived: bool,
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
    /// Which of its rank's exchanges it belongs to.
    exchange: u64,
    pub(super) transfer: Transfer,
    pub(super) buffer: u64,
    is_captured: bool,
    pub(super) site: Site,
}

impl End {
    pub(super) fn request(&self) -> Request {
        Request::Transfer(self.transfer, self.buffer)
    }
}

/// A message that is moved: its ends, with their GPUs.
pub(crate) struct Moving {
    pub(super) key: MessageKey,
    pub(super) ends: [(End, usize); 2],
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

    /// The exchange at one end of a message.
    fn exchange_at(&self, key: MessageKey, end: Direction) -> Option<(ExchangeKey, &Exchange)> {
        let place = (key.rank(end), self.end(key, end)?.exchange);
        Some((place, self.exchanges.get(&place)?))
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
            let missing = match (traffic.end(key, other), traffic.exchange_at(key, other)) {
                (None, _) => clique.ranks[key.rank(other)].absence(),
                (Some(_), None) => Missing::Gone,
                (Some(_), Some((_, peer))) if peer.cancelled || peer.failure.is_some() => Missing::Gone,
                (Some(_), Some((_, peer))) if peer.arrived => return None,
                (Some(_), Some((_, peer))) => Missing::InStream(peer.op),
            };
            let (own, other) = (traffic.end(key, own)?.clone(), traffic.end(key, other).cloned());
            Some(Pending { key, own, other, missing })
        });
        pending.collect()
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
        let (number, device) = (entry.ranks[rank].exchanges + 1, entry.ranks[rank].device);
        let (stream, site) = (transfers[0].stream, transfers[0].site.clone());
        let work = Work::Collective(CallKey::Exchange { clique, rank, number });
        let Awaited { op, when, .. } = self.enqueue(stream, work, after, site)?;
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return Ok(()) };
        entry.ranks[rank].exchanges = number;
        entry.ranks[rank].owner = owner;
        let mut bytes = [0; 2];
        let mut open = Vec::new();
        for Checked { request, captured, site, .. } in transfers {
            let Request::Transfer(transfer, buffer) = request else { continue };
            entry.ranks[rank].last = Some(LastCall { request, op, site: site.clone() });
            if transfer.peer as usize != rank {
                bytes[transfer.direction as usize] += transfer.bytes();
            }
            let is_captured = captured.is_some();
            let end = End { exchange: number, transfer, buffer, is_captured, site };
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
        let exchange = Exchange {
            op,
            device,
            arrived: false,
            cancelled: false,
            failure: None,
            open,
            running: 0,
            bytes,
            touched: Vec::new(),
            view: View::default(),
            partners: Vec::new(),
        };
        entry.traffic.exchanges.insert((rank, number), exchange);
        for (key, _) in messages {
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
        let sides = [(from, send.exchange), (to, receive.exchange)];
        let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
        for side in sides {
            self.fail_exchange(key.clique, side, &failure);
        }
    }

    /// A rank's stream has come to an exchange. Returns the messages that can be moved now.
    pub(super) fn arrive_at_exchange(&mut self, clique: u64, place: ExchangeKey) -> Option<Job> {
        let exchange = self.nccl.exchange_mut(clique, place)?;
        exchange.arrived = true;
        if exchange.cancelled || exchange.failure.is_some() {
            self.leave_if_over(clique, place);
            return None;
        }
        let open = exchange.open.clone();
        let mut ready = Vec::new();
        for (key, own) in open {
            let traffic = &self.nccl.cliques.get(&clique)?.traffic;
            let Some((_, other)) = traffic.exchange_at(key, own.other()) else { continue };
            if !other.arrived || other.cancelled || other.failure.is_some() {
                continue;
            }
            if let Some((sides, report)) = self.failed_end(key) {
                let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
                for side in sides {
                    self.fail_exchange(clique, side, &failure);
                }
                break;
            }
            ready.extend(self.take_message(key));
        }
        (!ready.is_empty()).then_some(Job::Messages(ready))
    }

    /// The exchanges at a message's ends and the report, where one end's GPU has failed.
    fn failed_end(&self, key: MessageKey) -> Option<([ExchangeKey; 2], Report)> {
        let traffic = &self.nccl.cliques.get(&key.clique)?.traffic;
        let sides = [Direction::Send, Direction::Receive].map(|end| traffic.exchange_at(key, end));
        let [Some((from, sender)), Some((to, receiver))] = sides else { return None };
        let report = [(Direction::Send, sender), (Direction::Receive, receiver)].into_iter().find_map(
            |(end, exchange)| {
                let called = traffic.end(key, end)?;
                self.failed_gpu(exchange.op, key.rank(end), &called.request(), &called.site)
            },
        )?;
        Some(([from, to], report))
    }

    /// Takes a message to be moved. Both ends' streams have come to it.
    fn take_message(&mut self, key: MessageKey) -> Option<Moving> {
        let traffic = &mut self.nccl.cliques.get_mut(&key.clique)?.traffic;
        let message = traffic.messages.get_mut(&key).filter(|message| !message.running)?;
        let [Some(send), Some(receive)] = &message.ends else { return None };
        let ends = [send.clone(), receive.clone()];
        message.running = true;
        let mut devices = [0; 2];
        for (end, device) in [Direction::Send, Direction::Receive].into_iter().zip(&mut devices) {
            let exchange = traffic.exchanges.get_mut(&(key.rank(end), ends[end as usize].exchange))?;
            exchange.running += 1;
            *device = exchange.device;
        }
        let [send, receive] = ends;
        Some(Moving { key, ends: [(send, devices[0]), (receive, devices[1])] })
    }

    /// A message has been moved: tells both ends' exchanges what it touched, and what comes before what. Returns the
    /// exchanges whose last message it was.
    pub(super) fn message_moved(&mut self, moved: Moving, touched: [Option<Touched>; 2]) -> Vec<ExchangeKey> {
        let Moving { key, ends: [(send, _), (receive, _)] } = moved;
        let places = [(key.from, send.exchange), (key.to, receive.exchange)];
        let Some(clique) = self.nccl.cliques.get_mut(&key.clique) else { return Vec::new() };
        clique.traffic.messages.remove(&key);
        let known = places.map(|place| {
            let exchange = clique.traffic.exchanges.get(&place)?;
            Some((exchange.op, exchange.bytes))
        });
        let [Some((sender, out)), Some((receiver, into))] = known else { return Vec::new() };
        // Messages that move together share their GPU's links.
        let bytes = if key.from == key.to { 0 } else { out[0].max(into[1]) };
        let tickets = [sender, receiver].map(|op| self.ticket_of(op));
        // What was before the send is before what follows the receive. A send may be done before its receive begins.
        let sent = self.first_of(sender).map(|(_, view)| view);
        let mut over = Vec::new();
        for ((place, touched), (end, partner)) in
            places.into_iter().zip(touched).zip([(Direction::Send, 1), (Direction::Receive, 0)])
        {
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
        for place in places {
            self.leave_if_over(key.clique, place);
        }
        over
    }

    /// A message could not be moved: both exchanges fail.
    pub(super) fn message_failed(&mut self, moved: &Moving, failure: &Failure) {
        let MessageKey { clique, from, to, .. } = moved.key;
        for place in [(from, moved.ends[0].0.exchange), (to, moved.ends[1].0.exchange)] {
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
        exchange.failure.get_or_insert_with(|| failure.clone());
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
