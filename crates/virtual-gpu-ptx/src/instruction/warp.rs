//! Operations that the lanes of a warp execute together.

use super::memory::Space;
use super::register::{Address, Slot};

/// `shfl`'s direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// The reduction of `vote` over the lanes' predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

/// The elements that `mma` multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's types")]
pub enum MatrixElement {
    F16,
    Bf16,
    /// The upper 19 bits of a single-precision number.
    Tf32,
    E4m3,
    E5m2,
    Packed(PackedElement),
}

/// The numbers of 8, 4, or 1 bits that `mma` and `wmma` multiply, of which a register holds 4, 8, or 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's types")]
pub enum PackedElement {
    S8,
    U8,
    S4,
    U4,
    B1,
}

impl PackedElement {
    /// Returns the number of bits of a number.
    pub fn bits(self) -> u8 {
        match self {
            Self::S8 | Self::U8 => 8,
            Self::S4 | Self::U4 => 4,
            Self::B1 => 1,
        }
    }
}

/// The numbers that `mma` adds products to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulator {
    /// Pairs of half-precision numbers.
    F16,
    /// Single-precision numbers.
    F32,
    /// Integers of 32 bits.
    S32(IntegerSum),
}

/// How integers are multiplied and added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntegerSum {
    /// Whether the result is clamped; otherwise, it wraps.
    pub saturate: bool,
    /// For `.b1`: whether the product of two bits is their exclusive or; otherwise, it is their conjunction.
    pub is_xor: bool,
}

/// `ldmatrix`: one 8 × 8 matrix of 16-bit elements for each destination.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixLoad {
    /// Shared or generic.
    pub space: Space,
    /// The address of a row: lanes 0 to 7 have the addresses of the first matrix's rows, and so on.
    pub address: Address,
    /// Whether a lane receives elements from a column.
    pub transposed: bool,
    /// Each lane's two elements from each matrix.
    pub destinations: Box<[Slot]>,
    /// All lanes of the warp.
    pub members: Slot,
}

/// `stmatrix`: one 8 × 8 matrix of 16-bit elements from each source.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixStore {
    /// Shared or generic.
    pub space: Space,
    /// The address of a row: lanes 0 to 7 have the addresses of the first matrix's rows, and so on.
    pub address: Address,
    /// Whether a lane has elements of a column.
    pub transposed: bool,
    /// Each lane's two elements of each matrix.
    pub sources: Box<[Slot]>,
    /// All lanes of the warp.
    pub members: Slot,
}

/// `mma`: `d = a * b + c` for matrices that are spread across a warp's registers: `a` has 16 rows, or 8 if a lane has one
/// register of it, and `b` has 8 columns.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixProduct {
    /// The elements of `a` and of `b`, which have the same size.
    pub elements: [MatrixElement; 2],
    /// The elements of `c` and `d`.
    pub accumulator: Accumulator,
    /// The registers with the fragment of `a`: 1, 2, or 4.
    pub a: Box<[Slot]>,
    /// The registers with the fragment of `b`: half as many as for `a`, and at least 1.
    pub b: Box<[Slot]>,
    /// The registers with the fragment of `c`: 2 or 4.
    pub c: Box<[Slot]>,
    /// The registers with the fragment of `d`: as many as for `c`.
    pub d: Box<[Slot]>,
    /// All lanes of the warp.
    pub members: Slot,
}
