//! Events of a communicator whose ranks are in several processes: what a process tells the others of its own ranks, and what
//! it makes of what they tell.

use std::collections::HashMap;
use std::sync::Arc;

use super::assembly::Attends;
use super::call::CallKey;
use super::exchange::MessageKey;
use super::id::process_key;
use super::operation::Operation;
use super::run::Job;
use super::session::{Link, Parcel, of_process};
use super::transfer::{Direction, Transfer};
use super::wire::{Payload, Reader, Wire, Writer, structure};
use crate::engine::{Failure, OpRef, State, StreamHandle};
use crate::order::{Clock, View};
use crate::report::{Report, ranks};
use virtual_gpu_core::source_location::Site;
use virtual_gpu_core::status::{CudaStatus, Error, NcclStatus};

/// A stream of some process, and the number of its last operation that is known to have happened.
type Tick = ((u64, u64), u64);

/// When a rank's stream has come to a call, and what had happened by then.
pub(super) struct Stamp {
    /// Nanoseconds of virtual time.
    ready: u64,
    own: Vec<Tick>,
    any: Vec<Tick>,
}

/// A rank's stream has come to a call; with what it gives.
pub(super) struct Arrival {
    pub(super) stamp: Stamp,
    /// Of messages: bytes that the rank sends, and that it receives, in what it launched together.
    pub(super) bytes: (u64, u64),
    /// Of collectives: the rank's scalar.
    pub(super) scale: [u8; 8],
    pub(super) payload: Payload,
}

/// An arrival as it is kept here.
pub(super) struct Arrived {
    pub(super) ready: u64,
    pub(super) view: View,
    pub(super) bytes: [u64; 2],
    pub(super) scale: [u8; 8],
    pub(super) payload: Vec<u8>,
}

/// A call that has failed, by its number in its communicator.
enum Failed {
    Collective(u64),
    Message(MessageName),
    Assembly(u64),
}

/// A message, within its communicator.
pub(super) struct MessageName {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) number: u64,
}

/// What happens to a rank of another process.
pub(super) enum Event {
    /// It has called a collective.
    Called { rank: usize, number: u64, operation: Operation, captured: Option<u64>, site: Site },
    /// Its stream has come to one.
    Arrived { rank: usize, number: u64, arrival: Arrival },
    /// It has called one end of a message.
    End { rank: usize, transfer: Transfer, is_captured: bool, site: Site },
    /// Its stream has come to one end of a message.
    Ready { message: MessageName, end: Direction, arrival: Arrival },
    /// Its thread has come to a split or to the end.
    Attends { rank: usize, number: u64, attends: Attends, site: Site },
    /// It leaves, and lets what it has called be done, or not; how its GPU has failed.
    Leaves { rank: usize, aborts: bool, gpu_failure: Option<String>, site: Site },
    /// A call has failed.
    Fails(Fails),
}

/// How a call has failed.
pub(super) struct Fails {
    call: Failed,
    /// A [`CudaStatus`].
    cuda: u32,
    status: NcclStatus,
    report: String,
}

structure! {
    Stamp { ready, own, any }
    Arrival { stamp, bytes, scale, payload }
    MessageName { from, to, number }
    Fails { call, cuda, status, report }
}

impl Wire for Failed {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::Collective(number) => to.put(&0u8).put(number),
            Self::Message(message) => to.put(&1u8).put(message),
            Self::Assembly(number) => to.put(&2u8).put(number),
        };
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.get::<u8>()? {
            0 => Self::Collective(from.get()?),
            1 => Self::Message(from.get()?),
            2 => Self::Assembly(from.get()?),
            _ => return None,
        })
    }
}

impl Wire for Event {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::Called { rank, number, operation, captured, site } => {
                to.put(&0u8).put(rank).put(number).put(operation).put(captured).put(site)
            }
            Self::Arrived { rank, number, arrival } => to.put(&1u8).put(rank).put(number).put(arrival),
            Self::End { rank, transfer, is_captured, site } => {
                to.put(&2u8).put(rank).put(transfer).put(is_captured).put(site)
            }
            Self::Ready { message, end, arrival } => to.put(&3u8).put(message).put(end).put(arrival),
            Self::Attends { rank, number, attends, site } => {
                to.put(&4u8).put(rank).put(number).put(attends).put(site)
            }
            Self::Leaves { rank, aborts, gpu_failure, site } => {
                to.put(&5u8).put(rank).put(aborts).put(gpu_failure).put(site)
            }
            Self::Fails(fails) => to.put(&6u8).put(fails),
        };
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.get::<u8>()? {
            0 => Self::Called {
                rank: from.get()?,
                number: from.get()?,
                operation: from.get()?,
                captured: from.get()?,
                site: from.get()?,
            },
            1 => Self::Arrived { rank: from.get()?, number: from.get()?, arrival: from.get()? },
            2 => Self::End {
                rank: from.get()?,
                transfer: from.get()?,
                is_captured: from.get()?,
                site: from.get()?,
            },
            3 => Self::Ready { message: from.get()?, end: from.get()?, arrival: from.get()? },
            4 => Self::Attends {
                rank: from.get()?,
                number: from.get()?,
                attends: from.get()?,
                site: from.get()?,
            },
            5 => Self::Leaves {
                rank: from.get()?,
                aborts: from.get()?,
                gpu_failure: from.get()?,
                site: from.get()?,
            },
            6 => Self::Fails(from.get()?),
            _ => return None,
        })
    }
}

/// Streams of other processes, by names of this one's own: clocks hold both alike.
#[derive(Default)]
pub(super) struct Foreign {
    names: HashMap<StreamHandle, (u64, u64)>,
    handles: HashMap<(u64, u64), StreamHandle>,
}

impl Foreign {
    fn ticks(&self, clock: &Clock) -> Vec<Tick> {
        let name = |stream: StreamHandle| {
            self.names.get(&stream).copied().unwrap_or_else(|| (process_key(), stream.0))
        };
        clock.entries().iter().map(|&(stream, number)| (name(stream), number)).collect()
    }
}

impl State {
    /// What is told of an operation to whose turn its stream has come.
    pub(super) fn stamp(&mut self, op: OpRef) -> Option<Stamp> {
        let view = self.view_at_end_of(op)?;
        let ticket = self.ticket_of(op)?;
        let ready = self.time.ready_at(&ticket);
        let foreign = &self.nccl.foreign;
        Some(Stamp { ready, own: foreign.ticks(&view.own), any: foreign.ticks(&view.any) })
    }

    /// A stream of this process is gone, and forgotten: so should the others.
    pub(crate) fn stream_forgotten(&self, stream: StreamHandle) {
        self.nccl.tell_forgotten((process_key(), stream.0));
    }

    /// A stream of another process is gone.
    pub(super) fn forget_foreign(&mut self, name: (u64, u64)) {
        if let Some(stream) = self.nccl.foreign.handles.remove(&name) {
            self.nccl.foreign.names.remove(&stream);
            self.forget_in_clocks(stream, 0);
        }
    }

    fn clock(&mut self, ticks: Vec<Tick>) -> Clock {
        let mut clock = Clock::default();
        for (name, number) in ticks {
            let stream = match self.nccl.foreign.handles.get(&name) {
                Some(&stream) => stream,
                None if name.0 == process_key() => StreamHandle(name.1),
                None => {
                    let stream = StreamHandle(self.new_handle());
                    self.nccl.foreign.names.insert(stream, name);
                    self.nccl.foreign.handles.insert(name, stream);
                    stream
                }
            };
            clock.advance(stream, number);
        }
        clock
    }

    fn keep(&mut self, arrival: Arrival) -> Arc<Arrived> {
        let Arrival { stamp: Stamp { ready, own, any }, bytes, scale, payload } = arrival;
        let view = View { own: self.clock(own), any: self.clock(any) };
        Arc::new(Arrived { ready, view, bytes: [bytes.0, bytes.1], scale, payload: payload.0 })
    }

    /// This process's number in a clique's session, and where its other processes are reached. None where all ranks are here.
    pub(super) fn link_of(&self, clique: u64) -> Option<(u16, Link)> {
        let link = self.nccl.cliques.get(&clique)?.link.clone()?;
        Some((self.nccl.session(link.session)?.own, link))
    }

    /// Tells all other processes of a clique.
    pub(super) fn publish(&self, clique: u64, event: &Event) {
        if let Some((own, link)) = self.link_of(clique) {
            let others = link.others.clone();
            self.nccl.send(Parcel::new(own, &link, others, event));
        }
    }

    /// Tells the process of one rank, if it is another.
    pub(super) fn publish_to(&self, clique: u64, rank: usize, event: &Event) {
        let process = self.nccl.cliques.get(&clique).and_then(|clique| clique.ranks[rank].process);
        if let (Some((own, link)), Some(process)) = (self.link_of(clique), process) {
            self.nccl.send(Parcel::new(own, &link, vec![process.number], event));
        }
    }

    /// Tells the others that a call has failed.
    pub(super) fn publish_failure(&self, call: CallKey, status: NcclStatus, failure: &Failure) {
        let (clique, call) = match call {
            CallKey::Collective { clique, number } => (clique, Failed::Collective(number)),
            CallKey::Assembly { clique, number } => (clique, Failed::Assembly(number)),
            CallKey::Exchange { .. } => return,
        };
        let (cuda, report) = (failure.status as u32, failure.report.to_string());
        self.publish(clique, &Event::Fails(Fails { call, cuda, status, report }));
    }

    /// Tells the other end of a message that it has failed.
    pub(super) fn publish_lost_message(&self, key: MessageKey, other: usize, failure: &Failure) {
        let MessageKey { clique, from, to, number } = key;
        let call = Failed::Message(MessageName { from, to, number });
        let (cuda, report) = (failure.status as u32, failure.report.to_string());
        let status = NcclStatus::InvalidUsage;
        self.publish_to(clique, other, &Event::Fails(Fails { call, cuda, status, report }));
    }

    /// Takes in what a process tells of a communicator. What comes before the communicator is made here is kept.
    pub(super) fn take_in(&mut self, session: u64, from: u16, tag: u64, event: Event) -> Option<Option<Job>> {
        let entry = self.nccl.sessions.get_mut(&session)?;
        let Some(&clique) = entry.cliques.get(&tag) else {
            entry.early.entry(tag).or_default().push((from, event));
            return Some(None);
        };
        self.apply(clique, from, event)
    }

    /// Takes in what came before a communicator was made.
    pub(super) fn take_in_early(&mut self, session: u64, tag: u64, clique: u64) {
        let Some(entry) = self.nccl.sessions.get_mut(&session) else { return };
        for (from, event) in entry.early.remove(&tag).unwrap_or_default() {
            // No rank here has called anything yet: there is nothing to run.
            self.apply(clique, from, event);
        }
        let gone: Vec<u16> = self.nccl.session(session).iter().flat_map(|entry| entry.gone.clone()).collect();
        gone.into_iter().for_each(|process| self.process_gone(session, process));
    }

    /// `None` where it makes no sense.
    fn apply(&mut self, clique: u64, from: u16, event: Event) -> Option<Option<Job>> {
        // A communicator that is over here needs nothing more.
        let Some(entry) = self.nccl.cliques.get(&clique) else { return Some(None) };
        let world_size = entry.ranks.len();
        let is_theirs = |rank: usize| {
            entry
                .ranks
                .get(rank)
                .is_some_and(|rank| rank.process.is_some_and(|process| process.number == from))
        };
        let is_rank = |rank: i32| usize::try_from(rank).is_ok_and(|rank| rank < world_size);
        let good = match &event {
            Event::Called { rank, operation, .. } => is_theirs(*rank) && operation.root().is_none_or(is_rank),
            Event::Arrived { rank, .. } | Event::Attends { rank, .. } | Event::Leaves { rank, .. } => {
                is_theirs(*rank)
            }
            Event::End { rank, transfer, .. } => is_theirs(*rank) && is_rank(transfer.peer),
            Event::Ready { message, end, .. } => match end {
                Direction::Send => is_theirs(message.from) && message.to < world_size,
                Direction::Receive => is_theirs(message.to) && message.from < world_size,
            },
            Event::Fails(_) => true,
        };
        if !good {
            return None;
        }
        Some(match event {
            Event::Called { rank, number, operation, captured, site } => {
                self.called_elsewhere((clique, number), rank, (operation, captured), site);
                None
            }
            Event::Arrived { rank, number, arrival } => {
                let arrived = self.keep(arrival);
                self.arrived_elsewhere((clique, number), rank, arrived)?
            }
            Event::End { rank, transfer, is_captured, site } => {
                self.end_elsewhere(clique, rank, (transfer, is_captured), site);
                None
            }
            Event::Ready { message, end, arrival } => {
                let arrived = self.keep(arrival);
                let MessageName { from, to, number } = message;
                self.end_ready_elsewhere(MessageKey { clique, from, to, number }, end, arrived)
            }
            Event::Attends { rank, number, attends, site } => {
                self.attends_elsewhere((clique, number), rank, attends, site);
                None
            }
            Event::Leaves { rank, aborts, gpu_failure, site } => {
                if let Some(entry) = self.nccl.cliques.get_mut(&clique) {
                    entry.ranks[rank].gpu_failure = gpu_failure;
                }
                self.leaves_elsewhere(clique, rank, aborts, site);
                None
            }
            Event::Fails(fails) => {
                self.fails_elsewhere(clique, fails);
                None
            }
        })
    }

    fn leaves_elsewhere(&mut self, clique: u64, rank: usize, aborts: bool, site: Site) {
        if aborts {
            self.cancel_calls(clique, rank);
        }
        if let Some(entry) = self.nccl.cliques.get_mut(&clique) {
            entry.ranks[rank].left = Some((super::communicator::departure(aborts).into(), site));
        }
    }

    fn fails_elsewhere(&mut self, clique: u64, fails: Fails) {
        let Fails { call, cuda, status, report } = fails;
        let cuda = CudaStatus::from_value(cuda).unwrap_or(CudaStatus::LaunchFailed);
        let failure = Failure { status: cuda, report: report.into() };
        match call {
            Failed::Collective(number) => self.collective_failed((clique, number), &failure),
            Failed::Message(MessageName { from, to, number }) => {
                self.message_lost(MessageKey { clique, from, to, number }, &failure);
            }
            Failed::Assembly(number) => self.assembly_failed((clique, number), status, &failure),
        }
    }

    /// A process has ended: what waits for its ranks fails, and so does what is called from now on.
    pub(super) fn process_gone(&mut self, session: u64, process: u16) {
        if self.nccl.is_leaving {
            return;
        }
        let Some(entry) = self.nccl.sessions.get_mut(&session) else { return };
        entry.gone.insert(process);
        let who = of_process(entry.pid(process));
        let cliques: Vec<u64> = entry.cliques.values().copied().collect();
        let id = entry.id;
        if self.nccl.gathering.get(&id) == Some(&session) {
            self.guest_gone(id, process, &who);
        }
        for clique in cliques {
            self.ranks_gone(clique, process, &who);
        }
    }

    fn ranks_gone(&mut self, clique: u64, process: u16, who: &str) {
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return };
        let mut lost = Vec::new();
        for (number, rank) in entry.ranks.iter_mut().enumerate() {
            if rank.left.is_none() && rank.process.is_some_and(|of| of.number == process) {
                rank.left = Some((format!("is gone: {who} has ended").into(), Site::unknown()));
                lost.push(number);
            }
        }
        if lost.is_empty() {
            return;
        }
        let verb = if lost.len() == 1 { "is" } else { "are" };
        let headline = format!("{} {verb} gone: {who} has ended", ranks(&lost));
        let report = Report::new(&*headline).at("the communicator was made", &entry.site);
        entry.failed.get_or_insert_with(|| Error::new(NcclStatus::RemoteError, report.to_string()));
        // What no rank here has come to yet, none will: the call is refused.
        entry.calls.retain(|_, call| call.has_part_here());
        let ranks = &entry.ranks;
        entry.assemblies.retain(|_, assembly| assembly.has_attendee_here(ranks));
        for call in self.nccl.held_up_by(clique, &lost) {
            let report = super::deadlock::explain(self, &[call].into(), Report::new(&*headline));
            self.fail_calls(&[call].into(), CudaStatus::LaunchFailed, &report);
        }
    }
}
