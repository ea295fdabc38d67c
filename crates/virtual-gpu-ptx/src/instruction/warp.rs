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

/// `mma`: `d = a * b + c` for matrices that are spread across a warp's registers: `a` has 16 rows, and `b` has 8
/// columns.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixProduct {
    /// The elements of `a` and of `b`, which have the same size.
    pub elements: [MatrixElement; 2],
    /// Whether `c` and `d` are pairs of half-precision numbers; otherwise they are single-precision numbers.
    pub in_halves: bool,
    /// The registers with the fragment of `a`: 2 or 4.
    pub a: Box<[Slot]>,
    /// The registers with the fragment of `b`: half as many as for `a`.
    pub b: Box<[Slot]>,
    /// The registers with the fragment of `c`: 2 or 4.
    pub c: Box<[Slot]>,
    /// The registers with the fragment of `d`: as many as for `c`.
    pub d: Box<[Slot]>,
    /// All lanes of the warp.
    pub members: Slot,
}
