//! The bench every exercise stands on.

pub mod check;
pub mod tier;

pub use check::Check;
pub use tier::{Tier, attach, streams, world_sizes};
