//! Gradient hooks: each gradient is averaged as soon as it is ready, while the backward pass continues.
//!
//! The backward pass starts at the last layer, so the gradients of the last parameters are ready first. NCCL matches
//! collectives by their order alone, so all ranks must make the same calls in the same order.

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use lab::Trainable;

use collectives::all_reduce::average_in_place;

/// Makes one training step: the backward pass, an average of each gradient over all ranks, and the optimizer's step. Every
/// rank must call it. Returns at once. Both streams are on one GPU, and cudarc's event tracking is off.
///
/// # Errors
/// Returns the errors of the model, of NCCL, and of the driver.
pub fn step(comm: &Comm, model: &mut impl Trainable) -> anyhow::Result<()> {
    // ANCHOR: step
    // Run the backward pass, average every gradient, and step:
    // 1. each parameter's gradient has its own all-reduce on the communicator's stream, in place;
    // 2. an all-reduce starts when its gradient is ready, and is free to run in parallel with the rest of the backward pass;
    // 3. all ranks make the same all-reduces in the same order, from the last parameter to the first;
    // 4. a parameter that a rank's samples do not use counts with a gradient of 0 there;
    // 5. the optimizer steps after all averages, and the host waits for nothing.
    todo!("Run the backward pass, average every gradient, and step")
    // ANCHOR_END: step
}
