//! Shapes of the matrices that kernels take.

/// Shape of a product `c = a · b`: `a` is m×k, `b` is k×n, `c` is m×n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of `a` and of `c`.
    pub m: usize,
    /// Columns of `b` and of `c`.
    pub n: usize,
    /// Columns of `a`, rows of `b`.
    pub k: usize,
}

/// Shape of a row-major matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Its rows: in the loss kernels, one per sample.
    pub rows: usize,
    /// Its columns: in the loss kernels, one per class.
    pub columns: usize,
}
