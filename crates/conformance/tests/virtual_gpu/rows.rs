//! Copies and sets of rows, mapped and registered host memory, and what is known about addresses.

use std::ffi::c_void;

use cudarc::driver::PushKernelArg;
use cudarc::driver::sys::{self, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUmemorytype, CUpointer_attribute, CUresult};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::{shape, untracked};
use crate::fails;
use crate::raw::address;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("rows::a_2d_copy_leaves_the_bytes_between_its_rows", copy_2d),
        Check::new("rows::a_3d_copy_moves_a_box", copy_3d),
        Check::new("rows::bad_2d_copies_are_named", bad_copies),
        Check::new("rows::a_row_that_nothing_wrote_is_reported", unwritten_row),
        Check::new("rows::two_copies_race_only_where_their_rows_overlap", race),
        Check::new("rows::a_2d_set_in_pitched_memory", set_2d),
        Check::new("rows::a_copy_between_addresses_of_any_kind", unified),
        Check::new("rows::a_kernel_uses_pinned_and_registered_memory", mapped),
        Check::new("rows::registered_memory_is_checked", registration),
        Check::new("rows::pointer_attributes", pointer_attributes),
    ]
}

/// Returns the parameters of a copy that moves nothing yet.
fn nothing_2d() -> CUDA_MEMCPY2D {
    // SAFETY: all fields are numbers, pointers, or the enumeration that is set below.
    let mut copy: CUDA_MEMCPY2D = unsafe {
        let mut copy = std::mem::MaybeUninit::<CUDA_MEMCPY2D>::zeroed();
        (*copy.as_mut_ptr()).srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        (*copy.as_mut_ptr()).dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        copy.assume_init()
    };
    (copy.srcPitch, copy.dstPitch) = (8, 8);
    copy
}

/// Copies 3 x 2 bytes from column 1, row 1 of host rows of 5 bytes to column 2, row 1 of device rows of 8 bytes.
fn to_device(from: &[u8], to: u64) -> CUDA_MEMCPY2D {
    let mut copy = nothing_2d();
    copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
    (copy.srcHost, copy.srcXInBytes, copy.srcY, copy.srcPitch) = (from.as_ptr().cast(), 1, 1, 5);
    (copy.dstDevice, copy.dstXInBytes, copy.dstY) = (to, 2, 1);
    (copy.WidthInBytes, copy.Height) = (3, 2);
    copy
}

fn copy_2d() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let buffer = stream.alloc_zeros::<u8>(32)?;
    stream.synchronize()?;
    let from: Vec<u8> = (0..20).collect();
    let copy = to_device(&from, address(&buffer));
    // SAFETY: the rows are in the host's bytes and in the buffer.
    unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream.cu_stream()) }.result()?;
    let mut expected = [0; 32];
    expected[10..13].copy_from_slice(&[6, 7, 8]);
    expected[18..21].copy_from_slice(&[11, 12, 13]);
    assert_eq!(stream.clone_dtoh(&buffer)?, expected);
    // Back to the host, through another buffer with a different pitch.
    let other = stream.alloc_zeros::<u8>(32)?;
    stream.synchronize()?;
    let mut copy = nothing_2d();
    (copy.srcDevice, copy.srcXInBytes, copy.srcY) = (address(&buffer), 2, 1);
    (copy.dstDevice, copy.dstPitch, copy.WidthInBytes, copy.Height) = (address(&other), 4, 3, 2);
    let mut received = [9_u8; 8];
    // SAFETY: as above.
    unsafe {
        sys::cuMemcpy2DUnaligned_v2(&raw const copy).result()?;
        (copy.srcDevice, copy.srcXInBytes, copy.srcY, copy.srcPitch) = (address(&other), 0, 0, 4);
        copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
        copy.dstHost = received.as_mut_ptr().cast();
        sys::cuMemcpy2D_v2(&raw const copy).result()?;
    }
    assert_eq!(received, [6, 7, 8, 9, 11, 12, 13, 9]);
    Ok(())
}

fn copy_3d() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let from: Vec<u8> = (0..60).collect();
    let buffer = stream.clone_htod(&from)?;
    stream.synchronize()?;
    let mut received = [0_u8; 8];
    // SAFETY: all fields are numbers, pointers, or enumerations, which are set.
    let copy = unsafe {
        let mut copy = std::mem::MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
        let it = &mut *copy.as_mut_ptr();
        it.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
        it.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
        // Slices of 4 rows of 5 bytes.
        (it.srcDevice, it.srcPitch, it.srcHeight) = (address(&buffer), 5, 4);
        (it.srcXInBytes, it.srcY, it.srcZ) = (1, 2, 1);
        (it.dstHost, it.dstPitch, it.dstHeight) = (received.as_mut_ptr().cast(), 2, 2);
        (it.WidthInBytes, it.Height, it.Depth) = (2, 2, 2);
        copy.assume_init()
    };
    // SAFETY: the rows are in the buffer and in the host's bytes.
    unsafe { sys::cuMemcpy3D_v2(&raw const copy) }.result()?;
    assert_eq!(received, [31, 32, 36, 37, 51, 52, 56, 57]);
    let mut flat = copy;
    flat.srcHeight = 3;
    // SAFETY: the copy is refused.
    let refused = unsafe { sys::cuMemcpy3D_v2(&raw const flat) };
    fails(refused.result(), CUresult::CUDA_ERROR_INVALID_VALUE, &["a slice is 3 rows high", "to row 4"]);
    Ok(())
}

fn bad_copies() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let buffer = stream.alloc_zeros::<u8>(32)?;
    stream.synchronize()?;
    let from = [0_u8; 20];
    let good = to_device(&from, address(&buffer));
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    // SAFETY: each of these copies is refused.
    let copy = |copy: CUDA_MEMCPY2D| unsafe { sys::cuMemcpy2D_v2(&raw const copy) }.result();
    fails(copy(CUDA_MEMCPY2D { dstPitch: 4, ..good }), invalid, &["destination", "the pitch is 4", "byte 5"]);
    fails(copy(CUDA_MEMCPY2D { srcPitch: 0, ..good }), invalid, &["source", "the pitch is 0"]);
    fails(copy(CUDA_MEMCPY2D { dstPitch: 1 << 31, ..good }), invalid, &["a pitch of 2147483648 bytes"]);
    fails(copy(CUDA_MEMCPY2D { dstY: 3, ..good }), invalid, &["copy to 3 bytes", "32 bytes"]);
    fails(
        copy(CUDA_MEMCPY2D { srcHost: std::ptr::null(), srcXInBytes: 0, srcY: 0, ..good }),
        invalid,
        &["null"],
    );
    let array = CUDA_MEMCPY2D { srcMemoryType: CUmemorytype::CU_MEMORYTYPE_ARRAY, ..good };
    fails(copy(array), invalid, &["0x0 is not a CUDA array"]);
    // SAFETY: a null pointer is refused.
    fails(unsafe { sys::cuMemcpy2D_v2(std::ptr::null()) }.result(), invalid, &["is null"]);
    copy(CUDA_MEMCPY2D { Height: 0, ..good })?;
    Ok(())
}

fn unwritten_row() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    // SAFETY: the first row is written below.
    let buffer = unsafe { stream.alloc::<u8>(16) }?;
    let mut received = [0_u8; 16];
    let mut copy = nothing_2d();
    copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
    (copy.srcDevice, copy.dstHost) = (address(&buffer), received.as_mut_ptr().cast());
    (copy.WidthInBytes, copy.Height) = (4, 2);
    // SAFETY: the rows are in the buffer and in the host's bytes.
    let read = unsafe {
        sys::cuMemsetD8Async(address(&buffer), 1, 8, stream.cu_stream()).result()?;
        sys::cuMemcpy2DAsync_v2(&raw const copy, stream.cu_stream())
    };
    fails(read.result(), CUresult::CUDA_ERROR_LAUNCH_FAILED, &["byte 8 is the first of them"]);
    Ok(())
}

fn race() -> anyhow::Result<()> {
    let context = untracked(0);
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    let buffer = one.alloc_zeros::<u8>(32)?;
    one.synchronize()?;
    let set = |at: u64, stream: &cudarc::driver::CudaStream| {
        // SAFETY: both rows are in the buffer.
        unsafe { sys::cuMemsetD2D8Async(at, 16, 1, 4, 2, stream.cu_stream()) }.result()
    };
    set(address(&buffer), &one)?;
    set(address(&buffer) + 4, &other)?;
    context.synchronize()?;
    set(address(&buffer), &one)?;
    set(address(&buffer) + 3, &other)?;
    fails(context.synchronize(), CUresult::CUDA_ERROR_LAUNCH_FAILED, &["data race", "bytes 3..4", "memset"]);
    Ok(())
}

fn set_2d() -> anyhow::Result<()> {
    let stream = untracked(0).default_stream();
    let (mut at, mut pitch) = (0, 0);
    let mut received = vec![0_u8; 1024];
    // SAFETY: the results are writable, and all addresses are in the allocation.
    unsafe {
        sys::cuMemAllocPitch_v2(&raw mut at, &raw mut pitch, 100, 2, 4).result()?;
        assert_eq!((pitch, at % 512), (512, 0));
        sys::cuMemsetD8_v2(at, 0, 1024).result()?;
        sys::cuMemsetD2D32_v2(at + 4, pitch, 0x0403_0201, 2, 2).result()?;
        sys::cuMemcpyDtoH_v2(received.as_mut_ptr().cast(), at, 1024).result()?;
        for row in received.chunks(512) {
            assert_eq!((&row[..12], row[12]), (&[0, 0, 0, 0, 1, 2, 3, 4, 1, 2, 3, 4][..], 0));
        }
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        fails(
            sys::cuMemsetD2D16_v2(at, 3, 0, 2, 2).result(),
            invalid,
            &["a row has 4 bytes, but the pitch is 3"],
        );
        fails(sys::cuMemsetD2D16_v2(at, 5, 0, 2, 2).result(), invalid, &["the pitch can't be 5 bytes"]);
        fails(sys::cuMemsetD2D8_v2(at, 512, 0, 512, 3).result(), invalid, &["set of 512 bytes"]);
        let odd = sys::cuMemAllocPitch_v2(&raw mut at, &raw mut pitch, 100, 2, 5);
        fails(odd.result(), invalid, &["must be 4, 8, or 16, not 5"]);
        let huge = sys::cuMemAllocPitch_v2(&raw mut at, &raw mut pitch, usize::MAX / 2, 9, 4);
        fails(huge.result(), CUresult::CUDA_ERROR_OUT_OF_MEMORY, &["9 rows of"]);
        sys::cuMemFree_v2(at).result()?;
    }
    drop(stream);
    Ok(())
}

fn unified() -> anyhow::Result<()> {
    let stream = untracked(0).default_stream();
    let buffer = stream.alloc_zeros::<u8>(4)?;
    // SAFETY: it is written before it is read.
    let mut pinned = unsafe { stream.context().alloc_pinned::<u8>(4) }?;
    pinned.as_mut_slice()?.fill(0);
    let (sent, mut received, mut again) = ([1_u8, 2, 3, 4], [0_u8; 4], [0_u8; 4]);
    let pinned_address = pinned.as_mut_ptr()? as u64;
    // SAFETY: each address has four bytes.
    unsafe {
        sys::cuMemcpy(address(&buffer), sent.as_ptr() as u64, 4).result()?;
        sys::cuMemcpyAsync(pinned_address, address(&buffer), 4, stream.cu_stream()).result()?;
        stream.synchronize()?;
        sys::cuMemcpy(received.as_mut_ptr() as u64, pinned_address, 4).result()?;
        sys::cuMemcpy(again.as_mut_ptr() as u64, received.as_ptr() as u64, 4).result()?;
        sys::cuMemcpyPeer(address(&buffer), std::ptr::null_mut(), pinned_address, std::ptr::null_mut(), 4)
            .result()?;
    }
    assert_eq!((received, again), (sent, sent));
    Ok(())
}

const ADDS: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry adds(.param .u64 at) {
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [at];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd3], %r2;
    ret;
}
";

fn mapped() -> anyhow::Result<()> {
    let context = untracked(0);
    let stream = context.new_stream()?;
    let adds = context.load_module(Ptx::from_src(ADDS))?.load_function("adds")?;
    // SAFETY: it is written before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<u32>(64) }?;
    pinned.as_mut_slice()?.iter_mut().zip(0..).for_each(|(to, value)| *to = value);
    let mut own: Vec<u32> = (0..64).collect();
    let start = own.as_mut_ptr().cast::<c_void>();
    let mut at = 0;
    // SAFETY: both have 64 elements; `own` outlives its registration.
    unsafe {
        sys::cuMemHostRegister_v2(start, 256, 2).result()?;
        sys::cuMemHostGetDevicePointer_v2(&raw mut at, start, 0).result()?;
        for at in [at, pinned.as_mut_ptr()? as u64] {
            stream.launch_builder(&adds).arg(&at).launch(shape(1, 64))?;
        }
        stream.synchronize()?;
        sys::cuMemHostUnregister(start).result()?;
    }
    let expected: Vec<u32> = (1..65).collect();
    assert_eq!((own.as_slice(), pinned.as_slice()?), (&expected[..], &expected[..]));
    // The kernel and an upload of the same bytes on another stream race.
    let other = context.new_stream()?;
    let mut buffer = other.alloc_zeros::<u32>(64)?;
    context.synchronize()?;
    let at = pinned.as_mut_ptr()? as u64;
    // SAFETY: as above.
    unsafe { stream.launch_builder(&adds).arg(&at).launch(shape(1, 64)) }?;
    other.memcpy_htod(&pinned, &mut buffer)?;
    let words = ["data race", "pinned host memory", "kernel `adds`", "a copy from the host"];
    fails(context.synchronize(), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words[..1]);
    fails(context.synchronize(), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words[2..]);
    Ok(())
}

fn registration() -> anyhow::Result<()> {
    let _context = untracked(0);
    let mut own = [0_u8; 100];
    let start = own.as_mut_ptr().cast::<c_void>();
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let mut at = 0;
    // SAFETY: wrong memory is refused, and `own` outlives its registration.
    unsafe {
        let register = |address, bytes, flags| sys::cuMemHostRegister_v2(address, bytes, flags).result();
        fails(register(std::ptr::null_mut(), 4, 0), invalid, &["can't be registered"]);
        fails(register(start, 0, 0), invalid, &["0 bytes at"]);
        fails(register(start, 100, 16), invalid, &["0x10 contains unknown flags"]);
        fails(register(start, 100, 8), CUresult::CUDA_ERROR_NOT_SUPPORTED, &["read-only memory"]);
        fails(register(start, usize::MAX / 2, 0), invalid, &["the program can't read and write"]);
        fails(register(std::ptr::dangling_mut::<u8>().cast(), 4, 0), invalid, &["the program can't"]);
        register(start, 100, 0)?;
        let twice = register(start.byte_add(50), 10, 0);
        fails(twice, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, &["already pinned host memory"]);
        fails(sys::cuMemFreeHost(start).result(), invalid, &["cuMemHostUnregister"]);
        let middle = sys::cuMemHostUnregister(start.byte_add(1));
        fails(middle.result(), CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, &["not the start"]);
        fails(sys::cuMemFree_v2(start as u64).result(), invalid, &["is pinned host memory"]);
        sys::cuMemHostUnregister(start).result()?;
        let gone = sys::cuMemHostUnregister(start);
        fails(gone.result(), CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, &["not the start"]);
        let pageable = sys::cuMemHostGetDevicePointer_v2(&raw mut at, start, 0);
        fails(pageable.result(), invalid, &["is not in pinned host memory"]);
        register(start, 100, 0)?;
        sys::cuMemHostUnregister(start).result()?;
    }
    Ok(())
}

fn pointer_attributes() -> anyhow::Result<()> {
    use CUpointer_attribute::*;
    let context = untracked(1);
    context.bind_to_thread()?;
    let mut at = 0;
    // SAFETY: the result is writable.
    unsafe { sys::cuMemAlloc_v2(&raw mut at, 100) }.result()?;
    let ask = |attribute, at| {
        let mut value = 0_u64;
        // SAFETY: no value has more than 8 bytes.
        unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, at) }.result().map(|()| value)
    };
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_CONTEXT, at)?, context.cu_ctx() as u64);
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 99)?, 2);
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at + 4)?, at + 4);
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at)?, 1);
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, at)?, 0);
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 7)?, at);
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + 7)?, 100);
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    fails(
        ask(CU_POINTER_ATTRIBUTE_HOST_POINTER, at),
        invalid,
        &["the host can't access the memory of GPU 1"],
    );
    fails(
        ask(CU_POINTER_ATTRIBUTE_CONTEXT, at + 100),
        invalid,
        &["is not in memory that CUDA has allocated"],
    );
    fails(ask(CU_POINTER_ATTRIBUTE_P2P_TOKENS, at), CUresult::CUDA_ERROR_NOT_SUPPORTED, &["P2P_TOKENS"]);
    // SAFETY: it is not accessed.
    let mut pinned = unsafe { context.alloc_pinned::<u8>(10) }?;
    let host = pinned.as_mut_ptr()? as u64;
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host)?, 1);
    assert_eq!(ask(CU_POINTER_ATTRIBUTE_HOST_POINTER, host + 1)?, host + 1);
    let pageable = [0_u8; 4];
    let mut attributes = [CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL];
    let (mut kind, mut device) = (7_u32, 7_i32);
    let mut values = [(&raw mut kind).cast::<c_void>(), (&raw mut device).cast()];
    let (mut base, mut size) = (0, 0);
    // SAFETY: there is a value for each attribute, and the results are writable.
    unsafe {
        let ask = sys::cuPointerGetAttributes;
        ask(2, attributes.as_mut_ptr(), values.as_mut_ptr(), pageable.as_ptr() as u64).result()?;
        assert_eq!((kind, device), (0, -2));
        ask(2, attributes.as_mut_ptr(), values.as_mut_ptr(), at).result()?;
        assert_eq!((kind, device), (2, 1));
        sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, at + 5).result()?;
        assert_eq!((base, size), (at, 100));
        let outside = sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, at + 100);
        fails(outside.result(), CUresult::CUDA_ERROR_NOT_FOUND, &["is not in any allocation"]);
        sys::cuMemFree_v2(at).result()?;
    }
    Ok(())
}
