//! Executes puts and signals, and lets waits go on once their signals have come.

use std::sync::Arc;

use super::{Come, OneSided, Put, Send, Signaled};
use crate::buffer::{BufferLocation, Memories, Share, Source};
use crate::call::Request;
use crate::collective::failed_gpu;
use crate::event::{Arrival, Arrived, Event, Stamp};
use crate::operation::Piece;
use crate::pieces::move_pieces;
use crate::registration::Window;
use crate::session::Outgoing;
use crate::wire::Payload;
use crate::{Guard, Locked, Nccl};
use virtual_gpu::engine::{Failure, Touched};
use virtual_gpu::report::Report;
use virtual_gpu::time::Cost;
use virtual_gpu::time::tuning::point_to_point;
use virtual_gpu_core::handle::{CommId, OneSidedId, OpRef, OperationNumber, Rank, SequenceNumber};
use virtual_gpu_core::memory::AFTER_ALL;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaStatus, NcclResult};

/// A put or signal that another process sends to a rank of this one.
pub(crate) struct Delivery {
    pub(crate) comm: CommId,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// The registration of the window that a put writes to, and the offset there.
    pub(crate) target: Option<(SequenceNumber, u64)>,
    pub(crate) arrived: Arc<Arrived>,
    pub(crate) call_site: CallSite,
}

/// A put or signal that is being executed, with its rank's operation.
struct Sending {
    send: Send,
    from: Rank,
    device: usize,
    enqueued: OperationNumber,
    /// The peer's window and GPU, if the peer is in this process.
    target: Option<(Window, usize)>,
    is_here: bool,
}

impl Nccl {
    /// Executes a rank's puts and signals, in call order, and lets its waits go on if their signals have come.
    pub(crate) fn run_signals(&self, id: OneSidedId) -> NcclResult<()> {
        let sendings = self.lock().locked().begin_sending(id)?;
        let mut touched = Vec::new();
        let mut outcome = Ok(());
        for sending in &sendings {
            match self.execute_send(id, sending) {
                Ok(of_send) => touched.extend(of_send),
                Err(failure) => {
                    outcome = Err(failure);
                    break;
                }
            }
        }
        let mut guard = self.lock();
        let mut state = guard.locked();
        // The rank's communicator is still there: its calls are not done.
        let group = state.nccl.communicator_mut(id.comm)?.signals.group_mut(id)?;
        group.running = false;
        let op = group.op;
        if let Err(failure) = outcome {
            return state.fail_signals(id, &failure);
        }
        group.sends.clear();
        if let Some(first) = sendings.first() {
            let what = first.send.request.function();
            self.engine.note_touched(state.engine, op.stream, what, touched, false, false);
        }
        state.leave_signals_if_over(id)?;
        let mut signaled = Vec::new();
        for sending in sendings.into_iter().filter(|sending| sending.is_here) {
            let come = state.own_signal(id, op, &sending.send);
            let to = sending.send.request.peer();
            let Some(come) = come else { continue };
            state.nccl.communicator_mut(id.comm)?.signals.counter(id.rank, to).come(come);
            signaled.push(to);
        }
        self.finish_signaled(&mut guard, id.comm, &signaled)?;
        let mut state = guard.locked();
        if let Some(done) = state.take_if_signaled(id)? {
            self.finish_signals(&mut guard, done)?;
        }
        Ok(())
    }

    /// Handles a put or signal from another process.
    pub(crate) fn deliver(&self, delivery: Delivery) -> NcclResult<()> {
        let written = self.write_delivery(&delivery);
        let Delivery { comm, from, to, arrived, .. } = delivery;
        let mut guard = self.lock();
        let state = guard.locked();
        // The rank may have left.
        let Some(entry) = state.nccl.communicators.get_mut(&comm) else { return Ok(()) };
        match written {
            Ok(touched) => {
                let preset = state.engine.time.preset();
                let at = arrived.ready + point_to_point(preset, arrived.payload.len() as u64);
                let come = Come { view: arrived.view.clone(), at, touched: touched.into_iter().collect() };
                entry.signals.counter(from, to).come(come);
                self.finish_signaled(&mut guard, comm, &[to])
            }
            Err(failure) => guard.locked().signals_lost(comm, from, to, &failure),
        }
    }

    /// Writes the bytes of a put from another process. Returns what it wrote.
    fn write_delivery(&self, delivery: &Delivery) -> Result<Option<Touched>, Failure> {
        let Delivery { comm, from, to, target, arrived, call_site } = delivery;
        let bytes = arrived.payload.len() as u64;
        let Some((number, offset)) = target.filter(|_| bytes > 0) else { return Ok(None) };
        let window = self.lock().nccl.window_of(*comm, *to, number);
        let target = window.filter(|(window, _)| window.holds(offset, bytes));
        let Some((window, device)) = target else { return Err(outside(*from, *to, call_site)) };
        let (peer, request) = (*to, Request::OneSided(OneSided::Signal { peer: *to }));
        let enqueued = AFTER_ALL;
        let share =
            Share { rank: peer, device, enqueued, request, call_site: call_site.clone(), is_checked: true };
        let mut memories = self.memories([device].into_iter());
        let (location, written) = self.find(&mut memories, &share, window.address + offset, bytes, true)?;
        self.write(&mut memories, Source::Elsewhere(arrived.clone()), location, bytes);
        Ok(Some(written))
    }

    fn write(&self, memories: &mut Memories<'_>, source: Source, target: BufferLocation, bytes: u64) {
        // For this move, both ends are one rank.
        let only = Rank(0);
        let piece = Piece { sources: vec![(only, 0)], destinations: vec![(only, 0)], bytes };
        move_pieces(vec![piece], None, memories, &vec![Some(source)].into(), &vec![Some(target)].into());
    }

    /// Executes a put or signal. Returns what it touched in this process.
    fn execute_send(&self, id: OneSidedId, sending: &Sending) -> Result<Vec<Touched>, Failure> {
        let Sending { send, from, device, enqueued, target, is_here } = sending;
        let request = Request::OneSided(send.request);
        let share = |rank, device| Share {
            rank,
            device,
            enqueued: *enqueued,
            request,
            call_site: send.call_site.clone(),
            is_checked: false,
        };
        let put = match send.request {
            OneSided::Put(put) if put.bytes() > 0 => Some(put),
            _ => None,
        };
        if !is_here {
            let mut memories = self.memories([*device].into_iter());
            let given = put
                .map(|put| self.give(&mut memories, &share(*from, *device), put.buffer, Some(put.bytes())));
            let payload = given.transpose()?.unwrap_or_default();
            drop(memories);
            self.publish_signal(id, send, payload);
            return Ok(Vec::new());
        }
        let Some(put) = put else { return Ok(Vec::new()) };
        let (peer, bytes) = (put.peer, put.bytes());
        let Some((window, peer_device)) =
            target.as_ref().filter(|(window, _)| window.holds(put.offset, bytes))
        else {
            return Err(outside(*from, peer, &send.call_site));
        };
        let mut memories = self.memories([*device, *peer_device].into_iter());
        let (source, read) = self.find(&mut memories, &share(*from, *device), put.buffer, bytes, false)?;
        let address = window.address + put.offset;
        let (target, written) = self.find(&mut memories, &share(peer, *peer_device), address, bytes, true)?;
        self.write(&mut memories, Source::Here(source), target, bytes);
        Ok(vec![read, written])
    }

    /// Sends a put or signal to a rank in another process.
    fn publish_signal(&self, id: OneSidedId, send: &Send, payload: Payload) {
        let mut guard = self.lock();
        let mut state = guard.locked();
        let to = send.request.peer();
        let Some(stamp) = state.stamp_of_signals(id) else { return };
        let Ok(Some((own, link))) = state.nccl.link_of(id.comm) else { return };
        let Some(process) = state.nccl.communicators.get(&id.comm).and_then(|comm| comm.ranks[to].process)
        else {
            return;
        };
        let (number, offset) = match (send.request, send.window) {
            (OneSided::Put(Put { offset, .. }), Some(number)) => (number, offset),
            _ => (SequenceNumber::default(), 0),
        };
        let arrival = Arrival { stamp, bytes: (0, 0), scale: [0; 8], payload };
        let call_site = send.call_site.clone();
        let event = Event::Signals { from: id.rank, to, number, offset, arrival, call_site };
        state.nccl.send(Outgoing::new(own, &link, vec![process.number], &event));
    }

    /// Lets the waits of these ranks go on whose signals have come.
    fn finish_signaled(&self, guard: &mut Guard<'_>, comm: CommId, ranks: &[Rank]) -> NcclResult<()> {
        let groups = guard.nccl.communicators.get(&comm).map(|entry| &entry.signals.groups);
        let waiting = groups.into_iter().flat_map(|groups| groups.keys().copied());
        let waiting: Vec<OneSidedId> = waiting.filter(|id| ranks.contains(&id.rank)).collect();
        for id in waiting {
            if let Some(done) = guard.locked().take_if_signaled(id)? {
                self.finish_signals(guard, done)?;
            }
        }
        Ok(())
    }

    fn finish_signals(&self, guard: &mut Guard<'_>, done: Signaled) -> NcclResult<()> {
        let state = guard.locked();
        let Signaled { comm, op, view, partners, touched } = done;
        let what = "ncclPutSignal by another process";
        self.engine.note_touched(state.engine, op.stream, what, touched, false, false);
        state.engine.finish_after(op.stream, &view, Cost::PointToPoint { partners });
        state.nccl.forget_communicator_if_over(comm)
    }
}

/// Returns the failure of a put to bytes that are in no window of its peer.
fn outside(from: Rank, to: Rank, call_site: &CallSite) -> Failure {
    let report = Report::new(format!("rank {from} puts bytes outside of rank {to}'s window"))
        .at("ncclPutSignal", call_site)
        .fact(format!("rank {to} has no window with these bytes, or has deregistered it"))
        .help("every rank must register the window with the same size, and keep it until all puts are done");
    Failure::announce(CudaStatus::IllegalAddress, &report)
}

impl Locked<'_> {
    /// Begins to execute a rank's puts and signals. Fails them if a GPU that they need has failed.
    fn begin_sending(&mut self, id: OneSidedId) -> NcclResult<Vec<Sending>> {
        let entry = self.nccl.communicator(id.comm)?;
        let Some(group) = entry.signals.groups.get(&id) else { return Ok(Vec::new()) };
        let (op, device, sends) = (group.op, group.device, group.sends.clone());
        let failed = sends.first().and_then(|send| {
            failed_gpu(self.engine, op, id.rank, &Request::OneSided(send.request), &send.call_site)
        });
        if let Some(report) = failed {
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            self.fail_signals(id, &failure)?;
            return Ok(Vec::new());
        }
        let enqueued = self.engine.enqueued_as(op).unwrap_or(AFTER_ALL);
        let sendings = sends.into_iter().map(|send| {
            let peer = send.request.peer();
            let is_here = self.nccl.communicators[&id.comm].ranks[peer].process.is_none();
            let target = send.window.and_then(|number| self.nccl.window_of(id.comm, peer, number));
            Sending { send, from: id.rank, device, enqueued, target, is_here }
        });
        let sendings = sendings.collect();
        self.nccl.communicator_mut(id.comm)?.signals.group_mut(id)?.running = true;
        Ok(sendings)
    }

    /// Returns what other processes need to know about a rank's one-sided calls, which its stream has reached.
    fn stamp_of_signals(&mut self, id: OneSidedId) -> Option<Stamp> {
        let op = self.nccl.communicators.get(&id.comm)?.signals.groups.get(&id)?.op;
        self.stamp(op)
    }

    /// Returns the signal of a put or signal that has been executed for a rank in this process.
    fn own_signal(&mut self, id: OneSidedId, op: OpRef, send: &Send) -> Option<Come> {
        self.nccl.communicators.get(&id.comm)?;
        let view = self.engine.view_at_end_of(op)?;
        let ready = self.engine.time.ready_at(&self.engine.ticket_of(op)?);
        let bytes = match send.request {
            OneSided::Put(put) => put.bytes(),
            _ => 0,
        };
        let at = ready + point_to_point(self.engine.time.preset(), bytes);
        Some(Come { view, at, touched: Vec::new() })
    }
}
