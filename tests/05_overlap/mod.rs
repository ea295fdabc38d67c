//! The checks for module 05, with one file per exercise.
//! `cargo course` compiles only the checks for one exercise: see `lab::checks!`.

#![allow(unexpected_cfgs)]

#[cfg(any(not(one_exercise), analysis))]
mod analysis;
mod bench;
#[cfg(any(not(one_exercise), bucket_plan))]
mod bucket_plan;
#[cfg(any(not(one_exercise), buckets))]
mod buckets;
#[cfg(any(not(one_exercise), copies))]
mod copies;
#[cfg(any(not(one_exercise), depth))]
mod depth;
#[cfg(any(not(one_exercise), graphs))]
mod graphs;
#[cfg(any(not(one_exercise), hooks))]
mod hooks;
#[cfg(any(not(one_exercise), interleave))]
mod interleave;
#[cfg(any(not(one_exercise), layerwise))]
mod layerwise;
#[cfg(any(not(one_exercise), pipeline_parallel))]
mod pipeline_parallel;
mod quiet;
mod training;
mod two_streams;
#[cfg(any(not(one_exercise), waiting))]
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
