//! The program that started the ranks.

use std::fs;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use lab::ensure;

use super::TIMEOUT;

/// A rank that is lost.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    /// Its number in the first communicator.
    pub(super) rank: usize,
    /// The number of steps that it takes.
    pub(super) steps: u64,
    /// Another rank, for which the last of these steps does not arrive in time.
    pub(super) late: Option<usize>,
}

/// Knows which ranks are lost, and waits for all others.
pub(super) struct Supervisor {
    pub(super) world_size: usize,
    pub(super) losses: Vec<Loss>,
    asked: Asked,
}

/// The ranks that have asked for the lost ranks.
enum Asked {
    /// Threads of this process. For each loss, their number.
    Threads(Mutex<Vec<usize>>, Condvar),
    /// Processes. Each of them leaves a file in this folder.
    Processes(PathBuf),
}

impl Supervisor {
    /// Creates the supervisor of ranks that are threads of this process.
    pub(super) fn of_threads(world_size: usize, losses: &[Loss]) -> Self {
        let asked = Asked::Threads(Mutex::new(vec![0; losses.len()]), Condvar::new());
        Self { world_size, losses: losses.to_vec(), asked }
    }

    /// Creates a process's part of the supervisor. All processes have the same folder, which is empty at first.
    pub(super) fn of_processes(world_size: usize, losses: &[Loss], folder: PathBuf) -> Self {
        Self { world_size, losses: losses.to_vec(), asked: Asked::Processes(folder) }
    }

    /// Returns whether the ranks are processes.
    pub(super) fn has_processes(&self) -> bool {
        matches!(self.asked, Asked::Processes(_))
    }

    /// Returns the ranks that remain after some losses, by their numbers in the first communicator.
    pub(super) fn left(&self, losses: usize) -> Vec<usize> {
        (0..self.world_size)
            .filter(|rank| self.losses[..losses].iter().all(|loss| loss.rank != *rank))
            .collect()
    }

    /// Waits until all remaining ranks have asked for this loss, which is counted from 0.
    pub(super) fn ask(&self, loss: usize, rank: usize) -> anyhow::Result<()> {
        let left = self.left(loss + 1).len();
        let asked = match &self.asked {
            Asked::Threads(asked, changed) => {
                let mut asked = asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                asked[loss] += 1;
                changed.notify_all();
                let waited = changed.wait_timeout_while(asked, TIMEOUT, |asked| asked[loss] < left);
                waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0[loss]
            }
            Asked::Processes(folder) => {
                fs::write(folder.join(format!("{loss}-{rank}")), [])?;
                let is_theirs = |rank: &usize| folder.join(format!("{loss}-{rank}")).exists();
                let since = Instant::now();
                loop {
                    let asked = (0..self.world_size).filter(is_theirs).count();
                    if asked >= left || since.elapsed() > TIMEOUT {
                        break asked;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        };
        ensure!(
            asked >= left,
            "rank {rank} asked for the lost ranks, but only {asked} of the {left} remaining ranks did so"
        );
        Ok(())
    }
}
