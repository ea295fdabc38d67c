//! The bench every exercise stands on.

mod library;
pub mod tier;

pub use tier::{Tier, attach, streams, world_sizes};
