//! The bodies of the functions that enqueue many copies at once. The copies of a batch have no order, so none may
//! depend on another one.

use std::ffi::{c_uint, c_ulonglong};

use virtual_gpu::engine::Region;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::engine;
use crate::managed::MemoryLocation;
use crate::pointer::{Out, Source};
use crate::rows::{self, Copy3D};
use crate::types::{DevicePointer, Stream, stream};

/// `CUmemcpyAttributes`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CopyAttributes {
    pub(crate) order: c_uint,
    pub(crate) from: MemoryLocation,
    pub(crate) to: MemoryLocation,
    pub(crate) flags: c_uint,
}

/// `CUmemcpy3DOperand`, for a pointer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Operand {
    pub(crate) kind: c_uint,
    pub(crate) address: DevicePointer,
    /// The length of a row in bytes; 0 if the rows follow each other directly.
    pub(crate) row: usize,
    /// The number of rows in a layer; 0 if the layers follow each other directly.
    pub(crate) layer: usize,
    pub(crate) hint: MemoryLocation,
}

/// `CUDA_MEMCPY3D_BATCH_OP`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BatchCopy {
    pub(crate) from: Operand,
    pub(crate) to: Operand,
    /// The number of bytes in a row, of rows, and of layers.
    pub(crate) extent: [usize; 3],
    pub(crate) order: c_uint,
    pub(crate) flags: c_uint,
}

/// Checks when the source may be accessed, and the flags. Neither changes anything: pageable memory is read during the
/// call, and all other memory in the order of the stream.
fn check(order: c_uint, flags: c_uint) -> CudaResult<()> {
    if !(1..=3).contains(&order) {
        return Err(invalid(format!("{order} is not a CUmemcpySrcAccessOrder (1 to 3)")));
    }
    if flags > 1 {
        return Err(invalid(format!("{flags:#x} are not the flags of a copy in a batch")));
    }
    Ok(())
}

fn check_stream(of: Stream, caller: &str) -> CudaResult<()> {
    match engine::get()?.is_legacy_stream(stream(of)) {
        true => Err(invalid(format!("{caller}: the legacy default stream can't run a batch of copies"))),
        false => Ok(()),
    }
}

/// Returns the index of a copy that accesses bytes that another copy writes. `ranges` are the accessed ranges: first
/// byte, end, whether the copy writes it, and the copy's index.
fn dependent(mut ranges: Vec<(u64, u64, bool, usize)>) -> Option<usize> {
    ranges.retain(|(start, end, ..)| start < end);
    ranges.sort_unstable();
    // The ends of what has been written so far, and of what has been accessed at all.
    let (mut written, mut accessed) = (0, 0);
    ranges.into_iter().find_map(|(start, end, writes, index)| {
        let overlaps = start < written || writes && start < accessed;
        accessed = end.max(accessed);
        if writes {
            written = end.max(written);
        }
        overlaps.then_some(index)
    })
}

fn depends(index: usize) -> Error<CudaStatus> {
    invalid(format!(
        "copy {index} of the batch overlaps another one, but the copies of a batch have no order"
    ))
}

/// `cuMemcpyBatchAsync`
///
/// # Errors
/// Returns `InvalidValue` for attributes that do not cover all copies, for copies that depend on each other, and the
/// errors of `cuMemcpyAsync`. `fails_at` is the index of the copy that failed, or the largest number if no single copy
/// is wrong.
#[expect(clippy::too_many_arguments, reason = "cuMemcpyBatchAsync has this many")]
pub(crate) fn copy(
    to: Source<DevicePointer>,
    from: Source<DevicePointer>,
    sizes: Source<usize>,
    count: usize,
    attributes: Source<CopyAttributes>,
    starts: Source<usize>,
    attribute_count: usize,
    fails_at: Out<usize>,
    of: Stream,
) -> CudaResult<()> {
    fails_at.give_if_wanted(usize::MAX);
    check_stream(of, "cuMemcpyBatchAsync")?;
    if count == 0 || attribute_count == 0 || attribute_count > count {
        let message = format!(
            "cuMemcpyBatchAsync: count must be at least 1 and numAttrs from 1 to count, not count {count} and numAttrs {attribute_count}"
        );
        return Err(invalid(message));
    }
    let starts = starts.values(attribute_count)?;
    let is_ascending = starts.windows(2).all(|pair| pair[0] < pair[1]);
    if starts[0] != 0 || !is_ascending || starts.last().is_some_and(|&last| last >= count) {
        return Err(invalid(
            "cuMemcpyBatchAsync: attrsIdxs must begin with 0 and be ascending indices of copies",
        ));
    }
    for (given, &start) in attributes.values(attribute_count)?.iter().zip(&starts) {
        check(given.order, given.flags).inspect_err(|_| fails_at.give_if_wanted(start))?;
    }
    let (to, from, sizes) = (to.values(count)?, from.values(count)?, sizes.values(count)?);
    let ends = |start: u64, size: usize| start.saturating_add(size as u64);
    let written = to.iter().zip(&sizes).enumerate().map(|(at, (&to, &size))| (to, ends(to, size), true, at));
    let read =
        from.iter().zip(&sizes).enumerate().map(|(at, (&from, &size))| (from, ends(from, size), false, at));
    if let Some(index) = dependent(written.chain(read).collect()) {
        fails_at.give_if_wanted(index);
        return Err(depends(index));
    }
    for (index, ((&to, &from), &size)) in to.iter().zip(&from).zip(&sizes).enumerate() {
        rows::copy_in(to, from, size, of).inspect_err(|_| fails_at.give_if_wanted(index))?;
    }
    Ok(())
}

/// `cuMemcpy3DBatchAsync`
///
/// # Errors
/// Returns `NotSupported` for CUDA arrays, and otherwise the same errors as [`copy`].
pub(crate) fn copy_3d(
    count: usize,
    copies: Source<BatchCopy>,
    fails_at: Out<usize>,
    flags: c_ulonglong,
    of: Stream,
) -> CudaResult<()> {
    fails_at.give_if_wanted(usize::MAX);
    check_stream(of, "cuMemcpy3DBatchAsync")?;
    if count == 0 || flags != 0 {
        let message = format!(
            "cuMemcpy3DBatchAsync: numOps must be at least 1 and flags 0, not numOps {count} and flags {flags:#x}"
        );
        return Err(invalid(message));
    }
    let copies = copies.values(count)?;
    let mut accessed = Vec::new();
    let mut made: Vec<Copy3D> = Vec::new();
    for (index, copy) in copies.iter().enumerate() {
        let fails = |_: &Error<CudaStatus>| fails_at.give_if_wanted(index);
        check(copy.order, copy.flags).inspect_err(fails)?;
        if copy.extent.contains(&0) {
            fails_at.give_if_wanted(index);
            return Err(invalid(format!("copy {index} of the batch has an extent of 0")));
        }
        let whole = rows::of_batch(copy).inspect_err(fails)?;
        let [to, from] = rows::regions(&whole).inspect_err(fails)?;
        accessed.extend([(to, true, index), (from, false, index)]);
        made.push(whole);
    }
    let extent = |&(region, writes, index): &(Region, bool, usize)| {
        (region.start, region.start + region.extent().unwrap_or(0), writes, index)
    };
    let rows = |&(region, writes, index): &(Region, bool, usize)| {
        region.rows().map(move |row| (row, row + region.width, writes, index))
    };
    // Rows of one copy may lie between those of another, as in two halves of a matrix.
    let is_suspect = dependent(accessed.iter().map(extent).collect()).is_some();
    let found = is_suspect.then(|| dependent(accessed.iter().flat_map(rows).collect())).flatten();
    if let Some(index) = found {
        fails_at.give_if_wanted(index);
        return Err(depends(index));
    }
    for (index, copy) in made.iter().enumerate() {
        rows::copy_whole(copy, of).inspect_err(|_| fails_at.give_if_wanted(index))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::dependent;

    #[test]
    fn only_overlaps_with_a_written_range_count() {
        assert_eq!(
            dependent(vec![(0, 4, true, 0), (4, 8, true, 1), (8, 12, false, 0), (8, 12, false, 1)]),
            None
        );
        assert_eq!(dependent(vec![(0, 4, true, 0), (2, 3, false, 1)]), Some(1));
        assert_eq!(dependent(vec![(0, 9, false, 0), (8, 12, true, 1)]), Some(1));
        assert_eq!(dependent(vec![(5, 5, true, 0), (0, 9, false, 1)]), None);
    }
}
