//! What a design costs: the time of a step, the bytes that a rank sends, and the memory of a GPU.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::budget::sent;
use crate::calls::{Threads, VirtualDriver};

/// The costs of a design. A check measures them, and `cargo course score` and the grader show them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// The number of ranks.
    pub ranks: usize,
    /// The time of a step on the slowest rank, in microseconds.
    pub microseconds: f64,
    /// A time that no step can be faster than, in microseconds.
    pub bound: f64,
    /// The largest number of bytes that a rank sends in a step. On real GPUs, it is not counted.
    pub sent: Option<u64>,
    /// The largest number of bytes of GPU memory that a rank has in use at the same time.
    pub memory: u64,
    /// Where the times come from: whether they are modeled or measured, and on which machine.
    pub times: String,
}

impl Score {
    /// Returns how many times as long as the bound a step takes.
    pub fn ratio(&self) -> f64 {
        self.microseconds / self.bound
    }

    /// Makes this the score of the running check. If the check passes, the program that started it gets the score.
    pub fn keep(self) {
        *kept() = Some(self);
    }
}

static KEPT: Mutex<Option<Score>> = Mutex::new(None);

fn kept() -> std::sync::MutexGuard<'static, Option<Score>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the score of this process's check.
pub(crate) fn take() -> Option<Score> {
    kept().take()
}

/// Runs `call`, and returns its result and the bytes that this thread's rank sends in it, as a ring of the ranks sends
/// them: an all-reduce of `S` bytes on `n` ranks sends `2 · S · (n − 1) / n` from each rank. Only calls from the
/// exercise's lines count. On real GPUs, calls are not recorded, so the bytes are `None`.
///
/// # Errors
/// Returns any error of `call`. Also fails if the virtual driver can't record calls.
pub fn with_bytes_sent<T>(call: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Option<u64>)> {
    let Some(driver) = VirtualDriver::find()? else { return Ok((call()?, None)) };
    let (returned, calls) = driver.record(Threads::This, call)?;
    let bytes = calls.iter().filter(|call| call.code == 0).map(sent).sum();
    Ok((returned?, Some(bytes)))
}
