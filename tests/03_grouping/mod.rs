//! The checks for module 03, with one file per exercise, and helpers that several of them share.

mod all_to_all;
mod events;
mod foreign;
mod fusion;
mod group;
mod open_group;
mod recover;
mod ring;
mod straggler;
mod tracking;

// Links the program faster.
extern crate prelinked as _;

use lab::Check;

/// Returns every check in the module, in exercise order.
pub(crate) fn checks() -> Vec<Check> {
    lab::checks![group, ring, all_to_all, fusion, events, tracking, straggler, recover]
}
