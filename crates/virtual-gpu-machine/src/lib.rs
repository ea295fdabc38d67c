//! Runs kernels.
//!
//! A block's threads run in lockstep: one instruction at a time for all threads at the same program counter, lowest
//! program counter first. Blocks run one after another, or on several threads with the same result. A block that waits for
//! another block is suspended.

mod arithmetic;
mod barrier;
mod block;
mod call;
mod call_stack;
mod cluster;
mod consistency;
mod control_flow;
mod convergence;
mod division;
mod execute;
mod fault;
mod features;
mod heap;
mod launch;
mod machine;
mod mask;
mod matrix;
mod mbarrier;
mod memory;
mod order;
mod printed;
mod printf;
#[cfg(target_arch = "x86_64")]
mod processor;
mod progress;
mod race;
pub mod reduction;
mod registers;
mod resident;
mod sampling;
mod schedule;
mod shadow;
mod start;
mod stuck;
mod system_call;
mod texel;
mod together;
mod warp;
mod warp_members;
mod wmma;

pub use consistency::{Consistency, DeviceRace, Missing};
pub use division::Division;
pub use fault::{Access, Assertion, Fault, FaultKind, MemoryAccess, OutsideSurface, ThreadReport};
pub use launch::{Execution, KernelHeap, Launch};
pub use memory::touched::Touched;
pub use printed::Printed;
pub use race::{Lifetime, Race, SharedLocation};
pub use together::{Others, Pause, Together};

use division::Running;
use machine::Machine;
use memory::view::View;
use virtual_gpu_core::memory::DeviceMemory;
use virtual_gpu_ptx::Kernel;

/// Runs a kernel to its end.
///
/// The launch must be valid for the kernel: at most 1024 threads per block, and as many parameter bytes as the kernel
/// takes. Missing parameter bytes read as zero.
///
/// # Errors
/// Returns the first fault of any thread. Earlier writes are not undone.
pub fn run(kernel: &Kernel, launch: &Launch<'_>, memory: &mut DeviceMemory) -> Result<Execution, Box<Fault>> {
    run_with(kernel, launch, memory, None)
}

/// Runs a kernel that accesses other GPUs' memory, or whose GPU's memory other GPUs access. It takes turns with other
/// launches.
///
/// # Errors
/// As for [`run`].
pub fn run_together(
    kernel: &Kernel,
    launch: &Launch<'_>,
    memory: &mut DeviceMemory,
    together: Together<'_>,
) -> Result<Execution, Box<Fault>> {
    run_with(kernel, launch, memory, Some(together))
}

fn run_with<'l>(
    kernel: &'l Kernel,
    launch: &'l Launch<'l>,
    memory: &'l mut DeviceMemory,
    together: Option<Together<'l>>,
) -> Result<Execution, Box<Fault>> {
    let _running = Running::new(1);
    let mut state = block::take_state();
    let mut machine =
        Machine::new(kernel, launch, View::Whole(memory), (&mut state.block, &mut state.record));
    machine.together = together;
    let outcome = machine.run();
    block::give_back(state);
    outcome
}

/// Returns whether kernels run in loops compiled for AVX2 and FMA, because this processor has both.
pub fn uses_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return features::has_avx2();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Checks that kernels and reductions can run on this processor. Without this, they panic there.
///
/// # Errors
/// Fails if they were compiled for other processors. The message says what to do.
pub fn check_processor() -> Result<(), &'static str> {
    if cfg!(only_avx2) && !uses_avx2() { Err(features::LACKS_AVX2) } else { Ok(()) }
}
