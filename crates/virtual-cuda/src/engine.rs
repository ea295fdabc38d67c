//! This process's engine and its NCCL. `cuInit` creates both, and they live as long as the process.

use std::fs;
use std::io::{ErrorKind, Write};
use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::calls;
use virtual_gpu::config::Config;
use virtual_gpu::engine::Engine;
use virtual_gpu_core::path_of_code;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_nccl::Nccl;

/// The objects that `cuInit` creates.
struct Started {
    engine: &'static Engine,
    nccl: &'static Nccl,
}

static STARTED: OnceLock<CudaResult<Started>> = OnceLock::new();
static ENDED: AtomicBool = AtomicBool::new(false);
/// Whether the program has asked for a context.
static HAS_CONTEXT: AtomicBool = AtomicBool::new(false);
/// Whether this process is a fork of one that had asked for a context.
static IS_FORK: AtomicBool = AtomicBool::new(false);

/// Returns whether the process is past its exit handlers; later calls get `DEINITIALIZED`.
pub(crate) fn has_ended() -> bool {
    ENDED.load(Ordering::Acquire)
}

/// Runs when the process exits: writes the trace, closes the connections to processes that share communicators with
/// this one, and reports memory that is still allocated.
extern "C" fn end() {
    ENDED.store(true, Ordering::Release);
    // The trace, the connections, and the memory are the parent's.
    if IS_FORK.load(Ordering::Acquire) {
        return;
    }
    let written =
        catch_unwind(|| STARTED.get().and_then(|made| made.as_ref().ok()?.engine.write_trace().err()));
    if let Ok(Some(error)) = written {
        // Nothing can be reported if standard error is closed.
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

/// Runs in each child process that `fork` makes after `cuInit`.
extern "C" fn note_fork() {
    IS_FORK.store(HAS_CONTEXT.load(Ordering::Acquire), Ordering::Release);
}

/// Returns `NotInitialized` in a fork of a process that had used CUDA, from every function, as NVIDIA's driver does. The
/// fork has a copy of the parent's memory, but none of its threads. NVIDIA's driver refuses a fork after `cuInit` alone,
/// too; here, that does no harm before there is a context.
fn refuse_fork() -> CudaResult<()> {
    if !IS_FORK.load(Ordering::Acquire) {
        return Ok(());
    }
    let message = "this process was forked after its parent had used CUDA, so it can't use CUDA itself: fork earlier, or start a \
                   new program (Python: `multiprocessing.set_start_method(\"spawn\")`)";
    Err(Error::new(CudaStatus::NotInitialized, message))
}

/// Creates the engine and NCCL on the first call.
pub(crate) fn start() -> CudaResult<()> {
    refuse_fork()?;
    let made = STARTED.get_or_init(|| {
        let bad = |message: String| Error::new(CudaStatus::InvalidValue, message);
        Engine::check_processor().map_err(|message| Error::new(CudaStatus::NotSupported, message))?;
        let config = config().map_err(bad)?;
        calls::fail_listed(&config.failing).map_err(bad)?;
        if config.gpus == 0 {
            let message = "CUDA_VISIBLE_DEVICES hides every GPU";
            return Err(Error::new(CudaStatus::NoDevice, message));
        }
        let addresses = reserve(Engine::address_space(config.gpus)).map_err(bad)?;
        // SAFETY: `end` takes no arguments and doesn't unwind.
        unsafe { libc::atexit(end) };
        // SAFETY: `note_fork` takes no arguments, doesn't unwind, and only stores a value.
        unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
        let engine = Engine::start(config, addresses);
        Ok(Started { engine, nccl: Nccl::new(engine) })
    });
    made.as_ref().map(|_| ()).map_err(Error::clone)
}

/// The settings of a virtual driver that is installed as a machine's own, in the library's folder.
const MACHINE: &str = "virtual-gpu.toml";

/// Reads the settings: from [`MACHINE`] if there is such a file, and otherwise from the environment.
fn config() -> Result<Config, String> {
    let library = path_of_code(config as fn() -> Result<Config, String> as usize);
    let file = library.and_then(|library| Some(library.parent()?.join(MACHINE)));
    match file.map(|file| (fs::read_to_string(&file), file)) {
        Some((Ok(settings), file)) => {
            Config::of_machine(&settings).map_err(|error| format!("{}: {error}", file.display()))
        }
        Some((Err(error), file)) if error.kind() != ErrorKind::NotFound => {
            Err(format!("{}: {error}", file.display()))
        }
        _ => Config::from_env(),
    }
}

/// Returns the version of NCCL. It needs no `cuInit`.
///
/// # Errors
/// Fails if a setting is wrong.
pub(crate) fn nccl_version() -> Result<i32, String> {
    Ok(config()?.strict_nccl.map_or(virtual_gpu_nccl::VERSION, |strict| strict.version))
}

/// Waits for the current context's work if the engine is strict, because CUDA allows the host call `caller` to wait.
pub(crate) fn may_synchronize(caller: &'static str) {
    if let Ok(engine) = get() {
        engine.may_synchronize(caller);
    }
}

/// Returns the engine for a call that makes a context or asks for one.
pub(crate) fn get_for_context() -> CudaResult<&'static Engine> {
    HAS_CONTEXT.store(true, Ordering::Release);
    get()
}

/// Returns the engine, once `cuInit` has been called.
pub(crate) fn get() -> CudaResult<&'static Engine> {
    started().map(|started| started.engine)
}

/// Returns NCCL for the engine's GPUs, once `cuInit` has been called.
pub(crate) fn nccl() -> CudaResult<&'static Nccl> {
    started().map(|started| started.nccl)
}

fn started() -> CudaResult<&'static Started> {
    refuse_fork()?;
    match STARTED.get() {
        Some(Ok(started)) => Ok(started),
        // As in NVIDIA's driver, only cuInit itself returns its error.
        Some(Err(error)) => {
            let message = format!("cuInit failed: {}", error.message);
            Err(Error::new(CudaStatus::NotInitialized, message))
        }
        None => Err(Error::new(CudaStatus::NotInitialized, "cuInit has not been called")),
    }
}

/// Reserves this many addresses and never grants access to them. If host code dereferences a device pointer, it faults,
/// as it would with a real GPU's pointer.
fn reserve(bytes: u64) -> Result<u64, String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: this creates a new anonymous mapping and replaces none.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        return Err(format!("can't reserve {} GiB of address space for device memory: {error}", bytes >> 30));
    }
    Ok((start as u64).next_multiple_of(4096))
}
