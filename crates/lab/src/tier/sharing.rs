//! Determines how many processes may share the real GPUs.
//!
//! The numbers are estimates: we have not measured them on real GPUs.

use std::ffi::{c_int, c_uint};
use std::path::Path;

use crate::library::Library;

/// The most checks that run at a time. NCCL may take one or two seconds to create a communicator, and all checks create
/// about 900. One after another, that is half an hour.
const MOST: usize = 8;

/// The number of cores for one check, whose ranks mostly wait for NCCL and the GPUs.
const CORES: usize = 4;

/// The GPU memory for one check, in bytes: the driver's context, NCCL's buffers, and the check's own, with a reserve.
const MEMORY: u64 = 2 << 30;

/// The size of the shared memory in bytes that NCCL's documentation recommends for a container:
/// <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory>.
pub const SHARED_MEMORY: u64 = 1 << 30;

/// Values from `cuda.h`.
const COMPUTE_MODE: c_int = 20;
const COMPUTE_MODE_DEFAULT: c_int = 0;
const MPS_ENABLED: c_int = 133;

/// Returns how many processes may use the real GPUs at the same time, at least 1.
pub(crate) fn processes_at_a_time() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match gpus() {
        Ok(gpus) if shared_memory().is_ok_and(|bytes| bytes >= SHARED_MEMORY) => at_a_time(cores, &gpus),
        _ => 1,
    }
}

/// What matters about a GPU here.
#[derive(Clone, Copy)]
struct Gpu {
    /// In bytes.
    memory: u64,
    /// Whether several processes may use the GPU, and one process's fault can't end the others. The first excludes the
    /// exclusive compute modes, the second MPS: <https://docs.nvidia.com/deploy/mps/>.
    is_sharable: bool,
}

fn at_a_time(cores: usize, gpus: &[Gpu]) -> usize {
    let memory = gpus.iter().map(|gpu| gpu.memory).min().unwrap_or(0);
    match gpus.iter().all(|gpu| gpu.is_sharable) {
        true => MOST.min(cores / CORES).min((memory / MEMORY) as usize).max(1),
        false => 1,
    }
}

/// Asks the installed driver, which the survey has initialized, about its GPUs.
fn gpus() -> anyhow::Result<Vec<Gpu>> {
    let driver = Library::open(Path::new("libcuda.so.1"))?;
    let function = |name| driver.symbol(name).ok_or_else(|| anyhow::anyhow!("libcuda.so.1 has no {name:?}"));
    // SAFETY: `cuDeviceGetAttribute` writes an int, takes an attribute and a device, and returns a result code.
    let attribute: extern "C" fn(*mut c_int, c_int, c_int) -> c_uint =
        unsafe { std::mem::transmute(function(c"cuDeviceGetAttribute")?) };
    // SAFETY: `cuDeviceTotalMem_v2` writes a size_t, takes a device, and returns a result code.
    let total: extern "C" fn(*mut usize, c_int) -> c_uint =
        unsafe { std::mem::transmute(function(c"cuDeviceTotalMem_v2")?) };
    let read = |which, device| {
        let mut value = 0;
        (attribute(&raw mut value, which, device) == 0).then_some(value)
    };
    // SAFETY: `cuDeviceGetCount` writes an int and returns a result code.
    let count = unsafe { driver.int_from(c"cuDeviceGetCount") }.map_err(anyhow::Error::msg)?;
    let gpu = |device| {
        let mut memory = 0;
        let memory = if total(&raw mut memory, device) == 0 { memory as u64 } else { 0 };
        // Drivers before CUDA 12.5 can't be asked about MPS; its pipe's folder tells.
        let is_mps = read(MPS_ENABLED, device).map_or_else(has_mps_pipe, |enabled| enabled != 0);
        Gpu { memory, is_sharable: read(COMPUTE_MODE, device) == Some(COMPUTE_MODE_DEFAULT) && !is_mps }
    };
    Ok((0..count).map(gpu).collect())
}

/// Returns whether the control daemon of MPS has left its pipe where programs look for it.
fn has_mps_pipe() -> bool {
    let folder = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|| "/tmp/nvidia-mps".into());
    Path::new(&folder).join("control").exists()
}

/// Returns the size in bytes of the shared memory, through which NCCL before 2.24 sends between GPUs that can't reach each
/// other.
///
/// # Errors
/// Fails if the system has none, or can't be asked.
pub fn shared_memory() -> std::io::Result<u64> {
    let mut stats = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is a C string, and there is room for the result.
    if unsafe { libc::statvfs(c"/dev/shm".as_ptr(), stats.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: `statvfs` has succeeded, so it has written the result.
    let stats = unsafe { stats.assume_init() };
    Ok(stats.f_blocks * stats.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_check_at_a_time_where_gpus_cant_be_shared() {
        let gpu = Gpu { memory: 80 << 30, is_sharable: true };
        assert_eq!(at_a_time(128, &[gpu; 8]), 8);
        assert_eq!(at_a_time(16, &[gpu; 8]), 4);
        assert_eq!(at_a_time(2, &[gpu]), 1);
        assert_eq!(at_a_time(128, &[gpu, Gpu { memory: 11 << 30, ..gpu }]), 5);
        assert_eq!(at_a_time(128, &[gpu, Gpu { is_sharable: false, ..gpu }]), 1);
        assert_eq!(at_a_time(128, &[]), 1);
    }
}
