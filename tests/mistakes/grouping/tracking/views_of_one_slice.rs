// mistake: both halves are views of one slice, and share its events
// fails: tracking::two_slices_are_worked_on_at_once
// says: and at no time both
// says: both are views of one slice, for which tracking lets the second stream wait

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};

pub fn in_two_slices(
    first: &Arc<CudaStream>,
    second: &Arc<CudaStream>,
    values: &[f32],
    mut work: impl FnMut(&Arc<CudaStream>, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f32>> {
    let mut whole = first.clone_htod(values)?;
    let (mut front, mut back) = whole.split_at_mut(values.len() / 2);
    work(first, &mut front)?;
    work(second, &mut back)?;
    Ok(first.clone_dtoh(&whole)?)
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
    for (index, reader) in readers.iter().enumerate() {
        read(index, slice)?;
        writer.join(reader)?;
    }
    write(slice)
}
