//! One-sided calls: `ncclPutSignal`, `ncclSignal`, and `ncclWaitSignal`. Those that a rank launches together are one
//! operation on its stream.
//!
//! A put writes to its peer's window when its stream reaches it, whatever the peer does, and then counts a signal. Each
//! wait needs a total number of signals from a rank: those that all earlier waits have asked for, and its own.

mod call;
mod running;

use std::collections::{BTreeMap, VecDeque};

use crate::Locked;
use crate::call::{Checked, Request};
use crate::communicator::{Communicator, LastCall};
use crate::internal::vanished;
pub use call::{OneSided, Put};
pub(crate) use running::Delivery;
use virtual_gpu::engine::{Awaited, Failure, Missing, Touched};
use virtual_gpu::order::View;
use virtual_gpu::time::Ticket;
use virtual_gpu::time::trace::Label;
use virtual_gpu::time::tuning::point_to_point;
use virtual_gpu_core::handle::{CallKey, CommId, OneSidedId, OpRef, Rank, SequenceNumber};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// All one-sided calls of a communicator that are not done, and the signals between its ranks.
#[derive(Default)]
pub(crate) struct Signals {
    pub(crate) groups: BTreeMap<OneSidedId, SignalGroup>,
    lanes: Map<Lane, Counter>,
}

/// The ranks at both ends of signals.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Lane {
    from: Rank,
    to: Rank,
}

/// The signals from one rank to another.
#[derive(Default)]
struct Counter {
    /// The number of signals that have come.
    come: u64,
    /// The last of them, which no wait has needed yet.
    unneeded: VecDeque<Come>,
    /// What happened before the others.
    before: View,
    /// The number of signals that all waits so far have asked for.
    asked: u64,
    /// Why no further signal comes, if a put has failed.
    failure: Option<Failure>,
}

/// A signal that has come.
struct Come {
    view: View,
    /// When it came, in nanoseconds.
    at: u64,
    /// What its put wrote, if it came from another process, which has no stream here.
    touched: Vec<Touched>,
}

/// The one-sided calls that one rank launched together.
pub(crate) struct SignalGroup {
    pub(crate) op: OpRef,
    pub(crate) device: usize,
    /// Whether the rank's stream has reached the group.
    arrived: bool,
    /// Whether the puts are being executed.
    running: bool,
    /// Whether the rank has aborted.
    canceled: bool,
    failure: Option<Failure>,
    /// The puts and signals that have not been executed.
    sends: Vec<Send>,
    waits: Vec<Wait>,
    /// How long the puts take, in nanoseconds; `None` if the group only waits.
    duration: Option<u64>,
}

/// A put or a signal.
#[derive(Clone)]
struct Send {
    request: OneSided,
    /// The registration of the window that a put writes to.
    window: Option<SequenceNumber>,
    call_site: CallSite,
}

/// A wait for signals from one rank.
struct Wait {
    request: OneSided,
    from: Rank,
    /// The number of signals from this rank, since the communicator was created, that the wait needs.
    needed: u64,
    call_site: CallSite,
}

/// Signals that a rank is waiting for.
pub(crate) struct PendingSignal {
    pub(crate) from: Rank,
    pub(crate) request: OneSided,
    pub(crate) call_site: CallSite,
    /// The number of signals that have not come.
    pub(crate) lacking: u64,
    /// The call that sends the next one, if it has been made.
    pub(crate) sender: Option<(OneSided, CallSite)>,
    pub(crate) missing: Missing,
}

impl Counter {
    fn come(&mut self, signal: Come) {
        self.come += 1;
        self.unneeded.push_back(signal);
    }

    /// Returns what happened before the first `needed` signals, when the last of them came, and what they wrote.
    fn need(&mut self, needed: u64) -> (View, u64, Vec<Touched>) {
        let first = self.come - self.unneeded.len() as u64;
        let (mut at, mut touched) = (0, Vec::new());
        for signal in self.unneeded.drain(..needed.saturating_sub(first) as usize) {
            self.before.join(&signal.view);
            at = at.max(signal.at);
            touched.extend(signal.touched);
        }
        (self.before.clone(), at, touched)
    }
}

impl Signals {
    /// Returns whether no one-sided call is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    fn counter(&mut self, from: Rank, to: Rank) -> &mut Counter {
        self.lanes.entry(Lane { from, to }).or_default()
    }

    fn has_come(&self, from: Rank, to: Rank) -> u64 {
        self.lanes.get(&Lane { from, to }).map_or(0, |counter| counter.come)
    }

    /// Returns a rank's one-sided calls, which must exist because they are not done.
    ///
    /// # Errors
    /// Returns an `InternalError` that names them.
    fn group_mut(&mut self, id: OneSidedId) -> NcclResult<&mut SignalGroup> {
        self.groups.get_mut(&id).ok_or_else(|| vanished_group(id))
    }

    /// Returns the next call by `from`, of those in this process, that signals `to`, with its operation.
    fn next_sender(&self, from: Rank, to: Rank) -> Option<(OpRef, &Send)> {
        self.groups.iter().filter(|(id, group)| id.rank == from && !group.canceled).find_map(|(_, group)| {
            let send = group.sends.iter().find(|send| send.request.peer() == to)?;
            Some((group.op, send))
        })
    }
}

fn vanished_group(id: OneSidedId) -> Error<NcclStatus> {
    let OneSidedId { comm, rank, sequence } = id;
    vanished(format_args!("group {sequence} of rank {rank}'s one-sided calls on communicator {}", comm.0))
}

impl SignalGroup {
    /// Returns the group's label for a trace.
    fn label(&self, rank: Rank, bytes: u64) -> Label {
        let first = self.sends.first().map(|send| send.request);
        let first = first.or(self.waits.first().map(|wait| wait.request));
        let name = first.map_or("ncclSignal", |request| request.function());
        Label::new("collective", name).with("rank", rank.0).with("bytes sent", bytes)
    }

    /// Returns whether a group that has failed or has been canceled can be removed.
    fn is_over(&self) -> bool {
        self.arrived && !self.running && (self.failure.is_some() || self.canceled)
    }
}

impl Communicator {
    /// Returns the signals that a rank's one-sided calls are still waiting for, in call order.
    pub(crate) fn pending_signals(&self, id: OneSidedId) -> Vec<PendingSignal> {
        let signals = &self.signals;
        let group = signals.groups.get(&id).filter(|group| group.failure.is_none());
        let waits = group.into_iter().flat_map(|group| &group.waits);
        let pending = waits.filter_map(|wait| {
            let lacking = wait.needed.checked_sub(signals.has_come(wait.from, id.rank)).filter(|&n| n > 0)?;
            let rank = &self.ranks[wait.from];
            let sender = signals.next_sender(wait.from, id.rank);
            let missing = match &sender {
                Some((op, _)) => Missing::InStream(*op),
                None if rank.canceled.is_some() => Missing::Gone,
                None => rank.silence(),
            };
            Some(PendingSignal {
                from: wait.from,
                request: wait.request,
                call_site: wait.call_site.clone(),
                lacking,
                sender: sender.map(|(_, send)| (send.request, send.call_site.clone())),
                missing,
            })
        });
        pending.collect()
    }

    /// Identifies the one-sided calls that need signals from one of these ranks.
    pub(crate) fn waiting_for_signals_of(&self, lost: &[Rank]) -> Vec<CallKey> {
        let ids = self.signals.groups.keys().copied();
        let waits = ids.filter(|&id| self.pending_signals(id).iter().any(|one| lost.contains(&one.from)));
        waits.map(CallKey::OneSided).collect()
    }
}

impl Locked<'_> {
    /// Enqueues the one-sided calls that a rank launches together on the stream of the first one, to run after the
    /// operations in `after`.
    pub(crate) fn enqueue_one_sided(
        &mut self,
        (comm, rank): (CommId, Rank),
        calls: Vec<Checked>,
        after: Vec<Awaited>,
    ) -> NcclResult<()> {
        let owner = self.engine.current_thread();
        let entry = self.nccl.communicator(comm)?;
        entry.check_all_there()?;
        let (sequence, device) = (entry.ranks[rank].signal_groups.next(), entry.ranks[rank].device);
        let id = OneSidedId { comm, rank, sequence };
        let (stream, call_site) = (calls[0].stream, calls[0].call_site.clone());
        let Awaited { op, when, .. } =
            self.engine.enqueue_call(stream, CallKey::OneSided(id), after, call_site)?;
        let (mut sends, mut waits, mut bytes) = (Vec::new(), Vec::new(), 0);
        for Checked { request, call_site, .. } in calls {
            let Request::OneSided(request) = request else { continue };
            let window = match request {
                OneSided::Put(put) => {
                    bytes += put.bytes();
                    self.nccl.windows.get(&put.window).map(|window| window.number)
                }
                _ => None,
            };
            let entry = self.nccl.communicator_mut(comm)?;
            let (request_of_rank, last_site) = (Request::OneSided(request), call_site.clone());
            entry.ranks[rank].last =
                Some(LastCall { request: request_of_rank, op, call_site: last_site, was_polled: false });
            match request {
                OneSided::Wait { peer, count } => {
                    let counter = entry.signals.counter(peer, rank);
                    counter.asked += count;
                    waits.push(Wait { request, from: peer, needed: counter.asked, call_site });
                }
                _ => sends.push(Send { request, window, call_site }),
            }
        }
        let duration = point_to_point(self.engine.time.preset(), bytes);
        let group = SignalGroup {
            op,
            device,
            arrived: false,
            running: false,
            canceled: false,
            failure: None,
            duration: (!sends.is_empty()).then_some(duration),
            sends,
            waits,
        };
        self.engine.time.communicates(&when, duration, || group.label(rank, bytes));
        let entry = self.nccl.communicator_mut(comm)?;
        entry.ranks[rank].signal_groups = sequence;
        entry.used_by(rank, owner);
        entry.signals.groups.insert(id, group);
        Ok(())
    }

    /// Records that a rank's stream has reached the one-sided calls that it launched together. Returns whether they can go
    /// on.
    ///
    /// # Errors
    /// Returns `InternalError` if there is no such call.
    pub(crate) fn arrive_at_signals(&mut self, id: OneSidedId) -> NcclResult<bool> {
        let group = self.nccl.communicator_mut(id.comm)?.signals.group_mut(id)?;
        group.arrived = true;
        self.leave_signals_if_over(id)?;
        Ok(self.nccl.communicator(id.comm)?.signals.groups.contains_key(&id))
    }

    /// Fails the one-sided calls that a rank launched together: now if its stream has reached them, or otherwise when it
    /// does. The waits for its signals fail, too.
    pub(crate) fn fail_signals(&mut self, id: OneSidedId, failure: &Failure) -> NcclResult<()> {
        let entry = self.nccl.communicator_mut(id.comm)?;
        entry.note_failure(failure);
        let Some(group) = entry.signals.groups.get_mut(&id) else { return Ok(()) };
        if group.failure.is_none() {
            group.failure = Some(failure.clone());
            let peers: Vec<Rank> = group.sends.iter().map(|send| send.request.peer()).collect();
            for peer in peers {
                self.nccl.publish_lost_signal(id, peer, failure)?;
                self.signals_lost(id.comm, id.rank, peer, failure)?;
            }
        }
        self.leave_signals_if_over(id)
    }

    /// Fails the waits for signals from one rank to another that will not come.
    pub(crate) fn signals_lost(
        &mut self,
        comm: CommId,
        from: Rank,
        to: Rank,
        failure: &Failure,
    ) -> NcclResult<()> {
        let entry = self.nccl.communicator_mut(comm)?;
        entry.signals.counter(from, to).failure.get_or_insert_with(|| failure.clone());
        let waits_for = |group: &SignalGroup, come: u64| {
            group.waits.iter().any(|wait| wait.from == from && wait.needed > come)
        };
        let come = entry.signals.has_come(from, to);
        let groups = entry.signals.groups.iter();
        let waiting = groups.filter(|(id, group)| {
            id.rank == to && group.arrived && group.failure.is_none() && waits_for(group, come)
        });
        let waiting: Vec<OneSidedId> = waiting.map(|(&id, _)| id).collect();
        waiting.into_iter().try_for_each(|id| self.fail_signals(id, failure))
    }

    /// Cancels a rank's one-sided calls that are not being executed yet.
    pub(crate) fn cancel_signals(&mut self, comm: CommId, rank: Rank) -> NcclResult<()> {
        let signals = &mut self.nccl.communicator_mut(comm)?.signals;
        let own = signals.groups.iter_mut().filter(|(id, _)| id.rank == rank);
        let canceled = own.map(|(&id, group)| {
            group.canceled = true;
            id
        });
        canceled.collect::<Vec<_>>().into_iter().try_for_each(|id| self.leave_signals_if_over(id))
    }

    /// Lets a stream continue after its one-sided calls have failed or been canceled.
    fn leave_signals_if_over(&mut self, id: OneSidedId) -> NcclResult<()> {
        let signals = &mut self.nccl.communicator_mut(id.comm)?.signals;
        if !signals.groups.get(&id).is_some_and(SignalGroup::is_over) {
            return Ok(());
        }
        if let Some(group) = signals.groups.remove(&id) {
            let stream = group.op.stream;
            if let Some(failure) = group.failure.filter(|_| !group.canceled) {
                self.engine.fail_stream(stream, &failure);
            }
            self.engine.finish(stream);
        }
        Ok(())
    }

    /// Takes a group whose stream has reached it, whose puts have been executed, and whose signals have all come. Returns it
    /// with what happened before, the times at which the signals came, and what puts from other processes wrote. A group
    /// whose signals will never come fails.
    fn take_if_signaled(&mut self, id: OneSidedId) -> NcclResult<Option<Signaled>> {
        let signals = &mut self.nccl.communicator_mut(id.comm)?.signals;
        let Some(group) = signals.groups.get(&id) else { return Ok(None) };
        if !group.arrived || group.running || !group.sends.is_empty() {
            return Ok(None);
        }
        let lacking = group.waits.iter().find(|wait| signals.has_come(wait.from, id.rank) < wait.needed);
        if let Some(wait) = lacking {
            let failure = signals.counter(wait.from, id.rank).failure.clone();
            return match failure {
                Some(failure) => self.fail_signals(id, &failure).map(|()| None),
                None => Ok(None),
            };
        }
        let group = signals.groups.remove(&id).ok_or_else(|| vanished_group(id))?;
        let (comm, op) = (id.comm, group.op);
        let own = self.engine.ticket_of(op).zip(group.duration);
        let partners = own.into_iter().collect();
        let mut signaled = Signaled { comm, op, view: View::default(), partners, touched: Vec::new() };
        for wait in &group.waits {
            let (view, at, touched) = signals.counter(wait.from, id.rank).need(wait.needed);
            signaled.view.join(&view);
            signaled.partners.push((Ticket::elsewhere(at), 0));
            signaled.touched.extend(touched);
        }
        Ok(Some(signaled))
    }
}

/// One-sided calls that are done.
struct Signaled {
    comm: CommId,
    op: OpRef,
    view: View,
    partners: Vec<(Ticket, u64)>,
    touched: Vec<Touched>,
}
