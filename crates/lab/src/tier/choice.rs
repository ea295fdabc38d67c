//! Chooses the tier for a number of ranks, and explains the choice.

use anyhow::{bail, ensure};

use super::survey::{NcclVersion, Survey, survey};

/// The number of ranks that may share a GPU, as NCCL documents for `NCCL_MULTI_RANK_GPU_ENABLE`.
pub(super) const RANKS_PER_GPU: usize = 2;

/// The first NCCL version that lets ranks share a GPU.
const SHARING_NCCL: NcclVersion = NcclVersion::new(2, 30, 0);

/// The number of GPUs on the virtual tier, unless `VIRTUAL_GPU_COUNT` or [`TOPOLOGY`] sets another number.
const VIRTUAL_GPUS: usize = 8;

/// The variable that names the machine whose times the virtual tier models.
pub(super) const TOPOLOGY: &str = "VIRTUAL_GPU_TOPOLOGY";

/// The variable that requests a tier.
pub(crate) const ASKED: &str = "LAB_TIER";

/// The libraries behind cudarc's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The installed driver and NCCL, with a GPU for each rank.
    Real,
    /// The installed driver and NCCL ≥ 2.30, with two ranks on each GPU.
    Shared,
    /// The virtual GPU.
    Virtual,
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Real => "real",
            Self::Shared => "shared",
            Self::Virtual => "virtual",
        })
    }
}

/// Chooses a tier that can run this many ranks, without loading the libraries that cudarc uses.
///
/// # Errors
/// Fails if `LAB_TIER` names an unknown tier, or a tier that can't run this many ranks here. The error contains the
/// reason.
pub fn tier_for(ranks: usize) -> anyhow::Result<Tier> {
    let tier = if is_virtual_requested() {
        Tier::Virtual
    } else {
        let asked = std::env::var_os(ASKED).unwrap_or_else(|| "auto".into());
        choose(&asked.to_string_lossy(), ranks, survey())?
    };
    if tier == Tier::Virtual {
        // The driver rejects an invalid count when it starts. Only then does it report how many GPUs a topology has.
        let count = std::env::var("VIRTUAL_GPU_COUNT").ok().and_then(|count| count.trim().parse().ok());
        let default = if std::env::var_os(TOPOLOGY).is_some() { usize::MAX } else { VIRTUAL_GPUS };
        let gpus = count.filter(|&gpus| gpus > 0).unwrap_or(default);
        ensure!(ranks <= gpus, "needs {ranks} GPUs, but the virtual tier has {gpus} (VIRTUAL_GPU_COUNT)");
    }
    Ok(tier)
}

/// Returns whether `LAB_TIER` requests the virtual tier. Then nothing else about this machine matters.
pub(super) fn is_virtual_requested() -> bool {
    std::env::var(ASKED).is_ok_and(|tier| tier.trim() == "virtual")
}

fn choose(asked: &str, ranks: usize, survey: &Survey) -> anyhow::Result<Tier> {
    let gpus = survey.driver.as_ref().map(|driver| driver.gpus);
    match asked.trim() {
        "auto" | "" => Ok(match (gpus, &survey.nccl) {
            (Ok(gpus), Ok(_)) if gpus >= ranks => Tier::Real,
            _ => Tier::Virtual,
        }),
        "real" => {
            let gpus = gpus.map_err(|why| anyhow::anyhow!("LAB_TIER=real: {why}"))?;
            survey.nccl.as_ref().map_err(|why| anyhow::anyhow!("LAB_TIER=real: {why}"))?;
            ensure!(gpus >= ranks, "needs {ranks} GPUs, but this machine has {gpus} (LAB_TIER=real)");
            Ok(Tier::Real)
        }
        "shared" => {
            let gpus = gpus.map_err(|why| anyhow::anyhow!("LAB_TIER=shared: {why}"))?;
            let version = *survey.nccl.as_ref().map_err(|why| anyhow::anyhow!("LAB_TIER=shared: {why}"))?;
            ensure!(
                version >= SHARING_NCCL,
                "LAB_TIER=shared: NCCL {version} doesn't let ranks share a GPU; this needs NCCL 2.30 or later"
            );
            let most = gpus * RANKS_PER_GPU;
            ensure!(
                most >= ranks,
                "needs {ranks} ranks, but {gpus} shared GPUs have room for {most} (LAB_TIER=shared)"
            );
            Ok(Tier::Shared)
        }
        other => bail!("LAB_TIER={other}: must be one of auto, real, shared, virtual"),
    }
}

/// Returns a line that explains which tier `ranks` ranks run on here, and why.
///
/// # Errors
/// Fails like [`tier_for`].
pub fn describe(ranks: usize) -> anyhow::Result<String> {
    let survey = survey();
    let gpus = survey.driver.as_ref().map_or(0, |driver| driver.gpus);
    let gpu = if gpus == 1 { "GPU" } else { "GPUs" };
    Ok(match (tier_for(ranks)?, &survey.nccl) {
        (Tier::Real, Ok(nccl)) => format!("real: {gpus} {gpu}, NCCL {nccl}"),
        (Tier::Shared, Ok(nccl)) => {
            format!("shared: {gpus} {gpu}, {RANKS_PER_GPU} ranks on each, NCCL {nccl}")
        }
        (_, nccl) => {
            let why = match (&survey.driver, nccl) {
                _ if is_virtual_requested() => "requested by LAB_TIER".into(),
                (Err(why), _) => why.clone(),
                (Ok(_), Err(why)) => why.clone(),
                (Ok(_), Ok(_)) => format!("{ranks} ranks, but only {gpus} real GPUs"),
            };
            format!("virtual: GPUs in software; {why}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::survey::{CudaVersion, Driver};

    const OLD: NcclVersion = NcclVersion::new(2, 22, 5);
    const NEW: NcclVersion = NcclVersion::new(2, 30, 7);

    fn machine(gpus: Result<usize, &str>, nccl: Result<NcclVersion, &str>) -> Survey {
        let driver = gpus.map(|gpus| Driver { gpus, cuda: CudaVersion::new(12, 9), has_peer_access: true });
        Survey { driver: driver.map_err(str::to_owned), nccl: nccl.map_err(str::to_owned) }
    }

    #[test]
    fn auto_uses_real_gpus_if_there_are_enough() {
        let two = machine(Ok(2), Ok(NEW));
        assert_eq!(choose("auto", 2, &two).unwrap(), Tier::Real);
        assert_eq!(choose("auto", 3, &two).unwrap(), Tier::Virtual);
        assert_eq!(choose("auto", 1, &machine(Ok(2), Err("none"))).unwrap(), Tier::Virtual);
        assert_eq!(choose("auto", 1, &machine(Err("none"), Err("none"))).unwrap(), Tier::Virtual);
    }

    #[test]
    fn asking_for_a_missing_tier_fails_with_the_reason() {
        let none = machine(Err("no NVIDIA driver is installed"), Err("not looked for"));
        let error = choose("real", 1, &none).unwrap_err().to_string();
        assert_eq!(error, "LAB_TIER=real: no NVIDIA driver is installed");
        let old = machine(Ok(1), Ok(OLD));
        assert!(choose("shared", 2, &old).unwrap_err().to_string().contains("NCCL 2.22.5"));
        let one = machine(Ok(1), Ok(NEW));
        assert_eq!(choose("shared", 2, &one).unwrap(), Tier::Shared);
        assert!(choose("shared", 3, &one).unwrap_err().to_string().contains("needs 3 ranks"));
        assert!(
            choose("real", 2, &one).unwrap_err().to_string().contains("needs 2 GPUs, but this machine has 1")
        );
        assert!(choose("fast", 1, &one).unwrap_err().to_string().contains("LAB_TIER=fast"));
    }
}
