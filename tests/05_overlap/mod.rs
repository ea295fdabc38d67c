//! The checks for module 05, with one file per exercise.

mod analysis;
mod bench;
mod bucket_plan;
mod buckets;
mod copies;
mod depth;
mod graphs;
mod hooks;
mod interleave;
mod layerwise;
mod pipeline_parallel;
mod quiet;
mod training;
mod two_streams;
mod waiting;

// Links the program faster.
extern crate prelinked as _;

use lab::Check;

/// Returns every check in the module, in exercise order.
pub(crate) fn checks() -> Vec<Check> {
    lab::checks![
        waiting,
        interleave,
        depth,
        hooks,
        bucket_plan,
        buckets,
        layerwise,
        pipeline_parallel,
        copies,
        graphs,
        analysis,
    ]
}
