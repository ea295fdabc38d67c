//! The checks in `tests/01_init`, on this crate.

use m01_init as init;

#[path = "../../../tests/01_init/mod.rs"]
mod exercise;

fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
