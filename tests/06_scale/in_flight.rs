//! Calls that fail while collectives are in flight.

use cudarc::nccl::Comm;

/// Makes a call, and waits for the communicator's stream even if the call fails, because a communicator must not be dropped
/// while it is in use. Other checks report an error of the work.
pub(super) fn to_its_end<T>(comm: &Comm, call: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<()> {
    let called = call();
    let _ = comm.stream().synchronize();
    called.map(drop)
}
