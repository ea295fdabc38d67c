//! Selects the libraries that the course runs on: the real driver and NCCL, or the virtual ones.

mod attach;
mod choice;
mod nccl_build;
mod sharing;
mod survey;
mod times;

pub use attach::{attach, built_library, streams, world_sizes};
pub use choice::{Tier, describe, tier_for};
pub use nccl_build::cuda_of_nccl;
pub use survey::{CudaVersion, Driver, NcclVersion, OLDEST_NCCL, Survey, nvrtc_version, survey};
pub use times::{times_are_modeled, whose_times};

pub(crate) use attach::{CRATE_ROOT, attached, own_sources, prepare};
pub(crate) use choice::ASKED;
pub(crate) use sharing::processes_at_a_time;
pub use sharing::{SHARED_MEMORY, shared_memory};
