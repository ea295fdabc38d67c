//! 8-bit floating-point formats.

use half::f16;

use virtual_gpu_ptx::instruction::Fp8;

/// The number that isn't a number, in both formats.
const NAN: u8 = 0x7f;

/// Rounds to nearest even. Numbers that are too large, and infinity, become the largest number.
#[inline(always)]
pub(crate) fn to_fp8(value: f64, to: Fp8) -> u8 {
    if value.is_nan() {
        return NAN;
    }
    let (fraction_bits, bias, largest) = match to {
        Fp8::E4m3 => (3, 7, 448.0),
        Fp8::E5m2 => (2, 15, 57344.0),
    };
    let size = value.abs().min(largest);
    // Zero and subnormal numbers have the exponent of the smallest normal number.
    let exponent = ((size.to_bits() >> 52) as i64 - 1023).max(1 - bias);
    let unit = f64::from_bits(((exponent - fraction_bits + 1023) as u64) << 52);
    // A normal number's leading bit adds one to the exponent's field, and so does a carry.
    let code = ((exponent + bias - 1) << fraction_bits) + (size / unit).round_ties_even() as i64;
    code as u8 | u8::from(value.is_sign_negative()) << 7
}

/// Returns a number's value, which a double can represent exactly.
#[inline(always)]
pub(crate) fn from_fp8(bits: u8, from: Fp8) -> f64 {
    match from {
        Fp8::E4m3 if bits & 0x7f == NAN => f64::NAN,
        Fp8::E4m3 => {
            // The bits of a half with the same exponent field and fraction. Its exponent's bias is 15, and here it is 7, so
            // the half is smaller by a factor of 2^8.
            let half = u16::from(bits & 0x80) << 8 | u16::from(bits & 0x7f) << 7;
            f16::from_bits(half).to_f64() * 256.0
        }
        Fp8::E5m2 => f16::from_bits(u16::from(bits) << 8).to_f64(),
    }
}
