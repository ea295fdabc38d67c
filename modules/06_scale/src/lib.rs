//! Module 06: train what does not fit on one GPU.

pub mod capstone;
pub mod checkpoint;
pub mod context_parallel;
pub mod elastic;
pub mod experts;
pub mod fsdp;
pub mod hierarchical;
pub mod mixed_precision;
pub mod one_f_one_b;
pub mod one_shot;
pub mod one_sided;
pub mod postmortem;
pub mod sequence_parallel;

// For `cargo test`, this crate is a program that contains its checks.
#[cfg(test)]
use crate as scale;

#[cfg(test)]
#[path = "../../../tests/06_scale/mod.rs"]
mod exercise;

#[cfg(test)]
fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
