//! `cargo course watch`: checks the current exercise on each save, and takes single keys.

use std::fmt::Write as _;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anstream::adapter::strip_str;
use anyhow::{Context, anyhow};
use course::answers::compare;
use course::checks::{self, Stop, Verdict};
use course::progress::{State, read_answer};
use course::syllabus::{Exercise, Module};
use crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::terminal::{self, Clear, ClearType, disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, execute};
use notify::{RecursiveMode, Watcher};

use crate::overview;
use crate::session::{BAD, DIM, GOOD, STRONG, Session, details, headline, print};
use crate::work::coloured;

/// Editors save in several steps, and not all at once.
const QUIET: Duration = Duration::from_millis(40);

const KEYS: &str = "h hint · r run · n next · l list · d what changed · q quit";

/// What the loop waits for.
enum Happened {
    Key(KeyCode),
    /// Ctrl-Z.
    Suspend,
    /// The terminal has another size.
    Resized,
    /// A file of a student's module was written.
    Saved(PathBuf),
    /// The check of this number is done.
    Checked(usize, anyhow::Result<Verdict>),
    /// The keyboard or the watcher is gone.
    Lost(anyhow::Error),
}

/// A terminal that gives single keys, until this goes.
struct RawMode;

impl RawMode {
    fn new() -> anyhow::Result<Self> {
        enable_raw_mode().context("this terminal gives no single keys")?;
        Ok(Self)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // There is nothing else to do for a terminal that is gone.
        let _ = disable_raw_mode();
    }
}

/// Stops, as Ctrl-Z stops other programs, until the shell goes on with it.
fn suspend() -> anyhow::Result<()> {
    disable_raw_mode()?;
    rustix::process::kill_current_process_group(rustix::process::Signal::TSTP)?;
    Ok(enable_raw_mode()?)
}

/// What stands below the exercise.
enum Below {
    Checking,
    Verdict(Verdict),
    Text(String),
    /// Why there is no verdict.
    Error(anyhow::Error),
}

struct Watch<'a> {
    session: Session<'a>,
    exercise: &'a Exercise,
    below: Below,
    /// The answer that is being checked or was last, and the one before it.
    answer: String,
    before: Option<String>,
    /// The number of the check that counts; those before it were stopped.
    check: usize,
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
        below: Below::Checking,
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

/// Watches the folders, not the files: many editors put a new file in the place of the old one.
fn watcher(folder: &Path, happened: Sender<Happened>) -> anyhow::Result<impl Watcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let told = match event {
            Ok(event) if event.kind.is_access() => return,
            Ok(event) => {
                event.paths.into_iter().filter(|path| is_source(path)).map(Happened::Saved).collect()
            }
            Err(error) => vec![Happened::Lost(error.into())],
        };
        // Nobody listens any more when the student has quit.
        let _ = told.into_iter().try_for_each(|told| happened.send(told));
    })?;
    watcher
        .watch(folder, RecursiveMode::Recursive)
        .with_context(|| format!("can't watch {}", folder.display()))?;
    Ok(watcher)
}

/// Editors keep files of their own beside it, such as `.#devices.rs`.
fn is_source(path: &Path) -> bool {
    let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !is_hidden && path.extension().is_some_and(|extension| extension == "rs")
}

fn read_keys(happened: Sender<Happened>) {
    std::thread::spawn(move || {
        loop {
            let told = match event::read() {
                Ok(event::Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    match (key.modifiers.contains(KeyModifiers::CONTROL), key.code) {
                        (true, KeyCode::Char('c' | 'd')) => Happened::Key(KeyCode::Char('q')),
                        (true, KeyCode::Char('z')) => Happened::Suspend,
                        (true, _) => continue,
                        (false, code) => Happened::Key(code),
                    }
                }
                Ok(event::Event::Resize(..)) => Happened::Resized,
                Ok(_) => continue,
                Err(error) => Happened::Lost(error.into()),
            };
            let is_lost = matches!(told, Happened::Lost(_));
            if happened.send(told).is_err() || is_lost {
                return;
            }
        }
    });
}

impl<'a> Watch<'a> {
    fn listen(&mut self, events: &Receiver<Happened>) -> anyhow::Result<()> {
        loop {
            self.draw()?;
            match events.recv()? {
                Happened::Key(KeyCode::Char('q')) => return Ok(()),
                Happened::Key(KeyCode::Char(key)) => self.press(key)?,
                Happened::Key(_) | Happened::Resized => {}
                Happened::Suspend => suspend()?,
                Happened::Saved(path) => {
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
                    others
                        .into_iter()
                        .try_for_each(|other| self.happened.send(other))
                        .map_err(|_| anyhow!("closed"))?;
                    if saved.iter().any(|path| self.concerns(path)) {
                        self.start_check()?;
                    }
                }
                Happened::Checked(check, Ok(verdict)) if check == self.check => {
                    self.session.progress.note(self.exercise, self.answer.clone(), &verdict);
                    self.session.keep();
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

    fn press(&mut self, key: char) -> anyhow::Result<()> {
        match key {
            'h' => {
                self.below = Below::Text(overview::hint(&mut self.session, Some(&self.exercise.id), None)?)
            }
            'l' => self.below = Below::Text(overview::list(&self.session)?),
            'd' => {
                let changes = compare(self.before.as_deref().unwrap_or_default(), &self.answer);
                self.below = Below::Text(match (&self.before, changes.is_empty()) {
                    (Some(_), false) => format!("Since the version before:\n{}", coloured(&changes)),
                    _ => "Nothing has changed yet.\n".to_owned(),
                });
            }
            'r' => self.start_check()?,
            'n' => match self.next()? {
                Some(next) => {
                    self.exercise = next;
                    self.before = self.session.progress.last_checked(next).map(str::to_owned);
                    self.answer = String::new();
                    self.start_check()?;
                }
                None if self.session.state(self.exercise)? == State::Right => {
                    self.below = Below::Text("Every exercise is right.\n".to_owned());
                }
                None => self.below = Below::Text("Every other exercise is right.\n".to_owned()),
            },
            _ => {}
        }
        Ok(())
    }

    /// The first exercise that is not right, other than the current one; round and round.
    fn next(&self) -> anyhow::Result<Option<&'a Exercise>> {
        let all = &self.session.course.exercises;
        let at = all.iter().position(|exercise| exercise.id == self.exercise.id).unwrap_or(0);
        for exercise in all[at + 1..].iter().chain(&all[..at]) {
            if self.session.state(exercise)? != State::Right {
                return Ok(Some(exercise));
            }
        }
        Ok(None)
    }

    /// Whether a saved file may change the verdict: the answer, if it is another one than that which is being checked, or a file
    /// that the answer may build on.
    fn concerns(&self, saved: &Path) -> bool {
        let is_open = matches!(self.below, Below::Error(_) | Below::Verdict(Verdict::Broken(_)));
        let is_same =
            || read_answer(self.session.root, self.exercise).is_ok_and(|answer| answer == self.answer);
        is_open || saved != self.exercise.starter(self.session.root) || !is_same()
    }

    /// Stops the check that runs, and starts one of the file as it is.
    fn start_check(&mut self) -> anyhow::Result<()> {
        self.stop.stop();
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
        self.below = Below::Checking;
        let (root, exercise) = (self.session.root.to_owned(), self.exercise.clone());
        let module = self.session.course.module(exercise.folder())?.clone();
        let (check, stop, happened) = (self.check, Arc::clone(&self.stop), self.happened.clone());
        std::thread::spawn(move || {
            let verdict = check_one(&root, &module, &exercise, &stop);
            // The student may have quit.
            let _ = happened.send(Happened::Checked(check, verdict));
        });
        Ok(())
    }

    fn draw(&self) -> anyhow::Result<()> {
        let columns = terminal::size().map_or(0, |(columns, _)| usize::from(columns));
        // A terminal that doesn't say how wide it is.
        let columns = if columns == 0 { 80 } else { columns };
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
        let mut out = anstream::stdout().lock();
        if std::env::var_os("TERM").is_none_or(|name| name != "dumb") {
            execute!(
                std::io::stdout(),
                Clear(ClearType::Purge),
                Clear(ClearType::All),
                cursor::MoveTo(0, 0)
            )?;
        }
        out.write_all(text.replace('\n', "\r\n").as_bytes())?;
        out.flush()?;
        Ok(())
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

fn check_one(root: &Path, module: &Module, exercise: &Exercise, stop: &Stop) -> anyhow::Result<Verdict> {
    match checks::build(root, module, true, stop)? {
        Err(errors) => Ok(Verdict::Broken(errors)),
        Ok(tests) => checks::verdict(exercise, &tests.run(&exercise.filter(), stop)?),
    }
}

/// What a file says of itself at its head: its paragraphs, each in one line, and the lines of what is set.
fn contract(source: &str) -> Vec<String> {
    let head = source.lines().map_while(|line| line.strip_prefix("//!"));
    let mut paragraphs: Vec<String> = Vec::new();
    let (mut is_set, mut goes_on) = (false, false);
    for line in head.map(|line| line.strip_prefix(' ').unwrap_or(line)) {
        let is_fence = line.starts_with("```");
        is_set ^= is_fence;
        match paragraphs.last_mut() {
            Some(last) if goes_on && !is_fence && !line.is_empty() => {
                last.push(' ');
                last.push_str(line);
            }
            _ => paragraphs.push(line.to_owned()),
        }
        goes_on = !is_set && !is_fence && !line.is_empty();
    }
    paragraphs
}

/// A text whose lines are at most so many columns wide where they can be broken at a space. What they start with stays.
fn wrapped(text: &str, columns: usize) -> String {
    let width = |text: &str| strip_str(text).to_string().chars().count();
    let mut wrapped = String::new();
    for line in text.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let mut used = 0;
        for (index, word) in line[indent.len()..].split(' ').enumerate() {
            if index == 0 {
                wrapped.push_str(indent);
                used = indent.len();
            } else if used + 1 + width(word) > columns {
                wrapped.push('\n');
                wrapped.push_str(indent);
                used = indent.len();
            } else {
                wrapped.push(' ');
                used += 1;
            }
            wrapped.push_str(word);
            used += width(word);
        }
        wrapped.push('\n');
    }
    wrapped
}

/// A path that terminals open on a click (OSC 8).
fn link(root: &Path, path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte);
    let mut address = String::new();
    for &byte in root.join(path).as_os_str().as_bytes() {
        match plain(byte) {
            true => address.push(char::from(byte)),
            false => address.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("\x1b]8;;file://{address}\x1b\\{}\x1b]8;;\x1b\\", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_broken_where_the_terminal_ends() {
        let source =
            "//! One two\n//! three.\n//!\n//! ```text\n//! a  b\n//! c\n//! ```\n//! End.\n\n//! no more\n";
        assert_eq!(contract(source), ["One two three.", "", "```text", "a  b", "c", "```", "End."]);
        assert_eq!(wrapped("  One two three.\n\nfour\n", 9), "  One two\n  three.\n\nfour\n");
        assert_eq!(wrapped("\u{1b}[1mOne\u{1b}[0m two", 7), "\u{1b}[1mOne\u{1b}[0m two\n");
        assert_eq!(wrapped("unbreakable", 4), "unbreakable\n");
    }

    #[test]
    fn an_address_has_no_blank() {
        let link = link(Path::new("/a b/ü"), Path::new("x.rs"));
        assert_eq!(link, "\x1b]8;;file:///a%20b/%C3%BC/x.rs\x1b\\x.rs\x1b]8;;\x1b\\");
    }
}
