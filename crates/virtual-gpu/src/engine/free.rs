//! Frees memory. Operations that are enqueued after the call no longer find the memory. Operations that were enqueued
//! before the call still find it. So an unordered use is always reported as the same race, regardless of whether the
//! use or the free runs first.

use std::collections::VecDeque;

use super::graph::NodeWork;
use super::transfer::owner;
use super::work::Work;
use super::{Engine, Failure, State};
use crate::report::Report;
use virtual_gpu_core::handle::{OpRef, OperationNumber, StreamHandle};
use virtual_gpu_core::memory::{AFTER_ALL, AllocationId, BEFORE_ALL, BadAddress};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::sync::MutexGuard;

/// Memory that was freed before all earlier operations were done.
pub(super) struct Freed {
    pub(super) device: usize,
    pub(super) base: u64,
    pub(super) allocation: AllocationId,
    /// The sequence number of the free.
    pub(super) sequence: OperationNumber,
    /// The operation that frees the memory, if the free is on a stream.
    pub(super) op: Option<OpRef>,
}

impl Engine {
    /// `cuMemFree`: first waits for the context's work, as the driver does.
    ///
    /// Without a current context, the memory's own context is the one. The documentation doesn't say so, but numba frees
    /// memory in this way.
    pub fn free(&self, address: u64) -> CudaResult<()> {
        if address == 0 {
            return Ok(());
        }
        self.check_capture_allows("cuMemFree")?;
        let mut state = self.state();
        let context = state.current_context().or_else(|error| state.owner_of(address).ok_or(error))?;
        let all = state.last_of_all(context);
        // Failures are returned only by calls whose errors cudarc shows; this call is not one of them.
        let _ = self.wait_in(context, all, "cuMemFree", state);
        let mut state = self.state();
        if state.is_of_graph(address) {
            state.check_free_of_graph(address)?;
            let by = state.next_sequence_number();
            state.end_life(address, by, CallSite::here());
            self.release_graph_memory(state);
            return Ok(());
        }
        drop(state);
        let freed = self.free_from_now(address, &CallSite::here())?;
        self.free_at_once(freed);
        Ok(())
    }

    /// `cuMemFreeAsync`: frees the memory once the work enqueued on `stream` is done. Address 0 stands for an allocation
    /// of 0 bytes, and is ignored.
    pub fn free_in(&self, stream: StreamHandle, address: u64) -> CudaResult<()> {
        let call_site = CallSite::here();
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        if let Some(captured) = state.streams.get(&stream).and_then(|entry| entry.capture.as_ref()) {
            if let Some(graph) = state.captures.graph_of(captured) {
                state.check_free_node(state.graph(graph)?, address)?;
            }
            let work = NodeWork::Work(Work::Free { at: address, of_graph: true });
            return state.add_node(stream, work, call_site);
        }
        if address == 0 {
            return Ok(());
        }
        if state.is_of_graph(address) {
            return self.free_of_graph_in(stream, address, state);
        }
        drop(state);
        let freed = self.free_from_now(address, &call_site)?;
        let mut state = self.state();
        state.pools.freed_in(address, stream);
        // Frees are allowed even in a failed context, so that programs can clean up.
        match state.enqueue(stream, Work::Free { at: address, of_graph: false }, Vec::new(), call_site) {
            Ok(enqueued) => {
                let sequence = state.enqueued;
                state.freed.push_back(Freed { sequence, op: Some(enqueued.op), ..freed });
                drop(self.run_ready(state));
            }
            Err(_) => {
                drop(state);
                self.free_at_once(freed);
            }
        }
        Ok(())
    }

    /// Frees a graph's memory once the work enqueued on `stream` is done.
    fn free_of_graph_in(
        &self,
        stream: StreamHandle,
        address: u64,
        mut state: MutexGuard<'_, State>,
    ) -> CudaResult<()> {
        let call_site = CallSite::here();
        state.check_free_of_graph(address)?;
        let work = Work::Free { at: address, of_graph: true };
        let by = match state.enqueue(stream, work, Vec::new(), call_site.clone()) {
            Ok(_) => state.enqueued,
            // Frees are allowed even in a failed context.
            Err(_) => state.next_sequence_number(),
        };
        state.end_life(address, by, call_site);
        let state = self.run_ready(state);
        self.release_graph_memory(state);
        Ok(())
    }

    /// Frees pinned host memory, which is released once pending work no longer needs it.
    pub(super) fn free_pinned(&self, address: u64) {
        let sequence = self.state().next_sequence_number();
        let device = self.managed();
        let freed = self.memory(device).free_from(address, CallSite::here(), sequence);
        if let Ok(allocation) = freed {
            self.free_at_once(Freed { device, base: address, allocation, sequence, op: None });
        }
    }

    /// Frees memory for everything that is enqueued from now on.
    fn free_from_now(&self, address: u64, call_site: &CallSite) -> CudaResult<Freed> {
        if self.is_reservable(address) {
            let message = format!("{address:#x} is a reserved address: unmap its memory with cuMemUnmap");
            return Err(Error::new(CudaStatus::InvalidValue, message));
        }
        let Some(device) = self.device_of(address) else {
            let message = format!("{address:#x} is not a GPU address: it can't be freed");
            return Err(Error::new(CudaStatus::InvalidValue, message));
        };
        let mut state = self.state();
        if state.is_pinned(address) {
            let message = format!("{address:#x} is pinned host memory: free it with cuMemFreeHost");
            return Err(Error::new(CudaStatus::InvalidValue, message));
        }
        state.check_not_open(address)?;
        let sequence = state.next_sequence_number();
        drop(state);
        let mut memory = self.memory(device);
        let bad = match memory.free_from(address, call_site.clone(), sequence) {
            Ok(allocation) => return Ok(Freed { device, base: address, allocation, sequence, op: None }),
            Err(bad) => bad,
        };
        drop(memory);
        let report = Report::new("a pointer that can't be freed");
        let report = match &bad {
            BadAddress::Freed { .. } => report.at("freed again", call_site),
            BadAddress::OutOfBounds { offset, .. } => {
                report.at(format!("freed through a pointer to its byte {offset}"), call_site)
            }
            BadAddress::Unallocated { .. } | BadAddress::OfKernels { .. } | BadAddress::Unknown => {
                report.at("freed", call_site)
            }
        };
        let report = owner(report, &bad, address, device)
            .help("free each allocation once, using the pointer that the allocation returned");
        Err(Failure::announce(CudaStatus::InvalidValue, &report).to_error())
    }

    /// Remembers memory that a kernel has freed, until no pending work can race with its accesses.
    pub(super) fn freed_by_kernel(&self, device: usize, freed: Vec<(u64, AllocationId)>) {
        if freed.is_empty() {
            return;
        }
        let mut state = self.state();
        let sequence = state.next_sequence_number();
        let freed = freed.into_iter();
        state.freed.extend(freed.map(|(base, allocation)| Freed {
            device,
            base,
            allocation,
            sequence,
            op: None,
        }));
    }

    pub(super) fn free_at_once(&self, freed: Freed) {
        let mut state = self.state();
        state.no_longer_owned(freed.base);
        state.freed.push_back(freed);
        drop(self.release_freed(state));
    }

    /// Releases the memory that was freed before all operations that are running or pending.
    pub(super) fn release_freed<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.freed.is_empty() || state.release_still_waits() {
            return state;
        }
        let firsts =
            state.streams.iter().filter_map(|(&handle, stream)| Some((stream.queue.front()?, handle)));
        let first = firsts.map(|(op, handle)| (op.enqueued, handle)).min();
        state.release_waits_for = first.map(|(enqueued, handle)| (handle, enqueued));
        let oldest = first.map_or(AFTER_ALL, |(enqueued, _)| enqueued);
        let mut over = Vec::new();
        while let Some(freed) = state.freed.pop_front_if(|freed| freed.sequence < oldest) {
            over.push(freed);
        }
        if over.is_empty() {
            return state;
        }
        for freed in &over {
            state.order.forget_allocation(freed.device, freed.allocation);
            state.advice.forget(freed.allocation);
        }
        drop(state);
        for freed in over {
            self.memory_as_of(freed.device, BEFORE_ALL).release_allocation(freed.base, freed.allocation);
            if freed.allocation.is_pinned() {
                self.unmap(freed.base);
            }
        }
        self.state()
    }
}

impl State {
    /// Returns whether the operation that the release of the first freed memory waits for is not done.
    fn release_still_waits(&self) -> bool {
        let (Some((handle, enqueued)), Some(freed)) = (self.release_waits_for, self.freed.front()) else {
            return false;
        };
        let first = self.streams.get(&handle).and_then(|stream| stream.queue.front());
        freed.sequence >= enqueued && first.is_some_and(|op| op.enqueued == enqueued)
    }

    /// Forgets the owner of memory that has now been freed.
    pub(super) fn no_longer_owned(&mut self, address: u64) {
        self.disown(address);
        self.forget_import(address);
        self.pools.freed(address);
    }
}

/// Returns the number of the last free on a stream that an access can still race with, or 0 if there is none.
pub(super) fn last_free(freed: &VecDeque<Freed>, stream: StreamHandle) -> u64 {
    let ops = freed.iter().filter_map(|freed| freed.op).filter(|op| op.stream == stream);
    ops.map(|op| op.number).max().unwrap_or(0)
}
