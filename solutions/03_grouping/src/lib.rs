//! Group calls, stream order, and lost ranks.

pub mod all_to_all;
pub mod events;
pub mod fusion;
pub mod group;
pub mod recover;
pub mod ring;
pub mod straggler;
pub mod tracking;

// For `cargo test`, this crate is a program that contains its checks.
#[cfg(test)]
use crate as grouping;

#[cfg(test)]
#[path = "../../../tests/03_grouping/mod.rs"]
mod exercise;

#[cfg(test)]
fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
