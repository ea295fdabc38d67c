//! The bodies of the functions for memory and events of other processes (`cuIpc…`).
//!
//! A program can get handles, and exchange them. A handle can't be opened in the process that made it, as in CUDA. It
//! can't be opened in other processes either, because the virtual GPU's memory belongs to one process.

use std::ffi::c_uint;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use virtual_gpu::engine::{EventHandle, MemoryKind};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::pointer::Out;
use crate::types::{DevicePointer, Event, invalid};

/// `CUipcMemHandle` and `CUipcEventHandle`, passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IpcHandle([u8; 64]);

/// The only flag of `cuIpcOpenMemHandle`, `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which must be set.
const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

/// The first bytes of a handle.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpu ipc");

/// What a handle is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory = 1,
    Event = 2,
}

/// Returns a number that no other process has, unless it is a fork of this one.
fn process_key() -> u64 {
    static KEY: OnceLock<u64> = OnceLock::new();
    *KEY.get_or_init(|| RandomState::new().build_hasher().finish())
}

impl IpcHandle {
    /// Returns a handle of this process.
    fn of(kind: Kind, object: u64, number: u64) -> Self {
        let words = [MAGIC, kind as u64, u64::from(std::process::id()), process_key(), object, number];
        let mut bytes = [0; 64];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Self(bytes)
    }

    fn word(&self, index: usize) -> u64 {
        let bytes = self.0.as_chunks::<8>().0;
        u64::from_le_bytes(bytes[index])
    }

    /// Returns why the handle can't be opened. It never can.
    fn refuse(&self, function: &str, kind: Kind, what: &str) -> Error<CudaStatus> {
        if (self.word(0), self.word(1)) != (MAGIC, kind as u64) {
            return invalid(format!("{function}: this is not a handle of {what}"));
        }
        let (pid, object) = (self.word(2), self.word(4));
        if (pid, self.word(3)) == (u64::from(std::process::id()), process_key()) {
            let message = format!(
                "{function}: this process has exported the {what} {object:#x}, and can't open its own handle: \
                 its threads use the {what} directly"
            );
            return Error::new(CudaStatus::InvalidContext, message);
        }
        let message = format!(
            "virtual GPU: {function}: the {what} belongs to process {pid}, and processes can't share it: \
             use threads of one process, or NCCL"
        );
        Error::new(CudaStatus::NotSupported, message)
    }
}

/// `cuIpcGetMemHandle`
///
/// # Errors
/// Returns `InvalidValue` unless the address is in memory from `cuMemAlloc`.
pub(crate) fn memory_handle(to: Out<IpcHandle>, address: DevicePointer) -> CudaResult<()> {
    let bad = |why: &str| invalid(format!("cuIpcGetMemHandle: {address:#x} {why}"));
    if to.is_null() {
        return Err(invalid("cuIpcGetMemHandle: the result pointer is null"));
    }
    let found = engine::get()?.pointer(address)?.ok_or_else(|| bad("is not in any allocation"))?;
    if found.kind != MemoryKind::Gpu || found.context.is_none() {
        return Err(bad("is not in memory from cuMemAlloc"));
    }
    // The handle is that of the whole allocation, as the driver's is.
    to.give(IpcHandle::of(Kind::Memory, found.base, found.id))
}

/// `cuIpcOpenMemHandle`
///
/// # Errors
/// Returns `InvalidValue` for other flags or for something that is no handle, `InvalidContext` for a handle of this
/// process, and `NotSupported` for one of another process.
pub(crate) fn open_memory(to: Out<DevicePointer>, handle: IpcHandle, flags: c_uint) -> CudaResult<()> {
    if to.is_null() {
        return Err(invalid("cuIpcOpenMemHandle: the result pointer is null"));
    }
    if flags != LAZY_ENABLE_PEER_ACCESS {
        return Err(invalid(format!(
            "cuIpcOpenMemHandle: the flags must be CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS (1), not {flags:#x}"
        )));
    }
    engine::get()?.current_device()?;
    Err(handle.refuse("cuIpcOpenMemHandle", Kind::Memory, "memory"))
}

/// `cuIpcCloseMemHandle`
///
/// # Errors
/// Returns `InvalidValue`, because no memory can be opened.
pub(crate) fn close_memory(address: DevicePointer) -> CudaResult<()> {
    engine::get()?.current_device()?;
    Err(invalid(format!("cuIpcCloseMemHandle: {address:#x} was not opened with cuIpcOpenMemHandle")))
}

/// `cuIpcGetEventHandle`
///
/// # Errors
/// Returns `InvalidHandle` unless the event was created with `CU_EVENT_INTERPROCESS`.
pub(crate) fn event_handle(to: Out<IpcHandle>, event: Event) -> CudaResult<()> {
    if to.is_null() {
        return Err(invalid("cuIpcGetEventHandle: the result pointer is null"));
    }
    if !engine::get()?.is_interprocess(EventHandle(event as u64))? {
        let message = "cuIpcGetEventHandle: the event was not created with CU_EVENT_INTERPROCESS";
        return Err(Error::new(CudaStatus::InvalidHandle, message));
    }
    to.give(IpcHandle::of(Kind::Event, event as u64, 0))
}

/// `cuIpcOpenEventHandle`
///
/// # Errors
/// Like [`open_memory`].
pub(crate) fn open_event(to: Out<Event>, handle: IpcHandle) -> CudaResult<()> {
    if to.is_null() {
        return Err(invalid("cuIpcOpenEventHandle: the result pointer is null"));
    }
    engine::get()?.current_device()?;
    Err(handle.refuse("cuIpcOpenEventHandle", Kind::Event, "event"))
}
