//! The checks for module 02, with one file per exercise, and helpers that several of them share.

mod all_gather;
mod all_reduce;
mod backends;
mod bandwidth;
mod broadcast;
mod dtypes;
mod reduce_scatter;
mod reduce_to_root;
mod reference;
mod refusal;
mod spinning;
mod timing;

// Links the program faster.
extern crate prelinked as _;

use lab::Check;

/// Returns every check in the module, in exercise order.
pub(crate) fn checks() -> Vec<Check> {
    lab::checks![
        all_reduce,
        broadcast,
        reduce_to_root,
        all_gather,
        reduce_scatter,
        dtypes,
        timing,
        bandwidth,
        backends
    ]
}
