//! How a rank leaves its communicator: destroy and abort.

use super::call::Request;
use super::communicator::{Communicator, LastCall};
use super::event::Event;
use super::internal;
use super::log;
use super::membership::Membership;
use super::{Locked, Nccl, State};
use virtual_gpu::config::Checks;
use virtual_gpu::engine::{Awaiting, Failure, State as EngineState};
use virtual_gpu::order::View;
use virtual_gpu::report::Report;
use virtual_gpu_core::handle::{CommHandle, CommId, OpRef, Rank};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

impl Nccl {
    /// Implements `ncclCommAbort`: withdraws the rank from the communicator and from all pending work. Always succeeds.
    pub fn abort(&self, handle: CommHandle) {
        let mut guard = self.lock();
        let mut state = guard.locked();
        if let Some(Membership::Joining(..)) = state.nccl.memberships.get(&handle) {
            let message = "a rank aborted the communicator while it was being created";
            let error = Error::new(NcclStatus::RemoteError, message);
            internal::report(state.nccl.leave_bootstraps(&[Awaiting::Communicator(handle)], &error));
        }
        if let Ok((comm, rank)) = state.nccl.member(handle) {
            internal::report(state.abort(handle, comm, rank, self.engine.config().checks));
        }
        let guard = self.run_ready(guard);
        self.unlock_and_wake(guard);
    }

    /// Implements `ncclCommDestroy`. Work that the rank has already enqueued still completes.
    pub fn destroy(&self, handle: CommHandle) -> NcclResult<()> {
        let mut guard = self.lock();
        let state = guard.locked();
        let (comm, rank) = state.nccl.unfinished_member(handle)?;
        log::ended("Destroy", state.nccl.communicator(comm)?, handle, rank);
        state.nccl.leave(handle, comm, rank, false)?;
        self.unlock_and_wake(guard);
        Ok(())
    }
}

impl State {
    /// Removes a rank's handle to a communicator.
    fn leave(&mut self, handle: CommHandle, comm: CommId, rank: Rank, aborts: bool) -> NcclResult<()> {
        self.memberships.remove(&handle);
        let call_site = CallSite::here();
        let gpu_failure = self.communicator(comm)?.ranks[rank].gpu_failure.clone();
        self.publish(comm, &Event::Leaves { rank, aborts, gpu_failure, call_site: call_site.clone() })?;
        self.communicator_mut(comm)?.ranks[rank].left = Some((departure(aborts).into(), call_site));
        self.forget_communicator_if_over(comm)
    }
}

impl Communicator {
    /// Records that a rank in another process is leaving.
    pub(crate) fn leaves_elsewhere(
        &mut self,
        rank: Rank,
        aborts: bool,
        gpu_failure: Option<String>,
        call_site: CallSite,
    ) {
        if aborts {
            // None of its parts is on a stream of this process.
            self.cancel_calls(rank);
        }
        self.ranks[rank].gpu_failure = gpu_failure;
        self.ranks[rank].left = Some((departure(aborts).into(), call_site));
    }
}

impl Locked<'_> {
    /// Withdraws a rank from its communicator and from all pending work.
    fn abort(&mut self, handle: CommHandle, comm: CommId, rank: Rank, checks: Checks) -> NcclResult<()> {
        log::ended("Abort", self.nccl.communicator(comm)?, handle, rank);
        if let Some((op, report)) = self.aborted_in_flight(comm, rank)?
            && checks != Checks::Off
        {
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            if checks == Checks::Error {
                self.engine.fail_stream(op.stream, &failure);
            }
        }
        for stream in self.nccl.communicator_mut(comm)?.cancel_calls(rank) {
            self.engine.finish(stream);
        }
        self.cancel_transfers(comm, rank)?;
        self.nccl.leave(handle, comm, rank, true)
    }

    /// Returns a report if a rank aborts before its thread has seen its last call complete, because then only luck
    /// decides whether the call still works. If a query has told the thread that the call isn't done, the abort is
    /// deliberate: this is how programs give up on missing ranks.
    fn aborted_in_flight(&mut self, comm: CommId, rank: Rank) -> NcclResult<Option<(OpRef, Report)>> {
        let thread = self.engine.current_thread();
        let comm = self.nccl.communicator(comm)?;
        let last = comm.ranks[rank].last.as_ref().filter(|_| comm.failed.is_none());
        let view = self.engine.order.view_of(thread);
        Ok(last.and_then(|last| last.in_flight(self.engine, rank, &view)))
    }
}

impl LastCall {
    /// Returns the operation and a report about the rank's abort if the thread, which knows only `view`, has not seen
    /// the call complete.
    fn in_flight(&self, engine: &EngineState, rank: Rank, view: &View) -> Option<(OpRef, Report)> {
        let Self { request, op, call_site, was_polled } = self;
        let context = engine.stream(op.stream)?.context;
        if *was_polled || view.own.covers(op.stream, op.number) || engine.failure_of(context).is_some() {
            return None;
        }
        let call = match request {
            Request::Collective(..) => "collective",
            Request::Transfer(..) => "send or receive",
        };
        let report =
            Report::new(format!("rank {rank} aborts its communicator while a {call} may be in flight"))
                .at(request.to_string(), call_site)
                .at("ncclCommAbort (dropping a Comm calls it)", &CallSite::here())
                .help("wait for the communicator's stream first: comm.stream().synchronize()?");
        Some((*op, report))
    }
}

/// Describes how a rank left.
pub(crate) fn departure(aborts: bool) -> &'static str {
    if aborts { "has aborted its communicator" } else { "has destroyed its communicator" }
}
