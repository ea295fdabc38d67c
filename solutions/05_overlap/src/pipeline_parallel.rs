//! Pipeline parallelism: a model in stages, each on its own GPU, and micro-batches that pass through them.
//!
//! A stage receives a micro-batch from the stage before it, computes, and sends it on. Later stages have nothing to do at the
//! start, and earlier stages have nothing to do at the end: the bubble.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

/// The work of a stage on one micro-batch. Each call enqueues work on one stream, and returns at once. Messages between two
/// stages have no names: they are received in the order in which they are sent.
pub trait Stage {
    /// On the comm stream: receives the micro-batch from the previous stage. The first stage takes it from its data.
    ///
    /// # Errors
    /// Returns the errors of NCCL and of the driver.
    fn receive(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the compute stream: computes in place.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn compute(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the comm stream: sends the micro-batch to the next stage. The last stage stores it as a result.
    ///
    /// # Errors
    /// Returns the errors of NCCL and of the driver.
    fn send(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

/// Runs all micro-batches through one stage, in order. Every rank is a stage, and calls this with the same number of
/// micro-batches. Micro-batch `i` uses `buffers[i % 2]`.
///
/// Returns at once, with everything enqueued. Later work on the comm stream runs after all of this work. Before the call, the
/// buffers are ready for both streams. cudarc's event tracking is off.
///
/// # Errors
/// Returns the errors of the stage and of the driver.
pub fn run_stage(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    stage: &mut impl Stage,
    buffers: &mut [CudaViewMut<f32>; 2],
    micro_batches: usize,
) -> anyhow::Result<()> {
    // ANCHOR: run_stage
    // Enqueue the path of every micro-batch through this stage:
    // 1. each micro-batch is received, computed, and sent, in this order;
    // 2. the next micro-batch is free to come in while one is computed;
    // 3. a micro-batch is received into a buffer only after the one before it there has been sent;
    // 4. nothing is received beyond the last micro-batch, and the host waits for nothing;
    // 5. the two streams and events are enough: no other stream is made.
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

/// Returns the part of the time in which a stage is idle, from 0 to 1, if all stages take equally long for a micro-batch, and
/// messages take no time. Both numbers are at least 1.
pub fn bubble(stages: usize, micro_batches: usize) -> f64 {
    // ANCHOR: bubble
    // Compute the idle part of a stage's time:
    // 1. the time runs from the first stage's first micro-batch to the last stage's last one;
    // 2. it counts in steps, in which a stage computes one micro-batch or is idle.
    (stages - 1) as f64 / (micro_batches + stages - 1) as f64
    // ANCHOR_END: bubble
}
