//! Tests of `halves.cu`. The reference computes in double precision, which represents all products and nearly all sums
//! of half-precision numbers exactly, and rounds once.

use half::f16;

use super::{assert_each, builds};
use crate::arguments;
use crate::gpu::{Gpu, Numbers};

const BUILDS: [&str; 4] = builds!("halves");

/// Returns the 16-bit patterns of random numbers and of the special values in `odd`.
pub(super) fn bits(seed: u64, count: usize, odd: &[u16]) -> Vec<u16> {
    let mut numbers = Numbers(seed);
    (0..count)
        .map(|at| match at % 5 {
            0 => odd[numbers.next() as usize % odd.len()],
            _ => (numbers.next() >> 48) as u16,
        })
        .collect()
}

const ODD: [u16; 14] = [
    0, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0x3555, 0x3801,
];

fn wide(bits: u16) -> f64 {
    f16::from_bits(bits).to_f64()
}

/// Returns the nearest finite number in a format, with ties to even. It tries both neighbors, without the shortcuts of
/// a conversion. `decode` reads the format, and `infinity` is its infinity.
pub(super) fn nearest(value: f64, infinity: u16, decode: impl Fn(u16) -> f64) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let size = value.abs();
    // Find the largest number that is not above the value.
    let (mut low, mut high) = (0, infinity);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if decode(middle) <= size { low = middle } else { high = middle }
    }
    if size == f64::INFINITY {
        return sign | infinity;
    }
    let above = match high == infinity {
        // After the largest finite number, use the number that would follow.
        true => 2.0 * decode(low) - decode(low - 1),
        false => decode(high),
    };
    let (down, up) = (size - decode(low), above - size);
    let takes_low = down < up || down == up && low % 2 == 0;
    sign | if takes_low { low } else { high }
}

fn round(value: f64) -> u16 {
    nearest(value, 0x7c00, wide)
}

/// Compares two halves, and treats all NaNs as equal, because their bits depend on how they were computed.
fn same(got: u16, expected: u16) -> bool {
    got == expected || wide(got).is_nan() && wide(expected).is_nan()
}

#[track_caller]
fn assert_halves<const N: usize>(kernel: &str, got: &[u16], expected: impl Fn(usize) -> [u16; N]) {
    for (thread, got) in got.chunks_exact(N).enumerate() {
        for (at, (&got, expected)) in got.iter().zip(expected(thread)).enumerate() {
            assert!(same(got, expected), "{kernel}, thread {thread}, o[{at}]: {got:#x}, not {expected:#x}");
        }
    }
}

/// Returns the sum of a product and a number, rounded once; the product and the sum are exact in 128 bits.
fn fma(x: u16, y: u16, z: u16) -> f64 {
    let (product, z) = (wide(x) * wide(y), wide(z));
    if !(product + z).is_finite() {
        return product + z;
    }
    // In units of 2^-48, each is an integer below 2^82.
    let unit = 2f64.powi(48);
    let sum = (product * unit) as i128 + (z * unit) as i128;
    if sum == 0 {
        return product + z;
    }
    // Keep the leading bits, and one bit that records whether any bits were lost.
    let shift = (128 - sum.unsigned_abs().leading_zeros()).saturating_sub(50);
    let rest = i128::from(sum.unsigned_abs() & ((1 << shift) - 1) != 0);
    let cut = (sum.unsigned_abs() >> shift) as i128 * 2 + rest;
    (cut * sum.signum()) as f64 * 2f64.powi(shift as i32 - 49)
}

fn saturate(value: f64) -> f64 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

fn smaller(x: u16, y: u16) -> u16 {
    match (wide(x), wide(y)) {
        (a, b) if a.is_nan() && b.is_nan() => 0x7fff,
        (a, _) if a.is_nan() => y,
        (_, b) if b.is_nan() => x,
        (a, b) if a < b || a == b && a.is_sign_negative() => x,
        _ => y,
    }
}

fn larger(x: u16, y: u16) -> u16 {
    let opposite = smaller(x ^ 0x8000, y ^ 0x8000);
    if opposite == 0x7fff { opposite } else { opposite ^ 0x8000 }
}

#[test]
fn arithmetic() {
    let n = 4000;
    let (a, b, c) = (bits(1, n, &ODD), bits(2, n, &ODD), bits(3, n, &ODD));
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, at_c) = (gpu.buffer(&a), gpu.buffer(&b), gpu.buffer(&c));
        let out = gpu.unwritten(24 * n);
        gpu.run("half_arithmetic", n.div_ceil(128) as u32, 128, arguments!(at_a, at_b, at_c, out, n as i32));
        assert_halves("half_arithmetic", &gpu.read::<u16>(out), |i| {
            let (x, y, z) = (a[i], b[i], c[i]);
            let sum = fma(x, 0x3c00, y);
            [
                round(sum),
                round(fma(x, 0x3c00, y ^ 0x8000)),
                round(wide(x) * wide(y)),
                round(fma(x, y, z)),
                x ^ 0x8000,
                x & 0x7fff,
                larger(x, y),
                smaller(x, y),
                round(saturate(sum)),
                round(saturate(wide(x) * wide(y))),
                round(saturate(fma(x, y, z))),
                if wide(x) < wide(y) { z } else { 0x3800 },
            ]
        });
    }
}

#[test]
fn functions_within_two_units() {
    let n = 4000;
    let (a, b) = (bits(4, n, &ODD), bits(5, n, &ODD));
    let a: Vec<u16> = a.into_iter().filter(|x| wide(*x).is_finite() && wide(*x).abs() < 60.0).collect();
    let n = a.len();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(28 * n));
        gpu.run("half_functions", n.div_ceil(128) as u32, 128, arguments!(at_a, at_b, out, n as i32));
        for (i, got) in gpu.read::<u16>(out).chunks_exact(14).enumerate() {
            let (x, y) = (wide(a[i]), wide(b[i]));
            let exact = [
                x / y,
                x.abs().sqrt(),
                1.0 / x.abs().sqrt(),
                1.0 / x,
                x.exp(),
                x.exp2(),
                10f64.powf(x),
                x.abs().ln(),
                x.abs().log2(),
                x.abs().log10(),
                x.sin(),
                x.cos(),
                x.round_ties_even(),
            ];
            for (at, (&got, exact)) in got.iter().zip(exact).enumerate() {
                let expected = round(exact);
                // In sign-magnitude form, neighbors differ by one. `hsin` and `hcos` may be off by two.
                let order = |bits: u16| i32::from(bits & 0x7fff) * if bits & 0x8000 == 0 { 1 } else { -1 };
                let is_near = (order(got) - order(expected)).abs() <= 2;
                assert!(
                    same(got, expected) || is_near,
                    "o[{at}] of {x} and {y}: {got:#x}, not {expected:#x}"
                );
            }
            let sum = round(wide(round(x.trunc() + x.floor())) + x.ceil());
            assert!(same(got[13], sum), "{x}: {:#x}, not {sum:#x}", got[13]);
        }
    }
}

/// Returns the neighbor of the nearest number that a rounding mode requires; `up` is true for rounding up.
fn directed(value: f64, up: impl Fn(f64) -> bool) -> u16 {
    let near = round(value);
    let got = wide(near);
    if value.is_nan() || got == value {
        return near;
    }
    let wants_up = up(value);
    // The next bit pattern is away from zero, and the previous one is toward zero.
    match (got < value, wants_up, value > 0.0) {
        (true, true, positive) | (false, false, positive) if got != value => {
            let away = positive == wants_up;
            if away { near + 1 } else { near - 1 }
        }
        _ => near,
    }
}

#[test]
fn conversions_from_every_type_in_every_rounding() {
    let mut numbers = Numbers(6);
    let n = 4000;
    let a: Vec<f32> = (0..n)
        .map(|at| match at % 3 {
            0 => f32::from_bits(numbers.next() as u32),
            // This is halfway between two halves, or nearly so.
            1 => f16::from_bits((numbers.next() % 0x7bff) as u16).to_f32() * (1.0 + 2f32.powi(-11)),
            _ => (numbers.next() as i32) as f32 * 2f32.powi(-40),
        })
        .collect();
    let b: Vec<f64> = (0..n)
        .map(|at| match at % 3 {
            0 => f64::from(a[at]) * (1.0 + 2f64.powi(-45)),
            1 => {
                let half = wide((numbers.next() % 0x7bff) as u16);
                let next = wide(round(half).wrapping_add(1));
                // This is just above the midpoint; rounding twice would make it a tie.
                ((half + next) / 2.0) * (1.0 + 2f64.powi(-40))
            }
            _ => f64::from_bits(numbers.next()),
        })
        .collect();
    let c: Vec<i32> = (0..n).map(|at| (numbers.next() >> (32 + at % 30)) as i32 * [1, -1][at % 2]).collect();
    let d: Vec<i64> =
        (0..n).map(|at| (numbers.next() >> (at % 63)) as i64).map(|x| x.wrapping_neg()).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b) = (gpu.buffer(&a), gpu.buffer(&b));
        let (at_c, at_d, out) = (gpu.buffer(&c), gpu.buffer(&d), gpu.unwritten(24 * n));
        let arguments = arguments!(at_a, at_b, at_c, at_d, out, n as i32);
        gpu.run("half_conversions", n.div_ceil(128) as u32, 128, arguments);
        assert_halves("half_conversions", &gpu.read::<u16>(out), |i| {
            let x = f64::from(a[i]);
            let (word, unsigned) = (f64::from(c[i]), f64::from(c[i] as u32));
            let toward_zero = |value: f64| value < 0.0;
            // All values beyond the range of half precision give the same result, so doubles are enough for 64 bits.
            [
                round(x),
                directed(x, toward_zero),
                directed(x, |_| false),
                directed(x, |_| true),
                round(b[i]),
                round(word),
                directed(word, toward_zero),
                directed(unsigned, |_| true),
                round(d[i] as f64),
                directed(d[i] as u64 as f64, |_| false),
                round(f64::from(c[i] as i16)),
                directed(f64::from(c[i] as u16), toward_zero),
            ]
        });
    }
}

#[test]
fn conversions_to_every_type() {
    let n = 3000;
    let a = bits(7, n, &ODD);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(8 * 13 * n));
        gpu.run("from_half", n.div_ceil(128) as u32, 128, arguments!(at_a, out, n as i32));
        for (i, got) in gpu.read::<f64>(out).chunks_exact(13).enumerate() {
            let x = wide(a[i]);
            let questions = [x < 1.0, x >= 0.25, x.is_nan(), x == x];
            let expected = [
                x,
                f64::from(x.round_ties_even() as i32),
                f64::from(x as i32),
                f64::from(x.floor() as i32),
                f64::from(x.ceil() as i32),
                f64::from(x as u32),
                f64::from(x.round_ties_even() as i16),
                f64::from(x as u16),
                if x.is_nan() { i64::MIN as f64 } else { x.round_ties_even() as i64 as f64 },
                if x.is_nan() { 2f64.powi(63) } else { x as u64 as f64 },
                f64::from(u8::from(x.is_nan())),
                if x.is_infinite() { x.signum() } else { 0.0 },
                (0..4).map(|at| f64::from(1 << at) * f64::from(u8::from(questions[at]))).sum(),
            ];
            for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
                let same = *got == expected || got.is_nan() && expected.is_nan();
                assert!(same, "o[{at}] of {x}: {got}, not {expected}");
            }
        }
    }
}

#[test]
fn pairs() {
    let n = 3000;
    let (a, b) = (bits(8, 2 * n, &ODD), bits(9, 2 * n, &ODD));
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(48 * n));
        gpu.run("half_pairs", n.div_ceil(128) as u32, 128, arguments!(at_a, at_b, out, n as i32));
        assert_halves("half_pairs", &gpu.read::<u16>(out), |i| {
            let ([x, y], [u, v]) = ([a[2 * i], a[2 * i + 1]], [b[2 * i], b[2 * i + 1]]);
            let one = |truth: bool| if truth { 0x3c00 } else { 0 };
            let both = |f: &dyn Fn(u16, u16) -> u16| [f(x, u), f(y, v)];
            let greater = wide(x) > wide(u) && wide(y) > wide(v);
            let last = match greater {
                true => both(&|x, u| round(saturate(fma(x, 0x3c00, u)))),
                false => [one(!wide(x).is_nan()), one(!wide(y).is_nan())],
            };
            [
                both(&|x, u| round(fma(x, 0x3c00, u))),
                both(&|x, u| round(fma(x, 0x3c00, u ^ 0x8000))),
                both(&|x, u| round(wide(x) * wide(u))),
                both(&|x, u| round(fma(x, u, x))),
                [x ^ 0x8000, y ^ 0x8000],
                [x & 0x7fff, y & 0x7fff],
                [y, x],
                [y, u],
                both(&|x, u| one(wide(x) > wide(u))),
                both(&larger),
                [x, v],
                last,
            ]
            .concat()
            .try_into()
            .unwrap_or([0; 24])
        });
    }
}

#[test]
fn a_product_with_sums_in_single_precision() {
    let (m, n, k) = (20, 30, 17);
    let small = |seed: u64, count: usize| -> Vec<u16> {
        Numbers(seed).floats(count).into_iter().map(|x| f16::from_f32(x).to_bits()).collect()
    };
    let (a, b) = (small(10, m * k), small(11, k * n));
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(4 * m * n));
        let arguments = arguments!(at_a, at_b, out, m as i32, n as i32, k as i32);
        gpu.launch("half_product", [2, 2, 1], [16, 16, 1], arguments).unwrap();
        assert_each("half_product", &gpu.read::<f32>(out), |at| {
            let (row, column) = (at / n, at % n);
            let terms = (0..k).map(|t| (wide(a[row * k + t]) as f32, wide(b[t * n + column]) as f32));
            [terms.fold(0.0, |sum: f32, (x, y)| x.mul_add(y, sum))]
        });
    }
}

#[test]
fn atomic_sums() {
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (one, two) = (gpu.buffer(&[0_u16, 0x1234]), gpu.buffer(&[0_u16, 0]));
        gpu.run("half_atomics", 2, 64, arguments!(one, two, 100_i32));
        assert_eq!(gpu.read::<u16>(one), [round(100.0), 0x1234]);
        assert_eq!(gpu.read::<u16>(two), [round(100.0), round(50.0)]);
    }
}
