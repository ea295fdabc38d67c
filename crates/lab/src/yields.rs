//! Counts how often a thread lets other threads run.

use std::cell::Cell;
use std::ffi::c_int;
use std::hint::black_box;
use std::mem::zeroed;
use std::thread;
use std::time::Duration;

thread_local! {
    static YIELDS: Cell<u64> = const { Cell::new(0) };
}

/// Replaces the C library function that `std::thread::yield_now` calls, because the system does not count these calls.
#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> c_int {
    YIELDS.set(YIELDS.get() + 1);
    // SAFETY: this system call has no arguments and can't fail.
    unsafe { libc::syscall(libc::SYS_sched_yield) as c_int }
}

/// Returns how often this thread has slept, blocked, or yielded.
fn so_far() -> u64 {
    // SAFETY: the structure is plain numbers, and the call fills it for this thread.
    let usage = unsafe {
        let mut usage: libc::rusage = zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    usage.ru_nvcsw.unsigned_abs() + YIELDS.get()
}

/// Returns whether this system counts both yields and sleeps.
fn is_counted() -> bool {
    // Keep the compiler from removing the function above.
    black_box(sched_yield as extern "C" fn() -> c_int);
    let before = so_far();
    thread::yield_now();
    let yielded = so_far();
    thread::sleep(Duration::from_millis(1));
    yielded > before && so_far() > yielded
}

/// Runs `work`, and returns how often it let other threads run: by sleeping, blocking, or yielding. The number is `None` where the
/// system does not count.
///
/// # Errors
/// Returns any error from `work`.
pub fn yields<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Option<u64>)> {
    let is_counted = is_counted();
    let before = so_far();
    let result = work()?;
    Ok((result, is_counted.then(|| so_far() - before)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `wait` a hundred times.
    fn hundred(wait: impl Fn()) -> u64 {
        let ((), yields) = yields(|| {
            (0..100).for_each(|_| wait());
            Ok(())
        })
        .unwrap();
        yields.expect("Linux counts")
    }

    #[test]
    fn yields_and_sleeps_are_counted() {
        assert!(hundred(thread::yield_now) >= 100);
        // A thread that Linux takes off its core before it sleeps may find its time over, and then never blocks. That is rare
        // if it sleeps for longer than that takes, so most sleeps count.
        const SLEEP: Duration = Duration::from_micros(200);
        assert!(hundred(|| thread::sleep(SLEEP)) >= 50);
        assert!(hundred(|| thread::park_timeout(SLEEP)) >= 50);
    }

    #[test]
    fn a_spin_is_not_counted() {
        assert!(hundred(std::hint::spin_loop) < 10);
    }
}
