//! The process's one engine, with its NCCL. `cuInit` makes both, and they live as long as the process.

use std::io::Write;
use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::calls;
use virtual_gpu::config::Config;
use virtual_gpu::engine::Engine;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_nccl::Nccl;

/// What `cuInit` makes.
struct Started {
    engine: &'static Engine,
    nccl: &'static Nccl,
}

static STARTED: OnceLock<CudaResult<Started>> = OnceLock::new();
static ENDED: AtomicBool = AtomicBool::new(false);

/// Whether the process is past its exit handlers: calls from there get `DEINITIALIZED`.
pub(crate) fn has_ended() -> bool {
    ENDED.load(Ordering::Acquire)
}

/// The process ends: writes the trace, parts from those that it has ranks in common with, and says what it leaves
/// allocated.
extern "C" fn end() {
    ENDED.store(true, Ordering::Release);
    let written =
        catch_unwind(|| STARTED.get().and_then(|made| made.as_ref().ok()?.engine.write_trace().err()));
    if let Ok(Some(error)) = written {
        // A standard error that is closed takes nothing.
        let _ = writeln!(std::io::stderr(), "virtual GPU: {error}");
    }
    let report = catch_unwind(|| {
        let Started { engine, nccl } = STARTED.get()?.as_ref().ok()?;
        nccl.leave_sessions();
        engine.leak_report()
    });
    if let Ok(Some(report)) = report {
        let _ = writeln!(std::io::stderr(), "{report}");
    }
}

/// Makes the engine and NCCL, the first time.
pub(crate) fn start() -> CudaResult<()> {
    let made = STARTED.get_or_init(|| {
        let bad = |message: String| Error::new(CudaStatus::InvalidValue, message);
        let config = Config::from_env().map_err(bad)?;
        calls::fail_listed(&config.failing).map_err(bad)?;
        if config.gpus == 0 {
            let message = "CUDA_VISIBLE_DEVICES leaves no GPU to be seen";
            return Err(Error::new(CudaStatus::NoDevice, message));
        }
        let addresses = reserve(Engine::address_space(config.gpus)).map_err(bad)?;
        // SAFETY: `end` is a function without arguments, which doesn't unwind.
        unsafe { libc::atexit(end) };
        let engine: &'static Engine = Box::leak(Box::new(Engine::new(config, addresses)));
        Ok(Started { engine, nccl: Nccl::new(engine) })
    });
    made.as_ref().map(|_| ()).map_err(Error::clone)
}

/// The engine, once `cuInit` has been called.
pub(crate) fn get() -> CudaResult<&'static Engine> {
    started().map(|started| started.engine)
}

/// NCCL for the engine's GPUs, once `cuInit` has been called.
pub(crate) fn nccl() -> CudaResult<&'static Nccl> {
    started().map(|started| started.nccl)
}

fn started() -> CudaResult<&'static Started> {
    match STARTED.get() {
        Some(Ok(started)) => Ok(started),
        Some(Err(error)) => Err(error.clone()),
        None => Err(Error::new(CudaStatus::NotInitialized, "cuInit has not been called")),
    }
}

/// Sets so many addresses aside that no access right is ever given to: host code that follows a device pointer
/// faults there, as it does with a real one.
fn reserve(bytes: u64) -> Result<u64, String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping; nothing is replaced.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        return Err(format!("can't reserve {} GiB of addresses for device memory: {error}", bytes >> 30));
    }
    Ok((start as u64).next_multiple_of(4096))
}
