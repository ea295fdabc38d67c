//! Pinned host memory, and copies that run in stream order between it and a GPU.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DriverError, PushKernelArg, result};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::{shape, untracked};
use crate::fails;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("host_memory::a_copy_through_pinned_memory_comes_back", comes_back),
        Check::new("host_memory::an_upload_reads_when_its_turn_comes", upload_reads_late),
        Check::new("host_memory::a_download_returns_at_once", download_returns_at_once),
        Check::new("host_memory::a_copy_of_pageable_memory_is_taken_at_the_call", pageable),
        Check::new("host_memory::memory_freed_under_a_copy_lives_on", freed_under_a_copy),
        Check::new("host_memory::a_copy_beyond_its_end_is_refused", beyond_its_end),
        Check::new("host_memory::its_flags_can_be_queried", flags),
        Check::new("host_memory::bad_allocations_and_frees_are_named", bad_arguments),
        Check::new("host_memory::a_gpu_uses_its_address_within_bounds", device_address),
    ]
}

fn stream() -> anyhow::Result<Arc<CudaStream>> {
    Ok(untracked(0).new_stream()?)
}

/// Blocks a stream until a message arrives or the sender is dropped.
fn hold(stream: &CudaStream) -> Result<Sender<()>, DriverError> {
    unsafe extern "C" fn wait(receive: *mut c_void) {
        // SAFETY: the driver passes the original pointer, once.
        let receive = unsafe { Box::from_raw(receive.cast::<Receiver<()>>()) };
        receive.recv().unwrap_or_default();
    }
    let (send, receive) = channel();
    let receive = Box::into_raw(Box::new(receive));
    // SAFETY: `wait` takes this pointer, and is called once.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), wait, receive.cast()) }?;
    Ok(send)
}

fn comes_back() -> anyhow::Result<()> {
    // Use cudarc's event tracking, as programs do.
    let stream = CudaContext::new(0)?.new_stream()?;
    // SAFETY: both are written before they are read.
    let mut sent = unsafe { stream.context().alloc_pinned::<u32>(1000) }?;
    // SAFETY: as above.
    let mut received = unsafe { stream.context().alloc_pinned_with_flags::<u32>(1000, 3) }?;
    sent.as_mut_slice()?.iter_mut().zip(0..).for_each(|(value, i)| *value = i * i);
    let buffer = stream.clone_htod(&sent)?;
    stream.memcpy_dtoh(&buffer, &mut received)?;
    assert_eq!(received.as_slice()?, sent.as_slice()?);
    Ok(())
}

/// A host function may write the memory that a later copy on its stream reads.
fn upload_reads_late() -> anyhow::Result<()> {
    unsafe extern "C" fn fill(memory: *mut c_void) {
        // SAFETY: the program passes four bytes, which nothing else uses in the meantime.
        unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), 4) }.fill(2);
    }
    let stream = stream()?;
    // SAFETY: it is written before it is read.
    let mut sent = unsafe { stream.context().alloc_pinned::<u8>(4) }?;
    sent.as_mut_slice()?.fill(1);
    let mut buffer = stream.alloc_zeros::<u8>(4)?;
    let go_on = hold(&stream)?;
    // SAFETY: `fill` takes four bytes, and is called before the copy.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), fill, sent.as_mut_ptr()?.cast()) }?;
    stream.memcpy_htod(&sent, &mut buffer)?;
    drop(go_on);
    stream.synchronize()?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [2; 4]);
    Ok(())
}

fn download_returns_at_once() -> anyhow::Result<()> {
    let stream = stream()?;
    // SAFETY: it is written below.
    let mut received = unsafe { stream.context().alloc_pinned::<u8>(4) }?;
    received.as_mut_slice()?.fill(1);
    let buffer = stream.clone_htod(&[7u8; 4])?;
    let go_on = hold(&stream)?;
    stream.memcpy_dtoh(&buffer, &mut received)?;
    assert!(!stream.record_event(None)?.is_complete());
    drop(go_on);
    stream.synchronize()?;
    assert_eq!(received.as_slice()?, [7; 4]);
    // A copy without a stream blocks until it is done.
    stream.context().default_stream().synchronize()?;
    let address = buffer.device_ptr(&stream).0;
    received.as_mut_slice()?.fill(0);
    // SAFETY: both sides have four bytes.
    unsafe { sys::cuMemcpyDtoH_v2(received.as_mut_ptr()?.cast(), address, 4) }.result()?;
    assert_eq!(received.as_slice()?, [7; 4]);
    Ok(())
}

fn pageable() -> anyhow::Result<()> {
    let stream = stream()?;
    let mut buffer = stream.alloc_zeros::<u8>(4)?;
    let mut sent = vec![1u8; 4];
    let go_on = hold(&stream)?;
    stream.memcpy_htod(&sent, &mut buffer)?;
    sent.fill(2);
    drop(go_on);
    assert_eq!(stream.clone_dtoh(&buffer)?, [1; 4]);
    Ok(())
}

fn freed_under_a_copy() -> anyhow::Result<()> {
    let stream = stream()?;
    let mut buffer = stream.alloc_zeros::<u8>(4)?;
    // SAFETY: it is written before it is read.
    let mut sent = unsafe { stream.context().alloc_pinned::<u8>(4) }?;
    sent.as_mut_slice()?.fill(9);
    let go_on = hold(&stream)?;
    stream.memcpy_htod(&sent, &mut buffer)?;
    drop(sent);
    drop(go_on);
    assert_eq!(stream.clone_dtoh(&buffer)?, [9; 4]);
    Ok(())
}

fn beyond_its_end() -> anyhow::Result<()> {
    let stream = stream()?;
    // SAFETY: it is written before it is read.
    let mut sent = unsafe { stream.context().alloc_pinned::<u8>(100) }?;
    let buffer = stream.alloc_zeros::<u8>(200)?;
    let address = buffer.device_ptr(&stream).0;
    // SAFETY: the copy is refused.
    let copied = unsafe {
        let from = sent.as_mut_ptr()?.add(10);
        sys::cuMemcpyHtoDAsync_v2(address, from.cast(), 91, stream.cu_stream())
    };
    let words = ["a copy of 91 bytes at byte 10 of pinned host memory, which has only 100 bytes"];
    fails(copied.result(), CUresult::CUDA_ERROR_INVALID_VALUE, &words);
    Ok(())
}

fn flags() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let ask = |address: *const u32| {
        let mut flags = 0;
        // SAFETY: the result is writable, and the address is only looked up.
        unsafe { sys::cuMemHostGetFlags(&raw mut flags, address.cast_mut().cast()) }.result().map(|()| flags)
    };
    for flags in [0, sys::CU_MEMHOSTALLOC_WRITECOMBINED, 7] {
        // SAFETY: nothing reads it.
        let memory = unsafe { context.alloc_pinned_with_flags::<u32>(1000, flags) }?;
        let start = memory.as_ptr()?;
        // Any address within the memory is valid. GPUs can use it in any case.
        let flags = flags | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        assert_eq!((ask(start)?, ask(start.wrapping_add(999))?), (flags, flags));
    }
    let pageable = [0_u32; 4];
    fails(
        ask(pageable.as_ptr()),
        CUresult::CUDA_ERROR_INVALID_VALUE,
        &["cuMemHostGetFlags", "is not in memory from cuMemHostAlloc"],
    );
    Ok(())
}

fn bad_arguments() -> anyhow::Result<()> {
    let _stream = stream()?;
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    // SAFETY: the memory is not accessed, and freeing an invalid address is refused.
    unsafe {
        fails(result::malloc_host(0, 0), invalid, &["can't allocate 0 bytes"]);
        fails(result::malloc_host(8, 8), invalid, &["0x8 contains unknown flags"]);
        let most = result::malloc_host(isize::MAX as usize - 4095, 0);
        fails(most, CUresult::CUDA_ERROR_OUT_OF_MEMORY, &["the host has no room for"]);
        let memory = result::malloc_host(64, 0)?;
        let words = ["is 8 bytes past the start of pinned host memory"];
        fails(result::free_host(memory.byte_add(8)), invalid, &words);
        result::free_host(memory)?;
        fails(result::free_host(memory), invalid, &["is not pinned host memory, or no longer is"]);
        fails(result::free_host(std::ptr::null_mut()), invalid, &["0x0 is not pinned host memory"]);
    }
    Ok(())
}

const READS: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry reads(.param .u64 from) {
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [from];
    ld.global.u32 %r1, [%rd1];
    ret;
}
";

fn device_address() -> anyhow::Result<()> {
    let stream = stream()?;
    // SAFETY: it is set before it is read.
    let mut memory = unsafe { stream.context().alloc_pinned::<u8>(64) }?;
    let address = memory.as_mut_ptr()? as u64;
    let reads = stream.context().load_module(Ptx::from_src(READS))?.load_function("reads")?;
    // SAFETY: the first two calls stay within the memory; the others have to fail.
    unsafe {
        result::memset_d8_async(address, 3, 64, stream.cu_stream())?;
        stream.launch_builder(&reads).arg(&address).launch(shape(1, 1))?;
        stream.synchronize()?;
        assert_eq!(memory.as_slice()?, [3; 64]);
        let set = result::memset_d8_async(address, 0, 65, stream.cu_stream());
        fails(set, CUresult::CUDA_ERROR_INVALID_VALUE, &["set of 65 bytes"]);
        stream.launch_builder(&reads).arg(&(address + 64)).launch(shape(1, 1))?;
    }
    let words = ["kernel `reads` goes out of bounds", "64 bytes of pinned host memory"];
    fails(stream.synchronize(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words[..1]);
    Ok(())
}
