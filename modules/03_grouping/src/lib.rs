//! Several calls as one, one stream after another, and what to do when a rank is missing.

pub mod all_to_all;
pub mod events;
pub mod fusion;
pub mod group;
pub mod recover;
pub mod ring;
pub mod straggler;
pub mod tracking;
