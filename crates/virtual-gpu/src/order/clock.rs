//! Vector clocks: which operations are known to have happened.

use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::sorted::{SortedMap, SortedSet};

/// For each stream, the number of its last operation that has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(SortedMap<StreamHandle, u64>);

impl Clock {
    /// Returns whether the `number`th operation on `stream` has happened.
    pub fn covers(&self, stream: StreamHandle, number: u64) -> bool {
        self.0.get(&stream).is_some_and(|&known| known >= number)
    }

    /// Records that the `number`th operation on `stream` and all operations before it have happened.
    pub fn advance(&mut self, stream: StreamHandle, number: u64) {
        let known = self.0.get_or_insert_with(stream, || 0);
        *known = number.max(*known);
    }

    /// Adds everything that `other` knows.
    pub(crate) fn join(&mut self, other: &Self) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        self.0.merge(&other.0, |known, number| *known = (*known).max(*number));
    }

    /// Returns the clock's streams and their numbers.
    pub fn entries(&self) -> &[(StreamHandle, u64)] {
        self.0.entries()
    }

    /// Removes streams that are gone, because nothing will query them again.
    pub(crate) fn forget(&mut self, gone: &SortedSet<StreamHandle>) {
        self.0.retain(|stream, _| !gone.contains(stream));
    }
}

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

    pub(crate) fn advance(&mut self, stream: StreamHandle, number: u64) {
        self.own.advance(stream, number);
        self.any.advance(stream, number);
    }

    pub(crate) fn forget(&mut self, gone: &SortedSet<StreamHandle>) {
        self.own.forget(gone);
        self.any.forget(gone);
    }
}

#[cfg(test)]
mod tests {
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
        first.forget(&[a].into());
        assert!(!first.covers(a, 1));
    }
}
