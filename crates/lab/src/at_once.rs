//! Checks that a call returns as soon as its work is enqueued, without waiting for it.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use cudarc::driver::{CudaStream, sys};

use crate::budget;
use crate::calls::{Call, Threads, VirtualDriver, shown};

/// Makes the call `name` while `stream` is blocked, and checks that it returns before the stream is released. The first
/// of two calls is a warm-up: it loads kernels and sets up connections, and may wait for that. If several ranks take
/// part in the call, each of them must call this function. Waits for the stream.
///
/// # Errors
/// Fails if the call makes the host wait. Also returns any error from `call` or the driver.
pub fn returns_at_once(
    name: &str,
    stream: &Arc<CudaStream>,
    mut call: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    check_each(name, std::slice::from_ref(stream), &mut call)
}

/// Like [`returns_at_once`], for a call that uses several streams. Makes the call once for each stream, while only that
/// stream is blocked. The ranks that take part must list their streams in the same order.
///
/// # Errors
/// Fails like [`returns_at_once`].
pub fn returns_at_once_on_each(
    name: &str,
    streams: &[Arc<CudaStream>],
    mut call: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    check_each(name, streams, &mut call)
}

/// Checks a call like [`returns_at_once_on_each`]. It is not generic, so that it is not compiled again for each check.
fn check_each(
    name: &str,
    streams: &[Arc<CudaStream>],
    call: &mut dyn FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let synchronize = || streams.iter().try_for_each(|stream| stream.synchronize());
    let driver = VirtualDriver::find()?;
    call()?;
    synchronize()?;
    for (index, stream) in streams.iter().enumerate() {
        let block = Block::enqueue(stream)?;
        let (called, calls) = match &driver {
            Some(driver) => driver.record(Threads::This, &mut *call)?,
            None => (call(), Vec::new()),
        };
        let was_blocked = block.release();
        synchronize()?;
        called?;
        let its_stream = match streams.len() {
            1 => "its stream".to_owned(),
            count => format!("stream {index} of its {count}"),
        };
        ensure!(
            was_blocked,
            "`{name}` returned only when {its_stream}, which the check had blocked, was done: {}\n  it must enqueue its work and return",
            how_it_waits(&calls).unwrap_or_else(|| {
                "something in it makes the host wait for the GPU, such as a synchronize call or a copy to the host".to_owned()
            })
        );
    }
    Ok(())
}

/// Makes a call while `stream` is blocked, and checks that it returns before the stream is released. `role` names the
/// stream in the message, such as `the compute stream`. A call that loads kernels or sets up connections may wait for
/// that, so make it once before.
///
/// # Errors
/// Fails if the call makes the host wait for the stream. Also returns any error from `call` or the driver.
pub fn while_blocked<T>(
    name: &str,
    role: &str,
    stream: &Arc<CudaStream>,
    call: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let block = Block::enqueue(stream)?;
    let called = with_host_waits(call);
    let was_blocked = block.release();
    let (value, waits) = called?;
    ensure!(
        was_blocked,
        "the check had blocked {role}, and `{name}` returned only after that: the host must not wait for it{waits}"
    );
    Ok(value)
}

/// Runs `call`, and returns its result and a description of how a line of the exercise made the host wait for the GPU.
/// The description starts with a line end. It is empty if no call shows a wait, and always empty on real GPUs, where
/// calls can't be recorded.
///
/// # Errors
/// Returns the error of `call`.
pub fn with_host_waits<T>(call: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, String)> {
    let Some(driver) = VirtualDriver::find()? else { return Ok((call()?, String::new())) };
    let (result, calls) = driver.record(Threads::This, call)?;
    let waits = how_it_waits(&calls).map_or_else(String::new, |waits| format!("\n  {waits}"));
    Ok((result?, waits))
}

/// Returns how a function waits for the GPU, if its calls show it.
fn how_it_waits(calls: &[Call]) -> Option<String> {
    let with_line = |words: String, call: &Call| format!("{words}\n{}", shown(&call.line));
    let polls: Vec<&Call> = calls.iter().filter(|call| budget::polls(call)).collect();
    if let Some(call) = calls.iter().find(|call| budget::waits(call)) {
        Some(with_line(format!("{} makes the host wait for the GPU", call.function), call))
    } else if let [first, _, ..] = polls[..] {
        Some(with_line(
            format!("it makes the host wait for the GPU by polling, {} times", polls.len()),
            first,
        ))
    } else {
        let copy = calls.iter().find(|call| call.function == "cuMemcpyDtoHAsync")?;
        Some(with_line(
            "a copy to memory that is not pinned makes the host wait for the GPU".to_owned(),
            copy,
        ))
    }
}

/// A host function that blocks a stream until it is released, but for at most three seconds. On the virtual GPU, it also
/// ends when the thread that enqueued it waits for it.
pub struct Block {
    state: Mutex<State>,
    changed: Condvar,
    /// Tells whether the thread that enqueued the block waits for it; only the virtual driver knows.
    is_awaited: Option<extern "C" fn() -> c_int>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Blocked,
    Released,
    /// It ended before its release.
    Ended,
}

impl Block {
    /// How long a stream is blocked if it is never released: far longer than the host takes to enqueue anything.
    const LONGEST: Duration = Duration::from_secs(3);
    /// How often the virtual driver is asked.
    const PAUSE: Duration = Duration::from_millis(5);

    /// Enqueues the block after all work on the stream.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn enqueue(stream: &CudaStream) -> anyhow::Result<Arc<Self>> {
        let driver = VirtualDriver::find()?;
        let is_awaited = driver.map(|driver| driver.host_function_is_awaited()).transpose()?;
        let block = Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), is_awaited });
        stream.context().bind_to_thread()?;
        let data = Arc::into_raw(block.clone()).cast_mut().cast();
        // SAFETY: `wait` gets its own reference to the block, and is called once.
        let enqueued = unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(Self::wait), data) };
        if let Err(error) = enqueued.result() {
            // SAFETY: the pointer comes from `into_raw`, and nothing else takes it.
            drop(unsafe { Arc::from_raw(data.cast::<Self>()) });
            return Err(error.into());
        }
        Ok(block)
    }

    /// Blocks the stream. The driver calls this as a host function.
    unsafe extern "C" fn wait(data: *mut c_void) {
        // SAFETY: `enqueue` gave this call its own reference.
        let block = unsafe { Arc::from_raw(data.cast::<Self>()) };
        let since = Instant::now();
        let mut state = block.state();
        while *state == State::Blocked {
            let left = Self::LONGEST.saturating_sub(since.elapsed());
            let (is_awaited, pause) = match block.is_awaited {
                Some(is_awaited) => (is_awaited() != 0, Self::PAUSE),
                None => (false, left),
            };
            if is_awaited || left.is_zero() {
                *state = State::Ended;
                break;
            }
            (state, _) = block.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns whether the stream is still blocked.
    pub fn is_blocked(&self) -> bool {
        *self.state() == State::Blocked
    }

    /// Releases the stream. Returns whether it was blocked until this call.
    pub fn release(&self) -> bool {
        let was_blocked = std::mem::replace(&mut *self.state(), State::Released) == State::Blocked;
        self.changed.notify_all();
        was_blocked
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
