//! What the commands of a student share: the course, the progress, and how a verdict is shown.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use anstream::adapter::strip_str;
use anstyle::{AnsiColor, Style};
use anyhow::Context;
use course::checks::{self, Counts, Stop, Verdict};
use course::progress::{Progress, State, read_answer};
use course::syllabus::{Course, Exercise, Module};

pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const STRONG: Style = Style::new().bold();

/// A student at work.
pub(crate) struct Session<'a> {
    pub(crate) root: &'a Path,
    pub(crate) course: &'a Course,
    pub(crate) progress: Progress,
}

impl<'a> Session<'a> {
    /// Reads the progress. What is wrong with it is printed, and the course goes on.
    pub(crate) fn new(root: &'a Path, course: &'a Course) -> anyhow::Result<Self> {
        let (progress, told) = Progress::read(root)?;
        if let Some(told) = told {
            anstream::eprintln!("{BAD}warning:{BAD:#} {told}");
        }
        Ok(Self { root, course, progress })
    }

    pub(crate) fn state(&self, exercise: &Exercise) -> anyhow::Result<State> {
        self.progress.state(self.root, exercise)
    }

    /// The first exercise that is not known to be right.
    pub(crate) fn next(&self) -> anyhow::Result<Option<&'a Exercise>> {
        for exercise in &self.course.exercises {
            if self.state(exercise)? != State::Right {
                return Ok(Some(exercise));
            }
        }
        Ok(None)
    }

    /// The exercise of that id, or the next one.
    pub(crate) fn exercise(&self, id: Option<&str>) -> anyhow::Result<&'a Exercise> {
        match id {
            Some(id) => self.course.exercise(id),
            None => self.next()?.context("every exercise is right; name one"),
        }
    }

    /// The exercises of a module.
    pub(crate) fn of(&self, module: &Module) -> Vec<&'a Exercise> {
        self.course.exercises.iter().filter(|exercise| exercise.folder() == module.folder).collect()
    }

    /// Builds a module's checks and runs those of some of its exercises.
    pub(crate) fn check(
        &mut self,
        module: &Module,
        exercises: &[&'a Exercise],
    ) -> anyhow::Result<Vec<(&'a Exercise, Verdict)>> {
        // Where a file is missing, the compiler says so.
        let answers: Vec<_> =
            exercises.iter().map(|exercise| read_answer(self.root, exercise).ok()).collect();
        let stop = Stop::default();
        let verdicts = match checks::build(self.root, module, true, &stop)? {
            Err(errors) => exercises.iter().map(|_| Verdict::Broken(errors.clone())).collect(),
            Ok(tests) => {
                let filter = if let [only] = exercises { only.filter() } else { String::new() };
                let checked = tests.run(&filter, &stop)?;
                exercises
                    .iter()
                    .map(|exercise| checks::verdict(exercise, &checked))
                    .collect::<anyhow::Result<Vec<_>>>()?
            }
        };
        for ((exercise, verdict), answer) in exercises.iter().zip(&verdicts).zip(answers) {
            if let Some(answer) = answer {
                self.progress.note(exercise, answer, verdict);
            }
        }
        self.keep();
        Ok(exercises.iter().copied().zip(verdicts).collect())
    }

    /// Keeps the progress. Where that can't be done, the verdicts are still good.
    pub(crate) fn keep(&mut self) {
        if let Err(error) = self.progress.write() {
            anstream::eprintln!("{BAD}warning:{BAD:#} {error:#}");
        }
    }
}

/// Prints what a command has to say.
///
/// # Errors
/// It can't be written, and not because its reader, such as `head`, has enough.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("can't print"),
        _ => Ok(()),
    }
}

/// A verdict in one line.
pub(crate) fn headline(exercise: &Exercise, verdict: &Verdict) -> String {
    let id = &exercise.id;
    match verdict {
        Verdict::Passed(counts) => format!("{GOOD}{id} is right{GOOD:#}: {}", told(counts)),
        Verdict::Failed(counts, _) => format!("{BAD}{id} is not right yet{BAD:#}: {}", told(counts)),
        Verdict::Broken(_) => format!("{BAD}{id} can't be checked{BAD:#}: its module doesn't compile"),
        Verdict::Ignored(counts) => {
            let ranks = exercise.min_ranks;
            format!(
                "{id} can't be checked here: {} (they need {ranks} ranks; LAB_TIER=virtual has them)",
                told(counts)
            )
        }
    }
}

fn told(counts: &Counts) -> String {
    let Counts { passed, failed, ignored } = *counts;
    let checks = |count: usize| if count == 1 { "1 check".to_owned() } else { format!("{count} checks") };
    let parts = [(passed, "passed"), (failed, "failed"), (ignored, "can't run here")];
    let mut told = Vec::new();
    for (count, what) in parts.into_iter().filter(|part| part.0 > 0) {
        let count = if told.is_empty() { checks(count) } else { count.to_string() };
        told.push(format!("{count} {what}"));
    }
    told.join(", ")
}

/// The first lines of what may be very long.
fn shortened(message: &str) -> String {
    const MOST: usize = 100;
    let mut text = message.lines().take(MOST).collect::<Vec<_>>().join("\n");
    let more = message.lines().skip(MOST).count();
    if more > 0 {
        let _ = write!(text, "\n{DIM}… {more} more lines{DIM:#}");
    }
    text
}

/// What to look at first: the compiler's errors, or one check that failed.
pub(crate) fn details(exercise: &Exercise, verdict: &Verdict) -> String {
    let mut text = String::new();
    match verdict {
        Verdict::Broken(errors) => text.push_str(errors.trim_end()),
        Verdict::Failed(counts, _) => {
            if let Some(failure) = verdict.first_failure() {
                // What a check prints must not steer the terminal.
                let message = strip_str(&failure.message).to_string();
                let _ = write!(text, "{STRONG}{}{STRONG:#}\n{}", failure.check, shortened(&message));
            }
            if counts.failed > 1 {
                let _ = write!(text, "\n\n{DIM}the other failures: {}{DIM:#}", exercise.test_command());
            }
        }
        Verdict::Passed(_) | Verdict::Ignored(_) => return text,
    }
    text.push('\n');
    text
}
