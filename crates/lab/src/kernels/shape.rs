//! The shapes of the matrices that kernels take.

/// The shape of a product `c = a · b`, where `a` is m×k, `b` is k×n, and `c` is m×n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The rows of `a` and of `c`.
    pub m: usize,
    /// The columns of `b` and of `c`.
    pub n: usize,
    /// The columns of `a` and the rows of `b`.
    pub k: usize,
}

/// The shape of a row-major matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The number of rows. In the loss kernels, each row is a sample.
    pub rows: usize,
    /// The number of columns. In the loss kernels, each column is a class.
    pub columns: usize,
}
