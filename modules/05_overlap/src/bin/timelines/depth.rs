//! Runs a pipeline with alternately long and short all-reduces, with one, two, and three buffers.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::timeline::{Drawing, RankRun};
use m05_overlap::depth;
use m05_overlap::stages::{Load, Work};

const ITERATIONS: usize = 4;

/// Runs the pipeline with each number of buffers, and shows GPU 0.
pub(super) fn run(streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Drawing> {
    let elements = 4096 * scale;
    let load = Load { iterations: ITERATIONS, elements, summed: [elements, elements / 8], work: [0, 1] };
    let mut drawing = Drawing::of_runs(format!(
        "{ITERATIONS} iterations with 1, 2 and 3 buffers: GPU 0 of {}",
        streams.len()
    ));
    for depth in 1..=3 {
        let ranks = rendezvous(streams, |comm| on_rank(&comm, load, depth))?;
        drawing.add_run(&format!("depth {depth}"), ranks);
    }
    Ok(drawing)
}

fn on_rank(comm: &Comm, load: Load, depth: usize) -> anyhow::Result<RankRun> {
    let (context, stream) = (comm.context(), comm.stream());
    // SAFETY: `run` orders the stages by events, and the host waits before it reads or frees anything.
    unsafe { context.disable_event_tracking() };
    let compute = context.new_stream()?;
    let mut work = Work::with_outputs(comm, &compute, load)?;
    depth::run(&compute, &stream, &mut work, load.iterations, load.elements, depth)?;
    let spans = work.spans()?;
    compute.synchronize()?;
    stream.synchronize()?;
    Ok(RankRun::new(spans, work.verify_outputs()))
}
