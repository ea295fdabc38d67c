// mistake: the event of the first batch's copy serves all batches
// fails: copies::a_late_copy_is_waited_for
// says: data race
// says: by a copy from the host

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
    let mut arrived = None;
    for (batch, input) in inputs.iter().enumerate() {
        let buffer = &mut buffers[batch % 2];
        copy.memcpy_htod(input, buffer)?;
        if arrived.is_none() {
            arrived = Some(copy.record_event(None)?);
        }
        if let Some(arrived) = &arrived {
            compute.wait(arrived)?;
        }
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
