//! Finds the threads in this process that an exercise leaves behind.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread may take to end after the check has returned. All work that it could be waiting for is done by
/// then.
const LIMIT: Duration = Duration::from_secs(1);

/// The prefix of the virtual GPU's own thread names.
const OF_VIRTUAL_GPU: &str = "virtual GPU";

/// The folder with an entry for each thread of this process.
const TASKS: &str = "/proc/self/task";

/// The threads that exist at one point in time.
pub(super) struct Threads(BTreeSet<String>);

impl Threads {
    pub(super) fn now() -> Self {
        Self(all())
    }

    /// Waits until all threads that started since then have ended, except for the virtual GPU's own. Returns how many
    /// did not end.
    pub(super) fn never_ended(&self) -> usize {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = all().difference(&self.0).filter(|id| is_other(id)).count();
            if left == 0 || Instant::now() >= deadline {
                return left;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// How often the folder is read until two readings agree.
const READINGS: usize = 100;

/// Returns the kernel's IDs for all threads. A thread that ends while the folder is read can hide others, so it is read
/// until two readings in a row agree.
fn all() -> BTreeSet<String> {
    let mut last = listed();
    for _ in 1..READINGS {
        let next = listed();
        if next == last {
            break;
        }
        last = next;
    }
    last
}

/// Returns the IDs that one reading of the folder shows.
fn listed() -> BTreeSet<String> {
    let threads = fs::read_dir(TASKS).into_iter().flatten().flatten();
    threads.map(|thread| thread.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns whether a thread still exists and is not one of the virtual GPU's own.
fn is_other(id: &str) -> bool {
    let name = fs::read_to_string(format!("{TASKS}/{id}/comm"));
    name.is_ok_and(|name| !name.starts_with(OF_VIRTUAL_GPU))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_that_does_not_end_is_counted() {
        let before = Threads::now();
        let (sender, receiver) = channel::<()>();
        let waiting = thread::spawn(move || receiver.recv());
        assert!(before.never_ended() >= 1);
        drop(sender);
        let _ = waiting.join();
    }

    #[test]
    fn a_thread_is_listed_while_others_end() {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let others: Vec<_> = (0..20).map(|_| thread::spawn(|| {})).collect();
                        others.into_iter().for_each(|other| other.join().unwrap());
                    }
                });
            }
            let missing = (0..1500).filter(|_| !a_new_thread_is_listed()).count();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(missing, 0);
        });
    }

    /// Starts a thread, and returns whether it is listed while it runs.
    fn a_new_thread_is_listed() -> bool {
        let (end, ended) = channel::<()>();
        let (sender, receiver) = channel();
        let thread = thread::spawn(move || {
            let id = fs::read_link("/proc/thread-self").unwrap();
            sender.send(id.file_name().unwrap().to_string_lossy().into_owned()).unwrap();
            let _ = ended.recv();
        });
        let id = receiver.recv().unwrap();
        let listed = all().contains(&id);
        drop(end);
        thread.join().unwrap();
        listed
    }
}
