//! Detects whether a failed call left its group open.

use cudarc::nccl::group_end;
use cudarc::nccl::sys::ncclResult_t::ncclInvalidUsage;

/// Ends any group that is still open on this thread, and returns whether there was one. If none is open, `group_end`
/// fails with an invalid usage. If one is open, `group_end` may fail because of a rejected call in it.
pub(super) fn was_open() -> bool {
    group_end().map_or_else(|error| error.0 != ncclInvalidUsage, |_| true)
}

/// Describes an error that happened after `before`, and whether `before` left a group open.
pub(super) fn after(before: &str, happened: &str) -> String {
    match was_open() {
        true => format!(
            "after {before}, {happened}\n  likely cause: the group of {before} is still open: end a group also where a call in it fails"
        ),
        false => format!("after {before}, {happened}"),
    }
}
