//! Comparisons and predicate logic.

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names; comparisons that end in -u are also true for NaN")]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    /// Neither is NaN.
    Num,
    /// Either is NaN.
    Nan,
}

/// How a comparison interprets its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "signed, unsigned, or a floating-point format")]
pub enum CompareAs {
    Signed,
    Unsigned,
    Signed16,
    Unsigned16,
    F16,
    F16Flush,
    Bf16,
    F32,
    F32Flush,
    F64,
}

/// Predicate logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum BoolOp {
    And,
    Or,
    Xor,
    /// Only the first source is used.
    First,
}

/// The kind of number that `testp` tests for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum NumberKind {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}
