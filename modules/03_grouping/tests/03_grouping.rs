//! The checks from `tests/03_grouping`, run on this crate.

use m03_grouping as grouping;

#[path = "../../../tests/03_grouping/mod.rs"]
mod exercise;

fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
