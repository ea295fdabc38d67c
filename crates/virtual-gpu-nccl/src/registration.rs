//! Buffers that a program registers with a communicator ("User Buffer Registration", NCCL's user guide).

use super::Nccl;
use virtual_gpu_core::handle::CommHandle;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// The offset of a window in its buffer is a multiple of this (`NCCL_WIN_REQUIRED_ALIGNMENT`).
const WINDOW_ALIGNMENT: u64 = 4096;

impl Nccl {
    /// Implements `ncclCommRegister`: returns a handle. Registration only makes collectives faster.
    ///
    /// # Errors
    /// Returns `InvalidArgument` unless the bytes are in one buffer of the rank's GPU.
    pub fn register(&self, handle: CommHandle, address: u64, bytes: u64) -> NcclResult<u64> {
        let (_, _, device) = self.identity(handle)?;
        let device = self.memory_of_buffer(address, device);
        if self.engine.memory(device).range(address, bytes).is_err() {
            let message = format!(
                "ncclCommRegister: the {bytes} bytes at {address:#x} are not in one buffer of GPU {device}"
            );
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        let mut guard = self.lock();
        let registration = guard.engine.new_handle();
        guard.nccl.registered.insert(registration, handle);
        Ok(registration)
    }

    /// Checks the bytes of a window.
    pub(crate) fn check_window(&self, handle: CommHandle, address: u64, bytes: u64) -> NcclResult<()> {
        let bad =
            |what: String| Error::new(NcclStatus::InvalidArgument, format!("ncclCommWindowRegister: {what}"));
        let (_, _, device) = self.identity(handle)?;
        let device = self.memory_of_buffer(address, device);
        let memory = self.engine.memory(device);
        let Ok((_, offset)) = memory.range(address, bytes) else {
            return Err(bad(format!(
                "the {bytes} bytes at {address:#x} are not in one buffer of GPU {device}"
            )));
        };
        match offset.is_multiple_of(WINDOW_ALIGNMENT) {
            true => Ok(()),
            false => Err(bad(format!(
                "the window starts {offset} bytes into its buffer: this must be a multiple of {WINDOW_ALIGNMENT}"
            ))),
        }
    }

    /// Returns the address of a window of the rank's communicator.
    ///
    /// # Errors
    /// Returns `InvalidArgument` for any other handle.
    pub fn window_address(&self, handle: CommHandle, window: u64) -> NcclResult<u64> {
        self.identity(handle)?;
        match self.lock().nccl.windows.get(&window) {
            Some(&(of, address)) if of == handle => Ok(address),
            _ => {
                let message =
                    format!("{window:#x} is not a window of this communicator, or is no longer one");
                Err(Error::new(NcclStatus::InvalidArgument, message))
            }
        }
    }

    /// Implements `ncclCommWindowDeregister`, which is local to the rank. As in NCCL, a null handle is ignored.
    ///
    /// # Errors
    /// Returns `InvalidArgument` for a handle that is not one of this rank's communicator.
    pub fn deregister_window(&self, handle: CommHandle, window: u64) -> NcclResult<()> {
        if window != 0 {
            self.window_address(handle, window)?;
            self.lock().nccl.windows.remove(&window);
        }
        Ok(())
    }

    /// Implements `ncclCommDeregister`. As in NCCL, a null handle is ignored.
    ///
    /// # Errors
    /// Returns `InvalidUsage` for a handle that is not one of this rank's communicator, such as one that was
    /// deregistered before (`commDeregister` in NCCL's `register.cc`).
    pub fn deregister(&self, handle: CommHandle, registration: u64) -> NcclResult<()> {
        self.identity(handle)?;
        if registration == 0 {
            return Ok(());
        }
        let registered = &mut self.lock().nccl.registered;
        if registered.get(&registration) != Some(&handle) {
            let message = format!(
                "ncclCommDeregister: {registration:#x} is not a handle of this communicator; was it deregistered before?"
            );
            return Err(Error::new(NcclStatus::InvalidUsage, message));
        }
        registered.remove(&registration);
        Ok(())
    }
}
