//! Overlap communication with compute.

pub mod analysis;
pub mod bucket_plan;
pub mod buckets;
pub mod copies;
pub mod depth;
pub mod graphs;
pub mod hooks;
pub mod interleave;
pub mod layerwise;
pub mod pipeline_parallel;
pub mod stages;
pub mod waiting;

// For `cargo test`, this crate is a program that contains its checks.
#[cfg(test)]
use crate as overlap;

#[cfg(test)]
#[path = "../../../tests/05_overlap/mod.rs"]
mod exercise;

#[cfg(test)]
fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
