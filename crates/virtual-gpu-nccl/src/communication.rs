//! Implements the engine's [`Communication`] trait.

use super::deadlock::deadlock_report;
use super::internal::{self, announce};
use super::run::Job;
use super::{Locked, Nccl};
use virtual_gpu::engine::{
    Awaiting, Communication, CommunicationJob, Deadlocked, Failure, Missing, State as EngineState,
};
use virtual_gpu::report::Report;
use virtual_gpu_core::handle::{CallKey, OpRef, StreamHandle};
use virtual_gpu_core::sorted::SortedSet;
use virtual_gpu_core::status::{CudaStatus, NcclResult, NcclStatus};
use virtual_gpu_core::thread::ThreadKey;

impl Communication for Nccl {
    fn arrive(
        &'static self,
        engine: &mut EngineState,
        call: CallKey,
    ) -> Result<Option<CommunicationJob>, Failure> {
        let job = Locked { engine, nccl: &mut self.lock_own() }.arrive(call);
        match job.map_err(|error| announce(&error))? {
            Some(job) => Ok(Some(Box::new(move |_| self.run(job).engine))),
            None => Ok(None),
        }
    }

    fn missing(&self, call: CallKey) -> Vec<Missing> {
        // No rank can reach a call that is gone; the deadlock report says that it is gone.
        self.lock_own().missing(call).unwrap_or_else(|_| vec![Missing::Gone])
    }

    fn is_settled(&self, awaiting: Awaiting) -> bool {
        self.lock_own().is_settled(awaiting)
    }

    fn deadlock_report(&self, engine: &EngineState, calls: &Deadlocked) -> Report {
        deadlock_report(engine, &self.lock_own(), calls)
    }

    fn fail_calls(
        &self,
        engine: &mut EngineState,
        calls: &Deadlocked,
        status: CudaStatus,
        report: &Report,
    ) -> Result<(), Failure> {
        let failed = Locked { engine, nccl: &mut self.lock_own() }.fail_calls(calls, status, report);
        failed.map_err(|error| announce(&error))
    }

    fn give_up_joining(&self, engine: &mut EngineState, awaited: &[Awaiting]) -> bool {
        internal::report(Locked { engine, nccl: &mut self.lock_own() }.give_up_joining(awaited))
    }

    fn was_polled(&self, thread: ThreadKey, op: OpRef) {
        self.lock_own().was_polled(thread, op);
    }

    fn note_gpu_failure(&self, device: usize, failure: &Failure) {
        self.lock_own().note_gpu_failure(device, failure);
    }

    fn owners(&self) -> SortedSet<ThreadKey> {
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
    /// Returns why each rank that a call is waiting for has not reached it.
    ///
    /// # Errors
    /// Returns `InternalError` if the call's communicator is gone.
    fn missing(&self, call: CallKey) -> NcclResult<Vec<Missing>> {
        // If the call needs a rank whose process has ended, it never completes, even if other ranks still arrive.
        let comm = self.communicators.get(&call.comm());
        if comm.is_some_and(|comm| comm.needs_a_lost_rank(call)) {
            return Ok(vec![Missing::Gone]);
        }
        Ok(match call {
            CallKey::Collective(id) => {
                let missing = self.communicator(id.comm)?.missing_ranks(id.sequence)?;
                missing.into_iter().map(|(_, missing)| missing).collect()
            }
            CallKey::PointToPoint(id) => {
                let pending = self.communicator(id.comm)?.pending(id);
                pending.into_iter().map(|pending| pending.missing).collect()
            }
            CallKey::OneSided(id) => {
                let pending = self.communicator(id.comm)?.pending_signals(id);
                pending.into_iter().map(|pending| pending.missing).collect()
            }
            // Another thread may abort the last rank while a thread is waiting in a split.
            CallKey::Management(id) => {
                let comm = self.communicators.get(&id.comm);
                let absent = comm.map_or_else(Vec::new, |comm| comm.absent(id.sequence));
                absent.into_iter().map(|(_, missing)| missing).collect()
            }
        })
    }
}

impl Locked<'_> {
    /// Records that a stream has reached a call. Returns what can run now.
    ///
    /// # Errors
    /// Returns `InternalError` if there is no such call.
    fn arrive(&mut self, call: CallKey) -> NcclResult<Option<Job>> {
        match call {
            CallKey::Collective(id) => self.arrive_at_collective(id),
            CallKey::PointToPoint(id) => self.arrive_at_transfers(id),
            CallKey::OneSided(id) => Ok(self.arrive_at_signals(id)?.then_some(Job::Signals(id))),
            CallKey::Management(_) => Ok(None),
        }
    }

    /// Fails calls that can't complete: immediately for the ranks that have arrived, and on arrival for the others.
    ///
    /// # Errors
    /// Returns `InternalError` if a call's communicator is gone; the other calls are still failed.
    pub(crate) fn fail_calls(
        &mut self,
        calls: &Deadlocked,
        status: CudaStatus,
        report: &Report,
    ) -> NcclResult<()> {
        let failure = Failure::announce(status, report);
        let mut failed = Ok(());
        for &call in calls {
            failed = failed.and(self.fail_call(call, &failure));
        }
        failed
    }

    /// Fails a call: immediately for the ranks that have arrived, and on arrival for the others.
    ///
    /// # Errors
    /// Returns `InternalError` if its communicator is gone.
    pub(crate) fn fail_call(&mut self, call: CallKey, failure: &Failure) -> NcclResult<()> {
        match call {
            CallKey::Collective(id) => self.fail_collective(id, failure),
            CallKey::PointToPoint(id) => self.fail_transfers(id, failure),
            CallKey::OneSided(id) => self.fail_signals(id, failure),
            CallKey::Management(id) => self.nccl.fail_management_call(id, NcclStatus::Timeout, failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffers, Collective, DataType, Operation, Operator, Request};
    use virtual_gpu::config::Config;
    use virtual_gpu::engine::Engine;
    use virtual_gpu_core::handle::{CollectiveId, CommId, SequenceNumber};
    use virtual_gpu_core::source_location::CallSite;

    /// Returns NCCL on two GPUs and a stream on the first GPU, whose context is current.
    fn nccl() -> (&'static Nccl, StreamHandle) {
        let config = Config { gpus: 2, ..Config::default() };
        let engine = Engine::start(config, 1 << 40);
        let nccl = Nccl::new(engine);
        let context = engine.retain_primary(0).unwrap();
        engine.set_current(Some(context)).unwrap();
        (nccl, engine.create_stream(true).unwrap())
    }

    #[test]
    fn a_stream_fails_at_a_call_of_a_communicator_that_is_gone() {
        let (nccl, stream) = nccl();
        let call = CallKey::Collective(CollectiveId { comm: CommId(7), sequence: SequenceNumber(1) });
        nccl.engine.state().enqueue_call(stream, call, Vec::new(), CallSite::unknown()).unwrap();
        let error = nccl.engine.synchronize_stream(stream).unwrap_err();
        assert_eq!(error.status, CudaStatus::Unknown);
        assert!(error.message.contains("communicator 7 is gone"), "{}", error.message);
    }

    #[test]
    fn a_wait_ends_when_its_communicator_is_gone() {
        let (nccl, stream) = nccl();
        let comms = nccl.init_all(&[0, 1]).unwrap();
        let buffer = nccl.engine.allocate(4).unwrap();
        let operation = Operation {
            collective: Collective::AllReduce(Operator::Sum),
            count: 1,
            data_type: DataType::Float32,
        };
        let request = Request::Collective(operation, Buffers { send: buffer, receive: buffer, scale: None });
        // Another thread makes this call, because the current thread could still make rank 1's.
        std::thread::scope(|scope| {
            scope.spawn(|| nccl.call(comms[0], request, stream).unwrap()).join().unwrap();
        });
        nccl.lock().nccl.communicators.clear();
        let error = nccl.engine.synchronize_stream(stream).unwrap_err();
        assert_eq!(error.status, CudaStatus::Unknown);
        assert!(error.message.contains("communicator 1 is gone"), "{}", error.message);
    }
}
