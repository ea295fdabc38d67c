//! Tests of `math.cu`. The bounds come from the CUDA C++ Programming Guide, "Mathematical Functions": the largest error
//! in units in the last place. The reference is the host's math library in double precision. Comparisons of
//! double-precision results allow one more unit for the host's own error.

use super::{assert_each, builds};
use crate::arguments;
use crate::gpu::{Gpu, Numbers};

const BUILDS: [&str; 4] = builds!("math");

// Rust's standard library does not have these functions.
unsafe extern "C" {
    safe fn erf(x: f64) -> f64;
    safe fn erfc(x: f64) -> f64;
    safe fn lgamma(x: f64) -> f64;
    safe fn tgamma(x: f64) -> f64;
}

/// Returns the distance of `got` from the exact value, in units in the last place of the nearest float.
fn single_error(got: f32, exact: f64) -> f64 {
    let nearest = exact as f32;
    if got == nearest || got.is_nan() && nearest.is_nan() {
        return 0.0;
    }
    let unit = f64::from(nearest.abs().next_up()) - f64::from(nearest.abs());
    (f64::from(got) - f64::from(nearest)).abs() / unit
}

fn double_error(got: f64, exact: f64) -> f64 {
    if got == exact || got.is_nan() && exact.is_nan() {
        return 0.0;
    }
    (got - exact).abs() / (exact.abs().next_up() - exact.abs())
}

/// Returns the remainder of a division whose quotient is rounded to the nearest even integer.
fn remainder(x: f64, y: f64) -> f64 {
    let rest = x % y;
    let (size, half) = (rest.abs(), y.abs() / 2.0);
    let is_odd = (x / y).trunc() % 2.0 != 0.0;
    if size > half || size == half && is_odd { rest - y.abs().copysign(rest) } else { rest }
}

/// Returns pairs of numbers in -90..90 and -10..10, and special values.
fn pairs() -> (Vec<f32>, Vec<f32>) {
    let mut numbers = Numbers(1);
    let mut a: Vec<f32> = numbers.floats(3000).into_iter().map(|x| x * 90.0).collect();
    let mut b: Vec<f32> = numbers.floats(3000).into_iter().map(|x| x * 10.0).collect();
    a.extend(numbers.floats(1000).into_iter().map(|x| x * x * x));
    b.extend(numbers.floats(1000).into_iter().map(|x| x * 3.0 + 0.001));
    a.extend([0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-30, 100.0, -100.0]);
    b.extend([1.0, 1.0, 0.5, 2.0, 3.0, -1.5, 0.25, 1.0, 2.0, 5.0, 7.0]);
    (a, b)
}

type Single = (&'static str, f64, fn(f64, f64) -> f64);

/// The functions in the order of `single_functions`, with their bounds.
const SINGLE: [Single; 40] = [
    ("sinf", 2.0, |x, _| x.sin()),
    ("cosf", 2.0, |x, _| x.cos()),
    ("tanf", 4.0, |x, _| x.tan()),
    ("expf", 2.0, |x, _| x.exp()),
    ("exp2f", 2.0, |x, _| x.exp2()),
    ("exp10f", 2.0, |x, _| 10f64.powf(x)),
    ("expm1f", 1.0, |x, _| x.exp_m1()),
    ("logf", 1.0, |x, _| x.abs().ln()),
    ("log2f", 1.0, |x, _| x.abs().log2()),
    ("log10f", 2.0, |x, _| x.abs().log10()),
    ("log1pf", 1.0, |x, _| x.abs().ln_1p()),
    ("powf", 4.0, |x, y| x.abs().powf(y)),
    ("erff", 2.0, |x, _| erf(x)),
    ("erfcf", 4.0, |x, _| erfc(x)),
    ("sinhf", 3.0, |x, _| x.sinh()),
    ("coshf", 2.0, |x, _| x.cosh()),
    ("tanhf", 2.0, |x, _| x.tanh()),
    ("asinf", 4.0, |x, _| f64::from(x as f32 / 100.0).asin()),
    ("acosf", 3.0, |x, _| f64::from(x as f32 / 100.0).acos()),
    ("atanf", 2.0, |x, _| x.atan()),
    ("atan2f", 3.0, f64::atan2),
    ("asinhf", 3.0, |x, _| x.asinh()),
    ("acoshf", 4.0, |x, _| f64::from(x.abs() as f32 + 1.0).acosh()),
    ("atanhf", 3.0, |x, _| f64::from(x as f32 / 101.0).atanh()),
    ("cbrtf", 1.0, |x, _| x.cbrt()),
    ("hypotf", 3.0, f64::hypot),
    ("fmodf", 0.0, |x, y| x % y),
    ("remainderf", 0.0, remainder),
    ("roundf", 0.0, |x, _| x.round()),
    ("rintf and truncf", 0.0, |x, _| x.round_ties_even() + x.trunc()),
    ("floorf and ceilf", 0.0, |x, _| x.floor() - x.ceil()),
    ("ldexpf", 0.0, |x, y| x * 2f64.powi(y as i32)),
    ("frexpf", 0.0, |x, _| x / 2f64.powi(exponent(x))),
    ("frexpf's exponent", 0.0, |x, _| f64::from(exponent(x))),
    ("modff", 0.0, |x, _| x.fract()),
    ("modff's integer", 0.0, |x, _| x.trunc()),
    ("rsqrtf", 2.0, |x, _| 1.0 / x.abs().sqrt()),
    ("lgammaf", 6.0, |x, _| lgamma(f64::from(x.abs() as f32 / 10.0))),
    ("tgammaf", 5.0, |_, y| tgamma(f64::from(y as f32 / 20.0))),
    ("fdimf", 0.0, |x, y| f64::from((x as f32 - y as f32).max(0.0))),
];

/// Returns the exponent that `frexp` returns, with the fraction in 0.5..1.
fn exponent(x: f64) -> i32 {
    if x == 0.0 { 0 } else { (x.abs().to_bits() >> 52) as i32 - 1022 }
}

#[test]
fn single_precision_within_the_guides_bounds() {
    let (a, b) = pairs();
    let n = a.len();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(n * 160));
        let done =
            gpu.run("single_functions", n.div_ceil(128) as u32, 128, arguments!(at_a, at_b, out, n as i32));
        assert!(done.unwritten.is_none());
        for (i, got) in gpu.read::<f32>(out).chunks_exact(40).enumerate() {
            for ((name, bound, exact), &got) in SINGLE.iter().zip(got) {
                let exact = exact(f64::from(a[i]), f64::from(b[i]));
                let error = single_error(got, exact);
                assert!(
                    error <= *bound,
                    "{name} of {} and {}: {got:e}, not {exact:e}: {error} ulp",
                    a[i],
                    b[i]
                );
            }
        }
    }
}

type Fast = (&'static str, fn(f64, f64) -> f64, fn(f64, f64, f64) -> f64);

/// Returns a bound in units in the last place outside 0.5..2, and an absolute bound inside.
fn near_one(x: f64, exact: f64, inside: f64, units: f64) -> f64 {
    if (0.5..=2.0).contains(&x.abs()) { 2f64.powf(inside) } else { units * ulp(exact) }
}

fn ulp(exact: f64) -> f64 {
    let nearest = (exact as f32).abs();
    f64::from(nearest.next_up()) - f64::from(nearest)
}

/// The intrinsics in the order of `fast_functions`, with the largest absolute error of each.
const FAST: [Fast; 12] = [
    ("__sinf", |x, _| x.sin(), |x, _, _| if x.abs() <= 3.15 { 2f64.powf(-21.41) } else { 1e-4 }),
    ("__cosf", |x, _| x.cos(), |x, _, _| if x.abs() <= 3.15 { 2f64.powf(-21.19) } else { 1e-4 }),
    ("__expf", |x, _| x.exp(), |x, _, e| (2.0 + (1.173 * x).abs().floor()) * ulp(e)),
    ("__exp10f", |x, _| 10f64.powf(x), |x, _, e| (2.0 + (2.97 * x).abs().floor()) * ulp(e)),
    ("__logf", |x, _| x.abs().ln(), |x, _, e| near_one(x, e, -21.41, 3.0)),
    ("__log2f", |x, _| x.abs().log2(), |x, _, e| near_one(x, e, -22.0, 2.0)),
    ("__log10f", |x, _| x.abs().log10(), |x, _, e| near_one(x, e, -24.0, 3.0)),
    ("__powf", |x, y| x.abs().powf(f64::from(y as f32 / 10.0)), |_, _, e| 1e-5 * e.abs()),
    ("__fdividef", |x, y| x / y, |_, _, e| 2.0 * ulp(e)),
    ("__saturatef", |x, _| x.clamp(0.0, 1.0), |_, _, _| 0.0),
    ("__frcp_rn and __fsqrt_rn", |x, y| f64::from((1.0 / x) as f32 + y.abs().sqrt() as f32), |_, _, _| 0.0),
    ("__frsqrt_rn", |x, _| f64::from((1.0 / x.abs().sqrt()) as f32), |_, _, _| 0.0),
];

#[test]
fn fast_intrinsics_within_the_guides_bounds() {
    let (a, b) = pairs();
    let n = a.len();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(n * 48));
        gpu.run("fast_functions", n.div_ceil(128) as u32, 128, arguments!(at_a, at_b, out, n as i32));
        for (i, got) in gpu.read::<f32>(out).chunks_exact(12).enumerate() {
            let (x, y) = (f64::from(a[i]), f64::from(b[i]));
            for ((name, exact, bound), &got) in FAST.iter().zip(got) {
                let exact = exact(x, y);
                let is_near =
                    single_error(got, exact) == 0.0 || (f64::from(got) - exact).abs() <= bound(x, y, exact);
                // A result too small for the precision of a normal number may be flushed to zero.
                let is_tiny = exact.abs() < f64::from(f32::MIN_POSITIVE) && got.abs() <= f32::MIN_POSITIVE;
                assert!(is_near || is_tiny, "{name} of {x:e} and {y:e}: {got:e}, not {exact:e}");
            }
        }
    }
}

/// The functions in the order of `double_functions`.
const DOUBLE: [Single; 24] = [
    ("sin", 2.0, |x, _| x.sin()),
    ("cos", 2.0, |x, _| x.cos()),
    ("tan", 2.0, |x, _| x.tan()),
    ("exp", 1.0, |x, _| x.exp()),
    ("exp2", 1.0, |x, _| x.exp2()),
    ("expm1", 1.0, |x, _| x.exp_m1()),
    ("log", 1.0, |x, _| x.abs().ln()),
    ("log2", 1.0, |x, _| x.abs().log2()),
    ("log10", 1.0, |x, _| x.abs().log10()),
    ("log1p", 1.0, |x, _| x.abs().ln_1p()),
    ("pow", 2.0, |x, y| x.abs().powf(y)),
    ("erf", 2.0, |x, _| erf(x)),
    ("erfc", 5.0, |x, _| erfc(x)),
    ("sinh", 2.0, |x, _| x.sinh()),
    ("tanh", 2.0, |x, _| x.tanh()),
    ("asin", 2.0, |x, _| (x / 100.0).asin()),
    ("atan2", 2.0, f64::atan2),
    ("cbrt", 1.0, |x, _| x.cbrt()),
    ("hypot", 2.0, f64::hypot),
    ("fmod", 0.0, |x, y| x % y),
    ("rsqrt", 1.0, |x, _| 1.0 / x.abs().sqrt()),
    ("lgamma", 4.0, |x, _| lgamma(x.abs() / 10.0)),
    ("sqrt and /", 0.0, |x, y| x.abs().sqrt() / y),
    ("fma, round and nearbyint", 0.0, |x, y| x.mul_add(y, 1.0) + x.round() + y.round_ties_even()),
];

#[test]
fn double_precision_within_the_guides_bounds() {
    let (a, b) = pairs();
    let a: Vec<f64> = a.into_iter().map(|x| f64::from(x) * 1.000_000_01).collect();
    let b: Vec<f64> = b.into_iter().map(|x| f64::from(x) * 0.999_999_99).collect();
    let n = a.len();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(n * 192));
        gpu.run("double_functions", n.div_ceil(128) as u32, 128, arguments!(at_a, at_b, out, n as i32));
        for (i, got) in gpu.read::<f64>(out).chunks_exact(24).enumerate() {
            for ((name, bound, exact), &got) in DOUBLE.iter().zip(got) {
                let exact = exact(a[i], b[i]);
                let error = double_error(got, exact);
                let bound = if *bound > 0.0 { bound + 1.0 } else { 0.0 };
                assert!(
                    error <= bound,
                    "{name} of {} and {}: {got:e}, not {exact:e}: {error} ulp",
                    a[i],
                    b[i]
                );
            }
        }
    }
}

#[test]
fn angles_far_beyond_a_circle() {
    let mut numbers = Numbers(2);
    let a: Vec<f32> =
        (0..500).map(|_| f32::from_bits(numbers.next() as u32)).filter(|x| x.is_finite()).collect();
    let b: Vec<f64> = a.iter().map(|x| f64::from(*x) * 1e30).collect();
    let n = a.len();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b) = (gpu.buffer(&a), gpu.buffer(&b));
        let (out, wide) = (gpu.unwritten(12 * n), gpu.unwritten(16 * n));
        gpu.run("large_arguments", 4, 128, arguments!(at_a, at_b, out, wide, n as i32));
        for (i, got) in gpu.read::<f32>(out).chunks_exact(3).enumerate() {
            let x = f64::from(a[i]);
            for ((got, exact), bound) in got.iter().zip([x.sin(), x.cos(), x.tan()]).zip([2.0, 2.0, 4.0]) {
                assert!(single_error(*got, exact) <= bound, "of {x:e}: {got:e}, not {exact:e}");
            }
        }
        for (i, got) in gpu.read::<f64>(wide).chunks_exact(2).enumerate() {
            for (got, exact) in got.iter().zip([b[i].sin(), b[i].cos()]) {
                assert!(double_error(*got, exact) <= 3.0, "of {:e}: {got:e}, not {exact:e}", b[i]);
            }
        }
    }
}

#[test]
fn classes_and_comparisons_of_special_numbers() {
    let odd = [0.0, -0.0, 1.0, -1.0, 1e-40, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX];
    let a: Vec<f32> = (0..100).map(|i| odd[i / 10]).collect();
    let b: Vec<f64> = (0..100).map(|i| f64::from(odd[i % 10])).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(400));
        gpu.run("classes", 1, 128, arguments!(at_a, at_b, out, 100_i32));
        assert_each("classes", &gpu.read::<i32>(out), |i| {
            let (x, y) = (f64::from(a[i]), b[i]);
            // Zeros of different signs are equal, so it does not matter which zero is considered smaller.
            let is_smaller = a[i].min(y as f32) == a[i];
            let answers = [
                x.is_nan(),
                x.is_infinite(),
                x.is_finite(),
                a[i].is_sign_negative(),
                y.is_nan(),
                y.is_infinite(),
                y.is_finite(),
                y.is_sign_negative(),
                x < y,
                x <= y,
                x == y,
                x != y,
                x <= y || x.is_nan() || y.is_nan(),
                x < y || x.is_nan() || y.is_nan(),
                x.is_nan() || y.is_nan(),
                is_smaller,
            ];
            [answers.iter().enumerate().fold(0, |mask, (at, &answer)| mask | i32::from(answer) << at)]
        });
    }
}

#[test]
fn softmax_of_rows() {
    let (rows, columns) = (5, 300);
    let a: Vec<f32> = Numbers(3).floats(rows * columns).into_iter().map(|x| 20.0 * x).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(4 * rows * columns));
        gpu.run("softmax", rows as u32, 128, arguments!(at_a, out, columns as i32));
        for (row, got) in a.chunks_exact(columns).zip(gpu.read::<f32>(out).chunks_exact(columns)) {
            let exponents: Vec<f64> = row.iter().map(|x| f64::from(*x).exp()).collect();
            let sum: f64 = exponents.iter().sum();
            for (got, exponent) in got.iter().zip(exponents) {
                // Four steps add errors: subtracting the largest element (a difference of at most 40), expf, the sum,
                // and the division.
                assert!((f64::from(*got) - exponent / sum).abs() <= 4e-6 * exponent / sum);
            }
        }
    }
}

#[test]
fn gelu() {
    let a: Vec<f32> = Numbers(4).floats(500).into_iter().map(|x| 5.0 * x).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(2000));
        gpu.run("gelu", 4, 128, arguments!(at_a, out, 500_i32));
        for (got, x) in gpu.read::<f32>(out).into_iter().zip(a.iter().map(|x| f64::from(*x))) {
            let exact = 0.5 * x * (1.0 + erf(x * 0.5f64.sqrt()));
            // On the left side, 1 + erf cancels.
            assert!((f64::from(got) - exact).abs() <= 4e-7 * x.abs(), "{x}: {got}, not {exact}");
        }
    }
}
