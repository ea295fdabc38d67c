//! The engine's threads, locks, and condition variables. They come from the standard library or, under `--cfg shuttle`,
//! from a scheduler that tries many thread interleavings (`tests/shuttle.rs`).
//!
//! The standard library's own types are still used where no thread can wait for another: in `OnceLock`s, which are set
//! and read under the engine's lock, in counters, and in statics that are held only for a moment. They are also used in
//! connections to other processes, which this scheduler can't control, and by the threads that help with long work
//! (`team.rs`).

#[cfg(not(shuttle))]
pub use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread, thread_local,
};

/// Here `wait_timeout` never times out: a condition that only a recheck would notice is treated as a deadlock.
#[cfg(shuttle)]
pub use shuttle::{
    sync::{Condvar, Mutex, MutexGuard},
    thread, thread_local,
};

/// Starts a thread that lives as long as the process.
///
/// # Errors
/// Fails if the system can't start the thread.
#[cfg(not(shuttle))]
pub fn spawn_for_good(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Starts a thread as in an ordinary build. Under shuttle, a program may end before a future that is never joined, but
/// not before a thread that is never joined.
#[cfg(shuttle)]
pub fn spawn_for_good(_: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    drop(shuttle::future::spawn(async { run() }));
    Ok(())
}
