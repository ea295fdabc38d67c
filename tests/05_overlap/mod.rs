//! What module 05 must do: one file for each exercise.

mod analysis;
mod bench;
mod copies;
mod graphs;
mod interleave;
mod layerwise;
mod pipeline_parallel;

use lab::Check;

/// Every check of the module, in the order of its exercises.
pub(crate) fn checks() -> Vec<Check> {
    [
        interleave::checks(),
        layerwise::checks(),
        pipeline_parallel::checks(),
        copies::checks(),
        graphs::checks(),
        analysis::checks(),
    ]
    .concat()
}
