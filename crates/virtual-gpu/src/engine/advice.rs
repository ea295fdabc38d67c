//! What programs have advised about managed memory, and where they have prefetched it. This changes nothing here, but a
//! program can ask for it (`cuMemRangeGetAttribute`).

use std::ops::Range;

use super::Engine;
use super::managed::{Advice, Location};
use virtual_gpu_core::range_map::RangeMap;
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

/// What holds for all pages, by address.
#[derive(Debug, Default)]
pub(super) struct AllAdvice(RangeMap<Advised>);

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
        self.0.change(pages(range), |_, advised| change(advised));
    }

    /// Forgets what was advised about a range.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        self.0.remove(pages(range));
    }

    fn answer(&self, range: &Range<u64>, attribute: RangeAttribute) -> RangeAnswer {
        let nothing = Advised::default();
        let parts: Vec<_> =
            self.0.parts(range.clone()).into_iter().map(|part| part.unwrap_or(&nothing)).collect();
        let first = parts.first().copied().unwrap_or(&nothing);
        let common = |of: fn(&Advised) -> Option<Location>| {
            RangeAnswer::Location(of(first).filter(|_| parts.iter().all(|part| of(part) == of(first))))
        };
        match attribute {
            RangeAttribute::ReadMostly => RangeAnswer::Flag(parts.iter().all(|part| part.is_read_mostly)),
            RangeAttribute::PreferredLocation => common(|part| part.preferred),
            RangeAttribute::PrefetchLocation => common(|part| part.prefetched),
            RangeAttribute::AccessedBy => {
                let by_all = |of: &&Location| parts.iter().all(|part| part.accessed_by.contains(of));
                RangeAnswer::Locations(first.accessed_by.iter().filter(by_all).copied().collect())
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
