//! Whether a call returns at once: with its work enqueued, and not when that is done.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::CudaStream;

use crate::Kernels;

/// How long the stream is busy, in nanoseconds: far longer than a host takes to enqueue something.
const SPIN: u64 = 5_000_000;

/// Makes the call `name` while `stream` is busy, and looks whether it is back before that is over. Makes it twice: the first one
/// loads kernels and sets up connections, which may take the host a while. A call of several ranks is made by all of them. Waits for
/// the stream.
///
/// # Errors
/// The call waited on the host, or what `call` and the driver answer.
pub fn returns_at_once(
    name: &str,
    stream: &Arc<CudaStream>,
    mut call: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let kernels = Kernels::load(stream.context())?;
    kernels.spin(stream, 0)?;
    call()?;
    stream.synchronize()?;
    kernels.spin(stream, SPIN)?;
    let ready = stream.record_event(None)?;
    let called = call();
    let early = !ready.try_is_complete()?;
    stream.synchronize()?;
    called?;
    ensure!(
        early,
        "the stream was busy for {} ms, and {name} did not return before that: does it wait on the host?",
        SPIN / 1_000_000
    );
    Ok(())
}
