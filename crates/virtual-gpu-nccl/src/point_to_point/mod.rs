//! Point-to-point calls. The sends and receives that a rank launches together are one operation on its stream, which is
//! done once all of their messages have been moved. The `k`th send from one rank to another matches the `k`th receive
//! there. A message moves as soon as the streams at both ends have reached it.

mod failure;
mod message;
mod moving;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Locked;
use crate::call::{Checked, Request};
use crate::communicator::{Communicator, LastCall};
use crate::event::{Arrived, Event};
use crate::internal::vanished;
use crate::transfer::Direction;
pub(crate) use message::{End, MessageKey, Moving, MovingEnd, ReadyEnd};
use message::{EndLocation, Message};
use virtual_gpu::engine::{Awaited, Failure, Missing, Touched};
use virtual_gpu::order::View;
use virtual_gpu::report::Report;
use virtual_gpu::time::Ticket;
use virtual_gpu::time::trace::Label;
use virtual_gpu::time::tuning::point_to_point;
use virtual_gpu_core::handle::{CallKey, CollectiveId, CommId, OpRef, PointToPointId, Rank, SequenceNumber};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

/// All of a communicator's point-to-point traffic.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) transfer_groups: BTreeMap<PointToPointId, TransferGroup>,
    /// Messages that have been called by at least one end but have not been moved.
    messages: BTreeMap<MessageKey, Message>,
    /// Messages that failed at their other end, in another process, before this end was called.
    lost: BTreeMap<MessageKey, Failure>,
    /// The number of messages for which a rank has called its send or receive, by rank, peer, and end.
    called: Map<Route, SequenceNumber>,
}

/// One direction between two ranks, as seen from one end.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Route {
    rank: Rank,
    peer: Rank,
    end: Direction,
}

/// The sends and receives that one rank launched together.
pub(crate) struct TransferGroup {
    pub(crate) op: OpRef,
    pub(crate) device: usize,
    /// Whether the rank's stream has reached the group.
    arrived: bool,
    /// Whether the processes at the other ends of its messages know that the stream has reached the group.
    published: bool,
    /// Whether the rank has aborted.
    canceled: bool,
    failure: Option<Failure>,
    /// The messages that have not been moved, each with the end that belongs to this group.
    open: Vec<(MessageKey, Direction)>,
    /// The number of messages that are being moved.
    running: usize,
    /// The number of bytes that the group sends, and the number that it receives.
    bytes: [u64; 2],
    /// For the messages that have been moved: the memory that they touched in this process, the operations before the
    /// sends, and the other ends' tickets, each with the number of bytes that shared the links.
    pub(crate) touched: Vec<Touched>,
    pub(crate) view: View,
    pub(crate) partners: Vec<(Ticket, u64)>,
}

impl TransferGroup {
    fn new(op: OpRef, device: usize, open: Vec<(MessageKey, Direction)>, bytes: [u64; 2]) -> Self {
        Self {
            op,
            device,
            arrived: false,
            published: false,
            canceled: false,
            failure: None,
            open,
            running: 0,
            bytes,
            touched: Vec::new(),
            view: View::default(),
            partners: Vec::new(),
        }
    }

    /// Returns the group's label for a trace.
    fn label(&self, rank: Rank) -> Label {
        let [sent, received] = self.bytes;
        let name = match self.bytes {
            [_, 0] => "ncclSend",
            [0, _] => "ncclRecv",
            _ => "ncclSend and ncclRecv",
        };
        let label = Label::new("collective", name).with("rank", rank.0);
        label.with("bytes sent", sent).with("bytes received", received)
    }

    /// Returns the names of the group's C functions for a report.
    pub(crate) fn what(&self) -> &'static str {
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

/// The known state of an end of a message.
enum Known<'a> {
    NotCalled,
    Here(PointToPointId, &'a TransferGroup),
    Elsewhere(Option<&'a Arc<Arrived>>),
    /// The end was called, but its group is gone.
    Gone,
}

impl Known<'_> {
    /// Returns whether this end is ready for the message to be moved.
    fn is_ready(&self) -> bool {
        match self {
            Self::Here(_, group) => {
                group.arrived && group.published && !group.canceled && group.failure.is_none()
            }
            Self::Elsewhere(arrived) => arrived.is_some(),
            Self::NotCalled | Self::Gone => false,
        }
    }
}

/// A message that a rank's sends and receives are waiting for.
pub(crate) struct Pending {
    pub(crate) key: MessageKey,
    /// The rank's own end.
    pub(crate) own: End,
    /// The other end, if it has been called.
    pub(crate) other: Option<End>,
    pub(crate) missing: Missing,
}

impl Traffic {
    /// Returns the number of messages to or from `peer` for which a rank has called its end.
    pub(crate) fn called(&self, rank: Rank, peer: Rank, end: Direction) -> u64 {
        self.called.get(&Route { rank, peer, end }).copied().unwrap_or_default().0
    }

    /// Returns whether no send or receive is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.transfer_groups.is_empty()
    }

    /// Returns a rank's sends and receives, which must exist because they are not done.
    ///
    /// # Errors
    /// Returns an `InternalError` that names them.
    fn group_mut(&mut self, id: PointToPointId) -> NcclResult<&mut TransferGroup> {
        self.transfer_groups.get_mut(&id).ok_or_else(|| vanished_group(id))
    }

    /// Removes a rank's sends and receives that are done.
    ///
    /// # Errors
    /// Returns an `InternalError` that names them.
    pub(crate) fn take_group(&mut self, id: PointToPointId) -> NcclResult<TransferGroup> {
        self.transfer_groups.remove(&id).ok_or_else(|| vanished_group(id))
    }

    fn end(&self, key: MessageKey, end: Direction) -> Option<&End> {
        self.messages.get(&key)?.ends[end as usize].as_ref()
    }

    /// Returns the known state of one end of a message.
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

    /// Records a call and returns the message's key.
    pub(crate) fn add(&mut self, comm: CommId, rank: Rank, end: End) -> MessageKey {
        let direction = end.transfer.direction;
        let route = Route { rank, peer: end.transfer.peer, end: direction };
        let counted = self.called.entry(route).or_default();
        *counted = counted.next();
        let key = MessageKey::of(comm, rank, &end.transfer, *counted);
        let message =
            self.messages.entry(key).or_insert_with(|| Message { ends: [None, None], running: false });
        message.ends[direction as usize] = Some(end);
        key
    }

    /// Identifies this process's calls at a message's ends.
    fn groups_at(&self, key: MessageKey) -> Vec<PointToPointId> {
        let ends = [Direction::Send, Direction::Receive].map(|end| self.known(key, end));
        let here = ends.into_iter().filter_map(|known| match known {
            Known::Here(id, _) => Some(id),
            _ => None,
        });
        here.collect()
    }

    /// Once both ends of a message have been called, returns a report if they disagree.
    fn disagreement(&self, key: MessageKey) -> Option<Report> {
        let [send, receive] = &self.messages.get(&key)?.ends;
        let (send, receive) = (send.as_ref()?, receive.as_ref()?);
        let is_same = send.transfer.agrees(&receive.transfer);
        if is_same && send.is_captured == receive.is_captured {
            return None;
        }
        let MessageKey { from, to, sequence, .. } = key;
        let words = |end: &End| match end.is_captured {
            true => format!("{}, captured in a graph", end.transfer),
            false => end.transfer.to_string(),
        };
        let help = match is_same {
            true => {
                "a send and its receive must either both be captured in a graph or both be called outside of one"
            }
            false => {
                "a send and its receive need the same count and type; between two ranks, they are matched in call order"
            }
        };
        let report =
            Report::new(format!("ranks disagree about message {sequence} from rank {from} to rank {to}"))
                .at(format!("rank {from}: {}", words(send)), &send.call_site)
                .at(format!("rank {to}: {}", words(receive)), &receive.call_site)
                .help(help);
        Some(report)
    }
}

fn vanished_group(id: PointToPointId) -> Error<NcclStatus> {
    let PointToPointId { comm, rank, sequence } = id;
    vanished(format_args!("group {sequence} of rank {rank}'s sends and receives on communicator {}", comm.0))
}

impl Communicator {
    /// Returns the messages that a rank's sends and receives are still waiting for, in call order.
    pub(crate) fn pending(&self, id: PointToPointId) -> Vec<Pending> {
        let traffic = &self.traffic;
        // Calls that are done or have failed are not waiting for anything.
        let group = traffic.transfer_groups.get(&id).filter(|group| group.failure.is_none());
        let Some(group) = group else { return Vec::new() };
        let pending = group.open.iter().filter_map(|&(key, own)| {
            let other = own.other();
            let rank = &self.ranks[key.rank(other)];
            let missing = match traffic.known(key, other) {
                Known::NotCalled => rank.silence(),
                Known::Gone => Missing::Gone,
                Known::Here(_, peer) if peer.canceled || peer.failure.is_some() => Missing::Gone,
                Known::Elsewhere(Some(_)) => return None,
                // The message is being moved, or the group is waiting for its other ends to be published.
                Known::Here(_, peer) if peer.arrived => return None,
                Known::Here(_, peer) => Missing::InStream(peer.op),
                Known::Elsewhere(_) if rank.left.is_some() || rank.canceled.is_some() => Missing::Gone,
                Known::Elsewhere(_) => Missing::Elsewhere,
            };
            let (own, other) = (traffic.end(key, own)?.clone(), traffic.end(key, other).cloned());
            Some(Pending { key, own, other, missing })
        });
        pending.collect()
    }

    /// Returns whether a call on a stream of this process needs work that a rank has not done whose process has ended.
    pub(crate) fn needs_a_lost_rank(&self, call: CallKey) -> bool {
        self.lost.as_ref().is_some_and(|lost| self.calls_that_need(&lost.ranks).any(|needs| needs == call))
    }

    /// Identifies the calls on this process's streams that need work that one of these ranks has not done.
    fn calls_that_need(&self, lost: &[Rank]) -> impl Iterator<Item = CallKey> {
        let comm = self.id;
        let collectives = self.calls.iter().filter(|(_, call)| {
            let come = |rank: Rank| call.parts[rank].as_ref().is_some_and(|part| part.arrived);
            call.failure.is_none() && !lost.iter().all(|&rank| come(rank))
        });
        let collectives =
            collectives.map(move |(&sequence, _)| CallKey::Collective(CollectiveId { comm, sequence }));
        let transfer_groups = self.traffic.transfer_groups.iter().filter(|(_, group)| {
            group.failure.is_none()
                && group.open.iter().any(|&(key, own)| {
                    let other = own.other();
                    lost.contains(&key.rank(other)) && !self.traffic.known(key, other).is_ready()
                })
        });
        let transfer_groups = transfer_groups.map(|(&id, _)| CallKey::PointToPoint(id));
        let signals = self.waiting_for_signals_of(lost);
        collectives.chain(transfer_groups).chain(signals)
    }
}

impl Locked<'_> {
    /// Enqueues the sends and receives that a rank launches together on the stream of the first one, to run after the
    /// operations in `after`.
    pub(crate) fn enqueue_transfers(
        &mut self,
        (comm, rank): (CommId, Rank),
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
            if transfer.peer != rank {
                bytes[transfer.direction as usize] += transfer.bytes();
            }
            let is_captured = captured.is_some();
            let end = End { location: EndLocation::Here(sequence), transfer, buffer, is_captured, call_site };
            open.push((entry.traffic.add(comm, rank, end), transfer.direction));
        }
        let messages = open.clone();
        let mut group = TransferGroup::new(op, device, open, bytes);
        group.failure = messages.iter().find_map(|(key, _)| entry.traffic.lost.remove(key));
        group.published =
            messages.iter().all(|(key, own)| entry.ranks[key.rank(own.other())].process.is_none());
        let moved = point_to_point(self.engine.time.preset(), bytes[0].max(bytes[1]));
        self.engine.time.communicates(&when, moved, || group.label(rank));
        entry.traffic.transfer_groups.insert(id, group);
        for (transfer, is_captured, call_site) in called {
            let event = Event::End { rank, transfer, is_captured, call_site };
            self.nccl.publish_to(comm, transfer.peer, &event)?;
        }
        for key in messages.into_iter().map(|(key, _)| key).collect::<BTreeSet<_>>() {
            self.compare_ends(key)?;
        }
        Ok(())
    }

    /// Fails both ends of a message if both have been called and disagree.
    ///
    /// # Errors
    /// Returns `InternalError` if the message's communicator is gone.
    pub(crate) fn compare_ends(&mut self, key: MessageKey) -> NcclResult<()> {
        match self.nccl.communicator(key.comm)?.traffic.disagreement(key) {
            Some(report) => self.fail_message(key, &Failure::announce(CudaStatus::LaunchFailed, &report)),
            None => Ok(()),
        }
    }
}
