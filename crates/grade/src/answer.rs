//! Builds one answer: its file in a clean module, and the checks of its exercise.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use course::module_sources::{LIBRARY, Words, library_without, own_checks, unused};
use course::starter::read_folder;
use course::syllabus::{Course, Exercise};

use crate::bounded;
use crate::clean_course::{CleanCourse, make_equal};
use crate::inspect::{Hooks, missing, normal, read_outside};
use crate::limits::Limits;
use crate::sandbox::Sandbox;
use crate::submission::{Entry, Submission};

/// How long the compiler may take for an answer. It usually takes half a second.
const COMPILER_TIMEOUT: Duration = Duration::from_secs(60);

/// The libraries of the course that a test program loads at run time.
const LIBRARIES: [&str; 4] =
    ["libprelinked.so", "libvirtual_cuda.so", "libvirtual_nccl.so", "libsystem_nccl.so"];

/// Why there is no program.
pub(crate) enum Stopped {
    /// The answer doesn't compile; with the compiler's messages.
    Broken(String),
    /// The answer does what no answer may do.
    Refused(String),
    /// The machine failed, which says nothing about the answer.
    Unable(String),
}

/// Returns the files of an answer, by path: the student's file, and the files that the student has added to the module's
/// sources.
pub(crate) fn answer_files<'a>(
    clean: &CleanCourse,
    submission: &'a Submission,
    exercise: &Exercise,
) -> impl Iterator<Item = (&'a Path, &'a [u8])> {
    let module = Path::new("modules").join(exercise.folder());
    let own = Path::new("modules").join(&exercise.file);
    let of_module = submission.sources.range(module.clone()..);
    of_module.take_while(move |(path, _)| path.starts_with(&module)).filter_map(move |(path, entry)| {
        let is_part = *path == own || !clean.folder.join(path).is_file();
        match entry {
            Entry::Text(text) if is_part => Some((path.as_path(), text.as_slice())),
            _ => None,
        }
    })
}

/// A place where answers are built, one after another.
pub(crate) struct Bench {
    /// A course with one module.
    pub(crate) course: PathBuf,
    /// The programs.
    pub(crate) out: PathBuf,
    /// The libraries that they load.
    pub(crate) libraries: PathBuf,
    /// What the compiler keeps for the next answer to the same exercise.
    incremental: PathBuf,
}

impl Bench {
    /// Creates a place for answers in a new folder.
    pub(crate) fn new(folder: &Path, clean: &CleanCourse) -> anyhow::Result<Self> {
        let bench = Self {
            course: folder.join("course"),
            out: folder.join("out"),
            // Programs look for `../deps`.
            libraries: folder.join("deps"),
            incremental: folder.join("incremental"),
        };
        for folder in [&bench.out, &bench.libraries] {
            fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
        }
        bench.begin_exercise()?;
        for library in LIBRARIES.map(|name| clean.libraries.join(name)).iter().chain([&clean.standard]) {
            let name = library.file_name().unwrap_or_default();
            fs::copy(library, bench.libraries.join(name))
                .with_context(|| format!("can't copy {}", library.display()))?;
        }
        Ok(bench)
    }

    /// Forgets what the compiler has kept for another exercise.
    ///
    /// # Errors
    /// Fails if the folder can't be made empty.
    pub(crate) fn begin_exercise(&self) -> anyhow::Result<()> {
        let folder = &self.incremental;
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("can't remove {}", folder.display()))?;
        }
        fs::create_dir(folder).with_context(|| format!("can't create {}", folder.display()))
    }

    /// Returns the folder that the checks of an exercise run in.
    pub(crate) fn module(&self, exercise: &Exercise) -> PathBuf {
        self.course.join("modules").join(exercise.folder())
    }

    /// Puts an answer into a clean module: the student's file, the files that the student has added to the module's sources,
    /// and the solutions and checks that the exercise uses.
    fn stage(
        &self,
        course: &Course,
        clean: &CleanCourse,
        submission: &Submission,
        exercise: &Exercise,
    ) -> anyhow::Result<()> {
        let module = Path::new("modules").join(exercise.folder());
        let tests = Path::new("tests").join(exercise.folder());
        let solved = read_folder(&clean.folder.join(&module).join("src"))?;
        let mut sources: BTreeMap<PathBuf, Cow<'_, [u8]>> = solved
            .into_iter()
            .map(|(path, text)| (Path::new("src").join(path), Cow::Owned(text.into_bytes())))
            .collect();
        let own = Path::new("modules").join(&exercise.file);
        sources.extend(answer_files(clean, submission, exercise).filter_map(|(path, text)| {
            Some((path.strip_prefix(&module).ok()?.to_owned(), Cow::Borrowed(text)))
        }));
        let checks = own_checks(read_folder(&clean.folder.join(&tests))?, course, exercise)?;
        let words = |(path, text): (&PathBuf, &Cow<'_, [u8]>)| {
            (path.clone(), Words::of(&String::from_utf8_lossy(text)))
        };
        let words: BTreeMap<PathBuf, Words> = sources.iter().map(words).collect();
        let words_of_checks: Vec<Words> = checks.values().map(|text| Words::of(text)).collect();
        let unused = unused(&words, own.strip_prefix(&module)?, words_of_checks.iter());
        let library = sources.get(Path::new(LIBRARY)).context("a module has a root")?;
        let library = library_without(&String::from_utf8_lossy(library), &unused).into_bytes();
        sources.insert(LIBRARY.into(), Cow::Owned(library));

        let mut staged: BTreeMap<PathBuf, Cow<'_, [u8]>> =
            sources.into_iter().map(|(path, text)| (module.join(path), text)).collect();
        staged
            .extend(checks.into_iter().map(|(path, text)| (tests.join(path), Cow::Owned(text.into_bytes()))));
        // A failure's source lines are found from the folder with the lock file.
        staged.insert("Cargo.lock".into(), Cow::Borrowed(&b""[..]));
        // Most files are the same as for the last answer. To compare them takes a tenth of the time to write them.
        make_equal(&self.course, &staged)
    }

    /// Builds an answer, and returns the test program with the checks of its exercise.
    pub(crate) fn build(
        &self,
        course: &Course,
        clean: &CleanCourse,
        sandbox: &Sandbox,
        limits: &Limits,
        submission: &Submission,
        exercise: &Exercise,
    ) -> Result<PathBuf, Stopped> {
        let unable = |error: anyhow::Error| Stopped::Unable(format!("{error:#}"));
        self.stage(course, clean, submission, exercise)
            .context("can't prepare the answer")
            .map_err(unable)?;
        let module = &clean.modules[exercise.folder()];
        let compiler = &module.compiler;
        let arguments = compiler.arguments(&exercise.checks(), &self.out, &self.incremental);
        let reads = compiler.reads();
        let mut readable: Vec<&Path> = vec![&self.course, &clean.sysroot];
        readable.extend(reads.iter().map(PathBuf::as_path));
        let writable = [self.out.as_path(), &self.incremental];
        let program = clean.sysroot.join("bin/rustc");
        let mut command = sandbox.command(&program, &readable, &writable, &self.course);
        command.args(arguments).envs(compiler.variables(&self.module(exercise)));
        let made = self.out.join(compiler.output());
        let dependencies = made.with_extension("d");
        for old in [&made, &dependencies] {
            // The previous answer may have left nothing.
            let _ = fs::remove_file(old);
        }
        let ended = bounded::run(command, COMPILER_TIMEOUT, limits).map_err(unable)?;
        if let Some(excess) = ended.excess {
            return Err(Stopped::Broken(format!("the compiler was stopped: {excess}")));
        }
        let sources = Path::new("modules").join(exercise.folder()).join("src");
        let outside = fs::read_to_string(&dependencies)
            .map(|dependencies| read_outside(&dependencies, &self.course))
            .unwrap_or_default();
        let missing = missing(&ended.said).map(|path| normal(&self.course.join(path)));
        let missing = missing.filter(|path| !path.starts_with(self.course.join(sources)));
        if let Some(file) = outside.first().or(missing.as_ref()) {
            let file = file.strip_prefix(&self.course).unwrap_or(file);
            return Err(Stopped::Refused(format!("it reads {}, which is not a part of it", file.display())));
        }
        if !ended.status.success() {
            // An error of the answer has a place. The rest are those of the linker, the disk, and the compiler itself.
            return Err(match ended.said.lines().any(|line| line.trim_start().starts_with("--> ")) {
                true => Stopped::Broken(ended.said),
                false => {
                    Stopped::Unable(format!("the compiler ended with {}:\n{}", ended.status, ended.said))
                }
            });
        }
        let hooks = Hooks::read(&made).map_err(unable)?;
        match hooks.beyond(&module.hooks) {
            Some(what) => Err(Stopped::Refused(what)),
            None => Ok(made),
        }
    }
}
