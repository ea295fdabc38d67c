//! Groups: calls that wait for the outermost `ncclGroupEnd`.

use super::Nccl;
use super::call::Checked;
use super::internal;
use virtual_gpu::engine::Awaiting;
use virtual_gpu::report::Report;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// A thread's open group.
#[derive(Default)]
pub(crate) struct Group {
    /// The nesting depth of the open groups.
    depth: u32,
    /// The first error from a call inside the group; if there is one, the end of the group returns it and launches
    /// nothing.
    error: Option<Error<NcclStatus>>,
    pub(crate) calls: Vec<Checked>,
    pub(crate) joining: Vec<Awaiting>,
}

impl Group {
    /// Keeps an error from a call inside the group so that the end of the group can return it.
    pub(crate) fn remember(&mut self, error: &Error<NcclStatus>) {
        self.error.get_or_insert_with(|| error.clone());
    }

    /// Reports a wait for a stream for which this group holds a call that has not been launched.
    pub(crate) fn wait_inside(
        &self,
        caller: &str,
        is_meant: &mut dyn FnMut(StreamHandle) -> bool,
    ) -> Option<Report> {
        let held = self.calls.iter().find(|call| is_meant(call.stream))?;
        let report =
            Report::new(format!("{caller} inside an open group does not wait for the group's calls"))
                .at(held.request.to_string(), &held.call_site)
                .at(caller, &CallSite::here())
                .help("end the group first: group_end()? launches the calls made since group_start()?");
        Some(report)
    }
}

impl Nccl {
    /// Implements `ncclGroupStart`.
    pub fn group_start(&self) {
        self.lock().nccl.enter_group().depth += 1;
    }

    /// Implements `ncclGroupSimulateEnd`: ends a group as [`Self::group_end`] does, but launches no call. Returns how many
    /// microseconds its last collective would take according to the model of NCCL's tuning; `None` if the group has
    /// no collective or is inside another one. As in NCCL, communicators are still created.
    ///
    /// # Errors
    /// Returns `InvalidUsage` if there is no matching start, the first error from a call inside the group, and
    /// `InvalidArgument` if `is_initialized` is false.
    pub fn simulate_group_end(&'static self, is_initialized: bool) -> NcclResult<Option<f32>> {
        let mut guard = self.lock();
        let time = match guard.nccl.open_group() {
            Some(group) if group.depth == 1 && group.error.is_none() => {
                if !is_initialized {
                    let message = "ncclGroupSimulateEnd: start from NCCL_SIM_INFO_INITIALIZER";
                    group.error = Some(Error::new(NcclStatus::InvalidArgument, message));
                }
                let calls = std::mem::take(&mut group.calls);
                let last = calls.iter().rev().find_map(|call| call.plan.as_ref());
                last.map(|plan| plan.nanoseconds as f32 / 1000.0)
            }
            _ => None,
        };
        drop(guard);
        self.group_end().map(|()| time)
    }

    /// Implements `ncclGroupEnd`: the outermost one launches the calls that the group holds.
    ///
    /// # Errors
    /// Returns `InvalidUsage` if there is no matching start, the first error from a call inside the group, or the error
    /// from the launch.
    pub fn group_end(&'static self) -> NcclResult<()> {
        let mut guard = self.lock();
        match guard.nccl.open_group() {
            Some(group) if group.depth > 1 => {
                group.depth -= 1;
                return Ok(());
            }
            _ => {}
        }
        let Some(Group { error, calls, joining, .. }) = guard.nccl.take_group() else {
            let message = "ncclGroupEnd without a matching ncclGroupStart on this thread";
            return Err(Error::new(NcclStatus::InvalidUsage, message));
        };
        let mixed = (!joining.is_empty() && !calls.is_empty()).then(|| {
            Error::new(NcclStatus::InvalidUsage, "a group can't both create communicators and communicate")
        });
        if let Some(error) = error.or(mixed) {
            internal::report(guard.nccl.leave_bootstraps(&joining, &error));
            self.unlock_and_wake(guard);
            return Err(error);
        }
        if joining.is_empty() {
            return self.launch_calls(calls, guard);
        }
        let mut blocking = true;
        for &awaiting in &joining {
            blocking &= guard.nccl.is_blocking(awaiting)?;
        }
        if !blocking {
            self.unlock_and_wake(guard);
            return Err(NcclStatus::InProgress.into());
        }
        let guard = self.create_slowly(guard);
        self.finish_joining(joining, "ncclGroupEnd", guard)
    }
}
