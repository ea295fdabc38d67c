//! A workspace below the target folder for all starters and mistakes, so that they share what they build.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use course::starter::read_folder;
use course::syllabus::Course;

use super::built::Built;
use super::variants::Variant;
use super::{cargo, examples, member, target};
use crate::starters::Starters;

/// The configuration of the scratch workspace and of the copy of the course below it. Hundreds of programs are kept there: compressed
/// line tables make each a third smaller, and linking takes as long.
const CONFIGURATION: &str = "[build]\nrustflags = [\"-Clink-arg=-Wl,--compress-debug-sections=zlib\"]\n";

/// The workspace on disk.
pub(super) struct Scratch {
    folder: PathBuf,
    target: PathBuf,
}

impl Scratch {
    /// Writes the files that have changed since the last run, and removes those that are no longer needed.
    pub(super) fn write(
        root: &Path,
        course: &Course,
        starters: &Starters,
        variants: &[Variant],
    ) -> anyhow::Result<Self> {
        let mut own = BTreeMap::new();
        for (path, text) in starters {
            let module = member::folder_of(path);
            let package = format!("m{module}");
            member::add(&mut own, root, &package, &package, path, text)?;
        }
        own.extend(examples::files(root)?);
        Self::write_with(root, course, "xtask-check", own, variants.iter())
    }

    /// Writes a workspace that has only these variants, in a folder of its own.
    pub(super) fn write_variants<'v>(
        root: &Path,
        course: &Course,
        folder: &str,
        variants: impl Iterator<Item = &'v Variant>,
    ) -> anyhow::Result<Self> {
        Self::write_with(root, course, folder, BTreeMap::new(), variants)
    }

    fn write_with<'v>(
        root: &Path,
        course: &Course,
        folder: &str,
        mut files: BTreeMap<PathBuf, String>,
        variants: impl Iterator<Item = &'v Variant>,
    ) -> anyhow::Result<Self> {
        // All scratch workspaces build the same crates below their members.
        let built = target(root).join("xtask-check/target");
        let folder = target(root).join(folder);
        let read = |path: &str| {
            fs::read_to_string(root.join(path))
                .with_context(|| format!("can't read {}", root.join(path).display()))
        };
        files.insert("Cargo.toml".into(), member::workspace_manifest(root, &read("Cargo.toml")?)?);
        // Cargo rewrites the lock file for the members here. A second copy shows whether the root's has changed since.
        let lock = read("Cargo.lock")?;
        if fs::read_to_string(folder.join("root.lock")).ok().as_ref() != Some(&lock) {
            files.insert("Cargo.lock".into(), lock.clone());
        }
        files.insert("root.lock".into(), lock);
        files.insert(".cargo/config.toml".into(), CONFIGURATION.into());
        let solutions = read_folder(&root.join("solutions"))?;
        for variant in variants {
            add_variant(&mut files, root, course, &solutions, variant)?;
        }
        synchronize(&folder, &files)?;
        Ok(Self { folder, target: built })
    }

    /// Builds every test program. A package that doesn't compile doesn't stop the others.
    pub(super) fn build(self) -> anyhow::Result<Built> {
        println!("building {} …", self.folder.display());
        let output = cargo(&self.folder)
            .args(["build", "--workspace", "--tests", "--keep-going", "--quiet"])
            .args(["--message-format", "json-render-diagnostics"])
            .env("CARGO_TARGET_DIR", &self.target)
            // Packages that change are built completely, so the files of incremental builds would only fill the disk.
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

/// Adds the package of a variant, with the checks of its exercise.
fn add_variant(
    files: &mut BTreeMap<PathBuf, String>,
    root: &Path,
    course: &Course,
    solutions: &BTreeMap<PathBuf, String>,
    Variant { exercise, package, source }: &Variant,
) -> anyhow::Result<()> {
    let exercise = course.exercise(exercise).with_context(|| format!("the exercise of {package}"))?;
    let module = exercise.folder();
    for (path, text) in solutions.iter().filter(|(path, _)| member::folder_of(path) == module) {
        let text = if Path::new(&exercise.file) == path { source } else { text };
        member::add(files, root, package, &format!("s{module}"), path, text)?;
    }
    let folder = Path::new("members").join(package);
    for (path, text) in member::own_checks(root, course, exercise)? {
        files.insert(folder.join("tests/exercise").join(path), text);
    }
    let program = files.get_mut(&folder.join(format!("tests/{module}.rs")));
    let program = program.with_context(|| format!("{module} has no tests/{module}.rs"))?;
    *program = program.replace(&format!("{}/tests/{module}/mod.rs", root.display()), "exercise/mod.rs");
    Ok(())
}

/// Makes the folder contain exactly these files. Unchanged files are left alone, so that Cargo rebuilds only what
/// changed.
fn synchronize(folder: &Path, files: &BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
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
