//! Hide the communication behind the computation.

pub mod copies;
pub mod graphs;
pub mod interleave;
