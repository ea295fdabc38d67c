//! The bench every exercise stands on.

pub mod check;
pub mod compare;
pub mod digits;
pub mod explain;
pub mod guarded;
pub mod host_group;
pub mod in_place;
pub mod irregular;
pub mod kernels;
mod library;
pub mod linear;
pub mod memory_pool;
pub mod momentum;
pub mod nccl_log;
pub mod perceptron;
pub mod processes;
pub mod random;
pub mod ranks;
pub mod roll_call;
pub mod stopwatch;
pub mod tier;

pub use check::Check;
pub use compare::Expected;
pub use explain::Readable;
pub use guarded::Guarded;
pub use host_group::HostGroup;
pub use in_place::part_and_whole;
pub use kernels::Kernels;
pub use linear::{Linear, Mlp, Weights};
pub use memory_pool::MemoryPool;
pub use momentum::Momentum;
pub use nccl_log::NcclLog;
pub use perceptron::Perceptron;
pub use ranks::each_rank;
pub use stopwatch::Stopwatch;
pub use tier::{Tier, attach, streams, world_sizes};
