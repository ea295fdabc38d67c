//! Distinguishes times from a GPU's clock from times from a model.

use cudarc::driver::CudaContext;

use super::attach::attached;
use super::choice::{TOPOLOGY, Tier};

/// Returns where event times come from on the attached tier: `measured on NVIDIA H100 80GB HBM3`, or
/// `modeled for the machine ...` with a note on what the model leaves out. Every figure is shown with this text.
///
/// # Errors
/// Fails if a driver call fails.
pub fn whose_times() -> anyhow::Result<String> {
    Ok(match attached() {
        Some(Tier::Virtual) => {
            let topology = std::env::var(TOPOLOGY).unwrap_or_else(|_| "classroom".to_owned());
            format!("modeled for the machine `{}`, where host work takes no time", topology.trim())
        }
        _ => format!("measured on {}", CudaContext::new(0)?.name()?),
    })
}

/// Returns whether event times on the attached tier are modeled. Only modeled times are the same on every run.
pub fn times_are_modeled() -> bool {
    attached() == Some(Tier::Virtual)
}
