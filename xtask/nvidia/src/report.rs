//! Counts what was compared, and prints the differences.

use std::fmt::{Debug, Display};

use anyhow::ensure;

/// The comparisons of a run.
#[derive(Default)]
pub(crate) struct Report {
    compared: usize,
    differences: usize,
    skipped: usize,
}

impl Report {
    /// Prints the result of a comparison, and counts it.
    pub(crate) fn add(&mut self, comparison: Comparison) {
        let Comparison { what, compared, mut differences } = comparison;
        if compared == 0 {
            differences.push("nothing was compared".to_owned());
        }
        let found = match differences.len() {
            0 => "no difference".to_owned(),
            1 => "1 difference".to_owned(),
            many => format!("{many} differences"),
        };
        println!("{what}: compared {compared} things, {found}");
        for difference in &differences {
            println!("  {}", difference.replace('\n', "\n    "));
        }
        self.compared += compared;
        self.differences += differences.len();
    }

    /// Prints what can't be compared on this machine, and why.
    pub(crate) fn skip(&mut self, what: impl Display, why: &anyhow::Error) {
        let why = format!("{why:#}");
        // Only the first line says what went wrong, and pip and apt write many.
        println!("skipped: {what}, because {}", why.lines().next().unwrap_or("of an unknown error"));
        self.skipped += 1;
    }

    /// Prints the totals.
    ///
    /// # Errors
    /// Fails if there are differences, or if nothing was compared and nothing was skipped.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let Self { compared, differences, skipped } = self;
        println!("in total: compared {compared} things, {differences} differences, {skipped} skipped");
        ensure!(compared > 0 || skipped > 0, "nothing was compared");
        ensure!(differences == 0, "the virtual GPU or the course differs from NVIDIA's files");
        Ok(())
    }
}

/// Compares one of NVIDIA's files with ours.
pub(crate) struct Comparison {
    what: String,
    compared: usize,
    differences: Vec<String>,
}

impl Comparison {
    /// Begins a comparison of nothing yet.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), compared: 0, differences: Vec::new() }
    }

    /// Describes what was compared, once that is known.
    pub(crate) fn rename(&mut self, what: String) {
        self.what = what;
    }

    /// Returns how many things have been compared so far.
    pub(crate) fn compared(&self) -> usize {
        self.compared
    }

    /// Compares two values.
    pub(crate) fn same<T: PartialEq + Debug>(&mut self, what: impl Display, theirs: &T, ours: &T) {
        self.holds(theirs == ours, || format!("{what}: theirs {theirs:?}, ours {ours:?}"));
    }

    /// Counts something that was compared elsewhere, and describes the difference unless it holds.
    pub(crate) fn holds(&mut self, it_holds: bool, difference: impl FnOnce() -> String) {
        self.compared += 1;
        if !it_holds {
            self.differences.push(difference());
        }
    }
}
