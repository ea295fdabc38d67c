//! The checks for module 02, with one file per exercise, and helpers that several of them share.
//! `cargo course` compiles only the checks for one exercise: see `lab::checks!`.

#![allow(unexpected_cfgs)]

#[cfg(any(not(one_exercise), all_gather))]
mod all_gather;
#[cfg(any(not(one_exercise), all_reduce))]
mod all_reduce;
#[cfg(any(not(one_exercise), backends))]
mod backends;
#[cfg(any(not(one_exercise), bandwidth))]
mod bandwidth;
#[cfg(any(not(one_exercise), broadcast))]
mod broadcast;
#[cfg(any(not(one_exercise), dtypes))]
mod dtypes;
#[cfg(any(not(one_exercise), reduce_scatter))]
mod reduce_scatter;
#[cfg(any(not(one_exercise), reduce_to_root))]
mod reduce_to_root;
mod reference;
mod refusal;
mod spinning;
#[cfg(any(not(one_exercise), timing))]
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
