//! Collects and prints the problems that each check finds.

use std::time::Instant;

use anyhow::ensure;

/// Counts problems, and prints them as they are found.
#[derive(Default)]
pub(super) struct Problems(usize);

impl Problems {
    /// Runs a check and prints its result. If the check can't be run, the reason is its only problem.
    pub(super) fn point(&mut self, title: &str, look: impl FnOnce() -> anyhow::Result<Vec<String>>) {
        let started = Instant::now();
        let found = look().unwrap_or_else(|error| vec![format!("{error:#}")]);
        let verdict = if found.is_empty() { "ok" } else { "FAILED" };
        println!("{verdict}: {title} ({:.1} s)", started.elapsed().as_secs_f64());
        for problem in &found {
            // A check's output may contain colors, which a file or a pipe would show as codes.
            anstream::println!("  - {}", problem.trim_end().replace('\n', "\n    "));
        }
        self.0 += found.len();
    }

    /// Fails if any check found problems.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        ensure!(self.0 == 0, "{} {}", self.0, if self.0 == 1 { "problem" } else { "problems" });
        Ok(())
    }
}
