//! Finds the state space of a generic address.

use virtual_gpu_ptx::instruction::Space;
use virtual_gpu_ptx::window;

/// Returns a generic address's state space and the address within it.
pub(crate) fn concrete(space: Space, address: u64) -> (Space, u64) {
    if space != Space::Generic {
        return (space, address);
    }
    let top = address >> 48 << 48;
    match top {
        window::SHARED => (Space::Shared, address - top),
        window::LOCAL => (Space::Local, address - top),
        window::PARAM => (Space::Param, address - top),
        _ => (Space::Global, address),
    }
}
