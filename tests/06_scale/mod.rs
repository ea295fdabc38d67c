//! The checks for module 06, with one file per exercise, and helpers that several of them share.

mod context_parallel;
mod experts;
mod hierarchical;
mod in_flight;

mod fsdp;
mod mixed_precision;
mod sequence_parallel;

mod checkpoint;
mod elastic;
mod one_f_one_b;

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
        elastic,
    ]
}
