//! Buffers that a program registers with a communicator ("User Buffer Registration", NCCL's user guide).

use super::membership::Membership;
use super::one_sided::Put;
use super::{Nccl, State};
use virtual_gpu_core::handle::{CommHandle, CommId, Rank, SequenceNumber};
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// The offset of a window in its buffer is a multiple of this (`NCCL_WIN_REQUIRED_ALIGNMENT`).
const WINDOW_ALIGNMENT: u64 = 4096;

/// A rank's window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The rank's communicator.
    pub(crate) of: CommHandle,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// Whether the ranks have registered it as symmetric memory (`NCCL_WIN_COLL_SYMMETRIC`), which puts need.
    pub(crate) is_symmetric: bool,
    /// The number of the registration, which is the same on all ranks.
    pub(crate) number: SequenceNumber,
}

impl Window {
    /// Returns whether the window holds these bytes.
    pub(crate) fn holds(&self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }
}

impl State {
    /// Returns a rank's window by the number of its registration, and the rank's GPU. The rank is in this process.
    pub(crate) fn window_of(
        &self,
        comm: CommId,
        rank: Rank,
        number: SequenceNumber,
    ) -> Option<(Window, usize)> {
        let is_rank = |window: &&Window| match self.memberships.get(&window.of) {
            Some(&Membership::Member { comm: of, rank: own }) => (of, own) == (comm, rank),
            _ => false,
        };
        let window = self.windows.values().filter(|window| window.number == number).find(is_rank)?;
        Some((*window, self.communicators.get(&comm)?.ranks[rank].device))
    }

    /// Checks the windows of a put: the local data and the target must be in symmetric windows of the rank's communicator.
    ///
    /// # Errors
    /// Returns a sentence that explains what is wrong.
    pub(crate) fn check_put<R>(&self, handle: CommHandle, put: &Put<R>) -> Result<(), String> {
        let own = || self.windows.iter().filter(|(_, window)| window.of == handle);
        let needs = "every rank must register it with NCCL_WIN_COLL_SYMMETRIC";
        let Some((_, target)) = own().find(|(number, _)| **number == put.window) else {
            return Err(format!(
                "ncclPutSignal: {:#x} is not a window of this communicator, or is no longer one",
                put.window
            ));
        };
        if !target.is_symmetric {
            return Err(format!("ncclPutSignal: the window is not symmetric: {needs}"));
        }
        let bytes = put.bytes();
        if !target.holds(put.offset, bytes) {
            return Err(format!(
                "ncclPutSignal: {bytes} bytes at offset {} are not in the window of {} bytes",
                put.offset, target.bytes
            ));
        }
        let holds = |window: &Window| {
            let offset = put.buffer.checked_sub(window.address);
            window.is_symmetric && offset.is_some_and(|offset| window.holds(offset, bytes))
        };
        match bytes == 0 || own().any(|(_, window)| holds(window)) {
            true => Ok(()),
            false => Err(format!(
                "ncclPutSignal: the {bytes} bytes at {:#x} are in no symmetric window of this rank: {needs}",
                put.buffer
            )),
        }
    }
}

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
            Some(window) if window.of == handle => Ok(window.address),
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
