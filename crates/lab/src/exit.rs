//! The exit code of a program.

use std::process::ExitCode;

use crate::explain::error_text;

/// Returns the exit code for the outcome of a program that verifies its results: 0 if they are right, 1 if they are not,
/// and 2 for an error, which it prints.
pub fn exit_code(outcome: anyhow::Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", error_text(&error));
            ExitCode::from(2)
        }
    }
}
