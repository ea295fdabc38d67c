//! Diagnostics: the problems found in a PTX text.

use std::fmt;

/// The maximum number of diagnostics shown. Without this limit, input that is not PTX would fill the screen.
const SHOWN: usize = 50;

/// The end of a diagnostic about a call to a function that another text has to define.
pub(crate) const ONLY_DECLARED: &str = "which is only declared here";

/// A problem that prevents loading.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Diagnostic {
    /// The line in the PTX text, from 1; 0 for the text as a whole.
    pub line: u32,
    /// What is wrong.
    pub text: String,
}

impl Diagnostic {
    pub(crate) fn new(line: u32, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.text),
            line => write!(f, "line {line}: {}", self.text),
        }
    }
}

/// Why a PTX text can't be loaded: all problems in it, ordered by line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    diagnostics: Vec<Diagnostic>,
    /// Whether the text is PTX at all, however wrong.
    pub(crate) is_ptx: bool,
}

impl LoadError {
    pub(crate) fn new(mut diagnostics: Vec<Diagnostic>) -> Self {
        diagnostics.sort();
        diagnostics.dedup();
        Self { diagnostics, is_ptx: true }
    }

    /// Returns whether the text is PTX at all: whether it begins with `.version`.
    pub fn is_ptx(&self) -> bool {
        self.is_ptx
    }

    /// Returns what remains if another text may define the functions that this one only declares.
    pub fn of_a_part(mut self) -> Option<Self> {
        self.diagnostics.retain(|diagnostic| !diagnostic.text.ends_with(ONLY_DECLARED));
        (!self.diagnostics.is_empty()).then_some(self)
    }

    /// Returns each problem once, ordered by line.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PTX that can't be loaded")?;
        for diagnostic in self.diagnostics.iter().take(SHOWN) {
            write!(f, "\n  {diagnostic}")?;
        }
        match self.diagnostics.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl std::error::Error for LoadError {}
