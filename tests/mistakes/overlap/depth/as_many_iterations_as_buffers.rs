// mistake: the first round fills every buffer, however few iterations there are
// fails: depth::each_depth_gives_the_serial_result
// says: fewer iterations than buffers are a pipeline too

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaSlice, CudaStream};

use crate::interleave::Stages;

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
    let mut reduced = Vec::new();
    for round in 0..iterations + depth - 1 {
        if round < iterations.max(depth) {
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
}
