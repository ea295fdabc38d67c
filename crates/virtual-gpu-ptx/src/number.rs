//! Literal numbers.

use super::types::Type;

/// A literal in the widest type of its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// Two's complement; unsigned literals beyond `i64::MAX` wrap.
    Integer(i64),
    /// `0f…`: the bits of an `f32`.
    Single(u32),
    /// `0d…` or a decimal fraction.
    Double(f64),
}

impl Number {
    pub(super) fn negated(self) -> Self {
        match self {
            Self::Integer(value) => Self::Integer(value.wrapping_neg()),
            Self::Single(bits) => Self::Single(bits ^ 1 << 31),
            Self::Double(value) => Self::Double(-value),
        }
    }

    /// Returns the literal's bits as stored in a variable of type `kind`.
    pub(super) fn bits(self, kind: Type) -> u64 {
        let value = match self {
            Self::Integer(value) if !matches!(kind, Type::F32 | Type::F64 | Type::F16) => {
                return value as u64;
            }
            Self::Integer(value) => value as f64,
            Self::Single(bits) if kind != Type::F64 => return u64::from(bits),
            Self::Single(bits) => f64::from(f32::from_bits(bits)),
            Self::Double(value) => value,
        };
        match kind {
            Type::F32 => u64::from((value as f32).to_bits()),
            Type::F16 => u64::from(half::f16::from_f64(value).to_bits()),
            _ => value.to_bits(),
        }
    }
}

/// Parses a literal without a sign. Returns `None` if it is not a literal or is out of range.
pub(super) fn parse(text: &str) -> Option<Number> {
    let prefix = text.get(..2).unwrap_or("");
    let digits = text.get(2..).unwrap_or("");
    match prefix {
        "0f" | "0F" if digits.len() == 8 => u32::from_str_radix(digits, 16).ok().map(Number::Single),
        "0d" | "0D" if digits.len() == 16 => {
            u64::from_str_radix(digits, 16).ok().map(|bits| Number::Double(f64::from_bits(bits)))
        }
        "0x" | "0X" => integer(digits, 16),
        "0b" | "0B" => integer(digits, 2),
        _ if text.contains('.') || text.contains(['e', 'E']) => {
            let number = text.parse().ok()?;
            Some(Number::Double(number))
        }
        _ if text.len() > 1 && text.starts_with('0') => integer(text.get(1..)?, 8),
        _ => integer(text, 10),
    }
}

fn integer(digits: &str, radix: u32) -> Option<Number> {
    let digits = match digits.strip_suffix(['u', 'U']) {
        Some("") => "0",
        Some(digits) => digits,
        None => digits,
    };
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, radix).ok().map(|value| Number::Integer(value as i64))
}
