//! Whether a call returns at once: with its work enqueued, and not when that is done.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use cudarc::driver::{CudaStream, sys};

/// How long a stream is held up: far longer than a host takes to enqueue something.
const LONGEST: Duration = Duration::from_secs(1);

/// Makes the call `name` while `stream` is held up, and looks whether it is back before that is over. Makes it twice: the first one
/// loads kernels and sets up connections, for which it may wait. A call of several ranks is made by all of them. Waits for the stream.
///
/// # Errors
/// The call waited on the host, or what `call` and the driver answer.
pub fn returns_at_once(
    name: &str,
    stream: &Arc<CudaStream>,
    mut call: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    call()?;
    stream.synchronize()?;
    let gate = Gate::shut(stream)?;
    let called = call();
    let was_shut = gate.open();
    stream.synchronize()?;
    called?;
    ensure!(
        was_shut,
        "the stream was held up for {} s, and {name} did not return before that: does it wait on the host?",
        LONGEST.as_secs()
    );
    Ok(())
}

/// Keeps a stream from going on.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Shut,
    Opened,
    /// Nobody came to open it.
    GivenUp,
}

impl Gate {
    /// A gate behind all that is in the stream.
    fn shut(stream: &CudaStream) -> anyhow::Result<Arc<Self>> {
        let gate = Arc::new(Self::default());
        stream.context().bind_to_thread()?;
        let data = Arc::into_raw(gate.clone()).cast_mut().cast();
        // SAFETY: `wait` takes a gate, which is its own, and is called once.
        let enqueued = unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(Self::wait), data) };
        if let Err(error) = enqueued.result() {
            // SAFETY: it has come from `into_raw`, and nobody else takes it.
            drop(unsafe { Arc::from_raw(data.cast::<Self>()) });
            return Err(error.into());
        }
        Ok(gate)
    }

    /// What the stream does: it waits.
    unsafe extern "C" fn wait(data: *mut c_void) {
        // SAFETY: `shut` has given it away for this call.
        let gate = unsafe { Arc::from_raw(data.cast::<Self>()) };
        let state = gate.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = gate.changed.wait_timeout_while(state, LONGEST, |state| *state == State::Shut);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *state == State::Shut {
            *state = State::GivenUp;
        }
    }

    /// Lets the stream go on. Says whether it was held up until now.
    fn open(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let was_shut = *state == State::Shut;
        *state = State::Opened;
        self.changed.notify_all();
        was_shut
    }
}
