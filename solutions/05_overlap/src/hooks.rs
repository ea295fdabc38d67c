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
    let (compute, communication) = (model.stream().clone(), comm.stream());
    let layout = model.layout().to_vec();
    compute.memset_zeros(&mut model.gradients_mut())?;
    let mut left = layout.len();
    let mut average_down_to = |parameter: usize, gradients: &mut CudaViewMut<f32>| {
        communication.wait(&compute.record_event(None)?)?;
        while left > parameter {
            left -= 1;
            average_in_place(comm, &mut gradients.slice_mut(layout[left].clone()))?;
        }
        anyhow::Ok(())
    };
    model.backward(&mut average_down_to)?;
    average_down_to(0, &mut model.gradients_mut())?;
    compute.wait(&communication.record_event(None)?)?;
    model.descend()
    // ANCHOR_END: step
}
