//! Runs checks under the flags and the output of `cargo test`, each check in a process of its own.
//!
//! A process each means a fresh driver for each check: no sticky error, primary context or memory figure leaks into
//! the next one, and a check that hangs or crashes ends alone.

mod child;
mod definition;
mod failure;
mod function;
mod harness;
mod limits;
mod order;
mod process;
pub mod processes;
mod tiers;
mod timelines;
mod variables;
mod verdict;

pub use definition::Check;
pub use harness::run;
pub use limits::TimeLimits;
pub use timelines::Timelines;
