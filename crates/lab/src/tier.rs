//! Which libraries the course runs on: the real driver and NCCL, or the virtual ones.

use std::sync::Arc;

use cudarc::driver::CudaStream;

/// What answers cudarc's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The installed driver and NCCL, a GPU for each rank.
    Real,
    /// The installed driver and NCCL ≥ 2.30, two ranks on each GPU.
    Shared,
    /// The virtual GPU.
    Virtual,
}

/// Chooses the tier on which `ranks` ranks can run, without loading anything into this process for good.
///
/// # Errors
/// `LAB_TIER` names a tier that is unknown, or that can't run so many ranks here: the reason, for a person.
pub fn tier_for(ranks: usize) -> anyhow::Result<Tier> {
    let _ = ranks;
    Ok(Tier::Virtual)
}

/// Loads the libraries of the tier on which `ranks` ranks can run. Call it before the first use of cudarc.
///
/// # Errors
/// As [`tier_for`], or a library can't be loaded.
pub fn attach(ranks: usize) -> anyhow::Result<Tier> {
    tier_for(ranks)
}

/// World sizes that a check may use on the attached tier, ascending: 1 to 5 on the virtual one, up to what is there
/// on the others.
pub fn world_sizes() -> Vec<usize> {
    (1..=5).collect()
}

/// A new stream for each rank, on the GPU that the rank uses.
///
/// # Errors
/// What the driver answers.
pub fn streams(world_size: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    let _ = world_size;
    Ok(Vec::new())
}
