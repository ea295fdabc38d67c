//! Running a collective: what the ranks give is read, combined and written, on whichever thread came last.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::MutexGuard;

use super::call::{CallKey, Part};
use super::operation::{Buffers, Operation};
use crate::config::Checks;
use crate::engine::{Engine, Failure, State, Touched, address_report};
use crate::memory::{Allocation, DeviceMemory};
use crate::order::View;
use crate::report::{Report, size};
use crate::site::Site;
use crate::status::{CudaStatus, Error, NcclStatus};
use crate::time::Cost;
use crate::time::collective::duration;

/// What each rank of a collective touched, or why it failed.
type Outcome = Result<Vec<Vec<Touched>>, Failure>;

/// Bytes that are combined at a time: small enough to stay in a core's cache.
const BLOCK: u64 = 32 << 10;

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

/// The memories of the GPUs that take part.
type Memories<'a> = BTreeMap<usize, MutexGuard<'a, DeviceMemory>>;

/// Where a buffer lies: its GPU, the slot of its allocation and its offset there.
#[derive(Clone, Copy)]
struct Place {
    device: usize,
    slot: usize,
    offset: u64,
}

impl Place {
    fn of(memory: &DeviceMemory, device: usize, address: u64, bytes: u64) -> Option<Self> {
        let offset = memory.range(address, bytes).ok()?.1;
        Some(Self { device, slot: memory.slot_of(address)?, offset })
    }

    fn allocation<'a>(&self, memories: &'a Memories<'_>) -> Option<&'a Allocation> {
        memories.get(&self.device)?.in_slot(self.slot)
    }

    fn allocation_mut<'a>(&self, memories: &'a mut Memories<'_>) -> Option<&'a mut Allocation> {
        memories.get_mut(&self.device)?.in_slot_mut(self.slot)
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
        // Always in ascending order, so that two collectives can't wait for each other's GPUs.
        let mut memories = Memories::new();
        let mut devices: Vec<usize> = parts.iter().map(|part| part.device).collect();
        devices.sort_unstable();
        for device in devices {
            memories.entry(device).or_insert_with(|| self.memory(device));
        }
        let mut touched: Vec<Vec<Touched>> = parts.iter().map(|_| Vec::new()).collect();
        let mut send = Vec::new();
        let mut receive = Vec::new();
        for part in &parts {
            let memory = &memories[&part.device];
            let mut find = |address: u64,
                            bytes: Option<u64>,
                            writes: bool|
             -> Result<Option<Place>, Failure> {
                let Some(bytes) = bytes else { return Ok(None) };
                let place = Place::of(memory, part.device, address, bytes);
                let found = place.and_then(|place| Some((place, memory.in_slot(place.slot)?)));
                let Some((place, allocation)) = found else {
                    return Err(gone(memory, part, address, bytes, &operation));
                };
                if !writes {
                    self.check_written(allocation, place.offset, bytes, part, &operation)?;
                }
                touched[part.rank].push(Touched::range(part.device, allocation, place.offset, bytes, writes));
                Ok(Some(place))
            };
            send.push(find(part.buffers.send, operation.given(part.rank, parts.len()), false)?);
            receive.push(find(part.buffers.receive, operation.got(part.rank, parts.len()), true)?);
        }
        move_pieces(&operation, &mut memories, &send, &receive);
        Ok(touched)
    }

    /// A finding where a send buffer has bytes that nothing wrote.
    fn check_written(
        &self,
        allocation: &Allocation,
        offset: u64,
        bytes: u64,
        part: &RankBuffers,
        operation: &Operation,
    ) -> Result<(), Failure> {
        let Some(first) = allocation.first_unwritten(offset..offset + bytes) else { return Ok(()) };
        if self.config().checks == Checks::Off {
            return Ok(());
        }
        let rank = part.rank;
        let report = Report::new(format!("{operation} reads bytes that nothing wrote, on rank {rank}"))
            .fact(format!("byte {first} is the first of them"))
            .at(format!("in the buffer of {} allocated", size(allocation.size())), allocation.site())
            .at(format!("read by {}", operation.function()), &part.site)
            .help(
                "fill the buffer first (memcpy_htod, memset_zeros, a kernel), on a stream that comes before",
            );
        let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
        if self.config().checks == Checks::Error { Err(failure) } else { Ok(()) }
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
                    self.note_touched(state, part.op.stream, what, touched, false);
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

/// Reads, combines and writes, block by block: a block is read from all its sources before it is written anywhere, which is
/// all that in-place buffers need.
fn move_pieces(
    operation: &Operation,
    memories: &mut Memories<'_>,
    send: &[Option<Place>],
    receive: &[Option<Place>],
) {
    let reduction = operation.reduction(send.len());
    let mut block = vec![0; BLOCK as usize];
    for piece in operation.pieces(send.len()) {
        for start in (0..piece.bytes).step_by(BLOCK as usize) {
            let len = BLOCK.min(piece.bytes - start);
            let out = &mut block[..len as usize];
            let inputs: Vec<Cow<'_, [u8]>> = piece
                .sources
                .iter()
                .filter_map(|&(rank, at)| {
                    let place = send[rank]?;
                    let from = place.offset + at + start;
                    Some(place.allocation(memories)?.seen(from..from + len))
                })
                .collect();
            match &reduction {
                Some(reduction) => reduction.reduce(out, inputs.iter().map(AsRef::as_ref)),
                None => inputs.iter().for_each(|input| out.copy_from_slice(input)),
            }
            drop(inputs);
            for &(rank, at) in &piece.destinations {
                let Some(place) = receive[rank] else { continue };
                let Some(allocation) = place.allocation_mut(memories) else { continue };
                let to = place.offset + at + start;
                allocation.bytes_mut()[to as usize..(to + len) as usize].copy_from_slice(out);
                allocation.mark_written(to..to + len);
            }
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
