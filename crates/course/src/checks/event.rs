//! The JSON output of a test program.

use serde::Deserialize;

/// One line of a test program's JSON output.
#[derive(Deserialize)]
pub struct Event {
    /// `test` for a check, or `suite` for all of them.
    #[serde(rename = "type")]
    pub of: String,
    /// `started`, or how it ended: `ok`, `failed`, or `ignored`.
    pub event: Option<String>,
    /// The check's name.
    pub name: Option<String>,
    /// What the check printed, if it failed.
    pub stdout: Option<String>,
}

impl Event {
    /// Reads a line. Returns `None` for other output.
    pub fn read(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}
