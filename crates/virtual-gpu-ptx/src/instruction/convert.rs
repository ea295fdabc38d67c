//! Conversions between number formats.

use super::float::{FloatMode, FloatType, Rounding};

/// Integer formats, for conversions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerType {
    /// The format's width: 8, 16, 32, or 64.
    pub bits: u8,
    /// Whether it is two's complement; otherwise, it is unsigned.
    pub signed: bool,
}

/// 8-bit floating-point formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8 {
    /// Four bits of exponent, three of fraction, and no infinity.
    E4m3,
    /// Five bits of exponent, two of fraction.
    E5m2,
}

/// A conversion that saturates or involves a floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "source format first")]
pub enum Conversion {
    FloatToFloat {
        from: FloatType,
        to: FloatType,
        rounding: Rounding,
        to_integer: bool,
        mode: FloatMode,
    },
    FloatToInteger {
        from: FloatType,
        to: IntegerType,
        rounding: Rounding,
        flush: bool,
    },
    IntegerToFloat {
        from: IntegerType,
        to: FloatType,
        rounding: Rounding,
        saturate: bool,
    },
    IntegerToInteger {
        from: IntegerType,
        to: IntegerType,
    },
    /// Rounds to nearest even. Numbers that are too large become the largest number.
    FloatToFp8 {
        from: FloatType,
        to: Fp8,
        relu: bool,
    },
    Fp8ToHalf {
        from: Fp8,
        relu: bool,
    },
}
