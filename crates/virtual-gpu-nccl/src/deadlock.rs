//! The report about calls that can never complete.

use std::borrow::Cow;

use super::State;
use super::collective::Call;
use super::communicator::{Communicator, RankState};
use super::one_sided::PendingSignal;
use super::point_to_point::Pending;
use virtual_gpu::engine::{Deadlocked, Missing, State as EngineState};
use virtual_gpu::report::{Report, ranks};
use virtual_gpu_core::handle::{CallKey, OneSidedId, PointToPointId, Rank, SequenceNumber};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::thread::ThreadKey;

const EVERY_RANK: &str =
    "every rank must make every collective call: look for an error, an early return, or a condition";
const EVERY_RANK_OF_PARENT: &str = "every rank of the communicator must make this call; in a split, a rank that does not want a communicator passes NCCL_SPLIT_NOCOLOR; one thread with several ranks needs a group";
const EVERY_RANK_THAT_STAYS: &str = "every rank that is not excluded must make this call, with the same list; one thread with several ranks needs a group";
const EVERY_END: &str = "every send needs a receive on the other rank, and every receive a send: look for an error or a condition";
const EMPTY: &str = "a collective of zero elements returns immediately without waiting for other ranks: every rank must pass the same count";
const EVERY_SIGNAL: &str = "each ncclPutSignal and ncclSignal counts once: the other rank must make as many of them as all waits for it ask for together";
const CAUSE_FIRST: &str = "fix that failure first: its own report says where it is";
const TOGETHER: &str =
    "put sends and receives that need each other between one group_start and one group_end";

/// Reports which rank is waiting for which, for calls that were found deadlocked together.
pub(crate) fn deadlock_report(engine: &EngineState, nccl: &State, calls: &Deadlocked) -> Report {
    let lost = calls.iter().find_map(|call| nccl.communicator(call.comm()).ok()?.lost.as_ref());
    if let Some(lost) = lost {
        return explain(engine, nccl, calls, Report::new(&*lost.headline));
    }
    let management = calls.iter().any(|call| matches!(call, CallKey::Management(_)));
    let collective = calls.iter().any(|call| matches!(call, CallKey::Collective(_)));
    let point_to_point = calls.iter().any(|call| matches!(call, CallKey::PointToPoint(_)));
    let one_sided = calls.iter().any(|call| matches!(call, CallKey::OneSided(_)));
    let report = Report::new(match (collective, point_to_point, one_sided, management) {
        (true, false, false, false) => "deadlock: a collective that never completes",
        (false, true, false, false) => "deadlock: a send or receive that never completes",
        (false, false, true, false) => "deadlock: a wait for a signal that never comes",
        (false, false, false, _) => "deadlock: a call that every rank must make, but one rank never makes",
        _ => "deadlock: calls that never complete",
    });
    explain(engine, nccl, calls, report)
}

/// Adds which rank is waiting for which to a report.
fn explain(engine: &EngineState, nccl: &State, calls: &Deadlocked, report: Report) -> Report {
    let mut explanation = Explanation { report, help: None };
    for &call in calls {
        let comm = match nccl.communicator(call.comm()) {
            Ok(comm) => comm,
            Err(error) => {
                explanation.report = explanation.report.fact(&*error.message);
                continue;
            }
        };
        let snapshot = Snapshot { engine, comm };
        explanation = match call {
            CallKey::Collective(id) => explanation.collective(&snapshot, id.sequence),
            CallKey::Management(id) => explanation.management(&snapshot, id.sequence),
            CallKey::PointToPoint(id) => explanation.point_to_point(&snapshot, id),
            CallKey::OneSided(id) => explanation.one_sided(&snapshot, id),
        };
    }
    match explanation.help {
        Some(help) => explanation.report.help(help),
        None => explanation.report,
    }
}

/// The state of the communicator whose calls are being explained.
struct Snapshot<'a> {
    engine: &'a EngineState,
    comm: &'a Communicator,
}

/// A report that is being built, and the advice for its reader.
struct Explanation {
    report: Report,
    help: Option<&'static str>,
}

impl Explanation {
    fn collective(mut self, snapshot: &Snapshot<'_>, sequence: SequenceNumber) -> Self {
        let comm = snapshot.comm;
        let missing = comm.call(sequence).and_then(|call| Ok((call, comm.missing_ranks(sequence)?)));
        let (call, missing) = match missing {
            Ok(known) => known,
            Err(error) => return Self { report: self.report.fact(&*error.message), ..self },
        };
        self.report = waiting_ranks(comm, call, sequence, self.report);
        for (rank, missing) in missing {
            let (text, call_site, help) = snapshot.absence(call, rank, &missing);
            self.report = self.report.at(text, &call_site);
            if let Some((next, operation, call_site)) = &comm.ranks[rank].dropped
                && *next == sequence
            {
                let text = format!("rank {rank}: {operation}, which NCCL drops");
                self.report = self.report.at(text, call_site);
                self.help.get_or_insert(EMPTY);
            }
            self.help.get_or_insert(help);
            self = self.failed_before(comm, rank);
        }
        self
    }

    fn management(mut self, snapshot: &Snapshot<'_>, sequence: SequenceNumber) -> Self {
        let comm = snapshot.comm;
        self.report = comm.waiting_participants(sequence, self.report);
        for (rank, missing) in comm.absent(sequence) {
            let (where_it_is, call_site) = match missing {
                Missing::NotCalled(thread) | Missing::Handed { thread, .. } => {
                    snapshot.whereabouts(rank, thread)
                }
                _ => {
                    let (how, call_site) = departure(comm, rank);
                    (format!("it {how}"), call_site)
                }
            };
            self.report =
                self.report.at(format!("rank {rank} never makes the call: {where_it_is}"), &call_site);
            let function = comm.management_calls.get(&sequence).and_then(|call| call.function());
            self.help.get_or_insert(match function {
                Some("ncclCommShrink") => EVERY_RANK_THAT_STAYS,
                _ => EVERY_RANK_OF_PARENT,
            });
            self = self.failed_before(comm, rank);
        }
        self
    }

    fn point_to_point(mut self, snapshot: &Snapshot<'_>, id: PointToPointId) -> Self {
        for pending in snapshot.comm.pending(id) {
            let own = &pending.own;
            self.report =
                self.report.at(format!("rank {} waits in {}", id.rank, own.transfer), &own.call_site);
            let (text, call_site, help) = snapshot.other_end(&pending);
            self.report = self.report.at(text, &call_site);
            self.help.get_or_insert(help);
            let other = pending.key.rank(own.transfer.direction.other());
            self = self.failed_before(snapshot.comm, other);
        }
        self
    }

    fn one_sided(mut self, snapshot: &Snapshot<'_>, id: OneSidedId) -> Self {
        for pending in snapshot.comm.pending_signals(id) {
            let lacks = match pending.lacking {
                1 => "1 signal has not come".to_owned(),
                number => format!("{number} signals have not come"),
            };
            let text = format!("rank {} waits in {}: {lacks}", id.rank, pending.request);
            self.report = self.report.at(text, &pending.call_site);
            let (text, call_site, help) = snapshot.sender(&pending);
            self.report = self.report.at(text, &call_site);
            self.help.get_or_insert(help);
            self = self.failed_before(snapshot.comm, pending.from);
        }
        self
    }

    /// Adds the fact that a missing rank's GPU has failed, because this failure causes everything else.
    fn failed_before(mut self, comm: &Communicator, rank: Rank) -> Self {
        if let Some(failure) = &comm.ranks[rank].gpu_failure {
            self.help = Some(CAUSE_FIRST);
            self.report = self.report.fact(format!("rank {rank}'s GPU has failed before: {failure}"));
        }
        self
    }
}

fn waiting_ranks(comm: &Communicator, call: &Call, number: SequenceNumber, mut report: Report) -> Report {
    report = report.at(
        format!("collective {number} of the communicator of {} ranks", comm.ranks.len()),
        &comm.call_site,
    );
    let mut sides: Vec<(Vec<Rank>, String, &CallSite)> = Vec::new();
    for (rank, part) in call.parts.iter() {
        let Some(part) = part.as_ref().filter(|part| part.arrived && !part.canceled) else { continue };
        let text = part.operation.to_string();
        let line = part.call_site.line();
        match sides.iter_mut().find(|(_, other, call_site)| *other == text && call_site.line() == line) {
            Some((ranks, ..)) => ranks.push(rank),
            None => sides.push((vec![rank], text, &part.call_site)),
        }
    }
    for (of_side, text, call_site) in sides {
        let verb = if of_side.len() == 1 { "waits" } else { "wait" };
        report = report.at(format!("{} {verb} in {text}", ranks(&of_side)), call_site);
    }
    report
}

/// Returns how and where a rank left its communicator.
fn departure(comm: &Communicator, rank: Rank) -> (Cow<'static, str>, CallSite) {
    let RankState { left, canceled, .. } = &comm.ranks[rank];
    let canceled = canceled.as_ref().map(|(how, call_site)| ((*how).into(), call_site.clone()));
    canceled.or(left.clone()).unwrap_or(("has left".into(), CallSite::unknown()))
}

impl Snapshot<'_> {
    /// Returns where the thread that drives a rank is.
    fn whereabouts(&self, rank: Rank, thread: ThreadKey) -> (String, CallSite) {
        match self.comm.ranks[rank].process {
            Some(process) => (format!("process {} has not called it", process.pid), CallSite::unknown()),
            None => self.engine.whereabouts(thread),
        }
    }

    /// Returns why a rank does not reach a collective, and advice for the reader.
    fn absence(&self, call: &Call, rank: Rank, missing: &Missing) -> (String, CallSite, &'static str) {
        match missing {
            Missing::Gone => {
                let (how, call_site) = departure(self.comm, rank);
                match call.parts[rank].is_some() {
                    true => (
                        format!("rank {rank} has called it, but {how}"),
                        call_site,
                        "synchronize before you drop a Comm: dropping it aborts everything that is still in flight",
                    ),
                    false => (format!("rank {rank} never called it, and {how}"), call_site, EVERY_RANK),
                }
            }
            Missing::InStream(_) | Missing::Elsewhere => {
                let part = call.parts[rank].as_ref();
                let call_site = part.map_or_else(CallSite::unknown, |part| part.call_site.clone());
                let help = "call the collectives of all communicators in the same order on every rank";
                (
                    format!("rank {rank} has called it, but is stuck behind work that never completes"),
                    call_site,
                    help,
                )
            }
            Missing::NotCalled(thread) | Missing::Handed { thread, .. } => {
                let (where_it_is, call_site) = self.whereabouts(rank, *thread);
                let help = match where_it_is.contains("ended") {
                    true => {
                        "every rank must make every collective call: look for an early return or a condition"
                    }
                    false => {
                        "every rank must make the same calls in the same order; one thread with several ranks needs group_start and group_end"
                    }
                };
                (format!("rank {rank} never makes the call: {where_it_is}"), call_site, help)
            }
        }
    }

    /// Returns why the other end of a message does not arrive, and advice for the reader.
    fn other_end(&self, pending: &Pending) -> (String, CallSite, &'static str) {
        let Pending { key, own, other, missing } = pending;
        let direction = own.transfer.direction.other();
        let rank = key.rank(direction);
        let function = direction.function();
        match (missing, other) {
            (Missing::Gone, Some(other)) => {
                let RankState { left, canceled, .. } = &self.comm.ranks[rank];
                let canceled = canceled.as_ref().map(|(how, _)| (*how).into());
                let left = left.as_ref().map(|(how, _)| how.clone());
                let how = canceled.or(left).unwrap_or("that call has failed".into());
                (
                    format!("rank {rank} has called the matching {function}, but {how}"),
                    other.call_site.clone(),
                    EVERY_END,
                )
            }
            (Missing::Gone, None) => {
                let (how, call_site) = departure(self.comm, rank);
                (format!("rank {rank} never called the matching {function}, and {how}"), call_site, EVERY_END)
            }
            (Missing::InStream(_) | Missing::Elsewhere, other) => {
                let call_site = other.as_ref().map_or_else(CallSite::unknown, |end| end.call_site.clone());
                let text = format!(
                    "rank {rank} has called the matching {function}, but is stuck behind work that never completes"
                );
                (text, call_site, TOGETHER)
            }
            (Missing::NotCalled(thread) | Missing::Handed { thread, .. }, _) => {
                let (where_it_is, call_site) = self.whereabouts(rank, *thread);
                let help = if where_it_is.contains("ended") { EVERY_END } else { TOGETHER };
                (format!("rank {rank} never calls the matching {function}: {where_it_is}"), call_site, help)
            }
        }
    }

    /// Returns why the next signal does not come, and advice for the reader.
    fn sender(&self, pending: &PendingSignal) -> (String, CallSite, &'static str) {
        let rank = pending.from;
        match (&pending.missing, &pending.sender) {
            (Missing::InStream(_), Some((request, call_site))) => (
                format!("rank {rank} has called {request}, but is stuck behind work that never completes"),
                call_site.clone(),
                "a put or signal runs when its stream reaches it: look at what comes before it",
            ),
            (Missing::NotCalled(thread) | Missing::Handed { thread, .. }, _) => {
                let (where_it_is, call_site) = self.whereabouts(rank, *thread);
                (format!("rank {rank} never sends it: {where_it_is}"), call_site, EVERY_SIGNAL)
            }
            _ => {
                let (how, call_site) = departure(self.comm, rank);
                (format!("rank {rank} never sends it, and {how}"), call_site, EVERY_SIGNAL)
            }
        }
    }
}
