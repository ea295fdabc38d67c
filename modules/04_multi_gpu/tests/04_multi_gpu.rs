//! The checks from `tests/04_multi_gpu`, run on this crate.

use m04_multi_gpu as multi_gpu;

#[path = "../../../tests/04_multi_gpu/mod.rs"]
mod exercise;

fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
