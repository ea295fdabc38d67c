//! Integer operations.

use super::register::{Predicate, Value};

/// 32-bit integer operations; `a`, `b`, `c` are the sources in PTX order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each is the PTX opcode with the same name; S and U: signed or unsigned sources"
)]
pub enum WordOp {
    Move,
    Add,
    Sub,
    Mul,
    MulHighS,
    MulHighU,
    Mad,
    MadHighS,
    MadHighU,
    /// The upper half of a 16-bit product of sign- or zero-extended sources.
    MulHigh16,
    Mul24HighS,
    Mul24HighU,
    Mul24S,
    Mul24U,
    AddSaturated,
    SubSaturated,
    DivS,
    DivU,
    RemS,
    RemU,
    MinS,
    MinU,
    MaxS,
    MaxU,
    Abs,
    Neg,
    SadS,
    SadU,
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Shl,
    ShrS,
    ShrU,
    ShfLeftWrap,
    ShfLeftClamp,
    ShfRightWrap,
    ShfRightClamp,
    Popc,
    Clz,
    Brev,
    BfindS,
    BfindU,
    BfindShiftS,
    BfindShiftU,
    BfeS,
    BfeU,
    /// Byte permute; the selector is `c`.
    Prmt,
    /// Byte permute in one of its modes; the selector is `c`.
    PrmtMode(PermuteMode),
    /// Any function of three bits, given by its truth table.
    Lop3(u8),
    /// Sign-extends the low `n` bits.
    SignExtend(u8),
    /// Zero-extends the low `n` bits.
    ZeroExtend(u8),
    /// Adds four byte products to `c`; `signed` says whether `a` and `b` are signed.
    Dp4a {
        signed: [bool; 2],
    },
    /// Adds the products of `a`'s halves and two bytes of `b` (the high or the low ones) to `c`.
    Dp2a {
        high: bool,
        signed: [bool; 2],
    },
    /// `fns`: the index of the `c`th set bit of `a`, counting from bit `b`.
    Fns,
    /// `bmsk`: `b` ones, starting at bit `a`.
    BitMask {
        clamp: bool,
    },
    /// `szext`: the low `b` bits of `a`, extended.
    Extend {
        clamp: bool,
        signed: bool,
    },
    /// An operation on both halves.
    Packed(Packed),
    /// An operation on all bytes or halves.
    Video(Video),
    /// Rounds a single-precision number to 10 fraction bits, with ties away from zero: `.tf32`.
    RoundToTf32,
    /// Packs the low halves of the sources: `a | b << 16`.
    Pack16,
    /// The upper 16 bits.
    High16,
}

/// `prmt`'s modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the manual's words for .f4e, .b4e, .rc8, .ecl, .ecr, and .rc16")]
pub enum PermuteMode {
    Forward,
    Backward,
    Replicate8,
    ClampLeft,
    ClampRight,
    Replicate16,
}

/// Operations on both halves of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum Packed {
    Add,
    MinS,
    MinU,
    MaxS,
    MaxU,
}

/// What a SIMD video instruction does with each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum VideoOp {
    Add,
    Sub,
    Average,
    AbsDiff,
    Min,
    Max,
}

/// A SIMD video instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Video {
    /// What it does with each part.
    pub op: VideoOp,
    /// The number of parts in a word: 2 or 4.
    pub parts: u8,
    /// Whether the destination, `a`, and `b` are signed.
    pub signed: [bool; 3],
    /// Whether each result is clamped to the range of the destination's part.
    pub saturate: bool,
    /// Whether the results are summed and added to `c`.
    pub sum: bool,
}

/// 64-bit integer operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each is the PTX opcode with the same name; S and U: signed or unsigned sources"
)]
pub enum LongOp {
    Move,
    Add,
    Sub,
    Mul,
    MulHighS,
    MulHighU,
    Mad,
    MadHighS,
    MadHighU,
    DivS,
    DivU,
    RemS,
    RemU,
    MinS,
    MinU,
    MaxS,
    MaxU,
    Abs,
    Neg,
    SadS,
    SadU,
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Brev,
    SignExtend(u8),
    ZeroExtend(u8),
}

/// 64-bit operations whose later sources are 32-bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each is the PTX opcode with the same name; S and U: signed or unsigned sources"
)]
pub enum LongWordOp {
    Shl,
    ShrS,
    ShrU,
    BfeS,
    BfeU,
}

/// Operations with 32-bit sources and a 64-bit result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each is the PTX opcode with the same name; S and U: signed or unsigned sources"
)]
pub enum WidenOp {
    /// `mul.wide`; for `mad.wide`, the 64-bit `c` is added.
    MulS,
    MulU,
    SignExtend,
    ZeroExtend,
    /// `a | b << 32`
    Pack,
}

/// Operations with 64-bit sources and a 32-bit result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each is the PTX opcode with the same name; S and U: signed or unsigned sources"
)]
pub enum NarrowOp {
    Low,
    High,
    Popc,
    Clz,
    BfindS,
    BfindU,
    BfindShiftS,
    BfindShiftU,
}

/// The arithmetic of an instruction with a carry: `add.cc` to `madc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum CarryOp {
    Add,
    Sub,
    MadLow,
    MadHighU,
    MadHighS,
}

/// Multi-word arithmetic with a carry in, a carry out, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carry {
    /// The operation that uses the carry.
    pub op: CarryOp,
    /// The carry from the previous word.
    pub carry_in: Option<Predicate>,
    /// The carry to the next word.
    pub carry_out: Option<Predicate>,
    /// The result.
    pub d: Value,
    /// The sources, in PTX order; all have the same width.
    pub sources: [Value; 3],
}
