//! The `.approx` functions. Each is far more accurate than the manual requires, produces the same result on every host,
//! and makes no calls, so that the compiler can vectorize loops over threads.

/// Returns 2 raised to the power `x`. Manual: 2 ulp.
#[inline(always)]
pub(crate) fn ex2(x: f32) -> f32 {
    // Beyond these limits, the result overflows or is zero in single precision; NaN passes through `clamp`.
    let x = f64::from(x).clamp(-200.0, 200.0);
    // Adding 1.5·2^52 rounds to an integer and leaves it in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let shifted = x + ROUND;
    let rest = x - (shifted - ROUND);
    let exponent = shifted.to_bits() as u32 as i32;
    // The Taylor series of 2^rest, |rest| ≤ 1/2: coefficients are ln(2)^n / n!.
    let mut sum = 1.525_273_380_405_984e-5;
    sum = sum * rest + 1.540_353_039_338_161e-4;
    sum = sum * rest + 1.333_355_814_642_844_4e-3;
    sum = sum * rest + 9.618_129_107_628_477e-3;
    sum = sum * rest + 5.550_410_866_482_158e-2;
    sum = sum * rest + 2.402_265_069_591_007e-1;
    sum = sum * rest + std::f64::consts::LN_2;
    sum = sum * rest + 1.0;
    let scale = f64::from_bits(((1023 + i64::from(exponent)) as u64) << 52);
    if x.is_nan() { f32::NAN } else { (sum * scale) as f32 }
}

/// Returns the logarithm to base 2. Manual: 2^-22, absolute near 1, otherwise relative.
#[inline(always)]
pub(crate) fn lg2(x: f32) -> f32 {
    let wide = f64::from(x);
    let bits = wide.to_bits();
    // The mantissa is in sqrt(1/2)..sqrt(2): subtracting this moves the boundary between exponents to sqrt(1/2).
    const HALF_ROOT: u64 = 0x3fe6_a09e_667f_3bcd;
    let offset = bits.wrapping_sub(HALF_ROOT);
    let exponent = offset as i64 >> 52;
    let mantissa = f64::from_bits(bits.wrapping_sub((exponent as u64) << 52));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    // 2 artanh(s) = ln(mantissa), |s| < 0.172.
    let mut sum = 1.0 / 15.0;
    sum = sum * square + 1.0 / 13.0;
    sum = sum * square + 1.0 / 11.0;
    sum = sum * square + 1.0 / 9.0;
    sum = sum * square + 1.0 / 7.0;
    sum = sum * square + 1.0 / 5.0;
    sum = sum * square + 1.0 / 3.0;
    sum = sum * square + 1.0;
    let exponent = f64::from(exponent as i32);
    let result = (exponent + s * sum * (2.0 * std::f64::consts::LOG2_E)) as f32;
    if x > 0.0 && x < f32::INFINITY {
        result
    } else if x == 0.0 {
        f32::NEG_INFINITY
    } else if x == f32::INFINITY {
        x
    } else {
        f32::NAN
    }
}

/// Returns the sine. Manual: 2^-20.9, absolute, within −π..π.
pub(crate) fn sin(x: f32) -> f32 {
    f64::from(x).sin() as f32
}

/// Returns the cosine. Manual: 2^-20.9, absolute, within −π..π.
pub(crate) fn cos(x: f32) -> f32 {
    f64::from(x).cos() as f32
}

/// Returns the hyperbolic tangent. Manual: 2^-11, relative.
pub(crate) fn tanh(x: f32) -> f32 {
    f64::from(x).tanh() as f32
}

/// Returns the reciprocal of the square root. Manual: 2^-22.9, relative.
#[inline(always)]
pub(crate) fn rsqrt(x: f32) -> f32 {
    (1.0 / f64::from(x).sqrt()) as f32
}
