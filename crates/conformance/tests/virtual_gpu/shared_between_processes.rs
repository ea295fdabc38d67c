//! Memory and events that two processes use.

use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use cudarc::driver::sys::{self, CUevent, CUipcEventHandle, CUipcMemHandle, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, PushKernelArg, result};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::{shape, untracked};
use crate::interprocess::{
    INTERPROCESS_WITHOUT_TIMING, LAZY, allocate, event_handle, free, memory_handle, open, open_event,
};
use crate::two_processes::{self, Link};
use crate::{child, contains, fails, host_functions, text};

use CUresult::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_MAP_FAILED,
};

const KERNELS: &str = include_str!("interprocess.ptx");

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("processes::both_read_what_either_writes", both_ways),
        Check::new("processes::a_handle_is_opened_once_per_context", opened_twice),
        Check::new("processes::bytes_that_no_process_wrote_are_reported", unwritten),
        Check::new("processes::memory_of_another_gpu_is_opened_through_a_link", other_gpu),
        Check::new("processes::a_handle_of_an_ended_process_is_refused", ended),
        Check::new("processes::a_handle_of_freed_memory_is_refused", freed),
        Check::new("processes::memory_stays_when_its_process_is_killed", killed),
        Check::new("processes::a_use_after_the_other_process_s_free_is_reported", used_after_free),
        Check::new("processes::opened_memory_is_closed_not_freed", closed),
        Check::new("processes::atomics_of_both_count", atomics),
        Check::new("processes::a_kernel_waits_for_a_kernel_of_another_process", flags),
        Check::new("processes::a_stream_waits_for_an_event_of_another_process", events),
        Check::new("processes::an_opened_event_can_be_recorded", recorded_by_opener),
        Check::new("processes::a_wait_for_an_event_of_a_killed_process_is_reported", killed_before_event),
        Check::new("processes::a_wait_for_an_event_that_never_comes_ends", never_done),
    ]
}

fn bytes_of(handle: CUipcMemHandle) -> [u8; 64] {
    handle.reserved.map(|byte| byte as u8)
}

fn memory_from(bytes: [u8; 64]) -> CUipcMemHandle {
    CUipcMemHandle { reserved: bytes.map(|byte| byte as std::ffi::c_char) }
}

fn receive_memory(link: &mut Link) -> anyhow::Result<CUipcMemHandle> {
    Ok(memory_from(link.receive::<64>()?))
}

fn send_event(link: &mut Link, event: CUevent) -> anyhow::Result<()> {
    link.send(&event_handle(event)?.reserved.map(|byte| byte as u8))
}

fn receive_event(link: &mut Link) -> anyhow::Result<CUevent> {
    let reserved = link.receive::<64>()?.map(|byte| byte as std::ffi::c_char);
    Ok(open_event(CUipcEventHandle { reserved })?)
}

pub(crate) fn read(address: u64, len: usize) -> Result<Vec<u8>, DriverError> {
    let mut bytes = vec![0; len];
    // SAFETY: the driver checks the address.
    unsafe { result::memcpy_dtoh_sync(&mut bytes, address) }.map(|()| bytes)
}

pub(crate) fn write(address: u64, bytes: &[u8]) -> Result<(), DriverError> {
    // SAFETY: the driver checks the address.
    unsafe { result::memcpy_htod_sync(address, bytes) }
}

fn close(address: u64) -> Result<(), DriverError> {
    // SAFETY: the driver checks the address.
    unsafe { sys::cuIpcCloseMemHandle(address) }.result()
}

/// Creates an event that other processes can open.
fn new_event() -> Result<CUevent, DriverError> {
    let mut event = null_mut();
    // SAFETY: the result is writable.
    unsafe { sys::cuEventCreate(&raw mut event, INTERPROCESS_WITHOUT_TIMING) }.result().map(|()| event)
}

fn record(event: CUevent, stream: &CudaStream) -> Result<(), DriverError> {
    // SAFETY: both are alive.
    unsafe { sys::cuEventRecord(event, stream.cu_stream()) }.result()
}

fn wait_for(event: CUevent, stream: &CudaStream) -> Result<(), DriverError> {
    // SAFETY: both are alive.
    unsafe { sys::cuStreamWaitEvent(stream.cu_stream(), event, 0) }.result()
}

fn both_ways() -> anyhow::Result<()> {
    let child = |mut link: Link| {
        let _context = untracked(0);
        let address = allocate();
        write(address, &[5; 4096])?;
        link.send(&bytes_of(memory_handle(address)?))?;
        link.meet()?;
        ensure!(read(address, 4)? == [5, 6, 7, 5]);
        free(address);
        Ok(())
    };
    two_processes::run(child, |mut link| {
        let _context = untracked(0);
        let handle = receive_memory(&mut link)?;
        let address = open(handle, LAZY)?;
        assert_eq!(read(address, 4096)?, [5; 4096]);
        write(address + 1, &[6, 7])?;
        // The memory is not this process's own.
        fails(memory_handle(address), CUDA_ERROR_INVALID_VALUE, &["is memory of another process"]);
        close(address)?;
        link.meet()
    })
}

/// Starts a child with memory, of which the first half is written, and runs `parent` with its handle while the child
/// waits.
fn with_memory(parent: impl FnOnce(&mut Link, CUipcMemHandle) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let child = |mut link: Link| {
        let _context = untracked(1);
        let address = allocate();
        write(address, &[5; 2048])?;
        link.send(&bytes_of(memory_handle(address)?))?;
        link.meet()
    };
    two_processes::run(child, |mut link| {
        let handle = receive_memory(&mut link)?;
        parent(&mut link, handle)?;
        link.meet()
    })
}

fn opened_twice() -> anyhow::Result<()> {
    with_memory(|_, handle| {
        let _context = untracked(1);
        let address = open(handle, LAZY)?;
        assert_eq!(open(handle, LAZY)?, address);
        close(address)?;
        assert_eq!(read(address, 1)?, [5]);
        close(address)?;
        fails(read(address, 1), CUDA_ERROR_INVALID_VALUE, &["memory that has been freed"]);
        fails(close(address), CUDA_ERROR_INVALID_VALUE, &["was not opened with cuIpcOpenMemHandle"]);
        let again = open(handle, LAZY)?;
        assert_eq!(read(again, 2048)?, [5; 2048]);
        Ok(close(again)?)
    })
}

fn unwritten() -> anyhow::Result<()> {
    with_memory(|_, handle| {
        let _context = untracked(1);
        let address = open(handle, LAZY)?;
        write(address + 2048, &[1; 100])?;
        read(address, 2148)?;
        let words = ["reads bytes that nothing wrote"];
        fails(read(address, 2149), CUDA_ERROR_LAUNCH_FAILED, &words);
        Ok(())
    })
}

fn other_gpu() -> anyhow::Result<()> {
    with_memory(|_, handle| {
        let context = untracked(0);
        let address = open(handle, LAZY)?;
        let (stream, add) = kernel(&context, "add")?;
        write(address, &[0; 4])?;
        // SAFETY: the memory has room for a number.
        unsafe { stream.launch_builder(&add).arg(&address).arg(&10_i32).launch(shape(1, 32))? };
        stream.synchronize()?;
        assert_eq!(read(address, 4)?, 320_i32.to_le_bytes());
        Ok(close(address)?)
    })
}

fn ended() -> anyhow::Result<()> {
    let mut handle = [0; 64];
    let child = |mut link: Link| {
        let _context = untracked(0);
        link.send(&bytes_of(memory_handle(allocate())?))
    };
    let mut id = 0;
    two_processes::run(child, |mut link| {
        (handle, id) = (link.receive::<64>()?, link.other);
        Ok(())
    })?;
    let _context = untracked(0);
    let words =
        [&format!("the memory of process {id}"), "that process has ended, or runs on another machine"];
    fails(open(memory_from(handle), LAZY), CUDA_ERROR_MAP_FAILED, &words.map(|text: &str| text));
    Ok(())
}

fn freed() -> anyhow::Result<()> {
    let child = |mut link: Link| {
        let _context = untracked(0);
        let address = allocate();
        let handle = memory_handle(address)?;
        free(address);
        link.send(&bytes_of(handle))?;
        link.meet()
    };
    two_processes::run(child, |mut link| {
        let handle = receive_memory(&mut link)?;
        let _context = untracked(0);
        fails(
            open(handle, LAZY),
            CUDA_ERROR_INVALID_VALUE,
            &["that process has freed it, or the handle is wrong"],
        );
        let mut forged = handle;
        forged.reserved[50] ^= 1;
        fails(open(forged, LAZY), CUDA_ERROR_INVALID_VALUE, &["the handle is wrong"]);
        link.meet()
    })
}

fn killed() -> anyhow::Result<()> {
    let (child, mut link) = two_processes::start(|mut link| {
        let _context = untracked(0);
        let address = allocate();
        write(address, &[5; 4096])?;
        link.send(&bytes_of(memory_handle(address)?))?;
        link.receive::<1>().map(drop)
    });
    let _context = untracked(0);
    let handle = receive_memory(&mut link)?;
    let address = open(handle, LAZY)?;
    child.kill();
    assert_eq!(read(address, 4096)?, [5; 4096]);
    // It is still open here.
    assert_eq!(open(handle, LAZY)?, address);
    Ok(())
}

fn used_after_free() -> anyhow::Result<()> {
    let child = |mut link: Link| {
        let _context = untracked(0);
        let address = allocate();
        write(address, &[5; 4096])?;
        link.send(&bytes_of(memory_handle(address)?))?;
        link.meet()?;
        free(address);
        link.meet()
    };
    two_processes::run(child, |mut link| {
        let context = untracked(0);
        let address = open(receive_memory(&mut link)?, LAZY)?;
        link.meet()?;
        link.meet()?;
        let words = ["uses memory that another process has freed", "two_processes"];
        fails(read(address, 1), CUDA_ERROR_INVALID_VALUE, &words[..1]);
        let (stream, add) = kernel(&context, "add")?;
        // SAFETY: the memory has room for a number.
        unsafe { stream.launch_builder(&add).arg(&address).arg(&1_i32).launch(shape(1, 1))? };
        fails(stream.synchronize(), CUDA_ERROR_LAUNCH_FAILED, &words[..1]);
        Ok(())
    })
}

fn closed() -> anyhow::Result<()> {
    with_memory(|_, handle| {
        let _context = untracked(1);
        let address = open(handle, LAZY)?;
        // SAFETY: the driver checks the address.
        let refused = unsafe { result::free_sync(address) };
        fails(refused, CUDA_ERROR_INVALID_VALUE, &["close it with cuIpcCloseMemHandle"]);
        Ok(close(address)?)
    })
}

pub(crate) fn kernel(
    context: &Arc<CudaContext>,
    name: &str,
) -> anyhow::Result<(Arc<CudaStream>, CudaFunction)> {
    let module = context.load_module(Ptx::from_src(KERNELS))?;
    Ok((context.new_stream()?, module.load_function(name)?))
}

fn atomics() -> anyhow::Result<()> {
    const TIMES: i32 = 500;
    fn count(link: &mut Link, context: &Arc<CudaContext>, address: u64) -> anyhow::Result<()> {
        let (stream, add) = kernel(context, "add")?;
        link.meet()?;
        // SAFETY: the memory has room for a number.
        unsafe { stream.launch_builder(&add).arg(&address).arg(&TIMES).launch(shape(4, 64))? };
        stream.synchronize()?;
        link.meet()?;
        let bytes = read(address, 4)?;
        ensure!(bytes == (2 * 256 * TIMES).to_le_bytes(), "{bytes:?}");
        link.meet()
    }
    let child = |mut link: Link| {
        let context = untracked(0);
        let address = allocate();
        write(address, &[0; 4])?;
        link.send(&bytes_of(memory_handle(address)?))?;
        count(&mut link, &context, address)
    };
    two_processes::run(child, |mut link| {
        let context = untracked(0);
        let address = open(receive_memory(&mut link)?, LAZY)?;
        count(&mut link, &context, address)
    })
}

fn flags() -> anyhow::Result<()> {
    const ROUNDS: i32 = 20;
    let child = |mut link: Link| {
        let context = untracked(0);
        let address = allocate();
        write(address, &[0; 64])?;
        link.send(&bytes_of(memory_handle(address)?))?;
        let (stream, receive) = kernel(&context, "receive")?;
        let (_, send) = kernel(&context, "send")?;
        let out = stream.alloc_zeros::<i32>(1)?;
        for round in 1..=ROUNDS {
            let (data, flag, answer) = (address, address + 4, address + 8);
            // SAFETY: each pointer has room for a number.
            unsafe {
                stream
                    .launch_builder(&receive)
                    .arg(&data)
                    .arg(&flag)
                    .arg(&round)
                    .arg(&out)
                    .launch(shape(1, 1))?;
                stream
                    .launch_builder(&send)
                    .arg(&(address + 12))
                    .arg(&answer)
                    .arg(&round)
                    .launch(shape(1, 1))?;
            }
            // The program is not waiting for the GPU.
            link.meet()?;
            ensure!(stream.clone_dtoh(&out)? == [round]);
        }
        Ok(())
    };
    two_processes::run(child, |mut link| {
        let context = untracked(0);
        let address = open(receive_memory(&mut link)?, LAZY)?;
        let (stream, receive) = kernel(&context, "receive")?;
        let (_, send) = kernel(&context, "send")?;
        let out = stream.alloc_zeros::<i32>(1)?;
        for round in 1..=ROUNDS {
            let (data, flag, answer) = (address, address + 4, address + 8);
            // SAFETY: each pointer has room for a number.
            unsafe {
                stream.launch_builder(&send).arg(&data).arg(&flag).arg(&round).launch(shape(1, 1))?;
                stream
                    .launch_builder(&receive)
                    .arg(&(address + 12))
                    .arg(&answer)
                    .arg(&round)
                    .arg(&out)
                    .launch(shape(1, 1))?;
            }
            assert_eq!(stream.clone_dtoh(&out)?, [round]);
            link.meet()?;
        }
        Ok(())
    })
}

/// Lets a stream wait for so long.
fn delay(stream: &Arc<CudaStream>, time: Duration) -> anyhow::Result<()> {
    Ok(host_functions::launch(stream, move || std::thread::sleep(time))?)
}

fn events() -> anyhow::Result<()> {
    let child = |mut link: Link| {
        let context = untracked(0);
        let stream = context.new_stream()?;
        let address = allocate();
        let event = new_event()?;
        link.send(&bytes_of(memory_handle(address)?))?;
        send_event(&mut link, event)?;
        for round in 1..=3_u8 {
            delay(&stream, Duration::from_millis(100))?;
            // SAFETY: the memory is alive.
            unsafe { result::memset_d8_async(address, round, 4096, stream.cu_stream())? };
            record(event, &stream)?;
            // The program is not waiting for the GPU.
            link.meet()?;
            link.meet()?;
        }
        Ok(())
    };
    two_processes::run(child, |mut link| {
        let context = untracked(0);
        let stream = context.new_stream()?;
        let address = open(receive_memory(&mut link)?, LAZY)?;
        let event = receive_event(&mut link)?;
        // Nothing has been recorded, or it is not done.
        for round in 1..=3_u8 {
            link.meet()?;
            // SAFETY: the event is alive.
            let query = || unsafe { sys::cuEventQuery(event) };
            assert_eq!(query(), CUresult::CUDA_ERROR_NOT_READY);
            match round {
                1 => wait_for(event, &stream)?,
                // SAFETY: the event is alive.
                2 => unsafe { sys::cuEventSynchronize(event) }.result()?,
                _ => {
                    while query() == CUresult::CUDA_ERROR_NOT_READY {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
            let mut bytes = [0_u8; 4096];
            // SAFETY: the buffer outlives the copy.
            unsafe { result::memcpy_dtoh_async(&mut bytes, address, stream.cu_stream())? };
            stream.synchronize()?;
            assert_eq!(bytes, [round; 4096]);
            assert_eq!(query(), CUresult::CUDA_SUCCESS);
            link.meet()?;
        }
        // SAFETY: the event is alive.
        Ok(unsafe { sys::cuEventDestroy_v2(event) }.result()?)
    })
}

fn recorded_by_opener() -> anyhow::Result<()> {
    let child = |mut link: Link| {
        let context = untracked(0);
        let stream = context.new_stream()?;
        let (address, event) = (allocate(), new_event()?);
        record(event, &stream)?;
        link.send(&bytes_of(memory_handle(address)?))?;
        send_event(&mut link, event)?;
        link.meet()?;
        wait_for(event, &stream)?;
        let mut bytes = [0_u8; 4096];
        // SAFETY: the buffer outlives the copy.
        unsafe { result::memcpy_dtoh_async(&mut bytes, address, stream.cu_stream())? };
        stream.synchronize()?;
        ensure!(bytes == [9; 4096]);
        Ok(())
    };
    two_processes::run(child, |mut link| {
        let context = untracked(0);
        let stream = context.new_stream()?;
        let address = open(receive_memory(&mut link)?, LAZY)?;
        let event = receive_event(&mut link)?;
        delay(&stream, Duration::from_millis(100))?;
        // SAFETY: the memory is alive.
        unsafe { result::memset_d8_async(address, 9, 4096, stream.cu_stream())? };
        record(event, &stream)?;
        link.meet()?;
        Ok(stream.synchronize()?)
    })
}

/// Runs a child that records an event which is not done for a long time, and then `parent`.
fn with_late_event(
    parent: impl FnOnce(&two_processes::Child, CUevent, &Arc<CudaStream>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (child, mut link) = two_processes::start(|mut link| {
        lab::attach(1)?;
        let context = untracked(0);
        let (stream, event) = (context.new_stream()?, new_event()?);
        delay(&stream, Duration::from_secs(100))?;
        record(event, &stream)?;
        send_event(&mut link, event)?;
        link.receive::<1>().map(drop)
    });
    lab::attach(1)?;
    let context = untracked(0);
    let stream = context.new_stream()?;
    let event = receive_event(&mut link)?;
    let done = parent(&child, event, &stream);
    child.kill();
    done
}

fn killed_before_event() -> anyhow::Result<()> {
    with_late_event(|child, event, stream| {
        wait_for(event, stream)?;
        child.kill();
        let error = stream.synchronize().expect_err("the event is never done");
        assert_eq!(error.0, CUDA_ERROR_LAUNCH_FAILED);
        let ended = format!("a wait for an event of process {}, but the process has ended", child.id);
        contains(&text(error), &[&ended, "before its stream had reached the event"]);
        Ok(())
    })
}

fn never_done() -> anyhow::Result<()> {
    let (well, said) = child::start("shared_between_processes::waits", &[("VIRTUAL_GPU_TIMEOUT", "0.3")])?;
    ensure!(well, "{said}");
    Ok(())
}

/// Waits for an event that is not done for a long time.
pub(crate) fn waits() -> anyhow::Result<()> {
    with_late_event(|child, event, _| {
        // SAFETY: the event is alive.
        let waited = unsafe { sys::cuEventSynchronize(event) };
        let process = format!("a wait for an event of process {} that is not done", child.id);
        let words = [&*process, "(not proved: given up after 0.3 s"];
        fails(waited.result(), CUDA_ERROR_LAUNCH_TIMEOUT, &words);
        Ok(())
    })
}
