//! Checks for `scale/postmortem`: twenty recorded incidents, as they are and with other numbers and names.
//!
//! The incidents are recordings of programs on the virtual GPU, so the checks need no GPU.

mod recorded;

use std::collections::BTreeSet;

use lab::flight_recorder::{Call, Entry, Incident, State};
use lab::{Check, ensure, named_ranks};

use crate::scale::postmortem::{Cause, Verdict, awaited, diagnose, odd_ones, waits_in};
use recorded::Case;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("postmortem::a_rank_waits_in_its_first_unfinished_call", first_unfinished_call)
            .calls(&["waits_in"]),
        Check::new("postmortem::a_rank_that_waits_elsewhere_is_awaited", a_rank_elsewhere_is_awaited)
            .calls(&["awaited"]),
        Check::new("postmortem::a_rank_that_is_done_is_not_awaited", a_rank_that_is_done_is_not_awaited)
            .calls(&["awaited"]),
        Check::new("postmortem::the_odd_ones_differ_from_most", the_odd_ones_differ_from_most)
            .calls(&["odd_ones"]),
        Check::new("postmortem::each_incident_is_explained", || each_is_explained(recorded::all()?))
            .calls(&["diagnose"]),
        Check::new("postmortem::numbers_and_names_do_not_matter", || each_is_explained(recorded::renamed()?))
            .calls(&["diagnose"]),
        Check::new("postmortem::an_error_of_a_victim_is_no_cause", an_error_of_a_victim_is_no_cause)
            .calls(&["diagnose"]),
        Check::new("postmortem::a_call_in_progress_is_no_cause", a_call_in_progress_is_no_cause)
            .calls(&["diagnose"]),
    ]
}

impl Case {
    /// Returns the name, and where the files are.
    fn title(&self) -> String {
        format!("{}{} (tests/06_scale/incidents/{0})", self.name, self.variant)
    }
}

/// Returns every incident in every form.
fn all_forms() -> anyhow::Result<Vec<Case>> {
    let mut cases = recorded::all()?;
    cases.extend(recorded::renamed()?);
    Ok(cases)
}

/// Returns the call in which a rank waits.
fn waits(incident: &Incident, rank: usize) -> Option<Call> {
    let entries = incident.entries(rank);
    let first = entries.iter().position(|entry| entry.state != State::Completed)?;
    Some(entries[first].call())
}

/// Returns the ranks that a call waits for.
fn missing(incident: &Incident, call: &Call) -> BTreeSet<usize> {
    let mut ranks = incident.members(call);
    ranks.retain(|&rank| waits(incident, rank).as_ref() != Some(call) && !incident.has_completed(rank, call));
    ranks
}

fn shown(call: Option<&Call>) -> String {
    call.map_or("no call".to_owned(), |call| format!("{call}"))
}

fn ranks_shown(ranks: &BTreeSet<usize>) -> String {
    match ranks.is_empty() {
        true => "no rank".to_owned(),
        false => named_ranks(&ranks.iter().copied().collect::<Vec<_>>()),
    }
}

fn verdict_shown(verdict: &Verdict) -> String {
    let calls: Vec<String> = verdict.calls.iter().map(Call::to_string).collect();
    format!("{:?} on {}, in {}", verdict.cause, ranks_shown(&verdict.ranks), calls.join(", "))
}

fn first_unfinished_call() -> anyhow::Result<()> {
    for case in all_forms()? {
        let incident = &case.incident;
        for rank in 0..incident.world_size() {
            let (got, right) = (waits_in(incident, rank), waits(incident, rank));
            let entries = incident.entries(rank);
            let last = entries.last().map(Entry::call);
            let started = entries.iter().find(|entry| entry.state == State::Started).map(Entry::call);
            let cause = if got == right {
                ""
            } else if right.is_none() {
                "\n  likely cause: each call in its dump is completed"
            } else if got.as_ref().is_some_and(|call| incident.has_completed(rank, call)) {
                "\n  likely cause: its GPU has completed this call"
            } else if got == last {
                "\n  likely cause: this is its last call, but its GPU has not completed an earlier one"
            } else if got == started {
                "\n  likely cause: a call that is scheduled is not completed either"
            } else {
                ""
            };
            ensure!(
                got == right,
                "rank {rank} in {}\n  expected {}, got {}{cause}\n{}",
                case.title(),
                shown(right.as_ref()),
                shown(got.as_ref()),
                incident.table()
            );
        }
    }
    Ok(())
}

fn a_rank_elsewhere_is_awaited() -> anyhow::Result<()> {
    for case in all_forms()? {
        let incident = &case.incident;
        let calls: BTreeSet<Call> =
            (0..incident.world_size()).filter_map(|rank| waits(incident, rank)).collect();
        for call in calls {
            compare_awaited(&case, &call)?;
        }
    }
    Ok(())
}

fn compare_awaited(case: &Case, call: &Call) -> anyhow::Result<()> {
    let incident = &case.incident;
    let (got, right) = (awaited(incident, call), missing(incident, call));
    let members = incident.members(call);
    let has_entry = |rank: &&usize| incident.entry(**rank, call).is_some();
    let without_entry: BTreeSet<usize> = members.iter().filter(|rank| !has_entry(rank)).copied().collect();
    let here = |rank: &&usize| waits(incident, **rank).as_ref() == Some(call);
    let cause = if got == right {
        String::new()
    } else if let Some(rank) = got.iter().find(|rank| !members.contains(rank)) {
        format!("\n  likely cause: rank {rank} has no part in this call")
    } else if let Some(rank) = got.iter().find(here) {
        format!("\n  likely cause: rank {rank} waits in this call itself")
    } else if let Some(rank) = got.iter().find(|rank| !right.contains(rank)) {
        format!("\n  likely cause: rank {rank} has completed this call")
    } else if let Some(rank) = right.iter().find(|rank| waits(incident, **rank).is_none()) {
        format!("\n  likely cause: rank {rank} is left out, because it waits in no call")
    } else if got == without_entry {
        "\n  likely cause: a rank with an entry for this call has not come to it, if it waits in another one"
            .to_owned()
    } else {
        String::new()
    };
    ensure!(
        got == right,
        "{call} in {}\n  expected to wait for {}, got {}{cause}\n{}",
        case.title(),
        ranks_shown(&right),
        ranks_shown(&got),
        incident.table()
    );
    Ok(())
}

/// Edits a recording: rank 0 is the root of the broadcast in which the others wait, and has sent all of its data.
/// NCCL allows it to go on.
fn with_an_early_root() -> anyhow::Result<(Case, Call)> {
    let mut case = recorded::all()?.remove(0);
    let mut call = None;
    for dump in case.incident.dumps.iter_mut().flatten() {
        if let Some(entry) = dump.entries.iter_mut().find(|entry| entry.state != State::Completed) {
            entry.profiling_name = "nccl:broadcast".to_owned();
            call = Some(entry.call());
        }
    }
    if let Some(root) = &mut case.incident.dumps[0]
        && let Some(mut next) = root.entries.last().cloned()
    {
        for entry in &mut root.entries {
            entry.state = State::Completed;
        }
        for status in root.pg_status.values_mut() {
            status.last_completed_collective.clone_from(&status.last_enqueued_collective);
            status.last_enqueued_collective = (next.collective_seq_id + 1).to_string();
        }
        next.record_id += 1;
        next.collective_seq_id += 1;
        next.op_id += 1;
        next.profiling_name = "nccl:all_reduce".to_owned();
        root.entries.push(next);
    }
    case.variant = ", edited so that rank 0 has completed the call as a root";
    let call = call.ok_or_else(|| anyhow::anyhow!("the recording has no call that is not completed"))?;
    Ok((case, call))
}

fn a_rank_that_is_done_is_not_awaited() -> anyhow::Result<()> {
    let (case, call) = with_an_early_root()?;
    compare_awaited(&case, &call)?;
    // Its entry has been overwritten since.
    let mut case = case;
    if let Some(root) = &mut case.incident.dumps[0] {
        root.entries.retain(|entry| entry.state != State::Completed);
    }
    compare_awaited(&case, &call)
}

fn the_odd_ones_differ_from_most() -> anyhow::Result<()> {
    let cases: [(&[&str], &[usize]); 10] = [
        (&[], &[]),
        (&["a"], &[]),
        (&["a", "a", "a"], &[]),
        (&["b", "a", "a"], &[0]),
        (&["a", "b", "a", "a", "c"], &[1, 4]),
        (&["a", "b"], &[0, 1]),
        (&["a", "a", "b", "b"], &[0, 1, 2, 3]),
        (&["a", "a", "b", "c"], &[0, 1, 2, 3]),
        (&["b", "b", "a", "a", "a"], &[0, 1]),
        (&["c", "b", "a", "b", "b", "a", "b"], &[0, 2, 5]),
    ];
    for (values, right) in cases {
        // The numbers of the ranks are not those of their places.
        let values: Vec<(usize, &str)> =
            values.iter().enumerate().map(|(at, &value)| (2 * at + 1, value)).collect();
        let right: BTreeSet<usize> = right.iter().map(|at| 2 * at + 1).collect();
        let got = odd_ones(&values);
        let differ_from = |one: Option<&(usize, &str)>| -> BTreeSet<usize> {
            let (others, one) = (values.iter(), one.map(|(_, value)| *value));
            others.filter(|(_, value)| Some(*value) != one).map(|(rank, _)| *rank).collect()
        };
        let agreeing: BTreeSet<usize> =
            values.iter().map(|(rank, _)| *rank).filter(|rank| !right.contains(rank)).collect();
        let places: BTreeSet<usize> = right.iter().map(|rank| rank / 2).collect();
        let has_majority = right.len() < values.len();
        let all = values.len();
        let cause = if got == right {
            ""
        } else if got == places {
            "\n  likely cause: these are places in the list, not ranks"
        } else if !has_majority && got.is_empty() {
            "\n  likely cause: without a majority, no rank is known to be right"
        } else if !has_majority && got.len() < all {
            "\n  likely cause: no value belongs to more than half of the ranks"
        } else if got == differ_from(values.first()) {
            "\n  likely cause: they differ from the first rank, which may be the odd one itself"
        } else if got == differ_from(values.last()) {
            "\n  likely cause: they differ from the last rank, which may be the odd one itself"
        } else if got == agreeing {
            "\n  likely cause: these are the ranks that have the value of most ranks"
        } else {
            ""
        };
        ensure!(
            got == right,
            "with the values {values:?}, each after its rank\n  expected {}, got {}{cause}",
            ranks_shown(&right),
            ranks_shown(&got)
        );
    }
    Ok(())
}

fn each_is_explained(cases: Vec<Case>) -> anyhow::Result<()> {
    cases.iter().try_for_each(explained)
}

/// Compares a verdict. A wrong one is not told the right one: the table has what is needed to find it.
fn explained(case: &Case) -> anyhow::Result<()> {
    let got = diagnose(&case.incident);
    ensure!(
        got == case.verdict,
        "the verdict is wrong for {}\n  got {}{}\n{}",
        case.title(),
        got.as_ref().map_or("None".to_owned(), verdict_shown),
        doubt(&case.incident, got.as_ref(), case.verdict.as_ref())
            .map_or_else(String::new, |doubt| format!("\n  but {doubt}")),
        case.incident.table()
    );
    Ok(())
}

/// Returns a fact that contradicts a wrong verdict.
fn doubt(incident: &Incident, got: Option<&Verdict>, right: Option<&Verdict>) -> Option<String> {
    let Some(right) = right else {
        return Some("each call in these dumps is completed, so no rank has stopped the job".to_owned());
    };
    let Some(got) = got else {
        return Some("ranks wait in calls that are not completed".to_owned());
    };
    match right.cause {
        Cause::Missing | Cause::Failed => doubt_of_absent(incident, got, right),
        Cause::Deadlock => doubt_of_deadlock(incident, got, right),
        _ => doubt_of_difference(incident, got, right),
    }
    .or_else(|| {
        (got.ranks == right.ranks && got.calls == right.calls)
            .then(|| format!("the cause is not {:?}", got.cause))
    })
}

/// Contradicts a verdict about ranks that are awaited and wait in no call, or with which NCCL failed.
fn doubt_of_absent(incident: &Incident, got: &Verdict, right: &Verdict) -> Option<String> {
    if right.calls.iter().any(|call| missing(incident, call).is_empty()) {
        return doubt_of_difference(incident, got, right);
    }
    if let Some((rank, call)) = got.ranks.iter().find_map(|&rank| Some((rank, waits(incident, rank)?))) {
        return Some(format!("rank {rank} waits itself, in {call}: look for the ranks that it waits for"));
    }
    if let Some(rank) = right.ranks.difference(&got.ranks).next() {
        return Some(format!("rank {rank} is awaited too, and waits in no call"));
    }
    if got.cause != right.cause {
        return Some(match right.cause {
            Cause::Failed => "the log has an error of one of these ranks".to_owned(),
            _ => format!("the log has no error of these ranks, so the cause is not {:?}", got.cause),
        });
    }
    if let Some(call) = got.calls.difference(&right.calls).next() {
        return Some(match missing(incident, call).difference(&right.ranks).next() {
            Some(rank) => format!("{call} also waits for rank {rank}"),
            None => format!("{call} waits for no rank"),
        });
    }
    let other = right.calls.difference(&got.calls).next()?;
    Some(format!("{other} waits for these ranks only, too"))
}

fn doubt_of_deadlock(incident: &Incident, got: &Verdict, right: &Verdict) -> Option<String> {
    if !matches!(got.cause, Cause::Deadlock) {
        let absent = got.calls.iter().find(|call| !missing(incident, call).is_empty());
        return match (got.cause, absent) {
            (Cause::Missing | Cause::Failed, _) => {
                let rank = got.ranks.iter().find(|rank| waits(incident, **rank).is_some())?;
                Some(format!("rank {rank} is not absent: it waits in another call"))
            }
            (_, Some(call)) => Some(format!("not all ranks have come to {call}")),
            _ => None,
        };
    }
    if got.ranks == right.ranks {
        return Some("`calls` are those in which these ranks wait".to_owned());
    }
    let held = |rank: usize| {
        let mut others = (0..incident.world_size()).filter_map(|other| waits(incident, other));
        others.any(|call| missing(incident, &call).contains(&rank))
    };
    let rank = got.ranks.iter().find(|rank| !held(**rank))?;
    Some(format!("no rank waits for rank {rank}, so it is not part of the deadlock"))
}

/// Contradicts a verdict about a call to which all ranks have come.
fn doubt_of_difference(incident: &Incident, got: &Verdict, right: &Verdict) -> Option<String> {
    let call = right.calls.iter().find(|call| missing(incident, call).is_empty())?;
    if got.calls != right.calls {
        return Some(format!("all ranks of {call} wait in it, so they wait for no other rank"));
    }
    let rank = got.ranks.difference(&right.ranks).next()?;
    Some(match right.cause {
        Cause::Failed => format!("the log has no error of rank {rank}"),
        Cause::NotStarted => format!("the GPU of rank {rank} has begun the call"),
        _ => format!("rank {rank} does what most ranks do"),
    })
}

/// Adds an error to the log of a rank that only waits: a program that catches the timeout may print one.
fn an_error_of_a_victim_is_no_cause() -> anyhow::Result<()> {
    for mut case in recorded::all()? {
        let is_absent = matches!(case.verdict.as_ref().map(|verdict| verdict.cause), Some(Cause::Missing));
        let Some(victim) = (0..8).find(|&rank| waits(&case.incident, rank).is_some()) else { continue };
        if is_absent {
            case.incident.logs[victim].push("Error: the training has stopped: timeout".to_owned());
            case.variant = ", edited so that a rank that waits has an error in its log";
            explained(&case)?;
        }
    }
    Ok(())
}

/// Edits a recording: when the dumps were written, the ranks of one pair had just begun a call.
fn a_call_in_progress_is_no_cause() -> anyhow::Result<()> {
    let Some(mut case) = recorded::all()?.into_iter().find(|case| case.name == "far_away") else {
        anyhow::bail!("there is no recording of the incident far_away");
    };
    for dump in case.incident.dumps[6..].iter_mut().flatten() {
        let in_progress = dump.entries.iter().rposition(|entry| entry.process_group.0 == "4");
        dump.entries.truncate(in_progress.map_or(0, |index| index + 1));
        for (number, status) in &mut dump.pg_status {
            let last = dump.entries.iter().rfind(|entry| entry.pg_id.to_string() == *number);
            let last = last.map_or(0, |entry| entry.collective_seq_id);
            status.last_enqueued_collective = last.to_string();
            status.last_started_collective = last.to_string();
            status.last_completed_collective = (last - u64::from(number == "1")).to_string();
        }
        if let Some(last) = dump.entries.last_mut() {
            last.state = State::Started;
        }
    }
    // Rank 7 has not come to the call of group 6 either.
    if let Some(verdict) = &mut case.verdict {
        verdict.calls.retain(|call| call.group() == "2");
    }
    case.variant = ", edited so that ranks 6 and 7 are in the middle of a call";
    explained(&case)
}
