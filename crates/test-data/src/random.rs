//! Random numbers that are the same on every machine and in every run.

/// The SplitMix64 generator: a counter that increases by an odd constant, followed by a mix of its bits. Its 64-bit
/// state takes all 2⁶⁴ values, and every seed is equally good. From G. Steele, D. Lea, C. Flood: "Fast Splittable
/// Pseudorandom Number Generators", OOPSLA 2014, doi 10.1145/2660193.2660195, with the mixing constants of its
/// reference implementation.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator whose numbers depend only on `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number. All 2⁶⁴ values are equally likely.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number from `low` to `high`, in steps of 2⁻²⁴ of the distance.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.next_u64() >> 40) as f32 / (1 << 24) as f32;
        low + unit * (high - low)
    }

    /// Returns an integer below `bound`, or 0 if `bound` is 0. The probabilities deviate from uniform by less than
    /// `bound` / 2⁶⁴.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Shuffles the items (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference_implementation() {
        let mut random = SplitMix64::new(1234567);
        let numbers: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(numbers, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<usize> = (0..100).collect();
        SplitMix64::new(7).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_uniform_number_stays_in_its_range() {
        let mut random = SplitMix64::new(3);
        assert!((0..1000).map(|_| random.uniform(-2.0, 0.5)).all(|number| (-2.0..0.5).contains(&number)));
    }
}
