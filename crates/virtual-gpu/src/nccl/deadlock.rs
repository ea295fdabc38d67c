//! The report of a collective that can never be complete.

use super::call::{CallKey, Missing};
use crate::engine::{Hopeless, State};
use crate::report::{Report, ranks};
use crate::site::Site;

/// Who waits for whom, for collectives that were found hopeless together.
pub(crate) fn deadlock_report(state: &State, calls: &Hopeless) -> Report {
    let mut report = Report::new("deadlock: a collective that never completes");
    let mut help = None;
    for &key in calls {
        report = waiting_side(state, key, report);
        for (rank, missing) in state.nccl.missing_ranks(key) {
            let (text, site, mend) = absence(state, key, rank, &missing);
            report = report.at(text, &site);
            help.get_or_insert(mend);
        }
    }
    match help {
        Some(help) => report.help(help),
        None => report,
    }
}

fn waiting_side(state: &State, key: CallKey, mut report: Report) -> Report {
    let (Some(clique), Some(call)) = (state.nccl.clique(key), state.nccl.call(key)) else { return report };
    let number = key.number;
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

/// Why one rank does not come, and what would mend it.
fn absence(state: &State, key: CallKey, rank: usize, missing: &Missing) -> (String, Site, &'static str) {
    match missing {
        Missing::Gone => {
            let left = state.nccl.clique(key).and_then(|clique| clique.ranks[rank].left.clone());
            let (how, site) = left.unwrap_or(("has left", Site::unknown()));
            match state.nccl.call(key).is_some_and(|call| call.parts[rank].is_some()) {
                true => (
                    format!("rank {rank} has called it, but {how}"),
                    site,
                    "synchronise before a Comm is dropped: that aborts what it still has in flight",
                ),
                false => (
                    format!("rank {rank} never called it, and {how}"),
                    site,
                    "every rank must make every collective call: look for an error, an early return or a condition",
                ),
            }
        }
        Missing::InStream(_) => {
            let call = state.nccl.call(key).and_then(|call| call.parts[rank].as_ref());
            let site = call.map_or_else(Site::unknown, |part| part.site.clone());
            let mend = "make the collectives of all communicators in one order on every rank";
            (format!("rank {rank} has called it, behind work that never completes"), site, mend)
        }
        Missing::NotCalled(thread) => {
            let (where_it_is, site) = state.whereabouts(*thread);
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
