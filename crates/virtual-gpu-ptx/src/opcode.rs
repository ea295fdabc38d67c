//! The names of what instructions do, with types and modifiers resolved.

/// Rounding of a floating-point result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest, ties to even (`.rn`).
    #[default]
    Nearest,
    /// Towards zero (`.rz`).
    Zero,
    /// Towards −∞ (`.rm`).
    Down,
    /// Towards +∞ (`.rp`).
    Up,
}

/// Modifiers of floating-point arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FloatMode {
    /// Rounding of the result.
    pub rounding: Rounding,
    /// `.ftz`: subnormal operands and results become zeros of their sign.
    pub flush: bool,
    /// `.sat`: the result is clamped to 0..=1, NaN to 0.
    pub saturate: bool,
    /// `.relu`: a negative result becomes 0.
    pub relu: bool,
}

impl FloatMode {
    /// Whether it is plain IEEE arithmetic.
    pub fn is_plain(self) -> bool {
        self == Self::default()
    }
}

/// Integer operations on 32 bits; `a`, `b`, `c` are the sources in PTX order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the PTX opcode of its name; S and U say how the sources are read")]
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
    /// The upper half of a 16-bit product, of sign- or zero-extended sources.
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
    /// Any function of three bits; the table is the instruction's `table`.
    Lop3(u8),
    /// Sign-extends the low `n` bits.
    SignExtend(u8),
    /// Zero-extends the low `n` bits.
    ZeroExtend(u8),
    /// Four products of bytes, added to `c`; `a` and `b` are signed or not.
    Dp4a {
        signed: [bool; 2],
    },
    /// Products of `a`'s halves with two bytes of `b`, the high or the low ones, added to `c`.
    Dp2a {
        high: bool,
        signed: [bool; 2],
    },
    /// Where in `a`, from bit `b` on, the `c`th bit is set.
    Fns,
    /// `bmsk`: `b` ones from bit `a` on.
    BitMask {
        clamp: bool,
    },
    /// `szext`: the low `b` bits of `a`, extended.
    Extend {
        clamp: bool,
        signed: bool,
    },
    /// On both halves.
    Packed(Packed),
    /// On all bytes or halves.
    Video(Video),
    /// A single-precision number rounded to 10 bits of fraction, ties away from zero: `.tf32`.
    RoundToTf32,
    /// Sources' low halves packed: `a | b << 16`.
    Pack16,
    /// The upper 16 bits.
    High16,
}

/// `prmt`'s modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the manual's words for .f4e, .b4e, .rc8, .ecl, .ecr and .rc16")]
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

/// What a SIMD video instruction does to each part.
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
    /// What it does to each part.
    pub op: VideoOp,
    /// Parts of a word: 2 or 4.
    pub parts: u8,
    /// Whether the destination, `a` and `b` are signed.
    pub signed: [bool; 3],
    /// Whether a result is clamped to the destination's part.
    pub saturate: bool,
    /// Whether the results are added up, and to `c`.
    pub sum: bool,
}

/// Integer operations on 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the PTX opcode of its name; S and U say how the sources are read")]
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
#[expect(missing_docs, reason = "each is the PTX opcode of its name; S and U say how the sources are read")]
pub enum LongWordOp {
    Shl,
    ShrS,
    ShrU,
    BfeS,
    BfeU,
}

/// Operations from 32 to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the PTX opcode of its name; S and U say how the sources are read")]
pub enum WidenOp {
    /// `mul.wide`, and `mad.wide` with the 64-bit `c` added.
    MulS,
    MulU,
    SignExtend,
    ZeroExtend,
    /// `a | b << 32`
    Pack,
}

/// Operations from 64 to 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the PTX opcode of its name; S and U say how the sources are read")]
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

/// Floating-point operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the PTX opcode of its name")]
pub enum FloatOp {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    /// `div.approx`, which gives 0 for divisors above 2^126.
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
    /// The sign of `a`, the rest of `b`.
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

/// What a comparison asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names; those in -u hold for NaN too")]
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

/// How a comparison reads its sources.
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

/// Logic on predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum BoolOp {
    And,
    Or,
    Xor,
    /// Only the first source counts.
    First,
}

/// `testp`: what kind of number?
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

/// Integer formats, for conversions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerType {
    /// Its width: 8, 16, 32 or 64.
    pub bits: u8,
    /// Two's complement, or no sign.
    pub signed: bool,
}

/// A conversion that involves a floating-point format, or saturates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "source format first")]
pub enum Conversion {
    FloatToFloat { from: FloatType, to: FloatType, rounding: Rounding, to_integer: bool, mode: FloatMode },
    FloatToInteger { from: FloatType, to: IntegerType, rounding: Rounding, flush: bool },
    IntegerToFloat { from: IntegerType, to: FloatType, rounding: Rounding, saturate: bool },
    IntegerToInteger { from: IntegerType, to: IntegerType },
}

/// State spaces of loads, stores and atomics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum Space {
    Generic,
    Global,
    Const,
    Shared,
    Local,
    /// The kernel's parameters.
    Param,
}

/// What an atomic does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum AtomicOp {
    Add,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Min,
    Max,
    Inc,
    Dec,
}

/// How an atomic reads memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's types")]
pub enum AtomicType {
    U32,
    S32,
    U64,
    S64,
    F32,
    F64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    /// `.b16`, for `cas` only.
    B16,
}

impl AtomicType {
    /// Bytes of a value.
    pub fn bytes(self) -> u8 {
        match self {
            Self::B16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::S32 | Self::F32 | Self::F16x2 | Self::Bf16x2 => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }
}

/// What `mma` multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's types")]
pub enum MatrixElement {
    F16,
    Bf16,
    /// The upper 19 bits of a single-precision number.
    Tf32,
}

/// `shfl`'s direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `vote`'s question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

/// `bar.red`'s question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum Reduction {
    Count,
    All,
    Any,
}

/// Which of the running clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `%clock`, `%clock_hi`, `%clock64`: instructions of this thread.
    Instructions,
    /// `%globaltimer`: nanoseconds.
    GlobalTimer,
}

/// `add.cc` and its kin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum CarryOp {
    Add,
    Sub,
    MadLow,
    MadHighU,
    MadHighS,
}
