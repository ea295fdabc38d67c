//! What module 03 must do: one file for each exercise, and what several of them share.

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

use lab::Check;

/// Every check of the module, in the order of its exercises.
pub(crate) fn checks() -> Vec<Check> {
    [
        group::checks(),
        ring::checks(),
        all_to_all::checks(),
        fusion::checks(),
        events::checks(),
        tracking::checks(),
        straggler::checks(),
        recover::checks(),
    ]
    .concat()
}
