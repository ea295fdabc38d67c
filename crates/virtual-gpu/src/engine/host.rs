//! Host functions: code of the program that runs when its turn in a stream has come, on a thread of the engine.
//!
//! One thread runs them all, one after the other, which CUDA allows: functions without a mandated order may be
//! serialised. The engine's only other threads are those of connections to other processes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::run::Obstacle;
use super::wait::given_up;
use super::work::Work;
use super::{Engine, Failure, State};
use crate::config::Timeout;
use crate::order::View;
use crate::report::Report;
use crate::time::Cost;
use virtual_gpu_core::handle::{OpRef, StreamHandle};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::sync::spawn_for_good;

/// A call of the program's code. It is dropped without being called where a GPU has failed, or its stream is gone. A
/// graph calls it at each launch.
#[derive(Clone)]
pub(crate) struct HostFunction(Arc<dyn Fn() + Send + Sync>);

impl Engine {
    /// `cuLaunchHostFunc`: `function` runs once what is enqueued in `stream` is done, and what comes later waits for it.
    ///
    /// # Errors
    /// As of any enqueuing, and `OperatingSystem` where the thread that would run it can't be started.
    pub fn launch_host_function(
        &'static self,
        stream: StreamHandle,
        function: Arc<dyn Fn() + Send + Sync>,
    ) -> CudaResult<()> {
        let mut state = self.state();
        if !state.has_host_thread {
            let started = spawn_for_good("virtual GPU: host functions", || self.run_host_functions());
            started.map_err(|error| {
                let message = format!("cuLaunchHostFunc: no thread to run the function on: {error}");
                Error::new(CudaStatus::OperatingSystem, message)
            })?;
            state.has_host_thread = true;
        }
        let stream = state.resolve_stream(stream)?;
        let work = Work::Host(Some(HostFunction(function)));
        self.submit_in(state, stream, work, CallSite::here())
    }

    /// The engine's thread: runs host functions for as long as the process lives.
    fn run_host_functions(&self) {
        let mut state = self.state();
        loop {
            let Some((op, HostFunction(function))) = state.host_functions.pop_front() else {
                state = self.host.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            state.hears(op);
            let context = state.streams.get(&op.stream).map(|stream| stream.context);
            drop(state);
            if let Some(context) = context {
                self.flush_printed(context);
            }
            // A panic has been printed by its hook; the stream goes on.
            let _ = catch_unwind(AssertUnwindSafe(|| function()));
            state = self.state();
            // It may have been given up, or its context destroyed.
            if state.streams.get(&op.stream).is_some_and(|stream| stream.is_at(op)) {
                state.finish_after(op.stream, &View::default(), Cost::Nothing);
            }
            state = self.run_ready(state);
            self.changed.notify_all();
        }
    }
}

impl State {
    /// A host function starts: its program learns that all before it is done, as from an event's synchronisation. The
    /// thread that enqueued it gets the errors, since functions make no CUDA calls of their own.
    fn hears(&mut self, op: OpRef) {
        if let Some((thread, view)) = self.first_of(op) {
            self.order.saw(thread, &view);
            self.open_seen();
        }
    }

    /// The host function that an operation waits for in the end.
    fn host_function_ahead(&self, mut op: OpRef) -> Option<OpRef> {
        // Each step leads to an operation enqueued earlier, so that this ends.
        loop {
            match self.obstacle(op)? {
                Obstacle::Host(function) => return Some(function),
                Obstacle::Collective(_) => return None,
                Obstacle::Op(next) => op = next,
            }
        }
    }

    /// Ends the wait for host functions that have not returned for too long. `false` where none of `ops` waits for one.
    pub(super) fn give_up_host_functions(&mut self, ops: &[OpRef], timeout: Timeout) -> bool {
        let mut late: Vec<OpRef> = ops.iter().filter_map(|&op| self.host_function_ahead(op)).collect();
        late.sort_unstable_by_key(|op| op.stream);
        late.dedup();
        for &op in &late {
            let call_site = self.call_site_of(op).unwrap_or_else(CallSite::unknown);
            let report = Report::new("a host function that does not return")
                .at("enqueued", &call_site)
                .fact(given_up(timeout))
                .help("let it wait for nothing that the waiting thread has to do");
            let failure = Failure::announce(CudaStatus::LaunchTimeout, &report);
            self.fail_stream(op.stream, &failure);
            self.finish(op.stream);
        }
        !late.is_empty()
    }
}
