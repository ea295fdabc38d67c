//! Which libraries the course runs on: the real driver and NCCL, or the virtual ones.

use std::ffi::{CString, c_int, c_uint};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context, bail, ensure};
use cudarc::driver::{CudaContext, CudaStream};

use crate::library::Library;

/// Ranks that may share a GPU, as NCCL documents for `NCCL_MULTI_RANK_GPU_ENABLE`.
const RANKS_PER_GPU: usize = 2;

/// The first NCCL that lets ranks share a GPU: 2.30.0, as `ncclGetVersion` encodes it.
const SHARING_NCCL: i32 = 23_000;

/// GPUs of the virtual tier, unless `VIRTUAL_GPU_COUNT` or [`TOPOLOGY`] say otherwise.
const VIRTUAL_GPUS: usize = 8;

/// Names the machine whose times the virtual tier models.
const TOPOLOGY: &str = "VIRTUAL_GPU_TOPOLOGY";

/// World sizes that checks use where GPUs cost nothing.
const VIRTUAL_WORLD_SIZES: usize = 5;

/// What answers cudarc's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The installed driver and NCCL, a GPU for each rank.
    Real,
    /// The installed driver and NCCL ≥ 2.30, two ranks on each GPU.
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

/// What this machine has.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The number of real GPUs, at least 1; or why there is none.
    pub gpus: Result<usize, String>,
    /// The version of CUDA that the driver supports, encoded as 1000 × major + 10 × minor; 0 without a driver.
    pub cuda: i32,
    /// The version of NCCL, encoded as 10000 × major + 100 × minor + patch; or why there is none.
    pub nccl: Result<i32, String>,
}

impl Survey {
    /// `CUDA 12.9`, which the driver supports.
    pub fn cuda_version(&self) -> String {
        format!("CUDA {}.{}", self.cuda / 1000, self.cuda % 1000 / 10)
    }

    /// `NCCL 2.30.7`, or why there is none.
    pub fn nccl_version(&self) -> String {
        self.nccl.as_ref().map_or_else(Clone::clone, |&version| format!("NCCL {}", shown(version)))
    }
}

/// Looks for a driver with a GPU, and for NCCL. Looks once; both are only asked for their figures.
pub fn survey() -> &'static Survey {
    static SURVEY: OnceLock<Survey> = OnceLock::new();
    SURVEY.get_or_init(|| {
        let driver = driver();
        let gpus = driver.as_ref().map(|driver| driver.gpus).map_err(Clone::clone);
        let cuda = driver.map_or(0, |driver| driver.cuda);
        let nccl = match gpus {
            Ok(_) => nccl_version(),
            Err(_) => Err("not looked for without a GPU".to_owned()),
        };
        Survey { gpus, cuda, nccl }
    })
}

/// An installed driver with at least one GPU.
struct Driver {
    gpus: usize,
    cuda: i32,
}

fn driver() -> Result<Driver, String> {
    // By the driver's own SONAME, which the virtual library never has.
    let driver = Library::open(Path::new("libcuda.so.1"))
        .map_err(|_| "no NVIDIA driver is installed (libcuda.so.1 is not found)".to_owned())?;
    let init = driver.symbol(c"cuInit").ok_or("libcuda.so.1 has no cuInit")?;
    // SAFETY: `cuInit` takes an unsigned int and returns a result code.
    let init: extern "C" fn(c_uint) -> c_int = unsafe { std::mem::transmute(init) };
    match init(0) {
        0 => {}
        100 => return Err("the NVIDIA driver finds no GPU (CUDA_ERROR_NO_DEVICE)".to_owned()),
        code => return Err(format!("the NVIDIA driver does not start (cuInit answers with error {code})")),
    }
    // SAFETY: `cuDeviceGetCount` writes an int and returns a result code.
    let gpus = match unsafe { driver.int_from(c"cuDeviceGetCount") }? {
        count @ 1.. => count as usize,
        _ => return Err("the NVIDIA driver finds no GPU".to_owned()),
    };
    // SAFETY: so does `cuDriverGetVersion`.
    let cuda = unsafe { driver.int_from(c"cuDriverGetVersion") }?;
    Ok(Driver { gpus, cuda })
}

/// Whether NCCL is there by the name that programs are linked with, `libnccl.so`. Its runtime packages have
/// `libnccl.so.2` only; the course gives it the other name.
pub fn has_plain_nccl() -> bool {
    Library::open(Path::new("libnccl.so")).is_ok()
}

/// The version of NVRTC, the compiler that kernels are made with; or why there is none.
pub fn nvrtc_version() -> Result<String, String> {
    let names = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];
    let nvrtc = names
        .iter()
        .find_map(|name| Library::open(Path::new(name)).ok())
        .ok_or_else(|| format!("none of {} is found", names.join(", ")))?;
    let version = nvrtc.symbol(c"nvrtcVersion").ok_or("the library has no nvrtcVersion")?;
    // SAFETY: `nvrtcVersion` writes two ints and returns a result code.
    let version: extern "C" fn(*mut c_int, *mut c_int) -> c_int = unsafe { std::mem::transmute(version) };
    let (mut major, mut minor) = (0, 0);
    match version(&raw mut major, &raw mut minor) {
        0 => Ok(format!("{major}.{minor}")),
        code => Err(format!("nvrtcVersion answers with error {code}")),
    }
}

fn nccl_version() -> Result<i32, String> {
    // Not by `libnccl.so`: the name would stay taken, also for the virtual library.
    let nccl = Library::open(Path::new("libnccl.so.2"))
        .map_err(|error| format!("NCCL is not found: {error}; is its folder on LD_LIBRARY_PATH?"))?;
    // SAFETY: `ncclGetVersion` writes an int and returns a result code.
    unsafe { nccl.int_from(c"ncclGetVersion") }
}

/// Chooses the tier on which `ranks` ranks can run, without loading anything for cudarc.
///
/// # Errors
/// `LAB_TIER` names a tier that is unknown, or that can't run so many ranks here: the reason, for a person.
pub fn tier_for(ranks: usize) -> anyhow::Result<Tier> {
    let asked = std::env::var_os("LAB_TIER").unwrap_or_else(|| "auto".into());
    let tier = choose(&asked.to_string_lossy(), ranks, survey())?;
    if tier == Tier::Virtual {
        // A count that is no number is the driver's to refuse, when it starts; how many GPUs a topology has, it says then.
        let count = std::env::var("VIRTUAL_GPU_COUNT").ok().and_then(|count| count.trim().parse().ok());
        let default = if std::env::var_os(TOPOLOGY).is_some() { usize::MAX } else { VIRTUAL_GPUS };
        let gpus = count.filter(|&gpus| gpus > 0).unwrap_or(default);
        ensure!(ranks <= gpus, "needs {ranks} GPUs, the virtual tier has {gpus} (VIRTUAL_GPU_COUNT)");
    }
    Ok(tier)
}

fn choose(asked: &str, ranks: usize, survey: &Survey) -> anyhow::Result<Tier> {
    let gpus = survey.gpus.as_ref();
    match asked.trim() {
        "virtual" => Ok(Tier::Virtual),
        "auto" | "" => Ok(match (gpus, &survey.nccl) {
            (Ok(&gpus), Ok(_)) if gpus >= ranks => Tier::Real,
            _ => Tier::Virtual,
        }),
        "real" => {
            let gpus = *gpus.map_err(|why| anyhow::anyhow!("LAB_TIER=real: {why}"))?;
            survey.nccl.as_ref().map_err(|why| anyhow::anyhow!("LAB_TIER=real: {why}"))?;
            ensure!(gpus >= ranks, "needs {ranks} GPUs, this machine has {gpus} (LAB_TIER=real)");
            Ok(Tier::Real)
        }
        "shared" => {
            let gpus = *gpus.map_err(|why| anyhow::anyhow!("LAB_TIER=shared: {why}"))?;
            let version = *survey.nccl.as_ref().map_err(|why| anyhow::anyhow!("LAB_TIER=shared: {why}"))?;
            ensure!(
                version >= SHARING_NCCL,
                "LAB_TIER=shared: NCCL {} lets no ranks share a GPU; 2.30 or later does",
                shown(version)
            );
            let most = gpus * RANKS_PER_GPU;
            ensure!(most >= ranks, "needs {ranks} ranks, {gpus} shared GPUs carry {most} (LAB_TIER=shared)");
            Ok(Tier::Shared)
        }
        other => bail!("LAB_TIER={other}: it is one of auto, real, shared, virtual"),
    }
}

/// `2.30.7` of an encoded NCCL version.
fn shown(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// One line that says on what `ranks` ranks run here, and why.
///
/// # Errors
/// As [`tier_for`].
pub fn describe(ranks: usize) -> anyhow::Result<String> {
    let survey = survey();
    let gpus = survey.gpus.as_ref().map_or(0, |&gpus| gpus);
    let nccl = survey.nccl.as_ref().map(|&version| shown(version));
    Ok(match (tier_for(ranks)?, nccl) {
        (Tier::Real, Ok(nccl)) => format!("real: {gpus} GPUs, NCCL {nccl}"),
        (Tier::Shared, Ok(nccl)) => {
            format!("shared: {gpus} GPUs with {RANKS_PER_GPU} ranks each, NCCL {nccl}")
        }
        (_, nccl) => {
            let why = match (&survey.gpus, nccl) {
                _ if std::env::var("LAB_TIER").is_ok_and(|tier| tier.trim() == "virtual") => {
                    "LAB_TIER asks for it".into()
                }
                (Err(why), _) => why.clone(),
                (Ok(_), Err(why)) => why.clone(),
                (Ok(gpus), Ok(_)) => format!("{ranks} ranks, and only {gpus} real GPUs"),
            };
            format!("virtual: GPUs in software ({why})")
        }
    })
}

/// Whose the times are that events tell on the attached tier: `measured on NVIDIA H100 80GB HBM3`, or `modelled for dgx-h100`, with
/// what is left out.
/// It stands beside every figure that is shown.
///
/// # Errors
/// What the driver answers.
pub fn whose_times() -> anyhow::Result<String> {
    Ok(match attached() {
        Some(Tier::Virtual) => {
            let topology = std::env::var(TOPOLOGY).unwrap_or_else(|_| "classroom".to_owned());
            format!("modelled for {}, where the host's own computing takes none", topology.trim())
        }
        _ => format!("measured on {}", CudaContext::new(0)?.name()?),
    })
}

/// Whether the times that events tell on the attached tier are modelled: only these are the same on every run.
pub fn times_are_modelled() -> bool {
    attached() == Some(Tier::Virtual)
}

/// Loads the libraries of the tier on which `ranks` ranks can run. Call it before the first use of cudarc; further
/// calls only check that the tier still serves.
///
/// # Errors
/// As [`tier_for`], or a library can't be loaded, or the driver does not start.
pub fn attach(ranks: usize) -> anyhow::Result<Tier> {
    static ATTACHED: Mutex<Option<Tier>> = Mutex::new(None);
    let mut attached = ATTACHED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let tier = match *attached {
        Some(tier) => tier,
        None => {
            let tier = tier_for(ranks)?;
            load(tier)?;
            cudarc::driver::result::init().context("the driver does not start")?;
            *attached = Some(tier);
            tier
        }
    };
    let most = most_ranks(tier)?;
    ensure!(
        ranks <= most,
        "{ranks} ranks need more GPUs than there are: the {tier} tier has room for {most}"
    );
    ROOM.get_or_init(|| (tier, most));
    Ok(tier)
}

/// The attached tier, and how many ranks it has room for.
static ROOM: OnceLock<(Tier, usize)> = OnceLock::new();

/// The attached tier, if there is one.
pub(crate) fn attached() -> Option<Tier> {
    ROOM.get().map(|&(tier, _)| tier)
}

fn load(tier: Tier) -> anyhow::Result<()> {
    match tier {
        Tier::Virtual => load_virtual(),
        Tier::Real | Tier::Shared => {
            if tier == Tier::Shared {
                // SAFETY: no other thread of the lab is running yet; NCCL reads the variable when it starts.
                unsafe { std::env::set_var("NCCL_MULTI_RANK_GPU_ENABLE", "1") };
            }
            if Library::open(Path::new("libnccl.so")).is_err() {
                Library::open(&built_library("libsystem_nccl.so")?)?;
            }
            Ok(())
        }
    }
}

fn load_virtual() -> anyhow::Result<()> {
    let driver = Library::open(&built_library("libvirtual_cuda.so")?)?;
    Library::open(&built_library("libvirtual_nccl.so")?)?;
    let hide =
        driver.symbol(c"virtualGpuHideLibrary").context("libvirtual_cuda.so is not the course's own")?;
    // SAFETY: the function takes a C string and returns nothing.
    let hide: extern "C" fn(*const std::ffi::c_char) = unsafe { std::mem::transmute(hide) };
    // So that reports show the line of the exercise, not the lab's line that it called.
    let own = CString::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))?;
    hide(own.as_ptr());
    Ok(())
}

/// A library that Cargo built for this executable: in `deps`, or beside the executable.
///
/// # Errors
/// It is in neither place.
pub fn built_library(name: &str) -> anyhow::Result<PathBuf> {
    let executable = std::env::current_exe().context("can't tell where this program is")?;
    let folder = executable.parent().unwrap_or(Path::new("."));
    let places = [folder.join("deps"), folder.to_owned(), folder.join("../deps")];
    let found = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("{name} is not beside {}: build with cargo", executable.display()))
}

/// Ranks that the attached libraries have room for.
fn most_ranks(tier: Tier) -> anyhow::Result<usize> {
    let gpus = usize::try_from(CudaContext::device_count()?)?;
    Ok(if tier == Tier::Shared { gpus * RANKS_PER_GPU } else { gpus })
}

/// World sizes that a check may use on the attached tier, ascending: 1 to 5 on the virtual one, up to what is there
/// on the others.
///
/// # Panics
/// Before [`attach`]: a check without a world size would pass without a look.
pub fn world_sizes() -> Vec<usize> {
    let (tier, most) = *ROOM.get().expect("lab::attach comes before lab::world_sizes");
    (1..=if tier == Tier::Virtual { most.min(VIRTUAL_WORLD_SIZES) } else { most }).collect()
}

/// A new stream for each rank, on the GPU that the rank uses.
///
/// # Errors
/// More ranks than the attached tier has room for, or what the driver answers.
pub fn streams(world_size: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    attach(world_size)?;
    let gpus = usize::try_from(CudaContext::device_count()?)?;
    (0..world_size).map(|rank| Ok(CudaContext::new(rank % gpus)?.new_stream()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(gpus: Result<usize, &str>, nccl: Result<i32, &str>) -> Survey {
        Survey { gpus: gpus.map_err(str::to_owned), cuda: 0, nccl: nccl.map_err(str::to_owned) }
    }

    #[test]
    fn auto_takes_real_gpus_where_they_suffice() {
        let two = machine(Ok(2), Ok(23_007));
        assert_eq!(choose("auto", 2, &two).unwrap(), Tier::Real);
        assert_eq!(choose("auto", 3, &two).unwrap(), Tier::Virtual);
        assert_eq!(choose("auto", 1, &machine(Ok(2), Err("none"))).unwrap(), Tier::Virtual);
        assert_eq!(choose("auto", 1, &machine(Err("none"), Err("none"))).unwrap(), Tier::Virtual);
    }

    #[test]
    fn a_tier_that_is_asked_for_and_missing_is_an_error_with_the_reason() {
        let none = machine(Err("no NVIDIA driver is installed"), Err("not looked for"));
        let error = choose("real", 1, &none).unwrap_err().to_string();
        assert_eq!(error, "LAB_TIER=real: no NVIDIA driver is installed");
        let old = machine(Ok(1), Ok(22_205));
        assert!(choose("shared", 2, &old).unwrap_err().to_string().contains("NCCL 2.22.5"));
        let one = machine(Ok(1), Ok(23_007));
        assert_eq!(choose("shared", 2, &one).unwrap(), Tier::Shared);
        assert!(choose("shared", 3, &one).unwrap_err().to_string().contains("needs 3 ranks"));
        assert!(
            choose("real", 2, &one).unwrap_err().to_string().contains("needs 2 GPUs, this machine has 1")
        );
        assert!(choose("fast", 1, &one).unwrap_err().to_string().contains("LAB_TIER=fast"));
    }
}
