// mistake: a computation waits for all that the copy stream has by then: for its batch, and for the result before it
// fails: copies::the_next_batch_is_computed_beside_the_sum
// says: at no time both
// says: or the event that its computation waits for does

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
    if let Some(first) = inputs.first() {
        copy.memcpy_htod(first, &mut buffers[0])?;
    }
    for batch in 0..inputs.len() {
        compute.join(copy)?;
        work.compute(batch, &mut buffers[batch % 2])?;
        comm.join(compute)?;
        work.all_reduce(batch, &mut buffers[batch % 2])?;
        if let Some(next) = inputs.get(batch + 1) {
            copy.memcpy_htod(next, &mut buffers[(batch + 1) % 2])?;
        }
        copy.join(comm)?;
        copy.memcpy_dtoh(&buffers[batch % 2], &mut outputs[batch])?;
    }

    Ok(())
}
