//! Groups: calls kept back until the outermost `ncclGroupEnd`.

use super::assembly::Awaiting;
use super::call::Checked;
use crate::engine::{Engine, State, StreamHandle};
use crate::report::Report;
use virtual_gpu_core::source_location::Site;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// A thread's open groups.
#[derive(Default)]
pub(crate) struct Group {
    depth: u32,
    /// The first error of a call inside; the end returns it and launches nothing.
    error: Option<Error<NcclStatus>>,
    pub(super) calls: Vec<Checked>,
    pub(super) joining: Vec<Awaiting>,
}

impl Group {
    pub(super) fn is_open(&self) -> bool {
        self.depth > 0
    }

    /// The first call in an open group on one of these streams.
    fn held_on(&self, mut is_meant: impl FnMut(StreamHandle) -> bool) -> Option<&Checked> {
        self.calls.iter().find(|call| is_meant(call.stream))
    }

    /// Keeps the error of a call inside an open group for its end.
    pub(super) fn remember(&mut self, error: &Error<NcclStatus>) {
        if self.is_open() {
            self.error.get_or_insert_with(|| error.clone());
        }
    }
}

impl Engine {
    /// `ncclGroupStart`.
    pub fn nccl_group_start(&self) {
        self.state().thread().group.depth += 1;
    }

    /// `ncclGroupEnd`: the outermost one launches what was called inside.
    pub fn nccl_group_end(&self) -> NcclResult<()> {
        let mut state = self.state();
        let group = &mut state.thread().group;
        match group.depth {
            0 => {
                let message = "ncclGroupEnd without a matching ncclGroupStart on this thread";
                return Err(Error::new(NcclStatus::InvalidUsage, message));
            }
            1 => {}
            _ => {
                group.depth -= 1;
                return Ok(());
            }
        }
        let Group { error, calls, joining, .. } = std::mem::take(group);
        let mixed = (!joining.is_empty() && !calls.is_empty()).then(|| {
            Error::new(
                NcclStatus::InvalidUsage,
                "creating communicators and communicating can't share a group",
            )
        });
        if let Some(error) = error.or(mixed) {
            state.leave_meetings(&joining, &error);
            drop(state);
            self.wake_all();
            return Err(error);
        }
        if !joining.is_empty() {
            if joining.iter().any(|&awaiting| !state.nccl.is_blocking(awaiting)) {
                drop(state);
                self.wake_all();
                return Err(NcclStatus::InProgress.into());
            }
            return self.finish_joining(joining, "ncclGroupEnd", state);
        }
        self.launch_calls(calls, state)
    }
}

impl State {
    /// A wait for a stream by a thread whose open group holds a call on it back: what is waited for has not been launched.
    pub(crate) fn wait_inside_a_group(
        &mut self,
        caller: &str,
        is_meant: impl FnMut(StreamHandle) -> bool,
    ) -> Option<Report> {
        let held = self.thread().group.held_on(is_meant)?;
        let report =
            Report::new(format!("{caller} inside an open group waits for nothing that was called in it"))
                .at(held.request.to_string(), &held.site)
                .at(caller, &Site::here())
                .help("end the group first: group_end()? launches what was called since group_start()?");
        Some(report)
    }
}
