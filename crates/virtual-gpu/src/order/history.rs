//! The accesses to an allocation's bytes: for each range, the last write and the reads since then.

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use super::clock::View;
use super::page::{PAGE, Page};
use virtual_gpu_core::handle::{OperationNumber, StreamHandle};
use virtual_gpu_core::number_map::NumberMap;
use virtual_gpu_core::range_map::RangeMap;
use virtual_gpu_core::sorted::SortedSet;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::thread::ThreadKey;

/// An operation that touches memory.
#[derive(Clone, Debug)]
pub(crate) struct Accessor {
    pub(crate) stream: StreamHandle,
    /// The operation's number on the stream.
    pub(crate) number: u64,
    /// The thread that enqueued it.
    pub(crate) thread: ThreadKey,
    /// Its sequence number.
    pub(crate) enqueued: OperationNumber,
    /// Whether it reads the allocation and whether it writes to it.
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// The range from the first to the last byte that the operation touches in the allocation.
    pub(crate) extent: Range<u64>,
    /// Whether the operation frees the memory.
    pub(crate) frees: bool,
    /// Whether the operation is a kernel that runs at the same time as others on other GPUs. The machine finds their races
    /// with each other, thread by thread.
    pub(crate) is_together: bool,
    pub(crate) what: Arc<str>,
    pub(crate) stream_name: Arc<str>,
    /// The stream's GPU.
    pub(crate) stream_device: usize,
    pub(crate) call_site: CallSite,
}

/// The bytes in an allocation that an operation accessed in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Offsets, in ascending order.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Whether it reads the bytes, and whether it writes them. An atomic instruction such as `atom.add` does both.
    pub(crate) reads: bool,
    pub writes: bool,
    /// Whether the bytes were only accessed atomically. Atomic accesses don't race with each other.
    pub(crate) atomic: bool,
}

impl Touch {
    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Creates an access to one range, without atomic instructions.
    pub(crate) fn of(range: Range<u64>, writes: bool) -> Self {
        Self { ranges: iter::once(range).collect(), reads: !writes, writes, atomic: false }
    }
}

/// Two unordered accesses.
#[derive(Debug)]
pub(super) struct Conflict {
    pub(super) range: Range<u64>,
    /// The access that was recorded earlier.
    pub(super) other: Arc<Accessor>,
}

/// An access, in the form that byte histories need.
pub(super) struct Now<'a> {
    pub(super) by: &'a Arc<Accessor>,
    pub(super) view: &'a View,
    reads: bool,
    writes: bool,
    atomic: bool,
}

impl<'a> Now<'a> {
    fn new(by: &'a Arc<Accessor>, view: &'a View, touch: &Touch) -> Self {
        let &Touch { reads, writes, atomic, .. } = touch;
        Now { by, view, reads, writes, atomic }
    }

    /// Returns whether all accessed bytes have the same history from now on. An atomic change keeps a part of each byte's
    /// earlier history.
    fn replaces(&self) -> bool {
        self.writes && !self.changes()
    }

    /// Returns whether the access is an atomic instruction that reads and writes.
    fn changes(&self) -> bool {
        self.atomic && self.reads
    }
}

/// The last write to some bytes, and the reads since then.
#[derive(Clone, Debug, Default)]
pub(super) struct Last {
    /// The write, and whether it was atomic.
    write: Option<(Arc<Accessor>, bool)>,
    /// At most one per stream: the last read.
    reads: Vec<Arc<Accessor>>,
    value: Option<Value>,
}

/// The value of some bytes: what has happened if it is read.
#[derive(Clone, Debug)]
struct Value {
    /// What had happened when the last write began. An atomic change of an atomically written value adds to what the
    /// earlier writes knew: if a counter is 2, both threads that incremented it have done so.
    before: View,
    /// The last write: its stream, and its number on it.
    write: (StreamHandle, u64),
    /// Whether it was written atomically.
    atomic: bool,
}

impl Value {
    /// Returns what had happened when the last write was done.
    fn view(&self) -> View {
        let mut done = self.before.clone();
        done.advance(self.write.0, self.write.1);
        done
    }
}

/// The last accesses to the bytes of one allocation. If many short ranges are close together, a [`Page`] replaces their
/// segments, which would need more memory.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Bytes that are in no segment and no page have never been touched.
    segments: RangeMap<Last>,
    /// Pages by their first byte.
    pages: NumberMap<Page>,
    /// The streams whose accesses it may contain.
    streams: SortedSet<StreamHandle>,
}

/// A page costs as much memory as about this many segments.
const SEGMENTS_PER_PAGE: usize = 64;

impl History {
    /// Records an access and returns the first conflict with an earlier access.
    pub(super) fn touch(&mut self, by: &Arc<Accessor>, view: &View, touch: &Touch) -> Option<Conflict> {
        let now = Now::new(by, view, touch);
        let mut conflict = None;
        let mut ranges = touch.ranges.as_slice();
        while let [range, rest @ ..] = ranges {
            let page = range.start / PAGE * PAGE..(range.start / PAGE + 1) * PAGE;
            if range.end <= page.end
                && let Some(known) = self.pages.get_mut(page.start)
            {
                let inside = ranges.partition_point(|range| range.end <= page.end);
                let found = known.touch(page.start, &now, &ranges[..inside]);
                conflict = conflict.or(found);
                ranges = &ranges[inside..];
                continue;
            }
            let found = self.touch_range(&now, range.clone());
            conflict = conflict.or(found);
            if range.end <= page.end && self.segments.has_more_than(SEGMENTS_PER_PAGE, page.clone()) {
                self.make_page(page);
            }
            ranges = rest;
        }
        conflict
    }

    /// Returns what has happened if an operation reads a byte's present value.
    pub(super) fn view_of_value(&self, at: u64) -> Option<View> {
        let page = at / PAGE * PAGE;
        let last = match self.pages.get(page) {
            Some(known) => known.last(at - page),
            None => self.segments.get(at)?,
        };
        last.value.as_ref().map(Value::view)
    }

    /// Notes that a stream will touch the allocation. Returns whether it is the first time.
    pub(super) fn add_stream(&mut self, stream: StreamHandle) -> bool {
        self.streams.insert(stream)
    }

    /// Forgets a stream's accesses.
    pub(super) fn forget(&mut self, stream: StreamHandle) {
        if !self.streams.contains(&stream) {
            return;
        }
        self.streams.remove(&stream);
        self.segments.values_mut().for_each(|last| last.forget(stream));
        self.pages.values_mut().for_each(|page| page.forget(stream));
    }

    /// Records an access to a range of any length, in its pages and in the segments between them.
    fn touch_range(&mut self, now: &Now, Range { start, end }: Range<u64>) -> Option<Conflict> {
        let first = start / PAGE * PAGE;
        let mut conflicts = Vec::new();
        let mut between = Vec::new();
        let mut at = start;
        for base in self.pages.numbers(first..end) {
            let part = base.max(start)..(base + PAGE).min(end);
            let Some(page) = self.pages.get_mut(base) else { continue };
            conflicts.extend(page.touch(base, now, std::slice::from_ref(&part)));
            if now.replaces() && part.end - part.start == PAGE {
                // All of its bytes now have the same history, so a segment is enough.
                self.pages.remove(base);
                continue;
            }
            between.push(at..part.start);
            at = part.end;
        }
        between.push(at..end);
        for part in between {
            conflicts.extend(self.touch_segments(now, part));
        }
        conflicts.into_iter().min_by_key(|conflict| conflict.range.start)
    }

    fn touch_segments(&mut self, now: &Now, range: Range<u64>) -> Option<Conflict> {
        let mut conflict = None;
        self.segments.change(range.clone(), |part, last| {
            conflict = conflict.take().or_else(|| last.conflict(part, now));
            last.note(now);
        });
        if now.replaces() && !range.is_empty() {
            self.segments.merge(range);
        }
        conflict
    }

    /// Replaces the segments of `page` with a page.
    fn make_page(&mut self, page: Range<u64>) {
        let parts = self.segments.remove(page.clone()).into_iter();
        let parts = parts.map(|(part, last)| (part.start - page.start..part.end - page.start, last));
        self.pages.insert(page.start, Page::of(parts));
    }
}

impl Last {
    /// Returns an access's conflict with earlier accesses to the bytes in `range`, whose history this is.
    pub(super) fn conflict(&self, range: Range<u64>, now: &Now) -> Option<Conflict> {
        let found = |other: &Arc<Accessor>| Conflict { range, other: other.clone() };
        if let Some((write, atomic)) = &self.write
            && !(*atomic && now.atomic)
            && !is_ordered(write, now)
        {
            return Some(found(write));
        }
        let reads = self.reads.iter().filter(|_| now.writes);
        reads.into_iter().find(|read| !is_ordered(read, now)).map(found)
    }

    pub(super) fn note(&mut self, now: &Now) {
        if now.writes {
            self.write = Some((now.by.clone(), now.atomic));
            self.reads.clear();
            let mut before = now.view.clone();
            if let Some(earlier) = self.value.take().filter(|value| value.atomic && now.changes()) {
                before.join(&earlier.view());
            }
            self.value = Some(Value { before, write: (now.by.stream, now.by.number), atomic: now.atomic });
        } else {
            self.reads.retain(|read| read.stream != now.by.stream);
            self.reads.push(now.by.clone());
        }
    }

    pub(super) fn forget(&mut self, stream: StreamHandle) {
        self.write.take_if(|(write, _)| write.stream == stream);
        self.reads.retain(|read| read.stream != stream);
    }
}

fn is_ordered(earlier: &Accessor, now: &Now) -> bool {
    if earlier.stream == now.by.stream || earlier.is_together && now.by.is_together {
        return true;
    }
    let clock = if earlier.thread == now.by.thread { &now.view.own } else { &now.view.any };
    clock.covers(earlier.stream, earlier.number)
}

#[cfg(test)]
mod tests {
    use test_data::random::SplitMix64;

    use super::*;

    fn by(stream: u64, number: u64) -> Arc<Accessor> {
        Arc::new(Accessor {
            stream: StreamHandle(stream),
            number,
            thread: ThreadKey::current(),
            enqueued: OperationNumber(number),
            reads: true,
            writes: true,
            extent: 0..0,
            frees: false,
            is_together: false,
            what: "a test".into(),
            stream_name: "a stream".into(),
            stream_device: 0,
            call_site: CallSite::unknown(),
        })
    }

    fn write(range: Range<u64>) -> Touch {
        Touch::of(range, true)
    }

    fn read(range: Range<u64>) -> Touch {
        Touch::of(range, false)
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
    fn operations_that_the_view_covers_are_ordered() {
        let mut history = History::default();
        let mut view = View::default();
        history.touch(&by(16, 1), &view, &write(0..8));
        view.advance(StreamHandle(16), 1);
        assert!(history.touch(&by(32, 1), &view, &write(0..8)).is_none());
        assert!(history.touch(&by(16, 2), &view, &read(0..8)).is_some(), "stream 32's write came in between");
    }

    #[test]
    fn reads_don_t_conflict_and_neither_do_atomics() {
        let mut history = History::default();
        let nothing = View::default();
        history.touch(&by(16, 1), &nothing, &read(0..8));
        assert!(history.touch(&by(32, 1), &nothing, &read(0..8)).is_none());
        assert!(history.touch(&by(48, 1), &nothing, &write(0..8)).is_some());
        let atomic = Touch { reads: true, atomic: true, ..write(8..16) };
        history.touch(&by(16, 2), &nothing, &atomic);
        assert!(history.touch(&by(32, 2), &nothing, &atomic).is_none());
        assert!(history.touch(&by(48, 2), &nothing, &write(8..16)).is_some());
    }

    #[test]
    fn a_counter_knows_what_all_its_atomic_changes_knew() {
        let knows = |history: &History, stream| {
            history.view_of_value(0).is_some_and(|view| view.own.covers(StreamHandle(stream), 1))
        };
        let store = Touch { atomic: true, ..write(0..4) };
        let change = Touch { reads: true, ..store.clone() };
        let mut history = History::default();
        let mut view = View::default();
        view.advance(StreamHandle(64), 1);
        history.touch(&by(16, 1), &view, &change);
        history.touch(&by(32, 1), &View::default(), &change);
        assert!([16, 32, 64].iter().all(|&stream| knows(&history, stream)));
        history.forget(StreamHandle(32));
        assert!(knows(&history, 16), "a stream is gone, but not what the value means");
        // A store replaces the value, whatever it was.
        history.touch(&by(48, 1), &View::default(), &store);
        assert!(knows(&history, 48) && !knows(&history, 16));
        history.touch(&by(80, 1), &View::default(), &write(0..4));
        history.touch(&by(96, 1), &View::default(), &change);
        assert!(knows(&history, 96) && !knows(&history, 80), "an ordinary write races with the change");
    }

    /// Returns the result that a history is expected to return, computed byte by byte.
    fn touch_bytes(
        bytes: &mut [Last],
        by: &Arc<Accessor>,
        view: &View,
        touch: &Touch,
    ) -> Option<(u64, StreamHandle)> {
        let now = Now::new(by, view, touch);
        let mut first = None;
        for at in touch.ranges.iter().cloned().flatten() {
            let last = &mut bytes[at as usize];
            let conflict = last.conflict(at..at + 1, &now).map(|conflict| (at, conflict.other.stream));
            first = first.or(conflict);
            last.note(&now);
        }
        first
    }

    #[test]
    fn random_touches_give_the_same_answers_as_byte_by_byte() {
        const BYTES: u64 = 5 * PAGE + 77;
        let mut pages_seen = 0;
        for seed in 0..20 {
            let mut random = SplitMix64::new(seed);
            let mut below = |bound: u64| random.below(bound as usize) as u64;
            let mut history = History::default();
            let mut bytes = vec![Last::default(); BYTES as usize];
            let mut view = View::default();
            for number in 1..40 {
                let stream = 16 * (1 + below(3));
                let step = 1 + below(40);
                let (start, length) = (below(BYTES), 1 + below(step));
                let ranges: Vec<_> = match below(3) {
                    0 => iter::once(start..(start + below(3 * PAGE)).min(BYTES)).collect(),
                    1 => iter::once(start / PAGE * PAGE..(start / PAGE * PAGE + PAGE).min(BYTES)).collect(),
                    _ => (start..BYTES - length).step_by(step as usize).map(|at| at..at + length).collect(),
                };
                let (writes, atomic) = (below(2) == 0, below(2) == 0);
                let touch = Touch { ranges, reads: !writes || atomic && below(4) > 0, writes, atomic };
                let by = by(stream, number);
                let found = history.touch(&by, &view, &touch).map(|it| (it.range.start, it.other.stream));
                assert_eq!(
                    found,
                    touch_bytes(&mut bytes, &by, &view, &touch),
                    "seed {seed}, access {number}"
                );
                for (at, last) in bytes.iter().enumerate() {
                    let expected = last.value.as_ref().map(Value::view);
                    assert_eq!(
                        history.view_of_value(at as u64),
                        expected,
                        "seed {seed}, access {number}, byte {at}"
                    );
                }
                if below(3) == 0 {
                    view.own.advance(StreamHandle(stream), number);
                }
                pages_seen += history.pages.values().count();
            }
        }
        assert!(pages_seen > 0, "no page was ever made");
    }

    #[test]
    fn many_short_ranges_cost_two_bytes_for_each_byte() {
        let mut history = History::default();
        let nothing = View::default();
        let every_second_float =
            Touch { ranges: (0..16 * PAGE).step_by(8).map(|at| at..at + 4).collect(), ..write(0..4) };
        for number in 1..1000 {
            history.touch(&by(16, number), &nothing, &every_second_float);
        }
        assert_eq!((history.pages.values().count(), history.segments.values().count()), (16, 0));
        assert!(history.pages.values().all(|page| page.len() < 256), "histories are kept that no byte has");
        history.touch(&by(16, 1000), &nothing, &write(0..16 * PAGE));
        assert_eq!((history.pages.values().count(), history.segments.values().count()), (0, 1));
    }
}
