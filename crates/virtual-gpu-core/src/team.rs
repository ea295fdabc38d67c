//! Threads that help other threads with their work. They live as long as the process, because a thread takes longer to start than
//! to wake up.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The helpers' name. How it begins tells the checks that the exercise has not started this thread.
const NAME: &str = "virtual GPU: helper";

/// What several threads call at the same time.
type Work<'a> = dyn Fn() + Sync + 'a;

/// The helpers that have nothing to do. The one that finished last is woken first.
static IDLE: Mutex<Vec<Arc<Helper>>> = Mutex::new(Vec::new());

/// A thread that helps.
#[derive(Default)]
struct Helper {
    task: Mutex<Task>,
    changed: Condvar,
}

#[derive(Default)]
enum Task {
    #[default]
    None,
    /// The helper has not begun.
    Given(&'static Work<'static>),
    Running,
    /// The helper has returned or panicked.
    Done(Result<(), Box<dyn Any + Send>>),
}

/// Helpers that have been given work. None of them has it anymore after this has been dropped.
#[derive(Default)]
struct Team {
    helpers: Vec<Arc<Helper>>,
}

/// Calls `work` on this thread and, at the same time, on up to `helpers` other threads. Returns when all these calls have returned.
///
/// There may be fewer calls: a helper that is still waking up when this thread's call returns makes none, and the system may have no
/// more threads. So each call must do parts of the work until none is left.
///
/// # Panics
/// Panics if `work` does so on one of the threads.
pub fn run_together(helpers: usize, work: &Work<'_>) {
    let mut team = Team::default();
    // SAFETY: `work` exists until this function returns or unwinds. The team is dropped before that, and then no helper has the
    // reference anymore.
    let given = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
    for helper in (0..helpers).map_while(|_| Helper::idle()) {
        helper.give(given);
        team.helpers.push(helper);
    }
    work();
    if let Some(panic) = team.end() {
        resume_unwind(panic);
    }
}

impl Team {
    /// Waits until no helper has the work anymore. Returns why one of them panicked, if any did.
    fn end(&mut self) -> Option<Box<dyn Any + Send>> {
        let mut panicked = None;
        for helper in self.helpers.drain(..) {
            panicked = helper.end().err().or(panicked);
            lock(&IDLE).push(helper);
        }
        panicked
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.end();
    }
}

impl Helper {
    /// Returns a helper that has nothing to do. Returns `None` if the system has no more threads.
    fn idle() -> Option<Arc<Self>> {
        if let Some(idle) = lock(&IDLE).pop() {
            return Some(idle);
        }
        let helper = Arc::new(Self::default());
        let own = Arc::clone(&helper);
        thread::Builder::new().name(NAME.to_owned()).spawn(move || own.help()).ok()?;
        Some(helper)
    }

    fn give(&self, work: &'static Work<'static>) {
        *lock(&self.task) = Task::Given(work);
        self.changed.notify_one();
    }

    /// Takes the work back or, if the helper has begun, waits until it is done.
    ///
    /// # Errors
    /// Returns what the helper panicked with.
    fn end(&self) -> Result<(), Box<dyn Any + Send>> {
        let mut task = lock(&self.task);
        loop {
            match std::mem::take(&mut *task) {
                Task::Running => *task = Task::Running,
                Task::Done(outcome) => return outcome,
                Task::None | Task::Given(_) => return Ok(()),
            }
            task = self.wait(task);
        }
    }

    /// Does what it is given, forever.
    fn help(&self) {
        let mut task = lock(&self.task);
        loop {
            let Task::Given(work) = *task else {
                task = self.wait(task);
                continue;
            };
            *task = Task::Running;
            drop(task);
            let outcome = catch_unwind(AssertUnwindSafe(work));
            task = lock(&self.task);
            *task = Task::Done(outcome);
            self.changed.notify_one();
        }
    }

    fn wait<'a>(&self, task: MutexGuard<'a, Task>) -> MutexGuard<'a, Task> {
        self.changed.wait(task).unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn all_work_is_done_once_before_the_call_returns() {
        for helpers in [0, 1, 3] {
            for count in [0, 1, 2, 1000] {
                let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
                run_together(helpers, &|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= count {
                            break;
                        }
                        lock(&done).push(at);
                    }
                });
                let mut done = done.into_inner().unwrap();
                done.sort_unstable();
                assert!(done.into_iter().eq(0..count), "{helpers} helpers, {count} pieces");
            }
        }
    }

    #[test]
    fn helpers_work_at_the_same_time_for_several_threads() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        // Each call returns only when all three threads have begun.
                        let (all, begun) = (Barrier::new(3), AtomicUsize::new(0));
                        run_together(2, &|| {
                            begun.fetch_add(1, Ordering::Relaxed);
                            all.wait();
                        });
                        assert_eq!(begun.into_inner(), 3);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_of_any_thread_reaches_the_caller_when_no_helper_works_anymore() {
        for panics_here in [false, true] {
            let caller = thread::current().id();
            let (both, ended) = (Barrier::new(2), AtomicUsize::new(0));
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                run_together(1, &|| {
                    both.wait();
                    if (thread::current().id() == caller) == panics_here {
                        panic!("on purpose");
                    }
                    thread::sleep(std::time::Duration::from_millis(20));
                    ended.fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&"on purpose"));
            assert_eq!(ended.into_inner(), 1);
        }
    }
}
