//! A workspace below the target folder for all starters and changed solutions. They share build outputs with one another, and with
//! the repository.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use course::starter::read_folder;
use course::syllabus::Course;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

use super::built::{Built, Test};
use super::program::{Program, folder_of_variant, variant_of};
use super::sources::Sources;
use super::variants::Variant;
use super::{cargo, examples, member, target};
use crate::starters::Starters;

/// What a terminal shows during the build.
const PROGRESS: &str = "{spinner} {pos} packages and programs, {elapsed}";

/// The workspace on disk.
pub(super) struct Scratch {
    folder: PathBuf,
    target: PathBuf,
    programs: Vec<Program>,
}

/// What Cargo has built.
struct Output {
    /// The test programs, by package.
    executables: BTreeMap<String, PathBuf>,
    errors: Vec<Diagnostic>,
    /// Cargo's human-readable output.
    said: String,
}

/// A line in Cargo's JSON output.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Line {
    CompilerArtifact {
        executable: Option<PathBuf>,
    },
    CompilerMessage {
        message: Diagnostic,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: String,
    spans: Vec<Span>,
}

#[derive(Deserialize)]
struct Span {
    file_name: PathBuf,
}

impl Scratch {
    /// Writes the files that have changed since the last run, and removes those that are no longer needed.
    pub(super) fn write(
        root: &Path,
        course: &Course,
        starters: &Starters,
        variants: &[Variant],
    ) -> anyhow::Result<Self> {
        let mut own = members_of(root, starters)?;
        own.extend(examples::files(root)?);
        Self::write_with(root, course, "xtask-check", own, variants.iter())
    }

    /// Writes a workspace with the starters and variants of one exercise to a separate folder.
    pub(super) fn write_one(
        root: &Path,
        course: &Course,
        starters: &Starters,
        variants: &[Variant],
    ) -> anyhow::Result<Self> {
        let own = members_of(root, starters)?;
        Self::write_with(root, course, "xtask-check-one", own, variants.iter())
    }

    /// Writes a workspace with only these variants to a separate folder.
    pub(super) fn write_variants<'v>(
        root: &Path,
        course: &Course,
        folder: &str,
        variants: impl Iterator<Item = &'v Variant> + Clone,
    ) -> anyhow::Result<Self> {
        Self::write_with(root, course, folder, BTreeMap::new(), variants)
    }

    fn write_with<'v>(
        root: &Path,
        course: &Course,
        folder: &str,
        mut files: BTreeMap<PathBuf, String>,
        variants: impl Iterator<Item = &'v Variant> + Clone,
    ) -> anyhow::Result<Self> {
        // That of all exercises and that of one have the same variants of an exercise.
        let kind = folder.split('-').nth(1).unwrap_or(folder);
        let target = target(root);
        let folder = target.join(folder);
        let read = |path: &str| {
            fs::read_to_string(root.join(path))
                .with_context(|| format!("can't read {}", root.join(path).display()))
        };
        // Cargo rewrites this lock file for the members. A second copy shows whether the root's lock file has changed
        // since.
        let lock = read("Cargo.lock")?;
        if fs::read_to_string(folder.join("root.lock")).ok().as_ref() != Some(&lock) {
            files.insert("Cargo.lock".into(), lock.clone());
        }
        files.insert("root.lock".into(), lock);
        let solutions = read_folder(&root.join("solutions"))?;
        let programs = Program::all(course, kind, &solutions, variants.clone())?;
        let mut manifest = member::workspace_manifest(&read("Cargo.toml")?, "members/*")?;
        manifest.extend(programs.iter().map(Program::profile));
        files.insert("Cargo.toml".into(), manifest);
        let mut sources = Sources::new(root, course, &solutions);
        for variant in variants {
            files.extend(sources.of(variant)?);
        }
        files.extend(programs.iter().flat_map(|program| program.files(&folder, |_| true)));
        member::link_dependencies(root, &folder)?;
        synchronize(&folder, &files)?;
        Ok(Self { folder, target, programs })
    }

    /// Builds every test program. A package that doesn't compile doesn't stop the others, and variants that don't compile are left out
    /// of their programs.
    pub(super) fn build(self) -> anyhow::Result<Built> {
        let mut broken: BTreeMap<String, String> = BTreeMap::new();
        loop {
            println!("building {} … (the first time, this takes some minutes)", self.folder.display());
            let Output { executables, errors, said } = self.compile()?;
            let known = broken.len();
            // The compiler reports some errors only if there are no others, so more variants may turn out not to
            // compile.
            for Diagnostic { rendered, spans, .. } in &errors {
                if let Some(variant) = spans.iter().find_map(|span| variant_of(&span.file_name)) {
                    broken.entry(variant.to_owned()).or_default().push_str(rendered);
                }
            }
            if broken.len() == known {
                let rendered = errors.iter().map(|error| error.rendered.as_str());
                let diagnostics: String = rendered.chain([said.as_str()]).collect();
                ensure!(
                    !executables.is_empty(),
                    "nothing of {} compiles:\n{diagnostics}",
                    self.folder.display()
                );
                let tests = self.tests(&executables, &broken);
                return Ok(Built { folder: self.folder, tests, broken, diagnostics });
            }
            for program in &self.programs {
                for (path, text) in program.files(&self.folder, |name| !broken.contains_key(name)) {
                    write_if_changed(&self.folder.join(path), &text)?;
                }
            }
        }
    }

    /// Builds everything that compiles.
    fn compile(&self) -> anyhow::Result<Output> {
        let mut child = cargo(&self.folder)
            .args(["build", "--tests", "--keep-going", "--quiet", "--message-format", "json"])
            .env("CARGO_TARGET_DIR", &self.target)
            // Packages that change are rebuilt completely, so incremental build files would only fill the disk.
            .env("CARGO_INCREMENTAL", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("can't run cargo")?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut stderr = stderr.context("cargo's messages")?;
        let said = thread::spawn(move || {
            let mut said = String::new();
            stderr.read_to_string(&mut said).map(|_| said)
        });
        let (mut executables, mut errors) = (BTreeMap::new(), Vec::new());
        let progress = ProgressBar::new_spinner().with_style(ProgressStyle::with_template(PROGRESS)?);
        progress.enable_steady_tick(Duration::from_secs(1));
        for line in BufReader::new(stdout.context("cargo's messages")?).lines() {
            match serde_json::from_str(&line?) {
                Ok(Line::CompilerArtifact { executable }) => {
                    progress.inc(1);
                    let Some(executable) = executable else { continue };
                    let name = executable.file_name().unwrap_or_default().to_string_lossy();
                    // Cargo adds a hash: `m01_init-0123456789abcdef`.
                    if let Some((package, _)) = name.rsplit_once('-') {
                        executables.insert(package.to_owned(), executable.clone());
                    }
                }
                Ok(Line::CompilerMessage { message }) if message.level == "error" => errors.push(message),
                _ => {}
            }
        }
        progress.finish_and_clear();
        child.wait()?;
        let said = said.join().map_err(|_| anyhow!("the thread that reads cargo's messages panicked"))??;
        Ok(Output { executables, errors, said })
    }

    /// Returns the tests for the packages and the variants, by name.
    fn tests(
        &self,
        executables: &BTreeMap<String, PathBuf>,
        broken: &BTreeMap<String, String>,
    ) -> BTreeMap<String, Test> {
        let mut tests = BTreeMap::new();
        for (package, executable) in executables {
            let program = executable.clone();
            let Some(of_variants) = self.programs.iter().find(|program| program.package == *package) else {
                let folder = self.folder.join("members").join(package);
                tests.insert(package.clone(), Test { program, folder });
                continue;
            };
            for name in of_variants.variants.iter().filter(|name| !broken.contains_key(*name)) {
                let folder = self.folder.join(folder_of_variant(name));
                tests.insert(name.clone(), Test { program: program.clone(), folder });
            }
        }
        tests
    }
}

/// Returns the files of the starters' packages.
fn members_of(root: &Path, starters: &Starters) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    for (path, text) in starters {
        let package = format!("m{}", member::folder_of(path));
        member::add(&mut files, root, &package, path, text)?;
    }
    Ok(files)
}

/// Makes the folder contain exactly these files. Leaves unchanged files alone, so that Cargo rebuilds only what has
/// changed.
fn synchronize(folder: &Path, files: &BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    let (members, variants) = (Path::new("members"), folder_of_variant(""));
    for kept in [members, &variants] {
        let there = folder.join(kept);
        if !there.is_dir() {
            continue;
        }
        for path in read_folder(&there)?.into_keys().filter(|path| !files.contains_key(&kept.join(path))) {
            let path = there.join(path);
            fs::remove_file(&path).with_context(|| format!("can't remove {}", path.display()))?;
        }
    }
    if folder.join(members).is_dir() {
        remove_empty_packages(&folder.join(members))?;
    }
    for (path, text) in files {
        write_if_changed(&folder.join(path), text)?;
    }
    Ok(())
}

fn write_if_changed(path: &Path, text: &str) -> anyhow::Result<()> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("can't make {}", parent.display()))?;
    }
    fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}

/// Removes folders without a manifest, because Cargo takes every folder of `members/` for a package.
fn remove_empty_packages(members: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(members).with_context(|| format!("can't read {}", members.display()))? {
        let package = entry.with_context(|| format!("can't read {}", members.display()))?.path();
        if package.is_dir() && !package.join("Cargo.toml").exists() {
            fs::remove_dir_all(&package).with_context(|| format!("can't remove {}", package.display()))?;
        }
    }
    Ok(())
}
