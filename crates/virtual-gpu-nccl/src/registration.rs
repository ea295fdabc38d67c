//! Buffers that a program registers with a communicator ("User Buffer Registration", NCCL's user guide).

use super::Nccl;
use virtual_gpu_core::handle::CommHandle;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

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
