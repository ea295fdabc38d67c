// mistake: the wait is for the all-reduce of the iteration before
// fails: depth::each_depth_gives_the_serial_result
// says: ncclAllReduce
// says: src/depth.rs

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
        if round < iterations {
            let buffer = &mut buffers[round % depth].as_view_mut();
            stages.preprocess(round, buffer)?;
            comm.wait(&compute.record_event(None)?)?;
            stages.all_reduce(round, buffer)?;
            reduced.push(comm.record_event(None)?);
        }
        if let Some(iteration) = (round + 1).checked_sub(depth) {
            if let Some(before) = iteration.checked_sub(1) {
                compute.wait(&reduced[before])?;
            }
            stages.postprocess(iteration, &mut buffers[iteration % depth].as_view_mut())?;
        }
    }
    Ok(())
}
