//! Gradient buckets: one all-reduce averages several gradients, and starts when the last of them is ready.
//!
//! A bucket is a part of the flat gradient buffer, so nothing is copied.

use std::ops::Range;

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use lab::Trainable;

use collectives::all_reduce::average_in_place;

/// Makes one training step with one all-reduce for each of the `buckets`, which [`plan`](crate::bucket_plan::plan) made. Every rank must call it with
/// the same buckets. Returns at once. Both streams are on one GPU, and cudarc's event tracking is off.
///
/// # Errors
/// Returns the errors of the model, of NCCL, and of the driver.
pub fn step(comm: &Comm, model: &mut impl Trainable, buckets: &[Range<usize>]) -> anyhow::Result<()> {
    // ANCHOR: step
    // Run the backward pass, average every bucket, and step:
    // 1. an all-reduce starts when all gradients of its bucket are ready, and is free to run in parallel with the backward pass;
    // 2. all ranks make the same all-reduces in the order of `buckets`;
    // 3. a parameter that a rank's samples do not use counts with a gradient of 0 there, and its bucket does not wait for it;
    // 4. a bucket is averaged where it is: nothing is allocated or copied;
    // 5. the optimizer steps after all averages, and the host waits for nothing.
    todo!("Run the backward pass, average every bucket, and step")
    // ANCHOR_END: step
}
