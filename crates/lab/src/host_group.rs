//! Lets ranks exchange buffers through host memory, as a CPU backend's processes do over a network.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{anyhow, bail};

/// How long a rank waits for the others. Ranks differ by the milliseconds of a copy; the rest is for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A group of threads, one for each rank.
pub struct HostGroup {
    round: Mutex<Round>,
    ended: Condvar,
    timeout: Duration,
}

/// The progress of the current round.
struct Round {
    /// The number of rounds that have ended.
    number: usize,
    /// This round's parts, by rank.
    parts: Vec<Option<Vec<f32>>>,
    /// All parts from the last round, or the ranks that it lacked. Every rank of that round reads this before the next
    /// round can end, because that round needs the same ranks.
    last: Result<Arc<Vec<Vec<f32>>>, Vec<usize>>,
}

impl HostGroup {
    /// Creates a group for `world_size` ranks.
    pub fn new(world_size: usize) -> Self {
        let round = Round { number: 0, parts: vec![None; world_size], last: Ok(Arc::default()) };
        Self { round: Mutex::new(round), ended: Condvar::new(), timeout: TIMEOUT }
    }

    /// Sends this rank's values to all ranks, and returns all ranks' values in rank order. Every rank must call it.
    ///
    /// # Errors
    /// Fails if other ranks do not call it within 10 seconds; the error names these ranks. Also fails if `rank` is not
    /// in the group or has already taken part in this round.
    pub fn all_gather(&self, rank: usize, values: Vec<f32>) -> anyhow::Result<Arc<Vec<Vec<f32>>>> {
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        let number = round.number;
        let ranks = round.parts.len();
        match round.parts.get_mut(rank) {
            Some(place @ None) => *place = Some(values),
            Some(_) => bail!(
                "rank {rank} has already called HostGroup::all_gather in this round: two threads use the same rank"
            ),
            None => bail!("rank {rank} is out of range for a group of {ranks} ranks"),
        }
        if round.parts.iter().all(Option::is_some) {
            let all = Arc::new(round.parts.iter_mut().filter_map(Option::take).collect());
            self.end(&mut round, Ok(Arc::clone(&all)));
            return Ok(all);
        }
        let waited = self.ended.wait_timeout_while(round, self.timeout, |round| round.number == number);
        let (mut round, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if round.number == number {
            // The round ends for all ranks that wait, so that none of them takes this one for missing.
            let missing = (0..ranks).filter(|&rank| round.parts[rank].is_none()).collect();
            round.parts.fill(None);
            self.end(&mut round, Err(missing));
        }
        round.last.clone().map_err(|missing| {
            anyhow!(
                "rank {rank} called HostGroup::all_gather, but ranks {missing:?} did not call it within {} s",
                self.timeout.as_secs_f32()
            )
        })
    }

    /// Ends the current round.
    fn end(&self, round: &mut Round, last: Result<Arc<Vec<Vec<f32>>>, Vec<usize>>) {
        round.last = last;
        round.number += 1;
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::each_rank;

    #[test]
    fn every_rank_gets_all_parts_in_every_round() {
        let group = HostGroup::new(4);
        each_rank(4, |rank| {
            for round in 0..50 {
                let all = group.all_gather(rank, vec![(10 * rank + round) as f32])?;
                let expected: Vec<Vec<f32>> = (0..4).map(|rank| vec![(10 * rank + round) as f32]).collect();
                assert_eq!(*all, expected);
            }
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn missing_ranks_are_named() {
        let group = HostGroup { timeout: Duration::from_millis(50), ..HostGroup::new(3) };
        let error = group.all_gather(1, vec![1.0]).unwrap_err().to_string();
        assert!(error.ends_with("ranks [0, 2] did not call it within 0.05 s"), "{error}");
        assert!(group.all_gather(3, vec![]).unwrap_err().to_string().contains("a group of 3 ranks"));
        // The failed attempt has no lasting effect. On a busy machine, ranks may start more than 50 ms apart.
        let group = HostGroup { timeout: TIMEOUT, ..group };
        let results = each_rank(3, |rank| group.all_gather(rank, vec![rank as f32])).unwrap();
        assert_eq!(*results[2], [[0.0], [1.0], [2.0]]);
    }

    #[test]
    fn ranks_that_gave_up_are_not_missing() {
        // On a busy machine, the ranks may start more than 50 ms apart.
        let group = HostGroup { timeout: Duration::from_secs(1), ..HostGroup::new(3) };
        let errors =
            each_rank(2, |rank| Ok(group.all_gather(rank, vec![1.0]).unwrap_err().to_string())).unwrap();
        for error in errors {
            assert!(error.ends_with("ranks [2] did not call it within 1 s"), "{error}");
        }
    }
}
