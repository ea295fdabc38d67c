//! Memory calls: allocate, free, copy, and set.

use std::ops::Range;
use std::sync::Arc;

use super::graph::{GraphCopy, NodeWork};
use super::host_memory::{Guard, HostKind, HostRead, HostSide, HostWrite};
use super::region::Region;
use super::run::Turn;
use super::touched::{Done, Outcome, Touched};
use super::value::ValueOperation;
use super::work::Work;
use super::{Engine, Failure, lock};
use crate::config::Checks;
use crate::report::{Report, memory_of, size};
use crate::time::Cost;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::memory::{Allocation, BEFORE_ALL, BadAddress, DeviceMemory, OutOfMemory};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::sync::Mutex;

/// The default stream, on which calls without a stream run.
const DEFAULT: StreamHandle = StreamHandle(0);

/// Returns the error of an allocation that a GPU has no memory for.
pub(super) fn out_of_memory(device: usize, refused: OutOfMemory) -> Error<CudaStatus> {
    let OutOfMemory { asked, free } = refused;
    let mut message = format!("GPU {device} has {} free, but {} were requested", size(free), size(asked));
    if asked <= free {
        message.push_str(": the virtual GPU has no room for them on this machine");
    }
    Error::new(CudaStatus::OutOfMemory, message)
}

impl Engine {
    /// `cuMemAlloc`: allocates `bytes` on the current context's GPU. All of them are considered unwritten.
    pub fn allocate(&self, bytes: u64) -> CudaResult<u64> {
        self.allocate_in_call("cuMemAlloc", bytes)
    }

    /// Allocates memory as a part of a function of the driver.
    pub(super) fn allocate_in_call(&self, caller: &'static str, bytes: u64) -> CudaResult<u64> {
        self.check_capture_allows(caller)?;
        let device = self.usable_stream_device(DEFAULT)?;
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
        if bytes == 0 {
            return Err(Error::new(CudaStatus::InvalidValue, "can't allocate 0 bytes"));
        }
        let made = self.memory(device).allocate(bytes, call_site);
        made.map_err(|refused| out_of_memory(device, refused))
    }

    /// `cuMemGetInfo`: returns the number of free bytes and total bytes on the current context's GPU.
    pub fn memory_info(&self) -> CudaResult<(u64, u64)> {
        let memory = self.memory(self.current_device()?);
        Ok((memory.capacity().free(), memory.capacity().total()))
    }

    /// `cuMemcpyHtoDAsync` and its 2D and 3D forms: copies the bytes that `read` returns.
    pub fn copy_from_host(
        &self,
        stream: StreamHandle,
        to: Region,
        read: HostRead,
        kind: HostKind,
    ) -> CudaResult<()> {
        let call_site = CallSite::here();
        self.check_region("copy to", to, self.is_capturing(stream), &call_site)?;
        let work = match kind {
            // A copy in a graph reads at each launch.
            HostKind::Pageable { .. } if !self.is_capturing(stream) => Work::Upload { to, bytes: read() },
            HostKind::Pageable { at } => {
                Work::UploadLater { to, read, host: HostSide { at, is_pinned: false } }
            }
            HostKind::Pinned { at, guard } => {
                let work = Work::UploadLater { to, read, host: HostSide { at, is_pinned: true } };
                return self.submit_guarded(stream, work, guard, call_site);
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

    /// `cuMemcpyHtoD` and its 2D and 3D forms: returns when the copy is done. `host` is where the bytes are, if they are
    /// pinned: work that is still pending may write them.
    pub fn copy_from_host_now(&self, to: Region, read: HostRead, host: Option<Region>) -> CudaResult<()> {
        let call_site = CallSite::here();
        self.check_capture_allows("cuMemcpyHtoD")?;
        self.check_region("copy to", to, false, &call_site)?;
        let work = match host {
            Some(at) => Work::UploadLater { to, read, host: HostSide { at, is_pinned: true } },
            None => Work::Upload { to, bytes: read() },
        };
        self.submit_and_wait(DEFAULT, work, call_site, "cuMemcpyHtoD")
    }

    /// `cuMemcpyDtoHAsync` and its 2D and 3D forms: passes the bytes to `write` when the copy's turn comes. If the memory is
    /// pageable, the call does not return before then.
    pub fn copy_to_host(
        &self,
        stream: StreamHandle,
        from: Region,
        write: HostWrite,
        kind: HostKind,
    ) -> CudaResult<()> {
        let call_site = CallSite::here();
        self.check_region("copy from", from, self.is_capturing(stream), &call_site)?;
        match kind {
            HostKind::Pageable { .. } if !self.is_capturing(stream) => {
                write(&self.download(stream, from, call_site)?);
                Ok(())
            }
            HostKind::Pageable { at } => {
                let host = HostSide { at, is_pinned: false };
                self.submit(stream, Work::DownloadLater { from, write, host }, call_site)
            }
            HostKind::Pinned { at, guard } => {
                let work = Work::DownloadLater { from, write, host: HostSide { at, is_pinned: true } };
                self.submit_guarded(stream, work, guard, call_site)
            }
        }
    }

    /// `cuMemcpyDtoH` and its 2D and 3D forms: returns when the copy is done. `host` is where the bytes go, if the memory is
    /// pinned.
    pub fn copy_to_host_now(&self, from: Region, write: HostWrite, host: Option<Region>) -> CudaResult<()> {
        let call_site = CallSite::here();
        self.check_capture_allows("cuMemcpyDtoH")?;
        self.check_region("copy from", from, false, &call_site)?;
        if let Some(at) = host {
            let work = Work::DownloadLater { from, write, host: HostSide { at, is_pinned: true } };
            return self.submit_and_wait(DEFAULT, work, call_site, "cuMemcpyDtoH");
        }
        write(&self.download(DEFAULT, from, call_site)?);
        Ok(())
    }

    /// Copies bytes to the host through a slot, because a wait that times out leaves the copy pending.
    fn download(&self, stream: StreamHandle, from: Region, call_site: CallSite) -> CudaResult<Vec<u8>> {
        let into = Arc::new(Mutex::new(Vec::new()));
        let work = Work::Download { from, into: into.clone() };
        self.submit_and_wait(stream, work, call_site, "cuMemcpyDtoH")?;
        Ok(std::mem::take(&mut *lock(&into)))
    }

    /// `cuMemcpyDtoDAsync`, `cuMemcpyPeerAsync`, and their 2D and 3D forms: copies between two regions with equally many
    /// bytes. Bytes that were never written stay unwritten.
    pub fn copy(&self, stream: StreamHandle, to: Region, from: Region) -> CudaResult<()> {
        let call_site = CallSite::here();
        let in_graph = self.is_capturing(stream);
        self.check_region("copy from", from, in_graph, &call_site)?;
        self.check_region("copy to", to, in_graph, &call_site)?;
        self.submit(stream, Work::Copy { from, to }, call_site)
    }

    /// `cuMemsetD8Async` and its 16-bit, 32-bit, and 2D forms: writes the bytes of `element` repeatedly to each row.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the address, the pitch, or the width is not a multiple of the element's size or a row is not
    /// in any allocation.
    pub fn set<const SIZE: usize>(
        &self,
        stream: StreamHandle,
        at: Region,
        element: [u8; SIZE],
    ) -> CudaResult<()> {
        let call_site = CallSite::here();
        let work = self.set_work(at, &element, self.is_capturing(stream), &call_site)?;
        self.submit(stream, work, call_site)
    }

    /// Checks a set. An element has 1, 2, or 4 bytes. `in_graph`: as for [`Self::check_region`].
    pub(super) fn set_work(
        &self,
        at: Region,
        element: &[u8],
        in_graph: bool,
        call_site: &CallSite,
    ) -> CudaResult<Work> {
        let (start, size) = (at.start, element.len());
        let invalid = |why: String| Error::new(CudaStatus::InvalidValue, format!("set of {start:#x}: {why}"));
        if !matches!(size, 1 | 2 | 4) {
            return Err(invalid(format!("the element size must be 1, 2, or 4, not {size}")));
        }
        if !start.is_multiple_of(size as u64) {
            return Err(invalid(format!("{size}-byte elements must start at a multiple of {size}")));
        }
        if at.height > 1 && !at.pitch.is_multiple_of(size as u64) {
            let pitch = at.pitch;
            return Err(invalid(format!("with {size}-byte elements, the pitch can't be {pitch} bytes")));
        }
        self.check_region("set of", at, in_graph, call_site)?;
        let pattern = std::array::from_fn(|byte| element[byte % size]);
        Ok(Work::Set { at, pattern, element: size as u8 })
    }

    /// Checks a copy in a graph, which reads and writes the host's memory at each launch.
    pub(super) fn copy_in_graph(&self, copy: GraphCopy) -> CudaResult<Work> {
        let call_site = CallSite::here();
        let check = |verb, region| self.check_region(verb, region, true, &call_site);
        match copy {
            GraphCopy::Device { to, from } => {
                check("copy from", from)?;
                check("copy to", to)?;
                Ok(Work::Copy { from, to })
            }
            GraphCopy::FromHost { to, read, host } => {
                check("copy to", to).map(|()| Work::UploadLater { to, read, host })
            }
            GraphCopy::ToHost { from, write, host } => {
                check("copy from", from).map(|()| Work::DownloadLater { from, write, host })
            }
        }
    }

    /// Returns a stream's GPU if its context can still be used.
    pub(super) fn usable_stream_device(&self, stream: StreamHandle) -> CudaResult<usize> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let (context, _) = state.last_of(stream)?;
        state.check_usable(context)?;
        state.device_of_context(context)
    }

    /// Rejects a region with a row that is not in any allocation, as the driver does when it is called. `in_graph`:
    /// whether the work becomes part of a graph, and may therefore access memory that a graph has not allocated yet.
    fn check_region(
        &self,
        verb: &str,
        region: Region,
        in_graph: bool,
        call_site: &CallSite,
    ) -> CudaResult<()> {
        let Some(extent) = region.extent() else {
            let Region { start, width, height, depth, .. } = region;
            let message = format!(
                "{verb} {start:#x}: {width} x {height} x {depth} bytes are more than the address space has"
            );
            return Err(Error::new(CudaStatus::InvalidValue, message));
        };
        let in_one = |device| {
            let memory = self.memory(device);
            memory.range(region.start, extent).is_ok_and(|(allocation, _)| !allocation.is_gone())
                || in_graph && memory.is_of_graph(region.start, extent)
        };
        if self.device_of(region.start).is_some_and(in_one) {
            return Ok(());
        }
        region.rows().try_for_each(|row| self.check_range(verb, row, region.width, call_site))
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
            if self.is_reservable(address) {
                let headline = format!("a {verb} {} that no GPU can access", size(len));
                let report = self.why_inaccessible(Report::new(headline).at("called", call_site), address);
                return Err(Failure::announce(CudaStatus::InvalidValue, &report).to_error());
            }
            let message = format!("{verb} {address:#x}: this is not a GPU address");
            return Err(Error::new(CudaStatus::InvalidValue, message));
        };
        let memory = self.memory(device);
        match memory.range(address, len) {
            Ok((allocation, _)) if allocation.is_gone() => {
                let report = gone_report(&format!("a {verb}"), allocation).at("called", call_site);
                return Err(Failure::announce(CudaStatus::InvalidValue, &report).to_error());
            }
            Ok(_) => return Ok(()),
            Err(_) => {}
        }
        let headline = format!("a {verb} {} that are not all in one buffer", size(len));
        let report = address_report(&headline, &memory, address, len, device).at("called", call_site);
        Err(Failure::announce(CudaStatus::InvalidValue, &report).to_error())
    }

    /// Runs one operation whose turn has come.
    pub(super) fn execute(&self, work: Work, turn: &Turn) -> Outcome {
        let (touched, cost) = match work {
            Work::Nothing
            | Work::Record
            | Work::RecordFor(_)
            | Work::Wait
            | Work::WaitElsewhere(_)
            | Work::Host(_)
            | Work::Collective(_)
            | Work::Value(ValueOperation::Wait(..) | ValueOperation::Barrier) => (Vec::new(), Cost::Nothing),
            Work::Upload { to, bytes } => {
                (self.write(to, turn, from_packed(&bytes))?, Cost::Upload(bytes.len() as u64))
            }
            Work::Set { at, pattern, .. } => {
                let traffic = at.bytes();
                (self.write(at, turn, |_, out| fill(out, pattern))?, Cost::Device { traffic })
            }
            Work::Download { from, into } => {
                let (bytes, touched) = self.read(from, turn)?;
                *lock(&into) = bytes;
                (touched, Cost::Download(from.bytes()))
            }
            Work::UploadLater { to, read, host } => {
                let bytes = read();
                let mut touched = self.write(to, turn, from_packed(&bytes))?;
                self.touch_host(&mut touched, host, false, turn);
                (touched, Cost::Upload(to.bytes()))
            }
            Work::DownloadLater { from, write, host } => {
                let (bytes, mut touched) = self.read(from, turn)?;
                write(&bytes);
                self.touch_host(&mut touched, host, true, turn);
                (touched, Cost::Download(from.bytes()))
            }
            Work::Copy { from, to } => {
                let len = to.bytes();
                let cost = match self.device_of(from.start) == self.device_of(to.start) {
                    true => Cost::Device { traffic: 2 * len },
                    false => Cost::Peer(len),
                };
                (self.copy_rows(from, to, turn)?, cost)
            }
            Work::Allocate { at } => {
                let whole = self.device_of(at).and_then(|device| {
                    let mut memory = self.memory_as_of(device, BEFORE_ALL);
                    let allocation = memory.range_mut(at, 0).ok()?.0;
                    allocation.start_over();
                    Some(Touched::range(device, allocation, 0, allocation.size(), true))
                });
                (whole.into_iter().collect(), Cost::Nothing)
            }
            Work::Free { at, .. } => {
                let whole = self.device_of(at).and_then(|device| {
                    let memory = self.memory_as_of(device, BEFORE_ALL);
                    let allocation = memory.range(at, 0).ok()?.0;
                    Some(Touched::range(device, allocation, 0, allocation.size(), true))
                });
                self.state().no_longer_owned(at);
                (whole.into_iter().collect(), Cost::Nothing)
            }
            Work::Value(ValueOperation::Write(value)) => (self.write_value(value, turn)?, Cost::Nothing),
            Work::Kernel(launch) => return self.run_kernel(&launch, turn),
        };
        Ok(Done { touched, cost })
    }

    /// Writes bytes at an address.
    pub(super) fn write_bytes(&self, at: u64, bytes: &[u8], turn: &Turn) -> Result<Vec<Touched>, Failure> {
        self.write(Region::line(at, bytes.len() as u64), turn, from_packed(bytes))
    }

    /// Writes all rows of a region. `fill` receives each row with its offset among the bytes of all rows.
    fn write(
        &self,
        to: Region,
        turn: &Turn,
        fill: impl FnMut(u64, &mut [u8]),
    ) -> Result<Vec<Touched>, Failure> {
        let offsets = (0..).map(|row| row * to.width);
        self.write_parts(to.rows().zip(offsets).map(|(row, offset)| (row, offset, to.width)), turn, fill)
    }

    /// Like [`Self::write`], but for parts of rows: the address of each part, its offset among the bytes of all rows, and
    /// its length.
    fn write_parts(
        &self,
        parts: impl Iterator<Item = (u64, u64, u64)>,
        turn: &Turn,
        mut fill: impl FnMut(u64, &mut [u8]),
    ) -> Result<Vec<Touched>, Failure> {
        let mut touched = Vec::new();
        let mut parts = parts.filter(|&(_, _, len)| len > 0).peekable();
        let device = parts.peek().and_then(|&(address, ..)| self.device_of(address));
        let Some(device) = device else { return Ok(touched) };
        let mut memory = self.memory_as_of(device, turn.sequence);
        for (address, packed, len) in parts {
            let Ok((allocation, offset)) = memory.range_mut(address, len) else {
                return Err(gone(&memory, address, len, device, &turn.call_site));
            };
            fill(packed, &mut allocation.bytes_mut()[offset as usize..(offset + len) as usize]);
            allocation.mark_written(offset..offset + len);
            add_touch(&mut touched, device, allocation, offset..offset + len, true);
        }
        Ok(touched)
    }

    /// Reads the bytes of all rows of a region. Reports bytes that nothing wrote.
    fn read(&self, from: Region, turn: &Turn) -> Result<(Vec<u8>, Vec<Touched>), Failure> {
        let (mut bytes, mut touched) = (Vec::new(), Vec::new());
        let Some(device) = self.device_of(from.start) else { return Ok((bytes, touched)) };
        let memory = self.memory_as_of(device, turn.sequence);
        let mut unwritten = None;
        for row in from.rows() {
            let Ok((allocation, offset)) = memory.range(row, from.width) else {
                return Err(gone(&memory, row, from.width, device, &turn.call_site));
            };
            let range = offset..offset + from.width;
            if unwritten.is_none() {
                unwritten = allocation.first_unwritten(range.clone()).map(|first| (first, allocation));
            }
            bytes.extend_from_slice(&allocation.seen(range.clone()));
            add_touch(&mut touched, device, allocation, range, false);
        }
        if let Some((first, allocation)) = unwritten
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
        Ok((bytes, touched))
    }

    /// Copies the bytes of all rows of one region to another. Unwritten bytes are not copied.
    fn copy_rows(&self, from: Region, to: Region, turn: &Turn) -> Result<Vec<Touched>, Failure> {
        let Some(device) = self.device_of(from.start) else { return Ok(Vec::new()) };
        let (mut bytes, mut touched) = (Vec::new(), Vec::new());
        // The offsets of the unwritten bytes, which divide the written ones into ranges.
        let mut unwritten: Vec<u64> = Vec::new();
        {
            let memory = self.memory_as_of(device, turn.sequence);
            for row in from.rows() {
                let Ok((allocation, offset)) = memory.range(row, from.width) else {
                    return Err(gone(&memory, row, from.width, device, &turn.call_site));
                };
                let range = offset..offset + from.width;
                let packed = bytes.len() as u64;
                if allocation.first_unwritten(range.clone()).is_some() {
                    let is_unwritten = |&at: &u64| allocation.first_unwritten(at..at + 1).is_some();
                    unwritten.extend(range.clone().filter(is_unwritten).map(|at| packed + at - offset));
                }
                bytes.extend_from_slice(&allocation.bytes()[range.start as usize..range.end as usize]);
                add_touch(&mut touched, device, allocation, range, false);
            }
        }
        let parts = to.rows().zip((0..).map(|row| row * to.width)).flat_map(|(row, start)| {
            let end = start + to.width;
            let holes = &unwritten[unwritten.partition_point(|&at| at < start)..];
            let holes = &holes[..holes.partition_point(|&at| at < end)];
            let starts = std::iter::once(start).chain(holes.iter().map(|at| at + 1));
            let ends = holes.iter().copied().chain([end]);
            starts.zip(ends).map(move |(from, until)| (row + from - start, from, until - from))
        });
        touched.extend(self.write_parts(parts, turn, from_packed(&bytes))?);
        Ok(touched)
    }

    /// Adds the pinned memory that a copy accesses. A kernel may access it at the same time.
    fn touch_host(&self, touched: &mut Vec<Touched>, host: HostSide, writes: bool, turn: &Turn) {
        if !host.is_pinned {
            return;
        }
        let host = host.at;
        let memory = self.memory_as_of(self.managed(), turn.sequence);
        for row in host.rows() {
            if let Ok((allocation, offset)) = memory.range(row, host.width) {
                add_touch(touched, self.managed(), allocation, offset..offset + host.width, writes);
            }
        }
    }
}

/// Returns a function that fills a row with its part of the bytes of all rows.
fn from_packed(bytes: &[u8]) -> impl FnMut(u64, &mut [u8]) {
    |offset, out| out.copy_from_slice(&bytes[offset as usize..offset as usize + out.len()])
}

/// Adds a row that an operation has accessed. Rows must be added in ascending order.
fn add_touch(
    touched: &mut Vec<Touched>,
    device: usize,
    allocation: &Allocation,
    range: Range<u64>,
    writes: bool,
) {
    if range.is_empty() {
        return;
    }
    let last = touched.last_mut().filter(|last| (last.device, last.allocation) == (device, allocation.id()));
    if let Some(touch) = last.and_then(|last| last.touches.last_mut()).filter(|touch| touch.writes == writes)
    {
        match touch.ranges.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => touch.ranges.push(range),
        }
        return;
    }
    touched.push(Touched::range(device, allocation, range.start, range.end - range.start, writes));
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

/// Reports the use of memory that the process that allocated it has freed.
pub(super) fn gone_report(what: &str, allocation: &Allocation) -> Report {
    Report::new(format!("{what} uses memory that another process has freed"))
        .before_at(format!("the {} were opened here", size(allocation.size())), allocation.call_site())
        .help("let that process free the memory after this process has closed it (cuIpcCloseMemHandle)")
}

/// Reports why `len` bytes at `address` on `device` can't be accessed.
pub fn address_report(
    headline: &str,
    memory: &DeviceMemory,
    address: u64,
    len: u64,
    device: usize,
) -> Report {
    let bad = memory.range(address, len).err().unwrap_or_else(|| memory.explain(address));
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
        BadAddress::Unallocated { offset, .. } => {
            let end = u128::from(*offset) + u128::from(len);
            report.fact(format!("bytes {offset}..{end} of memory that a graph has not allocated yet"))
        }
        BadAddress::OfKernels { .. } | BadAddress::Unknown => report,
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
        BadAddress::Unallocated { id, size: whole, call_site, .. } => {
            let memory = memory_of(*id, device);
            report.before_at(format!("a graph allocates {} {memory} here", size(*whole)), call_site)
        }
        BadAddress::OfKernels { size: whole, call_site, .. } => report
            .before_at(format!("a kernel has allocated these {} here (`malloc`)", size(*whole)), call_site)
            .fact("only kernels can use and free this memory: let a kernel copy it to a buffer"),
        BadAddress::Unknown if address == 0 => report.fact("the pointer is null"),
        BadAddress::Unknown => report.fact(format!("{address:#x} is not an address on GPU {device}")),
    }
}
