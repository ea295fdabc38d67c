//! `NCCL_DEBUG`: the log lines that NCCL prints about its calls, in NCCL's format (NCCL 2.30, `debug.cc`, `init.cc`,
//! `enqueue.cc`).
//!
//! A line has the form `host:pid:tid [GPU] NCCL INFO …`. Only INIT, COLL, and DESTROY are implemented, because the
//! other subsystems have nothing to print here. Warnings have no timestamp, so that two runs print the same lines.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, Once, OnceLock};

use super::Request;
use super::communicator::Communicator;
use super::one_sided::OneSided;
use super::parameter::{self, bit, level};
use super::ranks::Ranks;
use super::strict::{self, AbortLog};
use virtual_gpu_core::handle::{CommHandle, Rank, StreamHandle};
use virtual_gpu_machine::reduction::{DataType, Operator};

struct Log {
    level: u32,
    subsystems: u64,
    host: String,
    /// `None` means standard output.
    file: Option<Mutex<File>>,
}

/// The log settings, read from the environment on first use, as in NCCL.
static LOG: OnceLock<Log> = OnceLock::new();

/// Expands the placeholders in a log file's name: `%h` is the host, `%p` the process ID, and `%%` a percent sign.
fn file_name(pattern: &str, host: &str) -> String {
    let mut name = String::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            name.push(c);
            continue;
        }
        match rest.next() {
            Some('h') => name.push_str(host),
            Some('p') => name.push_str(&std::process::id().to_string()),
            Some('%') | None => name.push('%'),
            Some(other) => name.extend(['%', other]),
        }
    }
    name
}

impl Log {
    fn from_env() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let level = parameter::level_of(variable("NCCL_DEBUG").as_deref());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim().split('.').next().unwrap_or_default().replace(['%', '/'], "-");
        let file = variable("NCCL_DEBUG_FILE").filter(|_| level > level::VERSION).and_then(|pattern| {
            let name = file_name(&pattern, &host);
            let file = File::create(&name);
            if let Err(error) = &file {
                eprintln!(
                    "virtual GPU: NCCL_DEBUG_FILE={pattern}: {name}: {error}; using standard output instead"
                );
            }
            file.ok().map(Mutex::new)
        });
        let subsystems = parameter::subsystems(std::env::var("NCCL_DEBUG_SUBSYS").ok().as_deref());
        Self { level, subsystems, host, file }
    }

    fn print(&self, line: &str) {
        let Some(file) = &self.file else {
            // A closed pipe must not make the call fail.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
            return;
        };
        let mut file = file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Use a single write, so that a concurrent reader finds complete lines.
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            // Print this only once, because if the disk is full, every later line fails, too.
            static TOLD: Once = Once::new();
            TOLD.call_once(|| eprintln!("virtual GPU: NCCL_DEBUG_FILE: {error}; some log lines are missing"));
        }
    }

    /// Returns `host:pid:tid `.
    fn prefix(&self) -> String {
        format!("{}:{}:{} ", self.host, std::process::id(), thread_number())
    }
}

/// Returns the kernel's ID for the calling thread.
fn thread_number() -> u32 {
    thread_local! { static NUMBER: Cell<u32> = const { Cell::new(0) } }
    NUMBER.with(|number| {
        if number.get() == 0 {
            let task = std::fs::read_link("/proc/thread-self").ok();
            let name = task.as_ref().and_then(|task| task.file_name()?.to_str()?.parse().ok());
            number.set(name.unwrap_or(0));
        }
        number.get()
    })
}

fn log() -> &'static Log {
    LOG.get_or_init(Log::from_env)
}

fn info(subsystem: &str, device: usize, text: impl FnOnce() -> String) {
    let log = log();
    if log.level >= level::INFO && log.subsystems & bit(subsystem) != 0 {
        log.print(&format!("{}[{device}] NCCL INFO {}", log.prefix(), text()));
    }
}

/// Formats a pointer the way C prints it.
fn pointer(address: u64) -> String {
    if address == 0 { "(nil)".to_owned() } else { format!("{address:#x}") }
}

/// Returns a GPU's PCI bus ID, in NCCL's encoding.
fn bus_id(device: usize) -> u64 {
    (device as u64 + 1) << 12
}

/// Prints a text to where the log lines are printed, at every level.
pub fn print(text: &str) {
    log().print(text);
}

/// Logs that a call failed, and why.
pub fn warn(message: &str) {
    let log = log();
    if log.level >= level::WARN {
        log.print(&format!("\n{}NCCL WARN {message}", log.prefix()));
    }
}

/// Logs the library's version, once.
pub(crate) fn version() {
    static SHOWN: OnceLock<()> = OnceLock::new();
    let log = log();
    if log.level == level::NONE || SHOWN.set(()).is_err() {
        return;
    }
    let version = strict::version();
    let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
    let text = format!("NCCL version {major}.{minor}.{patch}+cuda12.9");
    match log.level >= level::INFO {
        _ if version < VERSION_IN_FILE => println!("{text}"),
        true => log.print(&format!("{}[0] NCCL INFO {text}", log.prefix())),
        false => log.print(&text),
    }
}

/// The first version that prints its version to the log file.
const VERSION_IN_FILE: i32 = 22_200;

/// Logs that `function` has created a communicator, with three lines for each rank.
pub(crate) fn made(function: &str, comm: &Communicator, handles: &Ranks<Option<CommHandle>>) {
    version();
    let ranks = comm.ranks.len();
    for (rank, handle) in handles.iter() {
        let Some(handle) = handle else { continue };
        let (pointer, device) = (pointer(handle.0), comm.ranks[rank].device);
        let line = |state: &str| {
            format!(
                "{function} comm {pointer} rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device} busId {:x} commId {:#x} - {state}",
                bus_id(device),
                comm.id.0
            )
        };
        info("INIT", device, || line("Init START"));
        info("INIT", device, || {
            format!(
                "comm {pointer} rank {rank} nRanks {ranks} nNodes 1 localRanks {ranks} localRank {rank} MNNVL 0"
            )
        });
        info("INIT", device, || line("Init COMPLETE"));
    }
}

/// Logs how a rank's handle ends: `Destroy`, `Abort`, or `Finalize`.
pub(crate) fn ended(how: &str, comm: &Communicator, handle: CommHandle, rank: Rank) {
    let device = comm.ranks[rank].device;
    let state = match AbortLog::of_version(strict::version()) {
        _ if how != "Abort" => "START",
        AbortLog::Start => "START",
        AbortLog::Complete => "COMPLETE",
        AbortLog::LastComplete => {
            let mut others = comm.ranks.iter().filter(|(other, _)| *other != rank);
            let is_last = others.all(|(_, other)| other.process.is_some() || other.left.is_some());
            match is_last {
                true => "COMPLETE",
                false => return,
            }
        }
    };
    info("DESTROY", device, || {
        let (pointer, ranks) = (pointer(handle.0), comm.ranks.len());
        format!(
            "comm {pointer} rank {rank} nRanks {ranks} cudaDev {device} busId {:x} commId {:#x} - {how} {state}",
            bus_id(device),
            comm.id.0
        )
    });
}

/// Logs a call that moves data and has valid arguments.
pub(crate) fn call(
    comm: &Communicator,
    handle: CommHandle,
    rank: Rank,
    request: &Request,
    stream: StreamHandle,
) {
    let of_rank = &comm.ranks[rank];
    info("COLL", of_rank.device, || {
        let (send, receive, count, data_type, operator, root) = match request {
            Request::Collective(operation, buffers) => (
                buffers.send,
                buffers.receive,
                operation.count,
                operation.data_type,
                operation.operator().unwrap_or(Operator::Sum),
                operation.root().unwrap_or(Rank(0)),
            ),
            Request::Transfer(transfer, buffer) => {
                (0, *buffer, transfer.count, transfer.data_type, Operator::Sum, transfer.peer)
            }
            Request::OneSided(OneSided::Put(put)) => {
                (put.buffer, 0, put.count, put.data_type, Operator::Sum, put.peer)
            }
            Request::OneSided(OneSided::Signal { peer }) => (0, 0, 0, DataType::Int8, Operator::Sum, *peer),
            Request::OneSided(OneSided::Wait { .. }) => (0, 0, 0, DataType::Int32, Operator::Sum, Rank(0)),
        };
        let name = request.function().trim_start_matches("nccl");
        format!(
            "{name}: opCount {:x} sendbuff {} recvbuff {} count {count} datatype {} op {} root {root} comm {} [nranks={}] stream {}",
            of_rank.issued.0 + of_rank.transfer_groups.0,
            pointer(send),
            pointer(receive),
            data_type as u32,
            operator as u32,
            pointer(handle.0),
            comm.ranks.len(),
            pointer(stream.0)
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_s_name_has_the_host_and_the_process() {
        let pid = std::process::id();
        assert_eq!(file_name("/tmp/%h.%p.log", "node7"), format!("/tmp/node7.{pid}.log"));
        assert_eq!(file_name("100%%%x%", "h"), "100%%x%");
    }
}
