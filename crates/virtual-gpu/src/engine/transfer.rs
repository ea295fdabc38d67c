//! Memory calls: allocate, free, copy, and set.

use std::sync::Arc;

use super::graph::NodeWork;
use super::host_memory::{Guard, HostKind, HostRead, HostWrite};
use super::run::Turn;
use super::touched::{Done, Outcome, Touched};
use super::work::Work;
use super::{Engine, Failure, lock};
use crate::config::Checks;
use crate::report::{Report, memory_of, size};
use crate::time::Cost;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::memory::{BEFORE_ALL, BadAddress, DeviceMemory, OutOfMemory};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::sync::Mutex;

/// The legacy default stream, on which calls without a stream run.
const LEGACY: StreamHandle = StreamHandle(0);

/// Refuses an allocation of 0 bytes.
pub(super) fn check_not_empty(bytes: u64) -> CudaResult<()> {
    match bytes {
        0 => Err(Error::new(CudaStatus::InvalidValue, "can't allocate 0 bytes")),
        _ => Ok(()),
    }
}

/// Returns the error of an allocation that a GPU has no memory for.
pub(super) fn out_of_memory(device: usize, refused: OutOfMemory) -> Error<CudaStatus> {
    let OutOfMemory { asked, free } = refused;
    let message = format!("GPU {device} has {} free, but {} were requested", size(free), size(asked));
    Error::new(CudaStatus::OutOfMemory, message)
}

impl Engine {
    /// `cuMemAlloc`: allocates `bytes` on the current context's GPU. All of them are considered unwritten.
    pub fn allocate(&self, bytes: u64) -> CudaResult<u64> {
        self.check_capture_allows("cuMemAlloc")?;
        let device = self.usable_stream_device(LEGACY)?;
        let address = self.allocate_on(device, bytes, CallSite::here())?;
        self.own(device, address)?;
        Ok(address)
    }

    /// Makes the current context the owner of an allocation.
    pub(super) fn own(&self, device: usize, address: u64) -> CudaResult<()> {
        let made = self.memory(device).range(address, 1).ok().map(|(allocation, _)| allocation.id());
        made.map_or(Ok(()), |allocation| self.state().own(address, allocation))
    }

    fn allocate_on(&self, device: usize, bytes: u64, call_site: CallSite) -> CudaResult<u64> {
        check_not_empty(bytes)?;
        let made = self.memory(device).allocate(bytes, call_site);
        made.map_err(|refused| out_of_memory(device, refused))
    }

    /// `cuMemGetInfo`: returns the number of free bytes and total bytes on the current context's GPU.
    pub fn memory_info(&self) -> CudaResult<(u64, u64)> {
        let memory = self.memory(self.current_device()?);
        Ok((memory.capacity().free(), memory.capacity().total()))
    }

    /// `cuMemcpyHtoDAsync`: copies the `len` bytes that `read` returns.
    pub fn copy_from_host(
        &self,
        stream: StreamHandle,
        to: u64,
        len: u64,
        read: HostRead,
        kind: HostKind,
    ) -> CudaResult<()> {
        let call_site = CallSite::here();
        self.check_range("copy to", to, len, &call_site)?;
        let work = match kind {
            // A copy in a graph reads at each launch.
            HostKind::Pageable if !self.is_capturing(stream) => Work::Upload { to, bytes: read() },
            HostKind::Pageable => Work::UploadLater { to, len, read },
            HostKind::Pinned(guard) => {
                return self.submit_guarded(stream, Work::UploadLater { to, len, read }, guard, call_site);
            }
        };
        self.submit(stream, work, call_site)
    }

    /// Like [`Self::submit`], but for a copy of pinned memory. If the stream is being captured, the memory stays
    /// accessible.
    fn submit_guarded(
        &self,
        stream: StreamHandle,
        work: Work,
        guard: Option<Guard>,
        call_site: CallSite,
    ) -> CudaResult<()> {
        let writes = matches!(work, Work::DownloadLater { .. });
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        if state.is_capturing(stream) {
            return state.add_node(stream, NodeWork::Work(work), call_site);
        }
        let op = state.enqueue(stream, work, Vec::new(), call_site.clone())?.op;
        if let Some(guard) = guard {
            state.hold(op, guard, writes, call_site);
        }
        drop(self.run_ready(state));
        Ok(())
    }

    /// `cuMemcpyHtoD`: returns when the copy is done.
    pub fn copy_from_host_now(&self, to: u64, len: u64, read: impl FnOnce() -> Vec<u8>) -> CudaResult<()> {
        let call_site = CallSite::here();
        self.check_capture_allows("cuMemcpyHtoD")?;
        self.check_range("copy to", to, len, &call_site)?;
        self.submit_and_wait(LEGACY, Work::Upload { to, bytes: read() }, call_site, "cuMemcpyHtoD")
    }

    /// `cuMemcpyDtoHAsync`: passes the bytes to `write` when the copy's turn comes. If the memory is pageable, the call
    /// does not return before then.
    pub fn copy_to_host(
        &self,
        stream: StreamHandle,
        from: u64,
        len: u64,
        write: HostWrite,
        kind: HostKind,
    ) -> CudaResult<()> {
        let call_site = CallSite::here();
        self.check_range("copy from", from, len, &call_site)?;
        match kind {
            HostKind::Pageable if !self.is_capturing(stream) => {
                write(&self.download(stream, from, len, call_site)?);
                Ok(())
            }
            HostKind::Pageable => self.submit(stream, Work::DownloadLater { from, len, write }, call_site),
            HostKind::Pinned(guard) => {
                self.submit_guarded(stream, Work::DownloadLater { from, len, write }, guard, call_site)
            }
        }
    }

    /// `cuMemcpyDtoH`: returns the bytes when the copy is done.
    pub fn copy_to_host_now(&self, from: u64, len: u64) -> CudaResult<Vec<u8>> {
        let call_site = CallSite::here();
        self.check_capture_allows("cuMemcpyDtoH")?;
        self.check_range("copy from", from, len, &call_site)?;
        self.download(LEGACY, from, len, call_site)
    }

    /// Copies bytes to the host through a slot, because a wait that times out leaves the copy pending.
    fn download(
        &self,
        stream: StreamHandle,
        from: u64,
        len: u64,
        call_site: CallSite,
    ) -> CudaResult<Vec<u8>> {
        let into = Arc::new(Mutex::new(Vec::new()));
        let work = Work::Download { from, len, into: into.clone() };
        self.submit_and_wait(stream, work, call_site, "cuMemcpyDtoH")?;
        Ok(std::mem::take(&mut *lock(&into)))
    }

    /// `cuMemcpyDtoDAsync` and `cuMemcpyPeerAsync`. Bytes that were never written stay unwritten.
    pub fn copy(&self, stream: StreamHandle, to: u64, from: u64, len: u64) -> CudaResult<()> {
        let call_site = CallSite::here();
        self.check_range("copy from", from, len, &call_site)?;
        self.check_range("copy to", to, len, &call_site)?;
        self.submit(stream, Work::Copy { from, to, len }, call_site)
    }

    /// `cuMemsetD8Async` and its 16-bit and 32-bit forms: writes the bytes of `element` `count` times.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the address is not a multiple of the element's size or the range is not in any
    /// allocation.
    pub fn set<const SIZE: usize>(
        &self,
        stream: StreamHandle,
        at: u64,
        element: [u8; SIZE],
        count: u64,
    ) -> CudaResult<()> {
        let call_site = CallSite::here();
        let invalid = |why: String| Error::new(CudaStatus::InvalidValue, format!("set of {at:#x}: {why}"));
        if !at.is_multiple_of(SIZE as u64) {
            return Err(invalid(format!("{SIZE}-byte elements must start at a multiple of {SIZE}")));
        }
        let len = count.checked_mul(SIZE as u64);
        let len = len.ok_or_else(|| invalid(format!("{count} elements of {SIZE} bytes are too many")))?;
        self.check_range("set of", at, len, &call_site)?;
        let pattern = std::array::from_fn(|byte| element[byte % SIZE]);
        self.submit(stream, Work::Set { at, len, pattern }, call_site)
    }

    /// Returns a stream's GPU if its context can still be used.
    pub(super) fn usable_stream_device(&self, stream: StreamHandle) -> CudaResult<usize> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let (context, _) = state.last_of(stream)?;
        state.check_usable(context)?;
        state.device_of_context(context)
    }

    /// Rejects a range of addresses that is not in any allocation, as the driver does when it is called.
    pub(super) fn check_range(
        &self,
        verb: &str,
        address: u64,
        len: u64,
        call_site: &CallSite,
    ) -> CudaResult<()> {
        if len == 0 {
            return Ok(());
        }
        let Some(device) = self.device_of(address) else {
            let what = match self.state().is_pinned(address) {
                true => "pinned host memory, which the virtual GPU does not support as a GPU address",
                false => "not a GPU address",
            };
            let message = format!("{verb} {address:#x}: this is {what}");
            return Err(Error::new(CudaStatus::InvalidValue, message));
        };
        let memory = self.memory(device);
        if memory.range(address, len).is_ok() {
            return Ok(());
        }
        let headline = format!("a {verb} {} that are not all in one buffer", size(len));
        let report = address_report(&headline, &memory, address, len, device).at("called", call_site);
        Err(Failure::announce(CudaStatus::InvalidValue, &report).to_error())
    }

    /// Runs one operation whose turn has come.
    pub(super) fn execute(&self, work: Work, turn: &Turn) -> Outcome {
        let (touched, cost) = match work {
            Work::Nothing | Work::Record | Work::Wait | Work::Host(_) | Work::Collective(_) => {
                (Vec::new(), Cost::Nothing)
            }
            Work::Upload { to, bytes } => {
                let len = bytes.len() as u64;
                (self.write(to, len, turn, |out| out.copy_from_slice(&bytes))?, Cost::Upload(len))
            }
            Work::Set { at, len, pattern } => {
                (self.write(at, len, turn, |out| fill(out, pattern))?, Cost::Device { traffic: len })
            }
            Work::Download { from, len, into } => {
                let (bytes, touched) = self.read(from, len, turn)?;
                *lock(&into) = bytes;
                (touched, Cost::Download(len))
            }
            Work::UploadLater { to, len, read } => {
                let bytes = read();
                (self.write(to, len, turn, |out| out.copy_from_slice(&bytes))?, Cost::Upload(len))
            }
            Work::DownloadLater { from, len, write } => {
                let (bytes, touched) = self.read(from, len, turn)?;
                write(&bytes);
                (touched, Cost::Download(len))
            }
            Work::Copy { from, to, len } => {
                let cost = match self.device_of(from) == self.device_of(to) {
                    true => Cost::Device { traffic: 2 * len },
                    false => Cost::Peer(len),
                };
                (self.copy_bytes(from, to, len, turn)?, cost)
            }
            Work::Free { at } => {
                let whole = self.device_of(at).and_then(|device| {
                    let memory = self.memory_as_of(device, BEFORE_ALL);
                    let allocation = memory.range(at, 0).ok()?.0;
                    Some(Touched::range(device, allocation, 0, allocation.size(), true))
                });
                self.state().no_longer_owned(at);
                (whole.into_iter().collect(), Cost::Nothing)
            }
            Work::Kernel(launch) => return self.run_kernel(&launch, turn),
        };
        Ok(Done { touched, cost })
    }

    fn write(
        &self,
        address: u64,
        len: u64,
        turn: &Turn,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Vec<Touched>, Failure> {
        let (Some(device), 1..) = (self.device_of(address), len) else { return Ok(Vec::new()) };
        let mut memory = self.memory_as_of(device, turn.sequence);
        match memory.range_mut(address, len) {
            Ok((allocation, offset)) => {
                fill(&mut allocation.bytes_mut()[offset as usize..(offset + len) as usize]);
                allocation.mark_written(offset..offset + len);
                Ok(vec![Touched::range(device, allocation, offset, len, true)])
            }
            Err(_) => Err(gone(&memory, address, len, device, &turn.call_site)),
        }
    }

    fn read(&self, address: u64, len: u64, turn: &Turn) -> Result<(Vec<u8>, Vec<Touched>), Failure> {
        let (Some(device), 1..) = (self.device_of(address), len) else { return Ok((Vec::new(), Vec::new())) };
        let memory = self.memory_as_of(device, turn.sequence);
        let Ok((allocation, offset)) = memory.range(address, len) else {
            return Err(gone(&memory, address, len, device, &turn.call_site));
        };
        if let Some(first) = allocation.first_unwritten(offset..offset + len)
            && self.config().checks != Checks::Off
        {
            let report = Report::new("a copy to the host reads bytes that nothing wrote")
                .before_at(
                    format!(
                        "byte {first} is the first of them, in the buffer of {} {} allocated here",
                        size(allocation.size()),
                        memory_of(allocation.id(), device)
                    ),
                    allocation.call_site(),
                )
                .at("copied", &turn.call_site)
                .help("write the buffer first, or copy only the part that was written");
            if let Some(failure) =
                Failure::of_problem(CudaStatus::LaunchFailed, &report, self.config().checks)
            {
                return Err(failure);
            }
        }
        let touched = Touched::range(device, allocation, offset, len, false);
        Ok((allocation.seen(offset..offset + len).into_owned(), vec![touched]))
    }

    fn copy_bytes(&self, from: u64, to: u64, len: u64, turn: &Turn) -> Result<Vec<Touched>, Failure> {
        let (Some(device), 1..) = (self.device_of(from), len) else { return Ok(Vec::new()) };
        let (bytes, unwritten, read) = {
            let memory = self.memory_as_of(device, turn.sequence);
            let Ok((allocation, offset)) = memory.range(from, len) else {
                return Err(gone(&memory, from, len, device, &turn.call_site));
            };
            let all_written = allocation.first_unwritten(offset..offset + len).is_none();
            let unwritten: Vec<u64> = match all_written {
                true => Vec::new(),
                false => (0..len)
                    .filter(|at| allocation.first_unwritten(offset + at..offset + at + 1).is_some())
                    .collect(),
            };
            let bytes = allocation.bytes()[offset as usize..(offset + len) as usize].to_vec();
            (bytes, unwritten, Touched::range(device, allocation, offset, len, false))
        };
        let mut touched = vec![read];
        let mut starts = unwritten.iter().map(|at| at + 1).collect::<Vec<_>>();
        starts.insert(0, 0);
        // The written bytes between two unwritten bytes, or all bytes if all have been written.
        for (start, end) in starts.into_iter().zip(unwritten.into_iter().chain([len])) {
            let part = &bytes[start as usize..end as usize];
            touched.extend(self.write(to + start, end - start, turn, |out| out.copy_from_slice(part))?);
        }
        Ok(touched)
    }
}

/// Repeats a pattern to the end; the last copy may be cut off.
fn fill(out: &mut [u8], pattern: [u8; 4]) {
    match pattern {
        [byte, ..] if pattern == [byte; 4] => out.fill(byte),
        _ => out.chunks_mut(4).for_each(|chunk| chunk.copy_from_slice(&pattern[..chunk.len()])),
    }
}

/// Returns the failure for a copy whose range existed at the call but has since been freed.
fn gone(memory: &DeviceMemory, address: u64, len: u64, device: usize, call_site: &CallSite) -> Failure {
    let report = address_report("a buffer was freed before a copy of it ran", memory, address, len, device)
        .at("called", call_site);
    Failure::announce(CudaStatus::IllegalAddress, &report)
}

/// Reports why `len` bytes at `address` on `device` can't be accessed.
pub fn address_report(
    headline: &str,
    memory: &DeviceMemory,
    address: u64,
    len: u64,
    device: usize,
) -> Report {
    let bad = memory.explain(address);
    let report = Report::new(headline);
    let report = match &bad {
        BadAddress::OutOfBounds { size: whole, offset, .. } => {
            // Wide enough for any byte count that a caller may pass.
            let (start, end) = (i128::from(*offset), i128::from(*offset) + i128::from(len));
            let over = (end - i128::from(*whole)).max(-start).max(0);
            report.fact(format!("bytes {start}..{end}: {} outside", size(over as u64)))
        }
        BadAddress::Freed { offset, .. } => {
            let end = u128::from(*offset) + u128::from(len);
            report.fact(format!("bytes {offset}..{end} of memory that has been freed"))
        }
        BadAddress::Unknown => report,
    };
    owner(report, &bad, address, device)
}

/// Adds the buffer that an address belongs to, or the nearest buffer.
pub(super) fn owner(report: Report, bad: &BadAddress, address: u64, device: usize) -> Report {
    match bad {
        BadAddress::OutOfBounds { allocation, size: whole, call_site, .. } => {
            let memory = memory_of(*allocation, device);
            report.before_at(format!("the buffer of {} {memory} was allocated here", size(*whole)), call_site)
        }
        BadAddress::Freed { freed, .. } => report
            .before_at(
                format!(
                    "the buffer of {} {} was allocated here",
                    size(freed.size),
                    memory_of(freed.id, device)
                ),
                &freed.allocated,
            )
            .before_at("freed", &freed.freed),
        BadAddress::Unknown if address == 0 => report.fact("the pointer is null"),
        BadAddress::Unknown => report.fact(format!("{address:#x} is not an address on GPU {device}")),
    }
}
