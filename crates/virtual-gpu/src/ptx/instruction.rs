//! The decoded form of a kernel: what the machine executes.
//!
//! A register is an index into one of three files: 32-bit, 64-bit, and predicates. A register narrower than 32 bits
//! lies in the low bits of a 32-bit one; the bits above are anything, so whoever reads it extends it.
//! A *uniform* value is the same for every lane of a block and is kept once.

/// A 32- or 64-bit register, or a uniform value: which file is meant follows from the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(u32);

const UNIFORM: u32 = 1 << 31;

impl Slot {
    /// The `index`th register of a lane.
    pub fn register(index: u32) -> Self {
        Self(index)
    }

    /// The `index`th uniform value.
    pub fn uniform(index: u32) -> Self {
        Self(index | UNIFORM)
    }

    /// Whether every lane of a block sees the same value.
    pub fn is_uniform(self) -> bool {
        self.0 & UNIFORM != 0
    }

    /// Its index among the registers, or among the uniform values.
    pub fn index(self) -> usize {
        (self.0 & !UNIFORM) as usize
    }
}

/// A predicate register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Predicate(pub u32);

/// A predicate as a source, possibly negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The register.
    pub predicate: Predicate,
    /// Whether the opposite is meant.
    pub negated: bool,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// `@%p`: only lanes where it holds execute.
    pub guard: Option<Condition>,
    /// What it does.
    pub operation: Operation,
}

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
    /// Any function of three bits; the table is the instruction's `table`.
    Lop3(u8),
    /// Sign-extends the low `n` bits.
    SignExtend(u8),
    /// Zero-extends the low `n` bits.
    ZeroExtend(u8),
    /// Four products of bytes, added to `c`.
    Dp4aSS,
    Dp4aUU,
    Dp4aSU,
    Dp4aUS,
    /// Sources' low halves packed: `a | b << 16`.
    Pack16,
    /// The upper 16 bits.
    High16,
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

/// A register or uniform value with its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "32 and 64 bits")]
pub enum Value {
    Word(Slot),
    Long(Slot),
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

/// Where a memory instruction goes: a base that differs by lane, and a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Address {
    /// The register part.
    pub base: Value,
    /// The constant part, in bytes.
    pub offset: i64,
}

/// `ld` and `st`: 1, 2 or 4 elements of 1, 2, 4 or 8 bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// The state space.
    pub space: Space,
    /// Where.
    pub address: Address,
    /// Bytes of one element.
    pub bytes: u8,
    /// Narrow loads only: whether the element is sign-extended.
    pub signed: bool,
    /// `.volatile`, `.relaxed`, `.acquire`, `.release`: it may be how threads talk to each other.
    pub communicates: bool,
    /// One per element; `None` is `_`.
    pub values: Box<[Option<Value>]>,
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
    /// `.b16`, for `cas` only.
    B16,
}

/// `atom` and `red`.
#[derive(Clone, Debug, PartialEq)]
pub struct Atomic {
    /// What.
    pub op: AtomicOp,
    /// On what.
    pub kind: AtomicType,
    /// Global, shared or generic.
    pub space: Space,
    /// Where.
    pub address: Address,
    /// Receives the value before; `None` for `red`.
    pub destination: Option<Value>,
    /// The operand; for `cas`, what is compared.
    pub a: Value,
    /// For `cas`: the new value.
    pub b: Option<Value>,
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

/// A block-wide barrier.
#[derive(Clone, Debug, PartialEq)]
pub struct Barrier {
    /// Which of the sixteen.
    pub id: Slot,
    /// Threads that take part; `None`: all of the block.
    pub threads: Option<Slot>,
    /// `arrive`: doesn't wait.
    pub arrives_only: bool,
    /// `.aligned`: all threads of a warp reach it together.
    pub aligned: bool,
    /// `bar.red`: what is asked, the source, and where the answer goes.
    pub reduction: Option<(Reduction, Condition, ReductionTarget)>,
}

/// Where `bar.red` puts its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "a count or a truth")]
pub enum ReductionTarget {
    Word(Slot),
    Predicate(Predicate),
}

/// Which of the running clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `%clock`, `%clock_hi`, `%clock64`: instructions of this thread.
    Instructions,
    /// `%globaltimer`: nanoseconds.
    GlobalTimer,
}

/// Arithmetic on numbers of several words: with carry in, carry out, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carry {
    /// What is added to `c`, or to `a`.
    pub op: CarryOp,
    /// The carry from the word before.
    pub carry_in: Option<Predicate>,
    /// The carry to the next word.
    pub carry_out: Option<Predicate>,
    /// The result.
    pub d: Value,
    /// The sources, in PTX order; all of the same width.
    pub sources: [Value; 3],
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

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "d is the destination, a to c are sources in PTX order")]
pub enum Operation {
    /// Has no effect here: fences, `.pragma`.
    Nothing,
    Word {
        op: WordOp,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    /// As `Word`, on sources extended from 16 bits, the result cut to 16 bits.
    Half {
        op: WordOp,
        signed: bool,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Long {
        op: LongOp,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    LongWord {
        op: LongWordOp,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Widen {
        op: WidenOp,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Narrow {
        op: NarrowOp,
        d: Slot,
        a: Slot,
    },
    /// `bfi`: the low `length` bits of `a`, from bit `position`, into `b`.
    InsertWord {
        d: Slot,
        a: Slot,
        b: Slot,
        position: Slot,
        length: Slot,
    },
    InsertLong {
        d: Slot,
        a: Slot,
        b: Slot,
        position: Slot,
        length: Slot,
    },
    Float32 {
        op: FloatOp,
        mode: FloatMode,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Float64 {
        op: FloatOp,
        mode: FloatMode,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    /// Sixteen-bit formats, packed pairs too.
    Float16 {
        op: FloatOp,
        kind: FloatType,
        mode: FloatMode,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Convert {
        conversion: Conversion,
        d: Value,
        a: Value,
    },
    Carry(Carry),
    /// `setp`: `d = (a ? b) op c`, `complement = !(a ? b) op c`.
    Compare {
        comparison: Comparison,
        kind: CompareAs,
        a: Value,
        b: Value,
        combine: BoolOp,
        c: Option<Condition>,
        d: Option<Predicate>,
        complement: Option<Predicate>,
    },
    TestNumber {
        kind: NumberKind,
        d: Predicate,
        a: Value,
    },
    SelectWord {
        d: Slot,
        a: Slot,
        b: Slot,
        condition: Condition,
    },
    SelectLong {
        d: Slot,
        a: Slot,
        b: Slot,
        condition: Condition,
    },
    Logic {
        op: BoolOp,
        d: Predicate,
        a: Condition,
        b: Condition,
    },
    /// `mov.pred` of a constant.
    SetPredicate {
        d: Predicate,
        value: bool,
    },
    ReadClock {
        clock: Clock,
        shift: u8,
        d: Value,
    },
    Load(Access),
    Store(Access),
    Atomic(Atomic),
    /// Whether a generic address lies in a space.
    IsSpace {
        space: Space,
        d: Predicate,
        a: Slot,
    },
    Branch {
        target: u32,
    },
    /// `brx.idx`
    BranchTable {
        index: Slot,
        targets: Box<[u32]>,
    },
    Exit,
    Trap,
    Barrier(Barrier),
    WarpBarrier {
        members: Slot,
    },
    Shuffle {
        mode: ShuffleMode,
        d: Option<Slot>,
        valid: Option<Predicate>,
        a: Slot,
        b: Slot,
        c: Slot,
        members: Slot,
    },
    Vote {
        mode: VoteMode,
        d: ReductionTarget,
        condition: Condition,
        members: Slot,
    },
    /// `match.any` or, with `all`, `match.all`.
    Match {
        all: bool,
        d: Slot,
        valid: Option<Predicate>,
        a: Value,
        members: Slot,
    },
    /// `redux.sync`: `op` over the members' values.
    Redux {
        op: WordOp,
        d: Slot,
        a: Slot,
        members: Slot,
    },
    ActiveMask {
        d: Slot,
    },
    Sleep {
        nanoseconds: Slot,
    },
}
