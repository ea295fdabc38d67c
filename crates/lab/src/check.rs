//! Runs checks with the flags and the output of `cargo test`, each check in its own process.
//!
//! A separate process gives each check a fresh driver. No sticky error, primary context, or memory statistic leaks into
//! the next check, and a check that hangs or crashes does not affect other checks.

mod child;
mod connection;
mod definition;
mod durations;
mod failure;
mod forks;
mod function;
mod harness;
mod limits;
mod order;
mod printed;
mod process;
pub mod processes;
mod program;
mod scores;
mod threads;
mod tiers;
mod timelines;
mod variables;
mod verdict;

pub use definition::Check;
pub use durations::Durations;
pub use harness::{is_unable, run};
pub use limits::TimeLimits;
pub use process::{Judged, judge, try_again};
pub use program::{Serves, TestProgram};
pub use scores::Scores;
pub use timelines::Timelines;
