//! `cargo course watch`: checks the current exercise after each save, and responds to single keys.

mod events;
mod screen;
mod terminal;
pub(crate) mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use course::answers::{compare, has_solutions};
use course::checks::{self, Options, Stop, Verdict};
use course::progress::{self, State, read_answer};
use course::syllabus::{Exercise, Module};
use crossterm::event::KeyCode;
use lab::timeline::Chart;

use crate::files::{colored, with_solution};
use crate::session::{Session, print};
use crate::{discuss, overview};
use events::{Happened, read_keys, watcher};
use terminal::{RawMode, suspend};

/// How long to wait for further changes, because editors save in several steps.
const QUIET: Duration = Duration::from_millis(40);

/// How often the elapsed seconds are updated while something is running.
const TICK: Duration = Duration::from_secs(1);

/// The content below the exercise.
enum Below {
    /// The task that is running, and its start.
    Checking(String, Instant),
    Verdict(Verdict),
    /// The reason why there is no verdict.
    Error(anyhow::Error),
}

struct Watch<'a> {
    session: Session<'a>,
    exercise: &'a Exercise,
    below: Below,
    /// A text that the student asked for. It covers what is below until `q`, or until the next check.
    page: Option<String>,
    /// The answer that is being checked or was checked last, and the answer before that.
    answer: String,
    before: Option<String>,
    /// The number of the current check; earlier checks were stopped.
    check: usize,
    /// The timeline of the streams for the last verdict, if there is one.
    chart: Option<Chart>,
    /// Whether a long text is shown completely, even if it doesn't fit on the screen.
    shows_all: bool,
    stop: Arc<Stop>,
    happened: Sender<Happened>,
}

/// Runs until the student quits.
pub(crate) fn run(session: Session, id: Option<&str>) -> anyhow::Result<ExitCode> {
    let Some(exercise) = id.map(|id| session.course.exercise(id)).transpose()?.or(session.next()?) else {
        print(&overview::show(&session)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let (happened, events) = channel();
    let modules = session.root.join("modules");
    let _watcher = watcher(&modules, happened.clone())?;
    let raw_mode = RawMode::new()?;
    read_keys(happened.clone());
    let mut watch = Watch {
        exercise,
        below: Below::building(),
        page: None,
        chart: None,
        shows_all: false,
        answer: String::new(),
        before: session.progress.last_checked(exercise).map(str::to_owned),
        check: 0,
        stop: Arc::default(),
        happened,
        session,
    };
    watch.start_check()?;
    let ended = watch.listen(&events);
    watch.stop.stop();
    drop(raw_mode);
    print("\n")?;
    ended.map(|()| ExitCode::SUCCESS)
}

impl<'a> Watch<'a> {
    fn listen(&mut self, events: &Receiver<Happened>) -> anyhow::Result<()> {
        loop {
            self.draw()?;
            let event = match self.below {
                Below::Checking(..) => match events.recv_timeout(TICK) {
                    Err(RecvTimeoutError::Timeout) => continue,
                    event => event?,
                },
                _ => events.recv()?,
            };
            if !matches!(event, Happened::Resized | Happened::Key(KeyCode::Char('m'))) {
                self.shows_all = false;
            }
            match event {
                Happened::Key(KeyCode::Char('q')) if self.page.take().is_some() => {}
                Happened::Key(KeyCode::Char('q')) | Happened::Quit => return Ok(()),
                Happened::Key(KeyCode::Char(key)) => self.press(key)?,
                Happened::Key(_) | Happened::Resized => {}
                Happened::Suspend => suspend()?,
                Happened::Saved(path) => {
                    let saved = self.all_saved(path, events)?;
                    if saved.iter().any(|path| self.concerns(path)) {
                        self.start_check()?;
                    }
                }
                Happened::Running(check, name) if check == self.check => {
                    self.below = Below::Checking(format!("checking {name}"), Instant::now());
                }
                Happened::Running(..) => {}
                Happened::Checked(check, Ok(verdict)) if check == self.check => {
                    self.session.progress.note(self.exercise, self.answer.clone(), &verdict);
                    self.session.keep();
                    self.chart = checks::timeline(self.session.root, self.exercise, &verdict);
                    self.below = Below::Verdict(verdict);
                }
                Happened::Checked(check, Err(error)) if check == self.check => {
                    self.below = Below::Error(error);
                }
                Happened::Checked(..) => {}
                Happened::Lost(error) => return Err(error),
            }
        }
    }

    /// Collects all files of one save, starting with `path`. Other events that arrive in the meantime are sent again.
    fn all_saved(&self, path: PathBuf, events: &Receiver<Happened>) -> anyhow::Result<Vec<PathBuf>> {
        let mut saved = vec![path];
        let mut others = Vec::new();
        loop {
            match events.recv_timeout(QUIET) {
                Ok(Happened::Saved(path)) => saved.push(path),
                Ok(other) => others.push(other),
                Err(RecvTimeoutError::Timeout) => break,
                Err(error) => return Err(error.into()),
            }
        }
        others.into_iter().try_for_each(|other| self.happened.send(other)).map_err(|_| anyhow!("closed"))?;
        Ok(saved)
    }

    fn press(&mut self, key: char) -> anyhow::Result<()> {
        match key {
            'h' => {
                let hint = overview::hint(&mut self.session, Some(&self.exercise.id), None, true)?;
                self.page = Some(hint);
            }
            'l' => {
                let columns = terminal::size().0;
                self.page = Some(overview::list(&self.session, Some(self.exercise), columns)?);
            }
            'm' => self.shows_all = !self.shows_all,
            'a' => {
                let page = discuss::show(&self.session, self.exercise, false);
                self.open(page);
            }
            's' if has_solutions(self.session.root) => {
                self.page = Some(with_solution(&self.session, self.exercise)?)
            }
            't' => {
                let kept = match &self.chart {
                    Some(chart) => keep(self.session.root, self.exercise, chart),
                    None => Ok("There is no timeline for this run.\n".to_owned()),
                };
                self.open(kept);
            }
            'd' => {
                let changes = compare(self.before.as_deref().unwrap_or_default(), &self.answer);
                self.page = Some(match (&self.before, changes.is_empty()) {
                    (Some(_), false) => format!("Since the version before:\n{}", colored(&changes)),
                    _ => "Nothing has changed yet.\n".to_owned(),
                });
            }
            'r' => self.start_check()?,
            'n' => match self.next()? {
                Some(next) => {
                    self.exercise = next;
                    self.session.progress.set_position(next);
                    self.session.keep();
                    self.before = self.session.progress.last_checked(next).map(str::to_owned);
                    self.answer = String::new();
                    self.start_check()?;
                }
                None if self.session.state(self.exercise)? == State::Right => {
                    self.page = Some(overview::finale(&self.session)?);
                }
                None => self.page = Some("Every other exercise is right.\n".to_owned()),
            },
            other => self.page = Some(screen::keys_page(self.session.root, other)),
        }
        Ok(())
    }

    /// Shows a page, or why there is none.
    fn open(&mut self, page: anyhow::Result<String>) {
        self.page = Some(page.unwrap_or_else(|error| screen::error_text(self.session.root, &error)));
    }

    /// Returns the next exercise that is not right, other than the current one.
    fn next(&mut self) -> anyhow::Result<Option<&'a Exercise>> {
        let all = self.session.exercises()?;
        let at = all.iter().position(|exercise| exercise.id == self.exercise.id);
        // After an exercise off the path, go on with the path's first one.
        if let Some(start) = all.get(at.map_or(0, |at| (at + 1) % all.len())) {
            self.session.progress.set_position(start);
        }
        let next = self.session.next()?;
        self.session.progress.set_position(self.exercise);
        Ok(next.filter(|next| next.id != self.exercise.id))
    }

    /// Returns whether a saved file may change the verdict: either it is an answer other than the one being checked, or
    /// it is a file on which the answer may build.
    fn concerns(&self, saved: &Path) -> bool {
        let is_open = matches!(self.below, Below::Error(_) | Below::Verdict(Verdict::Broken(_)));
        let is_same =
            || read_answer(self.session.root, self.exercise).is_ok_and(|answer| answer == self.answer);
        is_open || saved != self.exercise.starter(self.session.root) || !is_same()
    }

    /// Stops the running check, and starts a check of the current file.
    fn start_check(&mut self) -> anyhow::Result<()> {
        self.stop.stop();
        self.page = None;
        self.chart = None;
        self.stop = Arc::default();
        self.check += 1;
        let answer = match read_answer(self.session.root, self.exercise) {
            Ok(answer) => answer,
            Err(error) => {
                self.below = Below::Error(error);
                return Ok(());
            }
        };
        if answer != self.answer {
            let last = std::mem::replace(&mut self.answer, answer);
            if !last.is_empty() {
                self.before = Some(last);
            }
        }
        self.below = Below::building();
        let (root, exercise) = (self.session.root.to_owned(), self.exercise.clone());
        let module = self.session.course.module(exercise.folder())?.clone();
        let (check, stop, happened) = (self.check, Arc::clone(&self.stop), self.happened.clone());
        let columns = terminal::size().0;
        std::thread::spawn(move || {
            let running = |name: &str| {
                // The student may have quit.
                let _ = happened.send(Happened::Running(check, name.to_owned()));
            };
            let verdict = check_one(&root, &module, &exercise, columns, &stop, running);
            // The student may have quit.
            let _ = happened.send(Happened::Checked(check, verdict));
        });
        Ok(())
    }
}

/// Writes a timeline to files that a student can open, and returns how to open them.
fn keep(root: &Path, exercise: &Exercise, chart: &Chart) -> anyhow::Result<String> {
    let folder = progress::folder(root).join("timelines");
    std::fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let file = |ending: &str| folder.join(format!("{}.{ending}", exercise.id.replace('/', "_")));
    let (picture, trace) = (file("svg"), file("trace.json"));
    chart.write(Some(&trace), Some(&picture))?;
    let shown = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
    Ok(format!(
        "The timeline of {}:\n\n  {}\n  a picture: open it in a browser\n\n  {}\n  a trace: choose \"Open trace file\" at \
         https://ui.perfetto.dev\n",
        chart.title,
        shown(&picture),
        shown(&trace)
    ))
}

fn check_one(
    root: &Path,
    module: &Module,
    exercise: &Exercise,
    columns: usize,
    stop: &Stop,
    mut running: impl FnMut(&str),
) -> anyhow::Result<Verdict> {
    match checks::build(root, module, Some(exercise), true, stop)? {
        Err(errors) => Ok(Verdict::Broken(errors)),
        Ok(tests) => {
            let folder = checks::timelines(root);
            let options = Options {
                running: &mut running,
                is_interactive: true,
                columns: Some(columns),
                timelines: Some(&folder),
                scores: None,
            };
            checks::verdict(exercise, &tests.run(&exercise.filter(), stop, options)?)
        }
    }
}

impl Below {
    fn building() -> Self {
        Self::Checking("building".to_owned(), Instant::now())
    }
}
