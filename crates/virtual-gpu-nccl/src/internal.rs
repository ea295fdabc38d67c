//! Internal errors: what work needs is gone.

use std::fmt::Display;

use virtual_gpu::engine::Failure;
use virtual_gpu::report::Report;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

/// The internal error of work that needs what is gone.
pub(crate) fn vanished(what: impl Display) -> Error<NcclStatus> {
    Error::new(NcclStatus::InternalError, format!("internal error: {what} is gone, and work still needs it"))
}

/// Prints an internal error, and makes a failure of it.
pub(crate) fn announce(error: &Error<NcclStatus>) -> Failure {
    Failure::announce(CudaStatus::Unknown, &Report::new(&*error.message))
}

/// Prints an internal error that no call is left to return.
pub(crate) fn report<T: Default>(result: NcclResult<T>) -> T {
    result.unwrap_or_else(|error| {
        announce(&error);
        T::default()
    })
}
