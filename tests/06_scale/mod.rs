//! The checks for module 06, with one file per exercise, and helpers that several of them share.
//! `cargo course` compiles only the checks for one exercise: see `lab::checks!`.

#![allow(unexpected_cfgs)]

#[cfg(any(not(one_exercise), capstone))]
mod capstone;
#[cfg(any(not(one_exercise), checkpoint))]
mod checkpoint;
#[cfg(any(not(one_exercise), context_parallel))]
mod context_parallel;
#[cfg(any(not(one_exercise), elastic))]
mod elastic;
#[cfg(any(not(one_exercise), experts))]
mod experts;
#[cfg(any(not(one_exercise), fsdp))]
mod fsdp;
#[cfg(any(not(one_exercise), hierarchical))]
mod hierarchical;
mod in_flight;
#[cfg(any(not(one_exercise), mixed_precision))]
mod mixed_precision;
#[cfg(any(not(one_exercise), one_f_one_b))]
mod one_f_one_b;
#[cfg(any(not(one_exercise), one_shot))]
mod one_shot;
#[cfg(any(not(one_exercise), one_sided))]
mod one_sided;
#[cfg(any(not(one_exercise), postmortem))]
mod postmortem;
#[cfg(any(not(one_exercise), sequence_parallel))]
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
