//! Tracks which communications and host functions an operation comes after.

use std::sync::Arc;

use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::sorted::SortedMap;

/// Maps each stream to the last of its communications and host functions that an operation comes after, given by its
/// number among all operations enqueued on its GPU. The operation also comes after that stream's earlier ones.
///
/// If operation B's horizon contains operation A's, A is certain to be over when B is, regardless of what other threads
/// do. Only such operations may affect B's time; otherwise, two runs could differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Horizon(Arc<SortedMap<StreamHandle, u64>>);

impl Horizon {
    /// Adds all entries of another horizon.
    pub(super) fn join(&mut self, other: &Self) {
        if Arc::ptr_eq(&self.0, &other.0) || other.is_within(self) {
            return;
        }
        if self.is_within(other) {
            self.0 = other.0.clone();
            return;
        }
        Arc::make_mut(&mut self.0).merge(&other.0, |own, &number| *own = number.max(*own));
    }

    /// Returns this horizon with an additional entry: an operation on `stream`, which is the `number`th on its GPU.
    pub(super) fn with(&self, stream: StreamHandle, number: u64) -> Self {
        let mut more = self.clone();
        Arc::make_mut(&mut more.0).insert(stream, number);
        more
    }

    /// Returns whether the other horizon contains everything in this one.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || other.0.includes(&self.0, |known, number| known >= number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_holds_both_and_neither_holds_the_other() {
        let at = |stream, number| Horizon::default().with(StreamHandle(stream), number);
        let (one, other) = (at(1, 5), at(2, 3));
        let mut both = one.clone();
        both.join(&other);
        assert!(one.is_within(&both) && other.is_within(&both) && !both.is_within(&one));
        assert!(!one.is_within(&other) && at(1, 4).is_within(&one) && !at(1, 6).is_within(&both));
        assert!(Horizon::default().is_within(&one));
    }
}
