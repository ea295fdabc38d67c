//! Hide the communication behind the computation.

pub mod depth;
pub mod interleave;
pub mod waiting;
