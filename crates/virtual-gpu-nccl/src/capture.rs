//! Calls on a captured stream. They become part of a graph, and every launch of the graph makes the calls again.
//!
//! NCCL User Guide, "Using NCCL with CUDA Graphs": either all ranks of a call capture it or none does, and launching a
//! graph is collective for the same ranks.

use std::sync::Arc;

use super::call::{Checked, Request};
use super::launch::Plan;
use super::{Locked, Nccl};
use virtual_gpu::engine::{Awaited, CapturedCalls, State as EngineState};
use virtual_gpu_core::handle::{CommId, Rank, StreamHandle};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, NcclResult, NcclStatus};

/// The captured calls that a graph node makes at each launch: one collective, a group's sends and receives, or its
/// one-sided calls.
#[derive(Clone)]
struct Captured {
    nccl: &'static Nccl,
    comm: CommId,
    rank: Rank,
    calls: Vec<Checked>,
}

impl std::fmt::Display for Captured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.calls.first() {
            Some(call) => f.write_str(call.request.function()),
            None => Ok(()),
        }
    }
}

impl Plan {
    /// Returns whether the plan is being captured into a graph.
    ///
    /// # Errors
    /// Returns `InvalidUsage` if only some of its streams are being captured, or if several graphs are capturing them.
    pub(crate) fn is_captured(&self, engine: &EngineState) -> NcclResult<bool> {
        engine.captured_alike(&self.streams).ok_or_else(|| {
            let message = format!(
                "rank {}'s streams in one group must either all be captured by the same graph or not be captured at all",
                self.rank
            );
            Error::new(NcclStatus::InvalidUsage, message)
        })
    }
}

impl Locked<'_> {
    /// Adds the calls that a rank launches together to the graph that captures its streams. As outside of a graph,
    /// these calls wait for all the streams and block all of them.
    pub(crate) fn capture_plan(&mut self, nccl: &'static Nccl, plan: Plan) -> NcclResult<()> {
        let Plan { comm, rank, streams, collectives, transfers, one_sided } = plan;
        self.engine.join_captured(&streams);
        let alone = collectives.into_iter().map(|call| vec![call]);
        for mut calls in alone.chain([transfers, one_sided]).filter(|calls| !calls.is_empty()) {
            let entry = &mut self.nccl.communicator_mut(comm)?.ranks[rank];
            entry.captured = entry.captured.next();
            let sequence = entry.captured;
            calls.iter_mut().for_each(|call| call.captured = Some(sequence));
            let (stream, call_site) = (calls[0].stream, calls[0].call_site.clone());
            let captured = Captured { nccl, comm, rank, calls };
            self.engine.capture_calls(stream, Arc::new(captured), call_site)?;
        }
        self.engine.join_captured(&streams);
        Ok(())
    }
}

impl CapturedCalls for Captured {
    fn are_of(&self, comm: CommId, rank: Rank) -> bool {
        (self.comm, self.rank) == (comm, rank)
    }

    fn enqueue(
        &self,
        engine: &mut EngineState,
        stream: StreamHandle,
        after: Vec<Awaited>,
    ) -> CudaResult<Awaited> {
        Locked { engine, nccl: &mut self.nccl.lock_own() }.enqueue_captured(stream, self, after)
    }
}

impl Locked<'_> {
    fn enqueue_captured(
        &mut self,
        stream: StreamHandle,
        captured: &Captured,
        after: Vec<Awaited>,
    ) -> CudaResult<Awaited> {
        let Captured { comm, rank, calls, .. } = captured;
        // A graph may outlive its communicator.
        let left = match self.nccl.communicators.get(comm) {
            Some(comm) if comm.ranks[*rank].revoked => Some("ncclCommRevoke".to_owned()),
            Some(comm) => comm.ranks[*rank].left.as_ref().map(|(how, _)| how.to_string()),
            None => Some("ncclCommDestroy".to_owned()),
        };
        if let Some(how) = left {
            let message = format!(
                "the graph contains {captured} by rank {rank}, but that rank's communicator is gone ({how})"
            );
            return Err(Error::new(CudaStatus::InvalidValue, message));
        }
        let calls: Vec<Checked> = calls.iter().map(|call| Checked { stream, ..call.clone() }).collect();
        let made = match calls.first().map(|call| call.request) {
            Some(Request::Transfer(..)) => self.enqueue_transfers((*comm, *rank), calls, after),
            Some(Request::OneSided(_)) => self.enqueue_one_sided((*comm, *rank), calls, after),
            _ => calls.into_iter().try_for_each(|call| self.enqueue_collective(call, after.clone())),
        };
        made.map_err(|error| Error::new(CudaStatus::InvalidValue, error.message))?;
        Ok(self.engine.last_of(stream)?.1)
    }
}
