//! The recorded incidents, and the verdict for each of them. `cargo xtask incidents` records them again.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use lab::flight_recorder::{Call, Incident};
use lab::random::SplitMix64;

use crate::scale::postmortem::{Cause, Verdict};

/// An incident, and what is to be found out about it.
pub(crate) struct Case {
    /// The name of its folder.
    pub(crate) name: &'static str,
    /// How it differs from the recording.
    pub(crate) variant: &'static str,
    pub(crate) incident: Incident,
    pub(crate) verdict: Option<Verdict>,
}

/// An incident's files.
type Files = ([Option<&'static str>; 8], &'static str);

macro_rules! file {
    ($name:literal, $file:literal) => {
        include_str!(concat!("../incidents/", $name, "/", $file))
    };
}

macro_rules! files {
    ($name:literal) => {
        files!($name, Some(file!($name, "rank_4.json")))
    };
    ($name:literal, $rank_4:expr) => {
        (
            $name,
            (
                [
                    Some(file!($name, "rank_0.json")),
                    Some(file!($name, "rank_1.json")),
                    Some(file!($name, "rank_2.json")),
                    Some(file!($name, "rank_3.json")),
                    $rank_4,
                    Some(file!($name, "rank_5.json")),
                    Some(file!($name, "rank_6.json")),
                    Some(file!($name, "rank_7.json")),
                ],
                file!($name, "job.log"),
            ),
        )
    };
}

fn collective(group: &str, number: u64) -> Call {
    Call::Collective { group: group.to_owned(), number }
}

/// A message between two ranks of the world.
fn message(from: usize, to: usize) -> Call {
    Call::Message { group: "0".to_owned(), from, to }
}

fn verdict(cause: Cause, ranks: &[usize], calls: &[Call]) -> Option<Verdict> {
    let (ranks, calls) = (ranks.iter().copied().collect(), calls.iter().cloned().collect());
    Some(Verdict { ranks, calls, cause })
}

/// Returns all incidents as they were recorded.
pub(crate) fn all() -> anyhow::Result<Vec<Case>> {
    use Cause::{Deadlock, Failed, Missing, NotStarted, OtherCall, OtherRoot, OtherSize, OtherType};
    let ring: Vec<Call> = (0..8).map(|rank| message(rank, (rank + 1) % 8)).collect();
    let known: [((&str, Files), Option<Verdict>); 20] = [
        (files!("slow_loader"), verdict(Missing, &[3], &[collective("0", 5)])),
        (files!("uneven_barrier"), verdict(OtherCall, &[6], &[collective("0", 6)])),
        (files!("skipped_broadcast"), verdict(OtherCall, &[2], &[collective("0", 3)])),
        (files!("last_batch"), verdict(OtherSize, &[7], &[collective("0", 6)])),
        (files!("half_on_one"), verdict(OtherType, &[1], &[collective("0", 3)])),
        (files!("swapped"), verdict(OtherCall, &[4], &[collective("0", 3)])),
        (files!("local_root"), verdict(OtherRoot, &[3], &[collective("0", 5)])),
        (files!("skipped_twin"), verdict(Missing, &[3], &[collective("0", 5)])),
        (files!("two_groups"), verdict(Deadlock, &[4, 5], &[collective("0", 3), collective("3", 3)])),
        (files!("no_receive"), verdict(Deadlock, &[3, 4], &[collective("0", 1), message(3, 4)])),
        (
            files!("wrong_peer"),
            verdict(Deadlock, &[2, 3, 4, 5], &[message(2, 3), message(2, 5), message(3, 4), message(4, 5)]),
        ),
        (files!("ring_without_group"), verdict(Deadlock, &[0, 1, 2, 3, 4, 5, 6, 7], &ring)),
        (files!("endless_kernel"), verdict(NotStarted, &[2], &[collective("0", 4)])),
        (files!("out_of_memory"), verdict(Failed, &[3, 6], &[collective("2", 2), collective("4", 2)])),
        (files!("link_down"), verdict(Failed, &[5], &[collective("0", 3)])),
        (files!("killed", None), verdict(Missing, &[4], &[collective("0", 3)])),
        (files!("far_away"), verdict(Missing, &[3], &[collective("2", 2), collective("6", 2)])),
        (files!("own_overflow"), verdict(OtherSize, &[1, 4, 6], &[collective("0", 4)])),
        (files!("pair_disagrees"), verdict(OtherCall, &[4, 5], &[collective("3", 2)])),
        (files!("straggler"), None),
    ];
    let parsed = known.into_iter().map(|((name, (dumps, log)), verdict)| {
        let incident = Incident::parse(&dumps, log).with_context(|| format!("incident {name}"))?;
        Ok(Case { name, variant: "", incident, verdict })
    });
    parsed.collect()
}

/// Returns all incidents as other jobs would leave them: with other numbers of ranks and collectives, and other names
/// of groups.
pub(crate) fn renamed() -> anyhow::Result<Vec<Case>> {
    let mut shuffled: Vec<usize> = (0..8).collect();
    SplitMix64::new(11).shuffle(&mut shuffled);
    let orders = [(0..8).rev().collect(), (0..8).map(|rank| (rank + 3) % 8).collect(), shuffled];
    let mut cases = Vec::new();
    for (of, ranks) in orders.into_iter().enumerate() {
        let renaming = Renaming { ranks, names: 40 + of, first: 100 * of as u64 + 7 };
        cases.extend(all()?.into_iter().map(|case| renaming.case(case)));
    }
    Ok(cases)
}

/// New numbers and names.
struct Renaming {
    /// Each rank's new number.
    ranks: Vec<usize>,
    /// The number from which the groups count down.
    names: usize,
    /// What is added to the number of each collective of the last group. It is more for the groups before it.
    first: u64,
}

impl Renaming {
    fn case(&self, case: Case) -> Case {
        let members: BTreeMap<String, Vec<usize>> = case
            .incident
            .dumps
            .iter()
            .flatten()
            .flat_map(|dump| &dump.pg_config)
            .map(|(name, config)| (name.clone(), members(&config.ranks)))
            .collect();
        let mut incident = case.incident.clone();
        for (old, &new) in self.ranks.iter().enumerate() {
            incident.logs[new].clone_from(&case.incident.logs[old]);
            incident.dumps[new] = case.incident.dumps[old].clone().map(|mut dump| {
                dump.pg_config = std::mem::take(&mut dump.pg_config)
                    .into_iter()
                    .map(|(name, mut config)| {
                        config.ranks = format!("{:?}", self.sorted(&members[&name]));
                        config.name = self.group(&name);
                        (config.name.clone(), config)
                    })
                    .collect();
                let group_of = |number: &str| {
                    let mut entries = dump.entries.iter();
                    let entry = entries.find(|entry| entry.pg_id.to_string() == number)?;
                    Some(entry.process_group.0.clone())
                };
                for (number, status) in &mut dump.pg_status {
                    // A group whose entries have all been overwritten is not compared.
                    let added = group_of(number).map_or(0, |group| self.added(&group));
                    for number in [
                        &mut status.last_enqueued_collective,
                        &mut status.last_started_collective,
                        &mut status.last_completed_collective,
                    ] {
                        if let Ok(old) = number.parse::<u64>() {
                            *number = (old + added).to_string();
                        }
                    }
                }
                for entry in &mut dump.entries {
                    if let Call::Message { group, from, to } = entry.call() {
                        let end = |number| self.end(&members[&group], number);
                        entry.profiling_name = match entry.profiling_name.contains("send") {
                            true => format!("nccl:send {}->{}", end(from), end(to)),
                            false => format!("nccl:recv {}<-{}", end(to), end(from)),
                        };
                    }
                    entry.collective_seq_id += self.added(&entry.process_group.0);
                    entry.process_group.0 = self.group(&entry.process_group.0);
                }
                dump
            });
        }
        let verdict = case.verdict.map(|verdict| Verdict {
            ranks: verdict.ranks.iter().map(|&rank| self.ranks[rank]).collect(),
            calls: verdict.calls.iter().map(|call| self.call(call, &members)).collect(),
            cause: verdict.cause,
        });
        Case { variant: ", with other numbers and names", incident, verdict, ..case }
    }

    fn group(&self, name: &str) -> String {
        (self.names - name.parse::<usize>().unwrap_or_default()).to_string()
    }

    /// Returns what is added to the numbers of a group's collectives, so that no group has the numbers of another.
    fn added(&self, name: &str) -> u64 {
        self.first + 11 * (7 - name.parse::<u64>().unwrap_or_default())
    }

    fn sorted(&self, old: &[usize]) -> Vec<usize> {
        old.iter().map(|&rank| self.ranks[rank]).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the new number of a group's rank within the group.
    fn end(&self, old: &[usize], number: usize) -> usize {
        let new = self.ranks[old[number]];
        self.sorted(old).iter().position(|&rank| rank == new).unwrap_or_default()
    }

    fn call(&self, call: &Call, members: &BTreeMap<String, Vec<usize>>) -> Call {
        let old = &members[call.group()];
        let group = self.group(call.group());
        match call {
            Call::Collective { number, .. } => {
                Call::Collective { group, number: number + self.added(call.group()) }
            }
            Call::Message { from, to, .. } => {
                Call::Message { group, from: self.end(old, *from), to: self.end(old, *to) }
            }
        }
    }
}

fn members(ranks: &str) -> Vec<usize> {
    ranks.trim_matches(['[', ']']).split(", ").filter_map(|rank| rank.parse().ok()).collect()
}
