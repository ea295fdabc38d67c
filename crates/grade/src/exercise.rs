//! Grades one exercise of one submission.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use course::answers::{solution, starter};
use course::results::{Check, Line, Outcome, State, sha256};
use course::syllabus::{Course, Exercise};
use lab::Score;
use lab::check::{Judged, Serves, TestProgram, TimeLimits, judge, try_again};

use crate::answer::{Bench, Stopped, answer_files};
use crate::clean_course::CleanCourse;
use crate::limits::Limits;
use crate::sandbox::Sandbox;
use crate::submission::{Entry, Submission};

/// How many checks of an exercise run at a time. Most of their time, they wait.
const AT_A_TIME: usize = 4;
/// The name of the GPUs, which real ones have too. An answer that asks for the name doesn't learn that they are virtual.
const GPU: &str = "NVIDIA H100 80GB HBM3";

/// What grading needs.
pub(crate) struct Grader<'a> {
    pub(crate) root: &'a Path,
    pub(crate) course: &'a Course,
    pub(crate) clean: &'a CleanCourse,
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) limits: &'a Limits,
    /// How long a check may take.
    pub(crate) timeout: Duration,
    /// What has been graded, by exercise and content. Equal answers, such as those that several students took from the
    /// course, are graded once.
    pub(crate) graded: Mutex<BTreeMap<(String, String), Line>>,
}

impl<'a> Grader<'a> {
    /// Creates a place to build answers.
    pub(crate) fn bench(&self, folder: &Path) -> anyhow::Result<Bench> {
        Bench::new(folder, self.clean)
    }

    /// Grades an exercise.
    ///
    /// # Errors
    /// Fails if the course can't be read.
    pub(crate) fn grade(
        &self,
        bench: &Bench,
        submission: &Submission,
        exercise: &Exercise,
    ) -> anyhow::Result<Line> {
        let entry = submission.sources.get(&Path::new("modules").join(&exercise.file));
        let mut graded = Line {
            id: exercise.id.clone(),
            state: State::Missing,
            reason: None,
            checks: Vec::new(),
            hints: submission.hints.get(&exercise.id).copied().unwrap_or(0),
            is_solution: None,
            sha256: None,
            score: None,
        };
        let text = match entry {
            None => return Ok(graded),
            Some(Entry::Refused(why)) => {
                (graded.state, graded.reason) = (State::Refused, Some(why.clone()));
                return Ok(graded);
            }
            Some(Entry::Text(text)) => text,
        };
        graded.sha256 = Some(sha256(text));
        let is_text = |other: &str| String::from_utf8_lossy(text).lines().eq(other.lines());
        graded.is_solution = Some(is_text(&solution(self.root, exercise)?));
        if is_text(&starter(self.root, exercise)?) {
            graded.state = State::Unbegun;
            return Ok(graded);
        }
        let answer = content(answer_files(self.clean, submission, exercise));
        if let Some(same) = lock(&self.graded).get(&(exercise.id.clone(), answer.clone())) {
            return Ok(Line { hints: graded.hints, ..same.clone() });
        }
        let build = || bench.build(self.course, self.clean, self.sandbox, self.limits, submission, exercise);
        match try_again(build, |built| matches!(built, Err(Stopped::Unable(_)))) {
            Err(stopped) => {
                let (state, reason) = match stopped {
                    Stopped::Broken(why) => (State::Broken, why),
                    Stopped::Refused(why) => (State::Refused, why),
                    Stopped::Unable(why) => (State::Unable, why),
                };
                (graded.state, graded.reason) = (state, Some(reason));
            }
            Ok(program) => {
                let (checks, score) = self.check(bench, exercise, &program);
                graded.checks = checks;
                graded.state = state(&graded.checks);
                graded.score = score.filter(|_| graded.state == State::Right);
                let unable = graded.checks.iter().find(|check| check.outcome == Outcome::Unable);
                if graded.state == State::Unable {
                    graded.reason = unable.map(|check| format!("{}: {}", check.name, check.message));
                }
            }
        }
        if graded.state != State::Unable {
            lock(&self.graded).insert((exercise.id.clone(), answer), graded.clone());
        }
        Ok(graded)
    }

    /// Runs the checks of an exercise, several at a time. Once one takes too long, no further check is started. Returns the
    /// checks, and the score if one of them measures it.
    fn check(&self, bench: &Bench, exercise: &Exercise, program: &Path) -> (Vec<Check>, Option<Score>) {
        let filter = exercise.filter();
        let all = &self.clean.modules[exercise.folder()].checks;
        let names: Vec<&String> = all.iter().filter(|name| name.starts_with(&filter)).collect();
        let checked: Vec<Check> = names.iter().map(|name| skipped(name)).collect();
        let (checked, next) = (Mutex::new(checked), Mutex::new(0..names.len()));
        let score = Mutex::new(None);
        let shared = self.start(Serves::Several, bench, exercise, program);
        let is_stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..AT_A_TIME.min(names.len()) {
                scope.spawn(|| {
                    while !is_stopped.load(Ordering::Relaxed)
                        && let Some(index) = lock(&next).next()
                    {
                        let alone = || self.start(Serves::One, bench, exercise, program);
                        let (one, own) = self.check_one(&shared, alone, names[index]);
                        if own.is_some() {
                            *lock(&score) = own;
                        }
                        if one.outcome == Outcome::Failed && TimeLimits::ended(&one.message) {
                            is_stopped.store(true, Ordering::Relaxed);
                        }
                        lock(&checked)[index] = one;
                    }
                });
            }
        });
        let score = score.into_inner().unwrap_or_else(PoisonError::into_inner);
        (checked.into_inner().unwrap_or_else(PoisonError::into_inner), score)
    }

    /// Runs one check in a fork of the program that all checks share. If that program can't run it, the reason may be another
    /// check, so a program of its own does.
    fn check_one(
        &self,
        shared: &anyhow::Result<Watched<'_>>,
        alone: impl Fn() -> anyhow::Result<Watched<'a>>,
        name: &str,
    ) -> (Check, Option<Score>) {
        let started = Instant::now();
        let is_unable = |judged: &Judged| matches!(judged, Judged::Unable(_));
        let in_shared = shared.as_ref().map(|shared| judge(&shared.program, name, self.timeout));
        let judged = match in_shared {
            Ok(judged) if !is_unable(&judged) => judged,
            _ => try_again(|| self.judge_alone(&alone, name), is_unable),
        };
        let (outcome, message, score) = match judged {
            Judged::Passed(_, score) => (Outcome::Passed, String::new(), score),
            Judged::Failed(message) => (Outcome::Failed, message, None),
            Judged::Ignored(reason) => (Outcome::Ignored, reason, None),
            Judged::Unable(reason) => (Outcome::Unable, reason, None),
        };
        let seconds = Some(started.elapsed().as_secs_f64());
        (Check { name: name.to_owned(), outcome, message, seconds }, score)
    }

    fn judge_alone(&self, start: impl Fn() -> anyhow::Result<Watched<'a>>, name: &str) -> Judged {
        let program = match start() {
            Ok(program) => program,
            Err(error) => return Judged::Unable(format!("{error:#}")),
        };
        let judged = judge(&program.program, name, self.timeout);
        match program.excess() {
            Some(excess) => Judged::Failed(format!("the check was stopped: {excess}")),
            None => judged,
        }
    }

    /// Starts an answer's program in the sandbox.
    fn start(
        &self,
        serves: Serves,
        bench: &Bench,
        exercise: &Exercise,
        program: &Path,
    ) -> anyhow::Result<Watched<'a>> {
        let module = bench.module(exercise);
        let readable = [bench.course.as_path(), &bench.out, &bench.libraries];
        let mut command = self.sandbox.command(program, &readable, &[], &module);
        command
            .env("LD_LIBRARY_PATH", &bench.libraries)
            .env("LAB_TIER", "virtual")
            .env("RUST_BACKTRACE", "0")
            .env("VIRTUAL_GPU_NAME", GPU)
            // Ranks in threads of one process join within milliseconds of each other.
            .env("VIRTUAL_GPU_BOOTSTRAP_TIMEOUT", "2");
        let program = TestProgram::start(command, serves, true)?;
        self.limits.watch(program.id());
        Ok(Watched { program, limits: self.limits })
    }
}

/// A program that is watched as long as it runs.
struct Watched<'a> {
    program: TestProgram,
    limits: &'a Limits,
}

impl Watched<'_> {
    /// Returns what the program and all that it has started took too much of, if that is why they were ended.
    fn excess(self) -> Option<String> {
        self.limits.forget(self.program.id())
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        // The program is ended only after this, so its number is still its own.
        self.limits.forget(self.program.id());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a hash of the files of an answer.
fn content<'a>(files: impl Iterator<Item = (&'a Path, &'a [u8])>) -> String {
    let hashes: Vec<String> =
        files.map(|(path, text)| format!("{} {}\n", sha256(text), path.display())).collect();
    sha256(hashes.concat().as_bytes())
}

fn skipped(name: &str) -> Check {
    Check {
        name: name.to_owned(),
        outcome: Outcome::Skipped,
        message: "not run, because an earlier check took too long".to_owned(),
        seconds: None,
    }
}

/// Returns the state of an exercise whose checks ended like this.
fn state(checks: &[Check]) -> State {
    let has = |outcome| checks.iter().any(|check| check.outcome == outcome);
    if has(Outcome::Failed) {
        State::Wrong
    } else if has(Outcome::Unable) || has(Outcome::Skipped) || checks.is_empty() {
        State::Unable
    } else if has(Outcome::Passed) {
        State::Right
    } else {
        State::Ignored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_equal_if_all_their_files_are() {
        let one = [(Path::new("a.rs"), &b"fn a() {}"[..]), (Path::new("b.rs"), b"")];
        let content = |files: &[(&'static Path, &'static [u8])]| content(files.iter().copied());
        assert_eq!(content(&one), content(&one.clone()));
        assert_ne!(content(&one), content(&one[..1]));
        assert_ne!(content(&one), content(&[one[0], (Path::new("c.rs"), b"")]));
        assert_ne!(content(&one), content(&[one[0], (Path::new("b.rs"), b" ")]));
    }

    #[test]
    fn only_checks_that_ran_decide() {
        let state = |outcomes: &[Outcome]| {
            let checks: Vec<Check> =
                outcomes.iter().map(|&outcome| Check { outcome, ..skipped("a") }).collect();
            super::state(&checks)
        };
        assert_eq!(state(&[Outcome::Passed, Outcome::Ignored]), State::Right);
        assert_eq!(state(&[Outcome::Passed, Outcome::Failed, Outcome::Unable]), State::Wrong);
        assert_eq!(state(&[Outcome::Passed, Outcome::Unable]), State::Unable);
        assert_eq!(state(&[Outcome::Ignored]), State::Ignored);
        assert_eq!(state(&[]), State::Unable);
    }
}
