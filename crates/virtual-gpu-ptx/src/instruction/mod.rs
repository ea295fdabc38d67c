//! The lowered form of a kernel, which the machine executes.
//!
//! A register is an index into one of three files: 32-bit registers, 64-bit registers, and predicates. A register
//! narrower than 32 bits occupies the low bits of a 32-bit register. The bits above it are undefined, so each reader
//! extends the value. A *uniform* value is the same for every thread of a block and is stored once.

mod cluster;
mod compare;
mod control;
mod convert;
mod float;
mod fragment;
mod integer;
mod mbarrier;
mod memory;
mod register;
mod texture;
mod warp;

pub use cluster::*;
pub use compare::*;
pub use control::*;
pub use convert::*;
pub use float::*;
pub use fragment::*;
pub use integer::*;
pub use mbarrier::*;
pub use memory::*;
pub use register::*;
pub use texture::*;
pub use warp::*;

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// `@%p`: only the threads for which the predicate is true execute the operation.
    pub guard: Option<Condition>,
    /// What it does.
    pub operation: Operation,
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "d is the destination; a to c are the sources in PTX order")]
pub enum Operation {
    /// Prefetches, which have no effect here.
    Nothing,
    Fence(Fence),
    Word {
        op: WordOp,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    /// Like `Word`, but the sources are extended from 16 bits, and the result is truncated to 16 bits.
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
    /// `bfi`: inserts the low `length` bits of `a` into `b`, starting at bit `position`.
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
    /// Sixteen-bit formats, including packed pairs.
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
    /// `mov.pred` with a constant.
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
    /// `cp.async`: starts copying the first `present` of `bytes` bytes from global to shared memory; the other bytes
    /// become zero.
    CopyToShared {
        to: Address,
        from: Address,
        bytes: u8,
        present: Slot,
    },
    BulkCopy(Box<BulkCopy>),
    TensorCopy(Box<TensorCopy>),
    BulkReduction(Box<BulkReduction>),
    FetchTexture(Box<TextureFetch>),
    QueryObject(Box<ObjectQuery>),
    AccessSurface(Box<SurfaceAccess>),
    /// `cp.async.commit_group`
    CommitCopies,
    /// `cp.async.wait_group`: waits for all of the thread's groups except the last `pending`.
    WaitForCopies {
        pending: u32,
    },
    /// `st.async` and `red.async`
    StoreAsync(Box<StoreAsync>),
    /// `mapa`: the address in the shared memory of the block with rank `b` that has the same offset as `a`.
    MapAddress {
        d: Value,
        a: Value,
        b: Slot,
        is_generic: bool,
    },
    /// `getctarank`: the rank of the block that an address in shared memory belongs to.
    BlockOfAddress {
        d: Slot,
        a: Value,
    },
    /// Whether a generic address is in a state space. `in_cluster`: whether the shared memory of all blocks in the cluster
    /// is meant.
    IsSpace {
        space: Space,
        in_cluster: bool,
        d: Predicate,
        a: Slot,
    },
    Branch {
        target: u32,
    },
    Call(Call),
    /// The end of a called function.
    Return,
    Exit,
    Trap,
    Barrier(Barrier),
    ClusterBarrier(ClusterBarrier),
    Mbarrier(Box<Mbarrier>),
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
    StoreMatrices(Box<MatrixStore>),
    /// `movmatrix`: transposes an 8 × 8 matrix of 16-bit elements.
    TransposeMatrix {
        d: Slot,
        a: Slot,
        members: Slot,
    },
    /// `elect.sync`: the number of the lowest member, and whether the lane is that one.
    Elect {
        d: Option<Slot>,
        leader: Predicate,
        members: Slot,
    },
    MultiplyMatrices(Box<MatrixProduct>),
    /// `wmma.load`
    LoadFragment(Box<FragmentAccess>),
    /// `wmma.store`
    StoreFragment(Box<FragmentAccess>),
    /// `wmma.mma`
    MultiplyFragments(Box<FragmentProduct>),
    ActiveMask {
        d: Slot,
    },
    Sleep {
        nanoseconds: Slot,
    },
    System(Box<SystemCall>),
}

impl Operation {
    /// Returns whether other threads could be waiting for the operation, or whether its result could depend on other
    /// threads or on time.
    #[inline]
    pub fn communicates(&self) -> bool {
        match self {
            Self::Load(access) | Self::Store(access) => access.scope.is_some(),
            Self::Atomic(_)
            | Self::Mbarrier(_)
            | Self::StoreAsync(_)
            | Self::Fence(_)
            | Self::Sleep { .. }
            | Self::ReadClock { .. } => true,
            _ => false,
        }
    }

    /// For operations that a warp executes together, returns the mask of the lanes that take part.
    #[inline]
    pub fn members(&self) -> Option<Slot> {
        match self {
            Self::WarpBarrier { members }
            | Self::Shuffle { members, .. }
            | Self::Vote { members, .. }
            | Self::Match { members, .. }
            | Self::Redux { members, .. }
            | Self::TransposeMatrix { members, .. }
            | Self::Elect { members, .. } => Some(*members),
            Self::StoreMatrices(store) => Some(store.members),
            Self::LoadMatrices(load) => Some(load.members),
            Self::MultiplyMatrices(product) => Some(product.members),
            Self::LoadFragment(access) | Self::StoreFragment(access) => Some(access.members),
            Self::MultiplyFragments(product) => Some(product.members),
            _ => None,
        }
    }
}
