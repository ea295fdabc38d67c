//! The report of calls that can never be complete.

use std::borrow::Cow;

use super::assembly::waiting_attendees;
use super::call::{CallKey, Missing};
use super::collective::CollectiveKey;
use super::exchange::Pending;
use crate::engine::{Hopeless, State};
use crate::report::{Report, ranks};
use virtual_gpu_core::source_location::Site;
use virtual_gpu_core::thread::ThreadKey;

const EVERY_RANK: &str =
    "every rank must make every collective call: look for an error, an early return or a condition";
const EVERY_RANK_OF_PARENT: &str = "every rank of the communicator must make this call; in a split, one that wants no communicator gives NCCL_SPLIT_NOCOLOR; one thread with several ranks needs a group";
const EVERY_END: &str = "every send needs a receive on the other rank, and every receive a send: look for an error or a condition";
const EMPTY: &str =
    "a collective of no elements returns at once and waits for nobody: every rank must give the same count";
const CAUSE_FIRST: &str = "mend that failure first: its own report says where it is";
const TOGETHER: &str =
    "put sends and receives that need each other between one group_start and one group_end";

/// Who waits for whom, for calls that were found hopeless together.
pub(crate) fn deadlock_report(state: &State, calls: &Hopeless) -> Report {
    let assembly = calls.iter().any(|key| matches!(key, CallKey::Assembly { .. }));
    let collective = calls.iter().any(|key| matches!(key, CallKey::Collective { .. }));
    let exchange = calls.iter().any(|key| matches!(key, CallKey::Exchange { .. }));
    let report = Report::new(match (collective, exchange, assembly) {
        (true, false, false) => "deadlock: a collective that never completes",
        (false, true, false) => "deadlock: a send or receive that never completes",
        (false, false, _) => "deadlock: a call of all ranks to which one never comes",
        _ => "deadlock: calls that never complete",
    });
    explain(state, calls, report)
}

/// Adds who waits for whom to a report.
pub(super) fn explain(state: &State, calls: &Hopeless, mut report: Report) -> Report {
    let mut help = None;
    for &key in calls {
        match key {
            CallKey::Collective { clique, number } => {
                report = waiting_ranks(state, (clique, number), report);
                for (rank, missing) in state.nccl.missing_ranks((clique, number)) {
                    let (text, site, mend) = absence(state, (clique, number), rank, &missing);
                    report = report.at(text, &site);
                    let dropped = state.nccl.cliques.get(&clique).map(|clique| &clique.ranks[rank].dropped);
                    if let Some(Some((next, operation, site))) = dropped
                        && *next == number
                    {
                        report = report.at(format!("rank {rank}: {operation}, which NCCL drops"), site);
                        help.get_or_insert(EMPTY);
                    }
                    help.get_or_insert(mend);
                    report = failed_before(state, clique, rank, report, &mut help);
                }
            }
            CallKey::Assembly { clique, number } => {
                report = waiting_attendees(state, (clique, number), report);
                for (rank, missing) in state.nccl.absent((clique, number)) {
                    let (where_it_is, site) = match missing {
                        Missing::NotCalled(thread) | Missing::Handed { thread, .. } => {
                            whereabouts(state, clique, rank, thread)
                        }
                        _ => {
                            let (how, site) = departure(state, clique, rank);
                            (format!("it {how}"), site)
                        }
                    };
                    report = report.at(format!("rank {rank} never comes: {where_it_is}"), &site);
                    help.get_or_insert(EVERY_RANK_OF_PARENT);
                    report = failed_before(state, clique, rank, report, &mut help);
                }
            }
            CallKey::Exchange { clique, rank, number } => {
                for pending in state.nccl.pending(clique, (rank, number)) {
                    report = report
                        .at(format!("rank {rank} waits in {}", pending.own.transfer), &pending.own.site);
                    let (text, site, mend) = other_end(state, &pending);
                    report = report.at(text, &site);
                    help.get_or_insert(mend);
                    let other = pending.key.rank(pending.own.transfer.direction.other());
                    report = failed_before(state, clique, other, report, &mut help);
                }
            }
        }
    }
    match help {
        Some(help) => report.help(help),
        None => report,
    }
}

/// Adds that a missing rank's GPU has failed: the rest follows from it.
fn failed_before(
    state: &State,
    clique: u64,
    rank: usize,
    report: Report,
    help: &mut Option<&'static str>,
) -> Report {
    let failure = state.nccl.cliques.get(&clique).and_then(|clique| clique.ranks[rank].gpu_failure.as_ref());
    let Some(failure) = failure else { return report };
    *help = Some(CAUSE_FIRST);
    report.fact(format!("rank {rank}'s GPU has failed before: {failure}"))
}

fn waiting_ranks(state: &State, key: CollectiveKey, mut report: Report) -> Report {
    let (Some(clique), Some(call)) = (state.nccl.cliques.get(&key.0), state.nccl.call(key)) else {
        return report;
    };
    let number = key.1;
    report = report
        .at(format!("collective {number} of the communicator of {} ranks", clique.ranks.len()), &clique.site);
    let mut sides: Vec<(Vec<usize>, String, &Site)> = Vec::new();
    for (rank, part) in call.parts.iter().enumerate() {
        let Some(part) = part.as_ref().filter(|part| part.arrived && !part.cancelled) else { continue };
        let text = part.operation.to_string();
        let line = part.site.line();
        match sides.iter_mut().find(|(_, other, site)| *other == text && site.line() == line) {
            Some((ranks, ..)) => ranks.push(rank),
            None => sides.push((vec![rank], text, &part.site)),
        }
    }
    for (of_side, text, site) in sides {
        let verb = if of_side.len() == 1 { "waits" } else { "wait" };
        report = report.at(format!("{} {verb} in {text}", ranks(&of_side)), site);
    }
    report
}

/// How and where a rank left its clique.
fn departure(state: &State, clique: u64, rank: usize) -> (Cow<'static, str>, Site) {
    let clique = state.nccl.cliques.get(&clique);
    let left = clique.and_then(|clique| clique.ranks[rank].left.clone());
    left.unwrap_or(("has left".into(), Site::unknown()))
}

/// Where the thread is that drives a rank.
fn whereabouts(state: &State, clique: u64, rank: usize, thread: ThreadKey) -> (String, Site) {
    let process = state.nccl.cliques.get(&clique).and_then(|clique| clique.ranks[rank].process);
    match process {
        Some(process) => (format!("process {} has not called it", process.pid), Site::unknown()),
        None => state.whereabouts(thread),
    }
}

/// Why one rank does not come to a collective, and what would mend it.
fn absence(
    state: &State,
    key: CollectiveKey,
    rank: usize,
    missing: &Missing,
) -> (String, Site, &'static str) {
    match missing {
        Missing::Gone => {
            let (how, site) = departure(state, key.0, rank);
            match state.nccl.call(key).is_some_and(|call| call.parts[rank].is_some()) {
                true => (
                    format!("rank {rank} has called it, but {how}"),
                    site,
                    "synchronise before a Comm is dropped: that aborts what it still has in flight",
                ),
                false => (format!("rank {rank} never called it, and {how}"), site, EVERY_RANK),
            }
        }
        Missing::InStream(_) | Missing::Elsewhere => {
            let call = state.nccl.call(key).and_then(|call| call.parts[rank].as_ref());
            let site = call.map_or_else(Site::unknown, |part| part.site.clone());
            let mend = "make the collectives of all communicators in one order on every rank";
            (format!("rank {rank} has called it, behind work that never completes"), site, mend)
        }
        Missing::NotCalled(thread) | Missing::Handed { thread, .. } => {
            let (where_it_is, site) = whereabouts(state, key.0, rank, *thread);
            let mend = match where_it_is.contains("ended") {
                true => "every rank must make every collective call: look for an early return or a condition",
                false => {
                    "every rank must make the same calls in the same order; one thread with several ranks needs group_start and group_end"
                }
            };
            (format!("rank {rank} never comes: {where_it_is}"), site, mend)
        }
    }
}

/// Why the other end of a message does not come, and what would mend it.
fn other_end(state: &State, pending: &Pending) -> (String, Site, &'static str) {
    let Pending { key, own, other, missing } = pending;
    let direction = own.transfer.direction.other();
    let rank = key.rank(direction);
    let function = direction.function();
    match (missing, other) {
        (Missing::Gone, Some(other)) => {
            let left = state.nccl.cliques.get(&key.clique).and_then(|clique| clique.ranks[rank].left.clone());
            let (how, _) = left.unwrap_or(("that call has failed".into(), Site::unknown()));
            (
                format!("rank {rank} has called the {function} for it, but {how}"),
                other.site.clone(),
                EVERY_END,
            )
        }
        (Missing::Gone, None) => {
            let (how, site) = departure(state, key.clique, rank);
            (format!("rank {rank} never called the {function} for it, and {how}"), site, EVERY_END)
        }
        (Missing::InStream(_) | Missing::Elsewhere, other) => {
            let site = other.as_ref().map_or_else(Site::unknown, |end| end.site.clone());
            let text =
                format!("rank {rank} has called the {function} for it, behind work that never completes");
            (text, site, TOGETHER)
        }
        (Missing::NotCalled(thread) | Missing::Handed { thread, .. }, _) => {
            let (where_it_is, site) = whereabouts(state, key.clique, rank, *thread);
            let mend = if where_it_is.contains("ended") { EVERY_END } else { TOGETHER };
            (format!("rank {rank} never calls the {function} for it: {where_it_is}"), site, mend)
        }
    }
}
