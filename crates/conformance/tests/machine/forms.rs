//! Compares the PTX that NVRTC generates from plain CUDA C with the same computation in Rust.

use virtual_gpu_machine::FaultKind;

use crate::arguments;
use crate::gpu::{Gpu, Numbers, Plain};

const FORMS: &str = include_str!("../ptx/forms.ptx");

/// Runs a kernel with the parameters `(a, b, out, n)`, and compares each thread's results bit by bit.
fn compare<A: Plain, B: Plain + PartialEq + std::fmt::Debug, const N: usize>(
    kernel: &str,
    pairs: &[(A, A)],
    expected: impl Fn(A, A) -> [B; N],
) {
    let mut gpu = Gpu::new(FORMS);
    let a = gpu.buffer(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
    let b = gpu.buffer(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
    let out = gpu.unwritten(pairs.len() * N * size_of::<B>());
    let done =
        gpu.run(kernel, pairs.len().div_ceil(96) as u32, 96, arguments!(a, b, out, pairs.len() as u32));
    assert!(done.unwritten.is_none());
    for (at, (got, &(a, b))) in gpu.read::<B>(out).chunks_exact(N).zip(pairs).enumerate() {
        for (which, (got, expected)) in got.iter().zip(expected(a, b)).enumerate() {
            assert_eq!(
                got.bytes(),
                expected.bytes(),
                "{kernel}, pair {at}, o[{which}]: {got:?}, not {expected:?}"
            );
        }
    }
}

fn int_pairs() -> Vec<(i32, i32)> {
    let edges = [0, 1, -1, 2, 7, 31, 32, 100, i32::MAX, i32::MIN, 0x1234_5678, -30000];
    let mut pairs: Vec<_> = edges.iter().flat_map(|&a| edges.map(|b| (a, b))).collect();
    let mut numbers = Numbers(11);
    pairs.extend((0..500).map(|_| (numbers.next() as i32, (numbers.next() >> (numbers.next() % 60)) as i32)));
    pairs
}

#[test]
fn integers_of_32_bits() {
    compare("integers", &int_pairs(), |x, y| {
        let (ux, uy) = (x as u32, y as u32);
        let amount = uy & 31;
        let halves = |shift: u32| (ux >> shift & 0xffff).wrapping_add(uy >> shift & 0xffff) & 0xffff;
        let low24 = |value: i32| i64::from(value << 8 >> 8);
        [
            if y == 0 { 0 } else { x.wrapping_div(y) },
            if y == 0 { 0 } else { x.wrapping_rem(y) },
            ux.checked_div(uy).unwrap_or(0) as i32,
            ux.checked_rem(uy).unwrap_or(0) as i32,
            ((i64::from(x) * i64::from(y)) >> 32) as i32,
            ((u64::from(ux) * u64::from(uy)) >> 32) as i32,
            x.min(y),
            ux.max(uy) as i32,
            x.wrapping_abs(),
            x >> amount,
            (ux >> amount) as i32,
            x << amount,
            x.count_ones() as i32,
            x.leading_zeros() as i32,
            x.reverse_bits(),
            if x == 0 { 0 } else { x.trailing_zeros() as i32 + 1 },
            (ux & 0xffff | uy << 16) as i32,
            // This is __funnelshift_l(low, high, n).
            ((u64::from(uy) << 32 | u64::from(ux)) << 7 >> 32) as i32,
            ((u64::from(uy) << 32 | u64::from(ux)) >> 9) as i32,
            x.abs_diff(y).wrapping_add(3) as i32,
            (low24(x) * low24(y)) as i32,
            i32::from(x as i16) * i32::from(y as i16),
            i32::from(x as u8) + i32::from(y as i8),
            ((halves(16) << 16) | halves(0)) as i32,
        ]
    });
}

#[test]
fn integers_of_64_bits() {
    let edges = [0, 1, -1, 63, 64, i64::MAX, i64::MIN, 1 << 32, -(1 << 40)];
    let mut pairs: Vec<_> = edges.iter().flat_map(|&a| edges.map(|b| (a, b))).collect();
    let mut numbers = Numbers(12);
    pairs.extend((0..500).map(|_| (numbers.next() as i64, (numbers.next() >> (numbers.next() % 60)) as i64)));
    compare("longs", &pairs, |x, y| {
        let (ux, uy) = (x as u64, y as u64);
        let amount = uy & 63;
        [
            if y == 0 { 0 } else { x.wrapping_div(y) },
            if y == 0 { 0 } else { x.wrapping_rem(y) },
            ux.checked_div(uy).unwrap_or(0) as i64,
            ux.checked_rem(uy).unwrap_or(0) as i64,
            ((i128::from(x) * i128::from(y)) >> 64) as i64,
            ((u128::from(ux) * u128::from(uy)) >> 64) as i64,
            x >> amount,
            (ux >> amount) as i64,
            x.wrapping_mul(y),
            i64::from(x.count_ones() + 100 * x.leading_zeros()),
            x.reverse_bits(),
            if x == 0 { 0 } else { i64::from(x.trailing_zeros()) + 1 },
        ]
    });
}

/// Returns numbers of all magnitudes, including special values.
fn singles() -> Vec<f32> {
    let mut values = vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        1e-40,
        -1e-40,
        1e38,
        -1e38,
        3.4e38,
        0.1,
        1e10,
        -3e9,
        7e18,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        f32::EPSILON,
    ];
    let mut numbers = Numbers(13);
    values.extend((0..300).map(|_| f32::from_bits(numbers.next() as u32)));
    values.extend(numbers.floats(300));
    values
}

#[test]
fn conversions_between_all_kinds_of_numbers() {
    let mut gpu = Gpu::new(FORMS);
    let a = singles();
    let n = a.len();
    let mut numbers = Numbers(14);
    let b: Vec<f64> = (0..n)
        .map(|i| match i % 3 {
            0 => f64::from_bits(numbers.next()),
            1 => numbers.next() as i64 as f64 * 2f64.powi((numbers.next() % 80) as i32 - 70),
            _ => f64::from(a[i]) * 1.000_000_000_1,
        })
        .collect();
    let c: Vec<i32> = (0..n).map(|_| numbers.next() as i32).collect();
    let (at_a, at_b, at_c) = (gpu.buffer(&a), gpu.buffer(&b), gpu.buffer(&c));
    let out = gpu.unwritten(n * 20 * 8);
    gpu.run("conversions", n.div_ceil(64) as u32, 64, arguments!(at_a, at_b, at_c, out, n as u32));
    let down = |y: f64| if f64::from(y as f32) > y { (y as f32).next_down() } else { y as f32 };
    let up = |y: f64| if f64::from(y as f32) < y { (y as f32).next_up() } else { y as f32 };
    for (i, got) in gpu.read::<f64>(out).chunks_exact(20).enumerate() {
        let (x, y, z) = (a[i], b[i], c[i]);
        let saturated = if x > 0.0 { x.min(1.0) } else { 0.0 };
        let not_nan = |value: i64| if x.is_nan() { i64::MIN } else { value };
        let expected = [
            f64::from(x.round_ties_even() as i32),
            f64::from(x as i32),
            f64::from(x.floor() as i32),
            f64::from(x.ceil() as i32),
            f64::from(x as u32),
            not_nan(x as i64) as f64,
            f64::from(y as f32),
            f64::from(down(y)),
            f64::from(up(y)),
            if y.is_nan() { f64::from(i32::MIN) } else { f64::from(y.round_ties_even() as i32) },
            if y.is_nan() { i64::MIN as f64 } else { y.floor() as i64 as f64 },
            f64::from(z as f32),
            f64::from(down(f64::from(z))),
            f64::from(up(f64::from(z as u32))),
            f64::from(z as u32),
            f64::from(x.floor()),
            f64::from(x.ceil()),
            f64::from(x.trunc()),
            f64::from(x.round_ties_even()),
            y.round_ties_even() + f64::from(saturated),
        ];
        for (which, (got, expected)) in got.iter().zip(expected).enumerate() {
            let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
            assert!(same, "o[{which}] of {x:e} {y:e} {z}: {got:e}, not {expected:e}");
        }
    }
}

/// Returns all pairs of a few numbers, and random pairs.
fn single_pairs() -> Vec<(f32, f32)> {
    let values = singles();
    let mut pairs: Vec<_> =
        values[..22].iter().flat_map(|&a| values[..22].iter().map(move |&b| (a, b))).collect();
    pairs.extend(values.iter().copied().zip(values.iter().rev().copied()));
    pairs
}

/// Returns the float next to an exact value in the given direction. The value consists of a double and the remainder
/// that the double omits.
fn directed(value: f64, rest: f64, up: bool) -> f32 {
    let nearest = value as f32;
    let distance = (value - f64::from(nearest)) + rest;
    if !nearest.is_finite() {
        return match (nearest > 0.0, up) {
            _ if !value.is_finite() => nearest,
            (true, false) => f32::MAX,
            (false, true) => f32::MIN,
            _ => nearest,
        };
    }
    match up {
        true if distance > 0.0 => nearest.next_up(),
        false if distance < 0.0 => nearest.next_down(),
        _ => nearest,
    }
}

#[test]
fn single_precision_and_its_roundings() {
    let mut gpu = Gpu::new(FORMS);
    let pairs = single_pairs();
    let n = pairs.len();
    let a = gpu.buffer(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
    let b = gpu.buffer(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
    let out = gpu.unwritten(n * 20 * 4);
    gpu.run("singles", n.div_ceil(128) as u32, 128, arguments!(a, b, out, n as u32));
    for (got, &(x, y)) in gpu.read::<f32>(out).chunks_exact(20).zip(&pairs) {
        let (wide_x, wide_y) = (f64::from(x), f64::from(y));
        let sum = wide_x + wide_y;
        let lost =
            if wide_x.abs() > wide_y.abs() { wide_y - (sum - wide_x) } else { wide_x - (sum - wide_y) };
        let product = wide_x * wide_y;
        let toward_zero = |value: f64, rest: f64| directed(value, rest, value < 0.0);
        let mut expected = vec![(0, toward_zero(sum, lost)), (3, toward_zero(product, 0.0))];
        expected.extend([(4, directed(product, 0.0, false)), (5, directed(product, 0.0, true))]);
        // Rounding down, a canceled sum is −0. Here it is compared as a number; `opcodes` compares the bits.
        expected.extend([(1, directed(sum, lost, false)), (2, directed(sum, lost, true)), (9, x / y)]);
        expected.extend([(11, x.abs().sqrt()), (13, 1.0 / x), (18, -x), (19, x % y)]);
        expected.push((14, (1.0 / f64::from(x.abs()).sqrt()) as f32));
        expected.extend([(15, x.min(y)), (16, x.max(y)), (17, x.copysign(y))]);
        for (which, expected) in expected {
            let got = got[which];
            assert!(
                got == expected || got.is_nan() && expected.is_nan(),
                "o[{which}] of {x:e} {y:e}: {got:e}, not {expected:e}"
            );
        }
        let third = f64::from(0.3_f32);
        let exact = (wide_x * wide_y) + third;
        if exact.is_finite() && exact.abs() > 1e-30 && exact.abs() < 1e38 {
            assert!(f64::from(got[7]) <= exact && f64::from(got[8]) >= exact, "fma of {x:e} {y:e}");
            assert!(got[7] == got[8] || got[7].next_up() == got[8], "fma of {x:e} {y:e}");
            assert_eq!(got[6], if exact > 0.0 { got[7] } else { got[8] });
        }
    }
}

#[test]
fn elementary_functions() {
    let mut gpu = Gpu::new(FORMS);
    let x: Vec<f32> = Numbers(15).floats(1000).iter().map(|x| x * 8.0).collect();
    let (a, out) = (gpu.buffer(&x), gpu.unwritten(12 * 4 * 1000));
    gpu.run("functions", 8, 128, arguments!(a, out, 1000_u32));
    for (got, x) in gpu.read::<f32>(out).chunks_exact(12).zip(x) {
        let x = f64::from(x);
        let m = x.abs();
        let expected = [
            x.exp(),
            m.ln(),
            x.sin(),
            x.cos(),
            x.tanh(),
            m.powf(1.7),
            x.exp(),
            m.ln(),
            x.sin(),
            x.cos(),
            x.exp2(),
        ];
        for (which, expected) in expected.into_iter().enumerate() {
            let error = (f64::from(got[which]) - expected).abs();
            assert!(
                error < 2e-6 * expected.abs().max(1.0),
                "o[{which}] of {x}: {} not {expected}",
                got[which]
            );
        }
    }
}

#[test]
fn double_precision() {
    let mut numbers = Numbers(16);
    let pairs: Vec<(f64, f64)> = (0..600)
        .map(|_| (numbers.next() as i64 as f64 / 1e18, numbers.next() as i64 as f64 / 1e17))
        .collect();
    let mut gpu = Gpu::new(FORMS);
    let a = gpu.buffer(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
    let b = gpu.buffer(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
    let out = gpu.unwritten(600 * 12 * 8);
    gpu.run("doubles", 10, 64, arguments!(a, b, out, 600_u32));
    for (got, (x, y)) in gpu.read::<f64>(out).chunks_exact(12).zip(pairs) {
        let exact = [x + y, x * y, x / y, x.abs().sqrt(), x.mul_add(y, 0.3)];
        assert_eq!(got[..5], exact);
        let sum_rest = (x - ((x + y) - ((x + y) - x))) + (y - ((x + y) - x));
        assert_eq!(got[5], if sum_rest < 0.0 { (x + y).next_down() } else { x + y });
        assert_eq!(got[6], if x.mul_add(y, -(x * y)) > 0.0 { (x * y).next_up() } else { x * y });
        assert!(got[7].abs() <= (x / y).abs() && (got[7] - x / y).abs() <= (x / y).abs() * 3e-16);
        for (got, expected) in
            [(got[8], x.exp()), (got[9], x.abs().ln()), (got[10], x + y), (got[11], x.sin())]
        {
            assert!(
                (got - expected).abs() <= 4e-16 * expected.abs().max(1.0),
                "{x} {y}: {got} not {expected}"
            );
        }
    }
}

#[test]
fn a_called_function_gets_a_struct_and_a_local_array() {
    let mut gpu = Gpu::new(FORMS);
    let out = gpu.unwritten(4 * 64);
    let mut pair = 3_i32.to_le_bytes().to_vec();
    pair.extend(0.5_f32.to_le_bytes());
    pair.extend(0.25_f64.to_le_bytes());
    gpu.run("calls", 1, 64, &[pair, out.to_le_bytes().to_vec(), 64_u32.to_le_bytes().to_vec()]);
    let expected: Vec<f32> = (0..64).map(|i| (0..i % 8).fold(1.75, |sum, j| sum + (j * i) as f32)).collect();
    assert_eq!(gpu.read::<f32>(out), expected);
}

#[test]
fn constants_and_globals_of_the_module() {
    let mut gpu = Gpu::new(FORMS);
    let out = gpu.unwritten(4 * 32);
    gpu.run("variables", 1, 32, arguments!(out));
    let expected: Vec<i32> = (0..32).map(|i| if i == 0 { 7 } else { 10 * (i % 4 + 1) }).collect();
    assert_eq!(gpu.read::<i32>(out), expected);
    let counter = gpu.module.variables().iter().find(|variable| variable.name == "counter").unwrap();
    assert_eq!((counter.size, &counter.initial[..]), (4, &[5, 0, 0, 0][..]));
}

#[test]
fn exchanges_within_a_warp() {
    let mut gpu = Gpu::new(FORMS);
    let x: Vec<i32> = (0..64).map(|i| (i * 37) % 50 - 20).collect();
    let (at_x, out) = (gpu.buffer(&x), gpu.unwritten(64 * 12 * 4));
    gpu.run("warps", 1, 64, arguments!(at_x, out));
    for (i, got) in gpu.read::<u32>(out).chunks_exact(12).enumerate() {
        let (warp, lane) = (&x[i / 32 * 32..][..32], i % 32);
        let ballot = |holds: &dyn Fn(i32) -> bool| {
            warp.iter().enumerate().fold(0, |bits, (lane, &x)| bits | u32::from(holds(x)) << lane)
        };
        let expected = [
            warp[(i + 5) % 32] as u32,
            warp[if lane < 3 { lane } else { lane - 3 }] as u32,
            warp[if lane > 28 { lane } else { lane + 3 }] as u32,
            warp[lane ^ 5] as u32,
            warp[if lane % 8 < 2 { lane } else { lane - 2 }] as u32,
            ballot(&|x| x > 0),
            0,
            1,
            u32::MAX,
            ballot(&|x| x & 3 == warp[lane] & 3),
            if i % 2 == 1 { 0xaaaa_aaaa } else { 0 },
            ((warp[31 - lane] as u32 as u64) << 20 >> 20) as u32,
        ];
        assert_eq!(got, expected, "thread {i}");
    }
}

#[test]
fn atomics_of_every_kind() {
    let mut gpu = Gpu::new(FORMS);
    let (ints, words) = (gpu.buffer(&[0_i32; 4]), gpu.buffer(&[u32::MAX, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0]));
    let (longs, floats, doubles) = (gpu.buffer(&[0_u64; 2]), gpu.buffer(&[0.0_f32]), gpu.buffer(&[0.0_f64]));
    let done = gpu.run("atomics", 1, 96, arguments!(ints, words, longs, floats, doubles));
    assert!(done.unwritten.is_none(), "{}", done.unwritten.unwrap());
    let sum: i32 = (0..96).sum();
    assert_eq!(gpu.read::<i32>(ints), [sum, -sum, -95, 95]);
    let xor = (0..96).fold(0, |all, i| all ^ i);
    // A counter is incremented 96 times from 0 to 9, and another is decremented 96 times from 9 to 0.
    let of_four = |first: u32| (0..24).map(|i| first + 4 * i).sum::<u32>();
    let expected = [0, u32::MAX, xor, 6, 4, 95, 96, 0, of_four(0), of_four(1), of_four(2), 1095];
    let mut got = gpu.read::<u32>(words);
    // This value depends on the order of the lanes; in any order, it is at least 1095.
    assert!(got[11] >= 1095);
    got[11] = 1095;
    assert_eq!(got, expected);
    assert_eq!(gpu.read::<u64>(longs), [96 << 33, 95 << 40]);
    assert_eq!((gpu.read::<f32>(floats)[0], gpu.read::<f64>(doubles)[0]), (48.0, 24.0));
}

#[test]
fn three_dimensions_of_threads_and_blocks() {
    let mut gpu = Gpu::new(FORMS);
    let out = gpu.unwritten(4 * 24 * 12);
    gpu.launch("shapes", [2, 3, 2], [4, 3, 2], arguments!(out)).unwrap();
    let mut expected = Vec::new();
    for (bz, by, bx) in (0..2).flat_map(|z| (0..3).flat_map(move |y| (0..2).map(move |x| (z, y, x)))) {
        for (tz, ty, tx) in (0..2).flat_map(|z| (0..3).flat_map(move |y| (0..4).map(move |x| (z, y, x)))) {
            expected.push(tx + 10 * ty + 100 * tz + 1000 * bx + 10000 * by + 100_000 * bz);
        }
    }
    assert_eq!(gpu.read::<i32>(out), expected);
}

#[test]
fn barriers_that_count() {
    let mut gpu = Gpu::new(FORMS);
    let x: Vec<i32> = (0..80).map(|i| i % 10 - 4).collect();
    let (at_x, out) = (gpu.buffer(&x), gpu.unwritten(80 * 12));
    gpu.run("counting_barriers", 1, 80, arguments!(at_x, out));
    for got in gpu.read::<i32>(out).chunks_exact(3) {
        assert_eq!((got[0], got[1] != 0, got[2] != 0), (40, true, false));
    }
}

#[test]
fn a_kernel_named_like_an_opcode_and_its_trap() {
    let mut gpu = Gpu::new(FORMS);
    let out = gpu.buffer(&[0_i32]);
    gpu.run("red", 1, 1, arguments!(out));
    let out = gpu.buffer(&[9_i32]);
    let fault = gpu.fault("red", 1, 1, arguments!(out));
    assert!(matches!(fault.kind, FaultKind::Trap));
    assert_eq!(gpu.module.kernel("red").unwrap().max_threads(), Some([128, 1, 1]));
}
