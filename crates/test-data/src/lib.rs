//! Numbers for checks. They are random, and the same on every machine and in every run.
//!
//! `lab` exports these modules. They are a crate of their own because this code is optimized in every build: without,
//! a fifth of the processor time of a module's checks went into it.

pub mod irregular;
pub mod random;
