//! The checks for module 04, with one file per exercise.

mod accumulate;
mod conditional;
mod data_parallel;
mod global_norm;
mod hybrid;
mod pools;
mod sharded_optimizer;
mod single_process;
mod staging;
mod tensor;
mod tensor_backward;
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
