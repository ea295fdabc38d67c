//! `cargo course doctor`: what this machine has, what will run on it, and what stands in the way.

mod environment;
mod workshop;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cudarc::driver::{CudaContext, sys};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use lab::explain::error_text;
use lab::tier::{Tier, describe, has_plain_nccl, nvrtc_version, survey, tier_for};
use lab::{Kernels, Readable};
use serde::Serialize;

use crate::session::{BAD, DIM, GOOD, print};

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Good,
    /// The course runs, but not as it could.
    Note,
    /// Something does not work.
    Bad,
}

/// One thing that was looked at.
#[derive(Serialize)]
pub(crate) struct Finding {
    pub(crate) what: String,
    pub(crate) status: Status,
    pub(crate) says: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) help: Option<String>,
}

impl Finding {
    pub(crate) fn new(what: impl Into<String>, status: Status, says: impl Into<String>) -> Self {
        Self { what: what.into(), status, says: says.into(), help: None }
    }

    pub(crate) fn good(what: impl Into<String>, says: impl Into<String>) -> Self {
        Self::new(what, Status::Good, says)
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Looks at everything, and prints what it finds.
pub(crate) fn run(root: &Path, json: bool, for_workshop: bool) -> anyhow::Result<ExitCode> {
    let mut findings = Vec::new();
    findings.extend(libraries());
    findings.extend(tiers());
    findings
        .extend(gpus().unwrap_or_else(|error| vec![Finding::new("GPUs", Status::Bad, error_text(&error))]));
    findings.extend(environment::findings(std::env::vars_os()));
    findings.push(memory());
    findings.push(smoke_test());
    if for_workshop {
        findings.extend(workshop::findings(root)?);
    }
    if json {
        print(&format!("{}\n", serde_json::to_string_pretty(&findings)?))?;
    } else {
        print(&shown(&findings))?;
    }
    if for_workshop {
        let file = workshop::write(root, &findings)?;
        eprintln!("\nsend this file to whoever holds the workshop: {}", file.display());
    }
    let is_good = findings.iter().all(|finding| finding.status != Status::Bad);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shown(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { what, status, says, help } in findings {
        let mark = match status {
            Status::Good => format!("{GOOD}✓{GOOD:#}"),
            Status::Note => "·".to_owned(),
            Status::Bad => format!("{BAD}✗{BAD:#}"),
        };
        let says = says.replace('\n', &format!("\n{:1$}", "", width + 4));
        let _ = writeln!(text, "{mark} {what:width$}  {says}");
        if let Some(help) = help {
            let _ = writeln!(text, "{:1$}{DIM}{help}{DIM:#}", "", width + 4);
        }
    }
    text
}

/// The driver, NCCL and NVRTC, as they are installed.
fn libraries() -> Vec<Finding> {
    let survey = survey();
    let driver = match &survey.gpus {
        Ok(gpus) => Finding::good("driver", format!("{gpus} GPUs, {}", survey.cuda_version())),
        Err(why) => {
            Finding::new("driver", Status::Note, why.clone()).help("the course runs on GPUs in software")
        }
    };
    let nccl = match (&survey.nccl, &survey.gpus) {
        (Ok(_), _) => {
            let name =
                if has_plain_nccl() { "" } else { ", as libnccl.so.2 only: the course finds it there, too" };
            Finding::good("NCCL", format!("{}{name}", survey.nccl_version()))
        }
        (Err(why), Err(_)) => Finding::new("NCCL", Status::Note, why.clone()),
        (Err(why), Ok(_)) => Finding::new("NCCL", Status::Bad, why.clone()).help(format!(
            "LD_LIBRARY_PATH is {}; NCCL comes with NVIDIA's packages (libnccl2), or pip's nvidia-nccl-cu12",
            std::env::var("LD_LIBRARY_PATH")
                .map_or_else(|_| "not set".to_owned(), |path| format!("`{path}`"))
        )),
    };
    let nvrtc = match nvrtc_version() {
        Ok(version) => Finding::good("NVRTC", version),
        Err(why) => Finding::new("NVRTC", Status::Note, why).help("only authors of kernels need it"),
    };
    vec![driver, nccl, nvrtc]
}

/// What the checks will run on, by the number of ranks.
fn tiers() -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let mut last = None;
    for ranks in [1, 2, 4, 8] {
        let tier = tier_for(ranks);
        if last.as_ref() == Some(&tier.as_ref().ok().copied()) {
            continue;
        }
        last = Some(tier.as_ref().ok().copied());
        let what = format!("from {ranks} rank{}", if ranks == 1 { "" } else { "s" });
        findings.push(match describe(ranks) {
            Ok(says) => Finding::good(what, says),
            Err(error) => {
                Finding::new(what, if ranks == 1 { Status::Bad } else { Status::Note }, error_text(&error))
            }
        });
    }
    findings
}

/// The GPUs of the tier for one rank: names, memory, and who reaches whose memory.
fn gpus() -> anyhow::Result<Vec<Finding>> {
    let tier = lab::attach(1)?;
    let count = usize::try_from(CudaContext::device_count()?)?;
    let mut findings = Vec::new();
    let mut unreachable = Vec::new();
    for ordinal in 0..count {
        let context = CudaContext::new(ordinal)?;
        let (major, minor) = context.compute_capability()?;
        context.bind_to_thread()?;
        let (free, total) = cudarc::driver::result::mem_get_info()?;
        let says = format!(
            "{}, compute capability {major}.{minor}, {} of {} GiB free",
            context.name()?,
            gib(free),
            gib(total)
        );
        findings.push(Finding::good(format!("GPU {ordinal}"), says));
        for peer in (0..count).filter(|&peer| peer != ordinal) {
            let mut reaches = 0;
            // SAFETY: the number can be written, and both GPUs exist.
            let answer = unsafe { sys::cuDeviceCanAccessPeer(&mut reaches, ordinal as i32, peer as i32) };
            answer.result()?;
            if reaches == 0 {
                unreachable.push(format!("{ordinal} → {peer}"));
            }
        }
    }
    if count > 1 {
        findings.push(match unreachable.as_slice() {
            [] => Finding::good("peer access", "each GPU reaches each other's memory"),
            pairs if pairs.len() == count * (count - 1) => Finding::new(
                "peer access",
                Status::Note,
                "no GPU reaches another's memory",
            )
            .help(match tier {
                Tier::Virtual => "kernels can't; copies and NCCL take the ways of the node that is modelled",
                _ => "copies and NCCL go through the host's memory, and kernels can't",
            }),
            pairs => Finding::new("peer access", Status::Note, format!("not from {}", pairs.join(", ")))
                .help("copies and NCCL go through the host's memory there, which is slower"),
        });
    }
    Ok(findings)
}

fn gib(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 30))
}

/// The host's memory that is free, as Linux tells it.
fn memory() -> Finding {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok()
    });
    match kib {
        Some(kib) if kib < 2 << 20 => {
            Finding::new("host memory", Status::Note, format!("{} GiB free", gib(kib << 10)))
                .help("building takes about 2 GiB")
        }
        Some(kib) => Finding::good("host memory", format!("{} GiB free", gib(kib << 10))),
        None => Finding::new("host memory", Status::Note, "/proc/meminfo does not tell it"),
    }
}

/// Ranks of the smoke test.
const RANKS: usize = 2;

/// A kernel on each of two GPUs and an all-reduce between them, with a look at the numbers.
fn smoke_test() -> Finding {
    let started = Instant::now();
    match smoke() {
        Ok(ranks) => {
            let took = format!(
                "a kernel and an all-reduce on {ranks} GPUs, {:.2} s",
                started.elapsed().as_secs_f64()
            );
            match started.elapsed() > Duration::from_secs(10) {
                true => Finding::new("smoke test", Status::Note, took)
                    .help("that is slow: is something else running?"),
                false => Finding::good("smoke test", took),
            }
        }
        Err(error) => Finding::new("smoke test", Status::Bad, error_text(&error)),
    }
}

fn smoke() -> anyhow::Result<usize> {
    let ranks = if tier_for(RANKS).is_ok() { RANKS } else { 1 };
    lab::attach(ranks)?;
    let id = Id::new().readable()?;
    let sums = lab::each_rank(ranks, |rank| {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let kernels = Kernels::load(stream.context())?;
        let comm = Comm::from_rank(stream.clone(), rank, ranks, id).readable()?;
        let mut buffer = stream.clone_htod(&[1.0f32 + rank as f32; 1000])?;
        kernels.scale(&stream, &mut buffer.as_view_mut(), 2.0)?;
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).readable()?;
        let sums = stream.clone_dtoh(&buffer)?;
        stream.synchronize()?;
        Ok(sums)
    })?;
    let expected: f32 = (1..=ranks).map(|rank| 2.0 * rank as f32).sum();
    for (rank, sums) in sums.iter().enumerate() {
        let wrong = sums.iter().find(|sum| **sum != expected);
        ensure!(
            wrong.is_none(),
            "rank {rank} has the sum {}, and {expected} is right",
            wrong.context("one")?
        );
    }
    Ok(ranks)
}
