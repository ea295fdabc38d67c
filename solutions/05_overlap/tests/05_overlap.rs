//! The checks from `tests/05_overlap`, run on this crate.

use s05_overlap as overlap;

#[path = "../../../tests/05_overlap/mod.rs"]
mod exercise;

fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
