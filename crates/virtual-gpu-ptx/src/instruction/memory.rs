//! Loads, stores, and atomics.

use super::register::{Address, Slot, Value};

/// State spaces of loads, stores, and atomics.
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

/// `.scope`: the threads that can observe the order of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// `.cta`: the threads of the same block.
    Block,
    /// `.cluster`: the threads of the same cluster.
    Cluster,
    /// `.gpu`: the threads on the same GPU.
    Gpu,
    /// `.sys`: all threads, on all GPUs and on the host.
    System,
}

/// `membar`, `fence`, and the fences implied by `.acquire` and `.release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The threads for which it orders accesses.
    pub scope: Scope,
    /// Whether what follows comes after everything that the thread's earlier reads have observed.
    pub acquires: bool,
    /// Whether what precedes is published by the thread's later writes.
    pub releases: bool,
    /// `.sc`: whether all such fences have one order.
    pub is_sequential: bool,
    /// Whether it is part of an `.acquire` or `.release` and orders only that access.
    pub is_implied: bool,
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

impl AtomicOp {
    /// Returns whether the operation combines the operand with the value in memory, as all operations of `red` do.
    pub fn reduces(self) -> bool {
        !matches!(self, Self::Exch | Self::Cas)
    }
}

/// How an atomic interprets memory.
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
    /// Returns a value's size in bytes.
    #[inline]
    pub fn bytes(self) -> u8 {
        match self {
            Self::B16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::S32 | Self::F32 | Self::F16x2 | Self::Bf16x2 => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }
}

/// `ld` and `st`: 1, 2, or 4 elements of 1, 2, 4, or 8 bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// The state space.
    pub space: Space,
    /// The address.
    pub address: Address,
    /// An element's size in bytes.
    pub bytes: u8,
    /// Whether the element is sign-extended (narrow loads only).
    pub signed: bool,
    /// The scope of `.relaxed`, `.acquire`, and `.release`; `.sys` for `.volatile`, which the manual describes as having
    /// the semantics of `.relaxed.sys`. `None` for a weak access, which no other thread may be waiting for.
    pub scope: Option<Scope>,
    /// `.relaxed`, `.acquire`, `.release`: the access races with no other atomic access.
    pub is_atomic: bool,
    /// One value per element; `None` is `_`.
    pub values: Box<[Option<Value>]>,
}

/// `cp.async.bulk`
#[derive(Clone, Debug, PartialEq)]
pub struct BulkCopy {
    /// The first destination address.
    pub to: Address,
    /// The first source address.
    pub from: Address,
    /// The state space of the source: global or shared.
    pub source: Space,
    /// The number of bytes.
    pub bytes: Slot,
    /// The mbarrier object whose transactions the copy completes, for a copy to shared memory; `None` for a copy to global
    /// memory.
    pub mbarrier: Option<Address>,
    /// `.multicast::cluster`: the blocks of the cluster that get a copy, one bit each.
    pub blocks: Option<Slot>,
}

/// `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`
#[derive(Clone, Debug, PartialEq)]
pub struct TensorCopy {
    /// The generic address of the tensor map.
    pub map: Address,
    /// The coordinates of the first element, innermost first.
    pub coordinates: Box<[Slot]>,
    /// Whether the part is one of im2col, and not a tile.
    pub is_im2col: bool,
    /// The offsets of im2col along W, H, and D; empty without.
    pub offsets: Box<[Slot]>,
    /// The first address in shared memory.
    pub shared: Address,
    /// The mbarrier object whose transactions the copy completes, for a copy to shared memory; `None` for a copy to the
    /// tensor.
    pub mbarrier: Option<Address>,
    /// `.multicast::cluster`: the blocks of the cluster that get a copy, one bit each.
    pub blocks: Option<Slot>,
    /// What a copy to the tensor does with the element in it: without, it replaces it.
    pub reduction: Option<AtomicOp>,
}

/// `cp.reduce.async.bulk`: combines elements in shared memory with those in global memory, or in the shared memory of a
/// block of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct BulkReduction {
    /// The first address of the results.
    pub to: Address,
    /// The first address of the operands, in shared memory.
    pub from: Address,
    /// The mbarrier object whose transactions the reduction completes, if its results are in shared memory.
    pub mbarrier: Option<Address>,
    /// The number of bytes.
    pub bytes: Slot,
    /// How elements are combined.
    pub op: AtomicOp,
    /// The type of the elements.
    pub kind: AtomicType,
}

/// `atom` and `red`.
#[derive(Clone, Debug, PartialEq)]
pub struct Atomic {
    /// What it does.
    pub op: AtomicOp,
    /// The type of the value in memory.
    pub kind: AtomicType,
    /// Global, shared, or generic.
    pub space: Space,
    /// The scope: `.gpu` unless stated.
    pub scope: Scope,
    /// The address.
    pub address: Address,
    /// The required alignment of the address in bytes: the size of the value, or of the vector that starts with it.
    pub align: u8,
    /// Receives the previous value; `None` for `red`.
    pub destination: Option<Value>,
    /// The operand; for `cas`, the value to compare with.
    pub a: Value,
    /// For `cas`: the new value.
    pub b: Option<Value>,
}
