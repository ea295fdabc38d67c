//! Two views of one buffer, for a collective in place.

use std::ops::Range;

use anyhow::Context;
use cudarc::driver::{CudaView, CudaViewMut};

/// A part of a buffer, to be sent, and the whole of it, to be received into.
///
/// Safe Rust refuses such a pair: a part that is lent to be read can't at the same time be lent to be written. It can't
/// know that the reader and the writer are one and the same call, and that the call is made for this.
///
/// # Safety
/// Both views go to one collective, which documents that position of the two as in place: for `ncclAllGather` the part
/// is elements `rank * count` to `(rank + 1) * count`. Any other two uses of them may read what is being written.
///
/// # Errors
/// `part` is not inside the buffer.
pub unsafe fn part_and_whole<'a, T>(
    buffer: &'a mut CudaViewMut<'_, T>,
    part: Range<usize>,
) -> anyhow::Result<(CudaView<'a, T>, CudaViewMut<'a, T>)> {
    let len = buffer.len();
    let outside = || format!("elements {part:?} of a buffer of {len}");
    let view = buffer.try_slice(part.clone()).with_context(outside)?;
    // SAFETY: a view's layout doesn't depend on its lifetime. What the view borrows, the buffer's pointer and events,
    // lives as long as 'a; that its memory is lent out a second time is what the caller answers for.
    let view = unsafe { std::mem::transmute::<CudaView<'_, T>, CudaView<'a, T>>(view) };
    Ok((view, buffer.slice_mut(..)))
}
