//! Gradient buckets: one all-reduce averages several gradients, and starts once the last of them is ready.
//!
//! A bucket is a part of the flat gradient buffer, so nothing is copied.

use std::ops::Range;

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use lab::Trainable;

use collectives::all_reduce::average_in_place;

/// Makes one training step with one all-reduce for each of the `buckets`, which come from [`plan`](crate::bucket_plan::plan). Every
/// rank must call it with the same buckets. Returns immediately. Both streams are on one GPU, and cudarc's event tracking is off.
///
/// # Errors
/// Returns any error from the model, NCCL, or the driver.
pub fn step(comm: &Comm, model: &mut impl Trainable, buckets: &[Range<usize>]) -> anyhow::Result<()> {
    // ANCHOR: step
    // Run the backward pass, average every bucket, and step:
    // 1. an all-reduce starts once all gradients in its bucket are ready, and can run in parallel with the backward pass;
    // 2. all ranks enqueue the same all-reduces, in the order of `buckets`;
    // 3. if a rank's samples do not use a parameter, its gradient there counts as 0, and its bucket waits at most for the next hook that
    //    runs, or for the end of the pass;
    // 4. a bucket is averaged in place: nothing is allocated or copied;
    // 5. the optimizer steps after all averages, and the host does not wait.
    todo!("Run the backward pass, average every bucket, and step")
    // ANCHOR_END: step
}
