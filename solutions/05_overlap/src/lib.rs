//! Hide the communication behind the computation.

pub mod interleave;
pub mod waiting;
