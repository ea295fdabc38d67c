//! What the screen shows: the exercise, and what is known of the answer.

use std::fmt::Write as _;
use std::path::Path;

use course::progress::State;

use super::text::{contract, link, wrapped};
use super::{Below, Watch, terminal};
use crate::session::{BAD, DIM, GOOD, STRONG, Session, details, headline};

const KEYS: &str = "h hint · r run · n next · l list · d what changed · q quit";

impl Watch<'_> {
    /// Shows where the student is, and what is known of the answer.
    pub(super) fn draw(&self) -> anyhow::Result<()> {
        let columns = terminal::columns();
        let mut text = self.head(columns)?;
        match &self.below {
            Below::Checking => {
                let _ = writeln!(text, "{DIM}checking …{DIM:#}");
            }
            Below::Verdict(verdict) => {
                let _ =
                    writeln!(text, "{}{}", details(self.exercise, verdict), headline(self.exercise, verdict));
                if verdict.is_right() {
                    let _ = writeln!(text, "{GOOD}n{GOOD:#} goes on to the next.");
                }
            }
            Below::Text(said) => text.push_str(&wrapped(said, columns)),
            Below::Error(error) => {
                let _ = writeln!(text, "{BAD}error:{BAD:#} {error:#}");
            }
        }
        let _ = write!(text, "\n{DIM}{}{DIM:#}", wrapped(KEYS, columns));
        terminal::show(&text)
    }

    /// The exercise: how far, what to do, where.
    fn head(&self, columns: usize) -> anyhow::Result<String> {
        let Session { root, course, .. } = self.session;
        let mut right = 0;
        for exercise in &course.exercises {
            right += usize::from(self.session.state(exercise)? == State::Right);
        }
        let (all, exercise) = (course.exercises.len(), self.exercise);
        let count = format!("{right} of {all}");
        let bar = all.min(columns.saturating_sub(count.len() + 1));
        let done = right * bar / all;
        let mut text =
            format!("{GOOD}{}{GOOD:#}{DIM}{}{DIM:#} {count}\n\n", "━".repeat(done), "━".repeat(bar - done));
        let title =
            format!("{STRONG}{}  {}{STRONG:#}  {} minutes", exercise.id, exercise.title, exercise.minutes);
        text.push_str(&wrapped(&title, columns));
        for paragraph in contract(&self.answer) {
            text.push_str(&wrapped(&format!("  {paragraph}"), columns));
        }
        let _ = writeln!(text, "  read {}", link(root, &exercise.lesson(Path::new(""))));
        let _ = writeln!(text, "  edit {}\n", link(root, &exercise.starter(Path::new(""))));
        Ok(text)
    }
}
