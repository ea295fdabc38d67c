//! Several calls as one, and one stream after another.

pub mod events;
pub mod group;
