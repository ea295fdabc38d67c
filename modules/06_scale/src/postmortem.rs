//! A postmortem of a training job that hung or failed: which rank stopped it, in which call, and why.
//!
//! All that is left of the job are the dumps of PyTorch's flight recorder, one for each rank, and the job's log.

use std::collections::{BTreeMap, BTreeSet};

use lab::flight_recorder::{Call, Entry, Incident, State};

/// Why a job stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The ranks are awaited, but they wait in no call.
    Missing,
    /// The same, or NCCL failed, and the log has an error of one of these ranks.
    Failed,
    /// The ranks made another call than most ranks.
    OtherCall,
    /// The ranks passed elements of another type than most ranks.
    OtherType,
    /// The ranks passed another number of elements than most ranks.
    OtherSize,
    /// The ranks passed another root than most ranks.
    OtherRoot,
    /// The ranks made the call, but their GPUs never began it.
    NotStarted,
    /// The ranks wait for each other, in different calls.
    Deadlock,
    /// All ranks made the call, and nothing differs.
    Unexplained,
}

/// What stopped a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The ranks to look at.
    pub ranks: BTreeSet<usize>,
    /// The calls that do not end because of these ranks.
    pub calls: BTreeSet<Call>,
    /// Why the job stopped.
    pub cause: Cause,
}

/// Returns the call in which a rank waits, or `None` if it waits in none. All calls of a rank are on the same stream,
/// and its dump has them in their order.
pub fn waits_in(incident: &Incident, rank: usize) -> Option<Call> {
    // ANCHOR: waits_in
    // Find the call that the rank's GPU can't complete:
    // 1. the program may have made more calls since, which are then not complete either;
    // 2. the GPU may have begun the call, or not;
    // 3. without a dump, the rank waits in none.
    todo!("Find the call that the rank's GPU can't complete")
    // ANCHOR_END: waits_in
}

/// Returns the ranks that a call waits for.
pub fn awaited(incident: &Incident, call: &Call) -> BTreeSet<usize> {
    // ANCHOR: awaited
    // Find the ranks that have to make the call, but have not come to it:
    // 1. a rank that waits in this call has come to it, and a rank that has completed it, too;
    // 2. a rank that waits in another call has not, even if its program has made this call already.
    todo!("Find the ranks that have to make the call, but have not come to it")
    // ANCHOR_END: awaited
}

/// Returns the ranks that differ from most ranks. `values` has a value for each rank.
pub fn odd_ones<T: PartialEq>(values: &[(usize, T)]) -> BTreeSet<usize> {
    // ANCHOR: odd_ones
    // Find the ranks whose value differs from that of most ranks:
    // 1. if all values are equal, there are none;
    // 2. if no value belongs to more than half of the ranks, each of them may be wrong: these are all ranks.
    todo!("Find the ranks whose value differs from that of most ranks")
    // ANCHOR_END: odd_ones
}

/// Returns which ranks are to blame for a call to which all ranks have come, and that still does not end.
fn compare(incident: &Incident, call: &Call) -> (Cause, BTreeSet<usize>) {
    fn odd<T: PartialEq>(ranks: &BTreeSet<usize>, value: impl Fn(usize) -> T) -> BTreeSet<usize> {
        odd_ones(&ranks.iter().map(|&rank| (rank, value(rank))).collect::<Vec<_>>())
    }
    let ranks = incident.members(call);
    let entry = |rank| incident.entry(rank, call);
    let only = |is_to_blame: &dyn Fn(usize) -> bool| -> BTreeSet<usize> {
        ranks.iter().copied().filter(|&rank| is_to_blame(rank)).collect()
    };
    let is_scheduled = |rank| entry(rank).is_some_and(|entry| entry.state == State::Scheduled);
    // The dumps have neither the root nor the errors, but the log does.
    let known = [
        (Cause::OtherCall, odd(&ranks, |rank| entry(rank).map(Entry::operation))),
        (Cause::OtherType, odd(&ranks, |rank| entry(rank).map(|entry| &entry.input_dtypes))),
        (Cause::OtherSize, odd(&ranks, |rank| entry(rank).map(Entry::elements))),
        (Cause::NotStarted, only(&is_scheduled)),
        (Cause::Failed, only(&|rank| incident.error(rank).is_some())),
        (Cause::OtherRoot, odd(&ranks, |rank| incident.root(rank))),
    ];
    known.into_iter().find(|(_, ranks)| !ranks.is_empty()).unwrap_or((Cause::Unexplained, ranks))
}

/// Returns the ranks that wait for each other: those that are left when each rank that no other one waits for is
/// removed, again and again.
fn deadlocked(incident: &Incident, waits: &BTreeMap<Call, BTreeSet<usize>>) -> BTreeSet<usize> {
    let mut ranks: BTreeSet<usize> = (0..incident.world_size()).collect();
    loop {
        let calls = ranks.iter().filter_map(|&rank| waits.get(&waits_in(incident, rank)?));
        let held: BTreeSet<usize> = calls.flatten().copied().filter(|rank| ranks.contains(rank)).collect();
        if held == ranks {
            return ranks;
        }
        ranks = held;
    }
}

/// Returns what stopped a job, or `None` if no rank waits.
pub fn diagnose(incident: &Incident) -> Option<Verdict> {
    // The calls in which ranks wait, each with the ranks that it waits for.
    let in_call = |rank| waits_in(incident, rank);
    let waits: BTreeMap<Call, BTreeSet<usize>> = (0..incident.world_size())
        .filter_map(in_call)
        .map(|call| (call.clone(), awaited(incident, &call)))
        .collect();
    // ANCHOR: diagnose
    // Find the ranks that everything else waits for, by the first of these that applies:
    // 1. ranks are awaited and wait in no call: `Failed` if the log has an error of one of them, or else `Missing`;
    //    `calls` are those that wait for these ranks only;
    // 2. ranks wait in a call that waits for no rank: `compare` knows the cause and the ranks;
    // 3. ranks wait for each other: `deadlocked` knows them, and `calls` are those in which they wait.
    todo!("Find the ranks that everything else waits for, by the first of these that applies")
    // ANCHOR_END: diagnose
}
