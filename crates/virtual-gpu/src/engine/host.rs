//! Host functions: the program's own code, which runs on one of the engine's threads when its turn on a stream comes.
//!
//! One thread runs them all, one after another. CUDA allows this: functions without a mandated order may be serialized.
//! The engine's other threads serve connections to other processes, wait for what other processes do, and run kernels
//! that take turns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::run::Obstacle;
use super::wait::{Wait, given_up};
use super::work::Work;
use super::{Engine, Failure, State};
use crate::order::View;
use crate::report::Report;
use crate::time::Cost;
use virtual_gpu_core::handle::{OpRef, StreamHandle};
use virtual_gpu_core::sorted::SortedSet;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::sync::spawn_for_good;

/// One of the program's functions. It is dropped without being called if a GPU has failed or its stream is gone. A
/// graph calls it at each launch.
#[derive(Clone)]
pub struct HostFunction {
    /// Calls the function.
    pub call: Arc<dyn Fn() + Send + Sync>,
    /// The addresses of the function and of the data that the program has passed.
    pub given: [usize; 2],
}

impl Engine {
    /// `cuLaunchHostFunc`: runs `function` once the work enqueued on `stream` is done; later work on the stream waits
    /// for it.
    ///
    /// # Errors
    /// Returns the same errors as for any enqueued operation, and `OperatingSystem` if the thread that runs host
    /// functions can't be started.
    pub fn launch_host_function(
        &'static self,
        stream: StreamHandle,
        function: HostFunction,
    ) -> CudaResult<()> {
        let mut state = self.state();
        let work = self.host_function(&mut state, function)?;
        let stream = state.resolve_stream(stream)?;
        self.submit_in(state, stream, work, CallSite::here())
    }

    /// Returns the work of a host function, and starts the thread that runs it.
    pub(super) fn host_function(
        &'static self,
        state: &mut State,
        function: HostFunction,
    ) -> CudaResult<Work> {
        if !state.has_host_thread {
            let started = spawn_for_good("virtual GPU: host functions", || self.run_host_functions());
            started.map_err(|error| {
                let message = format!("cuLaunchHostFunc: can't start a thread to run the function: {error}");
                Error::new(CudaStatus::OperatingSystem, message)
            })?;
            state.has_host_thread = true;
        }
        Ok(Work::Host(Some(function)))
    }

    /// Returns whether the thread that enqueued the running host function is blocked until that function returns.
    pub fn host_function_is_awaited(&self) -> bool {
        let state = self.state();
        let Some(running) = state.running_host_function else { return false };
        let thread = state.first_of(running).map(|(thread, _)| thread);
        match thread.and_then(|thread| state.blocked(thread)).map(|blocked| &blocked.wait) {
            Some(Wait::Ops(ops)) => ops.iter().any(|&op| state.host_function_ahead(op) == Some(running)),
            Some(Wait::Communicators(_)) | None => false,
        }
    }

    /// Runs host functions on the engine's thread for as long as the process lives.
    fn run_host_functions(&self) {
        let mut state = self.state();
        loop {
            let Some((op, function)) = state.host_functions.pop_front() else {
                state = self.host.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            state.hears(op);
            state.running_host_function = Some(op);
            let context = state.streams.get(&op.stream).map(|stream| stream.context);
            drop(state);
            if let Some(context) = context {
                self.flush_printed(context);
            }
            // The panic hook has printed the panic; the stream continues.
            let _ = catch_unwind(AssertUnwindSafe(|| (function.call)()));
            state = self.state();
            state.running_host_function = None;
            // The wait for the function may have been abandoned, or its context may have been destroyed.
            if state.streams.get(&op.stream).is_some_and(|stream| stream.is_at(op)) {
                state.finish_after(op.stream, &View::default(), Cost::Nothing);
            }
            state = self.run_ready(state);
            self.changed.notify_all();
        }
    }
}

impl State {
    /// Records that a host function is starting. The program then knows that everything before the function is done, as
    /// after synchronizing with an event. The thread that enqueued the function receives the errors, because functions
    /// make no CUDA calls of their own.
    fn hears(&mut self, op: OpRef) {
        if let Some((thread, view)) = self.first_of(op) {
            self.order.saw(thread, &view);
            self.open_seen();
        }
    }

    /// Returns the host function that an operation is ultimately waiting for.
    fn host_function_ahead(&self, op: OpRef) -> Option<OpRef> {
        match self.last_obstacle(op)? {
            Obstacle::Host(function) => Some(function),
            _ => None,
        }
    }

    /// Ends the wait for host functions that have taken too long to return. Returns `false` if none of `ops` is waiting
    /// for one.
    pub(super) fn give_up_host_functions(&mut self, ops: &[OpRef]) -> bool {
        let late: SortedSet<OpRef> = ops.iter().filter_map(|&op| self.host_function_ahead(op)).collect();
        for &op in &late {
            let call_site = self.call_site_of(op).unwrap_or_else(CallSite::unknown);
            let report = Report::new("a host function that does not return")
                .at("enqueued", &call_site)
                .fact(given_up(self.timeout))
                .help("it must not wait for anything that the waiting thread has to do");
            let failure = Failure::announce(CudaStatus::LaunchTimeout, &report);
            self.fail_stream(op.stream, &failure);
            self.finish(op.stream);
        }
        !late.is_empty()
    }
}
