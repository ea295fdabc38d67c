//! Handles to memory and events for other processes.

use std::ptr::null_mut;

use cudarc::driver::DriverError;
use cudarc::driver::sys::{self, CUipcEventHandle, CUipcMemHandle, CUresult};
use lab::Check;

use crate::device::untracked;
use crate::fails;

use CUresult::{CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("interprocess::a_handle_can_t_be_opened_where_it_was_made", same_process),
        Check::new("interprocess::each_allocation_has_its_own_handle", unique),
        Check::new("interprocess::bad_arguments_are_refused", bad_arguments),
    ]
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`
pub(crate) const LAZY: u32 = 1;

/// `CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING`
pub(crate) const INTERPROCESS_WITHOUT_TIMING: u32 = 4 | 2;

pub(crate) fn memory_handle(address: u64) -> Result<CUipcMemHandle, DriverError> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the result is writable, and the driver checks the address.
    unsafe { sys::cuIpcGetMemHandle(&raw mut handle, address) }.result().map(|()| handle)
}

pub(crate) fn open(handle: CUipcMemHandle, flags: u32) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: the result is writable, and the driver checks the handle.
    unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) }.result().map(|()| address)
}

pub(crate) fn event_handle(event: sys::CUevent) -> Result<CUipcEventHandle, DriverError> {
    let mut handle = CUipcEventHandle { reserved: [0; 64] };
    // SAFETY: the result is writable, and the driver checks the event.
    unsafe { sys::cuIpcGetEventHandle(&raw mut handle, event) }.result().map(|()| handle)
}

pub(crate) fn open_event(handle: CUipcEventHandle) -> Result<sys::CUevent, DriverError> {
    let mut event = null_mut();
    // SAFETY: the result is writable, and the driver checks the handle.
    unsafe { sys::cuIpcOpenEventHandle(&raw mut event, handle) }.result().map(|()| event)
}

pub(crate) fn allocate() -> u64 {
    // SAFETY: the memory is not read.
    unsafe { cudarc::driver::result::malloc_sync(4096) }.unwrap()
}

pub(crate) fn free(address: u64) {
    // SAFETY: nothing uses the memory.
    unsafe { cudarc::driver::result::free_sync(address) }.unwrap();
}

fn same_process() -> anyhow::Result<()> {
    let context = untracked(0);
    let address = allocate();
    let handle = memory_handle(address)?;
    let mut event = null_mut();
    // SAFETY: the result is writable.
    unsafe { sys::cuEventCreate(&raw mut event, INTERPROCESS_WITHOUT_TIMING) }.result()?;
    let of_event = event_handle(event)?;
    let try_both = || {
        context.bind_to_thread().unwrap();
        let words = ["this process has exported the memory 0x", "can't open its own handle"];
        fails(open(handle, LAZY), CUDA_ERROR_INVALID_CONTEXT, &words);
        fails(open_event(of_event), CUDA_ERROR_INVALID_CONTEXT, &["this process has exported the event 0x"]);
    };
    try_both();
    std::thread::scope(|scope| scope.spawn(try_both).join().unwrap());
    free(address);
    // SAFETY: the event is alive.
    Ok(unsafe { sys::cuEventDestroy_v2(event) }.result()?)
}

fn unique() -> anyhow::Result<()> {
    let _context = untracked(0);
    let (first, second) = (allocate(), allocate());
    let handles = [first, second, first].map(|address| memory_handle(address).unwrap().reserved);
    assert_eq!(handles[0], handles[2]);
    assert_ne!(handles[0], handles[1]);
    free(first);
    fails(memory_handle(first), CUDA_ERROR_INVALID_VALUE, &["is not in any allocation"]);
    free(second);
    Ok(())
}

fn bad_arguments() -> anyhow::Result<()> {
    let context = untracked(0);
    let stream = context.new_stream()?;
    let address = allocate();
    let invalid = CUDA_ERROR_INVALID_VALUE;
    fails(memory_handle(0), invalid, &["0x0 is not in any allocation"]);
    // A handle is that of the whole allocation.
    assert_eq!(memory_handle(address + 8)?.reserved, memory_handle(address)?.reserved);
    let of_pool = stream.alloc_zeros::<u8>(16)?;
    stream.synchronize()?;
    fails(memory_handle(crate::raw::address(&of_pool)), invalid, &["is not in memory from cuMemAlloc"]);
    let handle = memory_handle(address)?;
    fails(open(handle, 0), invalid, &["CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS (1), not 0x0"]);
    fails(open(CUipcMemHandle { reserved: [7; 64] }, LAZY), invalid, &["this is not a handle of memory"]);
    fails(open_event(CUipcEventHandle { reserved: handle.reserved }), invalid, &["not a handle of event"]);
    let plain = context.new_event(None)?;
    let words = ["was not created with CU_EVENT_INTERPROCESS"];
    fails(event_handle(plain.cu_event()), CUDA_ERROR_INVALID_HANDLE, &words);
    fails(event_handle(null_mut()), CUDA_ERROR_INVALID_HANDLE, &["is not an event"]);
    // SAFETY: the driver checks the pointers.
    unsafe {
        let closed = sys::cuIpcCloseMemHandle(address);
        fails(closed.result(), invalid, &["was not opened with cuIpcOpenMemHandle"]);
        let no_result = sys::cuIpcGetMemHandle(null_mut(), address);
        fails(no_result.result(), invalid, &["the result pointer is null"]);
    }
    free(address);
    Ok(())
}
