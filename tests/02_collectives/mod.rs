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

use lab::Check;

/// Returns every check in the module, in exercise order.
pub(crate) fn checks() -> Vec<Check> {
    [
        all_reduce::checks(),
        broadcast::checks(),
        reduce_to_root::checks(),
        all_gather::checks(),
        reduce_scatter::checks(),
        dtypes::checks(),
        timing::checks(),
        bandwidth::checks(),
        backends::checks(),
    ]
    .concat()
}
