//! The content of the screen: the exercise, and the state of the answer. It fits on the terminal, no matter how small.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use anstream::adapter::strip_str;
use course::answers::has_solutions;
use course::checks::Verdict;
use course::progress::State;

use super::text::{contract, link, without_other_sources, wrapped};
use super::{Below, Watch, terminal};
use crate::overview::{bar, left_before};
use crate::session::{BAD, DIM, STRONG, Session};
use crate::verdict_text::{after_success, cut_further, details, drawn, headline, other_failures};

const KEYS: [&str; 7] = ["h hint", "r run", "n next", "l list", "d edits", SOLUTION, "a look back"];

/// The key that a course without solutions doesn't have.
const SOLUTION: &str = "s solution";

/// What each key does.
const MEANINGS: &str = "The keys:
  h  show one more hint
  r  run the checks again
  n  go on to the next exercise that is not right; after the last one, to the first
  l  list the exercises, from this module on
  d  show what you have changed since the version before
  s  compare with the solution, once your answer is right
  a  look back: pitfalls, other answers, and a question, once your answer is right
  t  write the timeline to a file, if there is one
  m  show all lines of a text that is cut, or the first ones again
  ?  show these keys
  q  close a page, or quit
  Ctrl-C quits, and Ctrl-Z suspends
";

/// Lists the keys, after a key was pressed that has no meaning or asks for them.
pub(super) fn keys_page(root: &Path, pressed: char) -> String {
    let is_there = |line: &&str| has_solutions(root) || !line.starts_with("  s ");
    let meanings: String = MEANINGS.split_inclusive('\n').filter(is_there).collect();
    match pressed {
        '?' => meanings,
        other => format!("{other} does nothing.\n\n{meanings}"),
    }
}

/// The height of a terminal that has room for both a chart and a message.
const ROOM_FOR_CHART: usize = 32;

impl Watch<'_> {
    /// Shows where the student is, and what is known about the answer.
    pub(super) fn draw(&self) -> anyhow::Result<()> {
        let (columns, rows) = terminal::size();
        let head = self.head(columns)?;
        let (body, last) = self.body(columns, rows)?;
        let mut keys = KEYS.to_vec();
        keys.retain(|key| *key != SOLUTION || has_solutions(self.session.root));
        keys.extend((self.chart.is_some() && self.page.is_none()).then_some("t timeline"));
        keys.push(if self.page.is_some() { "q close" } else { "q quit" });
        let foot = format!("{last}{DIM}{}{DIM:#}", in_lines(&keys, columns));
        let used = head.lines().count() + foot.lines().count();
        let body = match self.shows_all {
            true => wrapped(&body, columns),
            false => fitting(&body, columns, rows.saturating_sub(used).max(2)),
        };
        terminal::show(&format!("{head}{body}{foot}"))
    }

    /// Returns what is known about the answer, which may be long and is not wrapped yet, and a last line that is always
    /// shown.
    fn body(&self, columns: usize, rows: usize) -> anyhow::Result<(String, String)> {
        if let Some(page) = &self.page {
            return Ok((page.clone(), "\n".to_owned()));
        }
        Ok(match &self.below {
            Below::Checking(what, since) => {
                let seconds = since.elapsed().as_secs();
                let time = if seconds > 0 { format!(" {seconds} s") } else { String::new() };
                (String::new(), format!("{DIM}{what} …{time}{DIM:#}\n\n"))
            }
            Below::Verdict(verdict) => {
                let mut body = details(self.session.root, self.exercise, verdict);
                let mut last = headline(self.exercise, verdict);
                let chart = self.chart.as_ref().map_or_else(String::new, |chart| drawn(chart, columns));
                // People look at a picture before they read text. If the screen has room for both, a long message is
                // cut first.
                let others = other_failures(self.exercise, verdict);
                match rows >= ROOM_FOR_CHART && !verdict.is_right() && !chart.is_empty() {
                    true => last.insert_str(0, &format!("{chart}\n")),
                    false => body.push_str(&chart),
                }
                body.push_str(&others);
                if verdict.is_right() {
                    let how_to_go_on = after_success(&self.session, self.exercise, true)?;
                    body.push_str(how_to_go_on.trim_start_matches('\n'));
                    body.push('\n');
                }
                (body, format!("{}\n", wrapped(&last, columns)))
            }
            Below::Error(error) => (error_text(self.session.root, error) + "\n", "\n".to_owned()),
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
            text.push_str(&left_before(&self.session, exercise)?);
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

/// Wraps a text, and returns the part that fits in `rows`, and how to see the rest. The student's own lines have priority
/// over those of other files, and the first help over the lines before it.
fn fitting(body: &str, columns: usize, rows: usize) -> String {
    let all = wrapped(body, columns);
    let lines = all.lines().count();
    if lines <= rows {
        return all;
    }
    let short = wrapped(&without_other_sources(body), columns);
    let left_out = lines - short.lines().count();
    let help = help_lines(&short);
    let is_out_of_sight = help.end >= rows && help.len() < rows / 2;
    let (before, help) = match is_out_of_sight {
        true => without_lines(&short, help),
        false => (short, String::new()),
    };
    let rows = rows - help.lines().count();
    cut_further(&before, left_out, rows, "; m shows all") + &help
}

/// Returns the place of a report's first help: its line, and the lines that continue it.
fn help_lines(report: &str) -> Range<usize> {
    let lines: Vec<String> = report.lines().map(|line| strip_str(line).to_string()).collect();
    let Some(start) = lines.iter().position(|line| line.trim_start().starts_with("= help: ")) else {
        return 0..0;
    };
    let edge = " ".repeat(lines[start].find('=').unwrap_or(0) + 2);
    let rest = lines[start + 1..].iter().take_while(|line| line.starts_with(&edge));
    start..start + 1 + rest.count()
}

/// Moves some lines of a text to a text of their own.
fn without_lines(text: &str, moved: Range<usize>) -> (String, String) {
    let (mut kept, mut own) = (String::new(), String::new());
    for (index, line) in text.lines().enumerate() {
        let text = if moved.contains(&index) { &mut own } else { &mut kept };
        text.push_str(line);
        text.push('\n');
    }
    (kept, own)
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

    #[test]
    fn the_help_of_a_long_report_is_always_shown() {
        let report = "race\n --> own.rs:1:1\n  |\n1 | a();\n  | ^^^ written\n  |\n  = wait for it, and\n  = help: call wait before\n  = note: more\n";
        assert_eq!(fitting(report, 20, 20), wrapped(report, 20));
        let short = strip_str(&fitting(report, 20, 6)).to_string();
        assert_eq!(
            short,
            "race\n --> own.rs:1:1\n  |\n… 5 more lines; m shows all\n  = help: call wait\n    before\n"
        );
        // Where there is hardly any room, the problem is more important.
        let tiny = strip_str(&fitting(report, 20, 3)).to_string();
        assert_eq!(tiny, "race\n --> own.rs:1:1\n… 8 more lines; m shows all\n");
    }
}
