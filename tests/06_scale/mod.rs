//! The checks for module 06, with one file per exercise, and helpers that several of them share.

mod capstone;
mod checkpoint;
mod context_parallel;
mod elastic;
mod experts;
mod fsdp;
mod hierarchical;
mod in_flight;
mod mixed_precision;
mod one_f_one_b;
mod one_shot;
mod one_sided;
mod postmortem;
mod sequence_parallel;
mod two_streams;

// Links the program faster.
extern crate prelinked as _;

use lab::Check;

/// Returns every check in the module, in exercise order.
pub(crate) fn checks() -> Vec<Check> {
    lab::checks![
        mixed_precision,
        hierarchical,
        fsdp,
        experts,
        one_f_one_b,
        context_parallel,
        sequence_parallel,
        checkpoint,
        one_shot,
        one_sided,
        elastic,
        postmortem,
        capstone,
    ]
}
