//! Measures how much of the communication ran while the GPU computed.

use super::{Kind, Span};

/// How long work of one kind ran, split by whether the GPU computed at the same time. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// Communication, or copies if there is no communication.
    pub kind: Kind,
    /// The time during which the GPU computed.
    pub hidden: f64,
    /// The time during which the GPU did not compute.
    pub exposed: f64,
}

impl Overlap {
    /// Returns the overlap of one GPU's communication with its compute work. If there is no communication, uses copies;
    /// if there are neither, returns `None`.
    pub fn of(spans: &[Span]) -> Option<Self> {
        let covered = |kind| union(spans.iter().filter(|span| span.kind == kind));
        let compute = covered(Kind::Compute);
        [Kind::Communication, Kind::Copy].into_iter().find_map(|kind| {
            let ran = covered(kind);
            let whole = length(&ran);
            let hidden = length(&intersection(&ran, &compute));
            (whole > 0.0).then_some(Self { kind, hidden, exposed: whole - hidden })
        })
    }
}

/// Formats the overlap, as in `hidden: 4.00 ms of communication ran while the GPU computed; exposed: 0.50 ms`.
impl std::fmt::Display for Overlap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, hidden, exposed } = self;
        let what = if *kind == Kind::Copy { "copies" } else { "communication" };
        write!(f, "hidden: {hidden:.2} ms of {what} ran while the GPU computed; exposed: {exposed:.2} ms")
    }
}

/// Returns the number of milliseconds during which more than one span runs.
pub(super) fn at_once(spans: &[Span]) -> f64 {
    let mut ends: Vec<(f64, i32)> = spans.iter().flat_map(|span| [(span.start, 1), (span.end, -1)]).collect();
    // If a span ends at the moment when another begins, the end comes first.
    ends.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let (mut running, mut since, mut sum) = (0, 0.0, 0.0);
    for (time, change) in ends {
        if running > 1 {
            sum += time - since;
        }
        (running, since) = (running + change, time);
    }
    sum
}

type Interval = (f64, f64);

/// Returns the times that any of the spans covers, as disjoint intervals in ascending order.
fn union<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<Interval> {
    let mut sorted: Vec<Interval> = spans.map(|span| (span.start, span.end)).collect();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut apart: Vec<Interval> = Vec::new();
    for (start, end) in sorted {
        match apart.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => apart.push((start, end)),
        }
    }
    apart
}

fn intersection(ones: &[Interval], others: &[Interval]) -> Vec<Interval> {
    let both = |one: &Interval, other: &Interval| (one.0.max(other.0), one.1.min(other.1));
    let pairs = ones.iter().flat_map(|one| others.iter().map(move |other| both(one, other)));
    pairs.filter(|(start, end)| start < end).collect()
}

fn length(intervals: &[Interval]) -> f64 {
    // `sum` would return -0 for no intervals, and the minus sign would be shown.
    intervals.iter().fold(0.0, |sum, (start, end)| sum + (end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(kind: Kind, start: f64, end: f64) -> Span {
        Span { kind, name: String::new(), start, end }
    }

    #[test]
    fn communication_is_hidden_while_the_gpu_computes() {
        let spans = [
            span(Kind::Compute, 0.0, 2.0),
            span(Kind::Compute, 1.0, 3.0),
            span(Kind::Communication, 1.0, 4.0),
            span(Kind::Copy, 0.0, 9.0),
            span(Kind::Compute, 5.0, 6.0),
            span(Kind::Communication, 5.5, 5.75),
        ];
        let overlap = Overlap::of(&spans).unwrap();
        assert_eq!(overlap, Overlap { kind: Kind::Communication, hidden: 2.25, exposed: 1.0 });
        assert_eq!(
            overlap.to_string(),
            "hidden: 2.25 ms of communication ran while the GPU computed; exposed: 1.00 ms"
        );
    }

    #[test]
    fn shared_time_of_two_calls_counts_once() {
        let spans = [
            span(Kind::Communication, 0.0, 2.0),
            span(Kind::Communication, 1.0, 3.0),
            span(Kind::Compute, 0.5, 2.5),
        ];
        assert_eq!(
            Overlap::of(&spans),
            Some(Overlap { kind: Kind::Communication, hidden: 2.0, exposed: 1.0 })
        );
    }

    #[test]
    fn shared_time_of_three_calls_counts_once() {
        let spans = [(0.0, 2.0), (1.0, 3.0), (1.5, 4.0), (4.0, 5.0)];
        let spans = spans.map(|(start, end)| span(Kind::Compute, start, end));
        assert_eq!((at_once(&spans), at_once(&spans[2..]), at_once(&[])), (2.0, 0.0, 0.0));
    }

    #[test]
    fn sequential_work_hides_nothing() {
        let spans = [span(Kind::Compute, 0.0, 2.0), span(Kind::Communication, 2.0, 3.0)];
        let text = Overlap::of(&spans).unwrap().to_string();
        assert!(text.starts_with("hidden: 0.00 ms") && text.ends_with("exposed: 1.00 ms"), "{text}");
    }

    #[test]
    fn copies_count_if_there_is_no_communication() {
        let spans = [span(Kind::Compute, 0.0, 2.0), span(Kind::Copy, 1.0, 4.0)];
        assert_eq!(Overlap::of(&spans), Some(Overlap { kind: Kind::Copy, hidden: 1.0, exposed: 2.0 }));
        assert_eq!(Overlap::of(&spans[..1]), None);
        assert_eq!(Overlap::of(&[]), None);
    }
}
