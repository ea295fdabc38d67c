//! The matrices of `wmma`. PTX leaves open which lane holds which elements.

use super::float::Rounding;
use super::memory::Space;
use super::register::{Address, Slot, Value};
use super::warp::{IntegerSum, PackedElement};

/// The elements of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's types")]
pub enum FragmentElement {
    F16,
    Bf16,
    /// The upper 19 bits of a single-precision number.
    Tf32,
    F32,
    F64,
    S8,
    U8,
    S32,
    /// 8 or 32 numbers of 4 bits or 1 bit, which are consecutive in a row of `a` or a column of `b`.
    Packed(PackedElement),
}

impl FragmentElement {
    /// Returns an element's size in bytes.
    #[inline]
    pub fn bytes(self) -> u8 {
        match self {
            Self::S8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::Tf32 | Self::F32 | Self::S32 | Self::Packed(_) => 4,
            Self::F64 => 8,
        }
    }

    /// Returns the number of numbers in an element.
    #[inline]
    pub fn numbers(self) -> u8 {
        match self {
            Self::Packed(element) => 32 / element.bits(),
            _ => 1,
        }
    }
}

/// Which elements of a matrix a lane holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentLayout {
    /// With `n` elements per lane, counted row by row, lane 0 holds the first `n` elements, lane 1 the next `n`, and so
    /// on. The manual leaves the layout for `wmma` open.
    Consecutive,
    /// The manual's layout of `a` for `mma` with `.f64`: lane `4 * i + j` has the elements of rows `i` and `i + 8` in every
    /// fourth column from `j` on, one column after the other.
    Left,
    /// The manual's layout of `b` for `mma` with `.f64`: lane `4 * i + j` has the elements of column `i` in every fourth
    /// row from `j` on.
    Right,
    /// The manual's layout of `c` and `d` for `mma` with `.f64`: lane `4 * i + j` has the elements in columns `2 * j` and
    /// `2 * j + 1` of row `i`, and then of row `i + 8`.
    Sum,
}

/// A matrix that is spread across a warp's registers.
///
/// A lane's elements fill its registers from the lowest bits up. If the registers have room for more than the lane's
/// elements, the elements are repeated.
#[derive(Clone, Debug, PartialEq)]
pub struct Fragment {
    /// The type of the elements.
    pub element: FragmentElement,
    /// The number of rows.
    pub rows: u8,
    /// The number of columns.
    pub columns: u8,
    /// Which elements a lane holds.
    pub layout: FragmentLayout,
    /// A lane's registers: 64-bit ones for `.f64`, 32-bit ones for the other types.
    pub registers: Box<[Value]>,
}

impl Fragment {
    /// Returns the size of a lane's registers in bytes.
    pub fn bytes(&self) -> u8 {
        self.registers.len() as u8 * self.element.bytes().max(4)
    }

    /// Returns the number of bytes that a lane accesses at once.
    ///
    /// Each row (column) of a matrix starts at a multiple of the size of the lane's registers, and is a multiple of this
    /// number. The manual's rules for the alignment of the matrix and for its stride follow from this.
    pub fn piece(&self) -> u8 {
        self.bytes().min(16)
    }
}

/// `wmma.load` and `wmma.store`.
#[derive(Clone, Debug, PartialEq)]
pub struct FragmentAccess {
    /// The matrix.
    pub fragment: Fragment,
    /// Whether the matrix is stored column by column; otherwise, it is stored row by row.
    pub by_columns: bool,
    /// Global, shared, or generic.
    pub space: Space,
    /// The address of the first element.
    pub address: Address,
    /// The number of numbers from one row (column) to the next.
    pub stride: Slot,
    /// All lanes of the warp.
    pub members: Slot,
}

/// `wmma.mma`: `d = a * b + c`.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "named as in PTX")]
pub struct FragmentProduct {
    pub a: Fragment,
    pub b: Fragment,
    pub c: Fragment,
    pub d: Fragment,
    /// For `.f64`: the rounding of each sum.
    pub rounding: Rounding,
    /// For `.s32`: how integers are multiplied and added.
    pub sum: IntegerSum,
    /// All lanes of the warp.
    pub members: Slot,
}
