//! Tests of `integers.cu`.

use super::{assert_each, builds, words};
use crate::arguments;
use crate::gpu::{Gpu, Numbers};

const BUILDS: [&str; 4] = builds!("integers");
const N: usize = 700;

fn longs(seed: u64) -> Vec<u64> {
    let mut numbers = Numbers(seed);
    let edges = [0, 1, u64::MAX, 1 << 63, u64::MAX >> 1, 127];
    (0..N)
        .map(|at| match at % 3 {
            0 => edges[numbers.next() as usize % edges.len()],
            1 => numbers.next() >> (numbers.next() % 64),
            _ => numbers.next(),
        })
        .collect()
}

#[test]
fn integers_of_128_bits() {
    let (a, b) = (longs(1), longs(2));
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(N * 12 * 8));
        gpu.run("wide_integers", 7, 100, arguments!(at_a, at_b, out, N as i32));
        assert_each("wide_integers", &gpu.read::<u64>(out), |i| {
            let x = u128::from(a[i]) << 64 | u128::from(b[i]);
            let y = u128::from(b[i]) << 64 | u128::from(a[i] >> 3);
            let results = [
                x.wrapping_add(y),
                x.wrapping_sub(y),
                x.wrapping_mul(y),
                x >> (a[i] & 127),
                x << (b[i] & 127),
            ];
            let mut words = [0; 12];
            for (pair, result) in words.chunks_exact_mut(2).zip(results) {
                pair.copy_from_slice(&[result as u64, (result >> 64) as u64]);
            }
            words[10] = u64::from(x < y);
            words[11] = u64::from((x as i128) < y as i128);
            words
        });
    }
}

#[test]
fn carry_chains_of_four_words() {
    let (a, b) = (words(3, 4 * N), words(4, 4 * N));
    let wide =
        |words: &[u32]| words.iter().rev().fold(0_u128, |number, &word| number << 32 | u128::from(word));
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(N * 16 * 4));
        gpu.run("carry_chains", 7, 100, arguments!(at_a, at_b, out, N as i32));
        assert_each("carry_chains", &gpu.read::<u32>(out), |i| {
            let (x, y) = (wide(&a[4 * i..][..4]), wide(&b[4 * i..][..4]));
            let word = |number: u128, at: usize| (number >> (32 * at)) as u32;
            let (sum, difference) = (x.wrapping_add(y), x.wrapping_sub(y));
            let product = x.wrapping_mul(u128::from(y as u32));
            // The fifth word contains the overflow from the lower four words.
            let top = (u128::from(word(x, 3)) * u128::from(y as u32)
                + (((x & (u128::MAX >> 32)) * u128::from(y as u32)) >> 96))
                >> 32;
            let low = (x as u64).wrapping_add(y as u64);
            let mut out = [0; 16];
            for at in 0..4 {
                out[at] = word(sum, at);
                out[4 + at] = word(difference, at);
                out[8 + at] = word(product, at);
            }
            out[12] = top as u32;
            (out[13], out[14]) = (low as u32, (low >> 32) as u32);
            out
        });
    }
}

fn dot(a: &[i64], b: &[i64], c: u32) -> u32 {
    a.iter().zip(b).fold(i64::from(c), |sum, (a, b)| sum + a * b) as u32
}

fn bytes(word: u32, signed: bool) -> Vec<i64> {
    word.to_le_bytes().iter().map(|&b| if signed { i64::from(b as i8) } else { i64::from(b) }).collect()
}

fn halves(word: u32, signed: bool) -> Vec<i64> {
    [word as u16, (word >> 16) as u16]
        .iter()
        .map(|&h| if signed { i64::from(h as i16) } else { i64::from(h) })
        .collect()
}

/// Computes `__byte_perm`, which has no sign modes.
fn byte_perm(a: u32, b: u32, selector: u32) -> u32 {
    let all = [a.to_le_bytes(), b.to_le_bytes()].concat();
    u32::from_le_bytes([0, 1, 2, 3].map(|at| all[(selector >> (4 * at) & 7) as usize]))
}

/// Computes `__fns`, as described in CUDA's manual.
fn find_nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    let step = if offset < 0 { -1 } else { 1 };
    let mut left = offset.abs();
    let mut at = base as i32;
    if offset == 0 {
        return if mask >> base & 1 == 1 { base } else { u32::MAX };
    }
    while (0..32).contains(&at) {
        if mask >> at & 1 == 1 {
            left -= 1;
            if left == 0 {
                return at as u32;
            }
        }
        at += step;
    }
    u32::MAX
}

#[test]
fn integer_intrinsics() {
    let (a, b, c) = (words(5, N), words(6, N), words(7, N));
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, at_c) = (gpu.buffer(&a), gpu.buffer(&b), gpu.buffer(&c));
        let out = gpu.unwritten(N * 24 * 4);
        gpu.run("intrinsics", 7, 100, arguments!(at_a, at_b, at_c, out, N as i32));
        assert_each("intrinsics", &gpu.read::<u32>(out), |i| {
            let (ux, uy, uz) = (a[i], b[i], c[i]);
            let (x, y) = (i64::from(ux as i32), i64::from(uy as i32));
            let (wide_x, wide_y) = (u64::from(ux), u64::from(uy));
            let low24 = |value: u32| i64::from((value as i32) << 8 >> 8);
            let pair = u64::from(uy) << 32 | u64::from(ux);
            let amount = uz & 31;
            let clamped = uz.min(32);
            [
                ((low24(ux) * low24(uy)) as u32).wrapping_add(uz),
                (((wide_x & 0xff_ffff) * (wide_y & 0xff_ffff)) as u32).wrapping_add(uz),
                (((x * y) >> 32) as u32).wrapping_add(uz),
                ux.abs_diff(uy).wrapping_add(uz),
                ((x + y) >> 1) as u32,
                ((x + y + 1) >> 1) as u32,
                ((wide_x + wide_y) >> 1) as u32,
                ((wide_x + wide_y + 1) >> 1) as u32,
                (pair << amount >> 32) as u32,
                ((u128::from(pair) << clamped) >> 32) as u32,
                (pair >> amount) as u32,
                (u128::from(pair) >> clamped) as u32,
                byte_perm(ux, uy, uz),
                dot(&bytes(ux, true), &bytes(uy, true), uz),
                dot(&bytes(ux, false), &bytes(uy, false), uz),
                dot(&halves(ux, true), &bytes(uy, true)[..2], uz),
                dot(&halves(ux, true), &bytes(uy, true)[2..], uz),
                dot(&halves(ux, false), &bytes(uy, false)[..2], uz),
                dot(&halves(ux, false), &bytes(uy, false)[2..], uz),
                find_nth_set(ux, uy & 31, (uz % 9) as i32 - 4),
                if ux == 0 { 0 } else { ux.trailing_zeros() + 1 },
                ux >> (uy & 31) & ((1 << (uz & 15)) - 1),
                ((ux as i32) << 7 >> 20) as u32,
                ux & uy | !ux & uz,
            ]
        });
    }
}

/// Applies a function to each pair of corresponding parts in two words.
fn each_part(parts: u32, signed: bool, a: u32, b: u32, f: impl Fn(i64, i64) -> i64) -> u32 {
    let bits = 32 / parts;
    let part = |word: u32, at: u32| {
        let value = i64::from(word << (32 - bits - bits * at) >> (32 - bits));
        if signed && value >= 1 << (bits - 1) { value - (1 << bits) } else { value }
    };
    (0..parts).fold(0, |word, at| {
        let result = f(part(a, at), part(b, at)) as u32 & (u32::MAX >> (32 - bits));
        word | result << (bits * at)
    })
}

#[test]
fn packed_bytes_and_halves() {
    let (a, b) = (words(8, N), words(9, N));
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(N * 20 * 4));
        gpu.run("packed", 7, 100, arguments!(at_a, at_b, out, N as i32));
        assert_each("packed", &gpu.read::<u32>(out), |i| {
            let (x, y) = (a[i], b[i]);
            let yes = |truth: bool| if truth { -1 } else { 0 };
            let sum: i64 = bytes(x, false).iter().zip(bytes(y, false)).map(|(x, y)| (x - y).abs()).sum();
            [
                each_part(4, false, x, y, |x, y| x + y),
                each_part(4, false, x, y, |x, y| x - y),
                each_part(4, true, x, y, |x, y| (x + y).clamp(-128, 127)),
                each_part(4, false, x, y, |x, y| (x + y).min(255)),
                each_part(4, false, x, y, |x, y| (x - y).abs()),
                sum as u32,
                each_part(4, false, x, y, |x, y| (x + y + 1) >> 1),
                each_part(4, false, x, y, |x, y| yes(x > y)),
                each_part(4, true, x, y, |x, y| yes(x > y)),
                each_part(4, true, x, y, i64::max),
                each_part(4, false, x, y, i64::min),
                each_part(2, false, x, y, |x, y| x + y),
                each_part(2, true, x, y, |x, y| (x + y).clamp(-32768, 32767)),
                each_part(2, false, x, y, |x, y| (x - y).max(0)),
                each_part(2, true, x, y, i64::max),
                each_part(4, true, x, y, |x, _| x.abs().min(127)),
                each_part(2, true, x, y, |x, _| (-x).min(32767)),
                each_part(4, false, x, y, |x, y| i64::from(x == y)),
                each_part(2, true, x, y, |x, y| (x - y).abs()),
                each_part(2, false, x, y, |x, y| yes(x <= y)),
            ]
        });
    }
}

#[test]
fn narrow_integers_wrap_at_their_width() {
    let a: Vec<i16> = words(10, N).iter().map(|&word| word as i16).collect();
    let b: Vec<i8> = words(11, N).iter().map(|&word| word as i8).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(N * 12 * 4));
        gpu.run("narrow", 7, 100, arguments!(at_a, at_b, out, N as i32));
        assert_each("narrow", &gpu.read::<i32>(out), |i| {
            let (x, y) = (i32::from(a[i]), i32::from(b[i]));
            let (ux, uy) = (i32::from(a[i] as u16), i32::from(b[i] as u8));
            let short = |value: i32| i32::from(value as i16);
            [
                short(x + y),
                i32::from((x * y) as i8),
                x.checked_div(y).map_or(0, short),
                x.checked_rem(y).map_or(0, short),
                ux.checked_div(uy).unwrap_or(0) & 0xffff,
                ux.checked_rem(uy).unwrap_or(0) & 0xff,
                short(x << 3) >> 2,
                (ux << 3 & 0xffff) >> 2,
                x.min(y),
                i32::from(ux == uy),
                i32::from(!x as i8),
                -x & 0xffff,
            ]
        });
    }
}

#[test]
fn instructions_that_people_write_by_hand() {
    let (a, b, c) = (words(12, N), words(13, N), words(14, N));
    let bit = |word: u32, at: u32| word >> at & 1;
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, at_c) = (gpu.buffer(&a), gpu.buffer(&b), gpu.buffer(&c));
        let out = gpu.unwritten(N * 24 * 4);
        gpu.run("by_hand", 7, 100, arguments!(at_a, at_b, at_c, out, N as i32));
        assert_each("by_hand", &gpu.read::<u32>(out), |i| {
            let (x, y, z) = (a[i], b[i], c[i]);
            let (sx, sy, sz) = (x as i32, y as i32, z as i32);
            // This follows the manual's pseudocode, bit by bit.
            let (position, length) = (y & 255, z & 255);
            let field = |sign: u32| {
                (0..32).fold(0, |field, at| {
                    let inside = at < length && position + at <= 31;
                    field | if inside { bit(x, position + at) } else { sign } << at
                })
            };
            let top = (position + length).wrapping_sub(1).min(31);
            let sign = if length == 0 { 0 } else { bit(x, top) };
            let insert = z & 255;
            let inserted = (0..9).fold(y, |word, at| match insert + at {
                to @ 0..32 => word & !(1 << to) | bit(x, at) << to,
                _ => word,
            });
            let magnitude = if sx < 0 { !x } else { x };
            let all = [x.to_le_bytes(), y.to_le_bytes()].concat();
            let pick = |places: [usize; 4]| u32::from_le_bytes(places.map(|place| all[place]));
            let s = (z & 3) as usize;
            let low24 = |value: u32| i64::from((value as i32) << 8 >> 8);
            let wide = |word: u32| u64::from(word);
            [
                field(0),
                field(sign),
                inserted,
                x.checked_ilog2().unwrap_or(u32::MAX),
                if magnitude == 0 { u32::MAX } else { magnitude.leading_zeros() },
                x & y | x & z | y & z,
                pick([s, s + 1, s + 2, s + 3]),
                pick([s, (s + 7) % 8, (s + 6) % 8, (s + 5) % 8]),
                pick([s, s, s, s]),
                pick([s, 1.max(s), 2.max(s), 3]),
                pick([0, 1.min(s), 2.min(s), s]),
                pick([2 * (s % 2), 2 * (s % 2) + 1, 2 * (s % 2), 2 * (s % 2) + 1]),
                sx.abs_diff(sy).wrapping_add(z),
                (((wide(x) * wide(y)) >> 32) as u32).wrapping_add(z),
                ((low24(x) * low24(y)) >> 16) as u32,
                ((wide(x & 0xff_ffff) * wide(y & 0xff_ffff)) as u32).wrapping_add(z),
                sx.saturating_add(sy) as u32,
                sx.saturating_sub(sy) as u32,
                1 - (x & 1),
                if sz >= 0 { x } else { y },
                if sx < sy { u32::MAX } else { 0 },
                ((wide(y) << 32 | wide(x)) << (z & 31) >> 32) as u32,
                if x < y { 21 } else { 10 },
                dot(&halves(x, true), &bytes(y, false)[..2], z),
            ]
        });
    }
}

#[test]
fn loops_that_count_in_64_bits() {
    let mut numbers = Numbers(15);
    let a: Vec<i64> = (0..200).map(|_| (numbers.next() >> 8) as i64).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(a.len() * 16));
        gpu.run("sums_of_64_bits", 4, 64, arguments!(at_a, out, a.len() as i32));
        assert_each("sums_of_64_bits", &gpu.read::<i64>(out), |i| {
            let mut steps = 0;
            let mut x = (a[i] & 0xff_ffff) + 1;
            while x != 1 {
                x = if x & 1 == 1 { 3 * x + 1 } else { x / 2 };
                steps += 1;
            }
            let product = (0..a[i] & 63).fold(1, |product, k| product * ((1 << 33) + 7 * k) % 1_000_003);
            [steps, product]
        });
    }
}
