//! What this machine has: a driver with GPUs, NCCL, and NVRTC.

use std::ffi::{c_int, c_uint};
use std::path::Path;
use std::sync::OnceLock;

use crate::library::Library;

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

/// `2.30.7` of an encoded NCCL version.
pub(super) fn shown(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}
