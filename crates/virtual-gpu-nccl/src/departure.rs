//! How a rank leaves its communicator: destroy and abort.

use super::call::Request;
use super::communicator::LastCall;
use super::event::Event;
use super::log;
use super::membership::Membership;
use super::{Locked, Nccl};
use virtual_gpu::config::Checks;
use virtual_gpu::engine::{Awaiting, Failure};
use virtual_gpu::report::Report;
use virtual_gpu_core::handle::{CommHandle, CommId, OpRef, Rank};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

impl Nccl {
    /// `ncclCommAbort`: ends the rank's part in the communicator and in whatever is under way. Always succeeds.
    pub fn abort(&self, handle: CommHandle) {
        let mut guard = self.lock();
        let mut state = guard.locked();
        if let Some(Membership::Joining(..)) = state.nccl.memberships.get(&handle) {
            let message = "a rank aborted the communicator while it was being made";
            let error = Error::new(NcclStatus::RemoteError, message);
            state.leave_bootstraps(&[Awaiting::Communicator(handle)], &error);
        }
        if let Ok((comm, rank)) = state.nccl.member(handle) {
            log::ended("Abort", state.nccl, handle, (comm, rank));
            if let Some((op, report)) = state.aborted_in_flight(comm, rank)
                && self.engine.config().checks != Checks::Off
            {
                let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
                if self.engine.config().checks == Checks::Error {
                    state.engine.fail_stream(op.stream, &failure);
                }
            }
            state.cancel_calls(comm, rank);
            state.cancel_transfers(comm, rank);
            state.leave(handle, comm, rank, true);
        }
        let guard = self.run_ready(guard);
        self.unlock_and_wake(guard);
    }

    /// `ncclCommDestroy`: what the rank has enqueued is still done.
    pub fn destroy(&self, handle: CommHandle) -> NcclResult<()> {
        let mut guard = self.lock();
        let mut state = guard.locked();
        let (comm, rank) = state.nccl.unfinished_member(handle)?;
        log::ended("Destroy", state.nccl, handle, (comm, rank));
        state.leave(handle, comm, rank, false);
        self.unlock_and_wake(guard);
        Ok(())
    }
}

impl Locked<'_> {
    /// Takes a rank's end of a communicator away.
    fn leave(&mut self, handle: CommHandle, comm: CommId, rank: Rank, aborts: bool) {
        self.nccl.memberships.remove(&handle);
        let call_site = CallSite::here();
        let entry = self.nccl.communicators.get(&comm);
        let gpu_failure = entry.and_then(|entry| entry.ranks[rank].gpu_failure.clone());
        self.publish(comm, &Event::Leaves { rank, aborts, gpu_failure, call_site: call_site.clone() });
        let Some(entry) = self.nccl.communicators.get_mut(&comm) else { return };
        entry.ranks[rank].left = Some((departure(aborts).into(), call_site));
        self.forget_communicator_if_over(comm);
    }

    /// A rank that aborts before its thread has seen its last call done: whether the call still works is a matter of luck.
    /// Where a query has answered the thread that it isn't, the rank aborts on purpose: that is how to give up ranks that never
    /// come.
    fn aborted_in_flight(&mut self, comm: CommId, rank: Rank) -> Option<(OpRef, Report)> {
        let thread = self.engine.current_thread();
        let view = self.engine.order.view_of(thread);
        let entry = self.nccl.communicators.get(&comm).filter(|comm| comm.failed.is_none())?;
        let LastCall { request, op, call_site, was_polled } = entry.ranks[rank].last.as_ref()?;
        let context = self.engine.stream(op.stream)?.context;
        if *was_polled || view.own.covers(op.stream, op.number) || self.engine.failure_of(context).is_some() {
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

    /// Takes a rank's part out of every call that is not running yet. What a rank of another process has given stays: it may
    /// have left because all was done.
    pub(crate) fn cancel_calls(&mut self, comm: CommId, rank: Rank) {
        let Some(entry) = self.nccl.communicators.get_mut(&comm) else { return };
        let mut arrived = Vec::new();
        for call in entry.calls.values_mut().filter(|call| !call.running) {
            if let Some(part) = call.parts[rank].as_mut()
                && (part.op().is_some() || !part.arrived)
            {
                part.cancelled = true;
                arrived.extend(part.op().filter(|_| part.arrived).map(|op| op.stream));
            }
        }
        for stream in arrived {
            self.engine.finish(stream);
        }
    }
}

/// How a rank leaves, in words.
pub(crate) fn departure(aborts: bool) -> &'static str {
    if aborts { "has aborted its communicator" } else { "has destroyed its communicator" }
}
