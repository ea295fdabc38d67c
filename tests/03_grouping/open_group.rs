//! Detects whether a failed call left its group open.

use cudarc::nccl::group_end;
use cudarc::nccl::sys::ncclResult_t::ncclInvalidUsage;

/// Ends the group that is open on this thread, if any, and returns whether there was one. If no group is open,
/// `group_end` fails with an invalid-usage error. If a group is open, `group_end` may still fail because of a rejected
/// call.
pub(super) fn was_open() -> bool {
    group_end().map_or_else(|error| error.0 != ncclInvalidUsage, |_| true)
}

/// Describes an error that occurred after `before`, and whether `before` left a group open.
pub(super) fn after(before: &str, happened: &str) -> String {
    match was_open() {
        true => format!(
            "after {before}, {happened}\n  likely cause: the group from {before} is still open: end a group even if a \
             call in it fails"
        ),
        false => format!("after {before}, {happened}"),
    }
}
