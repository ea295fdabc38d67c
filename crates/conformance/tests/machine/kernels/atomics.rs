//! Tests of `atomics.cu`.

use super::builds;
use crate::arguments;
use crate::gpu::{Gpu, Numbers};

const BUILDS: [&str; 4] = builds!("atomics");
const N: usize = 300;

#[test]
fn on_words_in_every_operation() {
    let a: Vec<i32> = super::words(1, N).into_iter().map(|word| word as i32).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, before) = (gpu.buffer(&a), gpu.unwritten(4 * N));
        let s = gpu.buffer(&[0_i32, 5, 100, -100]);
        let u = gpu.buffer(&[u32::MAX, 0, 7, u32::MAX, 0, 3, 2, 0, 0]);
        gpu.run("on_words", 3, 128, arguments!(s, u, at_a, before, N as i32));
        let sum = a.iter().fold(0, |sum: i32, x| sum.wrapping_add(*x));
        let least = a.iter().copied().min().unwrap().min(100);
        let most = a.iter().copied().max().unwrap().max(-100);
        assert_eq!(gpu.read::<i32>(s), [sum, 5_i32.wrapping_sub(sum), least, most]);
        let unsigned = || a.iter().map(|&x| x as u32);
        let inc = (0..N).fold(3, |value, _| if value >= 6 { 0 } else { value + 1 });
        let dec = (0..N).fold(2, |value, _| if value == 0 || value > 9 { 9 } else { value - 1 });
        let expected = [
            unsigned().fold(u32::MAX, |all, x| all & (x | 0xff)),
            unsigned().fold(0, |all, x| all | x & 0xf0f0),
            unsigned().fold(7, |all, x| all ^ x),
            unsigned().min().unwrap(),
            unsigned().max().unwrap(),
            inc,
            dec,
            N as u32,
            2 * N as u32,
        ];
        assert_eq!(gpu.read::<u32>(u), expected);
    }
}

#[test]
fn each_sees_the_sum_that_another_has_left() {
    // All numbers are positive, so no two sums are equal.
    let a: Vec<i32> = (1..=N as i32).map(|i| i * 37 % 301 + 1).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, before) = (gpu.buffer(&a), gpu.unwritten(4 * N));
        let (s, u) = (gpu.buffer(&[0_i32; 4]), gpu.buffer(&[0_u32; 9]));
        gpu.run("on_words", 3, 128, arguments!(s, u, at_a, before, N as i32));
        let mut steps: Vec<(i32, i32)> = gpu.read::<i32>(before).into_iter().zip(a.iter().copied()).collect();
        steps.sort_unstable();
        let mut sum = 0;
        for (seen, x) in steps {
            assert_eq!(seen, sum);
            sum += x;
        }
    }
}

#[test]
fn on_64_bits() {
    let mut numbers = Numbers(2);
    let a: Vec<i64> = (0..N).map(|_| numbers.next() as i64).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let at_a = gpu.buffer(&a);
        let (u, s) = (gpu.buffer(&[1, u64::MAX, 0, 0, u64::MAX, 0]), gpu.buffer(&[0_i64, 0]));
        gpu.run("on_longs", 3, 128, arguments!(u, s, at_a, N as i32));
        let unsigned = || a.iter().map(|&x| x as u64);
        let expected = [
            unsigned().fold(1, u64::wrapping_add),
            unsigned().fold(u64::MAX, |all, x| all & (x | 0xffff_ffff)),
            unsigned().fold(0, |all, x| all | x & 0xf0_f0f0_f0f0),
            unsigned().fold(0, |all, x| all ^ x),
            unsigned().min().unwrap(),
            unsigned().max().unwrap(),
        ];
        assert_eq!(gpu.read::<u64>(u), expected);
        assert_eq!(gpu.read::<i64>(s), [a.iter().copied().min().unwrap(), a.iter().copied().max().unwrap()]);
    }
}

#[test]
fn on_floats_and_by_compare_and_swap() {
    // All numbers are multiples of 1/16, so summation is exact in any order.
    let a: Vec<f32> = Numbers(3).floats(100).into_iter().map(|x| (x * 64.0).round() / 16.0).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, f, d) = (gpu.buffer(&a), gpu.buffer(&[0.5_f32, 0.0, 1.0]), gpu.buffer(&[0.25_f64]));
        gpu.run("on_floats", 1, 128, arguments!(f, d, at_a, 100_i32));
        let sum: f32 = a.iter().sum();
        let largest = a.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        assert_eq!(gpu.read::<f32>(f), [0.5 + sum, largest, 2f32.powi(100)]);
        assert_eq!(gpu.read::<f64>(d), [0.25 + f64::from(sum)]);
    }
}

#[test]
fn exchanges_form_one_chain() {
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (chain, slots) = (gpu.unwritten(4 * 128), gpu.buffer(&[0_u64; 5]));
        let (shorts, last) = (gpu.buffer(&[0_u16; 3]), gpu.buffer(&[-1_i32]));
        gpu.run("swaps", 2, 64, arguments!(chain, slots, shorts, last));
        let before = gpu.read::<i32>(chain);
        let mut at = gpu.read::<i32>(last)[0];
        let mut length = 0;
        while at >= 0 {
            at = before[at as usize];
            length += 1;
        }
        assert_eq!(length, 128);
        let slots = gpu.read::<u64>(slots);
        for (at, slot) in slots[..4].iter().enumerate() {
            assert!((1..=128).contains(slot) && (slot - 1) % 4 == at as u64, "{slots:?}");
        }
        assert!((1..=128).contains(&(slots[4] >> 32)) && slots[4] as u32 == 0);
        for (at, short) in gpu.read::<u16>(shorts).into_iter().enumerate() {
            assert!((1..=128).contains(&short) && usize::from(short - 1) % 3 == at);
        }
    }
}

#[test]
fn a_histogram_in_shared_memory() {
    let mut numbers = Numbers(4);
    let a: Vec<u8> = (0..4000).map(|_| (numbers.next() % 200) as u8).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, counts) = (gpu.buffer(&a), gpu.buffer(&[0_i32; 256]));
        gpu.run("shared_histogram", 3, 96, arguments!(at_a, counts, 4000_i32));
        let mut expected = [0; 256];
        a.iter().for_each(|&x| expected[usize::from(x)] += 1);
        assert_eq!(gpu.read::<i32>(counts), expected);
    }
}

#[test]
fn floats_in_shared_memory() {
    let a: Vec<f32> = (0..128).map(|i| (i % 9) as f32 * 0.25).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out, wide) = (gpu.buffer(&a), gpu.unwritten(4), gpu.unwritten(16));
        gpu.run("shared_floats", 1, 128, arguments!(at_a, out, wide));
        let sum: f32 = a.iter().sum();
        assert_eq!(gpu.read::<f32>(out), [sum]);
        assert_eq!(gpu.read::<f64>(wide), [f64::from(sum), 64.0]);
    }
}

#[test]
fn the_last_block_sums() {
    let a: Vec<f32> = (0..64 * 7).map(|i| (i % 13) as f32).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, partial) = (gpu.buffer(&a), gpu.unwritten(4 * 7));
        let (arrived, total) = (gpu.buffer(&[0_u32]), gpu.unwritten(4));
        gpu.run("last_block", 7, 64, arguments!(at_a, partial, arrived, total));
        assert_eq!(gpu.read::<f32>(total), [a.iter().sum::<f32>()]);
    }
}

#[test]
fn a_lock_that_every_thread_takes_in_turn() {
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        gpu.limit = 10_000_000;
        let (lock, value) = (gpu.buffer(&[0_i32]), gpu.buffer(&[1_i32]));
        gpu.run("locked", 2, 40, arguments!(lock, value));
        let expected = (0..80).fold(1_i32, |value, _| value.wrapping_mul(3).wrapping_add(1));
        assert_eq!(gpu.read::<i32>(value), [expected]);
        assert_eq!(gpu.read::<i32>(lock), [0]);
    }
}
