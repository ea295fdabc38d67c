//! Host threads as the virtual GPU sees them: which thread makes a call, and whether a thread is still alive.
//!
//! Thread-locals here have no destructors, so a call that a thread makes while it exits works like any other.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::thread_local;

/// Identifies a host thread; it is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadKey(u64);

impl ThreadKey {
    /// A thread in another process, which this process knows nothing about.
    pub const ELSEWHERE: Self = Self(0);

    /// Returns the calling thread's key.
    pub fn current() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local! { static KEY: Cell<u64> = const { Cell::new(0) } }
        KEY.with(|key| {
            if key.get() == 0 {
                key.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            Self(key.get())
        })
    }
}

/// The kernel's view of a thread, which lets other threads see whether it has ended.
#[derive(Clone, Debug)]
pub struct Life(Option<PathBuf>);

impl Life {
    /// Returns the view of the calling thread.
    pub fn of_current() -> Self {
        let task = std::fs::read_link("/proc/thread-self").ok();
        Self(task.map(|task| PathBuf::from("/proc").join(task)))
    }

    /// Returns whether the thread has ended. A thread that can't be observed is assumed to be alive.
    pub fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|task| !task.exists())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joined_thread_has_ended() {
        let (key, life) = std::thread::spawn(|| (ThreadKey::current(), Life::of_current())).join().unwrap();
        assert_ne!(key, ThreadKey::current());
        // The kernel may take a moment to forget a joined thread.
        for _ in 0..500 {
            if life.has_ended() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(life.has_ended());
        assert!(!Life::of_current().has_ended());
    }
}
