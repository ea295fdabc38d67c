//! Compares versions of NCCL with the virtual one, and with what the course expects of any NCCL.

pub(crate) mod log;
pub(crate) mod probe;
mod symbols;
mod variables;

use std::fmt::{Display, Formatter};
use std::path::Path;

use anyhow::Context;

use crate::elf::Elf;
use crate::probe::{Probe, Results};
use crate::report::{Comparison, Report};
use crate::wheel;

const PACKAGE: &str = "nvidia-nccl-cu12";

/// The versions that are compared, in addition to the newest.
const VERSIONS: [&str; 5] = ["2.18.3", "2.21.5", "2.23.4", "2.27.7", "2.30.7"];

/// An NCCL version, as `ncclGetVersion` has encoded it since 2.9: 10000 × major + 100 × minor + patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32);

impl Version {
    const fn new(major: u32, minor: u32) -> Self {
        Self(10_000 * major + 100 * minor)
    }

    fn read(text: &str) -> anyhow::Result<Self> {
        let numbers: Result<Vec<u32>, _> = text.split('.').take(3).map(str::parse).collect();
        match numbers.with_context(|| format!("NCCL {text}"))?[..] {
            [major, minor, ref patch @ ..] => {
                Ok(Self(Self::new(major, minor).0 + patch.first().copied().unwrap_or(0)))
            }
            _ => anyhow::bail!("`{text}` is not a version of NCCL"),
        }
    }
}

impl Display for Version {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0 / 10_000, self.0 / 100 % 100, self.0 % 100)
    }
}

/// What the virtual NCCL returns.
struct Ours {
    without_gpu: Results,
    with_gpu: Results,
}

/// The calls that succeed in NCCL without a GPU. The virtual NCCL needs one for them, because it has no ids and groups
/// apart from its engine.
const NEED_ENGINE: [&str; 4] = ["ncclGetUniqueId", "ncclGroup", "2.30: ncclGroup", "cudarc's id"];

/// The functions that have started CUDA before they read their arguments only since the version given here. The virtual
/// NCCL has the newer order.
const NEWER_ORDER: (&str, Version) = ("ncclCommInitAll", Version::new(2, 23));

/// The start of the names of calls that the probe makes only in newer versions, and the first such version.
const NEWER_CALLS: (&str, Version) = ("2.30: ", Version::new(2, 30));

/// The code that is newer than the others, and its first version.
const NEWER_CODE: (&str, Version) = ("ncclGetErrorString(8)", Version::new(2, 30));

/// Compares each version.
pub(crate) fn compare(root: &Path, report: &mut Report) -> anyhow::Result<()> {
    let mut versions = VERSIONS.map(str::to_owned).to_vec();
    match wheel::newest(PACKAGE) {
        Ok(newest) if versions.contains(&newest) => {}
        Ok(newest) => versions.push(newest),
        Err(why) => report.skip("the newest NCCL", &why),
    }
    let ours = Ours { without_gpu: ours("")?, with_gpu: ours("0")? };
    for version in &versions {
        match wheel::fetch(root, PACKAGE, version) {
            Ok(folder) => {
                let library = folder.join("nvidia/nccl/lib/libnccl.so.2");
                let compared = comparison(root, &library, Version::read(version)?, &ours);
                report.add(compared.with_context(|| format!("NCCL {version}"))?);
            }
            Err(why) => report.skip(format!("NCCL {version}"), &why),
        }
    }
    Ok(())
}

/// Returns what the virtual NCCL returns on a machine whose GPUs are limited by `CUDA_VISIBLE_DEVICES`.
fn ours(visible: &str) -> anyhow::Result<Results> {
    let driver = lab::tier::built_library("libvirtual_cuda.so")?;
    let nccl = lab::tier::built_library("libvirtual_nccl.so")?;
    let variables = [("CUDA_VISIBLE_DEVICES", visible), ("NCCL_SOCKET_IFNAME", "lo")];
    Probe::Nccl.results(&[&driver, &nccl], &variables).context("the virtual NCCL")
}

fn comparison(root: &Path, library: &Path, version: Version, ours: &Ours) -> anyhow::Result<Comparison> {
    let mut comparison = Comparison::new(format!("NCCL {version}"));
    let stub = lab::tier::built_library("libsystem_nccl.so")?;
    let theirs = Probe::Nccl.results(&[library, &stub], &[("NCCL_SOCKET_IFNAME", "lo")])?;
    calls(&mut comparison, &theirs, version, ours);
    // The package is for CUDA 12.
    let built_for = lab::tier::cuda_of_nccl(library).map_or_else(String::new, |cuda| cuda.to_string());
    comparison.same(
        "the CUDA version that the course finds in it",
        &"12",
        &built_for.split('.').next().unwrap_or(""),
    );
    let elf = Elf::read(library)?;
    symbols::compare(&mut comparison, &elf, version)?;
    variables::compare(&mut comparison, root, &elf, version)?;
    log::compare(&mut comparison, library)?;
    Ok(comparison)
}

/// Compares what the calls of the probe return.
fn calls(comparison: &mut Comparison, theirs: &Results, version: Version, ours: &Ours) {
    let nothing = String::new();
    for (call, their_result) in theirs {
        let needs_engine = NEED_ENGINE.iter().any(|name| call.starts_with(name));
        let results = if needs_engine { &ours.with_gpu } else { &ours.without_gpu };
        let our_result = results.get(call).unwrap_or(&nothing);
        if call.ends_with("version") {
            comparison.same(call, their_result, &version.0.to_string());
        } else if call == NEWER_CODE.0 && version < NEWER_CODE.1 {
            comparison.same(call, &their_result.as_str(), &"unknown result code");
        } else if !(call.starts_with(NEWER_ORDER.0) && version < NEWER_ORDER.1) {
            comparison.same(call, their_result, our_result);
        }
    }
    let known = |call: &&String| version >= NEWER_CALLS.1 || !call.starts_with(NEWER_CALLS.0);
    comparison.same("the number of calls", &theirs.len(), &ours.without_gpu.keys().filter(known).count());
}
