//! Time limits for a person who waits for the verdict: shorter than those of `cargo test`.

use std::process::Command;

/// Seconds that a check may take.
const CHECK: &str = "LAB_TIMEOUT";
/// Seconds that a rank waits for the others of its communicator to join.
const BOOTSTRAP: &str = "VIRTUAL_GPU_BOOTSTRAP_TIMEOUT";
/// While a person waits. Ranks in threads of one process join within milliseconds of each other.
const SHORT_BOOTSTRAP: &str = "2";
/// Processes start one after the other, and a busy machine may take seconds for each.
const BOOTSTRAP_OF_PROCESSES: &str = "10";

/// The time limits of a run of checks, as the environment variables that set them.
#[derive(Debug)]
pub enum TimeLimits {}

impl TimeLimits {
    /// Sets the limits for a test program while a person waits. A limit that is set already stays.
    pub fn set_interactive(command: &mut Command) {
        for (name, seconds) in [(CHECK, "10"), (BOOTSTRAP, SHORT_BOOTSTRAP)] {
            if std::env::var_os(name).is_none() {
                command.env(name, seconds);
            }
        }
    }

    /// Gives the ranks of a process that a check starts the usual time to join.
    pub(super) fn set_for_process(command: &mut Command) {
        if std::env::var_os(BOOTSTRAP).is_some_and(|seconds| seconds == SHORT_BOOTSTRAP) {
            command.env(BOOTSTRAP, BOOTSTRAP_OF_PROCESSES);
        }
    }

    /// Whether a check failed because it ran into a limit, by what it says.
    pub fn ended(message: &str) -> bool {
        message.contains(STILL_RUNNING) || message.contains(NOT_PROVED)
    }
}

/// What the harness says of a check that it ended.
pub(super) const STILL_RUNNING: &str = " still running after ";

/// What the virtual GPU says of a wait that it gave up.
const NOT_PROVED: &str = "(not proved: ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_set_stays() {
        let mut command = Command::new("true");
        TimeLimits::set_interactive(&mut command);
        let set: Vec<_> = command.get_envs().collect();
        let is_set = |name: &str| set.iter().any(|(set, _)| *set == name);
        for name in [CHECK, BOOTSTRAP] {
            assert_eq!(is_set(name), std::env::var_os(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_wrong_sum_is_no_time_limit() {
        assert!(TimeLimits::ended("the check was still running after 10 s, and was stopped"));
        assert!(TimeLimits::ended("  = (not proved: given up after 2 s, VIRTUAL_GPU_BOOTSTRAP_TIMEOUT)"));
        assert!(!TimeLimits::ended("the sum is wrong"));
    }
}
