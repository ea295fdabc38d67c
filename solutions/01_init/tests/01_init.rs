//! The checks from `tests/01_init`, run on this crate.

use s01_init as init;

#[path = "../../../tests/01_init/mod.rs"]
mod exercise;

fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
