//! The timeline to show with a verdict.

use std::fs;
use std::path::{Path, PathBuf};

use lab::check::Timelines;
use lab::timeline::Chart;

use super::verdict::Verdict;
use crate::progress;
use crate::syllabus::Exercise;

/// Returns the folder in which checks store their timelines. It is emptied before each run.
pub fn timelines(root: &Path) -> PathBuf {
    progress::folder(root).join("timelines_of_checks")
}

/// The shortest overlap, in milliseconds, that is worth showing after a success.
const SOME: f64 = 0.01;

/// Returns the timeline to look at after a run. After a failure, this is the timeline of the first check that failed,
/// unless it failed because of a data race.
/// After a success, it is the timeline of the check that hid the most communication, if any check did.
pub fn timeline(root: &Path, exercise: &Exercise, verdict: &Verdict) -> Option<Chart> {
    let folder = timelines(root);
    match verdict {
        Verdict::Failed(..) => {
            // A race is in the order of two operations, which a picture of one run doesn't show.
            let failure = verdict.first_failure().filter(|failure| !failure.message.contains("data race"))?;
            Timelines::of(&folder, &failure.check)
        }
        Verdict::Passed(_) => {
            let names = fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.file_name());
            let mut checks: Vec<String> = names
                .filter_map(|name| name.to_str()?.strip_suffix(".json").map(str::to_owned))
                .filter(|check| check.starts_with(&exercise.filter()))
                .collect();
            // Sort, so that ties are always broken the same way.
            checks.sort();
            let charts = checks.iter().filter_map(|check| Timelines::of(&folder, check));
            let charts = charts.filter(|chart| chart.overlapped() >= SOME);
            charts.max_by(|one, other| one.overlapped().total_cmp(&other.overlapped()))
        }
        Verdict::Broken(_) | Verdict::Ignored(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use lab::timeline::{Kind, Row, Span};

    use super::*;
    use crate::checks::{Counts, Failure};
    use crate::syllabus::tests::an_exercise;

    #[test]
    fn a_failure_shows_its_own_timeline_and_a_success_the_one_that_hides_most() {
        let root = std::env::temp_dir().join(format!("course_timelines_{}", std::process::id()));
        let folder = timelines(&root);
        fs::create_dir_all(&folder).unwrap();
        let span = |kind, start, end| Span { kind, name: "work".to_owned(), start, end };
        let keep = |check: &str, hidden: f64| {
            let spans =
                vec![span(Kind::Compute, 0.0, 2.0), span(Kind::Communication, 2.0 - hidden, 4.0 - hidden)];
            let chart = Chart {
                title: check.to_owned(),
                note: String::new(),
                rows: vec![Row { spans, uncertainty: 0.0 }],
                names: vec![],
            };
            fs::write(folder.join(format!("{check}.json")), serde_json::to_string(&chart).unwrap()).unwrap();
        };
        let counts = Counts::default();
        let shown = |verdict: &Verdict| timeline(&root, &an_exercise(), verdict).map(|chart| chart.title);
        assert_eq!(shown(&Verdict::Passed(counts)), None, "no check stored a timeline");
        keep("devices::serial", 0.0);
        assert_eq!(shown(&Verdict::Passed(counts)), None, "nothing is hidden");
        keep("devices::best", 1.5);
        keep("devices::good", 1.0);
        keep("other_devices::best", 2.0);
        assert_eq!(shown(&Verdict::Passed(counts)).as_deref(), Some("devices::best"));
        let failed = |check: &str| {
            let failure = Failure { check: check.to_owned(), message: String::new() };
            Verdict::Failed(counts, vec![failure])
        };
        assert_eq!(shown(&failed("devices::serial")).as_deref(), Some("devices::serial"));
        assert_eq!(shown(&failed("devices::panics")), None);
        assert_eq!(shown(&Verdict::Broken(vec![])), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
