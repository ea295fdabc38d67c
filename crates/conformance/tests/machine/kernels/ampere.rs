//! Tests of `ampere.cu`.

use half::bf16;

use super::halves::{bits, nearest};
use super::{assert_each, builds, words};
use crate::arguments;
use crate::gpu::{Gpu, Numbers};

/// The builds for newer architectures; for compute_70, the module is empty.
const BUILDS: [&str; 2] = {
    let all = builds!("ampere");
    [all[1], all[3]]
};

const ODD: [u16; 12] =
    [0, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 0x0001, 0x8001, 0x007f, 0x0080, 0x7f7f];

fn wide(bits: u16) -> f64 {
    bf16::from_bits(bits).to_f64()
}

fn round(value: f64) -> u16 {
    nearest(value, 0x7f80, wide)
}

#[track_caller]
fn assert_brains<const N: usize>(kernel: &str, got: &[u16], expected: impl Fn(usize) -> [u16; N]) {
    for (thread, got) in got.chunks_exact(N).enumerate() {
        for (at, (&got, expected)) in got.iter().zip(expected(thread)).enumerate() {
            let same = got == expected || wide(got).is_nan() && wide(expected).is_nan();
            assert!(same, "{kernel}, thread {thread}, o[{at}]: {got:#x}, not {expected:#x}");
        }
    }
}

/// Returns numbers between 2^-8 and 2^8, whose sums and products are exact in double precision.
fn medium(seed: u64, count: usize) -> Vec<u16> {
    let mut numbers = Numbers(seed);
    (0..count)
        .map(|_| numbers.next())
        .map(|x| (x & 0x807f) as u16 | (119 + x as u16 / 256 % 16) << 7)
        .collect()
}

#[test]
fn an_empty_module_loads() {
    let all = builds!("ampere");
    assert_eq!(Gpu::new(all[2]).module.kernel_names().count(), 0);
}

#[test]
fn reductions_over_a_warp() {
    let a: Vec<i32> = words(1, 128).into_iter().map(|word| word as i32).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(128 * 32));
        gpu.run("reductions", 2, 64, arguments!(at_a, out));
        assert_each("reductions", &gpu.read::<u32>(out), |i| {
            let warp = || a[i / 32 * 32..][..32].iter().copied();
            let unsigned = || warp().map(|x| x as u32);
            [
                unsigned().fold(0, u32::wrapping_add),
                warp().min().unwrap() as u32,
                warp().max().unwrap() as u32,
                unsigned().max().unwrap(),
                unsigned().fold(u32::MAX, |all, x| all & x),
                unsigned().fold(0, |all, x| all | x),
                unsigned().fold(0, |all, x| all ^ x),
                a[i / 16 * 16..][..16].iter().fold(0, |sum, &x| sum.wrapping_add(x as u32)),
            ]
        });
    }
}

#[test]
fn a_pipeline_of_two_tiles() {
    let tiles = 5;
    let a = Numbers(2).floats(tiles * 256);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(4 * a.len()));
        let done = gpu.run("pipeline", 1, 64, arguments!(at_a, out, tiles as i32));
        assert!(done.unwritten.is_none());
        assert_each("pipeline", &gpu.read::<f32>(out), |i| {
            let from = i / 64 * 64 + 63 - i % 64;
            [1.0, 2.0, 3.0, 4.0].map(|k| a[4 * from + k as usize - 1] + k)
        });
    }
}

#[test]
fn asynchronous_copies_of_every_size() {
    let a: Vec<u32> = words(3, 256);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(1024));
        gpu.run("small_copies", 1, 32, arguments!(at_a, out));
        assert_each("small_copies", &gpu.read::<u32>(out), |t| {
            let from = &a[8 * (31 - t)..][..8];
            [from[0], 17, from[2], from[3], from[4], from[5], from[6], 0]
        });
    }
}

#[test]
fn bfloat_arithmetic() {
    let n = 3000;
    let (a, b, c) = (medium(4, n), medium(5, n), medium(6, n));
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, at_c) = (gpu.buffer(&a), gpu.buffer(&b), gpu.buffer(&c));
        let out = gpu.unwritten(20 * n);
        gpu.run("bfloats", n.div_ceil(128) as u32, 128, arguments!(at_a, at_b, at_c, out, n as i32));
        assert_brains("bfloats", &gpu.read::<u16>(out), |i| {
            let [x, y, z] = [a[i], b[i], c[i]].map(wide);
            [
                round(x + y),
                round(x - y),
                round(x * y),
                round(x * y + z),
                a[i] ^ 0x8000,
                a[i] & 0x7fff,
                round(x.max(y)),
                round(x.min(y)),
                if x < y { a[i] } else { c[i] },
                round(f64::from((x / y) as f32)),
            ]
        });
    }
}

#[test]
fn bfloat_conversions_and_atomics() {
    let n = 2000;
    let mut numbers = Numbers(7);
    let a: Vec<f32> = (0..n).map(|_| f32::from_bits(numbers.next() as u32)).collect();
    let b = bits(8, n, &ODD);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b) = (gpu.buffer(&a), gpu.buffer(&b));
        let (out, back, sum) = (gpu.unwritten(10 * n), gpu.unwritten(8 * n), gpu.buffer(&[0_u16, 7]));
        let arguments = arguments!(at_a, at_b, out, back, sum, n as i32);
        gpu.run("bfloat_conversions", n.div_ceil(128) as u32, 128, arguments);
        assert_brains("bfloat_conversions", &gpu.read::<u16>(out), |i| {
            // The upper half of a float is the bfloat16 toward zero; the next bfloat16 is away from zero.
            let x = a[i];
            let cut = (x.to_bits() >> 16) as u16;
            let away = if x.is_nan() || x.to_bits() & 0xffff == 0 || x.is_infinite() { cut } else { cut + 1 };
            let (down, up) = if x < 0.0 { (away, cut) } else { (cut, away) };
            let nan = |bits: u16| if x.is_nan() { 0x7fff } else { bits };
            [round(f64::from(x)), nan(cut), nan(down), nan(up), round(f64::from(x as i32))]
        });
        for (got, b) in gpu.read::<f32>(back).chunks_exact(2).zip(&b) {
            let x = wide(*b) as f32;
            assert!(got[0] == x || got[0].is_nan() && x.is_nan());
            assert_eq!(got[1], x as i32 as f32, "{x}");
        }
        // At 256, adding half a unit does not change a bfloat16.
        assert_eq!(gpu.read::<u16>(sum), [round(256.0), 7]);
    }
}

#[test]
fn bfloat_pairs() {
    let n = 1000;
    let (a, b) = (medium(9, 2 * n), medium(10, 2 * n));
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(32 * n));
        gpu.run("bfloat_pairs", n.div_ceil(128) as u32, 128, arguments!(at_a, at_b, out, n as i32));
        assert_brains("bfloat_pairs", &gpu.read::<u16>(out), |i| {
            let pairs = [(a[2 * i], b[2 * i]), (a[2 * i + 1], b[2 * i + 1])];
            let [low, high] = pairs.map(|(x, u)| (wide(x), wide(u)));
            let both = |f: fn(f64, f64) -> f64| [round(f(low.0, low.1)), round(f(high.0, high.1))];
            let scaled = f64::from(low.0 as f32 * 1.01);
            [
                both(|x, u| x + u),
                both(|x, u| x * u),
                both(|x, u| x * u + x),
                both(f64::max),
                both(f64::min),
                both(|x, u| (x * u + x).max(0.0)),
                [round(scaled), round(high.1)],
                pairs.map(|(x, _)| x | 0x8000),
            ]
            .concat()
            .try_into()
            .unwrap_or([0; 16])
        });
    }
}

#[test]
fn half_pairs_clamped_at_zero() {
    let half = |bits: u16| half::f16::from_bits(bits).to_f64();
    let round = |value: f64| nearest(value, 0x7c00, half);
    let mut numbers = Numbers(11);
    let mut small = || (numbers.next() & 0x83ff) as u16 | (12 + numbers.next() as u16 % 6) << 10;
    let a: Vec<u16> = (0..400).map(|_| small()).collect();
    let b: Vec<u16> = (0..400).map(|at| if at % 9 == 0 { 0x7e00 } else { small() }).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(16 * 200));
        gpu.run("half_relu", 2, 128, arguments!(at_a, at_b, out, 200_i32));
        for (i, got) in gpu.read::<u16>(out).chunks_exact(8).enumerate() {
            for (side, at) in [2 * i, 2 * i + 1].into_iter().enumerate() {
                let (x, u) = (half(a[at]), half(b[at]));
                let nan_or = |value: f64| if u.is_nan() { 0x7fff } else { round(value) };
                let expected =
                    [nan_or((x * u + x).max(0.0)), round(x.max(u)), nan_or(x.min(u)), nan_or(x.max(u))];
                let got: Vec<u16> = got.iter().copied().skip(side).step_by(2).collect();
                assert_eq!(got, expected, "{x} {u}");
            }
        }
    }
}
