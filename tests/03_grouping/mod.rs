//! What module 03 must do: one file for each exercise.

mod events;
mod group;

use lab::Check;

/// Every check of the module, in the order of its exercises.
pub(crate) fn checks() -> Vec<Check> {
    [group::checks(), events::checks()].concat()
}
