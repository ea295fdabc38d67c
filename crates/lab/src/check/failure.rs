//! Explains why a check failed, from the records of its process and from the process's exit status.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use super::limits::STILL_RUNNING;
use super::verdict::Record;

/// The message about an answer that writes where only the harness does.
const FORGED: &str = "the answer wrote to the connection on which the harness reports the check's result, so nothing on it counts";

/// Explains why the check failed, with the most informative part first. Returns `None` if the check passed.
pub(super) fn failure(records: &[Record], status: ExitStatus, timed_out: Option<Duration>) -> Option<String> {
    let mut verdict = None;
    let mut panics: Vec<&str> = Vec::new();
    let mut passed = false;
    for record in records {
        match record {
            Record::Panic(text) => panics.push(text),
            Record::Passed => (verdict, passed) = (Some(""), true),
            Record::Failed(text) => verdict = Some(text),
            Record::Leaving => break,
            Record::Forged => return Some(FORGED.to_owned()),
            Record::Calls(_) | Record::Ignored(_) | Record::Unable(_) | Record::Score(_) => {}
        }
    }
    let mut parts: Vec<String> = Vec::new();
    if let Some(timeout) = timed_out {
        let seconds = timeout.as_secs();
        let what = if passed { "the check was done, but its process was" } else { "the check was" };
        parts.push(format!(
            "{what}{STILL_RUNNING}{seconds} s, and was stopped (LAB_TIMEOUT=SECONDS allows more)"
        ));
    } else if passed {
        if status.success() {
            return None;
        }
        parts.push(format!("the check was done, but then its process ended with {}", describe(status)));
    } else if verdict.is_none() && panics.is_empty() {
        parts
            .push(format!("the check's process ended in the middle of the check, with {}", describe(status)));
    }
    let error = verdict.filter(|text| !text.is_empty());
    parts.extend(error.map(str::to_owned));
    parts.extend(merge(&panics, error.unwrap_or_default()));
    if verdict.is_none() && !panics.is_empty() && timed_out.is_none() {
        parts.push(format!("then the check's process ended with {}", describe(status)));
    }
    Some(parts.join("\n"))
}

/// Returns each different panic once, in order, without the messages that the error already contains.
fn merge(panics: &[&str], error: &str) -> Vec<String> {
    let mut merged: Vec<(&str, usize)> = Vec::new();
    for panic in panics {
        // Only the location stays, without the thread's name, so that ranks that fail alike are reported once.
        let text = panic.rsplit_once(", in thread `").map_or(*panic, |(text, _)| text);
        match merged.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count += 1,
            None => merged.push((text, 1)),
        }
    }
    let place = |text: &str| text.rsplit_once("\n  at ").map(|(_, place)| format!("  at {place}"));
    merged
        .into_iter()
        .filter_map(|(text, count)| {
            let message = text.rsplit_once("\n  at ").map_or(text, |(message, _)| message);
            let shown = if error.contains(message) { place(text)? } else { text.to_owned() };
            Some(if count > 1 { format!("{shown} (in {count} threads)") } else { shown })
        })
        .collect()
}

/// Describes an exit status and names its signal.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        // Shells and sandboxes report a signal in this way.
        (Some(code), _) => match code.checked_sub(128).and_then(signal) {
            Some(name) => format!("exit code {code} ({name})"),
            None => format!("exit code {code}"),
        },
        (None, Some(number)) => match signal(number) {
            Some(name) => format!("signal {number} ({name})"),
            None => format!("signal {number}"),
        },
        (None, None) => "an unknown status".to_owned(),
    }
}

/// Returns what a signal means.
fn signal(number: i32) -> Option<&'static str> {
    Some(match number {
        libc::SIGABRT => "SIGABRT: abort, such as a panic during a panic",
        libc::SIGSEGV => "SIGSEGV: an access to memory that isn't there",
        libc::SIGBUS => "SIGBUS: an access to memory that isn't there",
        libc::SIGILL => "SIGILL: an illegal instruction",
        libc::SIGFPE => "SIGFPE: an arithmetic error",
        libc::SIGKILL => "SIGKILL: ended from outside, perhaps for want of memory",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn an_early_exit_with_success_does_not_pass() {
        let text = failure(&[], exit(0), None).unwrap();
        assert!(text.contains("in the middle of the check, with exit code 0"), "{text}");
    }

    #[test]
    fn records_of_other_threads_after_the_exit_are_not_the_cause() {
        let late = Record::Panic("the driver is shutting down\n  at a.rs:3:5".to_owned());
        let text = failure(&[Record::Leaving, late.clone()], exit(1), None).unwrap();
        assert_eq!(text, "the check's process ended in the middle of the check, with exit code 1");
        assert_eq!(failure(&[Record::Passed, Record::Leaving, late], exit(0), None), None);
        assert!(failure(&[Record::Leaving, Record::Passed], exit(0), None).is_some());
    }

    #[test]
    fn a_forged_record_fails_the_check_whatever_else_there_is() {
        for records in [[Record::Forged, Record::Passed], [Record::Passed, Record::Forged]] {
            assert_eq!(failure(&records, exit(0), None).unwrap(), FORGED);
        }
    }

    #[test]
    fn a_crash_after_the_verdict_does_not_pass() {
        let text = failure(&[Record::Passed], ExitStatus::from_raw(libc::SIGSEGV), None).unwrap();
        assert!(text.contains("signal 11 (SIGSEGV: "), "{text}");
        let text = failure(&[Record::Passed], exit(128 + libc::SIGSEGV), None).unwrap();
        assert!(text.contains("exit code 139 (SIGSEGV: "), "{text}");
        assert_eq!(failure(&[Record::Passed], exit(0), None), None);
    }

    #[test]
    fn equal_panics_of_ranks_are_reported_once_and_first() {
        let panic = |rank: u32| {
            Record::Panic(format!("not yet implemented: x\n  at a.rs:3:5, in thread `rank {rank}`"))
        };
        let text = failure(&[panic(0), panic(1), Record::Failed(String::new())], exit(101), None).unwrap();
        assert_eq!(text, "not yet implemented: x\n  at a.rs:3:5 (in 2 threads)");
    }

    #[test]
    fn a_panic_that_the_error_repeats_only_adds_its_location() {
        let records =
            [Record::Panic("oh\n  at a.rs:3:5".to_owned()), Record::Failed("rank 1 panicked: oh".to_owned())];
        assert_eq!(failure(&records, exit(101), None).unwrap(), "rank 1 panicked: oh\n  at a.rs:3:5");
    }

    #[test]
    fn a_timeout_is_reported_first() {
        let text = failure(&[], ExitStatus::from_raw(libc::SIGKILL), Some(Duration::from_secs(60))).unwrap();
        assert!(text.starts_with("the check was still running after 60 s, and was stopped"), "{text}");
    }
}
