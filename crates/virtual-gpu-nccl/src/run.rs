//! Runs calls: reads, combines, and writes the ranks' data, on the thread that arrived last.

use super::buffer::{BufferLocation, PartShare, Share, Source};
use super::collective::{Part, PartLocation};
use super::internal;
use super::one_sided::Delivery;
use super::operation::{Operation, Piece, ReductionOrder};
use super::pieces::move_pieces;
use super::point_to_point::{End, Moving, MovingEnd};
use super::strict;
use super::transfer::Direction;
use super::{Guard, Locked, Nccl};
use virtual_gpu::engine::{Failure, Touched};
use virtual_gpu::order::View;
use virtual_gpu::time::Cost;
use virtual_gpu::time::tuning::point_to_point;
use virtual_gpu_core::handle::{CollectiveId, OneSidedId, PointToPointId, Rank};
use virtual_gpu_core::status::NcclResult;
use virtual_gpu_machine::reduction::Reduction;

/// The size in bytes below which a strict NCCL reduces along a tree.
const TREE: u64 = 64 << 10;

/// Work that can run now.
pub(crate) enum Job {
    /// A collective that every rank has reached.
    Collective(CollectiveId),
    /// Ranks of this process that have reached a collective and whose data other processes need.
    Arrivals(CollectiveId, Vec<Rank>),
    /// Point-to-point calls that a rank of this process has reached and that have ends in other processes.
    Ends(PointToPointId),
    /// Messages that the streams at both ends have reached.
    Messages(Vec<Moving>),
    /// One-sided calls that a rank of this process has reached.
    Signals(OneSidedId),
    /// A put or signal from another process.
    Delivery(Delivery),
}

/// The memory that each rank of a collective touched, or the reason why the collective failed.
type Outcome = Result<Vec<Vec<Touched>>, Failure>;

impl Nccl {
    /// Runs a job and lets the streams that waited for it continue.
    pub(crate) fn run(&self, job: Job) -> Guard<'_> {
        match job {
            Job::Collective(id) => {
                let outcome = self.execute_collective(id);
                let mut guard = self.lock();
                let finish = |outcome| self.finish_collective(&mut guard.locked(), id, outcome);
                internal::report(outcome.and_then(finish));
                guard
            }
            Job::Arrivals(id, ranks) => {
                for rank in ranks {
                    internal::report(self.publish_arrival(id, rank));
                }
                // If the call has failed in the meantime, its communicator may be gone.
                self.run_next(|state| {
                    Ok(state
                        .nccl
                        .communicators
                        .get_mut(&id.comm)
                        .and_then(|comm| comm.linked_collective(id.sequence)))
                })
            }
            Job::Ends(id) => {
                internal::report(self.publish_ends(id));
                self.run_next(|state| state.published_ends(id))
            }
            Job::Signals(id) => {
                internal::report(self.run_signals(id));
                self.lock()
            }
            Job::Delivery(delivery) => {
                internal::report(self.deliver(delivery));
                self.lock()
            }
            Job::Messages(messages) => {
                let outcomes: Vec<_> =
                    messages.into_iter().map(|moving| (self.execute_message(&moving), moving)).collect();
                let mut guard = self.lock();
                for (outcome, moving) in outcomes {
                    internal::report(self.finish_message(&mut guard.locked(), moving, outcome));
                }
                guard
            }
        }
    }

    /// Runs the work that a finished job has made ready.
    fn run_next(&self, next: impl FnOnce(&mut Locked<'_>) -> NcclResult<Option<Job>>) -> Guard<'_> {
        let mut guard = self.lock();
        let job = internal::report(next(&mut guard.locked()));
        match job {
            Some(job) => {
                drop(guard);
                self.run(job)
            }
            None => guard,
        }
    }

    /// # Errors
    /// Returns `InternalError` if there is no such call.
    fn execute_collective(&self, id: CollectiveId) -> NcclResult<Outcome> {
        let (operation, ranks, shares) = {
            let mut guard = self.lock();
            let state = guard.locked();
            let call = state.nccl.communicator(id.comm)?.call(id.sequence)?;
            // Every rank has arrived.
            let Some(first) = call.parts.values().flatten().next() else { return Ok(Ok(Vec::new())) };
            let shares = call.parts.iter().filter_map(|(rank, part)| Some((rank, part.as_ref()?)));
            let shares: Vec<_> = shares.map(|(rank, part)| Share::of_part(&state, rank, part)).collect();
            (first.operation, shares.len(), shares)
        };
        Ok(self.execute_shares(operation, ranks, shares))
    }

    /// Reads, combines, and writes the buffers of a collective's ranks.
    fn execute_shares(&self, operation: Operation, ranks: usize, shares: Vec<PartShare>) -> Outcome {
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
                let (location, touched) = self.find(&mut memories, &share, address, bytes, writes)?;
                own.push(touched);
                Ok(Some(location))
            };
            send.push(find(buffers.send, operation.given(share.rank, ranks), false)?.map(Source::Here));
            receive.push(find(buffers.receive, operation.got(share.rank, ranks), true)?);
            let (scale, read) = self.scale(&mut memories, &share, &operation, buffers.scale)?;
            own.extend(read);
            scales.push(scale);
            touched.push(own);
        }
        // NCCL uses the tree for small messages.
        let order = match strict::is_strict() {
            false => ReductionOrder::Ring,
            true if operation.bytes() < TREE => ReductionOrder::Chain,
            true => ReductionOrder::Switch,
        };
        let pieces = operation.pieces(ranks, order);
        let reduction = operation.operator().map(|operator| Reduction {
            data_type: operation.data_type,
            operator,
            ranks,
            scales,
        });
        move_pieces(pieces, reduction.as_ref(), &mut memories, &send.into(), &receive.into());
        Ok(touched)
    }

    /// Moves a message. Returns what it touched on each side.
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
                let (location, read) = self.find(&mut memories, &share, end.buffer, bytes, false)?;
                touched[0] = Some(read);
                Source::Here(location)
            }
            MovingEnd::Elsewhere(_, arrived) => Source::Elsewhere(arrived.clone()),
        };
        if let &MovingEnd::Here(ref end, device, enqueued) = receive {
            let share = share(end, Direction::Receive, (device, enqueued));
            let (location, written) = self.find(&mut memories, &share, end.buffer, bytes, true)?;
            (target, touched[1]) = (Some(location), Some(written));
        }
        // For this move, treat both ends as one rank.
        let only = Rank(0);
        let piece = Piece { sources: vec![(only, 0)], destinations: vec![(only, 0)], bytes };
        let (send, receive) = (vec![Some(source)].into(), vec![target].into());
        move_pieces(vec![piece], None, &mut memories, &send, &receive);
        Ok(touched)
    }

    /// Completes a collective that has run. Every rank's stream continues, ordered after everything that any rank's
    /// stream had done before.
    fn finish_collective(
        &self,
        state: &mut Locked<'_>,
        id: CollectiveId,
        outcome: Outcome,
    ) -> NcclResult<()> {
        let comm = state.nccl.communicator_mut(id.comm)?;
        let call = comm.take_call(id.sequence)?;
        if let Err(failure) = &outcome {
            comm.note_failure(failure);
        }
        let parts: Vec<Part> = call.parts.into_values().flatten().collect();
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
                    let what = part.operation.function();
                    self.engine.note_touched(state.engine, op.stream, what, touched, false, false);
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
                    // A stream that is gone adds nothing.
                    let _ = state.engine.add_view_at_end_of(*op, &mut joined);
                }
                PartLocation::Elsewhere(arrived) => {
                    if let Some(arrived) = arrived {
                        joined.join(&arrived.view);
                        others_ready = others_ready.max(arrived.ready);
                    }
                }
            }
        }
        joined.share();
        let cost = Cost::Collective { call: id, ranks: here, others_ready, duration };
        for op in parts.iter().filter_map(Part::op) {
            state.engine.finish_after(op.stream, &joined, cost.clone());
        }
        state.nccl.forget_communicator_if_over(id.comm)
    }

    /// Completes a message that has been moved, and the calls for which it was the last message.
    fn finish_message(
        &self,
        state: &mut Locked<'_>,
        moving: Moving,
        outcome: Result<[Option<Touched>; 2], Failure>,
    ) -> NcclResult<()> {
        let touched = match outcome {
            Ok(touched) => touched,
            Err(failure) => return state.message_failed(&moving, &failure),
        };
        for id in state.message_moved(moving, touched)? {
            let group = state.nccl.communicator_mut(id.comm)?.traffic.take_group(id)?;
            let stream = group.op.stream;
            self.engine.note_touched(state.engine, stream, group.what(), group.touched, false, false);
            let preset = state.engine.time.preset();
            let partners = group
                .partners
                .into_iter()
                .map(|(ticket, bytes)| (ticket, point_to_point(preset, bytes)))
                .collect();
            state.engine.finish_after(stream, &group.view, Cost::PointToPoint { partners });
        }
        Ok(())
    }
}
