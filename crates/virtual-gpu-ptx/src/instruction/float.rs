//! Floating-point operations.

/// The rounding of a floating-point result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest, ties to even (`.rn`).
    #[default]
    Nearest,
    /// Toward zero (`.rz`).
    Zero,
    /// Toward −∞ (`.rm`).
    Down,
    /// Toward +∞ (`.rp`).
    Up,
}

/// Modifiers of floating-point arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FloatMode {
    /// The rounding of the result.
    pub rounding: Rounding,
    /// `.ftz`: subnormal operands and results become zero with the same sign.
    pub flush: bool,
    /// `.sat`: the result is clamped to 0..=1, and NaN becomes 0.
    pub saturate: bool,
    /// `.relu`: a negative result becomes 0.
    pub relu: bool,
}

/// Floating-point operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the PTX opcode with the same name")]
pub enum FloatOp {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    /// `div.approx`, which returns 0 for divisors above 2^126.
    DivApprox,
    Min,
    Max,
    /// `.NaN`: a NaN source makes the result NaN.
    MinNan,
    MaxNan,
    Abs,
    Neg,
    Rcp,
    Sqrt,
    Rsqrt,
    Ex2,
    Lg2,
    Sin,
    Cos,
    Tanh,
    /// The sign of `a` with the rest of `b`.
    Copysign,
}

/// The floating-point format of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum FloatType {
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    F32,
    F64,
}
