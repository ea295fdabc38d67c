//! What doesn't hold, point by point.

use std::time::Instant;

use anyhow::ensure;

/// Counts what was found, and prints it as it comes.
#[derive(Default)]
pub(super) struct Findings(usize);

impl Findings {
    /// Runs one point and prints how it went.
    pub(super) fn point(
        &mut self,
        title: &str,
        look: impl FnOnce() -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        let found = look()?;
        let verdict = if found.is_empty() { "ok" } else { "FAILED" };
        println!("{verdict}: {title} ({:.1} s)", started.elapsed().as_secs_f64());
        for finding in &found {
            println!("  - {}", finding.trim_end().replace('\n', "\n    "));
        }
        self.0 += found.len();
        Ok(())
    }

    /// Fails if any point had findings.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        ensure!(self.0 == 0, "{} findings", self.0);
        Ok(())
    }
}
