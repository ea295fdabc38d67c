//! Pipeline depth: how many iterations are in flight, each in its own buffer.
//!
//! With one buffer, iterations run one after another. Each additional buffer lets the compute stream run further ahead, but
//! costs memory.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaSlice, CudaStream};

use crate::interleave::Stages;

/// Runs `iterations` iterations, at most `depth` of them at a time, in `depth` buffers of `len` elements. The buffers
/// are allocated here, and freed at the end. Every iteration runs its three stages in one of the buffers. `postprocess`
/// saves the result.
///
/// Enqueues everything and returns immediately. Later work on the compute stream runs after all iterations. Both
/// streams are on one GPU, and cudarc's event tracking is off.
///
/// # Errors
/// Fails if `depth` is 0. Also returns any error from the stages or the driver.
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
    // Enqueue all stages of all iterations:
    // 1. a stage starts after the previous stage of the same iteration;
    // 2. an iteration starts only after the previous iteration in the same buffer has been postprocessed;
    // 3. preprocessing can run in parallel with the all-reduce from `depth - 1` iterations before;
    // 4. the host waits for nothing, and there may be fewer iterations than buffers.
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
