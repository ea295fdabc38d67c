//! Gradient hooks: each gradient is averaged as soon as it is ready, while the backward pass continues.
//!
//! The backward pass starts at the last layer, so the gradients of the last parameters are ready first. NCCL matches
//! collectives by their order alone, so all ranks must make the same calls in the same order.

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use lab::Trainable;

use collectives::all_reduce::average_in_place;

/// Makes one training step: the backward pass, the average of each gradient over all ranks, and the optimizer's step.
/// Every rank must call it. Returns immediately. Both streams are on one GPU, and cudarc's event tracking is off.
///
/// # Errors
/// Returns any error from the model, NCCL, or the driver.
pub fn step(comm: &Comm, model: &mut impl Trainable) -> anyhow::Result<()> {
    // ANCHOR: step
    // Run the backward pass, average every gradient, and step:
    // 1. each parameter's gradient has its own all-reduce on the communicator's stream, in place;
    // 2. an all-reduce starts once its gradient is ready, and can run in parallel with the rest of the backward pass;
    // 3. all ranks enqueue the same all-reduces in the same order, from the last parameter to the first;
    // 4. if a rank's samples do not use a parameter, its gradient there counts as 0;
    // 5. the optimizer steps after all averages, and the host does not wait.
    todo!("Run the backward pass, average every gradient, and step")
    // ANCHOR_END: step
}
