//! Bounds on what an answer's processes take: memory, processes, and threads. A thread looks at them ten times a second, and
//! ends those that take too much.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// How often the processes are looked at.
const PERIOD: Duration = Duration::from_millis(100);
/// The most memory for one check or one compilation, in bytes. The largest check of the course takes a tenth of it.
const MOST_BYTES: u64 = 2 << 30;
/// The most processes. Checks start up to five.
const MOST_PROCESSES: usize = 200;
/// The most threads in all these processes.
const MOST_THREADS: u64 = 2000;

/// The processes under watch.
#[derive(Clone)]
pub(crate) struct Limits(Arc<Mutex<Watched>>);

/// For each process that was started: why it was ended, if it was.
type Watched = BTreeMap<u32, Option<String>>;

/// A process, as `/proc` shows it.
struct Process {
    parent: u32,
    threads: u64,
    bytes: u64,
}

impl Limits {
    /// Starts the thread.
    pub(crate) fn start() -> Self {
        let limits = Self(Arc::default());
        let watched = Arc::downgrade(&limits.0);
        thread::spawn(move || {
            while let Some(watched) = watched.upgrade() {
                let mut watched = lock(&watched);
                if watched.values().any(Option::is_none) {
                    end_those_that_take_too_much(&mut watched);
                }
                drop(watched);
                thread::sleep(PERIOD);
            }
        });
        limits
    }

    /// Watches a process and all that it starts.
    pub(crate) fn watch(&self, process: u32) {
        lock(&self.0).insert(process, None);
    }

    /// Forgets a process that has ended. Returns what it took too much of, if that is why it was ended.
    pub(crate) fn forget(&self, process: u32) -> Option<String> {
        lock(&self.0).remove(&process).flatten()
    }
}

fn lock(watched: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn end_those_that_take_too_much(watched: &mut Watched) {
    let processes = processes();
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (&process, Process { parent, .. }) in &processes {
        children.entry(*parent).or_default().push(process);
    }
    for (&root, why) in watched.iter_mut().filter(|(_, why)| why.is_none()) {
        let mut all = vec![root];
        let mut at = 0;
        while let Some(process) = all.get(at) {
            all.extend(children.get(process).into_iter().flatten());
            at += 1;
        }
        let all: Vec<(u32, &Process)> =
            all.into_iter().filter_map(|process| Some((process, processes.get(&process)?))).collect();
        *why = excess(all.iter().map(|(_, process)| *process));
        if why.is_some() {
            for (process, _) in all {
                // SAFETY: `kill` takes two numbers. The root has not been reaped, so its number is still its own.
                unsafe { libc::kill(process.cast_signed(), libc::SIGKILL) };
            }
        }
    }
}

/// Returns what processes take too much of.
fn excess<'a>(processes: impl Iterator<Item = &'a Process> + Clone) -> Option<String> {
    let bytes: u64 = processes.clone().map(|process| process.bytes).sum();
    let threads: u64 = processes.clone().map(|process| process.threads).sum();
    let count = processes.count();
    if bytes > MOST_BYTES {
        Some(format!("it took more than {} GiB of memory", MOST_BYTES >> 30))
    } else if count > MOST_PROCESSES {
        Some(format!("it started more than {MOST_PROCESSES} processes"))
    } else if threads > MOST_THREADS {
        Some(format!("it started more than {MOST_THREADS} threads"))
    } else {
        None
    }
}

/// Returns all processes of this machine.
fn processes() -> BTreeMap<u32, Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .filter_map(|entry| {
            let process = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            Some((process, parse(&stat)?))
        })
        .collect()
}

/// Parses a line of `/proc/PID/stat`, as proc(5) describes it: field 4 is the parent, 20 is the number of threads, and 24
/// is the resident memory in pages.
fn parse(stat: &str) -> Option<Process> {
    // The second field is a name in parentheses, which may contain blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    // SAFETY: `sysconf` takes a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    Some(Process { parent: number(4)?.try_into().ok()?, threads: number(20)?, bytes: number(24)? * page })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn this_process_is_found() {
        let all = processes();
        let own = &all[&std::process::id()];
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(own.threads >= 1 && own.bytes > 100_000, "{} threads, {} bytes", own.threads, own.bytes);
        assert!(parse("7 (a ) name) R 3 0").is_none());
    }

    #[test]
    fn each_excess_is_named() {
        let process = |bytes, threads| Process { parent: 1, threads, bytes };
        let excess = |processes: &[Process]| excess(processes.iter()).unwrap_or_default();
        assert_eq!(excess(&[process(1 << 30, 10), process(1 << 30, 10)]), "");
        assert!(excess(&[process(2 << 30, 1), process(2 << 30, 1)]).contains("memory"));
        assert!(excess(&[process(0, 2001)]).contains("threads"));
        let many: Vec<Process> = (0..201).map(|_| process(0, 1)).collect();
        assert!(excess(&many).contains("processes"));
    }

    #[test]
    fn a_process_within_the_limits_stays() {
        let limits = Limits::start();
        let mut sleeper = Command::new("sleep").arg("0.3").spawn().unwrap();
        limits.watch(sleeper.id());
        assert!(sleeper.wait().unwrap().success());
        assert_eq!(limits.forget(sleeper.id()), None);
    }
}
