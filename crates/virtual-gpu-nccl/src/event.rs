//! Events on a communicator whose ranks are in several processes: what each process tells the others about its own
//! ranks.

use std::collections::HashMap;
use std::sync::Arc;

use super::id::process_key;
use super::management::Joins;
use super::operation::Operation;
use super::point_to_point::MessageKey;
use super::session::{Link, Outgoing, ProcessNumber};
use super::transfer::{Direction, Transfer};
use super::wire::{Payload, Reader, Wire, Writer, structure};
use super::{Locked, State};
use virtual_gpu::engine::Failure;
use virtual_gpu::order::{Clock, View};
use virtual_gpu_core::handle::{CallKey, CommId, OneSidedId, OpRef, Rank, SequenceNumber, StreamHandle};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{NcclResult, NcclStatus};

/// A stream in any process, and the number of its last operation that is known to have happened.
type Tick = (StreamName, u64);

/// A stream in any process: its process's key, and its handle in that process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StreamName {
    process: u64,
    handle: u64,
}

/// The time at which a rank's stream reached a call, and the operations that had happened by then.
pub(crate) struct Stamp {
    /// Virtual time in nanoseconds.
    ready: u64,
    own: Vec<Tick>,
    any: Vec<Tick>,
}

/// A rank's stream has reached a call. Includes the data that the rank contributes.
pub(crate) struct Arrival {
    pub(crate) stamp: Stamp,
    /// For messages: the number of bytes that the rank sends and the number that it receives, across all calls that it
    /// launched together.
    pub(crate) bytes: (u64, u64),
    /// For collectives: the rank's scalar.
    pub(crate) scale: [u8; 8],
    pub(crate) payload: Payload,
}

/// An arrival, as the receiving process stores it.
pub(crate) struct Arrived {
    pub(crate) ready: u64,
    pub(crate) view: View,
    pub(crate) bytes: [u64; 2],
    pub(crate) scale: [u8; 8],
    pub(crate) payload: Vec<u8>,
}

/// A call that has failed, identified by its number in its communicator.
pub(crate) enum Failed {
    Collective(SequenceNumber),
    Message(MessageName),
    Management(SequenceNumber),
    /// The signals from one rank to another.
    Signals(Rank, Rank),
}

/// A message, identified within its communicator.
pub(crate) struct MessageName {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) sequence: SequenceNumber,
}

/// Something that happens to a rank in another process.
pub(crate) enum Event {
    /// The rank has called a collective.
    Called {
        rank: Rank,
        sequence: SequenceNumber,
        operation: Operation,
        captured: Option<SequenceNumber>,
        call_site: CallSite,
    },
    /// The rank's stream has reached a collective.
    Arrived { rank: Rank, sequence: SequenceNumber, arrival: Arrival },
    /// The rank has called one end of a message.
    End { rank: Rank, transfer: Transfer, is_captured: bool, call_site: CallSite },
    /// The rank's stream has reached one end of a message.
    Ready { message: MessageName, end: Direction, arrival: Arrival },
    /// The rank's thread has reached a split or finalize.
    Joins { rank: Rank, sequence: SequenceNumber, joins: Joins, call_site: CallSite },
    /// The rank leaves. If it aborts, its pending calls are canceled; otherwise they still complete. Includes how its
    /// GPU failed, if it did.
    Leaves { rank: Rank, aborts: bool, gpu_failure: Option<String>, call_site: CallSite },
    /// The rank has canceled its work. Includes how, and whether it has revoked the communicator.
    Cancels { rank: Rank, revokes: bool, call_site: CallSite },
    /// A call has failed.
    Fails(Fails),
    /// A rank's stream has reached a put or signal, which is sent with the data.
    Signals {
        from: Rank,
        to: Rank,
        /// The registration of the window to write to, and the offset there.
        number: SequenceNumber,
        offset: u64,
        arrival: Arrival,
        call_site: CallSite,
    },
}

/// How a call has failed.
pub(crate) struct Fails {
    pub(crate) call: Failed,
    /// A [`CudaStatus`].
    pub(crate) cuda: u32,
    pub(crate) status: NcclStatus,
    pub(crate) report: String,
}

impl Fails {
    fn new(call: Failed, status: NcclStatus, failure: &Failure) -> Self {
        Self { call, cuda: failure.status as u32, status, report: failure.report.to_string() }
    }
}

structure! {
    Stamp { ready, own, any }
    Arrival { stamp, bytes, scale, payload }
    StreamName { process, handle }
    MessageName { from, to, sequence }
    Fails { call, cuda, status, report }
}

impl Wire for Failed {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::Collective(number) => to.put(&0u8).put(number),
            Self::Message(message) => to.put(&1u8).put(message),
            Self::Management(number) => to.put(&2u8).put(number),
            Self::Signals(sender, receiver) => to.put(&3u8).put(sender).put(receiver),
        };
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.get::<u8>()? {
            0 => Self::Collective(from.get()?),
            1 => Self::Message(from.get()?),
            2 => Self::Management(from.get()?),
            3 => Self::Signals(from.get()?, from.get()?),
            _ => return None,
        })
    }
}

impl Wire for Event {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::Called { rank, sequence, operation, captured, call_site } => {
                to.put(&0u8).put(rank).put(sequence).put(operation).put(captured).put(call_site)
            }
            Self::Arrived { rank, sequence, arrival } => to.put(&1u8).put(rank).put(sequence).put(arrival),
            Self::End { rank, transfer, is_captured, call_site } => {
                to.put(&2u8).put(rank).put(transfer).put(is_captured).put(call_site)
            }
            Self::Ready { message, end, arrival } => to.put(&3u8).put(message).put(end).put(arrival),
            Self::Joins { rank, sequence, joins, call_site } => {
                to.put(&4u8).put(rank).put(sequence).put(joins).put(call_site)
            }
            Self::Leaves { rank, aborts, gpu_failure, call_site } => {
                to.put(&5u8).put(rank).put(aborts).put(gpu_failure).put(call_site)
            }
            Self::Fails(fails) => to.put(&6u8).put(fails),
            Self::Cancels { rank, revokes, call_site } => to.put(&7u8).put(rank).put(revokes).put(call_site),
            Self::Signals { from, to: receiver, number, offset, arrival, call_site } => {
                to.put(&8u8).put(from).put(receiver).put(number).put(offset).put(arrival).put(call_site)
            }
        };
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.get::<u8>()? {
            0 => Self::Called {
                rank: from.get()?,
                sequence: from.get()?,
                operation: from.get()?,
                captured: from.get()?,
                call_site: from.get()?,
            },
            1 => Self::Arrived { rank: from.get()?, sequence: from.get()?, arrival: from.get()? },
            2 => Self::End {
                rank: from.get()?,
                transfer: from.get()?,
                is_captured: from.get()?,
                call_site: from.get()?,
            },
            3 => Self::Ready { message: from.get()?, end: from.get()?, arrival: from.get()? },
            4 => Self::Joins {
                rank: from.get()?,
                sequence: from.get()?,
                joins: from.get()?,
                call_site: from.get()?,
            },
            5 => Self::Leaves {
                rank: from.get()?,
                aborts: from.get()?,
                gpu_failure: from.get()?,
                call_site: from.get()?,
            },
            6 => Self::Fails(from.get()?),
            7 => Self::Cancels { rank: from.get()?, revokes: from.get()?, call_site: from.get()? },
            8 => Self::Signals {
                from: from.get()?,
                to: from.get()?,
                number: from.get()?,
                offset: from.get()?,
                arrival: from.get()?,
                call_site: from.get()?,
            },
            _ => return None,
        })
    }
}

/// Other processes' streams, under handles of this process, so that clocks can hold both kinds.
#[derive(Default)]
pub(crate) struct Foreign {
    names: HashMap<StreamHandle, StreamName>,
    handles: HashMap<StreamName, StreamHandle>,
}

impl StreamName {
    /// Returns the name of a stream in this process.
    pub(crate) fn own(stream: StreamHandle) -> Self {
        Self { process: process_key(), handle: stream.0 }
    }
}

impl Locked<'_> {
    /// Returns what other processes need to know about an operation that its stream has reached.
    pub(crate) fn stamp(&mut self, op: OpRef) -> Option<Stamp> {
        let view = self.engine.view_at_end_of(op)?;
        let ticket = self.engine.ticket_of(op)?;
        let ready = self.engine.time.ready_at(&ticket);
        Some(Stamp { ready, own: self.ticks(&view.own), any: self.ticks(&view.any) })
    }

    /// Returns a clock for other processes, without the streams that are gone.
    fn ticks(&self, clock: &Clock) -> Vec<Tick> {
        let numbers = clock.numbers();
        let known = numbers.entries().iter().filter(|&&(stream, _)| !self.engine.is_forgotten(stream));
        known.map(|&(stream, number)| (self.name_of(stream), number)).collect()
    }

    fn name_of(&self, stream: StreamHandle) -> StreamName {
        self.nccl.foreign.names.get(&stream).copied().unwrap_or_else(|| StreamName::own(stream))
    }

    /// Forgets another process's stream, which is gone. Messages that are on their way may still name it.
    pub(crate) fn forget_foreign(&mut self, name: StreamName) {
        let stream = self.handle_of(name);
        self.nccl.foreign.names.remove(&stream);
        self.engine.forget_in_clocks(stream, 0);
    }

    fn handle_of(&mut self, name: StreamName) -> StreamHandle {
        if name.process == process_key() {
            return StreamHandle(name.handle);
        }
        let foreign = &mut self.nccl.foreign;
        *foreign.handles.entry(name).or_insert_with(|| {
            let stream = StreamHandle(self.engine.new_handle());
            foreign.names.insert(stream, name);
            stream
        })
    }

    fn clock(&mut self, ticks: Vec<Tick>) -> Clock {
        let mut clock = Clock::default();
        for (name, number) in ticks {
            let stream = self.handle_of(name);
            if !self.engine.is_forgotten(stream) {
                clock.advance(stream, number);
            }
        }
        clock
    }

    pub(crate) fn keep(&mut self, arrival: Arrival) -> Arc<Arrived> {
        let Arrival { stamp: Stamp { ready, own, any }, bytes, scale, payload } = arrival;
        let view = View { own: self.clock(own), any: self.clock(any) };
        Arc::new(Arrived { ready, view, bytes: [bytes.0, bytes.1], scale, payload: payload.0 })
    }
}

impl State {
    /// Returns this process's number in a communicator's session, and how to reach the communicator's other processes.
    /// Returns `None` if all ranks are in this process.
    ///
    /// # Errors
    /// Returns `InternalError` if the communicator or its session is gone.
    pub(crate) fn link_of(&self, comm: CommId) -> NcclResult<Option<(ProcessNumber, Link)>> {
        let Some(link) = &self.communicator(comm)?.link else { return Ok(None) };
        Ok(Some((self.session(link.session)?.own, link.clone())))
    }

    /// Sends an event to all other processes of a communicator.
    ///
    /// # Errors
    /// Fails like [`Self::link_of`].
    pub(crate) fn publish(&self, comm: CommId, event: &Event) -> NcclResult<()> {
        if let Some((own, link)) = self.link_of(comm)? {
            let others = link.others.clone();
            self.send(Outgoing::new(own, &link, others, event));
        }
        Ok(())
    }

    /// Sends an event to a rank's process, unless it is this process.
    ///
    /// # Errors
    /// Fails like [`Self::link_of`].
    pub(crate) fn publish_to(&self, comm: CommId, rank: Rank, event: &Event) -> NcclResult<()> {
        if let Some(process) = self.communicator(comm)?.ranks[rank].process
            && let Some((own, link)) = self.link_of(comm)?
        {
            self.send(Outgoing::new(own, &link, vec![process.number], event));
        }
        Ok(())
    }

    /// Tells the other processes that a call has failed.
    ///
    /// # Errors
    /// Fails like [`Self::link_of`].
    pub(crate) fn publish_failure(
        &self,
        call: CallKey,
        status: NcclStatus,
        failure: &Failure,
    ) -> NcclResult<()> {
        let (comm, call) = match call {
            CallKey::Collective(id) => (id.comm, Failed::Collective(id.sequence)),
            CallKey::Management(id) => (id.comm, Failed::Management(id.sequence)),
            // Only the process at the other end of each message needs to know, so callers publish these separately.
            CallKey::PointToPoint(_) | CallKey::OneSided(_) => return Ok(()),
        };
        self.publish(comm, &Event::Fails(Fails::new(call, status, failure)))
    }

    /// Tells the other end of a message that the message has failed.
    ///
    /// # Errors
    /// Fails like [`Self::link_of`].
    pub(crate) fn publish_lost_message(
        &self,
        key: MessageKey,
        other: Rank,
        failure: &Failure,
    ) -> NcclResult<()> {
        let MessageKey { comm, from, to, sequence } = key;
        let call = Failed::Message(MessageName { from, to, sequence });
        self.publish_to(comm, other, &Event::Fails(Fails::new(call, NcclStatus::InvalidUsage, failure)))
    }

    /// Tells a rank that the signals of another rank's one-sided calls will not come.
    ///
    /// # Errors
    /// Fails like [`Self::link_of`].
    pub(crate) fn publish_lost_signal(&self, id: OneSidedId, to: Rank, failure: &Failure) -> NcclResult<()> {
        let call = Failed::Signals(id.rank, to);
        self.publish_to(id.comm, to, &Event::Fails(Fails::new(call, NcclStatus::InvalidUsage, failure)))
    }
}
