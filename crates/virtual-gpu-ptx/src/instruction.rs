//! The decoded form of a kernel: what the machine executes.
//!
//! A register is an index into one of three files: 32-bit, 64-bit, and predicates. A register narrower than 32 bits
//! lies in the low bits of a 32-bit one; the bits above are anything, so whoever reads it extends it.
//! A *uniform* value is the same for every lane of a block and is kept once.

pub use super::opcode::*;

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

/// A register or uniform value with its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "32 and 64 bits")]
pub enum Value {
    Word(Slot),
    Long(Slot),
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
    /// `.relaxed`, `.acquire`, `.release`: it races with no other atomic access.
    pub is_atomic: bool,
    /// One per element; `None` is `_`.
    pub values: Box<[Option<Value>]>,
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

/// `ldmatrix`: one matrix of 8 by 8 elements of 16 bits for each destination.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixLoad {
    /// Shared or generic.
    pub space: Space,
    /// Where a row lies: lanes 0 to 7 have those of the first matrix, and so on.
    pub address: Address,
    /// Whether a lane receives elements of a column.
    pub transposed: bool,
    /// Each lane's two elements of each matrix.
    pub destinations: Box<[Slot]>,
    /// All lanes of the warp.
    pub members: Slot,
}

/// `mma`: `d = a * b + c` of matrices that are spread over a warp's registers: `a` has 16 rows, `b` 8 columns.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixProduct {
    /// What `a` and `b` consist of.
    pub element: MatrixElement,
    /// Whether `c` and `d` are pairs of half-precision numbers, or else single-precision ones.
    pub in_halves: bool,
    /// Registers of the fragment of `a`: 2 or 4.
    pub a: Box<[Slot]>,
    /// Half as many, of `b`.
    pub b: Box<[Slot]>,
    /// 2 or 4.
    pub c: Box<[Slot]>,
    /// As many.
    pub d: Box<[Slot]>,
    /// All lanes of the warp.
    pub members: Slot,
}

/// A call of a function that calls itself, directly or through others.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The function, in [`super::Kernel`]'s list of frames.
    pub frame: u32,
    /// Its first instruction.
    pub target: u32,
    /// Where in local memory the caller has each argument.
    pub arguments: Box<[Address]>,
    /// Where it wants each result.
    pub results: Box<[Address]>,
}

/// A call of a function that the driver brings. Each address is where an argument, or the result, lies in local memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SystemCall {
    /// `vprintf`
    Print {
        /// The format's address.
        format: Address,
        /// The address of the arguments.
        arguments: Address,
        /// The number of arguments read.
        result: Address,
    },
    /// `__assertfail`
    AssertFail {
        /// Address of the expression's text.
        message: Address,
        /// Address of the file's name.
        file: Address,
        /// The line.
        line: Address,
        /// Address of the function's name.
        function: Address,
    },
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "d is the destination, a to c are sources in PTX order")]
pub enum Operation {
    /// Has no effect here: prefetches.
    Nothing,
    /// `membar`, `fence`, and the sides of `.acquire` and `.release`.
    Fence,
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
    /// `cp.async`: begins to copy the first `present` of `bytes` bytes from global to shared memory, and zeros after
    /// them.
    CopyToShared {
        to: Address,
        from: Address,
        bytes: u8,
        present: Slot,
    },
    /// `cp.async.commit_group`
    CommitCopies,
    /// `cp.async.wait_group`: waits for all groups of the thread but the last `pending`.
    WaitForCopies {
        pending: u32,
    },
    /// Whether a generic address lies in a space.
    IsSpace {
        space: Space,
        d: Predicate,
        a: Slot,
    },
    Branch {
        target: u32,
    },
    Call(Call),
    /// The end of a function that was called.
    Return,
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
    LoadMatrices(Box<MatrixLoad>),
    MultiplyMatrices(Box<MatrixProduct>),
    ActiveMask {
        d: Slot,
    },
    Sleep {
        nanoseconds: Slot,
    },
    System(Box<SystemCall>),
}

impl Operation {
    /// Whether other threads could be waiting for it, or its outcome depend on them or on time.
    pub fn communicates(&self) -> bool {
        match self {
            Self::Load(access) | Self::Store(access) => access.communicates,
            Self::Atomic(_) | Self::Fence | Self::Sleep { .. } | Self::ReadClock { .. } => true,
            _ => false,
        }
    }

    /// Of what lanes of a warp do together: the mask of those that take part.
    pub fn members(&self) -> Option<Slot> {
        match self {
            Self::WarpBarrier { members }
            | Self::Shuffle { members, .. }
            | Self::Vote { members, .. }
            | Self::Match { members, .. }
            | Self::Redux { members, .. } => Some(*members),
            Self::LoadMatrices(load) => Some(load.members),
            Self::MultiplyMatrices(product) => Some(product.members),
            _ => None,
        }
    }
}
