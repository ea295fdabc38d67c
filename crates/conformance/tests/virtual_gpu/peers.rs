//! Kernels that access other GPUs' memory: pairs of programs that differ in one detail, and the algorithms of a
//! communication library. Every pair runs as often as `RUNS` says (once by default), with the kernels launched in either
//! order and by one or two host threads. Each time, the wrong program must be reported, and the right one must not.

use std::ptr::null_mut;
use std::sync::{Arc, Barrier};
use std::thread;

use anyhow::{Context, bail, ensure};
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{
    CudaContext, CudaStream, DevicePtr, DeviceRepr, DriverError, LaunchConfig, PushKernelArg, result,
};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::golden::is_kept;

mod algorithms;
mod programs;

use CUresult::{
    CUDA_ERROR_ILLEGAL_ADDRESS as ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED as LAUNCH_FAILED,
    CUDA_ERROR_LAUNCH_TIMEOUT as LAUNCH_TIMEOUT,
};

/// What a wrong program does.
#[derive(Clone, Copy)]
enum Wrong {
    /// It fails with this code, and a report that contains these words.
    Reported(CUresult, &'static [&'static str]),
    /// It computes something else than the right program.
    Value,
}

const RACE: CUresult = LAUNCH_FAILED;

/// Two programs that differ in one detail.
struct Pair {
    name: &'static str,
    /// Runs the wrong program or the right one, and returns whether the result is as expected.
    program: fn(&Node, bool) -> anyhow::Result<bool>,
    wrong: Wrong,
}

pub(crate) fn checks() -> Vec<Check> {
    let pairs = programs::PAIRS.iter().flat_map(|pair| {
        [true, false].map(|is_wrong| {
            let which = if is_wrong { "wrong" } else { "right" };
            Check::new(format!("peers::{}_{which}", pair.name), move || decided(pair, is_wrong))
        })
    });
    let algorithms = algorithms::ALGORITHMS.iter().flat_map(|&(name, ranks, algorithm)| {
        ranks.iter().map(move |&ranks| {
            Check::new(format!("peers::{name}_on_{ranks}_gpus"), move || algorithm(&Node::new(0), ranks))
        })
    });
    pairs.chain(algorithms).collect()
}

/// Runs a program, and checks that it is decided correctly every time.
fn decided(pair: &Pair, is_wrong: bool) -> anyhow::Result<()> {
    let runs: usize = match std::env::var("RUNS") {
        Ok(runs) => runs.parse().context("RUNS must be a number")?,
        Err(_) => 1,
    };
    for run in 0..runs {
        let outcome = (pair.program)(&Node::new(run), is_wrong);
        reset()?;
        let outcome = outcome.with_context(|| format!("run {run}"));
        match (is_wrong, pair.wrong) {
            (false, _) => ensure!(outcome?, "run {run}: the result is wrong"),
            (true, Wrong::Value) => ensure!(!outcome?, "run {run}: the result is right"),
            (true, Wrong::Reported(code, says)) => {
                let Err(error) = outcome else { bail!("run {run}: nothing was reported") };
                let Some(error) = error.downcast_ref::<Failed>() else { return Err(error) };
                ensure!(error.code == code, "run {run}: {:?}\n{}", error.code, error.said);
                for words in says {
                    ensure!(
                        error.said.contains(words),
                        "run {run}: {words:?} is missing in:\n{}",
                        error.said
                    );
                }
                if run == 0 {
                    is_kept(&format!("peers_{}", pair.name), &error.said)?;
                }
            }
        }
    }
    Ok(())
}

/// Destroys all contexts, with their errors.
fn reset() -> anyhow::Result<()> {
    for gpu in 0..8 {
        // SAFETY: nothing in these contexts is used anymore.
        unsafe { sys::cuDevicePrimaryCtxReset_v2(gpu) }.result()?;
    }
    Ok(())
}

/// A driver's error.
#[derive(Debug)]
struct Failed {
    code: CUresult,
    said: String,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for Failed {}

impl From<DriverError> for Failed {
    fn from(error: DriverError) -> Self {
        Self { code: error.0, said: crate::text(error) }
    }
}

/// A kernel's argument.
#[derive(Clone)]
enum Arg {
    Address(u64),
    Int(i32),
    /// The addresses of each rank's data and flags.
    Ranks(Ranks),
}

/// As in `algorithms.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Ranks {
    data: [u64; 8],
    flags: [u64; 8],
}

// SAFETY: it consists of addresses only.
unsafe impl DeviceRepr for Ranks {}

/// One launch of a kernel on a GPU.
#[derive(Clone)]
struct Run {
    gpu: usize,
    kernel: &'static str,
    grid: u32,
    block: u32,
    args: Vec<Arg>,
}

fn run(gpu: usize, kernel: &'static str, args: &[Arg]) -> Run {
    Run { gpu, kernel, grid: 1, block: 1, args: args.to_vec() }
}

impl Run {
    fn shape(self, grid: u32, block: u32) -> Self {
        Self { grid, block, ..self }
    }
}

/// Returns the description of full access by a GPU.
fn access(gpu: i32) -> sys::CUmemAccessDesc {
    let location = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu };
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    sys::CUmemAccessDesc { location, flags }
}

/// GPUs that can access each other's memory.
struct Node {
    run: usize,
}

impl Node {
    fn new(run: usize) -> Self {
        Self { run }
    }

    /// Returns a GPU's context and a stream.
    fn gpu(&self, gpu: usize) -> Result<(Arc<CudaContext>, Arc<CudaStream>), DriverError> {
        let context = CudaContext::new(gpu)?;
        // SAFETY: each program waits by itself.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        Ok((context, stream))
    }

    /// Lets kernels on one GPU access what `cuMemAlloc` allocates on another.
    fn enable(&self, from: usize, to: usize) -> Result<(), DriverError> {
        let (own, other) = (CudaContext::new(from)?, CudaContext::new(to)?);
        own.bind_to_thread()?;
        // SAFETY: both contexts are alive. They stay alive until the reset, because a context that is used stays retained here.
        let enabled = unsafe { sys::cuCtxEnablePeerAccess(other.cu_ctx(), 0) }.result();
        std::mem::forget((own, other));
        enabled
    }

    fn enable_all(&self, gpus: usize) -> Result<(), DriverError> {
        for from in 0..gpus {
            for to in (0..gpus).filter(|&to| to != from) {
                self.enable(from, to)?;
            }
        }
        Ok(())
    }

    /// Allocates words on a GPU, all of which are 0.
    fn words(&self, gpu: usize, count: usize) -> Result<u64, DriverError> {
        let address = self.unwritten(gpu, count)?;
        // SAFETY: the memory is as long.
        unsafe { result::memset_d8_sync(address, 0, count * 4) }?;
        result::ctx::synchronize()?;
        Ok(address)
    }

    /// Allocates words on a GPU.
    fn unwritten(&self, gpu: usize, count: usize) -> Result<u64, DriverError> {
        let context = CudaContext::new(gpu)?;
        context.bind_to_thread()?;
        // SAFETY: right programs write the memory before they read it, and wrong ones test what happens otherwise.
        let address = unsafe { result::malloc_sync(count * 4) };
        std::mem::forget(context);
        address
    }

    /// Lets a GPU access the default pool of another one.
    fn share_pool(&self, owner: i32, with: i32) -> Result<(), DriverError> {
        let mut pool = null_mut();
        // SAFETY: the pool is writable, and the description is readable.
        unsafe {
            sys::cuDeviceGetDefaultMemPool(&mut pool, owner).result()?;
            sys::cuMemPoolSetAccess(pool, &access(with), 1).result()
        }
    }

    /// Allocates words from a GPU's default pool, all of which are 0.
    fn pooled(&self, gpu: usize, count: usize) -> Result<u64, DriverError> {
        let (_, stream) = self.gpu(gpu)?;
        let words = stream.alloc_zeros::<u32>(count)?;
        stream.synchronize()?;
        let address = words.device_ptr(&stream).0;
        std::mem::forget(words);
        Ok(address)
    }

    /// Maps memory of a GPU, all of which is 0, and lets another GPU access it.
    fn mapped(&self, owner: i32, with: Option<i32>) -> Result<u64, DriverError> {
        let context = CudaContext::new(owner as usize)?;
        context.bind_to_thread()?;
        let location = access(owner).location;
        let properties = sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location,
            // SAFETY: zeroes are valid for the other fields.
            ..unsafe { std::mem::zeroed() }
        };
        let (mut address, mut memory) = (0, 0);
        const BYTES: usize = 2 << 20;
        // SAFETY: all pointers are to variables of the right type.
        unsafe {
            sys::cuMemAddressReserve(&mut address, BYTES, 0, 0, 0).result()?;
            sys::cuMemCreate(&mut memory, BYTES, &properties, 0).result()?;
            sys::cuMemMap(address, BYTES, 0, memory, 0).result()?;
            for gpu in [Some(owner), with].into_iter().flatten() {
                sys::cuMemSetAccess(address, BYTES, &access(gpu), 1).result()?;
            }
            result::memset_d8_sync(address, 0, BYTES)?;
        }
        result::ctx::synchronize()?;
        std::mem::forget(context);
        Ok(address)
    }

    fn write(&self, gpu: usize, address: u64, words: &[u32]) -> Result<(), DriverError> {
        CudaContext::new(gpu)?.bind_to_thread()?;
        // SAFETY: the memory is long enough.
        unsafe { result::memcpy_htod_sync(address, words) }?;
        result::ctx::synchronize()
    }

    fn read(&self, gpu: usize, address: u64, count: usize) -> Result<Vec<u32>, DriverError> {
        CudaContext::new(gpu)?.bind_to_thread()?;
        let mut words = vec![0; count];
        // SAFETY: the memory is long enough.
        unsafe { result::memcpy_dtoh_sync(&mut words, address) }?;
        Ok(words)
    }

    /// Launches kernels on streams of their own, all at the same time, and waits for all of them.
    fn launch(&self, runs: &[Run]) -> anyhow::Result<()> {
        let mut runs = runs.to_vec();
        if self.run % 2 == 1 {
            runs.reverse();
        }
        let mut streams = Vec::new();
        let launched = Barrier::new(runs.len());
        let outcome = match self.run % 4 {
            0 | 1 => {
                let launched: Result<(), DriverError> = runs.iter().try_for_each(|run| {
                    streams.push(self.start(run)?);
                    Ok(())
                });
                let waited: Vec<_> = streams.iter().map(|stream| stream.synchronize()).collect();
                waited.into_iter().fold(launched, Result::and)
            }
            _ => thread::scope(|scope| {
                // What one thread has waited for before the other thread's launch may be ordered by the program, unseen.
                let launched = &launched;
                let go = move |run: &Run| {
                    let stream = self.start(run);
                    launched.wait();
                    stream?.synchronize()
                };
                let (own, others) = runs.split_last().expect("a program launches kernels");
                let others: Vec<_> = others.iter().map(|run| scope.spawn(move || go(run))).collect();
                let own = go(own);
                others.into_iter().map(|other| other.join().unwrap()).fold(own, Result::and)
            }),
        };
        Ok(outcome.map_err(Failed::from)?)
    }

    /// Like [`Self::launch`], but in this order and by one thread.
    fn launch_in_order(&self, runs: &[Run]) -> anyhow::Result<()> {
        Self::new(0).launch(runs)
    }

    /// Launches a kernel on a stream of its own.
    fn start(&self, run: &Run) -> Result<Arc<CudaStream>, DriverError> {
        let (context, stream) = self.gpu(run.gpu)?;
        let source = match run.kernel {
            "one_shot" | "two_shot" | "ring" | "put_with_signal" | "wait_for_signal" => {
                include_str!("peers/algorithms.ptx")
            }
            "through_mbarrier" | "through_cluster" => include_str!("peers/barriers.ptx"),
            _ => include_str!("peers/kernels.ptx"),
        };
        let function = context.load_module(Ptx::from_src(source))?.load_function(run.kernel)?;
        let mut launch = stream.launch_builder(&function);
        for arg in &run.args {
            match arg {
                Arg::Address(address) => launch.arg(address),
                Arg::Int(int) => launch.arg(int),
                Arg::Ranks(ranks) => launch.arg(ranks),
            };
        }
        let shape =
            LaunchConfig { grid_dim: (run.grid, 1, 1), block_dim: (run.block, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: each program passes the arguments that its kernel takes.
        unsafe { launch.launch(shape) }?;
        Ok(stream)
    }
}
