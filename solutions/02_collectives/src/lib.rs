//! What the ranks of a group do together, each operation in one call that every rank makes.

pub mod all_gather;
pub mod all_reduce;
pub mod backends;
pub mod bandwidth;
pub mod broadcast;
pub mod dtypes;
pub mod reduce;
pub mod reduce_scatter;
pub mod timing;
