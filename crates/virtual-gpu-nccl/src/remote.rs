//! Handles the events that other processes send about their ranks, and the end of another process.

use super::Locked;
use super::communicator::{Communicator, Lost};
use super::deadlock::deadlock_report;
use super::event::{Event, Failed, Fails, MessageName};
use super::one_sided::Delivery;
use super::point_to_point::{End, MessageKey};
use super::run::Job;
use super::session::{CommTag, ProcessNumber, SessionId, of_process};
use super::transfer::Direction;
use super::wire::EventError;
use virtual_gpu::engine::Failure;
use virtual_gpu::report::{Report, ranks};
use virtual_gpu_core::handle::{CallKey, CollectiveId, CommId, ManagementId, Rank, SequenceNumber};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

impl Event {
    /// Returns whether the event's ranks exist and belong to the process that sends it.
    fn is_plausible(&self, comm: &Communicator, from: ProcessNumber) -> bool {
        let world_size = comm.ranks.len();
        let is_theirs = |rank: Rank| {
            let process = comm.ranks.get(rank).and_then(|state| state.process);
            process.is_some_and(|process| process.number == from)
        };
        let is_rank = |rank: Rank| rank.0 < world_size;
        match self {
            Self::Called { rank, operation, .. } => is_theirs(*rank) && operation.root().is_none_or(is_rank),
            Self::Arrived { rank, .. } | Self::Leaves { rank, .. } | Self::Cancels { rank, .. } => {
                is_theirs(*rank)
            }
            Self::Joins { rank, joins, .. } => is_theirs(*rank) && joins.is_plausible(world_size),
            Self::End { rank, transfer, .. } => is_theirs(*rank) && is_rank(transfer.peer),
            Self::Ready { message, end, .. } => match end {
                Direction::Send => is_theirs(message.from) && is_rank(message.to),
                Direction::Receive => is_theirs(message.to) && is_rank(message.from),
            },
            Self::Signals { from, to, .. } => {
                is_theirs(*from) && is_rank(*to) && comm.ranks[*to].process.is_none()
            }
            Self::Fails(Fails { call: Failed::Signals(from, to), .. }) => is_theirs(*from) && is_rank(*to),
            Self::Fails(_) => true,
        }
    }
}

impl Locked<'_> {
    /// Handles an event on a communicator. An event that arrives before this process has created the communicator is
    /// kept.
    ///
    /// # Errors
    /// Returns [`EventError::Malformed`] if the event is invalid.
    pub(crate) fn take_in(
        &mut self,
        session: SessionId,
        from: ProcessNumber,
        tag: CommTag,
        event: Event,
    ) -> Result<Option<Job>, EventError> {
        let entry = self.nccl.session_mut(session)?;
        let Some(&comm) = entry.communicators.get(&tag) else {
            entry.early.entry(tag).or_default().push((from, event));
            return Ok(None);
        };
        self.apply(comm, from, event)
    }

    /// Handles the events that arrived before a communicator was created.
    pub(crate) fn take_in_early(&mut self, session: SessionId, tag: CommTag, comm: CommId) -> NcclResult<()> {
        let entry = self.nccl.session_mut(session)?;
        for (from, event) in entry.early.remove(&tag).unwrap_or_default() {
            // No rank in this process has called anything yet, so nothing can run. Invalid events have no effect.
            if let Err(EventError::Internal(error)) = self.apply(comm, from, event) {
                return Err(error);
            }
        }
        let gone = self.nccl.session(session)?.gone.clone();
        gone.into_iter().try_for_each(|process| self.process_gone(session, process))
    }

    /// Applies an event and returns what can run now.
    ///
    /// # Errors
    /// Returns [`EventError::Malformed`] if the event is invalid.
    fn apply(&mut self, comm: CommId, from: ProcessNumber, event: Event) -> Result<Option<Job>, EventError> {
        // If all ranks in this process have left, none of them needs the event.
        let Some(entry) = self.nccl.communicators.get_mut(&comm) else { return Ok(None) };
        if !event.is_plausible(entry, from) {
            return Err(EventError::Malformed);
        }
        Ok(match event {
            Event::Called { rank, sequence, operation, captured, call_site } => {
                if let Some(report) = entry.called_elsewhere(sequence, rank, (operation, captured), call_site)
                {
                    let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
                    self.fail_collective(CollectiveId { comm, sequence }, &failure)?;
                }
                None
            }
            Event::Arrived { rank, sequence, arrival } => {
                let arrived = self.keep(arrival);
                self.nccl.communicator_mut(comm)?.arrived_elsewhere(sequence, rank, arrived)?
            }
            Event::End { rank, transfer, is_captured, call_site } => {
                let end = End::elsewhere(transfer, is_captured, call_site);
                let key = entry.traffic.add(comm, rank, end);
                self.compare_ends(key)?;
                None
            }
            Event::Ready { message, end, arrival } => {
                let arrived = self.keep(arrival);
                let MessageName { from, to, sequence } = message;
                let comm = self.nccl.communicator_mut(comm)?;
                let key = MessageKey { comm: comm.id, from, to, sequence };
                comm.traffic.ready_elsewhere(self.engine, key, end, arrived)
            }
            Event::Joins { rank, sequence, joins, call_site } => {
                entry.joins_elsewhere(sequence, rank, joins, call_site);
                self.complete_if_all_joined(ManagementId { comm, sequence })?;
                None
            }
            Event::Leaves { rank, aborts, gpu_failure, call_site } => {
                entry.leaves_elsewhere(rank, aborts, gpu_failure, call_site);
                None
            }
            Event::Cancels { rank, revokes, call_site } => {
                entry.cancels_elsewhere(rank, revokes, call_site);
                None
            }
            Event::Fails(fails) => {
                self.fails_elsewhere(comm, fails)?;
                None
            }
            Event::Signals { from, to, number, offset, arrival, call_site } => {
                let arrived = self.keep(arrival);
                let target = (number != SequenceNumber::default()).then_some((number, offset));
                Some(Job::Delivery(Delivery { comm, from, to, target, arrived, call_site }))
            }
        })
    }

    fn fails_elsewhere(&mut self, comm: CommId, fails: Fails) -> NcclResult<()> {
        let Fails { call, cuda, status, report } = fails;
        let cuda = CudaStatus::from_value(cuda).unwrap_or(CudaStatus::LaunchFailed);
        let failure = Failure { status: cuda, report: report.into() };
        match call {
            Failed::Collective(sequence) => self.collective_failed(CollectiveId { comm, sequence }, &failure),
            Failed::Message(MessageName { from, to, sequence }) => {
                self.message_lost(MessageKey { comm, from, to, sequence }, &failure)
            }
            Failed::Signals(from, to) => self.signals_lost(comm, from, to, &failure),
            Failed::Management(sequence) => {
                self.nccl.management_call_failed(ManagementId { comm, sequence }, status, &failure)
            }
        }
    }

    /// Handles the end of a process: calls that are waiting for its ranks fail, and so do later calls.
    pub(crate) fn process_gone(&mut self, session: SessionId, process: ProcessNumber) -> NcclResult<()> {
        if self.nccl.is_leaving {
            return Ok(());
        }
        let entry = self.nccl.session_mut(session)?;
        entry.gone.insert(process);
        let who = of_process(entry.pid(process));
        let communicators: Vec<CommId> = entry.communicators.values().copied().collect();
        let id = entry.id;
        if self.nccl.gathering.get(&id) == Some(&session) {
            self.nccl.process_left_bootstrap(id, process, &who);
        }
        communicators.into_iter().try_for_each(|comm| self.ranks_gone(comm, process, &who))
    }

    fn ranks_gone(&mut self, comm: CommId, process: ProcessNumber, who: &str) -> NcclResult<()> {
        let entry = self.nccl.communicator_mut(comm)?;
        let lost = entry.lose_ranks(process, who);
        if lost.is_empty() {
            return Ok(());
        }
        let verb = if lost.len() == 1 { "is" } else { "are" };
        let headline = format!("{} {verb} gone: {who} has ended", ranks(&lost));
        let report = Report::new(&*headline).at("the communicator was created", &entry.call_site);
        let error = Error::new(NcclStatus::RemoteError, report.to_string());
        entry.failed.get_or_insert_with(|| error.clone());
        entry.lost.get_or_insert_with(|| Lost { ranks: Vec::new(), headline, error }).ranks.extend(&lost);
        entry.forget_calls_elsewhere(&lost);
        // Calls on streams stay pending, as on a real GPU, so that the program can shrink the communicator. They fail when
        // a thread waits for them.
        let others = entry.management_calls.iter().filter(|(_, call)| call.lacks_any(&lost));
        for sequence in others.map(|(&sequence, _)| sequence).collect::<Vec<_>>() {
            let call = [CallKey::Management(ManagementId { comm, sequence })].into();
            let report = deadlock_report(self.engine, self.nccl, &call);
            self.fail_calls(&call, CudaStatus::LaunchFailed, &report)?;
        }
        Ok(())
    }
}

impl Communicator {
    /// Marks the ranks of a process that has ended as gone. Returns those that had not left.
    fn lose_ranks(&mut self, process: ProcessNumber, who: &str) -> Vec<Rank> {
        let mut lost = Vec::new();
        for (rank, state) in self.ranks.iter_mut() {
            if state.left.is_none() && state.process.is_some_and(|of| of.number == process) {
                state.left = Some((format!("is gone: {who} has ended").into(), CallSite::unknown()));
                lost.push(rank);
            }
        }
        lost
    }

    /// Forgets the calls that no rank in this process has reached. None will reach them, because the next call is
    /// rejected, unless it is a shrink without the lost ranks.
    fn forget_calls_elsewhere(&mut self, lost: &[Rank]) {
        self.calls.retain(|_, call| call.has_part_here());
        let ranks = &self.ranks;
        self.management_calls.retain(|_, call| call.has_participant_here(ranks) || !call.lacks_any(lost));
    }
}
