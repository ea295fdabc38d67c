//! What all test programs have in common, as one shared library: `lab`, cudarc, and all that they depend on. It is linked
//! once. A test program that names this crate is then linked in 0.06 s, instead of a quarter of a second, each time a
//! student saves a file.
//!
//! The workspace excludes this package. If it were a member, `cargo test --workspace` would build it as a library of its
//! own, with another copy of the standard library than in the programs that need it.

pub use lab;
