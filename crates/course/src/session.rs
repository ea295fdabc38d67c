//! State shared by the student's commands: the course and the progress.

use std::io::{ErrorKind, IsTerminal, Write as _};
use std::path::Path;

use anstyle::{AnsiColor, Style};
use anyhow::Context;
use course::checks::{self, Checked, Options, Stop, Verdict};
use course::progress::{Progress, State, read_answer};
use course::syllabus::{Course, Exercise, Module, Route};

use crate::watch::text::wrapped;

pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const STRONG: Style = Style::new().bold();

/// An exercise whose checks have run.
pub(crate) struct Judged<'a> {
    pub(crate) exercise: &'a Exercise,
    pub(crate) verdict: Verdict,
    /// Its checks; none if its module doesn't compile.
    pub(crate) checked: Vec<Checked>,
}

/// A student working on the course.
pub(crate) struct Session<'a> {
    pub(crate) root: &'a Path,
    pub(crate) course: &'a Course,
    pub(crate) progress: Progress,
}

impl<'a> Session<'a> {
    /// Reads the progress. Problems with it are printed but do not stop the course.
    pub(crate) fn new(root: &'a Path, course: &'a Course) -> anyhow::Result<Self> {
        let (progress, told) = Progress::read(root)?;
        if let Some(told) = told {
            anstream::eprintln!("{BAD}warning:{BAD:#} {told}");
        }
        let session = Self { root, course, progress };
        if let Some(Err(error)) = session.progress.path().map(|name| course.path(&name).map(drop)) {
            anstream::eprintln!("{BAD}warning:{BAD:#} {error}; to follow one: cargo course path NAME");
        }
        Ok(session)
    }

    /// Returns the path that the student follows, or `None` if it is the whole course.
    pub(crate) fn path(&self) -> Option<&'a Route> {
        self.course.path(&self.progress.path()?).ok()
    }

    /// Returns the exercises that the student follows, in order: those of the chosen path, or those of the course.
    pub(crate) fn exercises(&self) -> anyhow::Result<Vec<&'a Exercise>> {
        match self.path() {
            Some(path) => self.course.exercises_of(path),
            None => Ok(self.course.exercises.iter().collect()),
        }
    }

    pub(crate) fn state(&self, exercise: &Exercise) -> anyhow::Result<State> {
        self.progress.state(self.root, exercise)
    }

    /// Returns the next exercise: the first exercise of the student's path that is not known to be right, starting at the
    /// student's last position. At the end of the path, the search continues from the beginning.
    pub(crate) fn next(&self) -> anyhow::Result<Option<&'a Exercise>> {
        let all = self.exercises()?;
        let is_at = |exercise: &&Exercise| self.progress.position() == Some(exercise.id.as_str());
        let at = all.iter().position(is_at).unwrap_or(0);
        for exercise in all[at..].iter().chain(&all[..at]) {
            if self.state(exercise)? != State::Right {
                return Ok(Some(exercise));
            }
        }
        Ok(None)
    }

    /// Returns the number of exercises of the student's path before this one that still have to be done, and the first of
    /// them. An answer that is written but has not been checked, such as an installed solution, doesn't count. There are
    /// none before an exercise off the path.
    pub(crate) fn left_before(&self, exercise: &Exercise) -> anyhow::Result<Option<(usize, &'a Exercise)>> {
        let all = self.exercises()?;
        let at = all.iter().position(|other| other.id == exercise.id).unwrap_or(0);
        let mut left = Vec::new();
        for earlier in &all[..at] {
            if !matches!(self.state(earlier)?, State::Right | State::Written) {
                left.push(*earlier);
            }
        }
        Ok(left.first().map(|first| (left.len(), *first)))
    }

    /// Returns how many of a module's exercises are known to be right, and the total.
    pub(crate) fn right_of(&self, module: &Module) -> anyhow::Result<(usize, usize)> {
        let exercises = self.of(module);
        let mut right = 0;
        for exercise in &exercises {
            right += usize::from(self.state(exercise)? == State::Right);
        }
        Ok((right, exercises.len()))
    }

    /// Returns the exercise with that id, or the next one.
    pub(crate) fn exercise(&self, id: Option<&str>) -> anyhow::Result<&'a Exercise> {
        match id {
            Some(id) => self.course.exercise(id),
            None => self.next()?.context("every exercise is solved; name the exercise that you want"),
        }
    }

    /// Returns a module's exercises.
    pub(crate) fn of(&self, module: &Module) -> Vec<&'a Exercise> {
        self.course.exercises.iter().filter(|exercise| exercise.folder() == module.folder).collect()
    }

    /// Builds a module's checks and runs all of them.
    pub(crate) fn check_module(&mut self, module: &Module) -> anyhow::Result<Vec<Judged<'a>>> {
        self.check(
            module,
            &self.of(module),
            Options {
                running: &mut |_| {},
                is_interactive: false,
                columns: columns(),
                timelines: None,
                scores: None,
            },
        )
    }

    /// Builds a module's checks and runs one exercise's checks, for a person who is waiting. The student's position
    /// moves to the exercise.
    pub(crate) fn check_one(
        &mut self,
        exercise: &'a Exercise,
        running: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Verdict> {
        let module = self.course.module(exercise.folder())?;
        self.progress.set_position(exercise);
        let folder = checks::timelines(self.root);
        let scores = checks::scores(self.root);
        let options = Options {
            running,
            is_interactive: true,
            columns: columns(),
            timelines: Some(&folder),
            scores: Some(&scores),
        };
        let verdicts = self.check(module, &[exercise], options)?;
        let verdict = verdicts.into_iter().map(|judged| judged.verdict).next();
        verdict.with_context(|| format!("{} was not checked", exercise.id))
    }

    fn check(
        &mut self,
        module: &Module,
        exercises: &[&'a Exercise],
        options: Options<'_>,
    ) -> anyhow::Result<Vec<Judged<'a>>> {
        // If a file is missing, the compiler reports it.
        let answers: Vec<_> =
            exercises.iter().map(|exercise| read_answer(self.root, exercise).ok()).collect();
        let stop = Stop::default();
        let only = if let [only] = exercises { Some(*only) } else { None };
        let verdicts = match checks::build(self.root, module, only, true, &stop)? {
            Err(errors) => {
                let broken = |&exercise| {
                    let verdict = Verdict::Broken(errors.clone());
                    Judged { exercise, verdict, checked: Vec::new() }
                };
                exercises.iter().map(broken).collect()
            }
            Ok(tests) => {
                let filter = only.map_or_else(String::new, Exercise::filter);
                let checked = tests.run(&filter, &stop, options)?;
                exercises
                    .iter()
                    .map(|&exercise| {
                        let (verdict, filter) = (checks::verdict(exercise, &checked)?, exercise.filter());
                        let own = checked.iter().filter(|check| check.name.starts_with(&filter));
                        Ok(Judged { exercise, verdict, checked: own.cloned().collect() })
                    })
                    .collect::<anyhow::Result<Vec<_>>>()?
            }
        };
        for (judged, answer) in verdicts.iter().zip(answers) {
            if let Some(answer) = answer {
                self.progress.note(judged.exercise, answer, &judged.verdict);
            }
        }
        self.keep();
        Ok(verdicts)
    }

    /// Returns the exercises of the student's path before a module, and the exercise where the student starts in it.
    pub(crate) fn before(
        &self,
        module: &Module,
    ) -> anyhow::Result<(Vec<&'a Exercise>, Option<&'a Exercise>)> {
        let mut all = self.exercises()?;
        if let Some(at) = all.iter().position(|exercise| exercise.folder() == module.folder) {
            let first = all[at];
            all.truncate(at);
            return Ok((all, Some(first)));
        }
        let is_earlier = |folder: &str| {
            let mut earlier = self.course.modules.iter().take_while(|other| other.folder != module.folder);
            earlier.any(|other| other.folder == folder)
        };
        all.retain(|exercise| is_earlier(exercise.folder()));
        Ok((all, self.of(module).first().copied()))
    }

    /// Moves the student to an exercise, if there is one.
    pub(crate) fn move_to(&mut self, exercise: Option<&Exercise>) {
        if let Some(exercise) = exercise {
            self.progress.set_position(exercise);
            self.keep();
        }
    }

    /// Saves the progress. If that fails, only a warning is printed, because the verdicts are still valid.
    pub(crate) fn keep(&mut self) {
        if let Err(error) = self.progress.write() {
            anstream::eprintln!("{BAD}warning:{BAD:#} {error:#}");
        }
    }
}

/// Returns the number of columns in the terminal, or `None` if the output goes elsewhere.
pub(crate) fn columns() -> Option<usize> {
    columns_of(&std::io::stdout())
}

/// Returns the number of columns in the terminal that shows a stream, or `None` if the stream goes elsewhere.
pub(crate) fn columns_of(stream: &impl IsTerminal) -> Option<usize> {
    let is_terminal = stream.is_terminal();
    is_terminal.then(crossterm::terminal::size)?.ok().map(|(columns, _)| columns.into())
}

/// Prints a command's output. In a terminal, lines that are too long are broken between words.
///
/// # Errors
/// See [`print_exactly`].
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_exactly(&columns().map_or_else(|| text.to_owned(), |columns| wrapped(text, columns)))
}

/// Prints text whose line breaks matter, such as a path or a table.
///
/// # Errors
/// Fails if it can't be written, unless its reader, such as `head`, has closed the pipe.
pub(crate) fn print_exactly(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("can't print"),
        _ => Ok(()),
    }
}
