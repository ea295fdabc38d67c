//! How many iterations of a pipeline are under way at once, each in a buffer of its own.
//!
//! One buffer is one iteration after the other. Two, and the next one is filled while this one communicates. Each more lets the
//! compute stream run further ahead, and costs its memory.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaSlice, CudaStream};

use crate::interleave::Stages;

/// Runs so many iterations, at most `depth` of them at once: in `depth` buffers of `len` elements, which are allocated here and
/// given back at the end. Iteration `i` goes through its three stages in one of the buffers; `postprocess` takes from there
/// what is wanted of it. Preprocessing runs ahead as far as there are buffers: that of iteration `i + depth - 1` is free to
/// run in parallel with the all-reduce of `i`.
///
/// Returns at once, with everything enqueued. Whatever is enqueued on the compute stream afterwards comes after all iterations.
/// Both streams are on one GPU, and cudarc's event tracking is off.
///
/// # Errors
/// `depth` is 0, those of the stages, and what the driver answers.
pub fn run(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    stages: &mut impl Stages,
    iterations: usize,
    len: usize,
    depth: usize,
) -> anyhow::Result<()> {
    ensure!(depth > 0, "a pipeline needs at least one buffer");
    let mut buffers: Vec<CudaSlice<f32>> =
        (0..depth).map(|_| compute.alloc_zeros(len)).collect::<Result<_, _>>()?;
    // ANCHOR: run
    // Enqueue every stage of every iteration, with the events between the streams.
    // A buffer is free again when its iteration has been postprocessed. So how many preprocessings can stand in front of the
    // first postprocessing? The interleaving that you know is that of depth 2.
    let mut reduced = Vec::new();
    for round in 0..iterations + depth - 1 {
        if round < iterations {
            let buffer = &mut buffers[round % depth].as_view_mut();
            stages.preprocess(round, buffer)?;
            comm.wait(&compute.record_event(None)?)?;
            stages.all_reduce(round, buffer)?;
            reduced.push(comm.record_event(None)?);
        }
        if let Some(iteration) = (round + 1).checked_sub(depth) {
            compute.wait(&reduced[iteration])?;
            stages.postprocess(iteration, &mut buffers[iteration % depth].as_view_mut())?;
        }
    }
    Ok(())
    // ANCHOR_END: run
}
