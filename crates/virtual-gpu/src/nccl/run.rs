//! Running a collective: what the ranks give is read, reduced and written, on whichever thread came last.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use super::call::{CallKey, Part};
use super::operation::{Buffers, Operation};
use crate::config::Checks;
use crate::engine::{Engine, Failure, State, Touched, address_report};
use crate::memory::DeviceMemory;
use crate::order::View;
use crate::report::{Report, size};
use crate::site::Site;
use crate::status::{CudaStatus, Error, NcclStatus};
use crate::time::Cost;
use crate::time::collective::duration;

/// What each rank of a collective touched, or why it failed.
type Outcome = Result<Vec<Vec<Touched>>, Failure>;

/// One rank's share of a collective that runs.
struct RankBuffers {
    rank: usize,
    device: usize,
    buffers: Buffers,
    site: Site,
}

impl RankBuffers {
    fn of((rank, part): (usize, &Part)) -> Self {
        Self { rank, device: part.device, buffers: part.buffers, site: part.site.clone() }
    }
}

impl Engine {
    /// Runs a collective to which every rank has come.
    pub(crate) fn execute_collective(&self, call: CallKey) -> Outcome {
        let (operation, parts) = {
            let state = self.state();
            let Some(entry) = state.nccl.call(call) else { return Ok(Vec::new()) };
            let parts: Vec<_> = entry.parts.iter().flatten().enumerate().map(RankBuffers::of).collect();
            let Some(first) = entry.parts.iter().flatten().next() else { return Ok(Vec::new()) };
            (first.operation, parts)
        };
        let world_size = parts.len();
        // Always in ascending order, so that two collectives can't wait for each other's GPUs.
        let mut memories: BTreeMap<usize, MutexGuard<'_, DeviceMemory>> = BTreeMap::new();
        let mut devices: Vec<usize> = parts.iter().map(|part| part.device).collect();
        devices.sort_unstable();
        for device in devices {
            memories.entry(device).or_insert_with(|| self.memory(device));
        }
        let mut inputs = Vec::new();
        let mut touched: Vec<Vec<Touched>> = parts.iter().map(|_| Vec::new()).collect();
        for part in &parts {
            let Some(bytes) = operation.given(part.rank, world_size) else { continue };
            let (input, read) = self.input(&memories[&part.device], part, bytes, &operation)?;
            inputs.push(input);
            touched[part.rank].push(read);
        }
        let result = operation.compute(inputs);
        for part in &parts {
            let Some(share) = operation.share(part.rank, world_size) else { continue };
            let Some(memory) = memories.get_mut(&part.device) else { continue };
            let bytes = share.len() as u64;
            let Ok((allocation, offset)) = memory.range_mut(part.buffers.receive, bytes) else {
                return Err(gone(memory, part, part.buffers.receive, bytes, &operation));
            };
            allocation.bytes_mut()[offset as usize..(offset + bytes) as usize]
                .copy_from_slice(&result[share]);
            allocation.mark_written(offset..offset + bytes);
            touched[part.rank].push(Touched::range(part.device, allocation, offset, bytes, true));
        }
        Ok(touched)
    }

    /// A rank's send buffer, checked for bytes that nothing wrote.
    fn input(
        &self,
        memory: &DeviceMemory,
        part: &RankBuffers,
        bytes: u64,
        operation: &Operation,
    ) -> Result<(Vec<u8>, Touched), Failure> {
        let address = part.buffers.send;
        let Ok((allocation, offset)) = memory.range(address, bytes) else {
            return Err(gone(memory, part, address, bytes, operation));
        };
        if let Some(first) = allocation.first_unwritten(offset..offset + bytes)
            && self.config().checks != Checks::Off
        {
            let rank = part.rank;
            let report = Report::new(format!("{operation} reads bytes that nothing wrote, on rank {rank}"))
                .fact(format!("byte {first} is the first of them"))
                .at(format!("in the buffer of {} allocated", size(allocation.size())), allocation.site())
                .at(format!("read by {}", operation.function()), &part.site)
                .help("fill the buffer first (memcpy_htod, memset_zeros, a kernel), on a stream that comes before");
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            if self.config().checks == Checks::Error {
                return Err(failure);
            }
        }
        let read = Touched::range(part.device, allocation, offset, bytes, false);
        Ok((allocation.read(offset..offset + bytes), read))
    }

    /// Ends a call that has run: every rank's stream goes on, after all that any rank's stream had done before.
    pub(crate) fn finish_collective(&self, state: &mut State, key: CallKey, outcome: Outcome) {
        let Some(clique) = state.nccl.cliques.get_mut(&key.clique) else { return };
        let Some(call) = clique.calls.remove(&key.number) else { return };
        if let Err(failure) = &outcome {
            clique.failed.get_or_insert_with(|| Error::new(NcclStatus::InvalidUsage, failure.report.clone()));
        }
        let parts: Vec<Part> = call.parts.into_iter().flatten().collect();
        match outcome {
            Err(failure) => parts.iter().for_each(|part| state.fail_stream(part.op.stream, &failure)),
            Ok(touched) => {
                for (part, touched) in parts.iter().zip(touched) {
                    let what = part.operation.function().to_owned();
                    self.note_touched(state, part.op.stream, what, touched);
                }
            }
        }
        let mut joined = View::default();
        for part in &parts {
            if let Some(view) = state.view_at_end_of(part.op) {
                joined.join(&view);
            }
        }
        let cost = parts.first().map_or(Cost::Nothing, |part| {
            let (ranks, preset) = (parts.len(), state.time.preset());
            let bytes = part.operation.large_side(ranks);
            Cost::Collective {
                call: key,
                ranks,
                duration: duration(preset, part.operation.pattern(), ranks, bytes),
            }
        });
        for part in &parts {
            state.finish_after(part.op.stream, &joined, cost);
        }
    }
}

/// A buffer that was there at the call and is not any more.
fn gone(
    memory: &DeviceMemory,
    part: &RankBuffers,
    address: u64,
    bytes: u64,
    operation: &Operation,
) -> Failure {
    let headline =
        format!("a buffer of rank {} was freed before its {} ran", part.rank, operation.function());
    let report =
        address_report(&headline, memory, address, bytes, part.device).at(operation.to_string(), &part.site);
    Failure::announce(CudaStatus::IllegalAddress, &report)
}
