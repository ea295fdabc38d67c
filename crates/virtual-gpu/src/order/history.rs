//! Who touched which bytes of an allocation: an interval map of the last write and the reads since.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::clock::View;
use crate::engine::StreamHandle;
use crate::site::Site;
use crate::thread::ThreadKey;

/// An operation that touches memory.
#[derive(Clone, Debug)]
pub(crate) struct Accessor {
    pub(crate) stream: StreamHandle,
    /// The operation's number in the stream.
    pub(crate) number: u64,
    /// The thread that enqueued it.
    pub(crate) thread: ThreadKey,
    /// Its place among all that was enqueued anywhere.
    pub(crate) enqueued: u64,
    /// Whether it reads the allocation, and whether it writes to it.
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// It gives the memory back.
    pub(crate) frees: bool,
    pub(crate) what: Arc<str>,
    pub(crate) stream_name: Arc<str>,
    /// The GPU that the stream is of.
    pub(crate) stream_device: usize,
    pub(crate) site: Site,
}

/// Bytes of an allocation that an operation touched, by offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) range: Range<u64>,
    pub(crate) writes: bool,
    /// By atomic instructions only, which don't race with one another.
    pub(crate) atomic: bool,
}

/// Two accesses that nothing orders.
#[derive(Debug)]
pub(super) struct Conflict {
    pub(super) range: Range<u64>,
    /// The one that was noted before.
    pub(super) other: Arc<Accessor>,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    end: u64,
    write: Option<(Arc<Accessor>, bool)>,
    /// At most one per stream: the last.
    reads: Vec<Arc<Accessor>>,
}

/// The segments of one allocation, by their first byte. They don't overlap; bytes in none were never touched.
#[derive(Debug, Default)]
pub(super) struct History(BTreeMap<u64, Segment>);

impl History {
    /// Notes an access; returns the first conflict with an earlier one.
    pub(super) fn touch(&mut self, by: &Arc<Accessor>, view: &View, touch: &Touch) -> Option<Conflict> {
        let Range { start, end } = touch.range;
        if start >= end {
            return None;
        }
        self.split(start);
        self.split(end);
        let mut conflict = None;
        let mut gaps = Vec::new();
        let mut at = start;
        for (&from, segment) in self.0.range_mut(start..end) {
            if from > at {
                gaps.push(at..from);
            }
            at = segment.end;
            conflict = conflict.or_else(|| segment.conflict(from, by, view, touch));
            segment.note(by, touch);
        }
        if at < end {
            gaps.push(at..end);
        }
        for gap in gaps {
            let mut segment = Segment { end: gap.end, ..Segment::default() };
            segment.note(by, touch);
            self.0.insert(gap.start, segment);
        }
        if touch.writes {
            self.merge(start..end);
        }
        conflict
    }

    /// Forgets the accesses of a stream.
    pub(super) fn forget(&mut self, stream: StreamHandle) {
        for segment in self.0.values_mut() {
            segment.write.take_if(|(write, _)| write.stream == stream);
            segment.reads.retain(|read| read.stream != stream);
        }
    }

    /// Makes `at` a boundary between segments.
    fn split(&mut self, at: u64) {
        let Some((_, segment)) = self.0.range_mut(..at).next_back() else { return };
        if segment.end > at {
            let behind = segment.clone();
            segment.end = at;
            self.0.insert(at, behind);
        }
    }

    /// Makes one segment of a range that one operation has just written.
    fn merge(&mut self, range: Range<u64>) {
        let inside: Vec<u64> = self.0.range(range.clone()).map(|(&at, _)| at).skip(1).collect();
        for at in inside {
            self.0.remove(&at);
        }
        if let Some(segment) = self.0.get_mut(&range.start) {
            segment.end = range.end;
        }
    }
}

impl Segment {
    fn conflict(&self, from: u64, by: &Accessor, view: &View, touch: &Touch) -> Option<Conflict> {
        let found = |other: &Arc<Accessor>| Conflict { range: from..self.end, other: other.clone() };
        if let Some((write, atomic)) = &self.write
            && !(*atomic && touch.atomic)
            && !is_ordered(write, by, view)
        {
            return Some(found(write));
        }
        let reads = self.reads.iter().filter(|_| touch.writes);
        reads.into_iter().find(|read| !is_ordered(read, by, view)).map(found)
    }

    fn note(&mut self, by: &Arc<Accessor>, touch: &Touch) {
        if touch.writes {
            self.write = Some((by.clone(), touch.atomic));
            self.reads.clear();
        } else {
            self.reads.retain(|read| read.stream != by.stream);
            self.reads.push(by.clone());
        }
    }
}

fn is_ordered(earlier: &Accessor, later: &Accessor, view: &View) -> bool {
    if earlier.stream == later.stream {
        return true;
    }
    let clock = if earlier.thread == later.thread { &view.own } else { &view.any };
    clock.covers(earlier.stream, earlier.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(stream: u64, number: u64) -> Arc<Accessor> {
        Arc::new(Accessor {
            stream: StreamHandle(stream),
            number,
            thread: ThreadKey::current(),
            enqueued: number,
            reads: true,
            writes: true,
            frees: false,
            what: "a test".into(),
            stream_name: "a stream".into(),
            stream_device: 0,
            site: Site::unknown(),
        })
    }

    fn write(range: Range<u64>) -> Touch {
        Touch { range, writes: true, atomic: false }
    }

    fn read(range: Range<u64>) -> Touch {
        Touch { range, writes: false, atomic: false }
    }

    #[test]
    fn an_unordered_read_of_written_bytes_is_a_conflict_in_those_bytes() {
        let mut history = History::default();
        let nothing = View::default();
        assert!(history.touch(&by(16, 1), &nothing, &write(0..100)).is_none());
        let conflict = history.touch(&by(32, 1), &nothing, &read(40..200)).unwrap();
        assert_eq!((conflict.range, conflict.other.stream), (40..100, StreamHandle(16)));
        assert!(history.touch(&by(48, 1), &nothing, &read(200..300)).is_none());
    }

    #[test]
    fn what_the_view_covers_is_ordered() {
        let mut history = History::default();
        let mut view = View::default();
        history.touch(&by(16, 1), &view, &write(0..8));
        view.advance(StreamHandle(16), 1);
        assert!(history.touch(&by(32, 1), &view, &write(0..8)).is_none());
        assert!(history.touch(&by(16, 2), &view, &read(0..8)).is_some(), "stream 32's write came in between");
    }

    #[test]
    fn reads_don_t_conflict_and_atomics_neither() {
        let mut history = History::default();
        let nothing = View::default();
        history.touch(&by(16, 1), &nothing, &read(0..8));
        assert!(history.touch(&by(32, 1), &nothing, &read(0..8)).is_none());
        assert!(history.touch(&by(48, 1), &nothing, &write(0..8)).is_some());
        let atomic = Touch { range: 8..16, writes: true, atomic: true };
        history.touch(&by(16, 2), &nothing, &atomic);
        assert!(history.touch(&by(32, 2), &nothing, &atomic).is_none());
        assert!(history.touch(&by(48, 2), &nothing, &write(8..16)).is_some());
    }
}
