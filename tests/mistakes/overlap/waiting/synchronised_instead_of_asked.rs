// mistake: the host works once, and then waits
// fails: waiting::polling_works_until_it_is_complete
// says: times meanwhile, not again and again

use std::sync::Arc;

use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaEvent, CudaStream, CudaViewMut};
use cudarc::nccl::Comm;

pub struct Pending<'a> {
    buffer: CudaViewMut<'a, f32>,
    done: CudaEvent,
}

impl<'a> Pending<'a> {
    pub fn average(
        comm: &Comm,
        compute: &Arc<CudaStream>,
        mut buffer: CudaViewMut<'a, f32>,
    ) -> anyhow::Result<Self> {
        let stream = comm.stream();
        stream.wait(&compute.record_event(None)?)?;
        average_in_place(comm, &mut buffer)?;
        Ok(Self { buffer, done: stream.record_event(None)? })
    }

    pub fn wait(self, compute: &Arc<CudaStream>) -> anyhow::Result<CudaViewMut<'a, f32>> {
        compute.wait(&self.done)?;
        Ok(self.buffer)
    }

    pub fn is_complete(&self) -> anyhow::Result<bool> {
        Ok(self.done.try_is_complete()?)
    }
}

pub fn at_once(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffer: CudaViewMut<f32>,
    independent: impl FnOnce() -> anyhow::Result<()>,
    dependent: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let average = Pending::average(comm, compute, buffer)?.wait(compute)?;
    independent()?;
    dependent(&average)
}

pub fn before_use(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffer: CudaViewMut<f32>,
    independent: impl FnOnce() -> anyhow::Result<()>,
    dependent: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let pending = Pending::average(comm, compute, buffer)?;
    independent()?;
    dependent(&pending.wait(compute)?)
}

pub fn all_at_the_end(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffers: Vec<CudaViewMut<f32>>,
    independent: impl FnOnce() -> anyhow::Result<()>,
    mut dependent: impl FnMut(usize, &CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for buffer in buffers {
        all.push(Pending::average(comm, compute, buffer)?);
    }
    independent()?;
    for (index, pending) in all.into_iter().enumerate() {
        dependent(index, &pending.wait(compute)?)?;
    }
    Ok(())
}

pub fn polling(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffer: CudaViewMut<f32>,
    mut independent: impl FnMut() -> anyhow::Result<()>,
    dependent: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let pending = Pending::average(comm, compute, buffer)?;
    independent()?;
    comm.stream().synchronize()?;
    dependent(&pending.wait(compute)?)
}
