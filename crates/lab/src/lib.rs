//! The bench every exercise stands on.

pub mod tier;

pub use tier::{Tier, attach, streams, world_sizes};
