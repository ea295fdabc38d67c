//! What the engine asks of NCCL: its trait [`Communication`].

use std::collections::HashSet;

use super::deadlock::deadlock_report;
use super::run::Job;
use super::{Locked, Nccl};
use virtual_gpu::engine::{
    Awaiting, Communication, CommunicationJob, Deadlocked, Failure, Missing, State as EngineState,
};
use virtual_gpu::report::Report;
use virtual_gpu_core::handle::{CallKey, OpRef, StreamHandle};
use virtual_gpu_core::status::{CudaStatus, NcclStatus};
use virtual_gpu_core::thread::ThreadKey;

impl Communication for Nccl {
    fn arrive(&'static self, engine: &mut EngineState, call: CallKey) -> Option<CommunicationJob> {
        let mut locked = Locked { engine, nccl: &mut self.lock_own() };
        let job = locked.arrive(call)?;
        Some(Box::new(move |_| self.run(job).engine))
    }

    fn missing(&self, call: CallKey) -> Vec<Missing> {
        self.lock_own().missing(call)
    }

    fn is_settled(&self, awaiting: Awaiting) -> bool {
        self.lock_own().is_settled(awaiting)
    }

    fn deadlock_report(&self, engine: &EngineState, calls: &Deadlocked) -> Report {
        deadlock_report(engine, &self.lock_own(), calls)
    }

    fn fail_calls(&self, engine: &mut EngineState, calls: &Deadlocked, status: CudaStatus, report: &Report) {
        Locked { engine, nccl: &mut self.lock_own() }.fail_calls(calls, status, report);
    }

    fn give_up_joining(&self, engine: &mut EngineState, awaited: &[Awaiting]) -> bool {
        Locked { engine, nccl: &mut self.lock_own() }.give_up_joining(awaited)
    }

    fn was_polled(&self, thread: ThreadKey, op: OpRef) {
        self.lock_own().was_polled(thread, op);
    }

    fn note_gpu_failure(&self, device: usize, failure: &Failure) {
        self.lock_own().note_gpu_failure(device, failure);
    }

    fn owners(&self) -> HashSet<ThreadKey> {
        self.lock_own().owners()
    }

    fn streams_forgotten(&self, streams: &[StreamHandle]) {
        self.lock_own().streams_forgotten(streams);
    }

    fn wait_inside_a_group(
        &self,
        caller: &str,
        is_meant: &mut dyn FnMut(StreamHandle) -> bool,
    ) -> Option<Report> {
        self.lock_own().open_group()?.wait_inside(caller, is_meant)
    }
}

impl super::State {
    /// Why the ranks that hold up a call have not come to it.
    fn missing(&self, call: CallKey) -> Vec<Missing> {
        match call {
            CallKey::Collective(id) => {
                self.missing_ranks(id).into_iter().map(|(_, missing)| missing).collect()
            }
            CallKey::PointToPoint(id) => {
                self.pending(id).into_iter().map(|pending| pending.missing).collect()
            }
            CallKey::Management(id) => self.absent(id).into_iter().map(|(_, missing)| missing).collect(),
        }
    }
}

impl Locked<'_> {
    /// A stream has come to a call. Returns what can run now.
    fn arrive(&mut self, call: CallKey) -> Option<Job> {
        match call {
            CallKey::Collective(id) => self.arrive_at_collective(id),
            CallKey::PointToPoint(id) => self.arrive_at_transfers(id),
            CallKey::Management(_) => None,
        }
    }

    /// Makes calls fail that can't complete: at once for the ranks that have come, on arrival for the others.
    pub(crate) fn fail_calls(&mut self, calls: &Deadlocked, status: CudaStatus, report: &Report) {
        let failure = Failure::announce(status, report);
        for &call in calls {
            match call {
                CallKey::Collective(id) => self.fail_collective(id, &failure),
                CallKey::PointToPoint(id) => self.fail_transfers(id, &failure),
                CallKey::Management(id) => self.fail_management_call(id, NcclStatus::Timeout, &failure),
            }
        }
    }
}
