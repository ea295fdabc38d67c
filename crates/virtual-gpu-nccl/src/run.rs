//! Running calls: what the ranks give is read, combined and written, on whichever thread came last.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::call::Request;
use super::collective::{Part, PartLocation};
use super::event::{Arrival, Arrived, Event, MessageName};
use super::operation::{Buffers, Operation, Piece};
use super::point_to_point::{End, MessageKey, Moving, MovingEnd, ReadyEnd};
use super::reduce::Reduction;
use super::scale::Scale;
use super::session::Outgoing;
use super::transfer::Direction;
use super::wire::Payload;
use super::{Guard, Locked, Nccl};
use virtual_gpu::config::Checks;
use virtual_gpu::engine::{Failure, Touched, address_report};
use virtual_gpu::order::View;
use virtual_gpu::report::{Report, size};
use virtual_gpu::time::Cost;
use virtual_gpu::time::tuning::point_to_point;
use virtual_gpu_core::handle::{CollectiveId, PointToPointId};
use virtual_gpu_core::memory::{AFTER_ALL, Allocation, DeviceMemory};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::CudaStatus;
use virtual_gpu_core::sync::MutexGuard;

/// What can run now.
pub(super) enum Job {
    /// A collective to which every rank has come.
    Collective(CollectiveId),
    /// Ranks of this process have come to a collective, of which others have to know what they give.
    Arrivals(CollectiveId, Vec<usize>),
    /// A rank of this process has come to what it sends to others and receives from them.
    Ends(PointToPointId),
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
    /// The place of its call among all operations.
    enqueued: u64,
    request: Request,
    call_site: CallSite,
    /// What it reads was looked at when other processes were sent it.
    is_checked: bool,
}

/// The memories of the GPUs that take part.
type Memories<'a> = BTreeMap<usize, MutexGuard<'a, DeviceMemory>>;

/// Where a buffer lies: its GPU, the slot of its allocation and its offset there.
#[derive(Clone, Copy)]
struct BufferLocation {
    device: usize,
    slot: usize,
    offset: u64,
}

impl Share {
    /// That of a collective's rank, with its buffers; or what came from another process.
    fn of_part(
        state: &Locked<'_>,
        rank: usize,
        part: &Part,
    ) -> Result<(Self, Buffers), Option<Arc<Arrived>>> {
        match &part.location {
            &PartLocation::Here { op, buffers, device, published, .. } => {
                let request = Request::Collective(part.operation, buffers);
                let enqueued = state.engine.enqueued_as(op).unwrap_or(AFTER_ALL);
                let call_site = part.call_site.clone();
                Ok((Self { rank, device, enqueued, request, call_site, is_checked: published }, buffers))
            }
            PartLocation::Elsewhere(arrived) => Err(arrived.clone()),
        }
    }
}

impl BufferLocation {
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

/// Where the bytes come from that a rank gives.
enum Source {
    Here(BufferLocation),
    /// Another process has sent them.
    Elsewhere(Arc<Arrived>),
}

impl Source {
    fn bytes<'a>(&'a self, memories: &'a Memories<'_>, range: Range<u64>) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::Here(place) => {
                Some(place.allocation(memories)?.seen(place.offset + range.start..place.offset + range.end))
            }
            Self::Elsewhere(arrived) => {
                arrived.payload.get(range.start as usize..range.end as usize).map(Cow::Borrowed)
            }
        }
    }
}

impl Nccl {
    /// Runs what is ready, and lets the streams that waited for it go on.
    pub(super) fn run(&self, job: Job) -> Guard<'_> {
        match job {
            Job::Collective(id) => {
                let outcome = self.execute_collective(id);
                let mut guard = self.lock();
                self.finish_collective(&mut guard.locked(), id, outcome);
                guard
            }
            Job::Arrivals(id, ranks) => {
                for rank in ranks {
                    self.publish_arrival(id, rank);
                }
                self.run_next(|state| state.linked_collective(id))
            }
            Job::Ends(id) => {
                self.publish_ends(id);
                self.run_next(|state| state.published_ends(id))
            }
            Job::Messages(messages) => {
                let outcomes: Vec<_> =
                    messages.into_iter().map(|moving| (self.execute_message(&moving), moving)).collect();
                let mut guard = self.lock();
                for (outcome, moving) in outcomes {
                    self.finish_message(&mut guard.locked(), moving, outcome);
                }
                guard
            }
        }
    }

    /// Runs what a job makes ready.
    fn run_next(&self, next: impl FnOnce(&mut Locked<'_>) -> Option<Job>) -> Guard<'_> {
        let mut guard = self.lock();
        let job = next(&mut guard.locked());
        match job {
            Some(job) => {
                drop(guard);
                self.run(job)
            }
            None => guard,
        }
    }

    /// Locks the memories of GPUs, and managed memory where there is any, always in ascending order, so that two calls can't
    /// wait for each other's.
    fn memories(&self, devices: impl Iterator<Item = usize>) -> Memories<'_> {
        let devices: BTreeSet<usize> = devices.chain([self.engine.managed()]).collect();
        let locked = devices.into_iter().map(|device| (device, self.engine.memory(device)));
        locked.filter(|(device, memory)| *device != self.engine.managed() || !memory.is_empty()).collect()
    }

    /// The memory that a buffer of a rank lies in: managed memory, or that of the rank's GPU (NCCL's User Guide, "Data
    /// Pointers").
    pub(super) fn memory_of_buffer(&self, address: u64, device: usize) -> usize {
        self.engine.device_of(address).filter(|&memory| memory == self.engine.managed()).unwrap_or(device)
    }

    fn execute_collective(&self, id: CollectiveId) -> Outcome {
        let (operation, ranks, shares) = {
            let mut guard = self.lock();
            let state = guard.locked();
            let Some(call) = state.nccl.call(id) else { return Ok(Vec::new()) };
            let Some(first) = call.parts.iter().flatten().next() else { return Ok(Vec::new()) };
            let shares = call.parts.iter().flatten().enumerate();
            let shares: Vec<_> = shares.map(|(rank, part)| Share::of_part(&state, rank, part)).collect();
            (first.operation, shares.len(), shares)
        };
        let here = shares.iter().filter_map(|share| share.as_ref().ok().map(|(share, _)| share.device));
        let mut memories = self.memories(here);
        let mut touched: Vec<Vec<Touched>> = Vec::new();
        let (mut send, mut receive) = (Vec::new(), Vec::new());
        let mut scales = Vec::new();
        for share in shares {
            let (share, buffers) = match share {
                Ok(here) => here,
                Err(elsewhere) => {
                    scales.push(elsewhere.as_ref().map_or([0; 8], |arrived| arrived.scale));
                    send.push(elsewhere.map(Source::Elsewhere));
                    receive.push(None);
                    touched.push(Vec::new());
                    continue;
                }
            };
            let mut own = Vec::new();
            let mut find = |address, bytes: Option<u64>, writes| -> Result<Option<BufferLocation>, Failure> {
                let Some(bytes) = bytes else { return Ok(None) };
                let (place, touched) = self.find(&mut memories, &share, address, bytes, writes)?;
                own.push(touched);
                Ok(Some(place))
            };
            send.push(find(buffers.send, operation.given(share.rank, ranks), false)?.map(Source::Here));
            receive.push(find(buffers.receive, operation.got(share.rank, ranks), true)?);
            let (scale, read) = self.scale(&mut memories, &share, &operation, buffers.scale)?;
            own.extend(read);
            scales.push(scale);
            touched.push(own);
        }
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

    /// A rank's scalar, and what reading it touches.
    fn scale(
        &self,
        memories: &mut Memories<'_>,
        share: &Share,
        operation: &Operation,
        scale: Option<Scale>,
    ) -> Result<([u8; 8], Option<Touched>), Failure> {
        let mut bytes = [0; 8];
        match scale {
            None => Ok((bytes, None)),
            Some(Scale::Value(bytes)) => Ok((bytes, None)),
            Some(Scale::At(address)) => {
                let len = operation.data_type.size();
                let (place, read) = self.find(memories, share, address, len, false)?;
                let seen = place.allocation(memories).map(|from| from.seen(place.offset..place.offset + len));
                bytes[..len as usize].copy_from_slice(&seen.unwrap_or_default());
                Ok((bytes, Some(read)))
            }
        }
    }

    /// Tells the other processes that a rank's stream has come to a collective, and what the rank gives.
    fn publish_arrival(&self, id: CollectiveId, rank: usize) {
        let mut guard = self.lock();
        let mut state = guard.locked();
        let Some(call) = state.nccl.call(id).filter(|call| call.failure.is_none()) else { return };
        let ranks = call.parts.len();
        if let Some(report) = state.failure_of_part(call, rank) {
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            return state.fail_collective(id, &failure);
        }
        let Some(part) = call.parts[rank].as_ref() else { return };
        let (Ok((share, buffers)), operation) = (Share::of_part(&state, rank, part), part.operation) else {
            return;
        };
        let Some(stamp) = part.op().and_then(|op| state.stamp(op)) else { return };
        let Some((own, link)) = state.link_of(id.comm) else { return };
        drop(guard);
        let given = {
            let mut memories = self.memories([share.device].into_iter());
            self.give(&mut memories, &share, buffers.send, operation.given(rank, ranks)).and_then(|payload| {
                Ok((payload, self.scale(&mut memories, &share, &operation, buffers.scale)?.0))
            })
        };
        let (payload, scale) = match given {
            Ok(given) => given,
            Err(failure) => return self.lock().locked().fail_collective(id, &failure),
        };
        let arrival = Arrival { stamp, bytes: (0, 0), scale, payload };
        let others = link.others.clone();
        let outgoing =
            Outgoing::new(own, &link, others, &Event::Arrived { rank, sequence: id.sequence, arrival });
        let mut guard = self.lock();
        // It may have failed, or the rank have aborted, in the meantime.
        if guard.locked().published(id, rank) {
            guard.nccl.send(outgoing);
        }
    }

    /// The bytes of a buffer that other processes need.
    fn give(
        &self,
        memories: &mut Memories<'_>,
        share: &Share,
        address: u64,
        bytes: Option<u64>,
    ) -> Result<Payload, Failure> {
        let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else { return Ok(Payload::default()) };
        let (place, _) = self.find(memories, share, address, bytes, false)?;
        let seen = place.allocation(memories).map(|from| from.seen(place.offset..place.offset + bytes));
        Ok(Payload(seen.unwrap_or_default().into_owned()))
    }

    /// Tells other processes that a rank's stream has come to the messages that it sends them, with their bytes, and to those
    /// that it gets.
    fn publish_ends(&self, id: PointToPointId) {
        let (Some((own, link)), Some(ready)) = ({
            let mut guard = self.lock();
            let mut state = guard.locked();
            (state.link_of(id.comm), state.ends_to_publish(id))
        }) else {
            return;
        };
        let failed = ready.iter().find_map(|ready| {
            let &MessageName { from, to, sequence } = &ready.message;
            self.lock().locked().failed_end(MessageKey { comm: id.comm, from, to, sequence })
        });
        if let Some(report) = failed {
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            return self.lock().locked().fail_transfers(id, &failure);
        }
        for ReadyEnd { message, end, called, device, enqueued, stamp, bytes, process } in ready {
            let (request, call_site) = (called.request(), called.call_site.clone());
            let share = Share { rank: id.rank, device, enqueued, request, call_site, is_checked: false };
            let given = match end {
                Direction::Receive => Ok(Payload::default()),
                Direction::Send => {
                    let mut memories = self.memories([device].into_iter());
                    self.give(&mut memories, &share, called.buffer, Some(called.transfer.bytes()))
                }
            };
            match given {
                Ok(payload) => {
                    let arrival = Arrival { stamp, bytes, scale: [0; 8], payload };
                    let event = Event::Ready { message, end, arrival };
                    let outgoing = Outgoing::new(own, &link, vec![process], &event);
                    self.lock().nccl.send(outgoing);
                }
                Err(failure) => self.lock().locked().fail_transfers(id, &failure),
            }
        }
    }

    /// Moves a message; what it touched on each side.
    fn execute_message(&self, moving: &Moving) -> Result<[Option<Touched>; 2], Failure> {
        let [send, receive] = &moving.ends;
        let bytes = send.end().transfer.bytes();
        // A rank may send a buffer to itself in place.
        let in_place = send.device() == receive.device() && send.end().buffer == receive.end().buffer;
        if bytes == 0 || (in_place && send.device().is_some()) {
            return Ok([None, None]);
        }
        let share = |end: &End, direction, (device, enqueued)| Share {
            rank: moving.key.rank(direction),
            device,
            enqueued,
            request: end.request(),
            call_site: end.call_site.clone(),
            is_checked: receive.device().is_none(),
        };
        let mut memories = self.memories(moving.ends.iter().filter_map(MovingEnd::device));
        let (mut target, mut touched) = (None, [None, None]);
        let source = match send {
            &MovingEnd::Here(ref end, device, enqueued) => {
                let share = share(end, Direction::Send, (device, enqueued));
                let (place, read) = self.find(&mut memories, &share, end.buffer, bytes, false)?;
                touched[0] = Some(read);
                Source::Here(place)
            }
            MovingEnd::Elsewhere(_, arrived) => Source::Elsewhere(arrived.clone()),
        };
        if let &MovingEnd::Here(ref end, device, enqueued) = receive {
            let share = share(end, Direction::Receive, (device, enqueued));
            let (place, written) = self.find(&mut memories, &share, end.buffer, bytes, true)?;
            (target, touched[1]) = (Some(place), Some(written));
        }
        let piece = Piece { sources: vec![(0, 0)], destinations: vec![(0, 0)], bytes };
        move_pieces(&[piece], None, &mut memories, &[Some(source)], &[target]);
        Ok(touched)
    }

    /// Where a buffer lies, and what using it touches.
    ///
    /// # Errors
    /// It is gone, or it is read and has bytes that nothing wrote.
    fn find(
        &self,
        memories: &mut Memories<'_>,
        share: &Share,
        address: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<(BufferLocation, Touched), Failure> {
        let mut device = self.memory_of_buffer(address, share.device);
        if let Some(memory) = memories.get_mut(&device) {
            memory.as_of(share.enqueued);
        } else {
            device = share.device;
        }
        let memory = &memories[&device];
        let place = BufferLocation::of(memory, device, address, bytes);
        let found = place.and_then(|place| Some((place, memory.in_slot(place.slot)?)));
        let Some((place, allocation)) = found else { return Err(gone(memory, share, address, bytes)) };
        if !writes && !share.is_checked {
            self.check_written(allocation, place.offset, bytes, share)?;
        }
        Ok((place, Touched::range(device, allocation, place.offset, bytes, writes)))
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
        if self.engine.config().checks == Checks::Off {
            return Ok(());
        }
        let Share { rank, request, call_site, .. } = share;
        let report = Report::new(format!("{request} reads bytes that nothing wrote, on rank {rank}"))
            .fact(format!("byte {first} is the first of them"))
            .at(format!("in the buffer of {} allocated", size(allocation.size())), allocation.call_site())
            .at(format!("read by {}", request.function()), call_site)
            .help(
                "fill the buffer first (memcpy_htod, memset_zeros, a kernel), on a stream that comes before",
            );
        let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
        if self.engine.config().checks == Checks::Error { Err(failure) } else { Ok(()) }
    }

    /// Ends a call that has run: every rank's stream goes on, after all that any rank's stream had done before.
    fn finish_collective(&self, state: &mut Locked<'_>, id: CollectiveId, outcome: Outcome) {
        let Some(comm) = state.nccl.communicators.get_mut(&id.comm) else { return };
        let Some(call) = comm.calls.remove(&id.sequence) else { return };
        if let Err(failure) = &outcome {
            comm.note_failure(failure);
        }
        let parts: Vec<Part> = call.parts.into_iter().flatten().collect();
        match outcome {
            Err(failure) => {
                parts
                    .iter()
                    .filter_map(Part::op)
                    .for_each(|op| state.engine.fail_stream(op.stream, &failure));
            }
            Ok(touched) => {
                for (part, touched) in parts.iter().zip(touched) {
                    let Some(op) = part.op() else { continue };
                    let what = part.operation.function().to_owned();
                    self.engine.note_touched(state.engine, op.stream, what, touched, false);
                }
            }
        }
        let mut joined = View::default();
        let (mut here, mut others_ready, mut duration) = (0, 0, 0);
        for part in &parts {
            match &part.location {
                PartLocation::Here { op, plan, .. } => {
                    here += 1;
                    duration = plan.nanoseconds;
                    if let Some(view) = state.engine.view_at_end_of(*op) {
                        joined.join(&view);
                    }
                }
                PartLocation::Elsewhere(arrived) => {
                    if let Some(arrived) = arrived {
                        joined.join(&arrived.view);
                        others_ready = others_ready.max(arrived.ready);
                    }
                }
            }
        }
        let cost = Cost::Collective { call: id, ranks: here, others_ready, duration };
        for op in parts.iter().filter_map(Part::op) {
            state.engine.finish_after(op.stream, &joined, cost.clone());
        }
        state.forget_communicator_if_over(id.comm);
    }

    /// Ends a message that was moved, and the calls whose last message it was.
    fn finish_message(
        &self,
        state: &mut Locked<'_>,
        moving: Moving,
        outcome: Result<[Option<Touched>; 2], Failure>,
    ) {
        let touched = match outcome {
            Ok(touched) => touched,
            Err(failure) => return state.message_failed(&moving, &failure),
        };
        for id in state.message_moved(moving, touched) {
            let entry = state.nccl.communicators.get_mut(&id.comm);
            let Some(group) = entry.and_then(|entry| entry.traffic.transfer_groups.remove(&id)) else {
                continue;
            };
            let stream = group.op.stream;
            self.engine.note_touched(state.engine, stream, group.what().to_owned(), group.touched, false);
            let preset = state.engine.time.preset();
            let partners = group
                .partners
                .into_iter()
                .map(|(ticket, bytes)| (ticket, point_to_point(preset, bytes)))
                .collect();
            state.engine.finish_after(stream, &group.view, Cost::PointToPoint { partners });
        }
    }
}

/// Reads, combines and writes, block by block: a block is read from all its sources before it is written anywhere, which is
/// all that in-place buffers need.
fn move_pieces(
    pieces: &[Piece],
    reduction: Option<&Reduction>,
    memories: &mut Memories<'_>,
    send: &[Option<Source>],
    receive: &[Option<BufferLocation>],
) {
    let longest = pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0);
    let mut block = vec![0; longest.min(BLOCK) as usize];
    for piece in pieces {
        // What only ranks of other processes get, they make themselves.
        if piece.destinations.iter().all(|&(rank, _)| receive[rank].is_none()) {
            continue;
        }
        for start in (0..piece.bytes).step_by(BLOCK as usize) {
            let len = BLOCK.min(piece.bytes - start);
            let out = &mut block[..len as usize];
            let inputs: Vec<(usize, Cow<'_, [u8]>)> = piece
                .sources
                .iter()
                .filter_map(|&(rank, at)| {
                    let from = at + start;
                    Some((rank, send[rank].as_ref()?.bytes(memories, from..from + len)?))
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
    let Share { rank, device, request, call_site, .. } = share;
    let headline = format!("a buffer of rank {rank} was freed before its {} ran", request.function());
    let report =
        address_report(&headline, memory, address, bytes, *device).at(request.to_string(), call_site);
    Failure::announce(CudaStatus::IllegalAddress, &report)
}
