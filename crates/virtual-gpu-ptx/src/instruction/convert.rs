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

/// A conversion that saturates or involves a floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "source format first")]
pub enum Conversion {
    FloatToFloat { from: FloatType, to: FloatType, rounding: Rounding, to_integer: bool, mode: FloatMode },
    FloatToInteger { from: FloatType, to: IntegerType, rounding: Rounding, flush: bool },
    IntegerToFloat { from: IntegerType, to: FloatType, rounding: Rounding, saturate: bool },
    IntegerToInteger { from: IntegerType, to: IntegerType },
}
