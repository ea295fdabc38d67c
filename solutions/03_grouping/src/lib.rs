//! Group calls, stream order, and lost ranks.

pub mod all_to_all;
pub mod events;
pub mod fusion;
pub mod group;
pub mod recover;
pub mod ring;
pub mod straggler;
pub mod tracking;
