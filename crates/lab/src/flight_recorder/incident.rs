//! The dumps and the log of one job.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Context, ensure};

use super::{Call, Dump, Entry, State};

/// What is left of a job: a dump of each rank, and the job's log.
#[derive(Clone, Debug)]
pub struct Incident {
    /// The dumps, by rank. A rank that has been killed leaves none.
    pub dumps: Vec<Option<Dump>>,
    /// The last lines that each rank has printed: those of NCCL, and those of the program.
    pub logs: Vec<Vec<String>>,
}

impl Incident {
    /// Parses the dumps, as JSON, and the log, in which each line starts with the number of its rank and `: `, as
    /// `srun --label` prints it.
    ///
    /// # Errors
    /// Fails if a dump or a line has another form. The error names the rank or the line.
    pub fn parse(dumps: &[Option<&str>], log: &str) -> anyhow::Result<Self> {
        let mut logs = vec![Vec::new(); dumps.len()];
        for (index, line) in log.lines().enumerate() {
            let (rank, text) =
                line.split_once(": ").with_context(|| format!("line {}: no rank", index + 1))?;
            let rank: usize = rank.trim().parse().with_context(|| format!("line {}: {rank:?}", index + 1))?;
            ensure!(
                rank < logs.len(),
                "line {}: it names rank {rank}, but the job has {} ranks",
                index + 1,
                logs.len()
            );
            logs[rank].push(text.to_owned());
        }
        let parse = |(rank, text): (usize, &Option<&str>)| {
            let text = text.map(serde_json::from_str);
            text.transpose().with_context(|| format!("the dump of rank {rank}"))
        };
        Ok(Self { dumps: dumps.iter().enumerate().map(parse).collect::<anyhow::Result<_>>()?, logs })
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.dumps.len()
    }

    /// Returns the entries in a rank's dump, in the order of its calls. There are none if it left no dump.
    pub fn entries(&self, rank: usize) -> &[Entry] {
        self.dumps[rank].as_ref().map_or(&[], |dump| &dump.entries)
    }

    /// Returns a rank's entry for a call, if it is in its dump.
    pub fn entry(&self, rank: usize, call: &Call) -> Option<&Entry> {
        // The newest one: a message has no number.
        self.entries(rank).iter().rfind(|entry| entry.call() == *call)
    }

    /// Returns whether a rank has completed a collective. A message has no number, so no dump shows whether this one
    /// or an earlier one is complete: the result is `false`.
    pub fn has_completed(&self, rank: usize, call: &Call) -> bool {
        let Call::Collective { number, .. } = call else { return false };
        let of_group = |entry: &&Entry| entry.process_group.0 == call.group();
        // The entry itself may have been overwritten.
        let last = self.dumps[rank].as_ref().and_then(|dump| {
            let own = dump.entries.iter().find(of_group)?;
            dump.pg_status.get(&own.pg_id.to_string())?.last_completed_collective.parse::<i64>().ok()
        });
        last.is_some_and(|last| last >= *number as i64)
    }

    /// Returns the ranks that have to make a call.
    pub fn members(&self, call: &Call) -> BTreeSet<usize> {
        let config = self.dumps.iter().flatten().find_map(|dump| dump.pg_config.get(call.group()));
        let ranks = config.map_or("", |config| config.ranks.trim_matches(['[', ']']));
        let ranks: Vec<usize> = ranks.split(',').filter_map(|rank| rank.trim().parse().ok()).collect();
        match call {
            Call::Collective { .. } => ranks.into_iter().collect(),
            Call::Message { from, to, .. } => {
                [from, to].into_iter().filter_map(|&end| ranks.get(end).copied()).collect()
            }
        }
    }

    /// Returns the error with which a rank's program ended, if its log has one. A timeout is no such error: the rank
    /// only waited.
    pub fn error(&self, rank: usize) -> Option<&str> {
        self.logs[rank].iter().find_map(|line| line.strip_prefix("Error: "))
    }

    /// Returns the root that a rank passed in its last call, if that was a collective and NCCL has logged it.
    pub fn root(&self, rank: usize) -> Option<usize> {
        let call = self.logs[rank].iter().rfind(|line| line.contains(": opCount "))?;
        // The log of a message has its peer in this place.
        if call.contains(" Send: ") || call.contains(" Recv: ") {
            return None;
        }
        call.split_once(" root ")?.1.split_whitespace().next()?.parse().ok()
    }

    /// Returns a table with a row for each rank: its calls that are not complete, and how its log ends.
    pub fn table(&self) -> String {
        let row = |rank: usize| {
            let mut row = format!("  rank {rank}: ");
            match &self.dumps[rank] {
                None => row += "no dump",
                Some(dump) => {
                    let unfinished: Vec<String> = dump
                        .entries
                        .iter()
                        .filter(|entry| entry.state != State::Completed)
                        .map(short)
                        .collect();
                    row += &match (unfinished.is_empty(), dump.entries.last()) {
                        (false, _) => unfinished.join(", then "),
                        (true, Some(last)) => format!("all completed; the last: {}", short(last)),
                        (true, None) => "no call".to_owned(),
                    };
                }
            }
            if let Some(error) = self.error(rank) {
                let _ = write!(row, "; error: {error}");
            }
            row
        };
        (0..self.world_size()).map(row).collect::<Vec<_>>().join("\n")
    }
}

/// Describes an entry in a few words.
fn short(entry: &Entry) -> String {
    let (group, desc) = &entry.process_group;
    let name = entry.profiling_name.trim_start_matches("nccl:");
    let state = match entry.state {
        State::Scheduled => "scheduled",
        State::Started => "started",
        State::Completed => "completed",
    };
    let dtype = entry.input_dtypes.first().map_or("", String::as_str);
    let count = entry.elements().0;
    match entry.is_p2p {
        true => format!("group {group} ({desc}) {name}, {count} {dtype}, {state}"),
        false => {
            format!("group {group} ({desc}) #{} {name}, {count} {dtype}, {state}", entry.collective_seq_id)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = r#"{"version": "2.10",
        "pg_config": {"7": {"name": "7", "desc": "pair", "ranks": "[0, 2]"}},
        "pg_status": {"1": {"last_enqueued_collective": "9", "last_started_collective": "8", "last_completed_collective": "8"}},
        "entries": [{"record_id": 3, "pg_id": 1, "process_group": ["7", "pair"], "collective_seq_id": 9, "p2p_seq_id": 0, "op_id": 9,
            "profiling_name": "nccl:all_reduce", "input_sizes": [[3, 4]], "input_dtypes": ["Float"], "output_sizes": [[3, 4]],
            "output_dtypes": ["Float"], "state": "started", "timeout_ms": 600000, "is_p2p": false}]}"#;

    fn incident(log: &str) -> anyhow::Result<Incident> {
        Incident::parse(&[Some(DUMP), None, Some(DUMP)], log)
    }

    #[test]
    fn a_call_has_the_members_of_its_group() {
        let incident = incident("").unwrap();
        let entry = &incident.entries(0)[0];
        assert_eq!(
            (entry.operation(), entry.elements(), entry.state),
            ("all_reduce", (12, 12), State::Started)
        );
        assert_eq!(incident.members(&entry.call()), BTreeSet::from([0, 2]));
        let message = Call::Message { group: "7".to_owned(), from: 1, to: 0 };
        assert_eq!(incident.members(&message), BTreeSet::from([0, 2]));
        assert!(incident.entries(1).is_empty());
    }

    #[test]
    fn collectives_are_completed_up_to_the_last_one() {
        let incident = incident("").unwrap();
        let call = |number| Call::Collective { group: "7".to_owned(), number };
        assert!(incident.has_completed(0, &call(8)) && !incident.has_completed(0, &call(9)));
        assert!(!incident.has_completed(1, &call(8)), "it has no dump");
    }

    #[test]
    fn a_log_has_errors_and_roots() {
        let log = "0: node0 [0] NCCL INFO Broadcast: opCount 3 count 8 datatype 7 op 0 root 1 comm 0x7f\n\
                   0: [Rank 0] Watchdog caught collective operation timeout\n\
                   2: node0 [2] NCCL INFO Send: opCount 3 count 8 datatype 7 op 0 root 1 comm 0x7f\n\
                   2: Error: no memory\n";
        let incident = incident(log).unwrap();
        assert_eq!((incident.root(0), incident.root(1), incident.root(2)), (Some(1), None, None));
        assert_eq!((incident.error(0), incident.error(2)), (None, Some("no memory")));
    }

    #[test]
    fn the_table_has_what_each_rank_waits_for() {
        let table = incident("1: Error: no memory\n").unwrap().table();
        let rank_0 = "  rank 0: group 7 (pair) #9 all_reduce, 12 Float, started";
        let rank_1 = "  rank 1: no dump; error: no memory";
        assert_eq!(table, [rank_0, rank_1, &rank_0.replace("rank 0", "rank 2")].join("\n"));
    }

    #[test]
    fn a_wrong_line_or_dump_is_named() {
        let error = |incident: anyhow::Result<Incident>| format!("{:#}", incident.unwrap_err());
        assert_eq!(error(incident("0: a\nb")), "line 2: no rank");
        assert_eq!(error(incident("3: a")), "line 1: it names rank 3, but the job has 3 ranks");
        assert!(
            error(Incident::parse(&[None, Some("{}")], "")).starts_with("the dump of rank 1: missing field")
        );
    }
}
