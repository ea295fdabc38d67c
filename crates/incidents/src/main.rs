//! Records the incidents in `tests/06_scale/incidents`: `cargo xtask incidents`. With `--check`, only compares.
//!
//! Each incident is a program with a known mistake, which runs on eight ranks of the virtual GPU until it hangs, fails,
//! or ends. Each runs in a process of its own, because NCCL reads its variables once, and a GPU that has failed stays
//! unusable.

mod job;
mod log;
mod programs;
mod watchdog;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};

/// The variable that says which incident this process records.
const INCIDENT: &str = "INCIDENT";
/// The variable that says where it writes its files.
const FOLDER: &str = "INCIDENT_FOLDER";

fn main() -> anyhow::Result<ExitCode> {
    if let (Ok(name), Some(folder)) = (std::env::var(INCIDENT), std::env::var_os(FOLDER)) {
        let program =
            programs::ALL.iter().find(|program| program.name == name).context("no such incident")?;
        job::record(program, Path::new(&folder))?;
        return Ok(ExitCode::SUCCESS);
    }
    let only_compare = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(other) => anyhow::bail!("unknown argument {other:?}; the only one is --check"),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/06_scale/incidents");
    let recorded = record_all()?;
    let mut stored = read(&root)?;
    // Each incident has a folder. The file next to the folders describes them.
    stored.retain(|path, _| path.components().count() > 1);
    if only_compare {
        let names: BTreeSet<&PathBuf> = recorded.keys().chain(stored.keys()).collect();
        let differ: Vec<String> = names
            .into_iter()
            .filter(|name| recorded.get(*name) != stored.get(*name))
            .map(|name| name.display().to_string())
            .collect();
        if differ.is_empty() {
            println!("{} incidents are as recorded", programs::ALL.len());
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("differ from a new recording: {}\nrun `cargo xtask incidents`", differ.join(", "));
        return Ok(ExitCode::FAILURE);
    }
    for name in stored.keys().filter(|name| !recorded.contains_key(*name)) {
        std::fs::remove_file(root.join(name)).with_context(|| format!("can't remove {}", name.display()))?;
    }
    for (name, text) in &recorded {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(&root))?;
        std::fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
    }
    println!("recorded {} incidents", programs::ALL.len());
    Ok(ExitCode::SUCCESS)
}

/// Records every incident, and returns the files by their paths.
fn record_all() -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let folder = std::env::temp_dir().join(format!("incidents_{}", std::process::id()));
    let mut files = BTreeMap::new();
    for program in programs::ALL {
        let own = folder.join(program.name);
        std::fs::create_dir_all(&own).with_context(|| format!("can't create {}", own.display()))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.env(INCIDENT, program.name).env(FOLDER, &own).env("LAB_TIER", "virtual");
        command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "COLL");
        command.env("NCCL_DEBUG_FILE", own.join(log::FILE));
        if let Some(failing) = program.failing_call {
            command.env("VIRTUAL_GPU_FAIL", failing);
        }
        let output = command.output().context("can't start a recording")?;
        ensure!(
            output.status.success(),
            "{}: the recording failed\n{}",
            program.name,
            String::from_utf8_lossy(&output.stderr)
        );
        std::fs::remove_file(own.join(log::FILE))?;
        for (name, text) in read(&own)? {
            files.insert(Path::new(program.name).join(name), text);
        }
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(files)
}

/// Reads all files in a folder and in the folders in it. If there is no such folder, there are none.
fn read(folder: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let Ok(entries) = folder.read_dir() else { return Ok(files) };
    for entry in entries {
        let entry = entry?;
        let name = PathBuf::from(entry.file_name());
        if entry.path().is_dir() {
            files.extend(read(&entry.path())?.into_iter().map(|(path, text)| (name.join(path), text)));
        } else {
            files.insert(name, std::fs::read_to_string(entry.path())?);
        }
    }
    Ok(files)
}
