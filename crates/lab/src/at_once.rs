//! Whether a call returns at once: with its work enqueued, and not when that is done.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use cudarc::driver::{CudaStream, sys};

/// How long a stream is blocked: far longer than a host takes to enqueue something.
const LONGEST: Duration = Duration::from_secs(1);

/// Makes the call `name` while `stream` is blocked, and checks that it returns before that is over. Makes it twice: the first call
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
    let block = Block::enqueue(stream)?;
    let called = call();
    let was_blocked = block.release();
    stream.synchronize()?;
    called?;
    ensure!(
        was_blocked,
        "`{name}` returned only when its stream was done, which the check had blocked for {} s: something in it makes the host wait \
         for the GPU, such as a synchronize or a copy to the host\n  it must enqueue its work and return",
        LONGEST.as_secs()
    );
    Ok(())
}

/// A host function that blocks a stream until it is released.
#[derive(Default)]
struct Block {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Blocked,
    Released,
    /// It was not released in time.
    TimedOut,
}

impl Block {
    /// Blocks the stream after all that is enqueued on it.
    fn enqueue(stream: &CudaStream) -> anyhow::Result<Arc<Self>> {
        let block = Arc::new(Self::default());
        stream.context().bind_to_thread()?;
        let data = Arc::into_raw(block.clone()).cast_mut().cast();
        // SAFETY: `wait` takes a block, which is its own, and is called once.
        let enqueued = unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(Self::wait), data) };
        if let Err(error) = enqueued.result() {
            // SAFETY: it has come from `into_raw`, and nothing else takes it.
            drop(unsafe { Arc::from_raw(data.cast::<Self>()) });
            return Err(error.into());
        }
        Ok(block)
    }

    /// What the stream does: it waits.
    unsafe extern "C" fn wait(data: *mut c_void) {
        // SAFETY: `enqueue` has given it away for this call.
        let block = unsafe { Arc::from_raw(data.cast::<Self>()) };
        let state = block.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = block.changed.wait_timeout_while(state, LONGEST, |state| *state == State::Blocked);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *state == State::Blocked {
            *state = State::TimedOut;
        }
    }

    /// Lets the stream go on. Returns whether it was blocked until now.
    fn release(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let was_blocked = *state == State::Blocked;
        *state = State::Released;
        self.changed.notify_all();
        was_blocked
    }
}
