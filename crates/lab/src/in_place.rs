//! Creates two views of one buffer, for an in-place collective.

use std::ops::Range;

use anyhow::Context;
use cudarc::driver::{CudaView, CudaViewMut};

/// Returns a part of a buffer to send, and the entire buffer to receive into.
///
/// Safe Rust rejects such a pair, because a part that is borrowed for reading can't be borrowed for writing at the same
/// time. The compiler can't know that a single call reads and writes, and that the call is designed for this.
///
/// # Safety
/// Both views must be passed to a single collective that documents their relative position as in place. For
/// `ncclAllGather`, the part is elements `rank * count` to `(rank + 1) * count`. Any other two uses of the views may
/// read data that is being written.
///
/// # Errors
/// Fails if `part` is not inside the buffer.
pub unsafe fn part_and_whole<'a, T>(
    buffer: &'a mut CudaViewMut<'_, T>,
    part: Range<usize>,
) -> anyhow::Result<(CudaView<'a, T>, CudaViewMut<'a, T>)> {
    let len = buffer.len();
    let outside = || format!("elements {part:?} are not within a buffer of {len} elements");
    let view = buffer.try_slice(part.clone()).with_context(outside)?;
    // SAFETY: a view's layout doesn't depend on its lifetime. The buffer's pointer and events, which the view borrows,
    // live as long as 'a. The caller is responsible for the second borrow of the memory.
    let view = unsafe { std::mem::transmute::<CudaView<'_, T>, CudaView<'a, T>>(view) };
    Ok((view, buffer.slice_mut(..)))
}
