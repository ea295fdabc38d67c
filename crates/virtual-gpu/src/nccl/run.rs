//! Running calls: what the ranks give is read, combined and written, on whichever thread came last.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::MutexGuard;

use super::call::{CallKey, Request};
use super::collective::{CollectiveKey, Part};
use super::exchange::{End, Moving};
use super::operation::Piece;
use super::reduce::Reduction;
use super::scale::Scale;
use super::transfer::Direction;
use crate::config::Checks;
use crate::engine::{Engine, Failure, State, Touched, address_report};
use crate::memory::{Allocation, DeviceMemory};
use crate::order::View;
use crate::report::{Report, size};
use crate::site::Site;
use crate::status::CudaStatus;
use crate::time::Cost;
use crate::time::collective::{duration, message_duration};

/// What can run now.
pub(crate) enum Job {
    /// A collective to which every rank has come.
    Collective(CollectiveKey),
    /// Messages to whose both ends the streams have come.
    Messages(Vec<Moving>),
}

/// What each rank of a collective touched, or why it failed.
type Outcome = Result<Vec<Vec<Touched>>, Failure>;

/// Bytes that are combined at a time: small enough to stay in a core's cache.
const BLOCK: u64 = 32 << 10;

/// One rank's share of a call that runs.
struct Share {
    rank: usize,
    device: usize,
    request: Request,
    site: Site,
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
    /// Runs what is ready, and lets the streams that waited for it go on.
    pub(crate) fn run_nccl(&self, job: Job) -> MutexGuard<'_, State> {
        match job {
            Job::Collective(key) => {
                let outcome = self.execute_collective(key);
                let mut state = self.state();
                self.finish_collective(&mut state, key, outcome);
                state
            }
            Job::Messages(messages) => {
                let outcomes: Vec<_> =
                    messages.into_iter().map(|moving| (self.execute_message(&moving), moving)).collect();
                let mut state = self.state();
                for (outcome, moving) in outcomes {
                    self.finish_message(&mut state, moving, outcome);
                }
                state
            }
        }
    }

    /// Locks the memories of GPUs, always in ascending order, so that two calls can't wait for each other's.
    fn memories(&self, devices: impl Iterator<Item = usize>) -> Memories<'_> {
        let devices: BTreeSet<usize> = devices.collect();
        devices.into_iter().map(|device| (device, self.memory(device))).collect()
    }

    fn execute_collective(&self, key: CollectiveKey) -> Outcome {
        let (operation, shares, buffers) = {
            let state = self.state();
            let Some(call) = state.nccl.call(key) else { return Ok(Vec::new()) };
            let Some(first) = call.parts.iter().flatten().next() else { return Ok(Vec::new()) };
            let share = |(rank, part): (usize, &Part)| Share {
                rank,
                device: part.device,
                request: Request::Collective(part.operation, part.buffers),
                site: part.site.clone(),
            };
            let shares: Vec<_> = call.parts.iter().flatten().enumerate().map(share).collect();
            let buffers: Vec<_> = call.parts.iter().flatten().map(|part| part.buffers).collect();
            (first.operation, shares, buffers)
        };
        let ranks = shares.len();
        let mut memories = self.memories(shares.iter().map(|share| share.device));
        let mut touched: Vec<Vec<Touched>> = Vec::new();
        let mut places = [Vec::new(), Vec::new()];
        let mut scales = Vec::new();
        for (share, buffers) in shares.iter().zip(buffers) {
            let mut own = Vec::new();
            let sides = [
                (buffers.send, operation.given(share.rank, ranks), false),
                (buffers.receive, operation.got(share.rank, ranks), true),
            ];
            for ((address, bytes, writes), places) in sides.into_iter().zip(&mut places) {
                let found =
                    bytes.map(|bytes| self.find(&memories, share, address, bytes, writes)).transpose()?;
                places.push(found.map(|(place, touched)| {
                    own.push(touched);
                    place
                }));
            }
            let scale = match buffers.scale {
                Some(Scale::Value(bytes)) => bytes,
                Some(Scale::At(address)) => {
                    let len = operation.data_type.size();
                    let (place, read) = self.find(&memories, share, address, len, false)?;
                    own.push(read);
                    let seen =
                        place.allocation(&memories).map(|from| from.seen(place.offset..place.offset + len));
                    let mut bytes = [0; 8];
                    bytes[..len as usize].copy_from_slice(&seen.unwrap_or_default());
                    bytes
                }
                None => [0; 8],
            };
            scales.push(scale);
            touched.push(own);
        }
        let [send, receive] = places;
        let pieces = operation.pieces(ranks);
        let reduction = operation.operator().map(|operator| Reduction {
            data_type: operation.data_type,
            operator,
            ranks,
            scales,
        });
        move_pieces(&pieces, reduction.as_ref(), &mut memories, &send, &receive);
        Ok(touched)
    }

    /// Moves a message; what it touched on each side.
    fn execute_message(&self, moving: &Moving) -> Result<[Option<Touched>; 2], Failure> {
        let [(send, from), (receive, to)] = &moving.ends;
        let bytes = send.transfer.bytes();
        // A rank may send a buffer to itself in place.
        let in_place = from == to && send.buffer == receive.buffer;
        if bytes == 0 || in_place {
            return Ok([None, None]);
        }
        let share = |end: &End, direction, device| Share {
            rank: moving.key.rank(direction),
            device,
            request: end.request(),
            site: end.site.clone(),
        };
        let shares = [share(send, Direction::Send, *from), share(receive, Direction::Receive, *to)];
        let mut memories = self.memories([*from, *to].into_iter());
        let (source, read) = self.find(&memories, &shares[0], send.buffer, bytes, false)?;
        let (target, written) = self.find(&memories, &shares[1], receive.buffer, bytes, true)?;
        let piece = Piece { sources: vec![(0, 0)], destinations: vec![(0, 0)], bytes };
        move_pieces(&[piece], None, &mut memories, &[Some(source)], &[Some(target)]);
        Ok([Some(read), Some(written)])
    }

    /// Where a buffer lies, and what using it touches.
    ///
    /// # Errors
    /// It is gone, or it is read and has bytes that nothing wrote.
    fn find(
        &self,
        memories: &Memories<'_>,
        share: &Share,
        address: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<(Place, Touched), Failure> {
        let memory = &memories[&share.device];
        let place = Place::of(memory, share.device, address, bytes);
        let found = place.and_then(|place| Some((place, memory.in_slot(place.slot)?)));
        let Some((place, allocation)) = found else { return Err(gone(memory, share, address, bytes)) };
        if !writes {
            self.check_written(allocation, place.offset, bytes, share)?;
        }
        Ok((place, Touched::range(share.device, allocation, place.offset, bytes, writes)))
    }

    /// A finding where a send buffer has bytes that nothing wrote.
    fn check_written(
        &self,
        allocation: &Allocation,
        offset: u64,
        bytes: u64,
        share: &Share,
    ) -> Result<(), Failure> {
        let Some(first) = allocation.first_unwritten(offset..offset + bytes) else { return Ok(()) };
        if self.config().checks == Checks::Off {
            return Ok(());
        }
        let Share { rank, request, site, .. } = share;
        let report = Report::new(format!("{request} reads bytes that nothing wrote, on rank {rank}"))
            .fact(format!("byte {first} is the first of them"))
            .at(format!("in the buffer of {} allocated", size(allocation.size())), allocation.site())
            .at(format!("read by {}", request.function()), site)
            .help(
                "fill the buffer first (memcpy_htod, memset_zeros, a kernel), on a stream that comes before",
            );
        let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
        if self.config().checks == Checks::Error { Err(failure) } else { Ok(()) }
    }

    /// Ends a call that has run: every rank's stream goes on, after all that any rank's stream had done before.
    fn finish_collective(&self, state: &mut State, key: CollectiveKey, outcome: Outcome) {
        let Some(clique) = state.nccl.cliques.get_mut(&key.0) else { return };
        let Some(call) = clique.calls.remove(&key.1) else { return };
        if let Err(failure) = &outcome {
            clique.note_failure(failure);
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
                call: CallKey::Collective { clique: key.0, number: key.1 },
                ranks,
                duration: duration(preset, part.operation.pattern(), ranks, bytes),
            }
        });
        for part in &parts {
            state.finish_after(part.op.stream, &joined, cost.clone());
        }
    }

    /// Ends a message that was moved, and the exchanges whose last one it was.
    fn finish_message(
        &self,
        state: &mut State,
        moving: Moving,
        outcome: Result<[Option<Touched>; 2], Failure>,
    ) {
        let touched = match outcome {
            Ok(touched) => touched,
            Err(failure) => return state.message_failed(&moving, &failure),
        };
        let clique = moving.key.clique;
        for place in state.message_moved(moving, touched) {
            let entry = state.nccl.cliques.get_mut(&clique);
            let Some(exchange) = entry.and_then(|entry| entry.traffic.exchanges.remove(&place)) else {
                continue;
            };
            let stream = exchange.op.stream;
            self.note_touched(state, stream, exchange.what().to_owned(), exchange.touched, false);
            let preset = state.time.preset();
            let partners = exchange
                .partners
                .into_iter()
                .map(|(ticket, bytes)| (ticket, message_duration(preset, bytes)))
                .collect();
            state.finish_after(stream, &exchange.view, Cost::Exchange { partners });
        }
    }
}

/// Reads, combines and writes, block by block: a block is read from all its sources before it is written anywhere, which is
/// all that in-place buffers need.
fn move_pieces(
    pieces: &[Piece],
    reduction: Option<&Reduction>,
    memories: &mut Memories<'_>,
    send: &[Option<Place>],
    receive: &[Option<Place>],
) {
    let longest = pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0);
    let mut block = vec![0; longest.min(BLOCK) as usize];
    for piece in pieces {
        for start in (0..piece.bytes).step_by(BLOCK as usize) {
            let len = BLOCK.min(piece.bytes - start);
            let out = &mut block[..len as usize];
            let inputs: Vec<(usize, Cow<'_, [u8]>)> = piece
                .sources
                .iter()
                .filter_map(|&(rank, at)| {
                    let place = send[rank]?;
                    let from = place.offset + at + start;
                    Some((rank, place.allocation(memories)?.seen(from..from + len)))
                })
                .collect();
            match reduction {
                Some(reduction) => {
                    reduction.reduce(out, inputs.iter().map(|(rank, input)| (*rank, input.as_ref())));
                }
                None => inputs.iter().for_each(|(_, input)| out.copy_from_slice(input)),
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
fn gone(memory: &DeviceMemory, share: &Share, address: u64, bytes: u64) -> Failure {
    let Share { rank, device, request, site } = share;
    let headline = format!("a buffer of rank {rank} was freed before its {} ran", request.function());
    let report = address_report(&headline, memory, address, bytes, *device).at(request.to_string(), site);
    Failure::announce(CudaStatus::IllegalAddress, &report)
}
