//! How a rank leaves its communicator, or cancels its work: destroy, abort, and revoke.

use super::call::Request;
use super::communicator::{Communicator, LastCall};
use super::event::Event;
use super::internal;
use super::log;
use super::membership::Membership;
use super::{Locked, Nccl, State};
use virtual_gpu::config::{Checks, Config};
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
            internal::report(state.abort(handle, comm, rank, self.engine.config()));
        }
        let guard = self.run_ready(guard);
        self.unlock_and_wake(guard);
    }

    /// Implements `ncclCommDestroy`. Work that the rank has already enqueued still completes.
    pub fn destroy(&self, handle: CommHandle) -> NcclResult<()> {
        let mut guard = self.lock();
        let mut state = guard.locked();
        let (comm, rank) = state.nccl.unfinished_member(handle)?;
        if let Some(failure) = state.fail_if_held(comm, rank, "ncclCommDestroy", self.engine.config())? {
            return Err(Error::new(NcclStatus::InvalidUsage, failure.report));
        }
        log::ended("Destroy", state.nccl.communicator(comm)?, handle, rank);
        state.nccl.leave(handle, comm, rank, false)?;
        self.unlock_and_wake(guard);
        Ok(())
    }
}

impl Nccl {
    /// Implements `ncclCommRevoke`: cancels the rank's pending work. The communicator can then be split, shrunk,
    /// destroyed, and aborted, but no longer communicates.
    ///
    /// # Errors
    /// Returns `InvalidArgument` after a finalize or another revoke, and `InProgress` for a nonblocking communicator.
    pub fn revoke(&self, handle: CommHandle) -> NcclResult<()> {
        let mut guard = self.lock();
        let (comm, rank) = guard.nccl.member(handle)?;
        let own = &guard.nccl.communicator(comm)?.ranks[rank];
        let refused = match own {
            own if own.finalized => Some("finalized"),
            own if own.revoked => Some("revoked"),
            _ => None,
        };
        if let Some(how) = refused {
            let message = format!("ncclCommRevoke: the communicator has been {how} already");
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        log::ended("Revoke", guard.nccl.communicator(comm)?, handle, rank);
        guard.locked().cancel_work(comm, rank, true)?;
        let own = &mut guard.nccl.communicator_mut(comm)?.ranks[rank];
        let blocking = own.config.blocking;
        own.polls = u32::from(!blocking);
        let guard = self.run_ready(guard);
        self.unlock_and_wake(guard);
        if blocking { Ok(()) } else { Err(NcclStatus::InProgress.into()) }
    }
}

/// How a rank has canceled its work, if it has revoked the communicator or shrinks it.
const REVOKED: &str = "has revoked the communicator";
const SHRINKS: &str = "has canceled its work to shrink the communicator";

impl State {
    /// Removes a rank's handle to a communicator.
    fn leave(&mut self, handle: CommHandle, comm: CommId, rank: Rank, aborts: bool) -> NcclResult<()> {
        self.memberships.remove(&handle);
        self.registered.retain(|_, of| *of != handle);
        self.windows.retain(|_, window| window.of != handle);
        let call_site = CallSite::here();
        let gpu_failure = self.communicator(comm)?.ranks[rank].gpu_failure.clone();
        self.publish(comm, &Event::Leaves { rank, aborts, gpu_failure, call_site: call_site.clone() })?;
        self.communicator_mut(comm)?.ranks[rank].left = Some((departure(aborts).into(), call_site));
        self.forget_communicator_if_over(comm)
    }
}

impl Communicator {
    /// Returns whether more than one rank is in this process.
    pub(crate) fn has_several_ranks_here(&self) -> bool {
        self.ranks.values().filter(|rank| rank.process.is_none()).count() > 1
    }

    /// Records that a rank in another process has canceled its work.
    pub(crate) fn cancels_elsewhere(&mut self, rank: Rank, revokes: bool, call_site: CallSite) {
        // None of its parts is on a stream of this process.
        self.cancel_calls(rank);
        let own = &mut self.ranks[rank];
        own.revoked |= revokes;
        own.canceled = Some((if revokes { REVOKED } else { SHRINKS }, call_site));
    }

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
    /// Cancels a rank's pending work, to revoke its communicator or to shrink it.
    pub(crate) fn cancel_work(&mut self, comm: CommId, rank: Rank, revokes: bool) -> NcclResult<()> {
        for stream in self.nccl.communicator_mut(comm)?.cancel_calls(rank) {
            self.engine.finish(stream);
        }
        self.cancel_transfers(comm, rank)?;
        self.cancel_signals(comm, rank)?;
        let call_site = CallSite::here();
        let own = &mut self.nccl.communicator_mut(comm)?.ranks[rank];
        own.revoked |= revokes;
        own.canceled = Some((if revokes { REVOKED } else { SHRINKS }, call_site.clone()));
        // The work is over, so a later abort does not interrupt it.
        own.last = None;
        self.nccl.publish(comm, &Event::Cancels { rank, revokes, call_site })
    }

    /// Withdraws a rank from its communicator and from all pending work.
    fn abort(&mut self, handle: CommHandle, comm: CommId, rank: Rank, config: &Config) -> NcclResult<()> {
        log::ended("Abort", self.nccl.communicator(comm)?, handle, rank);
        if let Some((op, report)) = self.aborted_in_flight(comm, rank)?
            && let Some(failure) = Failure::of_problem(CudaStatus::LaunchFailed, &report, config.checks)
        {
            self.engine.fail_stream(op.stream, &failure);
        }
        self.fail_if_held(comm, rank, "ncclCommAbort (dropping a Comm calls it)", config)?;
        for stream in self.nccl.communicator_mut(comm)?.cancel_calls(rank) {
            self.engine.finish(stream);
        }
        self.cancel_transfers(comm, rank)?;
        self.cancel_signals(comm, rank)?;
        self.nccl.leave(handle, comm, rank, true)
    }

    /// Reports that a graph still holds a rank's communicator when `call` ends it, and lets the rank's stream fail: NCCL would
    /// wait forever. Returns the failure, unless such problems are only printed.
    fn fail_if_held(
        &mut self,
        comm: CommId,
        rank: Rank,
        call: &str,
        config: &Config,
    ) -> NcclResult<Option<Failure>> {
        if config.checks == Checks::Off && config.strict_nccl.is_none() {
            return Ok(None);
        }
        let Some(report) = self.held_by_a_graph(comm, rank, call)? else { return Ok(None) };
        let failure = Failure::announce(CudaStatus::LaunchTimeout, &report);
        if config.checks == Checks::Warn {
            return Ok(None);
        }
        if let Some(last) = &self.nccl.communicator(comm)?.ranks[rank].last {
            self.engine.fail_stream(last.op.stream, &failure);
        }
        Ok(Some(failure))
    }

    /// Returns a report if a graph still holds a rank's communicator, and the thread that captured the graph ends the
    /// communicator with `call`. NCCL then waits until the graph is gone: `commDestroySync` in `init.cc`.
    fn held_by_a_graph(&mut self, comm: CommId, rank: Rank, call: &str) -> NcclResult<Option<Report>> {
        let Some((calls, captured)) = self.engine.graph_with(&|calls| calls.are_of(comm, rank)) else {
            return Ok(None);
        };
        // Another thread may be about to drop the graph.
        if self.nccl.communicator(comm)?.ranks[rank].owner != self.engine.current_thread() {
            return Ok(None);
        }
        let report = Report::new(format!("rank {rank}'s communicator ends while a graph still holds it"))
            .at(format!("captured here: {calls}"), &captured)
            .at(call, &CallSite::here())
            .fact("NCCL waits there until the graph is gone, but this thread can't drop the graph while it waits")
            .help("drop the graph before the communicator");
        Ok(Some(report))
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
            Request::OneSided(..) => "put, signal, or wait",
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
