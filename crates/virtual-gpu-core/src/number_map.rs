//! A map from numbers to values, in ascending order, for many entries.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::ops::Range;

/// Maps numbers, such as addresses, to values, in ascending order.
///
/// Adding, removing, and finding an entry takes as long as with a B-tree. The B-tree contains the indices of the values
/// and not the values, so the compiler translates it once and not for each type of value.
#[derive(Debug)]
pub struct NumberMap<V> {
    index: Index,
    /// Values by their place, which is empty if `index` has no number for it.
    values: Vec<Option<V>>,
}

/// The places of numbers in a list.
#[derive(Debug, Default)]
struct Index {
    places: BTreeMap<u64, usize>,
    /// The places that no number has anymore.
    vacant: Vec<usize>,
}

/// Numbers in ascending order, with their places.
struct Places<'a>(btree_map::Range<'a, u64, usize>);

// None of these functions is generic, so all maps share their code.
impl Index {
    fn get(&self, number: u64) -> Option<usize> {
        self.places.get(&number).copied()
    }

    /// Returns the place of a number. If it has none, it gets a vacant place or, if there is none, `end`.
    fn insert(&mut self, number: u64, end: usize) -> usize {
        let vacant = &mut self.vacant;
        *self.places.entry(number).or_insert_with(|| vacant.pop().unwrap_or(end))
    }

    fn remove(&mut self, number: u64) -> Option<usize> {
        let place = self.places.remove(&number)?;
        self.vacant.push(place);
        Some(place)
    }

    fn range(&self, numbers: Range<u64>) -> Places<'_> {
        Places(self.places.range(numbers))
    }

    fn last_before(&self, end: u64) -> Option<(u64, usize)> {
        self.range(0..end).next_back()
    }

    fn numbers(&self, range: Range<u64>) -> Vec<u64> {
        self.range(range).map(|(number, _)| number).collect()
    }
}

impl Iterator for Places<'_> {
    type Item = (u64, usize);

    fn next(&mut self) -> Option<(u64, usize)> {
        self.0.next().map(|(&number, &place)| (number, place))
    }
}

impl DoubleEndedIterator for Places<'_> {
    fn next_back(&mut self) -> Option<(u64, usize)> {
        self.0.next_back().map(|(&number, &place)| (number, place))
    }
}

impl<V> Default for NumberMap<V> {
    fn default() -> Self {
        Self { index: Index::default(), values: Vec::new() }
    }
}

impl<V> NumberMap<V> {
    /// Returns the value of a number.
    pub fn get(&self, number: u64) -> Option<&V> {
        self.values[self.index.get(number)?].as_ref()
    }

    /// Returns the value of a number.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut V> {
        self.values[self.index.get(number)?].as_mut()
    }

    /// Sets the value of a number.
    pub fn insert(&mut self, number: u64, value: V) {
        let place = self.index.insert(number, self.values.len());
        if place == self.values.len() {
            self.values.push(None);
        }
        self.values[place] = Some(value);
    }

    /// Removes a number and returns its value.
    pub fn remove(&mut self, number: u64) -> Option<V> {
        self.values[self.index.remove(number)?].take()
    }

    /// Returns the entry with the greatest number below `end`.
    pub fn last_before(&self, end: u64) -> Option<(u64, &V)> {
        let (number, place) = self.index.last_before(end)?;
        Some((number, self.values[place].as_ref()?))
    }

    /// Returns the entry with the greatest number below `end`.
    pub fn last_before_mut(&mut self, end: u64) -> Option<(u64, &mut V)> {
        let (number, place) = self.index.last_before(end)?;
        Some((number, self.values[place].as_mut()?))
    }

    /// Returns the entries with numbers in a range, in ascending order.
    pub fn range(&self, numbers: Range<u64>) -> impl DoubleEndedIterator<Item = (u64, &V)> {
        self.index.range(numbers).filter_map(|(number, place)| Some((number, self.values[place].as_ref()?)))
    }

    /// Calls `visit` with the entries with numbers in a range, in ascending order.
    pub fn visit_range(&mut self, numbers: Range<u64>, mut visit: impl FnMut(u64, &mut V)) {
        for (number, place) in self.index.range(numbers) {
            if let Some(value) = &mut self.values[place] {
                visit(number, value);
            }
        }
    }

    /// Returns the numbers in a range, in ascending order.
    pub fn numbers(&self, range: Range<u64>) -> Vec<u64> {
        self.index.numbers(range)
    }

    /// Returns the values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.values.iter().flatten()
    }

    /// Returns the values, in no particular order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.values.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_changes_give_the_same_map_as_a_b_tree() {
        let (mut map, mut expected) = (NumberMap::default(), BTreeMap::new());
        let mut random = 7_u64;
        for step in 0..5000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (number, end) = (random >> 56, random >> 48 & 0xff);
            match random >> 40 & 3 {
                0 => assert_eq!(map.remove(number), expected.remove(&number)),
                1 => {
                    map.insert(number, step);
                    expected.insert(number, step);
                }
                2 if number <= end => {
                    map.visit_range(number..end, |_, value| *value += 1);
                    expected.range_mut(number..end).for_each(|(_, value)| *value += 1);
                }
                _ => {
                    assert_eq!(map.get(number), expected.get(&number));
                    assert_eq!(map.get_mut(number), expected.get_mut(&number));
                    let last = expected.range(..end).next_back().map(|(&number, &value)| (number, value));
                    assert_eq!(map.last_before(end).map(|(number, &value)| (number, value)), last);
                    assert_eq!(map.last_before_mut(end).map(|(number, value)| (number, *value)), last);
                }
            }
            assert_eq!(map.values().count(), expected.len());
            assert_eq!(map.values().sum::<u64>(), expected.values().sum::<u64>());
        }
        assert!(map.range(0..u64::MAX).eq(expected.iter().map(|(&number, value)| (number, value))));
        assert!(
            map.range(9..200).rev().eq(expected.range(9..200).rev().map(|(&number, value)| (number, value)))
        );
        assert!(map.numbers(9..200).iter().eq(expected.range(9..200).map(|(number, _)| number)));
        assert!(map.values.len() <= 256, "vacant places are not reused");
    }
}
