//! The checks of `tests/04_multi_gpu`, on this crate.

use std::process::ExitCode;

use s04_multi_gpu as multi_gpu;

#[path = "../../../tests/04_multi_gpu/mod.rs"]
mod exercise;

fn main() -> ExitCode {
    lab::check::run(exercise::checks())
}
