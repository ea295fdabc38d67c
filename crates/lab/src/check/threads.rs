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

/// Returns the kernel's IDs for all threads.
fn all() -> BTreeSet<String> {
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
}
