// mistake: each batch is copied out before the next one comes in
// fails: copies::the_next_batch_is_computed_beside_the_sum
// says: at no time both
// says: its copy stands behind one that waits for this all-reduce

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut, PinnedHostSlice};

pub struct Streams {
    pub compute: Arc<CudaStream>,
    pub comm: Arc<CudaStream>,
    pub copy: Arc<CudaStream>,
}

pub trait Work {
    fn compute(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    fn all_reduce(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

pub fn stream_through(
    streams: &Streams,
    work: &mut impl Work,
    buffers: &mut [CudaViewMut<f32>; 2],
    inputs: &[PinnedHostSlice<f32>],
    outputs: &mut [PinnedHostSlice<f32>],
) -> anyhow::Result<()> {
    let Streams { compute, comm, copy } = streams;

    for (batch, input) in inputs.iter().enumerate() {
        let buffer = &mut buffers[batch % 2];
        copy.memcpy_htod(input, buffer)?;
        compute.wait(&copy.record_event(None)?)?;
        work.compute(batch, buffer)?;
        comm.wait(&compute.record_event(None)?)?;
        work.all_reduce(batch, buffer)?;
        copy.wait(&comm.record_event(None)?)?;
        copy.memcpy_dtoh(&buffers[batch % 2], &mut outputs[batch])?;
    }

    Ok(())
}
