//! The clean course: a copy of the instructor's course in which every exercise is solved and `solutions/` is absent. It
//! is built once, and gives each answer the libraries, the checks, and the other exercises of its module.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use course::answers::solution;
use course::checks::cargo;
use course::handout::stage;
use course::syllabus::{Course, Module};
use serde::Deserialize;

use crate::compiler::{RECORD_IN, Recorded};
use crate::inspect::Hooks;

/// The clean course, built.
pub(crate) struct CleanCourse {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// The folder with the compiler and the standard library.
    pub(crate) sysroot: PathBuf,
    /// The standard library, as test programs load it.
    pub(crate) standard: PathBuf,
    /// The folder with the built libraries.
    pub(crate) libraries: PathBuf,
    /// Its modules, by folder.
    pub(crate) modules: BTreeMap<String, Solved>,
}

/// A module with every exercise solved.
pub(crate) struct Solved {
    /// How its test program is compiled.
    pub(crate) compiler: Recorded,
    /// What its test program does besides what `main` calls.
    pub(crate) hooks: Hooks,
    /// The names of its checks, in order.
    pub(crate) checks: Vec<String>,
}

/// The packages that are optimized for grading, besides those that always are. The clean course is built once, and a class of
/// 30 runs ten thousand checks with it. cudarc and `lab` are left out: some checks look for their functions on the stack,
/// where the optimizer removes them.
const OPTIMIZED: [&str; 2] = ["virtual-cuda", "virtual-gpu-nccl"];

/// The messages that Cargo prints about a build, one per line.
#[derive(Deserialize)]
#[serde(tag = "reason")]
enum Said {
    #[serde(rename = "compiler-artifact")]
    Built { executable: Option<PathBuf> },
    #[serde(other)]
    Other,
}

impl CleanCourse {
    /// Copies and builds the course, below `target/grade`.
    ///
    /// # Errors
    /// Fails if the course can't be copied or built.
    pub(crate) fn build(root: &Path, course: &Course) -> anyhow::Result<Self> {
        let all = root.join("target/grade");
        let (folder, staged) = (all.join("course"), all.join(format!("staged-{}", std::process::id())));
        let copied = stage(root, course, &staged, |exercise| solution(root, exercise))
            .and_then(|_| replace_changed(&staged, &folder));
        fs::remove_dir_all(&staged).with_context(|| format!("can't remove {}", staged.display()))?;
        copied.context("can't make a clean copy of the course")?;
        let target = all.join("target");
        let mut modules = BTreeMap::new();
        for module in &course.modules {
            let solved =
                Solved::build(&folder, &target, &all, module).with_context(|| module.folder.clone())?;
            modules.insert(module.folder.clone(), solved);
        }
        let sysroot = print(&folder, "sysroot")?;
        let standard = standard_library(&print(&folder, "target-libdir")?)?;
        Ok(Self { folder, sysroot, standard, libraries: target.join("debug/deps"), modules })
    }
}

impl Solved {
    fn build(folder: &Path, target: &Path, records: &Path, module: &Module) -> anyhow::Result<Self> {
        let package = module.starter_package();
        let mut cargo = cargo();
        cargo
            .args(["rustc", "--profile", "test", "--quiet", "--lib", "--message-format", "json"])
            .args(["--package", &package])
            .args(OPTIMIZED.iter().flat_map(|package| {
                ["--config".to_owned(), format!("profile.dev.package.\"{package}\".opt-level=1")]
            }))
            .current_dir(folder)
            .env("CARGO_TARGET_DIR", target)
            .env("RUSTC_WRAPPER", std::env::current_exe().unwrap_or_default())
            .env(RECORD_IN, records);
        let output = cargo.output().context("can't run cargo")?;
        ensure!(
            output.status.success(),
            "can't build {package}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let program = String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| match serde_json::from_str(line) {
                Ok(Said::Built { executable }) => executable,
                _ => None,
            })
            .next_back()
            .context("cargo built no test program")?;
        let list = Command::new(&program)
            .args(["--list", "--format", "terse"])
            .current_dir(folder)
            .output()
            .context("can't list the checks")?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let checks: Vec<String> =
            list.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect();
        ensure!(!checks.is_empty(), "{} lists no checks", program.display());
        let compiler = Recorded::read(&records.join(format!("{package}.json")))?;
        let hooks = Hooks::read(&program).with_context(|| program.display().to_string())?;
        Ok(Self { compiler, hooks, checks })
    }
}

/// Returns a folder that the course's compiler prints the path of.
fn print(folder: &Path, what: &str) -> anyhow::Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", what]).current_dir(folder).output();
    let output = output.context("can't run rustc")?;
    ensure!(output.status.success(), "rustc: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(PathBuf::from(String::from_utf8(output.stdout).context("a path of the toolchain")?.trim()))
}

/// Finds the standard library in the compiler's folder of libraries. Its name contains the compiler's version.
fn standard_library(libraries: &Path) -> anyhow::Result<PathBuf> {
    let is_it = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libstd-") && name.ends_with(".so")
    };
    let in_folder = || format!("can't find the standard library in {}", libraries.display());
    let mut files =
        fs::read_dir(libraries).with_context(in_folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    files.find(is_it).with_context(in_folder)
}

/// Makes a folder equal to another one.
fn replace_changed(from: &Path, to: &Path) -> anyhow::Result<()> {
    let read = |name: PathBuf| -> anyhow::Result<_> {
        let text = fs::read(from.join(&name))?;
        Ok((name, Cow::Owned(text)))
    };
    make_equal(to, &files(from)?.into_iter().map(read).collect::<anyhow::Result<_>>()?)
}

/// Makes a folder contain these files and no others. Files that are equal already stay as they are, so that Cargo builds
/// nothing again.
///
/// # Errors
/// Fails if a file can't be read, written, or removed.
pub(crate) fn make_equal(folder: &Path, wanted: &BTreeMap<PathBuf, Cow<'_, [u8]>>) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    for name in files(folder)?.iter().filter(|name| !wanted.contains_key(*name)) {
        fs::remove_file(folder.join(name))?;
        // Cargo takes each folder in `crates/` for a package. Those that are not empty stay.
        for parent in name.ancestors().skip(1) {
            let _ = fs::remove_dir(folder.join(parent));
        }
    }
    for (name, text) in wanted {
        let file = folder.join(name);
        if fs::read(&file).ok().as_deref() != Some(text) {
            fs::create_dir_all(file.parent().context("a file is in a folder")?)?;
            fs::write(&file, text).with_context(|| format!("can't write {}", file.display()))?;
        }
    }
    Ok(())
}

/// Returns the paths of all files below a folder, relative to it.
pub(crate) fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("can't read {}", next.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(folder)?.to_owned());
            }
        }
    }
    Ok(files)
}
