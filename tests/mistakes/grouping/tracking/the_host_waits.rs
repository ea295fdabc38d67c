// mistake: the host waits for the readers
// fails: tracking::writing_after_reading_returns_at_once
// says: does it wait on the host?

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};

pub fn in_two_slices(
    first: &Arc<CudaStream>,
    second: &Arc<CudaStream>,
    values: &[f32],
    mut work: impl FnMut(&Arc<CudaStream>, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f32>> {
    let (front, back) = values.split_at(values.len() / 2);
    let mut front = first.clone_htod(front)?;
    let mut back = second.clone_htod(back)?;
    work(first, &mut front.as_view_mut())?;
    work(second, &mut back.as_view_mut())?;
    let mut all = first.clone_dtoh(&front)?;
    all.extend(second.clone_dtoh(&back)?);
    Ok(all)
}

pub fn in_one_slice(
    first: &Arc<CudaStream>,
    second: &Arc<CudaStream>,
    values: &[f32],
    mut work: impl FnMut(&Arc<CudaStream>, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f32>> {
    // `context.disable_event_tracking()` is unsafe: it wants a SAFETY comment. From then on nobody waits for anything but what you

    // SAFETY: what is used by both streams is ordered by the two joins below.
    unsafe { first.context().disable_event_tracking() };
    let mut whole = first.clone_htod(values)?;
    second.join(first)?;
    let (mut front, mut back) = whole.split_at_mut(values.len() / 2);
    work(first, &mut front)?;
    work(second, &mut back)?;
    first.join(second)?;
    Ok(first.clone_dtoh(&whole)?)
}

pub fn write_after_reads(
    slice: &mut CudaSlice<f32>,
    readers: &[Arc<CudaStream>],
    writer: &Arc<CudaStream>,
    mut read: impl FnMut(usize, &CudaSlice<f32>) -> anyhow::Result<()>,
    write: impl FnOnce(&mut CudaSlice<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for index in 0..readers.len() {
        read(index, slice)?;
    }
    readers.iter().try_for_each(|reader| reader.synchronize())?;
    write(slice)
}
