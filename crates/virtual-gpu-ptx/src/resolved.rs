//! Resolved instructions: opcodes, types, and modifiers have been interpreted, but operands are still names.

use super::instruction::{
    Accumulator, AtomicOp, AtomicType, BoolOp, CarryOp, ChannelType, ClusterBarrier, CompareAs, Comparison,
    Conversion, Fence, FloatMode, FloatOp, FloatType, Fp8, FragmentElement, FragmentLayout, IntegerSum,
    IntegerType, LongOp, MatrixElement, NarrowOp, NumberKind, Outside, Packed, Property, Reduction, Rounding,
    Scope, Shape, ShuffleMode, Space, VoteMode, WordOp,
};
use super::syntax::{File, Function, Operand, Statement, Written};
use super::types::Type;

/// A file whose instructions are resolved.
pub(crate) type ResolvedFile<'a> = File<'a, Resolved<'a>>;

/// A function whose instructions are resolved.
pub(crate) type ResolvedFunction<'a> = Function<'a, Resolved<'a>>;

/// A statement whose instruction is resolved.
pub(crate) type ResolvedStatement<'a> = Statement<'a, Resolved<'a>>;

/// An instruction and its meaning.
#[derive(Debug)]
pub(crate) struct Resolved<'a> {
    /// The line, guard, and name as written; the operands are in the form.
    pub(crate) written: Written<'a>,
    /// The meaning, or why the instruction could not be resolved.
    pub(crate) form: Result<Form<'a>, String>,
}

/// The operation of an instruction, with its operands. `d` is the destination; literals are read as `kind`.
#[derive(Debug)]
pub(crate) enum Form<'a> {
    /// An operation on 32-bit registers.
    Word {
        op: WordOp,
        kind: Type,
        d: Operand<'a>,
        sources: Vec<Operand<'a>>,
    },
    /// The same with 16-bit values.
    Half {
        op: WordOp,
        kind: Type,
        d: Operand<'a>,
        sources: Vec<Operand<'a>>,
    },
    /// An operation on 64-bit registers.
    Long {
        op: LongOp,
        kind: Type,
        d: Operand<'a>,
        sources: Vec<Operand<'a>>,
    },
    /// An operation with 64-bit sources and a 32-bit result.
    Narrow {
        op: NarrowOp,
        kind: Type,
        d: Operand<'a>,
        a: Operand<'a>,
    },
    /// 16-bit or 32-bit `mul.wide` and `mad.wide`.
    WideProduct {
        kind: Type,
        d: Operand<'a>,
        sources: Vec<Operand<'a>>,
    },
    /// Two 32-bit or 16-bit operations, such as `mad24`: `second` takes the result of `first` and `c`.
    Chain {
        first: WordOp,
        second: WordOp,
        kind: Type,
        operands: [Operand<'a>; 4],
    },
    /// An operation on both halves of a word; with `relu`, negative results become 0.
    Pair {
        op: Packed,
        relu: bool,
        operands: [Operand<'a>; 3],
    },
    Shift {
        left: bool,
        kind: Type,
        operands: [Operand<'a>; 3],
    },
    /// `bfe`
    Extract {
        kind: Type,
        operands: [Operand<'a>; 4],
    },
    /// `bfi`
    Insert {
        kind: Type,
        operands: [Operand<'a>; 5],
    },
    /// `add.cc` to `madc`.
    Carry {
        op: CarryOp,
        kind: Type,
        reads: bool,
        writes: bool,
        d: Operand<'a>,
        sources: Vec<Operand<'a>>,
    },
    /// Predicate logic; with `negates`, on the complement of `a`.
    Logic {
        op: BoolOp,
        negates: bool,
        d: Operand<'a>,
        a: Operand<'a>,
        b: Operand<'a>,
    },
    Compare(Compare<'a>),
    Select {
        kind: Type,
        operands: [Operand<'a>; 4],
    },
    /// `slct`: `a` if `c`, which has type `by`, is not negative.
    SelectBySign {
        kind: Type,
        by: Type,
        compare_as: CompareAs,
        operands: [Operand<'a>; 4],
    },
    Float {
        op: FloatOp,
        float_type: FloatType,
        kind: Type,
        mode: FloatMode,
        d: Operand<'a>,
        sources: Vec<Operand<'a>>,
    },
    /// `testp`
    TestNumber {
        test: NumberKind,
        kind: Type,
        operands: [Operand<'a>; 2],
    },
    /// `cvt` to or from a floating-point format, or with `.sat`.
    Convert {
        conversion: Conversion,
        from: Type,
        to: Type,
        operands: [Operand<'a>; 2],
    },
    /// `cvt` between integers.
    ConvertInteger {
        kind: Type,
        from: IntegerType,
        to: IntegerType,
        operands: [Operand<'a>; 2],
    },
    /// `cvt` from two numbers to a packed pair of halves of type `to`.
    ConvertToPair {
        to: FloatType,
        rounding: Rounding,
        mode: FloatMode,
        operands: [Operand<'a>; 3],
    },
    /// `cvt` from two single-precision numbers, or from a packed pair of halves, to a pair of bytes.
    ConvertToFp8 {
        to: Fp8,
        relu: bool,
        d: Operand<'a>,
        sources: Vec<Operand<'a>>,
    },
    /// `cvt` from a pair of bytes to a packed pair of halves.
    ConvertFromFp8 {
        from: Fp8,
        relu: bool,
        operands: [Operand<'a>; 2],
    },
    Move {
        kind: Type,
        d: Operand<'a>,
        a: Operand<'a>,
    },
    /// `mov` from a register to the parts of a vector.
    Unpack {
        kind: Type,
        parts: Vector<'a>,
        a: Operand<'a>,
    },
    /// `mov` from the parts of a vector to a register.
    Pack {
        d: Operand<'a>,
        parts: Vector<'a>,
    },
    /// `cvta`: adds a constant.
    ConvertAddress {
        base: u64,
        kind: Type,
        operands: [Operand<'a>; 2],
    },
    /// `isspacep`
    IsSpace {
        space: Space,
        /// Whether the shared memory of all blocks in the cluster is meant.
        in_cluster: bool,
        operands: [Operand<'a>; 2],
    },
    /// `ld`, with one destination per element.
    Load {
        access: MemoryAccess,
        values: Vec<Operand<'a>>,
        address: Operand<'a>,
    },
    /// `st`, with one source per element.
    Store {
        access: MemoryAccess,
        values: Vec<Operand<'a>>,
        address: Operand<'a>,
    },
    Atomic(Atomic<'a>),
    /// `atom` and `red` on the elements of a vector.
    AtomicVector(AtomicVector<'a>),
    /// `cp.async`
    CopyAsync {
        to: Operand<'a>,
        from: Operand<'a>,
        bytes: u8,
        present: Operand<'a>,
    },
    /// `cp.async.bulk`; a copy to shared memory has an mbarrier.
    BulkCopy(BulkCopy<'a>),
    TensorCopy(TensorCopy<'a>),
    /// `cp.reduce.async.bulk`
    BulkReduction {
        to: Operand<'a>,
        from: Operand<'a>,
        bytes: Operand<'a>,
        /// For a reduction in shared memory.
        mbarrier: Option<Operand<'a>>,
        op: AtomicOp,
        kind: AtomicType,
        policy: Option<Operand<'a>>,
    },
    /// `mapa`; the operands are `d`, `a`, and `b`.
    MapAddress {
        kind: Type,
        is_generic: bool,
        operands: [Operand<'a>; 3],
    },
    /// `getctarank`
    BlockOfAddress {
        kind: Type,
        operands: [Operand<'a>; 2],
    },
    /// `barrier.cluster`
    ClusterBarrier(ClusterBarrier),
    StoreAsync(StoreAsync<'a>),
    /// `tex` and `tld4`
    FetchTexture(TextureFetch<'a>),
    /// `txq` and `suq`
    QueryObject {
        is_surface: bool,
        /// The register with the handle.
        name: &'a str,
        property: Property,
        level: Option<Operand<'a>>,
        d: Operand<'a>,
    },
    /// `suld` and `sust`
    AccessSurface(SurfaceAccess<'a>),
    CommitCopies,
    /// Waits for all groups except the last `pending`.
    WaitForCopies {
        pending: u32,
    },
    /// Commits and waits for all groups.
    WaitForAllCopies,
    /// Prefetches, which have no effect here.
    Nothing,
    Fence(Fence),
    Branch {
        target: Operand<'a>,
    },
    /// `brx.idx`: `list` names the targets.
    IndexedBranch {
        index: Operand<'a>,
        list: &'a str,
    },
    Call(Call<'a>),
    Return,
    Exit,
    Trap,
    Barrier {
        id: Operand<'a>,
        threads: Option<Operand<'a>>,
        arrives_only: bool,
        aligned: bool,
        reduction: Option<BarrierReduction<'a>>,
    },
    Mbarrier {
        op: MbarrierOperands<'a>,
        space: Space,
        address: Operand<'a>,
    },
    /// `bar.warp.sync`
    WarpBarrier {
        members: Operand<'a>,
    },
    Sleep {
        time: Operand<'a>,
    },
    /// `shfl.sync`; `sources` are `a`, `b`, `c`, and the member mask.
    Shuffle {
        mode: ShuffleMode,
        d: Operand<'a>,
        sources: [Operand<'a>; 4],
    },
    /// `vote.sync`
    Vote {
        mode: VoteMode,
        operands: [Operand<'a>; 3],
    },
    /// `match.sync`
    Match {
        all: bool,
        kind: Type,
        operands: [Operand<'a>; 3],
    },
    /// `redux.sync`
    Redux {
        op: WordOp,
        operands: [Operand<'a>; 3],
    },
    ActiveMask {
        d: Operand<'a>,
    },
    /// `elect.sync`
    Elect {
        operands: [Operand<'a>; 2],
    },
    /// `stmatrix`
    StoreMatrices {
        space: Space,
        transposed: bool,
        a: Vec<Operand<'a>>,
        address: Operand<'a>,
    },
    /// `movmatrix`
    TransposeMatrix {
        operands: [Operand<'a>; 2],
    },
    /// `ldmatrix`
    LoadMatrices {
        space: Space,
        transposed: bool,
        d: Vec<Operand<'a>>,
        address: Operand<'a>,
    },
    /// `mma`
    MultiplyMatrices {
        elements: [MatrixElement; 2],
        accumulator: Accumulator,
        /// `d`, `a`, `b`, `c`.
        fragments: [Vec<Operand<'a>>; 4],
    },
    /// `wmma.load` and `wmma.store`
    AccessFragment {
        fragment: FragmentOperand<'a>,
        is_store: bool,
        by_columns: bool,
        space: Space,
        address: Operand<'a>,
        stride: Operand<'a>,
    },
    /// `wmma.mma`, and `mma` with `.f64`
    MultiplyFragments {
        /// `d`, `a`, `b`, `c`.
        fragments: [FragmentOperand<'a>; 4],
        rounding: Rounding,
        sum: IntegerSum,
    },
}

/// A matrix of `wmma`, or of `mma` with `.f64`, with its registers.
#[derive(Debug)]
pub(crate) struct FragmentOperand<'a> {
    pub(crate) element: FragmentElement,
    pub(crate) rows: u8,
    pub(crate) columns: u8,
    pub(crate) layout: FragmentLayout,
    pub(crate) registers: Vec<Operand<'a>>,
}

/// `setp` and `set`.
#[derive(Debug)]
pub(crate) struct Compare<'a> {
    pub(crate) comparison: Comparison,
    pub(crate) compare_as: CompareAs,
    /// How the result is combined with `c`.
    pub(crate) combine: BoolOp,
    /// The source type; for a packed pair, the type of the halves.
    pub(crate) kind: Type,
    pub(crate) a: Operand<'a>,
    pub(crate) b: Operand<'a>,
    pub(crate) c: Option<Operand<'a>>,
    pub(crate) result: CompareResult<'a>,
}

/// Where a comparison stores its result.
#[derive(Debug)]
pub(crate) enum CompareResult<'a> {
    /// `setp`: a predicate, or the result and its complement.
    Predicate(Operand<'a>),
    /// `setp` on a packed pair: a predicate for each half.
    Predicates([&'a str; 2]),
    /// `set`: a number of this type for true, 0 for false.
    Number(Operand<'a>, Type, u64),
    /// `set` on a packed pair: the same for each half.
    Numbers(Operand<'a>, u64),
}

/// A register's parts, lowest first.
#[derive(Debug)]
pub(crate) enum Vector<'a> {
    /// Two halves of a 32-bit register.
    Halves16([Operand<'a>; 2]),
    /// Two halves of a 64-bit register.
    Halves32([Operand<'a>; 2]),
    /// Four quarters of a 64-bit register.
    Quarters16([Operand<'a>; 4]),
}

/// The modifiers of `ld` and `st`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryAccess {
    pub(crate) space: Space,
    /// The type of one element.
    pub(crate) kind: Type,
    /// `None` for a weak access.
    pub(crate) scope: Option<Scope>,
    /// `.relaxed` or stronger.
    pub(crate) is_atomic: bool,
    pub(crate) acquires: bool,
    pub(crate) releases: bool,
}

/// `.sem` and `.scope` of `atom` and `red`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Semantics {
    pub(crate) scope: Scope,
    pub(crate) acquires: bool,
    pub(crate) releases: bool,
}

/// `atom` and `red`.
#[derive(Debug)]
pub(crate) struct Atomic<'a> {
    pub(crate) op: AtomicOp,
    pub(crate) atomic_type: AtomicType,
    /// The type of the operands.
    pub(crate) kind: Type,
    pub(crate) space: Space,
    pub(crate) semantics: Semantics,
    /// `None` for `red`.
    pub(crate) d: Option<Operand<'a>>,
    pub(crate) address: Operand<'a>,
    pub(crate) a: Operand<'a>,
    /// For `cas`: the new value.
    pub(crate) b: Option<Operand<'a>>,
}

/// `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`; a copy to shared memory has an mbarrier.
#[derive(Debug)]
pub(crate) struct TensorCopy<'a> {
    pub(crate) map: Operand<'a>,
    /// Innermost first.
    pub(crate) coordinates: Vec<Operand<'a>>,
    pub(crate) is_im2col: bool,
    /// The offsets of im2col.
    pub(crate) offsets: Vec<Operand<'a>>,
    /// The address in shared memory.
    pub(crate) shared: Operand<'a>,
    pub(crate) mbarrier: Option<Operand<'a>>,
    /// `.multicast::cluster`: the blocks of the cluster that get a copy, one bit each.
    pub(crate) blocks: Option<Operand<'a>>,
    /// Of `cp.reduce`.
    pub(crate) op: Option<AtomicOp>,
    pub(crate) policy: Option<Operand<'a>>,
}

/// `cp.async.bulk`; a copy to shared memory has an mbarrier.
#[derive(Debug)]
pub(crate) struct BulkCopy<'a> {
    pub(crate) to: Operand<'a>,
    pub(crate) from: Operand<'a>,
    /// The state space of `from`.
    pub(crate) source: Space,
    pub(crate) bytes: Operand<'a>,
    pub(crate) mbarrier: Option<Operand<'a>>,
    /// `.multicast::cluster`: the blocks of the cluster that get a copy, one bit each.
    pub(crate) blocks: Option<Operand<'a>>,
    pub(crate) policy: Option<Operand<'a>>,
}

/// `st.async` and `red.async`
#[derive(Debug)]
pub(crate) struct StoreAsync<'a> {
    /// The type of one element.
    pub(crate) kind: Type,
    pub(crate) values: Vec<Operand<'a>>,
    pub(crate) address: Operand<'a>,
    pub(crate) mbarrier: Operand<'a>,
    /// Of `red.async`.
    pub(crate) reduction: Option<(AtomicOp, AtomicType)>,
}

/// `tex` and `tld4`
#[derive(Debug)]
pub(crate) struct TextureFetch<'a> {
    pub(crate) shape: Shape,
    /// The register with the handle.
    pub(crate) name: &'a str,
    /// The index into an array of textures.
    pub(crate) index: Option<Operand<'a>>,
    pub(crate) coordinates: Vec<Operand<'a>>,
    /// Whether coordinates are `.s32`.
    pub(crate) is_integer: bool,
    pub(crate) detail: ResolvedDetail<'a>,
    /// The channel that `tld4` returns.
    pub(crate) gathered: Option<u8>,
    pub(crate) result: ChannelType,
    /// The type of the results.
    pub(crate) kind: Type,
    pub(crate) d: Vec<Operand<'a>>,
}

/// How `tex` chooses a level of a mipmap.
#[derive(Debug)]
pub(crate) enum ResolvedDetail<'a> {
    Base,
    Level(Operand<'a>),
    Gradients([Vec<Operand<'a>>; 2]),
}

/// `suld` and `sust`
#[derive(Debug)]
pub(crate) struct SurfaceAccess<'a> {
    pub(crate) is_store: bool,
    pub(crate) shape: Shape,
    pub(crate) outside: Outside,
    /// The register with the handle.
    pub(crate) name: &'a str,
    /// The index into an array of surfaces.
    pub(crate) index: Option<Operand<'a>>,
    pub(crate) coordinates: Vec<Operand<'a>>,
    /// The type of each value.
    pub(crate) kind: Type,
    pub(crate) values: Vec<Operand<'a>>,
}

/// `atom` and `red` on the elements of a vector, each of which is atomic.
#[derive(Debug)]
pub(crate) struct AtomicVector<'a> {
    pub(crate) op: AtomicOp,
    pub(crate) atomic_type: AtomicType,
    /// The type of an element.
    pub(crate) kind: Type,
    pub(crate) space: Space,
    pub(crate) semantics: Semantics,
    /// `None` for `red`.
    pub(crate) d: Option<Vec<Operand<'a>>>,
    pub(crate) address: Operand<'a>,
    pub(crate) a: Vec<Operand<'a>>,
}

/// The parts of `call (returns), name, (arguments)`.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) name: &'a str,
    pub(crate) returns: Vec<&'a str>,
    pub(crate) arguments: Vec<&'a str>,
}

/// `bar.red`: what is reduced, and where the result is stored.
#[derive(Debug)]
pub(crate) struct BarrierReduction<'a> {
    pub(crate) reduction: Reduction,
    pub(crate) d: Operand<'a>,
    pub(crate) condition: Operand<'a>,
}

/// An operation on an mbarrier object.
#[derive(Debug)]
pub(crate) enum MbarrierOperands<'a> {
    Init {
        count: Operand<'a>,
    },
    Invalidate,
    Arrive {
        state: Operand<'a>,
        count: Operand<'a>,
        transactions: Option<Operand<'a>>,
        drops: bool,
        completes: bool,
        releases: bool,
    },
    Expect {
        transactions: Operand<'a>,
    },
    Complete {
        transactions: Operand<'a>,
    },
    Test {
        d: Operand<'a>,
        phase: Operand<'a>,
        by_parity: bool,
        acquires: bool,
        time: Option<Operand<'a>>,
    },
    /// `cp.async.mbarrier.arrive`
    ArriveAfterCopies {
        increments: bool,
    },
}
