//! Ranks in separate processes: how a check starts them, gives them their ids, and collects their errors.
//!
//! Rank 0's process makes the ids and prints them, and the check passes them to the others.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context, bail, ensure};
use cudarc::nccl::result::get_uniqueid;
use cudarc::nccl::sys::ncclUniqueId;

use crate::device::untracked;
use crate::raw::Rank;
use crate::twins::{Said, TestRank};

/// The code that each rank runs.
pub(crate) type Program = fn(&TestRank) -> Said;

/// The variable that tells a process what to run: `PROGRAM FIRST COUNT RANKS WRONG`.
const ORDER: &str = "RANK_PROCESS";
const IDS: &str = "ids: ";
const SAID: &str = "said: ";

/// A process that runs some of the ranks.
pub(crate) struct Process {
    pub(crate) child: Child,
    ids: ChildStdin,
    lines: Receiver<String>,
}

/// How a program is run.
pub(crate) struct Plan<'a> {
    pub(crate) program: &'a str,
    /// The number of ranks in each process, as threads.
    pub(crate) layout: &'a [usize],
    pub(crate) wrong: bool,
    pub(crate) env: &'a [(&'a str, &'a str)],
}

impl Process {
    /// Returns the rest of the next line that starts with `prefix`. If the process prints nothing, the harness ends the
    /// check.
    pub(crate) fn line(&self, prefix: &str) -> anyhow::Result<String> {
        loop {
            let line = self.lines.recv().with_context(|| format!("no line `{prefix}…`"))?;
            if let Some(rest) = line.strip_prefix(prefix) {
                return Ok(rest.to_owned());
            }
        }
    }

    pub(crate) fn give(&mut self, line: &str) -> anyhow::Result<()> {
        Ok(writeln!(self.ids, "{line}")?)
    }
}

/// Starts a program's processes, and gives rank 0's ids to all of them.
pub(crate) fn start(plan: &Plan<'_>) -> anyhow::Result<Vec<Process>> {
    let ranks: usize = plan.layout.iter().sum();
    let mut processes = Vec::new();
    let mut first = 0;
    for &count in plan.layout {
        let order = format!("{} {first} {count} {ranks} {}", plan.program, u8::from(plan.wrong));
        processes.push(spawn(&order, plan.env)?);
        first += count;
    }
    share_ids(&mut processes)?;
    Ok(processes)
}

/// Passes the ids that the first process made to the others.
pub(crate) fn share_ids(processes: &mut [Process]) -> anyhow::Result<()> {
    let ids = processes[0].line(IDS)?;
    processes.iter_mut().skip(1).try_for_each(|process| process.give(&ids))
}

pub(crate) fn spawn(order: &str, env: &[(&str, &str)]) -> anyhow::Result<Process> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(ORDER, order)
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (ids, out) = (child.stdin.take().context("its input")?, child.stdout.take().context("its output")?);
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line).ok())
    });
    Ok(Process { child, ids, lines })
}

/// Runs a program, and returns each rank's errors, in rank order. Every process has to end by itself.
pub(crate) fn run(plan: &Plan<'_>) -> anyhow::Result<Vec<Said>> {
    let processes = start(plan)?;
    let mut said = Vec::new();
    for (mut process, &count) in processes.into_iter().zip(plan.layout) {
        for _ in 0..count {
            said.push(process.said()?);
        }
        let status = process.child.wait()?;
        ensure!(status.success(), "a process ended with {status}");
    }
    Ok(said)
}

impl Process {
    /// Returns the errors from the next rank in this process.
    pub(crate) fn said(&self) -> anyhow::Result<Said> {
        let line = self.line(SAID)?;
        match line.split_once(' ') {
            None if line == "ok" => Ok(Ok(())),
            Some(("error", text)) => Ok(Err(text.replace("\\n", "\n"))),
            _ => bail!("a rank printed {line}"),
        }
    }
}

/// Runs the program that this process was started for, if any.
pub(crate) fn obey(programs: &[(&str, Program)]) -> Option<ExitCode> {
    let order = std::env::var(ORDER).ok()?;
    let fields: Vec<&str> = order.split(' ').collect();
    let [program, first, count, ranks, wrong] = fields[..] else { panic!("{ORDER}={order}") };
    let (_, program) = programs.iter().find(|(name, _)| *name == program).expect(program);
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let (first, count, n, wrong) = (number(first), number(count), number(ranks), number(wrong) == 1);
    lab::attach(1).unwrap();
    let ids = if first == 0 { make_ids() } else { read_ids() };
    let run = |rank: usize| {
        // A failure is sticky, so each twin uses different GPUs.
        let first_gpu = if wrong { 4 } else { 0 };
        // If a process sees fewer GPUs, its ranks count from 0.
        let gpus = cudarc::driver::CudaContext::device_count().unwrap() as usize;
        let stream = untracked((first_gpu + rank) % gpus).new_stream().unwrap();
        let own = Rank::try_join(ids[0], rank, n, stream)?;
        program(&TestRank { rank, n, wrong, first_gpu, own, ids })
    };
    let said: Vec<Said> = std::thread::scope(|scope| {
        let threads: Vec<_> = (first..first + count).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for said in said {
        match said {
            Ok(()) => println!("{SAID}ok"),
            Err(text) => println!("{SAID}error {}", text.replace('\n', "\\n")),
        }
    }
    Some(ExitCode::SUCCESS)
}

fn make_ids() -> [ncclUniqueId; 2] {
    let ids = [get_uniqueid().unwrap(), get_uniqueid().unwrap()];
    let text = ids.map(|id| hex(&bytes(id)));
    println!("{IDS}{}", text.join(" "));
    ids
}

fn read_ids() -> [ncclUniqueId; 2] {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    if std::env::var_os("NCCL_COMM_ID").is_some() {
        // In this case, every process has the same id.
        return [get_uniqueid().unwrap(); 2];
    }
    let ids: Vec<_> = line.split_whitespace().map(|text| id(&unhex(text))).collect();
    ids.try_into().expect("two ids")
}

/// Returns an id's bytes.
pub(crate) fn bytes(id: ncclUniqueId) -> [u8; 128] {
    id.internal.map(|byte| byte as u8)
}

/// Returns the id that consists of these 128 bytes.
pub(crate) fn id(bytes: &[u8]) -> ncclUniqueId {
    let mut internal = [0; 128];
    internal.iter_mut().zip(bytes).for_each(|(to, &from)| *to = from as _);
    ncclUniqueId { internal }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}
