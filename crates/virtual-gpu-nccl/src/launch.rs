//! Launches a group's calls, or a single call: the rules for calls that are launched together, and their order.

use super::call::{Access, Checked, Request};
use super::communicator::Communicator;
use super::transfer::{Direction, Transfer};
use super::{Guard, Locked, Nccl, State};
use virtual_gpu::engine::Failure;
use virtual_gpu::report::{Report, ranks};
use virtual_gpu_core::handle::{CommId, Rank, StreamHandle};
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};
use virtual_gpu_core::thread::ThreadKey;

/// The calls that one rank of a communicator launches together.
pub(crate) struct Plan {
    pub(crate) comm: CommId,
    pub(crate) rank: Rank,
    pub(crate) streams: Vec<StreamHandle>,
    pub(crate) collectives: Vec<Checked>,
    pub(crate) transfers: Vec<Checked>,
    pub(crate) one_sided: Vec<Checked>,
}

impl Nccl {
    /// Enqueues calls on their streams and runs the calls that are ready.
    ///
    /// # Errors
    /// Returns `InvalidUsage` if this thread also drives a rank that the calls leave out (a call may block until all
    /// ranks have made it), if a rank sends to itself without receiving the message, or if one call in a group needs
    /// another call's result.
    pub(crate) fn launch_calls(&'static self, calls: Vec<Checked>, mut guard: Guard<'_>) -> NcclResult<()> {
        guard = self.connect_first_uses(&calls, guard)?;
        let usage = |failure: Failure| Error::new(NcclStatus::InvalidUsage, failure.report);
        let mut state = guard.locked();
        let blocking = state.nccl.are_blocking(&calls)?;
        if let Some(report) = state.left_behind(&calls).or_else(|| lonely_self_transfer(&calls)) {
            return Err(usage(Failure::announce(CudaStatus::LaunchTimeout, &report)));
        }
        let checks = self.engine.config().checks;
        if let Some(report) = dependency(&calls)
            && let Some(failure) = Failure::of_problem(CudaStatus::LaunchTimeout, &report, checks)
        {
            return Err(usage(failure));
        }
        if !blocking {
            state.nccl.start_progress(&calls);
        }
        for plan in plans(calls) {
            match plan.is_captured(state.engine)? {
                true => state.capture_plan(self, plan)?,
                false => state.enqueue_plan(plan)?,
            }
        }
        self.run_ready_and_unlock(guard);
        if blocking { Ok(()) } else { Err(NcclStatus::InProgress.into()) }
    }
}

/// Returns what each rank launches, in the order of the calls. Ranks of one communicator are adjacent, as in NCCL.
fn plans(calls: Vec<Checked>) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    for call in calls {
        let known = plans.iter().position(|plan| (plan.comm, plan.rank) == (call.comm, call.rank));
        let at = known.unwrap_or_else(|| {
            let sibling = plans.iter().rposition(|plan| plan.comm == call.comm);
            let at = sibling.map_or(plans.len(), |sibling| sibling + 1);
            let (comm, rank, streams) = (call.comm, call.rank, Vec::new());
            let (collectives, transfers, one_sided) = (Vec::new(), Vec::new(), Vec::new());
            let plan = Plan { comm, rank, streams, collectives, transfers, one_sided };
            plans.insert(at, plan);
            at
        });
        let plan = &mut plans[at];
        if !plan.streams.contains(&call.stream) {
            plan.streams.push(call.stream);
        }
        match call.request {
            Request::Collective(..) => plan.collectives.push(call),
            Request::Transfer(..) => plan.transfers.push(call),
            Request::OneSided(_) => plan.one_sided.push(call),
        }
    }
    plans
}

impl State {
    /// Returns whether these calls' communicators are blocking; either all of them are or none is.
    fn are_blocking(&self, calls: &[Checked]) -> NcclResult<bool> {
        // The communicator's last rank may have left inside the group. Enqueuing the call reports that.
        let of_call = |call: &Checked| {
            self.communicators.get(&call.comm).is_none_or(|comm| comm.ranks[call.rank].config.blocking)
        };
        let all_are = calls.iter().all(of_call);
        if !all_are && calls.iter().any(of_call) {
            let message = "blocking and nonblocking communicators can't share a group";
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        Ok(all_are)
    }

    /// Marks these calls' nonblocking communicators as in progress.
    fn start_progress(&mut self, calls: &[Checked]) {
        for call in calls {
            // The communicator's last rank may have left inside the group.
            if let Some(comm) = self.communicators.get_mut(&call.comm) {
                comm.ranks[call.rank].polls = 1;
            }
        }
    }
}

impl Locked<'_> {
    /// Enqueues collectives before point-to-point calls, and one-sided calls last. If the plan uses several streams, the
    /// entire plan waits for all of them and blocks all of them (User Guide, "Mixing Multiple Streams within the same
    /// ncclGroupStart/End() group").
    fn enqueue_plan(&mut self, plan: Plan) -> NcclResult<()> {
        let Plan { comm, rank, streams, collectives, transfers, one_sided } = plan;
        let first = collectives.iter().chain(&transfers).chain(&one_sided).next();
        let Some(call_site) = first.map(|call| call.call_site.clone()) else { return Ok(()) };
        let several = streams.len() > 1;
        let mut before = Vec::new();
        for &stream in streams.iter().filter(|_| several) {
            before.push(self.engine.enqueue_wait(stream, Vec::new(), call_site.clone())?);
        }
        for call in collectives {
            self.enqueue_collective(call, before.clone())?;
        }
        if !transfers.is_empty() {
            self.enqueue_transfers((comm, rank), transfers, before.clone())?;
        }
        if !one_sided.is_empty() {
            self.enqueue_one_sided((comm, rank), one_sided, before)?;
        }
        let mut ends = Vec::new();
        for &stream in streams.iter().filter(|_| several) {
            ends.push(self.engine.last_of(stream)?.1);
        }
        for &stream in streams.iter().filter(|_| several) {
            self.engine.enqueue_wait(stream, ends.clone(), call_site.clone())?;
        }
        Ok(())
    }

    /// Returns a report if these calls, launched together, leave out a rank that the same thread drives.
    ///
    /// NCCL: "every NCCL call may have to block, waiting for other threads/ranks to arrive" (User Guide, "Management Of
    /// Multiple GPUs From One Thread"). Whether a call blocks depends on what NCCL still has to set up.
    fn left_behind(&self, calls: &[Checked]) -> Option<Report> {
        let help = "call group_start before these ranks' calls, and group_end after all of them";
        calls.iter().find_map(|call| {
            // The communicator's last rank may have left inside the group. Enqueuing the call reports that.
            let comm = self.nccl.communicators.get(&call.comm)?;
            let missing = match &call.request {
                Request::Collective(..) => {
                    comm.behind_in_collectives(call, calls, self.engine.is_capturing(call.stream))
                }
                Request::Transfer(transfer, _) => comm.behind_in_transfers(call, transfer, calls),
                // A put needs nothing of its peer, and a wait blocks only its stream.
                Request::OneSided(_) => Vec::new(),
            };
            let verb = if missing.len() == 1 { "is" } else { "are" };
            (!missing.is_empty()).then(|| {
                let missing = ranks(&missing);
                Report::new(format!(
                    "deadlock: {missing} {verb} missing from a group, and one thread drives all the ranks"
                ))
                .at(format!("{} by rank {}", call.request, call.rank), &call.call_site)
                .fact(format!(
                    "NCCL may block the thread there until every rank has called, but {missing} can't call until then"
                ))
                .help(help)
            })
        })
    }
}

impl Communicator {
    /// Returns the ranks driven by this thread that have made fewer collective calls than `call`'s rank.
    fn behind_in_collectives(&self, call: &Checked, calls: &[Checked], is_captured: bool) -> Vec<Rank> {
        let issued = |rank: Rank| {
            let now = calls.iter().filter(|other| {
                matches!(other.request, Request::Collective(..))
                    && (other.comm, other.rank) == (call.comm, rank)
            });
            let entry = &self.ranks[rank];
            let before = if is_captured { entry.captured } else { entry.issued };
            before.0 + now.count() as u64
        };
        let own = issued(call.rank);
        let me = ThreadKey::current();
        let behind = |&rank: &Rank| {
            let other = &self.ranks[rank];
            other.is_driven_by(me) && issued(rank) < own
        };
        Rank::all(self.ranks.len()).filter(behind).collect()
    }

    /// Returns the peer of a send or receive if this thread drives it and has not called the other end.
    fn behind_in_transfers(&self, call: &Checked, transfer: &Transfer, calls: &[Checked]) -> Vec<Rank> {
        let peer = transfer.peer;
        let called = |rank: Rank, peer: Rank, direction: Direction| {
            let now = calls.iter().filter(|other| match other.request {
                Request::Transfer(other_transfer, _) => {
                    (other.comm, other.rank, other_transfer.peer, other_transfer.direction)
                        == (call.comm, rank, peer, direction)
                }
                Request::Collective(..) | Request::OneSided(_) => false,
            });
            self.traffic.called(rank, peer, direction) + now.count() as u64
        };
        let other = &self.ranks[peer];
        let is_behind = peer != call.rank
            && other.is_driven_by(ThreadKey::current())
            && called(peer, call.rank, transfer.direction.other())
                < called(call.rank, peer, transfer.direction);
        if is_behind { vec![peer] } else { Vec::new() }
    }
}

/// Returns a report if a rank sends to itself without receiving in the same group, or vice versa.
fn lonely_self_transfer(calls: &[Checked]) -> Option<Report> {
    let to_self = |call: &&Checked| matches!(call.request, Request::Transfer(transfer, _) if transfer.peer == call.rank);
    let is_sent = |call: &Checked| matches!(call.request, Request::Transfer(transfer, _) if transfer.direction == Direction::Send);
    calls.iter().filter(to_self).find_map(|call| {
        let same = |other: &&Checked| (other.comm, other.rank) == (call.comm, call.rank);
        let (sends, receives): (Vec<_>, Vec<_>) =
            calls.iter().filter(to_self).filter(same).partition(|call| is_sent(call));
        if sends.len() == receives.len() {
            return None;
        }
        let rank = call.rank;
        let (more, what, missing) = match sends.len() > receives.len() {
            true => (&sends, "sends to itself", "ncclRecv"),
            false => (&receives, "receives from itself", "ncclSend"),
        };
        let headline = format!("rank {rank} {what} without a matching {missing} in the same group");
        let report = Report::new(headline).at(more[0].request.to_string(), &more[0].call_site).help(format!(
            "if rank {rank} is the right peer here, make both calls between the same group_start and group_end"
        ));
        Some(report)
    })
}

/// Returns a report if one of two calls that a rank launches together needs bytes that the other one writes. The two
/// calls are one operation, so they have no order.
fn dependency(calls: &[Checked]) -> Option<Report> {
    if calls.len() < 2 {
        return None;
    }
    let of_call = |call: &Checked| call.request.accesses(call.rank, call.world_size);
    let mut accesses: Vec<(Access, &Checked)> =
        calls.iter().flat_map(|call| of_call(call).map(move |access| (access, call))).collect();
    accesses.sort_by_key(|(access, _)| access.address);
    for (at, (access, call)) in accesses.iter().enumerate() {
        let overlapping =
            accesses[at + 1..].iter().take_while(|(next, _)| next.address < access.address + access.bytes);
        for (other, other_call) in overlapping {
            let together = (call.comm, call.rank) == (other_call.comm, other_call.rank);
            if together
                && !std::ptr::eq(*call, *other_call)
                && (access.writes || other.writes)
                && !is_self_in_place(call, other_call)
            {
                return Some(dependency_report(&[(access, call), (other, other_call)], calls));
            }
        }
    }
    None
}

/// Returns whether a rank sends a buffer to itself in place. This is allowed because nothing moves.
fn is_self_in_place(one: &Checked, other: &Checked) -> bool {
    match (one.request, other.request) {
        (Request::Transfer(one_transfer, address), Request::Transfer(other_transfer, other_address)) => {
            one_transfer.peer == one.rank
                && one_transfer.peer == other_transfer.peer
                && one_transfer.direction != other_transfer.direction
                && address == other_address
        }
        _ => false,
    }
}

fn dependency_report(sides: &[(&Access, &Checked); 2], calls: &[Checked]) -> Report {
    let mut sides = *sides;
    let index = |side: &Checked| calls.iter().position(|call| std::ptr::eq(call, side));
    sides.sort_by_key(|(_, call)| index(call));
    let mut report = Report::new(format!(
        "two calls by rank {} in one group touch the same bytes, but nothing orders them",
        sides[0].1.rank
    ));
    for (access, call) in sides {
        let verb = if access.writes { "written" } else { "read" };
        report = report.at(format!("{verb} by {}", call.request), &call.call_site);
    }
    let help = match sides.iter().all(|(access, _)| access.writes) {
        true => "let each call write to a range of its own",
        false => "end the group after the first call, and start another group for the second",
    };
    report
        .fact("a group's calls are one operation: NCCL may run them together or in another order")
        .help(help)
}
