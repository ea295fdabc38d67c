//! Vector clocks: which operations are known to have happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::map::Map;
use virtual_gpu_core::sorted::{SortedMap, SortedSet};

/// So few numbers are compared as fast as two references to a common part.
const FEW_OWN: usize = 8;

/// A clock that knows more than this beyond its common part gets a new common part.
const MOST_OWN: usize = 32;

/// A common part remembers the ids of this many earlier ones.
const MOST_EARLIER: usize = 512;

/// For each stream, the number of its last operation that has happened.
///
/// After a collective, all its ranks know the same, and then each learns a little more. So their clocks refer to one
/// common part. Joining two clocks with the same common part then takes no longer with a thousand ranks than with ten.
///
/// A copy refers to the same numbers until one of the two learns more.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    common: Option<Arc<Common>>,
    /// What the clock knows beyond the common part: only greater numbers. `None` means nothing.
    own: Option<Arc<SortedMap<StreamHandle, u64>>>,
}

/// What several clocks know. It never changes.
#[derive(Debug)]
struct Common {
    /// Greater than those of all earlier ones.
    id: u64,
    numbers: SortedMap<StreamHandle, u64>,
    /// The ids of the most recent common parts whose numbers are all included in this one.
    earlier: Vec<u64>,
}

impl Common {
    fn new(numbers: SortedMap<StreamHandle, u64>, mut earlier: Vec<u64>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        earlier.sort_unstable();
        earlier.dedup();
        earlier.drain(..earlier.len().saturating_sub(MOST_EARLIER));
        Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), numbers, earlier })
    }

    /// Returns whether this part includes all numbers of another one.
    fn includes(&self, other: &Self) -> bool {
        self.id == other.id
            || self.earlier.binary_search(&other.id).is_ok()
            || self.numbers.includes(&other.numbers, is_enough)
    }

    /// Returns [`Self::earlier`] for a part that includes all numbers of this one.
    fn included(&self) -> Vec<u64> {
        self.earlier.iter().copied().chain([self.id]).collect()
    }
}

impl Clock {
    /// Returns whether the `number`th operation on `stream` has happened.
    pub fn covers(&self, stream: StreamHandle, number: u64) -> bool {
        self.known(stream).is_some_and(|&known| known >= number)
    }

    /// Returns whether this clock knows everything that `other` knows, except about the streams that `ignores` accepts.
    pub(super) fn includes_but(&self, other: &Self, ignores: impl Fn(StreamHandle) -> bool) -> bool {
        let common = other.common.as_ref().filter(|_| !self.has_common_of(other));
        let numbers = common.map(|common| &common.numbers).into_iter().chain(other.own.as_deref());
        let mut entries = numbers.flat_map(SortedMap::entries);
        entries.all(|&(stream, number)| self.covers(stream, number) || ignores(stream))
    }

    /// Returns the number of the last operation on `stream` that has happened.
    fn known(&self, stream: StreamHandle) -> Option<&u64> {
        let own = self.own.as_ref().and_then(|own| own.get(&stream));
        own.or_else(|| self.common.as_ref()?.numbers.get(&stream))
    }

    /// Records that the `number`th operation on `stream` and all operations before it have happened.
    pub fn advance(&mut self, stream: StreamHandle, number: u64) {
        if !self.covers(stream, number) {
            Arc::make_mut(self.own.get_or_insert_default()).insert(stream, number);
        }
    }

    /// Adds everything that `other` knows.
    pub(crate) fn join(&mut self, other: &Self) {
        if let Some(others) = &other.common {
            self.join_common(others);
        }
        let Some(others) = &other.own else { return };
        match &self.own {
            Some(own) if Arc::ptr_eq(own, others) => {}
            own if self.has_common_of(other)
                && own.as_ref().is_none_or(|own| others.includes(own, is_enough)) =>
            {
                self.own = Some(Arc::clone(others));
            }
            _ => others.entries().iter().for_each(|&(stream, number)| self.advance(stream, number)),
        }
        if self.own_len() > MOST_OWN {
            self.share();
        }
    }

    /// Returns whether both clocks have the same common part, or none.
    fn has_common_of(&self, other: &Self) -> bool {
        match (&self.common, &other.common) {
            (Some(common), Some(others)) => Arc::ptr_eq(common, others),
            (None, None) => true,
            _ => false,
        }
    }

    /// Adds what is in a common part.
    fn join_common(&mut self, others: &Arc<Common>) {
        let joined = match &self.common {
            None => Arc::clone(others),
            // Almost always, one of them includes the other.
            Some(common) if common.includes(others) => return,
            Some(common) if others.includes(common) => Arc::clone(others),
            Some(common) => {
                let mut numbers = common.numbers.clone();
                numbers.merge(&others.numbers, keep_greater);
                Common::new(numbers, [others.included(), common.included()].concat())
            }
        };
        self.retain_own(|stream, own| joined.numbers.get(stream).is_none_or(|known| known < own));
        self.common = Some(joined);
    }

    /// Puts what the clock knows into the common part, before other clocks are made from this one.
    fn share(&mut self) {
        if self.own_len() <= FEW_OWN {
            return;
        }
        let earlier = self.common.as_ref().map(|common| common.included()).unwrap_or_default();
        self.common = Some(Common::new(self.numbers(), earlier));
        self.own = None;
    }

    /// Returns the clock's streams and their numbers.
    pub fn numbers(&self) -> SortedMap<StreamHandle, u64> {
        let mut numbers = self.common.as_ref().map(|common| common.numbers.clone()).unwrap_or_default();
        if let Some(own) = &self.own {
            numbers.merge(own, keep_greater);
        }
        numbers
    }

    /// Returns about how many streams the clock has numbers for; one may be counted twice.
    pub(super) fn size(&self) -> usize {
        self.common.as_ref().map_or(0, |common| common.numbers.len()) + self.own_len()
    }

    /// Returns how many streams the clock knows more about than its common part.
    fn own_len(&self) -> usize {
        self.own.as_ref().map_or(0, |own| own.len())
    }

    /// Keeps the numbers for which `keep` returns `true`, of those that are not in the common part.
    fn retain_own(&mut self, keep: impl Fn(&StreamHandle, &u64) -> bool) {
        if let Some(own) = &mut self.own
            && !own.entries().iter().all(|(stream, number)| keep(stream, number))
        {
            Arc::make_mut(own).retain(keep);
        }
    }

    /// Removes streams that are gone, because nothing will query them again.
    pub(super) fn forget(&mut self, gone: &mut Gone<'_>) {
        self.retain_own(|stream, _| !gone.streams.contains(stream));
        if let Some(common) = &mut self.common {
            *common = gone.without(common);
        }
    }
}

/// Streams that are gone, and the common parts without them.
pub(crate) struct Gone<'a> {
    streams: &'a SortedSet<StreamHandle>,
    /// The new common parts, by the ids of the old ones.
    without: Map<u64, Arc<Common>>,
}

impl<'a> Gone<'a> {
    pub(super) fn new(streams: &'a SortedSet<StreamHandle>) -> Self {
        Self { streams, without: Map::default() }
    }

    /// Returns a common part without the streams that are gone. It is the same for all clocks that had the old one, and
    /// includes all of the old one that matters.
    fn without(&mut self, common: &Arc<Common>) -> Arc<Common> {
        let new = self.without.entry(common.id).or_insert_with(|| {
            let mut numbers = common.numbers.clone();
            numbers.retain(|stream, _| !self.streams.contains(stream));
            match numbers.len() == common.numbers.len() {
                true => Arc::clone(common),
                false => Common::new(numbers, common.included()),
            }
        });
        Arc::clone(new)
    }
}

fn keep_greater(known: &mut u64, number: &u64) {
    *known = (*known).max(*number);
}

fn is_enough(known: &u64, number: &u64) -> bool {
    known >= number
}

impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        self.numbers() == other.numbers()
    }
}

impl Eq for Clock {}

/// What had happened when an operation was enqueued, or when it is done.
///
/// A driver can't see how host threads synchronize. So accesses enqueued by one thread are ordered by what that thread
/// has seen, and accesses enqueued by different threads are ordered by what any thread has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// As far as the enqueuing thread knows.
    pub own: Clock,
    /// As far as any thread knows.
    pub any: Clock,
}

impl View {
    /// Adds everything that another view knows.
    pub fn join(&mut self, other: &Self) {
        self.own.join(&other.own);
        self.any.join(&other.any);
    }

    /// Prepares the view for being added to many others, such as those of a collective's ranks.
    pub fn share(&mut self) {
        self.own.share();
        self.any.share();
    }

    pub(crate) fn advance(&mut self, stream: StreamHandle, number: u64) {
        self.own.advance(stream, number);
        self.any.advance(stream, number);
    }

    pub(crate) fn forget(&mut self, gone: &mut Gone<'_>) {
        self.own.forget(gone);
        self.any.forget(gone);
    }
}

#[cfg(test)]
mod tests {
    use test_data::random::SplitMix64;

    use super::*;

    #[test]
    fn a_join_knows_what_either_knew() {
        let (a, b) = (StreamHandle(16), StreamHandle(32));
        let mut first = Clock::default();
        first.advance(a, 3);
        let mut second = Clock::default();
        second.advance(b, 5);
        second.advance(a, 1);
        first.join(&second);
        assert!(first.covers(a, 3) && first.covers(b, 5) && first.covers(b, 1));
        assert!(!first.covers(a, 4) && !first.covers(StreamHandle(48), 1));
        first.forget(&mut Gone::new(&[a].into()));
        assert!(!first.covers(a, 1));
    }

    #[test]
    fn a_clock_that_includes_another_but_for_some_streams_knows_the_rest() {
        let at = |numbers: &[(u64, u64)], is_shared| {
            let mut clock = Clock::default();
            // A clock with so few entries has no common part.
            let more = (100..100 + FEW_OWN as u64).map(|stream| (stream, 1)).filter(|_| is_shared);
            for (stream, number) in numbers.iter().copied().chain(more) {
                clock.advance(StreamHandle(stream), number);
            }
            clock.share();
            assert_eq!(clock.common.is_some(), is_shared);
            clock
        };
        let ignores = |stream: StreamHandle| stream == StreamHandle(3);
        for is_shared in [false, true] {
            let clock = at(&[(1, 5), (2, 2)], is_shared);
            assert!(clock.includes_but(&clock.clone(), ignores));
            assert!(clock.includes_but(&at(&[(1, 5), (2, 1), (3, 9)], is_shared), ignores));
            assert!(!clock.includes_but(&at(&[(1, 6)], is_shared), ignores));
            assert!(!clock.includes_but(&at(&[(4, 1)], is_shared), ignores));
        }
    }

    #[test]
    fn clocks_with_common_parts_know_what_plain_maps_know() {
        const CLOCKS: usize = 6;
        let mut with_common = 0;
        for seed in 0..40 {
            let mut random = SplitMix64::new(seed);
            let streams = FEW_OWN + random.below(3 * MOST_OWN);
            let mut clocks = vec![Clock::default(); CLOCKS];
            let mut plain = vec![SortedMap::<StreamHandle, u64>::default(); CLOCKS];
            let mut gone = SortedSet::default();
            for number in 1..600 {
                let (one, other) = (random.below(CLOCKS), random.below(CLOCKS));
                match random.below(20) {
                    0 => clocks[one].share(),
                    1..8 => {
                        let joined = clocks[other].clone();
                        clocks[one].join(&joined);
                        let joined = plain[other].clone();
                        plain[one].merge(&joined, keep_greater);
                    }
                    8 if random.below(8) == 0 => {
                        gone.insert(StreamHandle(random.below(streams) as u64));
                        let mut gone = Gone::new(&gone);
                        clocks.iter_mut().for_each(|clock| clock.forget(&mut gone));
                        plain.iter_mut().for_each(|plain| plain.retain(|it, _| !gone.streams.contains(it)));
                    }
                    _ => {
                        let (stream, number) = (StreamHandle(random.below(streams) as u64), number / 2);
                        if !gone.contains(&stream) {
                            clocks[one].advance(stream, number);
                            let known = plain[one].get_or_insert_with(stream, || 0);
                            *known = number.max(*known);
                        }
                    }
                }
                with_common += clocks.iter().filter(|clock| clock.common.is_some()).count();
                for (clock, plain) in clocks.iter().zip(&plain) {
                    assert_eq!(clock.numbers(), *plain, "seed {seed}, step {number}");
                    let stream = StreamHandle(random.below(streams) as u64);
                    let known = plain.get(&stream).copied();
                    assert_eq!(clock.covers(stream, known.unwrap_or(1)), known.is_some());
                    assert!(!clock.covers(stream, known.unwrap_or(0) + 1));
                }
            }
        }
        assert!(with_common > 0, "no clock had a common part");
    }
}
