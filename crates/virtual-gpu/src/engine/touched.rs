//! Records what operations accessed and reports unordered accesses.

use std::collections::hash_map::Entry;

use super::{Engine, Failure, State};
use crate::config::Checks;
use crate::order::{Accessor, Touch, TouchedBuffer};
use crate::time::Cost;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::map::Map;
use virtual_gpu_core::memory::{Allocation, AllocationId};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::CudaStatus;

/// The result of running an operation.
pub(super) type Outcome = Result<Done, Failure>;

/// The memory that an operation accessed, and the operation's cost.
pub(super) struct Done {
    pub(super) touched: Vec<Touched>,
    pub(super) cost: Cost,
}

/// The parts of an allocation that an operation accessed.
pub struct Touched {
    pub(crate) device: usize,
    pub(crate) allocation: AllocationId,
    pub(crate) size: u64,
    pub(crate) call_site: CallSite,
    /// The ranges, and whether they were written.
    pub touches: Vec<Touch>,
}

impl Touched {
    /// Creates the entry for one range in an allocation.
    pub fn range(device: usize, allocation: &Allocation, offset: u64, len: u64, writes: bool) -> Self {
        let (size, call_site) = (allocation.size(), allocation.call_site().clone());
        Self {
            device,
            allocation: allocation.id(),
            size,
            call_site,
            touches: vec![Touch::of(offset..offset + len, writes)],
        }
    }
}

impl Engine {
    /// Records in [`Order`](crate::order::Order) what the first operation on `stream` has touched. An unordered access
    /// is reported and fails both GPUs' contexts, unless reports are only printed.
    /// `is_together`: whether it is a kernel that runs at the same time as others on other GPUs.
    pub fn note_touched(
        &self,
        state: &mut State,
        stream: StreamHandle,
        what: &str,
        touched: Vec<Touched>,
        frees: bool,
        is_together: bool,
    ) {
        if self.config().checks == Checks::Off || touched.is_empty() {
            return;
        }
        let Some(entry) = state.streams.get_mut(&stream) else { return };
        if !frees {
            entry.last_touch = entry.done + 1;
        }
        let Some(op) = entry.queue.front() else { return };
        let by = Accessor {
            stream,
            number: entry.done + 1,
            thread: op.thread,
            enqueued: op.enqueued,
            reads: false,
            writes: false,
            extent: 0..0,
            frees,
            is_together,
            what: what.into(),
            stream_name: entry.name.clone(),
            stream_device: entry.device,
            call_site: op.call_site.clone(),
        };
        let view = op.view.clone();
        for Touched { device, allocation, size, call_site, touches } in by_allocation(touched) {
            let buffer = TouchedBuffer { device, allocation, size, call_site: &call_site };
            let race = state.order.touch(&buffer, &by, &view, &touches);
            let Some(race) = race else { continue };
            let failure = match race.is_new {
                true => Failure::announce(CudaStatus::LaunchFailed, &race.report),
                false => Failure::quietly(CudaStatus::LaunchFailed, &race.report),
            };
            if self.config().checks == Checks::Error {
                for side in [stream, race.other] {
                    state.fail_by_race(side, race.calls, &failure);
                }
            }
        }
    }
}

/// Merges the entries of each allocation, so that an operation that both reads and writes an allocation is one access.
fn by_allocation(touched: Vec<Touched>) -> Vec<Touched> {
    let mut merged: Vec<Touched> = Vec::new();
    let mut places: Map<(usize, AllocationId), usize> = Map::default();
    for next in touched {
        match places.entry((next.device, next.allocation)) {
            Entry::Occupied(place) => merged[*place.get()].touches.extend(next.touches),
            Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push(next);
            }
        }
    }
    merged
}
