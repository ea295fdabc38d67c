//! The checks for module 03, with one file per exercise, and helpers that several of them share.
//! `cargo course` compiles only the checks for one exercise: see `lab::checks!`.

#![allow(unexpected_cfgs)]

#[cfg(any(not(one_exercise), all_to_all))]
mod all_to_all;
#[cfg(any(not(one_exercise), events))]
mod events;
mod foreign;
#[cfg(any(not(one_exercise), fusion))]
mod fusion;
#[cfg(any(not(one_exercise), group))]
mod group;
mod open_group;
#[cfg(any(not(one_exercise), recover))]
mod recover;
#[cfg(any(not(one_exercise), ring))]
mod ring;
#[cfg(any(not(one_exercise), straggler))]
mod straggler;
#[cfg(any(not(one_exercise), tracking))]
mod tracking;

// Links the program faster.
extern crate prelinked as _;

use lab::Check;

/// Returns every check in the module, in exercise order.
pub(crate) fn checks() -> Vec<Check> {
    lab::checks![group, ring, all_to_all, fusion, events, tracking, straggler, recover]
}
