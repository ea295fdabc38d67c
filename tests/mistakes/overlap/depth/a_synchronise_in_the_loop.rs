// mistake: the host waits for each all-reduce
// fails: depth::computation_runs_ahead_by_the_depth
// says: at no time both
// says: or the host waits

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
            comm.synchronize()?;
            stages.postprocess(iteration, &mut buffers[iteration % depth].as_view_mut())?;
        }
    }
    Ok(())
}
