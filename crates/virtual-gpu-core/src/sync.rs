//! What the engine's threads are, lock and wait with: the standard library's, or under `--cfg shuttle` that of a scheduler
//! which tries many orders of the threads' steps (`tests/shuttle.rs`).
//!
//! The standard library's own stays where no other thread can be waited for: in `OnceLock`s, which are set and read under
//! the engine's lock, in counters, and in statics that are held for a moment. So do connections to other processes,
//! which no scheduler here knows.

#[cfg(not(shuttle))]
pub use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread, thread_local,
};

/// Here `wait_timeout` never times out: what only a second look would find counts as a deadlock.
#[cfg(shuttle)]
pub use shuttle::{
    sync::{Condvar, Mutex, MutexGuard},
    thread, thread_local,
};

/// Starts a thread that lives as long as the process.
///
/// # Errors
/// Why the system does not start it.
#[cfg(not(shuttle))]
pub fn spawn_for_good(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// As in an ordinary build. A program may end before a future that is never joined, but not before such a thread.
#[cfg(shuttle)]
pub fn spawn_for_good(_: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    drop(shuttle::future::spawn(async { run() }));
    Ok(())
}
