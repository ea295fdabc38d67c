//! Checks of module 04, for its starter and its solution.

mod data_parallel;

use lab::Check;

/// All of them, in the order of exercises.
pub(crate) fn checks() -> Vec<Check> {
    data_parallel::checks()
}
