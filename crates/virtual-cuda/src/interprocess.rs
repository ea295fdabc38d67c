//! The bodies of the functions for memory and events of other processes (`cuIpc…`).
//!
//! A handle can't be opened in the process that made it, as in CUDA. Another process on the same machine can open it
//! for as long as that process runs and has not freed what the handle is for.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, PoisonError};

use virtual_gpu::engine::{EventHandle, MemoryKind};
use virtual_gpu_core::memory::FileKey;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::engine;
use crate::pointer::Out;
use crate::shared_event::EventFile;
use crate::shared_file::{Kind, Process, Refused, SharedFile};
use crate::shared_memory;
use crate::types::{DevicePointer, Event};

/// `CUipcMemHandle` and `CUipcEventHandle`, passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IpcHandle([u8; 64]);

/// The only flag of `cuIpcOpenMemHandle`, `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which must be set.
const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

/// The first bytes of a handle.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpuipc2");

impl IpcHandle {
    /// Returns a handle of this process. `object` is what the handle is for, and `number` distinguishes it from earlier
    /// ones at the same address. `pool` is the secret of the pool's file, or 0.
    pub(crate) fn of(kind: Kind, object: u64, number: u64, key: FileKey, pool: u64) -> Self {
        let Process { id, started } = Process::this();
        let kind = kind as u64 | u64::from(key.descriptor) << 32;
        let words = [MAGIC, kind, u64::from(id), started, object, number, key.secret, pool];
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

    /// Returns the secret of the file.
    fn secret(&self) -> u64 {
        self.word(6)
    }

    /// Returns the secret of the pool's file; 0 for memory that is not from a pool.
    pub(crate) fn pool(&self) -> u64 {
        self.word(7)
    }

    fn process(&self) -> Option<Process> {
        Some(Process { id: u32::try_from(self.word(2)).ok()?, started: self.word(3) })
    }

    /// Returns whether this process has made the handle.
    fn is_own(&self) -> bool {
        self.process() == Some(Process::this())
    }

    /// Checks what the handle is for.
    ///
    /// # Errors
    /// Returns `InvalidValue` unless the handle is of this kind.
    pub(crate) fn check(&self, function: &str, kind: Kind, what: &str) -> CudaResult<()> {
        match (self.word(0), self.word(1) as u32) == (MAGIC, kind as u32) {
            true => Ok(()),
            false => Err(invalid(format!("{function}: this is not a handle of {what}"))),
        }
    }

    /// Rejects a handle that this process has made.
    fn check_foreign(&self, function: &str, what: &str) -> CudaResult<()> {
        if !self.is_own() {
            return Ok(());
        }
        let message = format!(
            "{function}: this process has exported the {what} {:#x}, and can't open its own handle: \
             its threads use the {what} directly",
            self.word(4)
        );
        Err(Error::new(CudaStatus::InvalidContext, message))
    }

    /// Opens the file.
    ///
    /// # Errors
    /// Returns `MapFailed` if the process has ended or the system refuses, and `InvalidValue` if the process has freed
    /// what the handle is for, or the handle is wrong.
    pub(crate) fn open(&self, function: &str, kind: Kind, what: &str) -> CudaResult<SharedFile> {
        let process = self
            .process()
            .ok_or_else(|| invalid(format!("{function}: the handle contains an invalid process id")))?;
        let key = FileKey { descriptor: (self.word(1) >> 32) as u32, secret: self.secret() };
        SharedFile::open(process, key, kind).map_err(|refused| {
            let (status, why) = match refused {
                Refused::Ended => {
                    (CudaStatus::MapFailed, "that process has ended, or runs on another machine".to_owned())
                }
                Refused::NoSuchFile => {
                    (CudaStatus::InvalidValue, "that process has freed it, or the handle is wrong".to_owned())
                }
                Refused::System(error) => (CudaStatus::MapFailed, error.to_string()),
            };
            let id = process.id;
            Error::new(status, format!("{function}: can't open the {what} of process {id}: {why}"))
        })
    }
}

/// `cuIpcGetMemHandle`
///
/// # Errors
/// Returns `InvalidValue` unless the address is in memory from `cuMemAlloc`.
pub(crate) fn memory_handle(to: Out<IpcHandle>, address: DevicePointer) -> CudaResult<()> {
    let bad = |why: &str| invalid(format!("cuIpcGetMemHandle: {address:#x} {why}"));
    to.check("cuIpcGetMemHandle: the result pointer")?;
    let engine = engine::get()?;
    let found = engine.pointer(address)?.ok_or_else(|| bad("is not in any allocation"))?;
    if found.kind != MemoryKind::Gpu || found.context.is_none() {
        return Err(bad("is not in memory from cuMemAlloc"));
    }
    let make = |size, gpu| shared_memory::make(Kind::Memory, size, gpu);
    let key = engine.share_allocation(found.base, make)?;
    // The handle is that of the whole allocation, as the driver's is.
    to.give(IpcHandle::of(Kind::Memory, found.base, found.id, key, 0))
}

/// `cuIpcOpenMemHandle`
///
/// # Errors
/// Returns `InvalidValue` for other flags or for something that is no handle, `InvalidContext` for a handle of this
/// process, and the errors of [`IpcHandle::open`].
pub(crate) fn open_memory(to: Out<DevicePointer>, handle: IpcHandle, flags: c_uint) -> CudaResult<()> {
    const FUNCTION: &str = "cuIpcOpenMemHandle";
    to.check("cuIpcOpenMemHandle: the result pointer")?;
    if flags != LAZY_ENABLE_PEER_ACCESS {
        return Err(invalid(format!(
            "cuIpcOpenMemHandle: the flags must be CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS (1), not {flags:#x}"
        )));
    }
    let engine = engine::get()?;
    engine.current_device()?;
    handle.check(FUNCTION, Kind::Memory, "memory")?;
    handle.check_foreign(FUNCTION, "memory")?;
    // Two threads that open the same memory get the same address.
    static OPENING: Mutex<()> = Mutex::new(());
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(address) = engine.open_again(handle.secret())? {
        return to.give(address);
    }
    let file = handle.open(FUNCTION, Kind::Memory, "memory")?;
    let gpu = file.gpu();
    to.give(engine.open_shared(shared_memory::of_file(Arc::new(file)), gpu)?)
}

/// `cuIpcCloseMemHandle`
///
/// # Errors
/// Returns `InvalidValue` if the address is not one that `cuIpcOpenMemHandle` returned.
pub(crate) fn close_memory(address: DevicePointer) -> CudaResult<()> {
    let engine = engine::get()?;
    engine.current_device()?;
    engine.close_shared(address)
}

/// `cuIpcGetEventHandle`
///
/// # Errors
/// Returns `InvalidHandle` unless this process has created the event with `CU_EVENT_INTERPROCESS`.
pub(crate) fn event_handle(to: Out<IpcHandle>, event: Event) -> CudaResult<()> {
    to.check("cuIpcGetEventHandle: the result pointer")?;
    let key = engine::get()?.file_of_event(EventHandle(event as u64))?.ok_or_else(|| {
        let message = "cuIpcGetEventHandle: the event was not created with CU_EVENT_INTERPROCESS here";
        Error::new(CudaStatus::InvalidHandle, message)
    })?;
    to.give(IpcHandle::of(Kind::Event, event as u64, 0, key, 0))
}

/// `cuIpcOpenEventHandle`
///
/// # Errors
/// Like [`open_memory`].
pub(crate) fn open_event(to: Out<Event>, handle: IpcHandle) -> CudaResult<()> {
    const FUNCTION: &str = "cuIpcOpenEventHandle";
    to.check("cuIpcOpenEventHandle: the result pointer")?;
    let engine = engine::get()?;
    engine.current_device()?;
    handle.check(FUNCTION, Kind::Event, "event")?;
    handle.check_foreign(FUNCTION, "event")?;
    let file = EventFile::of_file(handle.open(FUNCTION, Kind::Event, "event")?);
    let file = file.ok_or_else(|| invalid("cuIpcOpenEventHandle: the event's file has an unexpected size: use the same version of the virtual GPU in both processes"))?;
    to.give(engine.create_shared_event(Arc::new(file))?.0 as Event)
}
