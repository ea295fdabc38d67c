//! Calls in a stream that is captured: they become part of a graph, and are made anew at each launch.
//!
//! NCCL User Guide, "Using NCCL with CUDA Graphs": whether a call is captured has to be the same on all its ranks, and
//! launching a graph is collective for the same ranks.

use super::call::{Checked, Request};
use super::launch::Plan;
use crate::engine::{Awaited, NodeWork, State, StreamHandle};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, NcclResult, NcclStatus};

/// Captured calls that a graph's node makes at each launch: one collective, or the sends and receives of a group.
#[derive(Clone)]
pub(crate) struct CapturedCalls {
    clique: u64,
    rank: usize,
    calls: Vec<Checked>,
}

impl std::fmt::Display for CapturedCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.calls.first() {
            Some(call) => f.write_str(call.request.function()),
            None => Ok(()),
        }
    }
}

impl State {
    /// Whether a plan goes into a graph.
    ///
    /// # Errors
    /// `InvalidUsage` where only some of its streams are captured, or by several graphs.
    pub(super) fn is_captured(&self, plan: &Plan) -> NcclResult<bool> {
        self.captured_alike(&plan.streams).ok_or_else(|| {
            let message = format!(
                "the streams of rank {} in one group have to be all captured by the same graph, or none of them",
                plan.rank
            );
            Error::new(NcclStatus::InvalidUsage, message)
        })
    }

    /// Adds what a rank launches together to the graph of its streams. As outside of one, all of it waits for all the
    /// streams and holds them up.
    pub(super) fn capture_plan(&mut self, plan: Plan) -> NcclResult<()> {
        let Plan { clique, rank, streams, collectives, transfers } = plan;
        self.join_captured(&streams);
        let alone = collectives.into_iter().map(|call| vec![call]);
        for mut calls in alone.chain([transfers]).filter(|calls| !calls.is_empty()) {
            let Some(entry) = self.nccl.cliques.get_mut(&clique) else { continue };
            entry.ranks[rank].captured += 1;
            let number = entry.ranks[rank].captured;
            calls.iter_mut().for_each(|call| call.captured = Some(number));
            let (stream, site) = (calls[0].stream, calls[0].site.clone());
            self.add_node(stream, NodeWork::Nccl(CapturedCalls { clique, rank, calls }), site)?;
        }
        self.join_captured(&streams);
        Ok(())
    }

    /// Makes captured calls, in a stream of the graph that is launched.
    ///
    /// # Errors
    /// `InvalidValue` where the communicator was destroyed since.
    pub(crate) fn enqueue_captured(
        &mut self,
        stream: StreamHandle,
        captured: &CapturedCalls,
        after: Vec<Awaited>,
    ) -> CudaResult<Awaited> {
        let CapturedCalls { clique, rank, calls } = captured;
        let left = match self.nccl.cliques.get(clique) {
            Some(clique) => clique.ranks[*rank].left.as_ref().map(|(how, _)| how.to_string()),
            None => Some("ncclCommDestroy".to_owned()),
        };
        if let Some(how) = left {
            let message =
                format!("the graph holds {captured} of rank {rank}, whose communicator is gone ({how})");
            return Err(Error::new(CudaStatus::InvalidValue, message));
        }
        let calls: Vec<Checked> = calls.iter().map(|call| Checked { stream, ..call.clone() }).collect();
        let made = match calls.first().map(|call| call.request) {
            Some(Request::Transfer(..)) => self.enqueue_exchange(*clique, *rank, calls, after),
            _ => calls.into_iter().try_for_each(|call| self.enqueue_collective(call, after.clone())),
        };
        made.map_err(|error| Error::new(CudaStatus::InvalidValue, error.message))?;
        Ok(self.last_of(stream)?.1)
    }
}
