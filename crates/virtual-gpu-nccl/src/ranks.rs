//! One value for each rank of a communicator.

use std::ops::{Index, IndexMut};

use super::wire::{Reader, Wire, Writer};
use virtual_gpu_core::handle::Rank;

/// One value for each rank of a communicator, in rank order.
pub(crate) struct Ranks<T>(Vec<T>);

impl<T> Ranks<T> {
    /// Computes a value for each rank of a communicator with `world_size` ranks.
    pub(crate) fn new(world_size: usize, value: impl FnMut(Rank) -> T) -> Self {
        Rank::all(world_size).map(value).collect()
    }

    /// Returns the world size.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the value for a rank that may not exist, because another process sent its number.
    pub(crate) fn get(&self, rank: Rank) -> Option<&T> {
        self.0.get(rank.0)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (Rank, &T)> {
        Rank::all(self.len()).zip(&self.0)
    }

    pub(crate) fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (Rank, &mut T)> {
        Rank::all(self.len()).zip(&mut self.0)
    }

    pub(crate) fn values(&self) -> impl ExactSizeIterator<Item = &T> {
        self.0.iter()
    }

    pub(crate) fn values_mut(&mut self) -> impl ExactSizeIterator<Item = &mut T> {
        self.0.iter_mut()
    }

    pub(crate) fn into_values(self) -> impl ExactSizeIterator<Item = T> {
        self.0.into_iter()
    }
}

impl<T> IntoIterator for Ranks<T> {
    type Item = (Rank, T);
    type IntoIter = std::iter::Map<std::iter::Enumerate<std::vec::IntoIter<T>>, fn((usize, T)) -> (Rank, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().enumerate().map(|(rank, value)| (Rank(rank), value))
    }
}

impl<T> Index<Rank> for Ranks<T> {
    type Output = T;

    fn index(&self, rank: Rank) -> &T {
        &self.0[rank.0]
    }
}

impl<T> IndexMut<Rank> for Ranks<T> {
    fn index_mut(&mut self, rank: Rank) -> &mut T {
        &mut self.0[rank.0]
    }
}

impl<T> From<Vec<T>> for Ranks<T> {
    /// Uses the first value for rank 0.
    fn from(values: Vec<T>) -> Self {
        Self(values)
    }
}

impl<T> FromIterator<T> for Ranks<T> {
    /// Uses the first value for rank 0.
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl<T: Wire> Wire for Ranks<T> {
    fn write(&self, to: &mut Writer) {
        to.put(&self.0);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        from.get().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_comes_with_its_rank() {
        let mut ranks = Ranks::new(3, |rank| rank.0 * 10);
        assert_eq!(ranks.iter().collect::<Vec<_>>(), [(Rank(0), &0), (Rank(1), &10), (Rank(2), &20)]);
        ranks[Rank(1)] = 7;
        ranks.iter_mut().filter(|(rank, _)| *rank == Rank(2)).for_each(|(_, value)| *value = 8);
        assert_eq!(ranks.get(Rank(1)), Some(&7));
        assert_eq!(ranks.get(Rank(3)), None);
        assert_eq!(ranks.into_values().collect::<Vec<_>>(), [0, 7, 8]);
    }
}
