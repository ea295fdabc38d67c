//! How far a student is: read from the files, since only a check can tell whether an answer is right.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::syllabus::Exercise;

/// What an exercise's file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// So many `todo!` are left.
    Open(usize),
    /// No `todo!` is left. Whether the answer is right, its checks say.
    Written,
}

/// Reads the state of an exercise.
///
/// # Errors
/// Its file can't be read.
pub fn state(root: &Path, exercise: &Exercise) -> anyhow::Result<State> {
    let path = exercise.starter(root);
    let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    Ok(state_of(&text))
}

fn state_of(text: &str) -> State {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    match code.filter(|line| line.contains("todo!(")).count() {
        0 => State::Written,
        open => State::Open(open),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_todo_in_a_comment_is_none() {
        assert_eq!(state_of("fn f() {\n    todo!(\"this\")\n}"), State::Open(1));
        assert_eq!(state_of("fn f() {\n    // was: todo!(\"this\")\n    1\n}"), State::Written);
    }
}
