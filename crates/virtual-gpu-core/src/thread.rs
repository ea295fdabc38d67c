//! Host threads as the virtual GPU sees them: which thread makes a call, and whether a thread is still alive.
//!
//! Thread-locals here have no destructors, so a call that a thread makes while it exits works like any other.

use std::cell::Cell;
use std::fs::read_to_string;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

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

/// The name of the thread that ends a check with its parent. It never makes a call.
const PARENT_WATCH: &str = "parent watch";

/// Returns the number of threads that can run at the same time.
pub fn cores() -> usize {
    static CORES: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, Into::into));
    *CORES
}

/// Returns the number of this process's threads that don't wait for another thread without a deadline, as the kernel sees
/// it. The other threads can't do anything until one of these does. `None` if the kernel doesn't show this, or if the threads
/// are not the kernel's own.
pub fn awake() -> Option<usize> {
    if cfg!(shuttle) {
        return None;
    }
    let mut awake = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let task = task.ok()?.path();
        let (Ok(call), Ok(name)) = (read_to_string(task.join("syscall")), read_to_string(task.join("comm")))
        else {
            // The kernel doesn't show it, or the thread has just ended.
            if task.exists() {
                return None;
            }
            continue;
        };
        awake += usize::from(!waits_for_a_thread(&call) && name.trim_end() != PARENT_WATCH);
    }
    Some(awake)
}

/// Returns whether a system call waits for a thread without a deadline. `call` is what proc(5) describes for `syscall`: the
/// number of the call and its arguments, in hexadecimal. futex(2): the second argument is the operation, and the fourth is
/// the deadline.
fn waits_for_a_thread(call: &str) -> bool {
    const WAIT: u64 = libc::FUTEX_WAIT as u64;
    const WAIT_BITSET: u64 = libc::FUTEX_WAIT_BITSET as u64;
    let mut words = call.split_whitespace();
    let is_futex = words.next().and_then(|number| number.parse().ok()) == Some(libc::SYS_futex);
    let arguments: Vec<u64> =
        words.map_while(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()).collect();
    let &[_, operation, _, deadline, ..] = &arguments[..] else { return false };
    let flags = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u64;
    is_futex && matches!(operation & !flags, WAIT | WAIT_BITSET) && deadline == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wait_without_a_deadline_needs_another_thread() {
        let futex = libc::SYS_futex;
        let waits = |operation: &str, deadline: &str| {
            waits_for_a_thread(&format!(
                "{futex} 0x7f00 {operation} 0x2 {deadline} 0x0 0xffffffff 0x7ff0 0x7f10"
            ))
        };
        assert!(waits("0x80", "0x0") && waits("0x189", "0x0") && waits("0x0", "0x0"));
        assert!(!waits("0x189", "0x7ff8") && !waits("0x81", "0x0"));
        assert!(
            !waits_for_a_thread("running") && !waits_for_a_thread("0 0x0 0x80 0x1 0x0 0x0 0x0 0x7ff0 0x7f10")
        );
    }

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
