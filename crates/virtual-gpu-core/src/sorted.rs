//! Sorted lists as maps and sets: less code than a B-tree, and for few entries as fast.
//!
//! Finding an entry and adding one with the greatest key are quick, no matter how many entries there are. Adding or
//! removing any other entry moves all entries after it. So maps with many entries in any order are a
//! [`NumberMap`](crate::number_map::NumberMap) or a [`Map`](crate::map::Map) instead.

/// A map that is a list sorted by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Returns the index of a key's entry or, if there is none, the index at which it belongs.
    fn find(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|entry| entry.0.cmp(key))
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// Returns the value of a key.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    /// Returns whether the key has a value.
    pub fn contains_key(&self, key: &K) -> bool {
        self.find(key).is_ok()
    }

    /// Returns the value of a key, which is `new()` if it had none.
    pub fn get_or_insert_with(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        let at = match self.find(&key) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (key, new()));
                at
            }
        };
        &mut self.0[at].1
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: K, value: V) {
        match self.find(&key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(key).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Adds the entries of another map. Where both have a key, `combine` changes this map's value.
    pub fn merge(&mut self, other: &Self, mut combine: impl FnMut(&mut V, &V))
    where
        K: Clone,
        V: Clone,
    {
        let (mut at, mut new) = (0, Vec::new());
        for (key, value) in &other.0 {
            at = self.find_from(at, key);
            match self.0.get_mut(at).filter(|own| own.0 == *key) {
                Some(own) => {
                    combine(&mut own.1, value);
                    at += 1;
                }
                None => new.push((key.clone(), value.clone())),
            }
        }
        if !new.is_empty() {
            // Both parts are sorted, and the sort is quick for these.
            self.0.append(&mut new);
            self.0.sort_by(|one, other| one.0.cmp(&other.0));
        }
    }

    /// Returns whether this map has every key of another map, with a value for which `is_enough(own, other)` is true.
    pub fn includes(&self, other: &Self, is_enough: impl Fn(&V, &V) -> bool) -> bool {
        let mut at = 0;
        other.0.iter().all(|(key, value)| {
            at = self.find_from(at, key) + 1;
            self.0.get(at - 1).is_some_and(|own| own.0 == *key && is_enough(&own.1, value))
        })
    }

    /// Returns the index of the first entry from `at` on that doesn't come before `key`. If two maps are compared, they often
    /// have the same keys, so it is the next entry.
    fn find_from(&self, at: usize, key: &K) -> usize {
        match self.0.get(at..) {
            Some([own, ..]) if own.0 < *key => at + self.0[at..].partition_point(|own| own.0 < *key),
            _ => at,
        }
    }

    /// Keeps the entries for which `keep` returns `true`.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        self.0.retain(|(key, value)| keep(key, value));
    }

    /// Returns the entries in the order of their keys.
    pub fn entries(&self) -> &[(K, V)] {
        &self.0
    }

    /// Returns the values in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Returns the values in the order of their keys.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A set that is a sorted list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedSet<T>(Vec<T>);

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Ord> SortedSet<T> {
    /// Adds an item. Returns whether it is new.
    pub fn insert(&mut self, item: T) -> bool {
        let place = self.0.binary_search(&item);
        if let Err(at) = place {
            self.0.insert(at, item);
        }
        place.is_err()
    }

    /// Removes an item, if the set contains it.
    pub fn remove(&mut self, item: &T) {
        if let Ok(at) = self.0.binary_search(item) {
            self.0.remove(at);
        }
    }

    /// Returns whether the set contains an item.
    pub fn contains(&self, item: &T) -> bool {
        self.0.binary_search(item).is_ok()
    }

    /// Returns the items in order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Returns whether the set has no item.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut set = Self::default();
        for item in items {
            set.insert(item);
        }
        set
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for SortedSet<T> {
    fn from(items: [T; N]) -> Self {
        items.into_iter().collect()
    }
}

impl<'a, T: Ord> IntoIterator for &'a SortedSet<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_includes_another_if_it_has_all_its_keys_with_great_enough_values() {
        let map = |entries: &[(u32, u32)]| SortedMap(entries.to_vec());
        let own = map(&[(1, 5), (3, 5), (4, 5)]);
        for other in [&[][..], &[(1, 5)], &[(3, 4), (4, 5)], &[(1, 5), (3, 5), (4, 5)]] {
            assert!(own.includes(&map(other), |own, other| own >= other), "{other:?}");
        }
        for other in [&[(0, 1)][..], &[(2, 1)], &[(5, 1)], &[(1, 5), (3, 6)], &[(1, 1), (2, 1), (3, 1)]] {
            assert!(!own.includes(&map(other), |own, other| own >= other), "{other:?}");
        }
    }

    #[test]
    fn a_merge_has_the_entries_of_both() {
        let map = |entries: &[(u32, u32)]| SortedMap(entries.to_vec());
        let sum = |own: &mut u32, other: &u32| *own += other;
        for (own, other, both) in [
            (&[(1, 1), (3, 1)][..], &[][..], &[(1, 1), (3, 1)][..]),
            (&[], &[(2, 5)], &[(2, 5)]),
            (
                &[(1, 1), (3, 1), (5, 1)],
                &[(0, 7), (3, 2), (4, 7), (9, 7)],
                &[(0, 7), (1, 1), (3, 3), (4, 7), (5, 1), (9, 7)],
            ),
        ] {
            let mut merged = map(own);
            merged.merge(&map(other), sum);
            assert_eq!(merged, map(both));
        }
    }

    #[test]
    fn a_map_keeps_one_value_for_each_key_in_order() {
        let mut map = SortedMap::default();
        for (key, value) in [(3, "c"), (1, "a"), (2, "b"), (1, "A")] {
            map.insert(key, value);
        }
        assert_eq!(map.entries(), [(1, "A"), (2, "b"), (3, "c")]);
        assert_eq!((map.get(&2), map.get(&4), map.contains_key(&3)), (Some(&"b"), None, true));
        assert_eq!(*map.get_or_insert_with(2, || "new"), "b");
        assert_eq!(*map.get_or_insert_with(0, || "new"), "new");
        assert_eq!((map.remove(&1), map.remove(&1)), (Some("A"), None));
        *map.get_mut(&3).unwrap() = "C";
        map.values_mut().for_each(|value| *value = value.trim_start_matches('n'));
        map.retain(|&key, _| key != 2);
        assert!(map.values().eq(&["ew", "C"]));
        assert_eq!((map.len(), map.is_empty()), (2, false));
    }

    #[test]
    fn a_set_keeps_each_item_once_in_order() {
        let mut set = SortedSet::from([3, 1, 3]);
        assert_eq!((set.insert(2), set.insert(2)), (true, false));
        set.remove(&1);
        set.remove(&1);
        assert!(set.iter().eq(&[2, 3]));
        assert!(set.contains(&3) && !set.contains(&1) && !set.is_empty());
    }
}
