//! Finds this machine's driver and GPUs, NCCL, and NVRTC.

use std::ffi::{c_int, c_uint};
use std::path::Path;
use std::sync::OnceLock;

use super::attach::REAL_WORLD_SIZE;
use super::nccl_build::cuda_of_nccl;
use crate::library::Library;

/// The code that `cuInit` returns if a driver finds no device: CUDA_ERROR_NO_DEVICE.
const NO_DEVICE: c_int = 100;

/// The relevant hardware and software of this machine.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The installed driver, if it has a GPU, or the reason why it can't be used.
    pub driver: Result<Driver, String>,
    /// NCCL's version, or the reason why NCCL can't be used.
    pub nccl: Result<NcclVersion, String>,
}

/// An installed driver with at least one GPU.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// The number of real GPUs, at least 1.
    pub gpus: usize,
    /// The CUDA version that the driver supports.
    pub cuda: CudaVersion,
    /// Whether all GPUs that checks use can access each other's memory; true for one GPU.
    pub has_peer_access: bool,
}

/// A CUDA version, as `cuDriverGetVersion` encodes it: 1000 × major + 10 × minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(i32);

/// An NCCL version, as `ncclGetVersion` has encoded it since 2.9: 10000 × major + 100 × minor + patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(i32);

/// The oldest NCCL that has every function that the course calls: `ncclCommSplit` is the newest of them.
pub const OLDEST_NCCL: NcclVersion = NcclVersion::new(2, 18, 0);

impl CudaVersion {
    pub(super) const fn new(major: i32, minor: i32) -> Self {
        Self(1000 * major + 10 * minor)
    }

    const fn major(self) -> i32 {
        self.0 / 1000
    }
}

impl NcclVersion {
    pub(crate) const fn new(major: i32, minor: i32, patch: i32) -> Self {
        Self(10_000 * major + 100 * minor + patch)
    }
}

impl std::fmt::Display for CudaVersion {
    /// Formats the version in the form `12.9`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

impl std::fmt::Display for NcclVersion {
    /// Formats the version in the form `2.30.7`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0 / 10_000, self.0 / 100 % 100, self.0 % 100)
    }
}

/// Looks for a driver with a GPU, and for NCCL, on the first call. Queries only the number of GPUs and the versions.
pub fn survey() -> &'static Survey {
    static SURVEY: OnceLock<Survey> = OnceLock::new();
    SURVEY.get_or_init(|| {
        let driver = driver();
        let nccl = match &driver {
            Ok(driver) => nccl_version(driver.cuda),
            Err(_) => Err("not searched for, because there is no GPU".to_owned()),
        };
        Survey { driver, nccl }
    })
}

fn driver() -> Result<Driver, String> {
    // The driver's own SONAME, which the virtual library never has.
    let driver = Library::open(Path::new("libcuda.so.1"))
        .map_err(|_| "no NVIDIA driver is installed (libcuda.so.1 was not found)".to_owned())?;
    let init = driver.symbol(c"cuInit").ok_or("libcuda.so.1 has no cuInit")?;
    // SAFETY: `cuInit` takes an unsigned int and returns a result code.
    let init: extern "C" fn(c_uint) -> c_int = unsafe { std::mem::transmute(init) };
    match init(0) {
        0 => {}
        NO_DEVICE => return Err("the NVIDIA driver found no GPU (CUDA_ERROR_NO_DEVICE)".to_owned()),
        code => return Err(format!("the NVIDIA driver failed to start (cuInit returned error {code})")),
    }
    // SAFETY: `cuDeviceGetCount` writes an int and returns a result code.
    let gpus = match unsafe { driver.int_from(c"cuDeviceGetCount") }? {
        count @ 1.. => count as usize,
        _ => return Err("the NVIDIA driver found no GPU".to_owned()),
    };
    // SAFETY: `cuDriverGetVersion` writes an int and returns a result code.
    let cuda = CudaVersion(unsafe { driver.int_from(c"cuDriverGetVersion") }?);
    let has_peer_access = all_have_peer_access(&driver, gpus.min(REAL_WORLD_SIZE))?;
    Ok(Driver { gpus, cuda, has_peer_access })
}

/// Returns whether each of the first `gpus` GPUs can access the memory of each other one.
fn all_have_peer_access(driver: &Library, gpus: usize) -> Result<bool, String> {
    let gpus = gpus as c_int;
    for (from, to) in (0..gpus).flat_map(|from| (0..gpus).map(move |to| (from, to))) {
        if from != to && !can_access(driver, from, to)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether a GPU can access another GPU's memory.
fn can_access(driver: &Library, from: c_int, to: c_int) -> Result<bool, String> {
    let ask = driver.symbol(c"cuDeviceCanAccessPeer").ok_or("libcuda.so.1 has no cuDeviceCanAccessPeer")?;
    // SAFETY: `cuDeviceCanAccessPeer` writes an int, takes two GPUs' numbers, and returns a result code.
    let ask: extern "C" fn(*mut c_int, c_int, c_int) -> c_int = unsafe { std::mem::transmute(ask) };
    let mut can = 0;
    match ask(&raw mut can, from, to) {
        0 => Ok(can != 0),
        code => Err(format!("cuDeviceCanAccessPeer returned error {code}")),
    }
}

/// Returns the version of NVRTC, the compiler for kernels, or the reason why NVRTC can't be used.
pub fn nvrtc_version() -> Result<String, String> {
    let names = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];
    let nvrtc = names
        .iter()
        .find_map(|name| Library::open(Path::new(name)).ok())
        .ok_or_else(|| format!("none of {} was found", names.join(", ")))?;
    let version = nvrtc.symbol(c"nvrtcVersion").ok_or("the library has no nvrtcVersion")?;
    // SAFETY: `nvrtcVersion` writes two ints and returns a result code.
    let version: extern "C" fn(*mut c_int, *mut c_int) -> c_int = unsafe { std::mem::transmute(version) };
    let (mut major, mut minor) = (0, 0);
    match version(&raw mut major, &raw mut minor) {
        0 => Ok(format!("{major}.{minor}")),
        code => Err(format!("nvrtcVersion returned error {code}")),
    }
}

/// The name under which every package installs NCCL. A development package also has `libnccl.so`, but opening that would
/// claim the name under which cudarc looks for NCCL, including for the virtual library.
const NCCL: &str = "libnccl.so.2";

/// Returns the version of the installed NCCL. `driver` is the CUDA version that the driver supports.
fn nccl_version(driver: CudaVersion) -> Result<NcclVersion, String> {
    let nccl = Library::open(Path::new(NCCL))
        .map_err(|error| format!("NCCL was not found: {error}; is its folder in LD_LIBRARY_PATH?"))?;
    // SAFETY: `ncclGetVersion` writes an int and returns a result code.
    let version = unsafe { nccl.int_from(c"ncclGetVersion") }.map(NcclVersion)?;
    match nccl.file_of(c"ncclGetVersion").and_then(|file| cuda_of_nccl(&file)) {
        Some(built_for) => runs_on(version, built_for, driver).map(|()| version),
        None => Ok(version),
    }
}

/// Fails if a driver can't run an NCCL that was built for a newer major version of CUDA. Minor versions are compatible:
/// <https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html>.
fn runs_on(nccl: NcclVersion, built_for: CudaVersion, driver: CudaVersion) -> Result<(), String> {
    match built_for.major() <= driver.major() {
        true => Ok(()),
        false => Err(format!(
            "NCCL {nccl} was built for CUDA {built_for}, but the driver supports only CUDA {driver}; update the driver, or \
             install an NCCL for CUDA {}",
            driver.major()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_their_usual_form() {
        assert_eq!(CudaVersion(12_090).to_string(), "12.9");
        assert_eq!(NcclVersion(23_007).to_string(), "2.30.7");
        assert_eq!(NcclVersion::new(2, 22, 5), NcclVersion(22_205));
        assert!(NcclVersion::new(2, 9, 1) < NcclVersion::new(2, 30, 0));
    }

    #[test]
    fn a_driver_runs_an_nccl_for_its_own_major_version_of_cuda() {
        let runs = |built_for, driver| runs_on(NcclVersion::new(2, 30, 7), built_for, driver);
        assert!(runs(CudaVersion::new(12, 9), CudaVersion::new(12, 2)).is_ok());
        assert!(runs(CudaVersion::new(12, 9), CudaVersion::new(13, 0)).is_ok());
        let error = runs(CudaVersion::new(13, 0), CudaVersion::new(12, 9)).unwrap_err();
        assert!(error.contains("built for CUDA 13.0") && error.contains("an NCCL for CUDA 12"), "{error}");
    }
}
