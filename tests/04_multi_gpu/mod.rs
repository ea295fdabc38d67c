//! The checks for module 04, with one file per exercise.
//! `cargo course` compiles only the checks for one exercise: see `lab::checks!`.

#![allow(unexpected_cfgs)]

#[cfg(any(not(one_exercise), accumulate))]
mod accumulate;
#[cfg(any(not(one_exercise), conditional))]
mod conditional;
#[cfg(any(not(one_exercise), data_parallel))]
mod data_parallel;
#[cfg(any(not(one_exercise), global_norm))]
mod global_norm;
#[cfg(any(not(one_exercise), hybrid))]
mod hybrid;
#[cfg(any(not(one_exercise), pools))]
mod pools;
#[cfg(any(not(one_exercise), sharded_optimizer))]
mod sharded_optimizer;
#[cfg(any(not(one_exercise), single_process))]
mod single_process;
#[cfg(any(not(one_exercise), staging))]
mod staging;
mod tensor;
#[cfg(any(not(one_exercise), tensor_backward))]
mod tensor_backward;
#[cfg(any(not(one_exercise), tensor_forward))]
mod tensor_forward;
mod whole_batch;

// Links the program faster.
extern crate prelinked as _;

use lab::Check;

/// Returns every check in the module, in exercise order.
pub(crate) fn checks() -> Vec<Check> {
    lab::checks![
        data_parallel,
        single_process,
        accumulate,
        conditional,
        global_norm,
        tensor_forward,
        tensor_backward,
        hybrid,
        sharded_optimizer,
        staging,
        pools,
    ]
}
