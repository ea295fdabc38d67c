//! One workspace for every starter and every mistake, below the target folder, so that they share what they build.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, bail, ensure};
use course::syllabus::{Course, Exercise};

use super::deletions::Deletion;
use super::test_output::{self, Outcomes};
use super::{cargo, deletion_package, examples, mistake_package, target};
use course::mistakes::Mistake;
use course::starter::read_folder;

use crate::starters::Starters;

/// Seconds after which a rank that never comes is given up: some mistakes hang, and a busy machine takes its time for the others.
const GPU_PATIENCE: &str = "8";

/// Fewest mistakes that an exercise must tell apart.
const MISTAKES_EACH: usize = 3;

/// The workspace, written.
pub(super) struct Scratch {
    folder: PathBuf,
}

/// The workspace, built: the test program of each package that compiles.
pub(super) struct Built {
    pub(super) folder: PathBuf,
    programs: BTreeMap<String, PathBuf>,
    diagnostics: String,
}

impl Scratch {
    /// Writes what differs from the last time, and removes what is left over from it.
    pub(super) fn write(
        root: &Path,
        course: &Course,
        starters: &Starters,
        mistakes: &[Mistake],
        deletions: &[Deletion],
    ) -> anyhow::Result<Self> {
        let folder = target(root).join("xtask-check");
        let read = |path: &str| {
            fs::read_to_string(root.join(path))
                .with_context(|| format!("can't read {}", root.join(path).display()))
        };
        let mut files =
            BTreeMap::from([("Cargo.toml".into(), workspace_manifest(root, &read("Cargo.toml")?)?)]);
        // Cargo rewrites the lock for the members here; a second copy tells whether the root's has changed since.
        let lock = read("Cargo.lock")?;
        if fs::read_to_string(folder.join("root.lock")).ok().as_ref() != Some(&lock) {
            files.insert("Cargo.lock".into(), lock.clone());
        }
        files.insert("root.lock".into(), lock);
        for (path, text) in starters {
            let module = folder_of(path);
            let package = format!("m{module}");
            add(&mut files, root, &package, &package, path, text)?;
        }
        let solutions = read_folder(&root.join("solutions"))?;
        let mut variant = |exercise: &str, package: &str, source: &String| -> anyhow::Result<()> {
            let exercise = course.exercise(exercise).with_context(|| format!("the exercise of {package}"))?;
            let module = exercise.folder();
            for (path, text) in solutions.iter().filter(|(path, _)| folder_of(path) == module) {
                let text = if Path::new(&exercise.file) == path { source } else { text };
                add(&mut files, root, package, &format!("s{module}"), path, text)?;
            }
            let member = Path::new("members").join(package);
            for (path, text) in own_checks(root, course, exercise)? {
                files.insert(member.join("tests/exercise").join(path), text);
            }
            let program = files.get_mut(&member.join(format!("tests/{module}.rs")));
            let program = program.with_context(|| format!("{module} has no tests/{module}.rs"))?;
            *program =
                program.replace(&format!("{}/tests/{module}/mod.rs", root.display()), "exercise/mod.rs");
            Ok(())
        };
        for mistake in mistakes {
            variant(&mistake.exercise, &mistake_package(mistake), &mistake.source)?;
        }
        for (at, deletion) in deletions.iter().enumerate() {
            variant(&deletion.exercise, &deletion_package(at), &deletion.source)?;
        }
        files.extend(examples::files(root)?);
        synchronise(&folder, &files)?;
        Ok(Self { folder })
    }

    /// Builds every test program; a package that doesn't compile doesn't stop the others.
    pub(super) fn build(self) -> anyhow::Result<Built> {
        println!("building {} …", self.folder.display());
        let output = cargo(&self.folder)
            .args(["build", "--workspace", "--tests", "--keep-going", "--quiet"])
            .args(["--message-format", "json-render-diagnostics"])
            .env("CARGO_TARGET_DIR", self.folder.join("target"))
            // What changes is built whole: its parts would only fill the disk.
            .env("CARGO_INCREMENTAL", "0")
            .stdin(Stdio::null())
            .output()
            .context("can't run cargo")?;
        let mut programs = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some((_, rest)) = line.split_once("\"executable\":\"") else { continue };
            let program = PathBuf::from(rest.split('"').next().unwrap_or_default());
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            // Cargo adds a hash: `m01_init-0123456789abcdef`.
            if let Some((package, _)) = name.rsplit_once('-') {
                programs.insert(package.to_owned(), program.clone());
            }
        }
        let diagnostics = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!programs.is_empty(), "nothing of {} compiles:\n{diagnostics}", self.folder.display());
        Ok(Built { folder: self.folder, programs, diagnostics })
    }
}

impl Built {
    /// Every check of every exercise fails in the starter, at a `todo!` of the exercise's own file.
    pub(super) fn check_starters(&self, course: &Course) -> anyhow::Result<Vec<String>> {
        self.in_parallel(&course.exercises, |exercise| {
            let package = format!("m{}", exercise.folder());
            let Some(program) = self.programs.get(&package) else {
                return Ok(vec![format!(
                    "{package} has warnings or errors; mend its solution:\n{}",
                    self.diagnostics
                )]);
            };
            let outcomes = run(program, &[&exercise.filter()])?;
            Ok(starter_findings(exercise, &outcomes))
        })
    }

    /// Every mistake fails in its check, with its words; every exercise has enough of them.
    pub(super) fn check_mistakes(
        &self,
        course: &Course,
        mistakes: &[Mistake],
    ) -> anyhow::Result<Vec<String>> {
        let mut findings = self.in_parallel(mistakes, |mistake| {
            let Some(program) = self.programs.get(&mistake_package(mistake)) else {
                let folder = self.folder.join("members").join(mistake_package(mistake));
                return Ok(vec![format!(
                    "{} doesn't compile; mend it, then see `cargo build --tests` in {}",
                    mistake.path(),
                    folder.display()
                )]);
            };
            let outcomes = run(program, &["--exact", &mistake.fails])?;
            Ok(mistake_finding(mistake, &outcomes).into_iter().collect())
        })?;
        for exercise in &course.exercises {
            let count = mistakes.iter().filter(|mistake| mistake.exercise == exercise.id).count();
            if count < MISTAKES_EACH {
                findings.push(format!(
                    "{} has {count} mistakes; write at least {MISTAKES_EACH} in tests/mistakes/{}/",
                    exercise.id, exercise.id
                ));
            }
        }
        Ok(findings)
    }

    /// Every deletion makes the check fail that is said to, with its words, or none.
    pub(super) fn check_deletions(
        &self,
        course: &Course,
        deletions: &[Deletion],
    ) -> anyhow::Result<Vec<String>> {
        let all: Vec<(usize, &Deletion)> = deletions.iter().enumerate().collect();
        self.in_parallel(&all, |&(at, deletion)| {
            let exercise = course.exercise(&deletion.exercise)?;
            let Some(program) = self.programs.get(&deletion_package(at)) else {
                return Ok(vec![format!("{} doesn't compile; say what stands `instead`", deletion.name())]);
            };
            let outcomes = run(program, &[&exercise.filter()])?;
            Ok(deletion_finding(deletion, &outcomes).into_iter().collect())
        })
    }

    /// Runs `look` for each item on as many threads as there are cores; the findings come in the items' order.
    fn in_parallel<T: Sync>(
        &self,
        items: &[T],
        look: impl Fn(&T) -> anyhow::Result<Vec<String>> + Sync,
    ) -> anyhow::Result<Vec<String>> {
        let (queue, done) = (Mutex::new(items.iter().enumerate()), Mutex::new(BTreeMap::new()));
        let workers = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
                        let Some((index, item)) = next else { break };
                        let found = look(item);
                        done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(index, found);
                    }
                });
            }
        });
        let done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found: anyhow::Result<Vec<_>> = done.into_values().collect();
        Ok(found?.into_iter().flatten().collect())
    }
}

fn run(program: &Path, arguments: &[&str]) -> anyhow::Result<Outcomes> {
    let output = Command::new(program)
        .args(arguments)
        .args(["--color", "never", "--format", "pretty"])
        .env_remove("RUST_BACKTRACE")
        .env("VIRTUAL_GPU_PATIENCE", GPU_PATIENCE)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("can't run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let outcomes = test_output::parse(&text);
    if output.status.code() != Some(0) && outcomes.failed.is_empty() {
        bail!(
            "{} {arguments:?} ended with {}:\n{text}{}",
            program.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(outcomes)
}

fn starter_findings(exercise: &Exercise, outcomes: &Outcomes) -> Vec<String> {
    let Exercise { id, file, .. } = exercise;
    let source = file.split_once('/').map_or(file.as_str(), |(_, source)| source);
    let mut findings = Vec::new();
    if outcomes.passed.is_empty() && outcomes.failed.is_empty() {
        findings.push(format!("{id}: no check ran; name them {}…", exercise.filter()));
    }
    for name in &outcomes.passed {
        findings
            .push(format!("{id}: {name} passes without an answer; make it look at what the exercise does"));
    }
    for (name, message) in &outcomes.failed {
        if !(message.contains("not yet implemented: ") && message.contains(&format!("{source}:"))) {
            findings.push(format!(
                "{id}: {name} doesn't fail at a todo! of {source}; the check must come to it. It says:\n{message}"
            ));
        }
    }
    findings
}

fn deletion_finding(deletion: &Deletion, outcomes: &Outcomes) -> Option<String> {
    let name = deletion.name();
    let Some(fails) = &deletion.fails else {
        let (check, message) = outcomes.failed.first()?;
        return Some(format!("{name} is said to be harmless; {check} fails:\n{message}"));
    };
    let Some((_, message)) = outcomes.failed.iter().find(|(check, _)| check == fails) else {
        let failed: Vec<&str> = outcomes.failed.iter().map(|(check, _)| check.as_str()).collect();
        return Some(format!("{name}: {fails} doesn't fail; those that do: {}", failed.join(", ")));
    };
    let missing = deletion.says.iter().find(|words| !message.contains(words.as_str()))?;
    Some(format!("{name}: {fails} fails, but doesn't say `{missing}`. It says:\n{message}"))
}

fn mistake_finding(mistake: &Mistake, outcomes: &Outcomes) -> Option<String> {
    let (path, fails) = (mistake.path(), &mistake.fails);
    if outcomes.passed.contains(fails) {
        return Some(format!("{path} passes {fails}; make the check catch it"));
    }
    let Some((_, message)) = outcomes.failed.iter().find(|(name, _)| name == fails) else {
        return Some(format!("{path}: {fails} didn't run; is that its name, and can it run here?"));
    };
    let missing: Vec<&str> =
        mistake.says.iter().map(String::as_str).filter(|words| !message.contains(words)).collect();
    (!missing.is_empty()).then(|| {
        format!("{path}: {fails} fails, but doesn't say `{}`. It says:\n{message}", missing.join("`, `"))
    })
}

/// The first folder of a path below modules/ or solutions/.
fn folder_of(path: &Path) -> String {
    path.iter().next().unwrap_or_default().to_string_lossy().into_owned()
}

/// The workspace's own manifest, for members of a workspace elsewhere.
fn workspace_manifest(root: &Path, manifest: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut replaced = 0;
    for line in manifest.lines() {
        if line.starts_with("members = ") {
            replaced += 1;
            text.push_str("members = [\"members/*\"]\n");
        } else if !line.starts_with("default-members = ") {
            text.push_str(&line.replace("path = \"", &format!("path = \"{}/", root.display())));
            text.push('\n');
        }
    }
    ensure!(
        replaced == 1,
        "Cargo.toml has {replaced} lines `members = […]`, expected 1 on a line of its own"
    );
    Ok(text)
}

/// Adds one file of a package. Its binary stays out: only the checks are run.
fn add(
    files: &mut BTreeMap<PathBuf, String>,
    root: &Path,
    package: &str,
    old_package: &str,
    path: &Path,
    text: &str,
) -> anyhow::Result<()> {
    let inner: PathBuf = path.iter().skip(1).collect();
    let is_binary = inner == Path::new("src/main.rs") || inner.starts_with("src/bin");
    if is_binary || inner.extension().is_some_and(|extension| extension == "md") {
        return Ok(());
    }
    let mut text = text.replace(old_package, package);
    if inner == Path::new("Cargo.toml") {
        text = member_manifest(&text, &folder_of(path), package)?;
    }
    let tests = "#[path = \"../../../tests/";
    text = text.replace(tests, &format!("#[path = \"{}/tests/", root.display()));
    files.insert(Path::new("members").join(package).join(inner), text);
    Ok(())
}

/// `tests/NN` with the checks of one exercise alone, and what they share with others: there are hundreds of members, and most of
/// a module's checks are of other exercises.
fn own_checks(
    root: &Path,
    course: &Course,
    exercise: &Exercise,
) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let in_module = course.exercises.iter().filter(|other| other.folder() == exercise.folder());
    let others: Vec<String> =
        in_module.filter(|other| other.id != exercise.id).map(|other| other.filter()).collect();
    let is_other = |name: &str| others.contains(&format!("{name}::"));
    let mut files = read_folder(&root.join("tests").join(exercise.folder()))?;
    files.retain(|path, _| {
        let name = path.iter().next().unwrap_or_default().to_string_lossy();
        !is_other(name.trim_end_matches(".rs"))
    });
    let all = files.get_mut(Path::new("mod.rs")).context("a module's checks have a mod.rs")?;
    let is_own = |line: &&str| {
        let name = line.trim().trim_start_matches("mod ").split([';', ':']).next().unwrap_or_default();
        !is_other(name)
    };
    *all = all.lines().filter(is_own).map(|line| format!("{line}\n")).collect();
    Ok(files)
}

/// The manifest of a member: no binary, the test program under the package's name, warnings as errors for a starter.
fn member_manifest(manifest: &str, module: &str, package: &str) -> anyhow::Result<String> {
    let test = format!("[[test]]\nname = \"{module}\"\n");
    ensure!(manifest.contains(&test), "the manifest of {module} has no\n{test}");
    let manifest =
        manifest.replace(&test, &format!("[[test]]\nname = \"{package}\"\npath = \"tests/{module}.rs\"\n"));
    let manifest =
        manifest.replace("[lints]\nworkspace = true\n", "[lints.rust]\nwarnings = \"allow\"\n").replace(
            "[lints.rust]\nunused = \"allow\"\n",
            "[lints.rust]\nunused = \"allow\"\nwarnings = \"deny\"\n",
        );
    let mut text = String::new();
    let mut in_binary = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_binary = line == "[[bin]]";
        }
        if !in_binary && !line.starts_with("default-run ") {
            text.push_str(line);
            text.push('\n');
        }
    }
    Ok(text)
}

/// Makes the folder hold these files; leaves alone what is the same, so that Cargo rebuilds only what changed.
fn synchronise(folder: &Path, files: &BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    let members = folder.join("members");
    if members.is_dir() {
        for path in read_folder(&members)?.into_keys() {
            if !files.contains_key(&Path::new("members").join(&path)) {
                let path = members.join(path);
                fs::remove_file(&path).with_context(|| format!("can't remove {}", path.display()))?;
            }
        }
        remove_empty_packages(&members)?;
    }
    for (path, text) in files {
        let path = folder.join(path);
        if fs::read_to_string(&path).is_ok_and(|there| there == *text) {
            continue;
        }
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent).with_context(|| format!("can't make {}", parent.display()))?;
        fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}

/// Cargo takes every folder of `members/` for a package: one without a manifest must go.
fn remove_empty_packages(members: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(members).with_context(|| format!("can't read {}", members.display()))? {
        let package = entry.with_context(|| format!("can't read {}", members.display()))?.path();
        if package.is_dir() && !package.join("Cargo.toml").exists() {
            fs::remove_dir_all(&package).with_context(|| format!("can't remove {}", package.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scratch_workspace_keeps_versions_and_finds_the_crates() {
        let manifest = "[workspace]\nmembers = [\"a\"]\ndefault-members = [\"a\"]\n[workspace.dependencies]\nlab = { path = \"crates/lab\" }\n";
        assert_eq!(
            workspace_manifest(Path::new("/root"), manifest).unwrap(),
            "[workspace]\nmembers = [\"members/*\"]\n[workspace.dependencies]\nlab = { path = \"/root/crates/lab\" }\n"
        );
        assert!(workspace_manifest(Path::new("/root"), "[workspace]\n").is_err());
    }

    #[test]
    fn a_member_has_no_binary_and_its_own_test_name() {
        let manifest = "[package]\nname = \"x\"\ndefault-run = \"x\"\n\n[lints.rust]\nunused = \"allow\"\n\n[[bin]]\nname = \"x\"\n\n[[test]]\nname = \"01_init\"\nharness = false\n";
        let made = member_manifest(manifest, "01_init", "x").unwrap();
        assert!(!made.contains("[[bin]]") && !made.contains("default-run"), "{made}");
        assert!(
            made.contains("[[test]]\nname = \"x\"\npath = \"tests/01_init.rs\"\nharness = false"),
            "{made}"
        );
        assert!(made.contains("warnings = \"deny\""), "{made}");
        assert!(member_manifest("[package]\n", "01_init", "x").is_err());
    }
}
