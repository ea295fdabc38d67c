//! What programs have advised about managed memory, and where they have prefetched it. This changes nothing here, but a
//! program can ask for it (`cuMemRangeGetAttribute`).

use std::ops::Range;

use super::Engine;
use super::managed::{Advice, Location};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::memory::AllocationId;
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

/// What holds for the pages of each allocation, by their offsets.
#[derive(Debug, Default)]
pub(super) struct AllAdvice(Map<AllocationId, RangeMap<Advised>>);

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
    fn change(&mut self, (of, range): &(AllocationId, Range<u64>), change: impl Fn(&mut Advised)) {
        // Memory starts at a page.
        let pages = range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE);
        self.0.entry(*of).or_default().change(pages, |_, advised| change(advised));
    }

    /// Notes where a range was prefetched.
    pub(super) fn note_prefetch(&mut self, range: &(AllocationId, Range<u64>), to: Location) {
        self.change(range, |advised| advised.prefetched = Some(to));
    }

    /// Notes what was advised about a range.
    pub(super) fn note(&mut self, range: &(AllocationId, Range<u64>), advice: Advice, of: Location) {
        self.change(range, |advised| advised.advise(advice, of));
    }

    /// Forgets memory that was freed.
    pub(super) fn forget(&mut self, of: AllocationId) {
        self.0.remove(&of);
    }

    fn answer(&self, (of, range): &(AllocationId, Range<u64>), attribute: RangeAttribute) -> RangeAnswer {
        let nothing = Advised::default();
        let parts = self.0.get(of).map_or(vec![None], |known| known.parts(range.clone()));
        let parts: Vec<_> = parts.into_iter().map(|part| part.unwrap_or(&nothing)).collect();
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

impl Engine {
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
        let range = self.managed_range("cuMemRangeGetAttribute", address, len)?;
        Ok(self.state().advice.answer(&range, attribute))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Location = Location::Host;
    const GPU: Location = Location::Gpu(1);

    fn range(of: u64, start: u64, end: u64) -> (AllocationId, Range<u64>) {
        (AllocationId(of), start..end)
    }

    #[test]
    fn advice_holds_for_whole_pages() {
        let mut advice = AllAdvice::default();
        let location = |advice: &AllAdvice, start, end| {
            let found = advice.answer(&range(1, start, end), RangeAttribute::PreferredLocation);
            let RangeAnswer::Location(location) = found else { panic!("{found:?}") };
            location
        };
        assert_eq!(location(&advice, 0, PAGE), None);
        advice.note(&range(1, PAGE + 100, PAGE + 101), Advice::PreferredLocation, HOST);
        assert_eq!(location(&advice, PAGE, 2 * PAGE), Some(HOST));
        for (start, end) in [(0, PAGE), (PAGE - 1, 2 * PAGE), (PAGE, 2 * PAGE + 1)] {
            assert_eq!(location(&advice, start, end), None);
        }
        advice.note(&range(1, 2 * PAGE, 4 * PAGE), Advice::PreferredLocation, HOST);
        assert_eq!(location(&advice, PAGE, 4 * PAGE), Some(HOST));
        advice.note(&range(1, 3 * PAGE, 3 * PAGE + 1), Advice::PreferredLocation, GPU);
        assert_eq!(location(&advice, PAGE, 4 * PAGE), None);
        assert_eq!(location(&advice, 3 * PAGE, 4 * PAGE), Some(GPU));
        let other = advice.answer(&range(2, PAGE, 2 * PAGE), RangeAttribute::PreferredLocation);
        assert_eq!(other, RangeAnswer::Location(None), "this is another allocation");
    }

    #[test]
    fn a_processor_accesses_a_range_if_it_accesses_every_page() {
        let mut advice = AllAdvice::default();
        let all = |advice: &AllAdvice| advice.answer(&range(1, 0, 2 * PAGE), RangeAttribute::AccessedBy);
        advice.note(&range(1, 0, 2 * PAGE), Advice::AccessedBy(true), HOST);
        advice.note(&range(1, 0, PAGE), Advice::AccessedBy(true), GPU);
        assert_eq!(all(&advice), RangeAnswer::Locations(vec![HOST]));
        advice.note(&range(1, PAGE, 2 * PAGE), Advice::AccessedBy(true), GPU);
        advice.note(&range(1, PAGE, PAGE + 1), Advice::AccessedBy(false), HOST);
        assert_eq!(all(&advice), RangeAnswer::Locations(vec![GPU]));
        advice.forget(AllocationId(1));
        assert_eq!(all(&advice), RangeAnswer::Locations(Vec::new()));
    }
}
