//! What programs have advised about managed memory, and where they have prefetched it. This changes nothing here, but a
//! program can ask for it (`cuMemRangeGetAttribute`).

use std::ops::Range;

use super::Engine;
use super::managed::{Advice, Location};
use virtual_gpu_core::number_map::NumberMap;
use virtual_gpu_core::sorted::SortedSet;
use virtual_gpu_core::status::CudaResult;

/// Advice applies to whole pages of the CPU (`cuMemAdvise`), which have this many bytes.
const PAGE: u64 = 4096;

/// What holds for a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Advised {
    is_read_mostly: bool,
    preferred: Option<Location>,
    accessed_by: SortedSet<Location>,
    prefetched: Option<Location>,
}

#[derive(Clone, Debug)]
struct Segment {
    end: u64,
    advised: Advised,
}

/// Ranges of pages by their first byte. They don't overlap; nothing holds for pages that are in no range.
#[derive(Debug, Default)]
pub(super) struct AllAdvice(NumberMap<Segment>);

/// What a program asks for (`CUmem_range_attribute`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeAttribute {
    /// Whether all pages are read mostly.
    ReadMostly,
    /// The location that all pages prefer.
    PreferredLocation,
    /// The processors that access all pages.
    AccessedBy,
    /// The location to which all pages were last prefetched.
    PrefetchLocation,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeAnswer {
    /// Yes or no.
    Flag(bool),
    /// A location; `None` if not all pages have the same one.
    Location(Option<Location>),
    /// Processors.
    Locations(Vec<Location>),
}

impl Advised {
    fn advise(&mut self, advice: Advice, of: Location) {
        match advice {
            Advice::ReadMostly(is_set) => self.is_read_mostly = is_set,
            Advice::PreferredLocation => self.preferred = Some(of),
            Advice::NoPreferredLocation => self.preferred = None,
            Advice::AccessedBy(true) => {
                self.accessed_by.insert(of);
            }
            Advice::AccessedBy(false) => {
                self.accessed_by.remove(&of);
            }
        }
    }
}

impl AllAdvice {
    fn change(&mut self, range: &Range<u64>, change: impl Fn(&mut Advised)) {
        let range = pages(range);
        self.split(range.start);
        self.split(range.end);
        let mut gaps = Vec::new();
        let mut at = range.start;
        self.0.visit_range(range.clone(), |from, segment| {
            gaps.push(at..from);
            at = segment.end;
            change(&mut segment.advised);
        });
        gaps.push(at..range.end);
        for gap in gaps.into_iter().filter(|gap| !gap.is_empty()) {
            let mut advised = Advised::default();
            change(&mut advised);
            self.0.insert(gap.start, Segment { end: gap.end, advised });
        }
    }

    /// Splits the range around `at`, so that `at` is a boundary.
    fn split(&mut self, at: u64) {
        let Some((_, segment)) = self.0.last_before_mut(at) else { return };
        if segment.end > at {
            let upper = segment.clone();
            segment.end = at;
            self.0.insert(at, upper);
        }
    }

    /// Forgets what was advised about memory that was freed.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        let range = pages(range);
        self.split(range.start);
        self.split(range.end);
        for at in self.0.numbers(range) {
            self.0.remove(at);
        }
    }

    /// Returns what holds for each part of a range.
    fn parts(&self, range: &Range<u64>) -> Vec<Advised> {
        let first = self.0.last_before(range.start).filter(|(_, segment)| segment.end > range.start);
        let mut parts = Vec::new();
        let mut at = range.start;
        for (from, segment) in first.into_iter().chain(self.0.range(range.clone())) {
            if from > at {
                parts.push(Advised::default());
            }
            parts.push(segment.advised.clone());
            at = segment.end;
        }
        if at < range.end {
            parts.push(Advised::default());
        }
        parts
    }

    fn answer(&self, range: &Range<u64>, attribute: RangeAttribute) -> RangeAnswer {
        let parts = self.parts(range);
        let common = |of: fn(&Advised) -> Option<Location>| {
            let first = of(&parts[0]);
            RangeAnswer::Location(first.filter(|_| parts.iter().all(|part| of(part) == first)))
        };
        match attribute {
            RangeAttribute::ReadMostly => RangeAnswer::Flag(parts.iter().all(|part| part.is_read_mostly)),
            RangeAttribute::PreferredLocation => common(|part| part.preferred),
            RangeAttribute::PrefetchLocation => common(|part| part.prefetched),
            RangeAttribute::AccessedBy => {
                let by_all = |of: &&Location| parts.iter().all(|part| part.accessed_by.contains(of));
                RangeAnswer::Locations(parts[0].accessed_by.iter().filter(by_all).copied().collect())
            }
        }
    }
}

/// Returns the pages that a range is in.
fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE)
}

impl Engine {
    pub(super) fn note_prefetch(&self, range: &Range<u64>, to: Location) {
        self.state().advice.change(range, |advised| advised.prefetched = Some(to));
    }

    pub(super) fn note_advice(&self, range: &Range<u64>, advice: Advice, of: Location) {
        self.state().advice.change(range, |advised| advised.advise(advice, of));
    }

    /// `cuMemRangeGetAttribute`
    ///
    /// # Errors
    /// Returns `InvalidValue` unless all bytes are in managed memory.
    pub fn range_attribute(
        &self,
        address: u64,
        len: u64,
        attribute: RangeAttribute,
    ) -> CudaResult<RangeAnswer> {
        self.check_managed("cuMemRangeGetAttribute", address, len)?;
        Ok(self.state().advice.answer(&(address..address + len), attribute))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(advice: &AllAdvice, range: Range<u64>) -> Option<Location> {
        match advice.answer(&range, RangeAttribute::PreferredLocation) {
            RangeAnswer::Location(location) => location,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn advice_holds_for_whole_pages() {
        let mut advice = AllAdvice::default();
        let prefer = |advised: &mut Advised| advised.advise(Advice::PreferredLocation, Location::Host);
        advice.change(&(PAGE + 100..PAGE + 101), prefer);
        assert_eq!(location(&advice, PAGE..2 * PAGE), Some(Location::Host));
        assert_eq!(location(&advice, 0..PAGE), None);
        assert_eq!(location(&advice, PAGE - 1..2 * PAGE), None);
        assert_eq!(location(&advice, PAGE..2 * PAGE + 1), None);
        advice.change(&(2 * PAGE..4 * PAGE), prefer);
        assert_eq!(location(&advice, PAGE..4 * PAGE), Some(Location::Host));
        let other = |advised: &mut Advised| advised.advise(Advice::PreferredLocation, Location::Gpu(1));
        advice.change(&(3 * PAGE..3 * PAGE + 1), other);
        assert_eq!(location(&advice, PAGE..4 * PAGE), None);
        assert_eq!(location(&advice, 3 * PAGE..4 * PAGE), Some(Location::Gpu(1)));
        advice.forget(&(0..3 * PAGE));
        assert_eq!(location(&advice, 2 * PAGE..3 * PAGE), None);
        assert_eq!(location(&advice, 3 * PAGE..4 * PAGE), Some(Location::Gpu(1)));
    }

    #[test]
    fn a_processor_accesses_a_range_if_it_accesses_every_page() {
        let mut advice = AllAdvice::default();
        let by = |of: Location, is_set: bool| {
            move |advised: &mut Advised| advised.advise(Advice::AccessedBy(is_set), of)
        };
        let all = |advice: &AllAdvice| advice.answer(&(0..2 * PAGE), RangeAttribute::AccessedBy);
        advice.change(&(0..2 * PAGE), by(Location::Gpu(0), true));
        advice.change(&(0..PAGE), by(Location::Gpu(1), true));
        assert_eq!(all(&advice), RangeAnswer::Locations(vec![Location::Gpu(0)]));
        advice.change(&(PAGE..2 * PAGE), by(Location::Gpu(1), true));
        advice.change(&(PAGE..PAGE + 1), by(Location::Gpu(0), false));
        assert_eq!(all(&advice), RangeAnswer::Locations(vec![Location::Gpu(1)]));
    }
}
