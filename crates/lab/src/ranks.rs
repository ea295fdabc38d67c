//! Runs one thread per rank.

use std::any::Any;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::bail;

use crate::compare::is_detail;
use crate::explain::{cause_text, is_headline};

/// Runs `work(rank)` for each rank, each in its own thread named `rank N`, and waits for all of them. Returns their
/// results in rank order.
///
/// # Errors
/// Fails if any rank fails or panics. The error lists every failed rank, in rank order, as `rank 2: what went wrong`.
/// Ranks that failed alike are reported together. Ranks that failed only because they waited for another rank come
/// last, after the cause.
pub fn each_rank<T: Send>(
    world_size: usize,
    work: impl Fn(usize) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let results = Results::of(world_size);
    run_threads(world_size, &|rank| {
        results.set(rank, work(rank)?);
        Ok(())
    })?;
    Ok(results.into_vec())
}

/// The results of the ranks that have succeeded, by rank.
struct Results<T>(Vec<Mutex<Option<T>>>);

impl<T> Results<T> {
    /// Returns room for this number of ranks.
    fn of(world_size: usize) -> Self {
        Self(std::iter::repeat_with(Mutex::default).take(world_size).collect())
    }

    fn set(&self, rank: usize, result: T) {
        *self.0[rank].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }

    fn into_vec(self) -> Vec<T> {
        self.0
            .into_iter()
            .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }
}

/// Runs `work` like [`each_rank`]. It is not generic, so that it is not compiled again for each call.
fn run_threads(world_size: usize, work: &(dyn Fn(usize) -> anyhow::Result<()> + Sync)) -> anyhow::Result<()> {
    // Formatting an error asks the driver for its text, and the driver returns that of the calling thread's last error.
    // So each rank's own thread formats its error.
    let run = move |rank| work(rank).map_err(|error| joined_text(&error));
    let ended: Vec<Result<(), String>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..world_size)
            .map(|rank| {
                thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, move || run(rank))
            })
            .collect();
        let join = |thread: std::io::Result<thread::ScopedJoinHandle<'_, Result<(), String>>>| {
            let thread = thread.map_err(|error| format!("the system gave it no thread: {error}"))?;
            thread.join().unwrap_or_else(|panic| Err(format!("panicked: {}", panic_message(&*panic))))
        };
        threads.into_iter().map(join).collect()
    });
    report(&ended).map_or(Ok(()), |failures| bail!("{failures}"))
}

/// Formats an error with its causes on one line, or on their own lines after a text of several lines.
fn joined_text(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(cause_text);
    let first = causes.next().unwrap_or_default();
    causes.fold(first, |text, cause| match text.contains('\n') {
        true => format!("{text}\n  because: {}", cause.replace('\n', "\n  ")),
        false => format!("{text}: {cause}"),
    })
}

/// A failure, and the ranks on which it occurred.
struct Failure {
    ranks: Vec<usize>,
    /// The text of the first rank.
    text: String,
    /// The text without the ranks' numbers and without tables of buffers, so that it is the same for all these ranks.
    key: String,
    /// Whether the text of another rank differs.
    differs: bool,
}

/// Combines all failures into one text. Returns `None` if there are none.
fn report(ended: &[Result<(), String>]) -> Option<String> {
    let mut failures: Vec<Failure> = Vec::new();
    for (rank, error) in
        ended.iter().enumerate().filter_map(|(rank, result)| Some((rank, result.as_ref().err()?)))
    {
        let key = without_own_number(error, rank);
        match failures.iter_mut().find(|known| known.text == *error || known.key == key) {
            Some(known) => {
                known.ranks.push(rank);
                known.differs |= known.text != *error;
            }
            None => failures.push(Failure { ranks: vec![rank], text: error.clone(), key, differs: false }),
        }
    }
    failures.sort_by_key(|failure| waited_in_vain(&failure.text));
    let failed = failures.iter().map(|failure| failure.ranks.len()).sum::<usize>();
    let all_waited = failures.first().is_some_and(|first| waited_in_vain(&first.text));
    let first_races = failures.first().is_some_and(|first| races(&first.text));
    let lines = failures.iter().enumerate().map(|(index, failure)| {
        let Failure { ranks, text, differs, .. } = failure;
        let text = match index > 0 {
            // If all ranks waited in vain, one report is enough.
            true if all_waited => in_short(text),
            // One missing wait can have different symptoms. Once it is fixed, the student sees whether another wait is
            // missing.
            true if first_races && races(text) => race_in_short(text),
            _ => text.clone(),
        };
        match ranks.as_slice() {
            [first, others @ ..] if !others.is_empty() && *differs => {
                let own = [format!("rank {first}: "), format!("rank {first} of {}: ", ended.len())];
                let text = own.iter().find_map(|own| text.strip_prefix(own)).unwrap_or(&text);
                format!("rank {first} (likewise {}): {text}", named_ranks(others))
            }
            _ => with_ranks(&named_ranks(ranks), &text),
        }
        .replace('\n', "\n  ")
    });
    let lines: Vec<String> = lines.collect();
    match lines.as_slice() {
        [] => None,
        [only] if failed == 1 || failed == ended.len() => Some(only.clone()),
        several => Some(format!("{failed} of {} ranks failed\n  {}", ended.len(), several.join("\n  "))),
    }
}

/// Removes the rank's number, its GPU's number, and the values of its buffer from a text, so that ranks that failed
/// alike are reported together.
fn without_own_number(text: &str, rank: usize) -> String {
    let mut key = match races(text) {
        true => race_key(text),
        false => text.lines().filter(|line| !is_detail(line)).collect::<Vec<_>>().join("\n"),
    };
    for what in ["rank", "GPU"] {
        let own = format!("{what} {rank}");
        let mut from = 0;
        while let Some(at) = key[from..].find(&own).map(|at| from + at) {
            let end = at + own.len();
            from = end;
            if !key[end..].starts_with(|next: char| next.is_ascii_digit()) {
                key.replace_range(at..end, what);
                from = at + what.len();
            }
        }
    }
    key
}

/// Returns the first line of an error, and the headline of its report.
fn in_short(text: &str) -> String {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    match lines.find(|line| is_headline(line)).map(str::trim_start) {
        Some(headline) if !is_headline(first) => {
            format!("{first}: {}", headline.strip_prefix("because: ").unwrap_or(headline))
        }
        _ => first.to_owned(),
    }
}

/// Returns whether an error is a report of a data race.
fn races(text: &str) -> bool {
    text.lines().any(|line| is_headline(line) && line.contains("data race "))
}

/// Returns the parts of a report that two data races share if the same missing wait causes both: the lines of the
/// student's file and the streams, but not the operations.
fn race_key(text: &str) -> String {
    let mut is_of_others = false;
    let kept = text.lines().filter_map(|line| {
        match line.trim_start() {
            place if place.starts_with("::: ") => is_of_others = true,
            fact if fact.starts_with("= ") => is_of_others = false,
            _ => {}
        }
        let marked = line.rfind('^').map_or(line, |end| &line[..=end]);
        (!is_of_others).then_some(marked)
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// Returns the first line of a data race's report, and its location.
fn race_in_short(text: &str) -> String {
    let mut lines = text.lines().map(str::trim_start);
    let mut short = lines.next().unwrap_or_default().to_owned();
    if let Some(place) = lines.find_map(|line| line.strip_prefix("--> ")) {
        short += &format!(" at {place}");
    }
    short
}

/// Returns whether an error says that another rank never arrived. The error of that rank is more informative.
fn waited_in_vain(text: &str) -> bool {
    ["CUDA_ERROR_LAUNCH_TIMEOUT", "ncclTimeout", "ncclRemoteError", "'s GPU has failed"]
        .iter()
        .any(|sign| text.contains(sign))
}

/// Puts the ranks in front of a text, unless the text already names them.
fn with_ranks(ranks: &str, text: &str) -> String {
    let rest = text.strip_prefix(ranks);
    match rest.is_some_and(|rest| rest.starts_with([':', ' ', ','])) {
        true => text.to_owned(),
        false => format!("{ranks}: {text}"),
    }
}

/// Formats ranks, in text as in messages: `rank 2`, or `ranks 0, 1 and 3`.
pub fn named_ranks(ranks: &[usize]) -> String {
    match ranks {
        [one] => format!("rank {one}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(usize::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
        [] => "no rank".to_owned(),
    }
}

/// Returns the message of a panic, if it is text.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;
    use crate::Expected;

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

    /// An error whose text names the thread that formats it, like the driver's.
    #[derive(Debug)]
    struct Asked;

    impl std::fmt::Display for Asked {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let thread = thread::current();
            write!(f, "asked by {}", thread.name().unwrap_or("main").replace("rank ", "thread "))
        }
    }

    impl std::error::Error for Asked {}

    #[test]
    fn an_error_is_formatted_by_the_thread_that_got_it() {
        let failed = each_rank(2, |_| -> anyhow::Result<()> { Err(Asked.into()) });
        let text = failed.unwrap_err().to_string();
        assert_eq!(text, "2 of 2 ranks failed\n  rank 0: asked by thread 0\n  rank 1: asked by thread 1");
    }

    #[test]
    fn a_failure_of_several_ranks_is_reported_once() {
        let failed = each_rank(4, |rank| -> anyhow::Result<()> {
            ensure!(rank == 1, "no memory\nhelp: buy some");
            Ok(())
        });
        let text = failed.unwrap_err().to_string();
        assert_eq!(text, "3 of 4 ranks failed\n  ranks 0, 2 and 3: no memory\n  help: buy some");
    }

    #[test]
    fn ranks_that_differ_in_their_own_number_are_reported_together() {
        let failed = each_rank(12, |rank| -> anyhow::Result<()> {
            ensure!(rank == 0, "rank {rank}: the sum on GPU {rank} is wrong\nhelp: wait for GPU 1");
            Ok(())
        });
        let text = failed.unwrap_err().to_string();
        assert_eq!(
            text,
            "11 of 12 ranks failed\n  rank 1: the sum on GPU 1 is wrong\n  help: wait for GPU 1\n  \
             rank 2 (likewise ranks 3, 4, 5, 6, 7, 8, 9, 10 and 11): the sum on GPU 2 is wrong\n  help: wait for GPU 1"
        );
    }

    #[test]
    fn ranks_whose_buffers_differ_are_reported_together() {
        let failed = each_rank(3, |rank| {
            let other = rank as f32;
            Expected::new(rank, "the sum", &[6.0, other, 8.0]).exactly(&[5.0, other, 8.0])
        });
        let text = failed.unwrap_err().to_string();
        assert!(text.starts_with("rank 0 (likewise ranks 1 and 2): the sum is wrong at index 0"), "{text}");
        assert_eq!(text.matches("got      │ 5.0  0.0  8.0").count(), 1, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120) && text.lines().count() == 6, "{text}");
    }

    #[test]
    fn if_all_ranks_waited_in_vain_only_the_first_is_reported_in_full() {
        let failed = each_rank(2, |rank| -> anyhow::Result<()> {
            bail!("rank {} never came (ncclTimeout from the virtual GPU)\n  help: one id", 1 - rank)
        });
        let text = failed.unwrap_err().to_string();
        assert_eq!(
            text,
            "2 of 2 ranks failed\n  rank 0: rank 1 never came (ncclTimeout from the virtual GPU)\n    help: one id\n  \
             rank 1: rank 0 never came (ncclTimeout from the virtual GPU)"
        );
    }

    #[test]
    fn ranks_that_miss_the_same_wait_are_reported_together() {
        let race = |rank: usize, line: usize, what: &str| {
            format!(
                "data race on GPU {rank}: nothing makes stream 1 wait for stream 2 (CUDA_ERROR_LAUNCH_FAILED from the virtual \
                 GPU)\n   --> a.rs:{line}:1\n   |\n {line} | receive()\n   | ^^^^^^^^^ written by {what}\n   |\n  ::: \
                 tests/a.rs:9:9\n   |\n 9 | {what}()\n   |\n   = help: wait"
            )
        };
        let failed = |line: [usize; 2]| {
            let failed = each_rank(2, |rank| -> anyhow::Result<()> {
                bail!(race(rank, line[rank], if rank == 0 { "a copy" } else { "ncclRecv" }))
            });
            failed.unwrap_err().to_string()
        };
        let first = race(0, 55, "a copy");
        assert_eq!(failed([55, 55]), format!("rank 0 (likewise rank 1): {first}").replace('\n', "\n  "));
        let two = failed([55, 61]);
        assert!(
            two.ends_with(
                "  rank 1: data race on GPU 1: nothing makes stream 1 wait for stream 2 (CUDA_ERROR_LAUNCH_FAILED from the virtual GPU) at a.rs:61:1"
            ),
            "{two}"
        );
    }

    #[test]
    fn ranks_that_waited_in_vain_come_last() {
        let failed = each_rank(4, |rank| -> anyhow::Result<()> {
            ensure!(rank != 0, "CUDA_ERROR_LAUNCH_TIMEOUT: rank 2 never came");
            ensure!(rank != 3, "the index is wrong");
            ensure!(rank != 2, "no memory");
            Ok(())
        });
        let text = failed.unwrap_err().to_string();
        assert_eq!(
            text,
            "3 of 4 ranks failed\n  rank 2: no memory\n  rank 3: the index is wrong\n  \
             rank 0: CUDA_ERROR_LAUNCH_TIMEOUT: rank 2 never came"
        );
    }

    #[test]
    fn a_text_that_names_its_rank_gets_no_second_rank() {
        let failed = each_rank(11, |rank| -> anyhow::Result<()> {
            ensure!(rank != 0 && rank != 1, "rank {}: the buffer is wrong", rank * 10);
            Ok(())
        });
        let text = failed.unwrap_err().to_string();
        assert_eq!(
            text,
            "2 of 11 ranks failed\n  rank 0: the buffer is wrong\n  rank 1: rank 10: the buffer is wrong"
        );
    }

    #[test]
    fn the_cause_of_a_multiline_error_gets_its_own_line() {
        let error =
            anyhow::anyhow!("no memory").context("it failed\n  likely cause: a leak").context("rank 1");
        assert_eq!(joined_text(&error), "rank 1: it failed\n  likely cause: a leak\n  because: no memory");
    }

    #[test]
    fn no_ranks_need_no_work() {
        assert!(each_rank(0, |_| -> anyhow::Result<()> { bail!("never called") }).unwrap().is_empty());
    }
}
