//! Batches of copies.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use cudarc::driver::DriverError;
use cudarc::driver::sys::{self, CUstream};
use lab::Check;

use crate::device::untracked;
use crate::fails;
use crate::raw::address;

use sys::CUresult::CUDA_ERROR_INVALID_VALUE;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("batches::copies_of_every_direction", every_direction),
        Check::new("batches::copies_that_depend_on_each_other_are_refused", dependent),
        Check::new("batches::bad_arguments_are_refused", refused),
        Check::new("batches::rows_and_layers", rows),
    ]
}

fn attributes(order: sys::CUmemcpySrcAccessOrder) -> sys::CUmemcpyAttributes {
    // SAFETY: zeros are valid in all fields except for the enumerations that are set below.
    unsafe {
        let mut it = MaybeUninit::<sys::CUmemcpyAttributes>::zeroed();
        (*it.as_mut_ptr()).srcAccessOrder = order;
        (*it.as_mut_ptr()).srcLocHint.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        (*it.as_mut_ptr()).dstLocHint.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        it.assume_init()
    }
}

/// Copies, and returns the result and the index that failed.
fn copy(
    stream: CUstream,
    copies: &[(u64, u64, usize)],
    starts: &[usize],
) -> (Result<(), DriverError>, usize) {
    let mut to: Vec<_> = copies.iter().map(|copy| copy.0).collect();
    let mut from: Vec<_> = copies.iter().map(|copy| copy.1).collect();
    let mut sizes: Vec<_> = copies.iter().map(|copy| copy.2).collect();
    let order = sys::CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    let mut given = vec![attributes(order); starts.len()];
    let (mut starts, mut at) = (starts.to_vec(), 99);
    // SAFETY: the arrays have as many elements as the counts say, and the memory outlives the copies.
    let code = unsafe {
        sys::cuMemcpyBatchAsync(
            to.as_mut_ptr(),
            from.as_mut_ptr(),
            sizes.as_mut_ptr(),
            copies.len(),
            given.as_mut_ptr(),
            starts.as_mut_ptr(),
            starts.len(),
            &raw mut at,
            stream,
        )
    };
    (code.result(), at)
}

fn every_direction() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let (one, two) = (stream.clone_htod(&[1_u32; 4])?, stream.alloc_zeros::<u32>(4)?);
    let (host, mut back) = ([7_u32; 2], [0_u32; 2]);
    let copies = [
        (address(&two), address(&one), 8),
        (address(&two) + 8, host.as_ptr() as u64, 8),
        (back.as_mut_ptr() as u64, address(&one) + 8, 8),
    ];
    copy(stream.cu_stream(), &copies, &[0, 2]).0?;
    assert_eq!(stream.clone_dtoh(&two)?, [1, 1, 7, 7]);
    assert_eq!(back, [1, 1]);
    Ok(())
}

fn dependent() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let buffer = stream.alloc_zeros::<u32>(8)?;
    let at = address(&buffer);
    let (code, index) = copy(stream.cu_stream(), &[(at + 8, at, 8), (at + 16, at + 12, 4)], &[0]);
    fails(code, CUDA_ERROR_INVALID_VALUE, &["the copies of a batch have no order"]);
    assert_eq!(index, 1);
    copy(stream.cu_stream(), &[(at + 8, at, 8), (at + 16, at, 8)], &[0]).0?;
    stream.synchronize()?;
    Ok(())
}

fn refused() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let (one, two) = (stream.alloc_zeros::<u32>(4)?, stream.alloc_zeros::<u32>(4)?);
    let (raw, one, two) = (stream.cu_stream(), address(&one), address(&two));
    let whole = [(two, one, 8), (two + 8, one, 8)];
    for (stream, copies, starts, words) in [
        (null_mut(), &whole[..], &[0][..], "the legacy default stream"),
        (raw, &[], &[0], "not count 0 and numAttrs 1"),
        (raw, &whole, &[], "not count 2 and numAttrs 0"),
        (raw, &whole, &[1], "must begin with 0"),
        (raw, &whole, &[0, 0], "must begin with 0"),
        (raw, &whole, &[0, 2], "must begin with 0"),
    ] {
        let (code, index) = copy(stream, copies, starts);
        fails(code, CUDA_ERROR_INVALID_VALUE, &[words]);
        assert_eq!(index, usize::MAX);
    }
    let (code, index) = copy(raw, &[(two, one, 8), (two + 8, one, 16)], &[0]);
    fails(code, CUDA_ERROR_INVALID_VALUE, &["not all in one buffer"]);
    assert_eq!(index, 1);
    stream.synchronize()?;
    Ok(())
}

fn rows() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let from = stream.clone_htod(&[1_u8, 2, 3, 4, 5, 6, 7, 8])?;
    let to = stream.alloc_zeros::<u8>(8)?;
    // SAFETY: zeros are valid in all fields except for the enumerations that are set below.
    let mut one = unsafe {
        let mut it = MaybeUninit::<sys::CUDA_MEMCPY3D_BATCH_OP>::zeroed();
        let fields = it.as_mut_ptr();
        (*fields).srcAccessOrder = sys::CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        for side in [&raw mut (*fields).src, &raw mut (*fields).dst] {
            (*side).type_ = sys::CUmemcpy3DOperandType_enum::CU_MEMCPY_OPERAND_TYPE_POINTER;
        }
        it.assume_init()
    };
    // The first two bytes of each row of four.
    one.src.op.ptr.ptr = address(&from);
    one.src.op.ptr.rowLength = 4;
    one.dst.op.ptr.ptr = address(&to);
    (one.extent.width, one.extent.height, one.extent.depth) = (2, 2, 1);
    let mut at = 0;
    // SAFETY: the copy is readable.
    unsafe { sys::cuMemcpy3DBatchAsync(1, &raw mut one, &raw mut at, 0, stream.cu_stream()) }.result()?;
    assert_eq!(stream.clone_dtoh(&to)?, [1, 2, 5, 6, 0, 0, 0, 0]);
    // The rows of two halves lie between each other, but have no byte in common.
    let mut halves = [one, one];
    (halves[1].src.op.ptr.ptr, halves[1].dst.op.ptr.ptr) = (address(&from) + 2, address(&to) + 2);
    halves.iter_mut().for_each(|half| half.dst.op.ptr.rowLength = 4);
    let batch = |copies: &mut [sys::CUDA_MEMCPY3D_BATCH_OP], at: &mut usize| {
        // SAFETY: the copies are readable.
        unsafe { sys::cuMemcpy3DBatchAsync(copies.len(), copies.as_mut_ptr(), at, 0, stream.cu_stream()) }
            .result()
    };
    batch(&mut halves, &mut at)?;
    assert_eq!(stream.clone_dtoh(&to)?, [1, 2, 3, 4, 5, 6, 7, 8]);
    halves[1].dst.op.ptr.ptr = address(&to) + 1;
    fails(batch(&mut halves, &mut at), CUDA_ERROR_INVALID_VALUE, &["copy 1 of the batch overlaps"]);
    one.extent.depth = 0;
    // SAFETY: as above.
    let code = unsafe { sys::cuMemcpy3DBatchAsync(1, &raw mut one, &raw mut at, 0, stream.cu_stream()) };
    fails(code.result(), CUDA_ERROR_INVALID_VALUE, &["has an extent of 0"]);
    assert_eq!(at, 0);
    Ok(())
}
