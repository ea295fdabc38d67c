//! Whether a call that failed has left its group open.

use cudarc::nccl::group_end;
use cudarc::nccl::sys::ncclResult_t::ncclInvalidUsage;

/// Ends a group that is still open on this thread, and says whether there was one. Where none is open, its end is a wrong usage;
/// where one is, its end may fail for a call that was refused in it.
pub(super) fn was_open() -> bool {
    group_end().map_or_else(|error| error.0 != ncclInvalidUsage, |_| true)
}

/// What happened after `before`, and whether that has left a group open.
pub(super) fn after(before: &str, happened: &str) -> String {
    match was_open() {
        true => format!(
            "after {before}, {happened}\n  likely cause: the group of {before} is still open: end a group also where a call in it fails"
        ),
        false => format!("after {before}, {happened}"),
    }
}
