//! Pairs of programs: in the wrong one, a call is missing, comes too early, or is on the wrong stream, or a buffer is
//! used twice. The wrong program causes the report stored in `reports/`, and the right one causes none.
//!
//! Event tracking is off in all but the last programs, because cudarc would add the missing call.

/// Defines the programs, and a list of checks for them.
macro_rules! pairs {
    ($($(#[doc = $doc:literal])* $name:ident |$bench:ident, $wrong:ident| $body:block)*) => {
        pub(super) fn checks() -> Vec<lab::Check> {
            vec![$(lab::Check::new(
                concat!("races::", stringify!($name)),
                || pair(stringify!($name), $name),
            )),*]
        }
        $($(#[doc = $doc])* fn $name($bench: &Bench, $wrong: bool) -> anyhow::Result<()> $body)*
    };
}

mod collectives;
mod memory;
mod streams;

use std::sync::Arc;
use std::sync::mpsc::channel;

use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};
use cudarc::nccl::result::{group_end, group_start};
use cudarc::nccl::safe::{Comm, ReduceOp};
use lab::Check;
use lab::kernels::Kernels;

use crate::device::untracked;
use crate::golden::is_kept;
use crate::text;

/// The objects that the programs use: two streams on GPU 0 and one on GPU 1. None of them waits for the others or for
/// the default stream.
struct Bench {
    one: Arc<CudaStream>,
    two: Arc<CudaStream>,
    far: Arc<CudaStream>,
    kernels: Kernels,
}

impl Bench {
    fn new() -> anyhow::Result<Self> {
        let (near, far) = (untracked(0), untracked(1));
        let kernels = Kernels::load(&near)?;
        let bench =
            Self { one: near.new_stream()?, two: near.new_stream()?, far: far.new_stream()?, kernels };
        near.bind_to_thread()?;
        Ok(bench)
    }

    /// Creates a stream that waits for the default stream and that the default stream waits for.
    fn blocking_stream(&self) -> anyhow::Result<sys::CUstream> {
        self.one.context().bind_to_thread()?;
        Ok(result::stream::create(result::stream::StreamKind::Default)?)
    }

    /// Creates a communicator for GPU 0 and GPU 1, on `two` and `far`.
    fn comms(&self) -> [Comm; 2] {
        let comms = Comm::from_devices(vec![self.two.clone(), self.far.clone()]).expect("communicators");
        let Ok(comms) = comms.try_into() else { panic!("not two communicators") };
        comms
    }

    /// Waits for everything, and returns the first error.
    fn end(&self) -> anyhow::Result<()> {
        let ended = [&self.one, &self.two, &self.far].map(|stream| stream.synchronize());
        self.one.context().synchronize()?;
        ended.into_iter().try_for_each(|ended| Ok(ended?))
    }
}

/// Returns a buffer of 1024 floats, after waiting for it to be written.
fn buffer(stream: &Arc<CudaStream>) -> CudaSlice<f32> {
    let buffer = stream.clone_htod(&vec![1.0; 1024]).expect("a buffer");
    stream.synchronize().expect("it was written");
    buffer
}

fn address(buffer: &CudaSlice<f32>) -> sys::CUdeviceptr {
    buffer.device_ptr(buffer.stream()).0
}

/// Allocates pinned memory for 1024 floats.
fn pinned() -> anyhow::Result<&'static mut [f32]> {
    // SAFETY: the memory has space for this many floats and is zeroed, and any bits are a valid float.
    Ok(unsafe { std::slice::from_raw_parts_mut(result::malloc_host(4096, 0)?.cast(), 1024) })
}

fn grouped(calls: impl FnOnce()) {
    group_start().expect("a group");
    calls();
    group_end().expect("the group's calls");
}

type Program = fn(&Bench, bool) -> anyhow::Result<()>;

/// Runs the right program of a pair, and then the wrong one.
fn pair(name: &str, program: Program) -> anyhow::Result<()> {
    let bench = Bench::new()?;
    program(&bench, false).and_then(|()| bench.end())?;
    let Err(error) = program(&bench, true).and_then(|()| bench.end()) else {
        anyhow::bail!("the wrong program caused no report");
    };
    match error.downcast::<DriverError>() {
        Ok(error) => is_kept(&format!("race_{name}"), &text(error)),
        Err(other) => is_kept(&format!("race_{name}"), &format!("{other:#}")),
    }
}

pub(crate) fn checks() -> Vec<Check> {
    [streams::checks(), memory::checks(), collectives::checks()].concat()
}
