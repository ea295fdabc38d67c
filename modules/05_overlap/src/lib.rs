//! Hide the communication behind the computation.

pub mod buckets;
pub mod depth;
pub mod hooks;
pub mod interleave;
pub mod waiting;
