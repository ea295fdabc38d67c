//! One thread per rank.

use std::any::Any;
use std::thread;

use anyhow::{Context, bail};

/// Runs `work(rank)` for each rank, every rank in a thread of its own named `rank N`, and waits for all of them.
/// Returns their results in the order of ranks.
///
/// # Errors
/// If any rank fails or panics: every one that did, in the order of ranks, each as `rank 2: what went wrong`.
pub fn each_rank<T: Send>(
    world_size: usize,
    work: impl Fn(usize) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let work = &work;
    let ended: Vec<anyhow::Result<T>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..world_size)
            .map(|rank| {
                thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, move || work(rank))
            })
            .collect();
        let join = |thread: std::io::Result<thread::ScopedJoinHandle<'_, anyhow::Result<T>>>| {
            let thread = thread.context("the system gave it no thread")?;
            thread.join().unwrap_or_else(|panic| bail!("panicked: {}", panic_message(&*panic)))
        };
        threads.into_iter().map(join).collect()
    });
    let failures: Vec<String> = ended
        .iter()
        .enumerate()
        .filter_map(|(rank, result)| result.as_ref().err().map(|error| format!("rank {rank}: {error:#}")))
        .map(|failure| failure.replace('\n', "\n  "))
        .collect();
    match failures.as_slice() {
        [] => ended.into_iter().collect(),
        [only] => bail!("{only}"),
        several => bail!("{} of {world_size} ranks failed\n  {}", several.len(), several.join("\n  ")),
    }
}

/// What `panic!` was given, where that was text.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    #[test]
    fn results_come_in_the_order_of_ranks() {
        let results = each_rank(5, |rank| {
            assert_eq!(thread::current().name(), Some(format!("rank {rank}").as_str()));
            Ok(rank * 10)
        });
        assert_eq!(results.unwrap(), [0, 10, 20, 30, 40]);
    }

    #[test]
    fn every_failed_rank_is_named_with_its_cause() {
        let failed = each_rank(4, |rank| {
            assert!(rank != 3, "rank {rank} can't go on");
            ensure!(rank != 1, "no memory");
            Ok(())
        });
        let text = failed.unwrap_err().to_string();
        assert_eq!(text, "2 of 4 ranks failed\n  rank 1: no memory\n  rank 3: panicked: rank 3 can't go on");
    }

    #[test]
    fn no_ranks_is_no_work() {
        assert!(each_rank(0, |_| -> anyhow::Result<()> { bail!("never called") }).unwrap().is_empty());
    }
}
