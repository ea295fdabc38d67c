//! The content of the screen: the exercise, and the state of the answer. It fits on the terminal, no matter how small.

use std::fmt::Write as _;
use std::path::Path;

use course::checks::Verdict;
use course::progress::State;

use super::text::{contract, link, without_other_sources, wrapped};
use super::{Below, Watch, terminal};
use crate::overview::bar;
use crate::session::{BAD, DIM, STRONG, Session};
use crate::verdict_text::{after_success, cut, cut_further, details, drawn, headline, other_failures};

const KEYS: [&str; 7] = ["h hint", "r run", "n next", "l list", "d edits", "s solution", "a look back"];

/// The height of a terminal that has room for both a chart and a message.
const ROOM_FOR_CHART: usize = 32;

impl Watch<'_> {
    /// Shows where the student is, and what is known about the answer.
    pub(super) fn draw(&self) -> anyhow::Result<()> {
        let (columns, rows) = terminal::size();
        let head = self.head(columns)?;
        let (body, last) = self.body(columns, rows)?;
        let mut keys = KEYS.to_vec();
        keys.extend((self.chart.is_some() && self.page.is_none()).then_some("t timeline"));
        keys.push(if self.page.is_some() { "q close" } else { "q quit" });
        let foot = format!("{last}{DIM}{}{DIM:#}", in_lines(&keys, columns));
        let used = head.lines().count() + foot.lines().count();
        let body = match self.shows_all {
            true => body,
            false => fitting(&body, rows.saturating_sub(used).max(2)),
        };
        terminal::show(&format!("{head}{body}{foot}"))
    }

    /// Returns what is known about the answer, which may be long, and a last line that is always shown.
    fn body(&self, columns: usize, rows: usize) -> anyhow::Result<(String, String)> {
        if let Some(page) = &self.page {
            return Ok((wrapped(page, columns), "\n".to_owned()));
        }
        Ok(match &self.below {
            Below::Checking(what, since) => {
                let seconds = since.elapsed().as_secs();
                let time = if seconds > 0 { format!(" {seconds} s") } else { String::new() };
                (String::new(), format!("{DIM}{what} …{time}{DIM:#}\n\n"))
            }
            Below::Verdict(verdict) => {
                let mut body = wrapped(&details(self.session.root, self.exercise, verdict), columns);
                let mut last = headline(self.exercise, verdict);
                let chart = self.chart.as_ref().map_or_else(String::new, |chart| drawn(chart, columns));
                // People look at a picture before they read text. If the screen has room for both, a long message is
                // cut first.
                let others = wrapped(&other_failures(self.exercise, verdict), columns);
                match rows >= ROOM_FOR_CHART && !verdict.is_right() && !chart.is_empty() {
                    true => last.insert_str(0, &format!("{chart}\n")),
                    false => body.push_str(&chart),
                }
                body.push_str(&others);
                if verdict.is_right() {
                    let how_to_go_on = after_success(&self.session, self.exercise, true)?;
                    body.push_str(&wrapped(how_to_go_on.trim_start_matches('\n'), columns));
                    body.push('\n');
                }
                (body, format!("{}\n", wrapped(&last, columns)))
            }
            Below::Error(error) => (wrapped(&error_text(self.session.root, error), columns), "\n".to_owned()),
        })
    }

    /// Describes the exercise: the progress, the task, and the file. Once a check has failed, the failure replaces the
    /// contract.
    fn head(&self, columns: usize) -> anyhow::Result<String> {
        let Session { root, .. } = self.session;
        let exercise = self.exercise;
        let mut text = format!("{}\n", bar(&self.session, columns)?);
        let title =
            format!("{STRONG}{}  {}{STRONG:#}  {} minutes", exercise.id, exercise.title, exercise.minutes);
        text.push_str(&wrapped(&title, columns));
        if !self.has_failed()? {
            for paragraph in contract(&self.answer) {
                text.push_str(&wrapped(&format!("  {paragraph}"), columns));
            }
        }
        let _ = writeln!(text, "  read {}", link(root, &exercise.lesson(Path::new(""))));
        let _ = writeln!(text, "  edit {}\n", link(root, &exercise.starter(Path::new(""))));
        Ok(text)
    }

    /// Returns whether something is more important to show than the contract. The failure of an unchanged starter is
    /// not.
    fn has_failed(&self) -> anyhow::Result<bool> {
        Ok(match &self.below {
            _ if self.page.is_some() => true,
            Below::Verdict(Verdict::Failed(..)) => {
                !matches!(self.session.state(self.exercise)?, State::Open(_))
            }
            Below::Checking(..) => false,
            Below::Verdict(_) | Below::Error(_) => true,
        })
    }
}

/// Joins the keys with their meanings, in lines of at most `columns`.
fn in_lines(keys: &[&str], columns: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for key in keys {
        match lines.last_mut() {
            Some(line) if format!("{line} · {key}").chars().count() <= columns => {
                line.push_str(" · ");
                line.push_str(key);
            }
            _ => lines.push((*key).to_owned()),
        }
    }
    lines.join("\n")
}

/// Formats an error. Paths relative to the root of the course fit on a line.
pub(super) fn error_text(root: &Path, error: &anyhow::Error) -> String {
    let root = format!("{}/", root.display());
    format!("{BAD}error:{BAD:#} {}", format!("{error:#}").replace(&root, ""))
}

/// Returns the part of a text that fits in `rows`, and how to see the rest. The student's own lines have priority over
/// those of other files.
fn fitting(body: &str, rows: usize) -> String {
    const HOW: &str = "; m shows all";
    let lines = body.lines().count();
    if lines <= rows {
        return body.to_owned();
    }
    let short = without_other_sources(body);
    match lines - short.lines().count() {
        left_out @ 1.. => cut_further(&short, left_out, rows, HOW),
        0 => cut(body, rows, HOW),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_its_meaning_stay_on_one_line() {
        assert_eq!(in_lines(&["h hint", "a look back", "q quit"], 29), "h hint · a look back · q quit");
        assert_eq!(in_lines(&["h hint", "a look back", "q quit"], 28), "h hint · a look back\nq quit");
        assert_eq!(in_lines(&["h hint", "q quit"], 3), "h hint\nq quit");
    }
}
