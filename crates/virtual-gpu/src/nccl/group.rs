//! Groups: calls kept back until the outermost `ncclGroupEnd`.

use super::call::Checked;
use super::communicator::CommHandle;
use crate::engine::Engine;
use crate::status::{Error, NcclResult, NcclStatus};

/// A thread's open groups.
#[derive(Default)]
pub(crate) struct Group {
    depth: u32,
    /// The first error of a call inside; the end returns it and launches nothing.
    error: Option<Error<NcclStatus>>,
    pub(super) calls: Vec<Checked>,
    pub(super) joining: Vec<CommHandle>,
}

impl Group {
    pub(super) fn is_open(&self) -> bool {
        self.depth > 0
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
        if let Some(error) = error {
            return Err(error);
        }
        if !joining.is_empty() && !calls.is_empty() {
            let message = "creating communicators and communicating can't share a group";
            return Err(Error::new(NcclStatus::InvalidUsage, message));
        }
        if !joining.is_empty() {
            return self.finish_joining(joining, state);
        }
        self.launch_calls(calls, state)
    }
}
