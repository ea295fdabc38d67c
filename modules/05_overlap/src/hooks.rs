//! Hooks: each gradient is averaged as soon as it is there, while the backward pass goes on with the next.
//!
//! The backward pass comes to the last layer first, so the last gradients are the first to be ready. A hook is what it calls
//! then. Collectives match by their order alone: all ranks must make the same calls, in one order, whatever their own samples
//! need.

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use lab::Trainable;

use collectives::all_reduce::average_in_place;

/// One step of training, all ranks together: the backward pass, the average over the ranks of each gradient, and the optimizer's
/// step. Each average is an all-reduce of its own on the communicator's stream, and free to run in parallel with the rest of the backward
/// pass. A parameter that a rank's samples do not use counts with a gradient of 0 there. Every rank must call it; returns at once.
///
/// Both streams are on one GPU, and cudarc's event tracking is off.
///
/// # Errors
/// Those of the model, and what NCCL and the driver answer.
pub fn step(comm: &Comm, model: &mut impl Trainable) -> anyhow::Result<()> {
    // ANCHOR: step
    // Average each gradient as soon as it is ready, and step when all of them are there.
    // `model.backward(|parameter, gradients| …)` says it; parameter `p` lies at `model.layout()[p]` in `gradients`. It comes
    // to the parameters from the last to the first, and leaves out those that this rank does not use: another rank may use
    // them. What lies in their place then is what the step before left; `memset_zeros` is a method of a stream,
    // and `model.gradients_mut()` gives the buffer where no hook does.
    todo!("Average each gradient as soon as it is ready, and step when all of them are there")
    // ANCHOR_END: step
}
