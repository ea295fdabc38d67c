//! Test data that reveals mistakes: it differs by rank and has no repetitions or symmetry.

use crate::random::SplitMix64;

/// Returns `len` integers from −1000 to 1000 for a rank. None of them is 0, so that an element that was never filled
/// stands out.
///
/// Sums over up to 16 ranks stay below 2²⁴, where `f32` is exact in any order, so compare them bit for bit.
pub fn integers(rank: usize, len: usize) -> Vec<f32> {
    let mut random = SplitMix64::new(0x51ed_2701 + rank as u64 * 0x1_0000_0001);
    (0..len)
        .map(|_| {
            let magnitude = 1 + random.below(1000) as i32;
            let sign = if random.below(2) == 0 { 1 } else { -1 };
            (magnitude * sign) as f32
        })
        .collect()
}

/// Returns `len` integers from −9 to 9 for a rank, none of them 0.
///
/// Sums of up to 2,500 products of four of these integers stay below 2²⁴, where `f32` is exact in any order.
pub fn small_integers(rank: usize, len: usize) -> Vec<f32> {
    integers(rank, len).into_iter().map(|value| value.signum() * (1.0 + value.abs() % 9.0)).collect()
}

/// Returns `len` numbers from −1 to 1 for a rank. Most of them use all 24 bits of an `f32`, so their sums are rounded.
pub fn fractions(rank: usize, len: usize) -> Vec<f32> {
    let mut random = SplitMix64::new(0x6a09_e667 + rank as u64 * 0x1_0000_0001);
    (0..len).map(|_| random.uniform(-1.0, 1.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_no_data_and_nothing_is_zero() {
        let data: Vec<Vec<f32>> = (0..5).map(|rank| integers(rank, 257)).collect();
        for rank in 0..5 {
            assert!(data[rank].iter().all(|&x| x != 0.0 && x.abs() <= 1000.0 && x == x.trunc()));
            for other in 0..rank {
                let same = data[rank].iter().zip(&data[other]).filter(|(a, b)| a == b).count();
                assert!(same < 5, "{same} of 257 elements are alike");
            }
        }
    }

    #[test]
    fn small_integers_take_each_value() {
        let values = small_integers(1, 1000);
        assert!((1..=9).all(|size| values.contains(&(size as f32)) && values.contains(&(-size as f32))));
        assert!(values.iter().all(|&x| x != 0.0 && x.abs() <= 9.0));
    }

    #[test]
    fn a_longer_buffer_starts_like_a_shorter_one() {
        assert_eq!(integers(3, 10), integers(3, 100)[..10]);
    }
}
