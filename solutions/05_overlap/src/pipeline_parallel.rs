//! Pipeline parallelism: a model is divided into stages, each on its own GPU, and micro-batches pass through them.
//!
//! A stage receives a micro-batch from the previous stage, computes, and sends it on. Later stages have nothing to do
//! at the start, and earlier stages have nothing to do at the end. This idle time is the *bubble*.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

/// The work that a stage does on one micro-batch. Each call enqueues work on one stream, and returns immediately.
/// Messages between two stages have no tags: they are received in the order in which they are sent.
pub trait Stage {
    /// On the comm stream: receives the micro-batch from the previous stage. The first stage reads it from its data.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    fn receive(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the compute stream: computes in place.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn compute(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the comm stream: sends the micro-batch to the next stage. The last stage stores it as a result.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    fn send(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

/// Runs all micro-batches through one stage, in order. Every rank is a stage, and calls this with the same number of
/// micro-batches. Micro-batch `i` uses `buffers[i % 2]`.
///
/// Enqueues everything and returns immediately. Later work on the comm stream runs after all of this work. Before the
/// call, the buffers are ready for both streams. cudarc's event tracking is off.
///
/// # Errors
/// Returns any error from the stage or the driver.
pub fn run_stage(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    stage: &mut impl Stage,
    buffers: &mut [CudaViewMut<f32>; 2],
    micro_batches: usize,
) -> anyhow::Result<()> {
    // ANCHOR: run_stage
    // Enqueue every micro-batch's path through this stage:
    // 1. each micro-batch is received, computed, and sent, in that order;
    // 2. while one micro-batch is being computed, the next can be received;
    // 3. a micro-batch is received into a buffer only after the buffer's previous micro-batch has been sent;
    // 4. nothing is received beyond the last micro-batch, and the host does not wait;
    // 5. the two streams and events are enough: no other stream is created.
    let mut received = None;
    for next in 0..=micro_batches {
        let arrived = received.take();
        if next < micro_batches {
            stage.receive(next, &mut buffers[next % 2])?;
            received = Some(comm.record_event(None)?);
        }
        if let Some(arrived) = arrived {
            let (current, buffer) = (next - 1, &mut buffers[(next - 1) % 2]);
            compute.wait(&arrived)?;
            stage.compute(current, buffer)?;
            comm.wait(&compute.record_event(None)?)?;
            stage.send(current, buffer)?;
        }
    }
    Ok(())
    // ANCHOR_END: run_stage
}

/// Returns the fraction of the time during which a stage is idle, from 0 to 1, if all stages take equally long for a
/// micro-batch and messages take no time. Both arguments are at least 1.
pub fn bubble(stages: usize, micro_batches: usize) -> f64 {
    // ANCHOR: bubble
    // Compute the idle fraction of a stage's time:
    // 1. the time runs from the start of the first stage's first micro-batch to the end of the last stage's last one;
    // 2. it is counted in steps; in each step, a stage either computes one micro-batch or is idle.
    (stages - 1) as f64 / (micro_batches + stages - 1) as f64
    // ANCHOR_END: bubble
}
