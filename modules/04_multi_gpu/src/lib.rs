//! Module 04: a training loop on many GPUs. The model is given, and you write the code that makes it parallel.

pub mod accumulate;
pub mod conditional;
pub mod data_parallel;
pub mod global_norm;
pub mod hybrid;
pub mod pools;
pub mod sharded_optimizer;
pub mod single_process;
pub mod staging;
pub mod tensor_backward;
pub mod tensor_forward;

// For `cargo test`, this crate is a program that contains its checks.
#[cfg(test)]
use crate as multi_gpu;

#[cfg(test)]
#[path = "../../../tests/04_multi_gpu/mod.rs"]
mod exercise;

#[cfg(test)]
fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
