//! Tests of `warps.cu`.

use super::{assert_each, builds};
use crate::arguments;
use crate::gpu::{Gpu, Numbers};

const BUILDS: [&str; 4] = builds!("warps");

/// Returns numbers from 0 to 99.
fn small(seed: u64, count: usize) -> Vec<i32> {
    let mut numbers = Numbers(seed);
    (0..count).map(|_| (numbers.next() % 100) as i32).collect()
}

/// Returns the numbers in a thread's warp, and the thread's lane.
fn warp_of(a: &[i32], thread: usize) -> (&[i32], usize) {
    (&a[thread / 32 * 32..][..32], thread % 32)
}

/// Returns the lanes of a warp whose numbers satisfy the predicate.
fn ballot(warp: &[i32], question: impl Fn(i32) -> bool) -> u32 {
    warp.iter().enumerate().fold(0, |mask, (lane, &x)| mask | u32::from(question(x)) << lane)
}

#[test]
fn shuffles_of_every_kind_width_and_type() {
    let a = small(1, 128);
    let b: Vec<f64> = a.iter().map(|&x| f64::from(x) * 0.7).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b) = (gpu.buffer(&a), gpu.buffer(&b));
        let (out, wide) = (gpu.unwritten(128 * 32), gpu.unwritten(128 * 16));
        gpu.run("shuffles", 2, 64, arguments!(at_a, at_b, out, wide));
        assert_each("shuffles", &gpu.read::<i32>(out), |i| {
            let (warp, lane) = warp_of(&a, i);
            let or_own = |is_inside: bool, from: usize| warp[if is_inside { from } else { lane }];
            [
                warp[lane / 2],
                or_own(lane >= 3, lane.wrapping_sub(3)),
                or_own(lane + 5 < 32, lane + 5),
                warp[lane ^ 9],
                warp[lane / 8 * 8 + 2],
                or_own(lane % 16 >= 1, lane.wrapping_sub(1)),
                or_own(lane % 4 < 2, lane + 2),
                (warp[lane ^ 1] as f32).to_bits() as i32,
            ]
        });
        assert_each("shuffles", &gpu.read::<f64>(wide), |i| {
            let (warp, lane) = warp_of(&a, i);
            let below = if lane < 31 { i + 1 } else { i };
            [b[below], (i64::from(warp[lane ^ 16]) << 33) as f64]
        });
    }
}

#[test]
fn votes_and_matches() {
    let mut a = small(2, 128);
    a[70] = 1001;
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(128 * 32));
        gpu.run("votes", 2, 64, arguments!(at_a, out));
        assert_each("votes", &gpu.read::<u32>(out), |i| {
            let (warp, lane) = warp_of(&a, i);
            let x = warp[lane];
            let all_same = warp.iter().all(|y| y / 1000 == x / 1000);
            [
                u32::from(warp.iter().all(|&y| y > 0)),
                u32::from(warp.iter().any(|&y| y > 90)),
                ballot(warp, |y| y & 1 == 1),
                ballot(warp, |y| y % 5 == x % 5),
                if all_same { u32::MAX } else { 0 },
                u32::from(all_same),
                ballot(warp, |y| y % 3 == x % 3),
                if x % 4 == 1 { ballot(warp, |y| y % 8 == 1) } else { 0 },
            ]
        });
    }
}

#[test]
fn sums_and_scans_of_a_warp() {
    let a: Vec<f32> = small(3, 128).iter().map(|&x| x as f32).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, sums, scans) = (gpu.buffer(&a), gpu.unwritten(16), gpu.unwritten(512));
        gpu.run("warp_sums", 2, 64, arguments!(at_a, sums, scans));
        assert_each("warp_sums", &gpu.read::<f32>(sums), |warp| [a[32 * warp..][..32].iter().sum()]);
        assert_each("warp_sums", &gpu.read::<f32>(scans), |i| [a[i / 32 * 32..=i].iter().sum()]);
    }
}

#[test]
fn a_sum_over_a_grid() {
    let a = small(4, 5000);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, total) = (gpu.buffer(&a), gpu.buffer(&[0_i32]));
        gpu.run("block_sum", 3, 256, arguments!(at_a, total, 5000_i32));
        assert_eq!(gpu.read::<i32>(total), [a.iter().sum::<i32>()]);
    }
}

#[test]
fn a_bitonic_sort_in_shared_memory() {
    let a = small(5, 768);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let at_a = gpu.buffer(&a);
        gpu.run("bitonic_sort", 3, 256, arguments!(at_a));
        let mut expected = a.clone();
        expected.chunks_mut(256).for_each(<[i32]>::sort_unstable);
        assert_eq!(gpu.read::<i32>(at_a), expected);
    }
}

#[test]
fn barriers_that_count_and_barriers_with_names() {
    let a = small(6, 256);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(256 * 16));
        gpu.run("barriers", 2, 128, arguments!(at_a, out));
        assert_each("barriers", &gpu.read::<i32>(out), |i| {
            let block = &a[i / 128 * 128..][..128];
            [
                block.iter().filter(|&&x| x > 50).count() as i32,
                i32::from(block.iter().all(|&x| x > 0)),
                i32::from(block.iter().any(|&x| x > 98)),
                if i % 128 < 64 { -1 } else { 2 * block[127 - i % 128] },
            ]
        });
    }
}

#[test]
fn cooperative_groups_of_a_block() {
    let a = small(7, 128);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(128 * 20));
        gpu.run("cooperative", 2, 64, arguments!(at_a, out));
        assert_each("cooperative", &gpu.read::<i32>(out), |i| {
            let tile = &a[i / 8 * 8..][..8];
            let (warp, lane) = warp_of(&a, i);
            let together = ballot(warp, |x| x % 3 == 0);
            let first = warp[together.trailing_zeros() as usize % 32];
            let below = (together & ((1 << lane) - 1)).count_ones();
            let any = i32::from(tile.iter().any(|&x| x > 90));
            let all = i32::from(tile.iter().all(|&x| x > 10));
            [
                tile.iter().sum(),
                (i % 64 / 8 * 100 + i % 8) as i32,
                any + 2 * all + 4 * ballot(tile, |x| x & 1 == 1) as i32,
                match a[i] % 3 {
                    0 => (together.count_ones() * 100 + below) as i32 + 10_000 * first,
                    _ => 0,
                },
                64 + if i % 8 == 0 { a[i] } else { a[i - 1] },
            ]
        });
    }
}

#[test]
fn one_atomic_for_the_lanes_that_are_together() {
    let a = small(8, 500);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, count, out) = (gpu.buffer(&a), gpu.buffer(&[0_i32]), gpu.buffer(&[-1_i32; 500]));
        gpu.run("aggregated", 4, 128, arguments!(at_a, count, out, 500_i32));
        let mut expected: Vec<i32> = a.iter().copied().filter(|&x| x >= 50).collect();
        let kept = gpu.read::<i32>(count)[0] as usize;
        assert_eq!(kept, expected.len());
        let mut got = gpu.read::<i32>(out)[..kept].to_vec();
        got.sort_unstable();
        expected.sort_unstable();
        assert_eq!(got, expected);
    }
}

#[test]
fn special_registers_of_a_lane() {
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        gpu.dynamic_shared = 48;
        let out = gpu.unwritten(128 * 32);
        gpu.run("special_registers", 2, 64, arguments!(out));
        assert_each("special_registers", &gpu.read::<u32>(out), |i| {
            let lane = i as u32 % 32;
            let own = 1_u32 << lane;
            [lane, 1, own - 1, (own - 1) | own, !(own - 1), !((own - 1) | own), own, 48]
        });
    }
}
