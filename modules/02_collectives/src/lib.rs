//! Collectives: operations that involve the entire group. Every rank makes the same call.

pub mod all_gather;
pub mod all_reduce;
pub mod backends;
pub mod bandwidth;
pub mod broadcast;
pub mod dtypes;
pub mod reduce;
pub mod reduce_scatter;
pub mod timing;
