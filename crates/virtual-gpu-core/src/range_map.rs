//! A map from ranges of numbers to values.

use std::ops::Range;

use crate::number_map::NumberMap;

/// Maps ranges of numbers, such as addresses, to values. The ranges don't overlap, and a number in none of them has no
/// value.
#[derive(Debug)]
pub struct RangeMap<V>(NumberMap<Segment<V>>);

/// A range, without its first number, which is the segment's key.
#[derive(Clone, Debug)]
struct Segment<V> {
    end: u64,
    value: V,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        Self(NumberMap::default())
    }
}

impl<V: Clone + Default> RangeMap<V> {
    /// Returns the value of a number.
    pub fn get(&self, number: u64) -> Option<&V> {
        let (_, segment) = self.0.last_before(number + 1)?;
        (number < segment.end).then_some(&segment.value)
    }

    /// Calls `change` with each part of a range that has one value, and with the value. A part without a value gets the
    /// default first. The parts that have a value come first; otherwise, the order is ascending.
    pub fn change(&mut self, range: Range<u64>, mut change: impl FnMut(Range<u64>, &mut V)) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let mut gaps = Vec::new();
        let mut at = range.start;
        self.0.visit_range(range.clone(), |from, segment| {
            if from > at {
                gaps.push(at..from);
            }
            at = segment.end;
            change(from..segment.end, &mut segment.value);
        });
        if at < range.end {
            gaps.push(at..range.end);
        }
        for gap in gaps {
            let mut value = V::default();
            change(gap.clone(), &mut value);
            self.0.insert(gap.start, Segment { end: gap.end, value });
        }
    }

    /// Gives a range the value of its first number, which must be the start of a part.
    pub fn merge(&mut self, range: Range<u64>) {
        for at in self.0.numbers(range.start + 1..range.end) {
            self.0.remove(at);
        }
        if let Some(first) = self.0.get_mut(range.start) {
            first.end = range.end;
        }
    }

    /// Removes the values of a range, and returns them with their parts of the range.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<(Range<u64>, V)> {
        self.split(range.start);
        self.split(range.end);
        let parts = self.0.numbers(range).into_iter();
        parts.filter_map(|at| self.0.remove(at).map(|segment| (at..segment.end, segment.value))).collect()
    }

    /// Returns the values of the parts of a range, in ascending order; `None` stands for a part without a value.
    pub fn parts(&self, range: Range<u64>) -> Vec<Option<&V>> {
        let mut parts = Vec::new();
        if range.is_empty() {
            return parts;
        }
        let first = self.0.last_before(range.start).filter(|(_, segment)| segment.end > range.start);
        let mut at = range.start;
        for (from, segment) in first.into_iter().chain(self.0.range(range.clone())) {
            if from > at {
                parts.push(None);
            }
            parts.push(Some(&segment.value));
            at = segment.end;
        }
        if at < range.end {
            parts.push(None);
        }
        parts
    }

    /// Returns whether more than `count` parts with a value start in a range.
    pub fn has_more_than(&self, count: usize, range: Range<u64>) -> bool {
        self.0.range(range).nth(count).is_some()
    }

    /// Returns the values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.values().map(|segment| &segment.value)
    }

    /// Returns the values, in no particular order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.values_mut().map(|segment| &mut segment.value)
    }

    /// Splits the part around `at`, so that `at` is a boundary.
    fn split(&mut self, at: u64) {
        let Some((_, segment)) = self.0.last_before_mut(at) else { return };
        if segment.end > at {
            let upper = segment.clone();
            segment.end = at;
            self.0.insert(at, upper);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_changes_give_the_same_map_as_number_by_number() {
        const NUMBERS: usize = 40;
        let (mut map, mut expected) = (RangeMap::default(), [None; NUMBERS]);
        let mut random = 7_u64;
        for step in 0..5000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let below = |shift: u32, bound: u64| (random >> shift) % bound;
            let start = below(48, NUMBERS as u64);
            let range = start..start + below(40, NUMBERS as u64 - start + 1);
            let part = &mut expected[range.start as usize..range.end as usize];
            match below(32, 4) {
                0 => {
                    let mut changed = 0;
                    map.change(range.clone(), |part, value: &mut u64| {
                        changed += part.end - part.start;
                        *value += step;
                    });
                    part.iter_mut().for_each(|value| *value = Some(value.unwrap_or(0) + step));
                    assert_eq!(changed, range.end - range.start);
                }
                1 if !range.is_empty() => {
                    map.change(range.clone(), |_, value| *value = step);
                    map.merge(range);
                    part.fill(Some(step));
                }
                2 => {
                    let removed: u64 = map.remove(range).iter().map(|(part, _)| part.end - part.start).sum();
                    assert_eq!(removed, part.iter().flatten().count() as u64);
                    part.fill(None);
                }
                _ => {
                    let mut parts = part.to_vec();
                    parts.dedup();
                    let mut found: Vec<_> =
                        map.parts(range).into_iter().map(Option::<&u64>::cloned).collect();
                    // Neighbors may have the same value.
                    found.dedup();
                    assert_eq!(found, parts, "step {step}");
                }
            }
            for (number, value) in expected.iter().enumerate() {
                assert_eq!(map.get(number as u64), value.as_ref(), "step {step}, number {number}");
            }
        }
    }
}
