//! Finds the last work on GPU 0's streams in what the virtual GPU recorded.

use std::collections::BTreeMap;

use super::{Kind, Span};
use crate::calls;
use crate::kernels::LONG_DELAY;

/// The kernel that checks use to delay streams.
const DELAY: &str = "spin";

/// An operation on a stream.
struct Operation {
    /// The index of its stream.
    stream: usize,
    what: What,
    name: String,
    start: f64,
    end: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Kernel,
    /// A copy within the GPU, or a fill.
    OnDevice,
    Collective,
    /// A copy from or to the host.
    HostCopy,
}

/// Returns the last work on GPU 0's streams: after the last upload of data, or before the last download, on a stream
/// that also computes. Returns rows with their names, or `None` if nothing can overlap or no delay is long.
pub(crate) fn rows(recorded: Vec<calls::Operation>) -> Option<Vec<(String, Vec<Span>)>> {
    // Streams in the order of their first operations.
    let mut streams: Vec<(u64, String)> = Vec::new();
    let mut operations = Vec::new();
    for operation in recorded {
        let known = streams.iter().position(|(stream, _)| *stream == operation.stream);
        let stream = known.unwrap_or_else(|| {
            streams.push((operation.stream, operation.stream_name.clone()));
            streams.len() - 1
        });
        operations.extend(Operation::of(operation, stream));
    }
    operations.sort_by(|one, other| one.start.total_cmp(&other.start));
    let kinds = kinds(&operations);
    let runs_work = |stream| {
        let mut own = operations.iter().filter(|operation| operation.stream == stream);
        own.any(|operation| matches!(operation.what, What::Kernel | What::Collective))
    };
    // A check fills and reads its buffers on streams that also do work, before and after each run of the exercise.
    let is_border = |operation: &Operation| operation.what == What::HostCopy && runs_work(operation.stream);
    let pieces: Vec<(Operation, Option<Kind>)> = {
        let borders: Vec<bool> = operations.iter().map(is_border).collect();
        let kinds = kinds.into_iter().zip(borders).map(|(kind, is_border)| (!is_border).then_some(kind));
        operations.into_iter().zip(kinds).collect()
    };
    let run = pieces.split(|(_, kind)| kind.is_none()).rfind(|run| shows_overlap(run))?;
    Some(by_stream(run, |stream| {
        let (_, name) = &streams[stream];
        // A stream that was named by a check is shown under its role.
        let role = name.strip_prefix("the ").and_then(|name| name.strip_suffix(" stream"));
        role.unwrap_or(name).to_owned()
    }))
}

impl Operation {
    fn of(recorded: calls::Operation, stream: usize) -> Option<Self> {
        let what = match (recorded.category.as_str(), recorded.name.as_str()) {
            ("kernel", _) => What::Kernel,
            ("collective", _) => What::Collective,
            ("copy", "copy to the device" | "copy to the host") => What::HostCopy,
            ("copy", _) => What::OnDevice,
            _ => return None,
        };
        let calls::Operation { name, start, end, .. } = recorded;
        Some(Self { stream, what, name, start, end })
    }

    fn is_long_delay(&self) -> bool {
        self.name == DELAY && (self.end - self.start) * 1e6 >= LONG_DELAY as f64
    }
}

/// Returns the kind of each operation. A delay on a communicator's stream counts as communication.
fn kinds(operations: &[Operation]) -> Vec<Kind> {
    let of_stream = |stream: usize| operations.iter().filter(move |operation| operation.stream == stream);
    let only_communicates = |stream: usize| {
        of_stream(stream).any(|operation| operation.what == What::Collective)
            && of_stream(stream).all(|operation| operation.what != What::Kernel || operation.name == DELAY)
    };
    let delays_collective = |index: usize| {
        let next = operations[index + 1..].iter().find(|next| next.stream == operations[index].stream);
        operations[index].name == DELAY && next.is_some_and(|next| next.what == What::Collective)
    };
    let kind = |(index, operation): (usize, &Operation)| match operation.what {
        What::HostCopy => Kind::Copy,
        What::Collective => Kind::Communication,
        _ if only_communicates(operation.stream) || delays_collective(index) => Kind::Communication,
        _ => Kind::Compute,
    };
    operations.iter().enumerate().map(kind).collect()
}

/// Returns whether a run contains a long delay, and work on two streams or of two kinds.
fn shows_overlap(run: &[(Operation, Option<Kind>)]) -> bool {
    let Some((first, kind)) = run.first() else { return false };
    let others = run.iter().any(|(operation, other)| operation.stream != first.stream || other != kind);
    others && run.iter().any(|(operation, _)| operation.is_long_delay())
}

/// Returns one row for the GPU if each kind of work has its own stream, and otherwise one row per stream.
fn by_stream(run: &[(Operation, Option<Kind>)], name: impl Fn(usize) -> String) -> Vec<(String, Vec<Span>)> {
    let mut streams: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
    let mut streams_of_kind: BTreeMap<Kind, Vec<usize>> = BTreeMap::new();
    for (operation, kind) in run {
        let Some(kind) = *kind else { continue };
        let Operation { stream, name, start, end, .. } = operation;
        let span = Span { kind, name: name.clone(), start: *start, end: *end };
        streams.entry(*stream).or_default().push(span);
        let of_kind = streams_of_kind.entry(kind).or_default();
        if !of_kind.contains(stream) {
            of_kind.push(*stream);
        }
    }
    if streams_of_kind.values().all(|streams| streams.len() == 1) {
        return vec![("GPU 0".to_owned(), streams.into_values().flatten().collect())];
    }
    streams.into_iter().map(|(stream, spans)| (name(stream), spans)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations on GPU 0: each has a stream, a category, a name, and its start and end in milliseconds.
    fn of(operations: &[(u64, &str, &str, f64, f64)]) -> Option<Vec<(String, Vec<Span>)>> {
        let recorded = operations.iter().map(|&(stream, category, name, start, end)| calls::Operation {
            stream,
            stream_name: if stream == 2 {
                "the producer stream".to_owned()
            } else {
                format!("stream {stream}")
            },
            category: category.to_owned(),
            name: name.to_owned(),
            start,
            end,
        });
        rows(recorded.collect())
    }

    fn names(spans: &[Span], kind: Kind) -> Vec<&str> {
        spans.iter().filter(|span| span.kind == kind).map(|span| span.name.as_str()).collect()
    }

    #[test]
    fn the_last_run_between_uploads_and_downloads_is_drawn() {
        let rows = of(&[
            (1, "kernel", "spin", 0.0, 1.0),
            (2, "collective", "ncclAllReduce", 0.0, 1.0),
            (1, "copy", "copy to the device", 1.0, 2.0),
            (1, "kernel", "scale", 2.0, 2.1),
            (1, "event", "record", 2.1, 2.2),
            (2, "kernel", "spin", 2.2, 4.2),
            (1, "kernel", "axpy", 2.2, 2.5),
            (2, "collective", "ncclAllReduce", 4.2, 4.4),
            (1, "copy", "copy to the host", 4.4, 5.0),
            (1, "copy", "copy to the host", 5.0, 5.5),
        ]);
        let [(name, spans)] = &rows.unwrap()[..] else { panic!("one row") };
        assert_eq!(name, "GPU 0");
        assert_eq!(names(spans, Kind::Compute), ["scale", "axpy"]);
        // The delay on a communicator's stream counts as communication.
        assert_eq!(names(spans, Kind::Communication), ["spin", "ncclAllReduce"]);
    }

    #[test]
    fn streams_of_one_kind_have_separate_rows() {
        let rows = of(&[(1, "kernel", "spin", 0.0, 1.0), (2, "kernel", "spin", 0.5, 1.5)]).unwrap();
        let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["stream 1", "producer"], "the check named the second stream");
    }

    #[test]
    fn one_stream_shows_that_nothing_overlaps() {
        let rows = of(&[
            (1, "kernel", "spin", 0.0, 1.0),
            (1, "kernel", "scale", 1.0, 1.1),
            (1, "kernel", "spin", 1.1, 2.0),
            (1, "collective", "ncclAllReduce", 2.0, 3.0),
        ]);
        let [(_, spans)] = &rows.unwrap()[..] else { panic!("one row") };
        assert_eq!(names(spans, Kind::Compute), ["spin", "scale"]);
        assert_eq!(names(spans, Kind::Communication), ["spin", "ncclAllReduce"]);
    }

    #[test]
    fn without_long_work_there_is_no_chart() {
        assert_eq!(
            of(&[(1, "kernel", "scale", 0.0, 1.0), (2, "collective", "ncclAllReduce", 0.0, 1.0)]),
            None
        );
        assert_eq!(of(&[(1, "kernel", "spin", 0.0, 1.0), (1, "kernel", "scale", 1.0, 2.0)]), None);
        assert_eq!(of(&[]), None);
    }
}
