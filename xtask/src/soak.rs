//! `cargo xtask soak`: runs `cargo test` again and again on a busy machine, and looks for flakes and for what stays behind.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use course::checks::cargo;

use crate::check;

/// How long a check may take on a busy machine, in seconds.
const TIMEOUT: &str = "240";

/// Options of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How often to run `cargo test`
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How many runs share a core; with 2, every core is always busy
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    per_core: u16,
}

/// Runs the tests, and prints how long they took and how much the system held before and after.
///
/// # Errors
/// Fails if a run fails, or if a process or a temporary file stays behind.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let built = cargo().args(["test", "--quiet", "--no-run"]).current_dir(root).status();
    ensure!(built.context("can't run cargo")?.success(), "the tests can't be built");
    let target = fs::canonicalize(check::target(root)).context("can't find the target folder")?;
    let temporary = target.join("soak");
    fs::create_dir_all(&temporary).with_context(|| format!("can't make {}", temporary.display()))?;

    let before = Held::now(&target, &temporary)?;
    let runs: Vec<u32> = (1..=options.runs).collect();
    let results = check::map_in_parallel(options.per_core.into(), &runs, |run| {
        let started = Instant::now();
        let mut tests = cargo();
        tests.args(["test", "--quiet"]).current_dir(root);
        tests.env("LAB_TIMEOUT", TIMEOUT).env("TMPDIR", &temporary);
        let output = tests.output().context("can't run cargo")?;
        if !output.status.success() {
            println!("run {run} failed with {}:", output.status);
            for text in [&output.stdout, &output.stderr] {
                println!("{}", String::from_utf8_lossy(text));
            }
        }
        Ok((started.elapsed(), output.status.success()))
    })?;
    let after = Held::now(&target, &temporary)?;

    let failed = results.iter().filter(|(_, passed)| !passed).count();
    let mut times: Vec<Duration> = results.into_iter().map(|(time, _)| time).collect();
    times.sort();
    let seconds = |time: Duration| time.as_secs_f64();
    println!(
        "{} runs, {} per core: {failed} failed; a run took {:.1} s ({:.1} to {:.1} s)",
        times.len(),
        options.per_core,
        seconds(times[times.len() / 2]),
        seconds(times[0]),
        seconds(times[times.len() - 1])
    );
    println!("open files of the system: {} before, {} after", before.open_files, after.open_files);
    println!("shared memory of the system: {} KiB before, {} KiB after", before.shared_kib, after.shared_kib);
    let processes: Vec<_> = after.processes.difference(&before.processes).collect();
    let files: Vec<_> = after.files.difference(&before.files).collect();
    ensure!(failed == 0, "{failed} of {} runs failed", times.len());
    ensure!(processes.is_empty(), "these processes stayed behind: {processes:?}");
    ensure!(files.is_empty(), "these stayed behind in {}: {files:?}", temporary.display());
    println!("no process and no temporary file stayed behind");
    Ok(())
}

/// What the system holds at one time.
struct Held {
    /// The processes whose programs are in the target folder, by number.
    processes: BTreeSet<u32>,
    /// The names of the temporary files.
    files: BTreeSet<OsString>,
    open_files: u64,
    shared_kib: u64,
}

impl Held {
    fn now(target: &Path, temporary: &Path) -> anyhow::Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("can't read {path}"));
        let open_files = read("/proc/sys/fs/file-nr")?;
        let open_files = open_files.split_whitespace().next().and_then(|number| number.parse().ok());
        let memory = read("/proc/meminfo")?;
        let shared = memory.lines().find_map(|line| line.strip_prefix("Shmem:")?.strip_suffix("kB"));
        let files = fs::read_dir(temporary).with_context(|| format!("can't read {}", temporary.display()))?;
        Ok(Self {
            processes: processes_below(target)?,
            files: files.map(|file| Ok(file?.file_name())).collect::<std::io::Result<_>>()?,
            open_files: open_files.context("/proc/sys/fs/file-nr has no number")?,
            shared_kib: shared
                .and_then(|kib| kib.trim().parse().ok())
                .context("/proc/meminfo has no Shmem")?,
        })
    }
}

/// Returns the processes whose programs are below a folder.
fn processes_below(folder: &Path) -> anyhow::Result<BTreeSet<u32>> {
    let all = fs::read_dir("/proc").context("can't read /proc")?.flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // A process may have ended since, and other users' programs can't be seen.
    let is_below = |number: &u32| {
        fs::read_link(format!("/proc/{number}/exe")).is_ok_and(|program| program.starts_with(folder))
    };
    Ok(numbers.filter(is_below).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_the_folder_of_its_program() {
        let own = std::env::current_exe().unwrap();
        let folder = own.parent().unwrap();
        assert!(processes_below(folder).unwrap().contains(&std::process::id()));
        assert!(processes_below(&folder.join("elsewhere")).unwrap().is_empty());
    }
}
