//! `cargo course teach grade`: grades submissions. Each exercise is built and checked alone, in a clean copy of the
//! course and in a sandbox, so that one answer affects no other, nor the machine.

mod answer;
mod bounded;
mod clean_course;
mod compiler;
mod exercise;
mod inspect;
mod limits;
mod output;
mod pages;
mod ranking;
mod sandbox;
mod submission;

use std::collections::VecDeque;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, ensure};
use clap::Parser;
use course::results::{Line, State, Student};
use course::syllabus::{self, Course};
use indicatif::{ProgressBar, ProgressStyle};

use crate::clean_course::CleanCourse;
use crate::exercise::Grader;
use crate::limits::Limits;
use crate::sandbox::Sandbox;
use crate::submission::Submission;

/// Grade submissions: each exercise alone, in a sandbox without a network.
///
/// The results are grades.csv, grades.json, a page for each student, and index.html for the instructor.
#[derive(Parser)]
#[command(
    name = "cargo course teach grade",
    bin_name = "cargo course teach grade",
    after_help = "Example: cargo course teach grade class/ann class/bob.tar.gz https://example.org/zoe.git --to grades"
)]
struct Arguments {
    /// The submissions: a copy of the course or a .tar.gz, .tar, or .zip file of one, a Git URL to clone, or a folder of
    /// such copies and files. A student's name is that of the folder, file, or repository.
    #[arg(required = true)]
    places: Vec<String>,
    /// The folder for the results
    #[arg(long, default_value = "grades")]
    to: PathBuf,
    /// Grade only these exercises, such as init/devices
    #[arg(long, value_name = "ID", num_args = 1..)]
    only: Vec<String>,
    /// Grade only the exercises of a path, such as half-day
    #[arg(long, value_name = "NAME", conflicts_with = "only")]
    path: Option<String>,
    /// How many seconds a check may take
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
    /// Run the answers without a sandbox. They can then do whatever you can do on this machine.
    #[arg(long)]
    trust: bool,
}

fn main() -> ExitCode {
    // Cargo runs this program in place of the compiler while the clean course is built.
    if let Some(code) = compiler::record_if_asked() {
        return code;
    }
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let sandbox = Sandbox::find(arguments.trust)?;
    let root = syllabus::root()?;
    let course = Course::read(&root)?;
    let wanted = wanted(&course, &arguments.only, arguments.path.as_deref())?;
    ensure!(
        course::answers::has_solutions(&root),
        "this copy of the course has no solutions, and they are needed to grade; use the complete course"
    );
    let scratch =
        tempfile::Builder::new().prefix("ncclings-grade-").tempdir().context("a temporary folder")?;
    let submissions = submission::read_all(&root, &course, &arguments.places, scratch.path())?;

    eprintln!("building the course to grade with; the first time, this takes a minute or two");
    let clean = CleanCourse::build(&root, &course)?;
    let limits = Limits::start();
    let grader = Grader {
        root: &root,
        course: &course,
        clean: &clean,
        sandbox: &sandbox,
        limits: &limits,
        timeout: std::time::Duration::from_secs(arguments.timeout),
        graded: Mutex::default(),
    };
    let jobs: Vec<(usize, usize)> = wanted
        .iter()
        .flat_map(|&exercise| (0..submissions.len()).map(move |student| (student, exercise)))
        .collect();
    let graded = grade(&grader, &submissions, &jobs, scratch.path())?;

    let students = submissions.iter().enumerate().map(|(index, submission)| Student {
        name: submission.name.clone(),
        unused: submission.unused.clone(),
        exercises: jobs
            .iter()
            .zip(&graded)
            .filter(|((student, _), _)| *student == index)
            .map(|(_, graded)| graded.clone())
            .collect(),
    });
    let class = output::class(&root, sandbox.name(), students.collect());
    output::write(&root, &course, &class, &arguments.to)?;
    anstream::print!("{}", output::table(&class));
    anstream::println!("\nwrote {}", arguments.to.join("index.html").display());
    let is_judged = graded.iter().all(|graded| graded.state != State::Unable);
    Ok(if is_judged { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the places of the exercises to grade, in course order.
fn wanted(course: &Course, only: &[String], path: Option<&str>) -> anyhow::Result<Vec<usize>> {
    let mut ids =
        only.iter().map(|id| Ok(course.exercise(id)?.id.clone())).collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(path) = path {
        ids.extend(course.schedule(course.path(path)?).into_iter().flat_map(|part| part.step.exercises));
    }
    let is_wanted = |id: &String| ids.is_empty() || ids.contains(id);
    Ok((0..course.exercises.len()).filter(|&index| is_wanted(&course.exercises[index].id)).collect())
}

/// How many exercises the machine may fail to judge until grading stops.
const MOST_UNABLE: usize = 5;

/// The jobs that are left, by exercise. A worker stays with its exercise, because the compiler then has most of its work
/// done already.
struct Queue(VecDeque<Left>);

/// What is left of an exercise.
struct Left {
    exercise: usize,
    jobs: VecDeque<usize>,
    is_begun: bool,
}

impl Queue {
    fn of(jobs: &[(usize, usize)]) -> Self {
        let mut left: VecDeque<Left> = VecDeque::new();
        for (job, &(_, exercise)) in jobs.iter().enumerate() {
            match left.back_mut().filter(|last| last.exercise == exercise) {
                Some(last) => last.jobs.push_back(job),
                None => left.push_back(Left { exercise, jobs: VecDeque::from([job]), is_begun: false }),
            }
        }
        Self(left)
    }

    /// Returns the next job for a worker: of the last exercise, of one that no worker has begun, or of any.
    fn next(&mut self, last: Option<usize>) -> Option<usize> {
        let own = self.0.iter().position(|left| Some(left.exercise) == last);
        let at = own.or_else(|| self.0.iter().position(|left| !left.is_begun)).unwrap_or(0);
        let left = self.0.get_mut(at)?;
        left.is_begun = true;
        let job = left.jobs.pop_front();
        if left.jobs.is_empty() {
            self.0.remove(at);
        }
        job
    }
}

/// Grades all jobs, one on each core, and returns the results in the jobs' order.
fn grade(
    grader: &Grader<'_>,
    submissions: &[Submission],
    jobs: &[(usize, usize)],
    scratch: &std::path::Path,
) -> anyhow::Result<Vec<Line>> {
    let bar = ProgressBar::new(jobs.len() as u64);
    bar.set_style(ProgressStyle::with_template(
        "{bar:40} {pos}/{len} exercises, {elapsed} ({eta} left) {msg}",
    )?);
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let queue = Mutex::new(Queue::of(jobs));
    let results = Mutex::new(vec![None; jobs.len()]);
    let unable = AtomicUsize::new(0);
    thread::scope(|scope| -> anyhow::Result<()> {
        let workers: Vec<_> = (0..workers)
            .map(|number| {
                let (bar, queue, results, unable) = (&bar, &queue, &results, &unable);
                scope.spawn(move || -> anyhow::Result<()> {
                    let bench = grader.bench(&scratch.join(format!("worker-{number}")))?;
                    let mut last = None;
                    loop {
                        let job = queue.lock().unwrap_or_else(|error| error.into_inner()).next(last);
                        let Some(job) = job else { return Ok(()) };
                        let (student, exercise) = jobs[job];
                        if last.replace(exercise) != Some(exercise) {
                            bench.begin_exercise()?;
                        }
                        let (student, exercise) = (&submissions[student], &grader.course.exercises[exercise]);
                        bar.set_message(format!("{}: {}", student.name, exercise.id));
                        let graded = grader.grade(&bench, student, exercise)?;
                        if graded.state == State::Unable {
                            let count = unable.fetch_add(1, Ordering::Relaxed) + 1;
                            let why = graded.reason.as_deref().unwrap_or_default();
                            ensure!(count < MOST_UNABLE, "this machine can't grade: {} exercises could not be judged; for example, {}: {why}", count, graded.id);
                        }
                        results.lock().unwrap_or_else(|error| error.into_inner())[job] = Some(graded);
                        bar.inc(1);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a thread that grades panicked"))??;
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    let results = results.into_inner().unwrap_or_else(|error| error.into_inner());
    results.into_iter().collect::<Option<_>>().context("an exercise was not graded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_stays_with_its_exercise_until_nothing_else_is_left() {
        let jobs = [(0, 7), (1, 7), (2, 7), (0, 8), (1, 8)];
        let mut queue = Queue::of(&jobs);
        let mut next = |last| queue.next(last).map(|job| jobs[job]);
        assert_eq!(next(None), Some((0, 7)));
        assert_eq!(next(None), Some((0, 8)));
        assert_eq!(next(Some(8)), Some((1, 8)));
        assert_eq!(next(Some(7)), Some((1, 7)));
        assert_eq!(next(Some(8)), Some((2, 7)));
        assert_eq!(next(Some(7)), None);
    }
}
