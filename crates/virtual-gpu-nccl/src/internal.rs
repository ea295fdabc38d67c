//! Internal errors: an object is gone although work still needs it.

use std::fmt::Display;

use virtual_gpu::engine::Failure;
use virtual_gpu::report::Report;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

/// Returns the internal error for a missing object that work still needs.
pub(crate) fn vanished(what: impl Display) -> Error<NcclStatus> {
    Error::new(NcclStatus::InternalError, format!("internal error: {what} is gone, but work still needs it"))
}

/// Prints an internal error and converts it to a failure.
pub(crate) fn announce(error: &Error<NcclStatus>) -> Failure {
    Failure::announce(CudaStatus::Unknown, &Report::new(&*error.message))
}

/// Prints an internal error that no call can return.
pub(crate) fn report<T: Default>(result: NcclResult<T>) -> T {
    result.unwrap_or_else(|error| {
        announce(&error);
        T::default()
    })
}
