//! What checks compute on the host in long loops: random numbers, which are the same on every machine and in every run,
//! and the arithmetic of references.
//!
//! It is a crate of its own because this code is optimized in every build: without, a fifth of the processor time of a
//! module's checks went into it. `lab` exports the random numbers.

pub mod irregular;
pub mod random;
pub mod vector;
