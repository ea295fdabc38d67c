//! The checks from `tests/02_collectives`, run on this crate.

use s02_collectives as collectives;

#[path = "../../../tests/02_collectives/mod.rs"]
mod exercise;

fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
