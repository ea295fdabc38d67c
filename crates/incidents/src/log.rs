//! NCCL's log of a process whose ranks are threads, as that of a job whose ranks are processes.

use std::collections::BTreeMap;

/// The name of the file that NCCL writes.
pub(crate) const FILE: &str = "nccl.log";

/// How many of NCCL's lines are kept for each rank: the last ones.
const LINES: usize = 4;

/// Returns the last lines of NCCL's log for each rank. `threads` has the number of each rank's thread.
///
/// The host, the processes, and all addresses get numbers in the order in which a rank first prints them, so that each
/// recording gives the same text.
pub(crate) fn of_ranks(text: &str, threads: &[String]) -> Vec<Vec<String>> {
    let mut lines: Vec<Vec<String>> = vec![Vec::new(); threads.len()];
    let mut addresses = vec![BTreeMap::new(); threads.len()];
    for line in text.lines() {
        let Some((prefix, rest)) = line.split_once(' ') else { continue };
        let thread = prefix.rsplit(':').next().unwrap_or_default();
        let Some(rank) = threads.iter().position(|other| other == thread) else { continue };
        if rest.contains("NCCL version") {
            continue;
        }
        let words = rest.split(' ').map(|word| with_number(word, &mut addresses[rank]));
        let process = 1000 + rank;
        lines[rank].push(format!("node0:{process}:{process} {}", words.collect::<Vec<_>>().join(" ")));
    }
    lines.into_iter().map(|lines| lines[lines.len().saturating_sub(LINES)..].to_vec()).collect()
}

/// Replaces an address by another one with its number.
fn with_number(word: &str, known: &mut BTreeMap<String, usize>) -> String {
    if !word.starts_with("0x") {
        return word.to_owned();
    }
    let next = known.len() + 1;
    let number = *known.entry(word.to_owned()).or_insert(next);
    format!("{:#x}", 0x7f00_0000_0000_usize + 0x1000 * number)
}
