//! Selects what to show of the output of a check that failed.

use crate::explain::{REPORT, repeats};

/// Returns what to show after a check's failure: the program's own output, and those virtual GPU reports that may show
/// the cause. Returns an empty string if there is nothing to add.
///
/// A report that the failure repeats is left out, and so are the reports after it, because they are consequences. A
/// report about a release is also left out, because a failing check drops its buffers while they are in use.
pub(super) fn printed_after(failure: &str, output: &str) -> String {
    // Ranks that fail alike are reported once, although their numbers and lengths differ.
    let without_digits = |line: &str| line.trim().replace(|next: char| next.is_ascii_digit(), "");
    let reported: Vec<String> = failure.lines().map(without_digits).collect();
    let is_repeated = |report: &[&str]| {
        let mut lines = report.iter().map(|line| without_digits(line));
        let races = report.first().is_some_and(|line| line.contains("data race "));
        let place = report.iter().find_map(|line| line.split_once("--> "));
        // If other ranks have the same race, the failure may contain only its location.
        let has_place = |(_, place): (&str, &str)| failure.contains(place) && failure.contains("data race ");
        races && place.is_some_and(has_place)
            || lines.all(|line| reported.iter().any(|reported| repeats(reported, &line)))
    };
    let mut lines = output.lines().peekable();
    let (mut own, mut reports) = (Vec::new(), Vec::new());
    let mut is_consequence = false;
    while let Some(line) = lines.next() {
        // A report is a line and the indented lines below it.
        if !line.starts_with(REPORT) {
            own.push(line);
            continue;
        }
        let mut report = vec![line];
        while let Some(next) = lines.next_if(|next| next.starts_with("  ")) {
            report.push(next);
        }
        is_consequence |= is_repeated(&report);
        if !is_consequence && !is_release(&report) {
            reports.extend(report);
        }
    }
    let own = own.join("\n");
    let own = own.trim_end();
    let mut text = String::new();
    if !own.is_empty() || !reports.is_empty() {
        text.push_str("\n\nprinted by the check:");
    }
    if !reports.is_empty() {
        text += &format!(
            "\n(the virtual GPU also reported this, perhaps as a consequence)\n{}",
            reports.join("\n")
        );
    }
    if !own.is_empty() {
        text += &format!("\n{own}");
    }
    text
}

/// Returns whether a report is about something that the check itself released too early, or never released.
fn is_release(report: &[&str]) -> bool {
    let mut is_of_check = false;
    report.iter().any(|line| {
        if let Some((_, place)) = line.split_once("--> ").or_else(|| line.split_once("::: ")) {
            is_of_check = place.starts_with("tests/");
        }
        let is_released =
            ["^ freed ", "ncclCommAbort (dropping", "- freed "].iter().any(|words| line.contains(words));
        is_of_check && is_released || line.ends_with("when the program ends")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACE: &str = "virtual GPU: data race on GPU 1\n  bytes 0..4\n  help: wait";

    #[test]
    fn reports_from_the_one_in_the_failure_on_are_not_printed_again() {
        let failure = "rank 1: data race on GPU 1 (CUDA_ERROR_LAUNCH_FAILED from the virtual GPU)\n    bytes 0..4\n    help: wait";
        let other = RACE.replace("wait", "enqueue");
        let output = format!("before\n{RACE}\n{other}\nafter");
        assert_eq!(printed_after(failure, &output), "\n\nprinted by the check:\nbefore\nafter");
        assert_eq!(printed_after(failure, &format!("{RACE}\n{other}\n")), "");
    }

    #[test]
    fn a_report_before_the_one_in_the_failure_may_be_its_cause() {
        let failure = "rank 0: virtual GPU: data race on GPU 1\n  bytes 0..4\n  help: wait";
        let other = RACE.replace("wait", "enqueue");
        let printed = printed_after(failure, &format!("{other}\n{RACE}\n"));
        assert!(printed.contains("perhaps as a consequence)\nvirtual GPU: data race"), "{printed}");
        assert!(printed.contains("help: enqueue") && !printed.contains("help: wait"), "{printed}");
    }

    #[test]
    fn a_release_by_a_failed_check_is_not_the_cause() {
        let freed = "virtual GPU: data race on GPU 0\n     ::: tests/a.rs:1:1\n  1 |     }\n    |     ^ freed on the compute stream\n";
        assert_eq!(printed_after("`run` waits on the host", freed), "");
        let by_the_exercise = freed.replace("tests/", "modules/");
        assert!(
            printed_after("the buffer is wrong", &by_the_exercise).contains("freed on the compute stream")
        );
    }
}
