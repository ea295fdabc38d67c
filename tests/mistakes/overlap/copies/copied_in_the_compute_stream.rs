// mistake: the batches come in by the compute stream
// fails: copies::the_copies_are_in_their_own_stream
// says: did it come in by another stream?

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
    let mut reduced = None;
    for (batch, input) in inputs.iter().enumerate() {
        let buffer = &mut buffers[batch % 2];
        compute.memcpy_htod(input, buffer)?;
        work.compute(batch, buffer)?;
        comm.wait(&compute.record_event(None)?)?;
        work.all_reduce(batch, buffer)?;
        let before = reduced.replace(comm.record_event(None)?);
        if let Some(before) = before {
            copy.wait(&before)?;
            copy.memcpy_dtoh(&buffers[(batch - 1) % 2], &mut outputs[batch - 1])?;
        }
    }
    if let Some(last) = reduced {
        copy.wait(&last)?;
        copy.memcpy_dtoh(&buffers[(inputs.len() - 1) % 2], &mut outputs[inputs.len() - 1])?;
    }
    Ok(())
}
