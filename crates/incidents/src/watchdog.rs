//! Notices that a job hangs or has ended, and writes what is left of it, as PyTorch's watchdog does.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lab::flight_recorder::{Dump, Entry, GroupConfig, GroupStatus, State, VERSION};

use crate::job::{GROUPS, Record, Shared, TIMEOUT_MS, WORLD_SIZE};
use crate::log;

/// How many of its latest entries a flight recorder keeps.
const ENTRIES: usize = 5;

/// How often the watchdog looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// How often in a row nothing must have changed.
const QUIET: usize = 4;

/// How long a recording may take. It takes less than a second.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until no rank's program runs, and nothing changes.
///
/// # Errors
/// Fails if that takes too long, for example because a rank has panicked.
pub(crate) fn until_over(shared: &Shared) -> anyhow::Result<()> {
    let (mut quiet, since) = (0, Instant::now());
    while quiet < QUIET {
        std::thread::sleep(INTERVAL);
        let runs = (0..WORLD_SIZE).any(|rank| shared.rank(rank).runs());
        quiet = if shared.refresh() || runs || shared.has_call_that_ends() { 0 } else { quiet + 1 };
        ensure!(since.elapsed() < LIMIT, "a rank still runs after {LIMIT:?}");
    }
    Ok(())
}

/// Writes the dumps and the log.
pub(crate) fn write(shared: &Shared, folder: &Path) -> anyhow::Result<()> {
    let threads: Vec<String> = (0..WORLD_SIZE).map(|rank| shared.rank(rank).thread.clone()).collect();
    let nccl = std::fs::read_to_string(folder.join(log::FILE)).context("NCCL's log")?;
    let mut lines = String::new();
    for (rank, nccl) in log::of_ranks(&nccl, &threads).into_iter().enumerate() {
        let record = shared.rank(rank);
        for line in nccl {
            writeln!(lines, "{rank}: {line}")?;
        }
        let last = match (&record.error, first_unfinished(&record)) {
            _ if record.is_killed => None,
            (Some(error), _) => Some(format!("Error: {error}")),
            (None, Some(entry)) => Some(timeout(rank, entry)),
            (None, None) => None,
        };
        if let Some(last) = last {
            writeln!(lines, "{rank}: {last}")?;
        }
        if !record.is_killed {
            std::fs::write(folder.join(format!("rank_{rank}.json")), json(&dump(&record))?)?;
        }
    }
    std::fs::write(folder.join("job.log"), lines)?;
    Ok(())
}

fn first_unfinished(record: &Record) -> Option<&Entry> {
    record.calls.iter().map(|call| &call.entry).find(|entry| entry.state != State::Completed)
}

/// Returns what PyTorch's watchdog prints for a call that does not end.
fn timeout(rank: usize, entry: &Entry) -> String {
    let (number, kind) = match entry.is_p2p {
        true => (entry.p2p_seq_id, entry.profiling_name.split_once(' ').map_or("", |(name, _)| name)),
        false => (entry.collective_seq_id, entry.profiling_name.as_str()),
    };
    let kind = match kind.trim_start_matches("nccl:") {
        "all_reduce" | "all_reduce_barrier" => "ALLREDUCE",
        "broadcast" => "BROADCAST",
        "_all_gather_base" => "_ALLGATHER_BASE",
        "_reduce_scatter_base" => "_REDUCE_SCATTER_BASE",
        "send" => "SEND",
        _ => "RECV",
    };
    let (input, output) = entry.elements();
    format!(
        "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn={input}, \
         NumelOut={output}, Timeout(ms)={TIMEOUT_MS})"
    )
}

fn dump(record: &Record) -> Dump {
    let groups = record
        .groups
        .iter()
        .filter_map(|(&name, &number)| Some((GROUPS.iter().find(|group| group.name == name)?, number)));
    let config = groups.clone().map(|(group, _)| {
        let (name, desc) = (group.name.to_owned(), group.desc.to_owned());
        (group.name.to_owned(), GroupConfig { name, desc, ranks: format!("{:?}", group.ranks) })
    });
    let status = groups.filter_map(|(group, number)| {
        let last = |is_included: fn(State) -> bool| {
            let mut entries = record.calls.iter().map(|call| &call.entry);
            let last = entries.rfind(|entry| {
                entry.process_group.0 == group.name && !entry.is_p2p && is_included(entry.state)
            });
            last.map_or("-1".to_owned(), |entry| entry.collective_seq_id.to_string())
        };
        let is_used = record.calls.iter().any(|call| call.entry.process_group.0 == group.name);
        let status = GroupStatus {
            last_enqueued_collective: last(|_| true),
            last_started_collective: last(|state| state != State::Scheduled),
            last_completed_collective: last(|state| state == State::Completed),
        };
        is_used.then(|| (number.to_string(), status))
    });
    let entries = record.calls.iter().map(|call| call.entry.clone());
    let entries: Vec<Entry> = entries.skip(record.calls.len().saturating_sub(ENTRIES)).collect();
    Dump { version: VERSION.to_owned(), pg_config: config.collect(), pg_status: status.collect(), entries }
}

/// Returns a dump as JSON with a line for each group and each entry.
fn json(dump: &Dump) -> anyhow::Result<String> {
    let mut text = format!("{{\n\"version\": {},\n", serde_json::to_string(&dump.version)?);
    let members = |lines: Vec<String>| lines.join(",\n");
    let member = |name: &str, value: String| format!("  {name:?}: {value}");
    let config = dump.pg_config.iter().map(|(name, config)| Ok(member(name, serde_json::to_string(config)?)));
    let config = members(config.collect::<anyhow::Result<_>>()?);
    let status = dump.pg_status.iter().map(|(name, status)| Ok(member(name, serde_json::to_string(status)?)));
    let status = members(status.collect::<anyhow::Result<_>>()?);
    let entries = dump.entries.iter().map(|entry| Ok(format!("  {}", serde_json::to_string(entry)?)));
    let entries = members(entries.collect::<anyhow::Result<_>>()?);
    write!(
        text,
        "\"pg_config\": {{\n{config}\n}},\n\"pg_status\": {{\n{status}\n}},\n\"entries\": [\n{entries}\n]\n}}\n"
    )?;
    Ok(text)
}
