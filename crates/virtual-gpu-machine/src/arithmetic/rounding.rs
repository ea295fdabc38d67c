//! Rounds results in directions other than to nearest. The host rounds only to nearest, so the exact error of its
//! result determines which neighbor to choose.

use virtual_gpu_ptx::instruction::Rounding;

/// Returns the exact error of `sum = a + b`, provided that nothing overflows (Knuth's TwoSum).
#[inline(always)]
fn sum_error(a: f64, b: f64, sum: f64) -> f64 {
    let b_part = sum - a;
    (a - (sum - b_part)) + (b - b_part)
}

/// Rounds to odd: the last bit is set if the result is inexact, so that a second rounding is correct.
#[inline(always)]
fn to_odd(value: f64, error: f64) -> f64 {
    let bits = value.to_bits();
    if error == 0.0 || bits & 1 == 1 || !value.is_finite() {
        return value;
    }
    f64::from_bits(if (error > 0.0) == (value > 0.0) { bits + 1 } else { bits - 1 })
}

/// Rounds to single precision.
#[inline(always)]
pub(crate) fn to_single(value: f64, rounding: Rounding) -> f32 {
    let nearest = value as f32;
    let toward = match rounding {
        Rounding::Nearest => return nearest,
        Rounding::Zero if value > 0.0 => Rounding::Down,
        Rounding::Zero => Rounding::Up,
        other => other,
    };
    let back = f64::from(nearest);
    match toward {
        Rounding::Down if back > value => nearest.next_down(),
        Rounding::Up if back < value => nearest.next_up(),
        _ => nearest,
    }
}

/// Sets the sign of a zero sum: the operands' sign if both have the same one, otherwise minus if rounding down.
#[inline(always)]
fn zero_sum(sum: f64, a: f64, b: f64, rounding: Rounding) -> f64 {
    let is_canceled = sum == 0.0 && a.is_sign_positive() != b.is_sign_positive();
    if is_canceled && rounding == Rounding::Down { -0.0 } else { sum }
}

#[inline(always)]
pub(crate) fn add_single(a: f32, b: f32, rounding: Rounding) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    let sum = a + b;
    to_single(zero_sum(to_odd(sum, sum_error(a, b, sum)), a, b, rounding), rounding)
}

#[inline(always)]
pub(crate) fn mul_single(a: f32, b: f32, rounding: Rounding) -> f32 {
    to_single(f64::from(a) * f64::from(b), rounding)
}

#[inline(always)]
pub(crate) fn fma_single(a: f32, b: f32, c: f32, rounding: Rounding) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    to_single(zero_sum(to_odd(sum, sum_error(product, c, sum)), product, c, rounding), rounding)
}

#[inline(always)]
pub(crate) fn div_single(a: f32, b: f32, rounding: Rounding) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    let quotient = a / b;
    if !quotient.is_finite() || b.is_infinite() {
        return to_single(quotient, rounding);
    }
    let rest = (-quotient).mul_add(b, a);
    let error = if b < 0.0 { -rest } else { rest };
    to_single(to_odd(quotient, error), rounding)
}

#[inline(always)]
pub(crate) fn sqrt_single(a: f32, rounding: Rounding) -> f32 {
    let a = f64::from(a);
    let root = a.sqrt();
    if !root.is_finite() {
        return to_single(root, rounding);
    }
    to_single(to_odd(root, (-root).mul_add(root, a)), rounding)
}

/// Moves a double that was rounded to nearest to the neighbor that `rounding` requires; `error` is the exact value
/// minus the rounded one.
#[inline(always)]
fn to_neighbor(nearest: f64, error: f64, rounding: Rounding) -> f64 {
    if nearest.is_nan() {
        return nearest;
    }
    let toward = match rounding {
        Rounding::Zero if nearest == 0.0 => return nearest,
        Rounding::Zero if nearest > 0.0 => Rounding::Down,
        Rounding::Zero => Rounding::Up,
        other => other,
    };
    if nearest.is_infinite() {
        // The operands are finite, so this is an overflow.
        return match toward {
            Rounding::Down if nearest > 0.0 => f64::MAX,
            Rounding::Up if nearest < 0.0 => f64::MIN,
            _ => nearest,
        };
    }
    match toward {
        Rounding::Down if error < 0.0 => nearest.next_down(),
        Rounding::Up if error > 0.0 => nearest.next_up(),
        _ => nearest,
    }
}

#[inline(always)]
pub(crate) fn add_double(a: f64, b: f64, rounding: Rounding) -> f64 {
    let sum = a + b;
    if rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite() {
        return sum;
    }
    zero_sum(to_neighbor(sum, sum_error(a, b, sum), rounding), a, b, rounding)
}

#[inline(always)]
pub(crate) fn mul_double(a: f64, b: f64, rounding: Rounding) -> f64 {
    let product = a * b;
    if rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite() {
        return product;
    }
    to_neighbor(product, remainder_sign(a, b, 0.0, product), rounding)
}

#[inline(always)]
pub(crate) fn fma_double(a: f64, b: f64, c: f64, rounding: Rounding) -> f64 {
    let nearest = a.mul_add(b, c);
    if rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite() || !c.is_finite() {
        return nearest;
    }
    let error = remainder_sign(a, b, c, nearest);
    // A sum that underflows a double keeps its sign; the rounding mode determines the sign of a sum that is exactly
    // zero.
    match error == 0.0 {
        true => zero_sum(nearest, a * b, c, rounding),
        false => to_neighbor(nearest, error, rounding),
    }
}

#[inline(always)]
pub(crate) fn div_double(a: f64, b: f64, rounding: Rounding) -> f64 {
    let quotient = a / b;
    if rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite() || b == 0.0 {
        return quotient;
    }
    let rest = remainder_sign(-quotient, b, a, 0.0);
    to_neighbor(quotient, if b < 0.0 { -rest } else { rest }, rounding)
}

#[inline(always)]
pub(crate) fn sqrt_double(a: f64, rounding: Rounding) -> f64 {
    let root = a.sqrt();
    if rounding == Rounding::Nearest || !root.is_finite() {
        return root;
    }
    to_neighbor(root, remainder_sign(-root, root, a, 0.0), rounding)
}

/// Returns a number with the sign of `a * b + c - n`. The arguments must be finite, and `n` must be zero or about as
/// large as the other terms.
///
/// Scale all terms so that the product is between 1 and 4: then neither the product nor its error underflows. If a term
/// is smaller than another term's last bit, only its sign matters.
fn remainder_sign(a: f64, b: f64, c: f64, n: f64) -> f64 {
    const FAR: i32 = 200;
    if !n.is_finite() {
        return -n;
    }
    if a == 0.0 || b == 0.0 {
        return c - n;
    }
    let ((a, a_power), (b, b_power)) = (parts(a), parts(b));
    let mut product = [a * b, a.mul_add(b, -(a * b))];
    let mut scale = a_power + b_power;
    let mut addend = 0.0;
    if c != 0.0 {
        let (digits, power) = parts(c);
        if power - scale > FAR {
            scale = power - FAR;
            product = [1.0_f64.copysign(product[0]), 0.0];
        }
        addend = scaled(digits, (power - scale).max(-FAR));
    }
    // Shewchuk's expansion: an exact sum, with its largest part last.
    let mut sum = [0.0; 4];
    for (count, mut term) in [product[1], product[0], addend, -scaled(n, -scale)].into_iter().enumerate() {
        for part in &mut sum[..count] {
            let total = term + *part;
            *part = sum_error(term, *part, total);
            term = total;
        }
        sum[count] = term;
    }
    sum.into_iter().rev().find(|part| *part != 0.0).unwrap_or(0.0)
}

/// Splits a number into a mantissa between 1 and 2 and a power of two.
fn parts(value: f64) -> (f64, i32) {
    let (value, below) = if value.is_subnormal() { (value * 2f64.powi(64), 64) } else { (value, 0) };
    let power = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    (f64::from_bits(value.to_bits() & !(0x7ff << 52) | 1023 << 52), power - below)
}

/// Returns `value * 2^power`.
fn scaled(value: f64, power: i32) -> f64 {
    let third = power / 3;
    value * 2f64.powi(third) * 2f64.powi(third) * 2f64.powi(power - 2 * third)
}

/// Returns a sum rounded to odd, so that rounding it again to half its precision is correct.
#[inline(always)]
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    to_odd(sum, sum_error(a, b, sum))
}

/// Returns the bits of a half-precision number. `value` must not be NaN.
pub(crate) fn to_half(value: f64, rounding: Rounding) -> u16 {
    to_sixteen_bits(value, rounding, 10, -14)
}

/// Returns the bits of a bfloat. `value` must not be NaN.
pub(crate) fn to_brain(value: f64, rounding: Rounding) -> u16 {
    to_sixteen_bits(value, rounding, 7, -126)
}

/// Rounds once to a format with `fraction` fraction bits whose smallest normal number is `2^lowest`.
///
/// The conversions in the `half` crate convert to single precision or drop a double's lower bits before they round.
fn to_sixteen_bits(value: f64, rounding: Rounding, fraction: u32, lowest: i32) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let infinity = 0x8000 - (1 << fraction);
    if value.is_infinite() {
        return sign | infinity;
    }
    let size = value.abs();
    let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(lowest);
    // In units in the last place (ulps): scaling by a power of two is exact.
    let scaled = size * f64::from_bits(((1023 + fraction as i32 - exponent) as u64) << 52);
    let is_away = match rounding {
        Rounding::Nearest | Rounding::Zero => false,
        Rounding::Down => sign != 0,
        Rounding::Up => sign == 0,
    };
    let units = match rounding {
        Rounding::Nearest => scaled.round_ties_even(),
        _ if is_away => scaled.ceil(),
        _ => scaled.trunc(),
    };
    let bits = (((exponent - lowest) as u32) << fraction) + units as u32;
    if bits < u32::from(infinity) {
        sign | bits as u16
    } else if is_away || rounding == Rounding::Nearest {
        sign | infinity
    } else {
        sign | (infinity - 1)
    }
}
