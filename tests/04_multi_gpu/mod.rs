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

use lab::Check;

/// Returns every check in the module, in exercise order.
pub(crate) fn checks() -> Vec<Check> {
    [
        data_parallel::checks(),
        single_process::checks(),
        accumulate::checks(),
        conditional::checks(),
        global_norm::checks(),
        tensor_forward::checks(),
        tensor_backward::checks(),
        hybrid::checks(),
        sharded_optimizer::checks(),
        staging::checks(),
        pools::checks(),
    ]
    .concat()
}
