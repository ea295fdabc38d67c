//! Collectives: operations that involve the entire group. Every rank makes the same call.

pub mod all_gather;
pub mod all_reduce;
pub mod backends;
pub mod bandwidth;
pub mod broadcast;
pub mod dtypes;
pub mod reduce;
pub mod reduce_scatter;
pub mod timing;

// For `cargo test`, this crate is a program that contains its checks.
#[cfg(test)]
use crate as collectives;

#[cfg(test)]
#[path = "../../../tests/02_collectives/mod.rs"]
mod exercise;

#[cfg(test)]
fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
