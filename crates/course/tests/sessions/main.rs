//! Students working on the real course, with `cargo course watch` on a small and a large terminal. `tests/sessions`
//! stores what they see: a wrong answer, the solution, and the next exercise.
//!
//! `SNAPSHOTS=overwrite cargo xtask sessions` stores the current screens.

mod screen;
#[path = "../commands/terminal.rs"]
mod terminal;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use course::checks::{Counts, Verdict};
use course::mistakes;
use course::progress::{Progress, folder};
use course::starter::{renamed, starter};
use course::syllabus::{Course, Exercise};
use snapbox::assert::DEFAULT_ACTION_ENV;
use snapbox::{Assert, Data, IntoData};

use terminal::{Size, Terminal};

/// The variable for the folder where `cargo xtask` has built a copy of the course.
const FOLDER: &str = "COURSE_SESSIONS";

/// The variable for Cargo's target folder.
const TARGET: &str = "COURSE_SESSIONS_TARGET";

/// The size of the large terminal; the small one has the usual size.
const LARGE: Size = Size::of(120, 40);

/// The exercise whose first screen is the README's picture.
const PICTURED: &str = "grouping/events";

/// Words that are on every complete screen.
const KEYS: &str = "a look back";

/// The words that end every complete screen, without and with a page over it.
const LAST_WORDS: [&str; 2] = ["q quit", "q close"];

/// A student at an exercise, with all earlier exercises right.
struct Sitting {
    exercise: &'static str,
    first: First,
    /// The keys that the student presses after the first answer and after the solution.
    keys: [&'static str; 2],
    /// Variables for the checks. They ensure that thread scheduling does not determine which check exceeds a time
    /// limit.
    variables: &'static [(&'static str, &'static str)],
}

/// The student's first answer.
enum First {
    Starter,
    /// A mistake from tests/mistakes.
    Mistake(&'static str),
    /// The solution, with the first words replaced by the second.
    Instead(&'static str, &'static str),
}

impl Sitting {
    const fn new(exercise: &'static str, first: First) -> Self {
        Self { exercise, first, keys: ["", ""], variables: &[] }
    }
}

const SITTINGS: [Sitting; 10] = [
    // The compiler rejects it.
    Sitting::new(
        "init/devices",
        First::Instead("usize::try_from(CudaContext::device_count()?)?", "CudaContext::device_count()?"),
    ),
    // The program panics.
    Sitting::new(
        "init/kernel",
        First::Instead(
            "ensure!(y_len == x_len, \"y has {y_len} elements, but x has {x_len}\")",
            "assert_eq!(y_len, x_len)",
        ),
    ),
    // The virtual GPU reports a timeout.
    Sitting {
        variables: &[("RUST_TEST_THREADS", "1")],
        ..Sitting::new("init/rendezvous", First::Mistake("an_id_for_each_thread"))
    },
    // The starter is unchanged. The solution then completes its module.
    Sitting { keys: ["hhhlds", ""], ..Sitting::new("init/errors", First::Starter) },
    // A number is wrong.
    Sitting { keys: ["", "ds"], ..Sitting::new("collectives/all_reduce", First::Mistake("average_for_sum")) },
    // Several checks fail.
    Sitting::new("collectives/broadcast", First::Mistake("each_rank_for_itself")),
    // A deadlock.
    Sitting::new("grouping/group", First::Mistake("no_group")),
    // A data race.
    Sitting::new("grouping/events", First::Mistake("no_wait")),
    // The check exceeds its time limit.
    Sitting {
        variables: &[("RUST_TEST_THREADS", "1"), ("LAB_TIMEOUT", "4")],
        ..Sitting::new(
            "multi_gpu/conditional",
            First::Instead(
                "    Ok(answer != [0])",
                "    while answer != [0] {\n        std::thread::park();\n    }\n    Ok(false)",
            ),
        )
    },
    // This is the last exercise of the course.
    Sitting::new("overlap/analysis", First::Mistake("certain")),
];

/// A copy of the course, and the original course.
struct Place {
    root: PathBuf,
    own: PathBuf,
    course: Course,
}

impl Place {
    fn find() -> anyhow::Result<Self> {
        let root = PathBuf::from(std::env::var_os(FOLDER).with_context(|| {
            format!("{FOLDER} is not set: run `cargo xtask sessions`, which makes a copy of the course")
        })?);
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let course = Course::read(&root)?;
        Ok(Self { root, own, course })
    }

    fn solution(&self, exercise: &Exercise) -> anyhow::Result<String> {
        let path = self.own.join("solutions").join(&exercise.file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(renamed(exercise.folder(), &text))
    }

    fn wrong(&self, sitting: &Sitting, exercise: &Exercise) -> anyhow::Result<String> {
        let solution = self.solution(exercise)?;
        match sitting.first {
            First::Starter => starter(&solution),
            First::Mistake(name) => {
                let all = mistakes::read(&self.own)?;
                let is_it =
                    |one: &&mistakes::Mistake| one.patch.exercise == exercise.id && one.patch.name == name;
                all.iter().find(is_it).with_context(|| format!("no mistake {name}"))?.patch.apply(&solution)
            }
            First::Instead(right, wrong) => {
                anyhow::ensure!(solution.contains(right), "no `{right}` in {}", exercise.file);
                Ok(solution.replace(right, wrong))
            }
        }
    }

    /// Writes a student's file, unless it is unchanged, so that it is not built again.
    fn write(&self, exercise: &Exercise, text: &str) -> anyhow::Result<()> {
        let path = exercise.starter(&self.root);
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Makes every exercise before this one right, and leaves every exercise after it untouched.
    fn prepare(&self, sitting: &Sitting, exercise: &Exercise) -> anyhow::Result<()> {
        // The folder does not exist at first.
        let _ = fs::remove_dir_all(folder(&self.root));
        let (mut progress, _) = Progress::read(&self.root)?;
        let right = Verdict::Passed(Counts { passed: 1, ..Counts::default() });
        let mut is_before = true;
        for other in &self.course.exercises {
            is_before &= other.id != exercise.id;
            let solution = self.solution(other)?;
            let text = if is_before { solution } else { starter(&solution)? };
            if other.id == exercise.id {
                self.write(other, &self.wrong(sitting, other)?)?;
                continue;
            }
            self.write(other, &text)?;
            if is_before {
                progress.note(other, text, &right);
            }
        }
        progress.write()
    }

    /// Returns everything that the student sees on both terminals, and the first screen with its colors.
    fn watch(&self, sitting: &Sitting) -> anyhow::Result<(String, String)> {
        let exercise = self.course.exercise(sitting.exercise)?;
        self.prepare(sitting, exercise)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
        command.args(["watch", sitting.exercise]).current_dir(&self.root);
        command.envs([("TERM", "xterm-256color"), ("LAB_TIER", "virtual"), ("LAB_TIMEOUT", "60")]);
        command.envs(sitting.variables.iter().copied());
        // Use the same settings as the scratch workspace, so that nothing is built twice.
        command.env("CARGO_INCREMENTAL", "0");
        if let Some(target) = std::env::var_os(TARGET) {
            command.env("CARGO_TARGET_DIR", target);
        }
        for name in
            ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "VIRTUAL_GPU_COUNT", "VIRTUAL_GPU_TOPOLOGY"]
        {
            command.env_remove(name);
        }
        command.env("PATH", path_with_mpirun()?);
        let mut student = Student { terminal: Terminal::of_size(command, Size::SMALL), seen: String::new() };
        student.sees_verdict("the first answer", Size::SMALL);
        let styled = student.terminal.styled_screen();
        let [at_first, at_the_solution] = sitting.keys;
        student.press_all(at_first);
        student.terminal.resize(LARGE);
        // crossterm may lose a key that arrives together with a resize.
        student.terminal.shows(KEYS);
        student.terminal.press("r");
        student.sees_verdict("the first answer", LARGE);
        self.write(exercise, &self.solution(exercise)?)?;
        student.sees_verdict("the solution", LARGE);
        student.terminal.resize(Size::SMALL);
        student.sees("the solution", Size::SMALL);
        student.press_all(at_the_solution);
        student.terminal.press("n");
        match self.course.exercises.last().is_some_and(|last| last.id == exercise.id) {
            true => student.sees("the next exercise", Size::SMALL),
            false => student.sees_verdict("the next exercise", Size::SMALL),
        }
        student.terminal.resize(LARGE);
        student.sees("the next exercise", LARGE);
        if self.course.exercises.last().is_some_and(|last| last.id == exercise.id) {
            // The page about the finished course is over the verdict.
            student.terminal.press("q");
            student.terminal.shows(KEYS);
        }
        student.terminal.press("q");
        anyhow::ensure!(
            student.terminal.ends_well(),
            "{}: the session doesn't end successfully",
            sitting.exercise
        );
        Ok((student.seen, styled))
    }
}

struct Student {
    terminal: Terminal,
    seen: String,
}

/// Returns a `PATH` on which there is an `mpirun`, so that the screens don't depend on whether MPI is installed. It
/// always fails: no screen shows an answer that passes the check that needs it.
fn path_with_mpirun() -> anyhow::Result<OsString> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    fs::create_dir_all(&folder)?;
    let mpirun = folder.join("mpirun");
    if !mpirun.is_file() {
        symlink("/bin/false", mpirun)?;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&path)))?)
}

impl Student {
    #[track_caller]
    fn press_all(&mut self, keys: &str) {
        for key in keys.chars() {
            self.terminal.press(&key.to_string());
            self.sees(&format!("key {key}"), Size::SMALL);
        }
    }

    /// Waits for a build and a check.
    #[track_caller]
    fn sees_verdict(&mut self, what: &str, size: Size) {
        self.terminal.shows("building");
        self.sees(what, size);
    }

    /// Waits until the screen has been redrawn, and nothing is running.
    #[track_caller]
    fn sees(&mut self, what: &str, size: Size) {
        self.terminal.shows(KEYS);
        let is_under_way = |line: &str| line.starts_with("building …") || line.starts_with("checking ");
        let screen = self.terminal.screen(&LAST_WORDS, |screen| !screen.lines().any(is_under_way));
        let title = format!("──── {}×{}: {what} ", size.columns, size.rows);
        let rule = "─".repeat(usize::from(size.columns.get()).saturating_sub(title.chars().count()));
        self.seen.push_str(&format!("{title}{rule}\n{}\n\n", screen.trim_end_matches('\n')));
    }
}

#[test]
fn what_students_see_is_as_it_was() -> anyhow::Result<()> {
    let place = Place::find()?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sessions");
    let asserted = Assert::new().action_env(DEFAULT_ACTION_ENV);
    let mut deviations = String::new();
    for sitting in &SITTINGS {
        let path = folder.join(format!("{}.txt", sitting.exercise.replace('/', "_")));
        let (seen, styled) = place.watch(sitting)?;
        let mut files = vec![(path.clone(), seen)];
        if sitting.exercise == PICTURED {
            files.push((path.with_extension("ansi"), styled));
        }
        for (path, seen) in files {
            let kept = Data::read_from(&path, None).raw();
            let stored = kept.to_string();
            if asserted.try_eq(Some(&sitting.exercise), seen.clone().into_data(), kept).is_err() {
                let changes = diffy::create_patch(&stored, &seen).to_string();
                deviations.push_str(&format!("{}:\n{changes}\n", path.display()));
            }
        }
    }
    anyhow::ensure!(
        deviations.is_empty(),
        "the screens differ from the stored ones (+ is what a student sees now); to store them: \
         SNAPSHOTS=overwrite cargo xtask sessions\n{deviations}"
    );
    Ok(())
}
