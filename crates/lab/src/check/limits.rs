//! Time limits for interactive use, which are shorter than the limits for `cargo test`.

use std::process::Command;

use crate::tier::{Tier, tier_for};

/// The environment variable that sets how many seconds a check may take.
const CHECK: &str = "LAB_TIMEOUT";
/// The variable with the number of seconds that a rank waits for the others to join its communicator.
const BOOTSTRAP: &str = "VIRTUAL_GPU_BOOTSTRAP_TIMEOUT";
/// The bootstrap timeout for interactive use. Ranks in threads of the same process join within milliseconds of each
/// other.
const SHORT_BOOTSTRAP: &str = "2";
/// The bootstrap timeout for processes. They start one after another, and on a busy machine each may take seconds.
const BOOTSTRAP_OF_PROCESSES: &str = "10";

/// The time limits for a run of checks, set through environment variables.
#[derive(Debug)]
pub enum TimeLimits {}

impl TimeLimits {
    /// Sets a test program's limits for interactive use. Limits that are already set are kept. On real GPUs, only creating
    /// the communicators may take a minute, so checks have their usual time.
    pub fn set_interactive(command: &mut Command) {
        if matches!(tier_for(1), Ok(Tier::Real | Tier::Shared)) {
            return;
        }
        for (name, seconds) in [(CHECK, "10"), (BOOTSTRAP, SHORT_BOOTSTRAP)] {
            if std::env::var_os(name).is_none() {
                command.env(name, seconds);
            }
        }
    }

    /// Gives ranks in a process that a check starts the usual time to join.
    pub(super) fn set_for_process(command: &mut Command) {
        if std::env::var_os(BOOTSTRAP).is_some_and(|seconds| seconds == SHORT_BOOTSTRAP) {
            command.env(BOOTSTRAP, BOOTSTRAP_OF_PROCESSES);
        }
    }

    /// Returns whether the message of a failed check shows that it exceeded a limit.
    pub fn ended(message: &str) -> bool {
        message.contains(STILL_RUNNING) || message.contains(NOT_PROVED)
    }
}

/// The words that the harness uses to report a check that it stopped.
pub(super) const STILL_RUNNING: &str = " still running after ";

/// The words that the virtual GPU uses to report a wait that it gave up on.
const NOT_PROVED: &str = "(not proved: ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_are_set_stay() {
        let mut command = Command::new("true");
        TimeLimits::set_interactive(&mut command);
        let set: Vec<_> = command.get_envs().collect();
        let is_set = |name: &str| set.iter().any(|(set, _)| *set == name);
        for name in [CHECK, BOOTSTRAP] {
            assert_eq!(is_set(name), std::env::var_os(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_wrong_sum_is_not_a_time_limit() {
        assert!(TimeLimits::ended("the check was still running after 10 s, and was stopped"));
        assert!(TimeLimits::ended("  = (not proved: given up after 2 s, VIRTUAL_GPU_BOOTSTRAP_TIMEOUT)"));
        assert!(!TimeLimits::ended("the sum is wrong"));
    }
}
