//! A model in stages, each on a GPU of its own: micro-batches go through them like parts along an assembly line.
//!
//! A stage receives a micro-batch from the stage before it, computes, and sends it on. While it computes one, the next one can
//! come in. At the beginning the later stages have nothing to do yet, and at the end the earlier ones nothing any more: the bubble.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

/// What a stage does with a micro-batch. Each call puts work into one stream, and returns at once. Messages between two
/// stages have no names: the first one sent is the first one received.
pub trait Stage {
    /// On the comm stream: receives the micro-batch from the stage before. The first stage takes it from its data.
    ///
    /// # Errors
    /// What NCCL or the driver answers.
    fn receive(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the compute stream: computes in place.
    ///
    /// # Errors
    /// What the driver answers.
    fn compute(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the comm stream: sends the micro-batch to the next stage. The last stage keeps it as a result.
    ///
    /// # Errors
    /// What NCCL or the driver answers.
    fn send(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

/// Takes all micro-batches, in their order, through one stage; every rank is one, and calls this with the same number of them.
/// Micro-batch i uses `buffers[i % 2]`. The next one is free to come in while one is computed.
///
/// Returns at once, with everything enqueued. Whatever is enqueued on the comm stream afterwards comes after all of it. Before, the buffers
/// must be ready for both streams. cudarc's event tracking is off.
///
/// # Errors
/// Those of the stage, and what the driver answers.
pub fn run_stage(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    stage: &mut impl Stage,
    buffers: &mut [CudaViewMut<f32>; 2],
    micro_batches: usize,
) -> anyhow::Result<()> {
    // ANCHOR: run_stage
    // Enqueue the way of every micro-batch through this stage.
    // The comm stream is a queue, too: in which order does it get its receives and sends? And what does a computation have to wait
    // for: its own receive, or all that the comm stream has by then?
    todo!("Enqueue the way of every micro-batch through this stage")
    // ANCHOR_END: run_stage
}

/// The part of the time in which a stage has nothing to do, if all stages take equally long for a micro-batch, and messages take no time.
/// Both numbers are at least 1.
pub fn bubble(stages: usize, micro_batches: usize) -> f64 {
    // ANCHOR: bubble
    // Say how much of the whole time a stage is idle.
    // From the first stage's first micro-batch to the last stage's last one: how many steps are there, and in how many of
    // them does a stage work?
    todo!("Say how much of the whole time a stage is idle")
    // ANCHOR_END: bubble
}
