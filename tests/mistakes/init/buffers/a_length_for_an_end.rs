// mistake: a length stands where the end of a range belongs
// fails: buffers::a_part_is_read
// says: read of 37..38 out of 1031 elements
// says: is no part of 1031

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceSlice};

pub fn spread(
    streams: &[Arc<CudaStream>],
    values: &[f32],
    parts: &[Range<usize>],
) -> anyhow::Result<Vec<CudaSlice<f32>>> {
    let (streams_len, parts_len) = (streams.len(), parts.len());
    ensure!(streams_len == parts_len, "{streams_len} streams, but {parts_len} parts: each needs one");
    let copy = |(stream, part): (&Arc<CudaStream>, &Range<usize>)| {
        let own = values.get(part.clone());
        let own = own.with_context(|| format!("{part:?} is no part of {} values", values.len()))?;
        Ok(stream.clone_htod(own)?)
    };
    streams.iter().zip(parts).map(copy).collect()
}

pub fn read(buffer: &CudaView<f32>, part: Range<usize>) -> anyhow::Result<Vec<f32>> {
    let own = buffer.try_slice(part.start..part.len());
    let own = own.with_context(|| format!("{part:?} is no part of {} elements", buffer.len()))?;
    let values = buffer.stream().clone_dtoh(&own)?;
    buffer.stream().synchronize()?;
    Ok(values)
}

pub fn copy(
    from: &CudaView<f32>,
    part: Range<usize>,
    to: &mut CudaViewMut<f32>,
    at: usize,
) -> anyhow::Result<()> {
    let own = from.try_slice(part.clone());
    let own = own.with_context(|| format!("{part:?} is no part of {} elements", from.len()))?;
    let place = at..at + part.len();
    let (stream, len) = (to.stream().clone(), to.len());
    let room = to.try_slice_mut(place.clone());
    let mut room = room.with_context(|| format!("{place:?} is no part of {len} elements"))?;
    Ok(stream.memcpy_dtod(&own, &mut room)?)
}
