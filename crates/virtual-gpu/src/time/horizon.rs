//! How much an operation depends on others: the communications and host functions that it comes after.

use std::collections::BTreeMap;
use std::sync::Arc;

use virtual_gpu_core::handle::StreamHandle;

/// Communications and host functions: for each stream, all up to a certain number.
///
/// If an operation A depends on no more of them than an operation B does, A is certain to be over when B is, regardless
/// of what other threads do in the meantime. Only such operations may affect B's time; otherwise two runs could differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Horizon(Arc<BTreeMap<StreamHandle, u64>>);

impl Horizon {
    /// Adds everything in another horizon.
    pub(super) fn join(&mut self, other: &Self) {
        if Arc::ptr_eq(&self.0, &other.0) || other.is_within(self) {
            return;
        }
        if self.is_within(other) {
            self.0 = other.0.clone();
            return;
        }
        let own = Arc::make_mut(&mut self.0);
        for (&stream, &number) in other.0.iter() {
            let known = own.entry(stream).or_default();
            *known = number.max(*known);
        }
    }

    /// Returns this horizon with one more entry: the `number`th operation of its GPU.
    pub(super) fn with(&self, stream: StreamHandle, number: u64) -> Self {
        let mut more = self.clone();
        Arc::make_mut(&mut more.0).insert(stream, number);
        more
    }

    /// Returns whether the other horizon contains all of this one.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || self.0.iter().all(|(stream, number)| other.0.get(stream).is_some_and(|known| known >= number))
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
