//! How long something takes on the processor, which doesn't depend on what else runs on the machine.

use std::time::Duration;

/// Calls `work`, and returns its result and the processor time that this thread spent on it.
pub(crate) fn processor_time<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = of_this_thread();
    let result = work();
    (result, of_this_thread() - start)
}

fn of_this_thread() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result is writable.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
