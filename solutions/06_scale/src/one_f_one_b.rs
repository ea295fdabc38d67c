//! One forward, one backward (1F1B): a pipeline that trains, and keeps few activations.
//!
//! A backward pass needs the input of its forward pass. So a stage keeps the input of each micro-batch from the
//! forward to the backward pass, and the order of the passes decides how many it has to keep. (D. Narayanan and
//! others, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021, arXiv 2104.04473,
//! where this order is PipeDream-Flush.)

use cudarc::nccl::{group_end, group_start};
use lab::Readable;

/// The work that a stage does for one micro-batch. Each call enqueues work on the communicator's stream, and returns
/// immediately. Messages between two stages have no tags: they are received in the order in which they are sent. A
/// send waits on the GPU for its receive, and a receive for its send.
pub trait Stage {
    /// Receives the input from the previous stage, in a buffer that is free. The first stage reads it from its data.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    fn receive_input(&mut self, micro_batch: usize) -> anyhow::Result<()>;

    /// Computes the output from the input, and keeps the input. There is one buffer for the output.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn forward(&mut self, micro_batch: usize) -> anyhow::Result<()>;

    /// Sends the output to the next stage. The last stage has nothing to send.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    fn send_output(&mut self, micro_batch: usize) -> anyhow::Result<()>;

    /// Receives the gradient of the output from the next stage. The last stage computes it from its output.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    fn receive_gradient(&mut self, micro_batch: usize) -> anyhow::Result<()>;

    /// Computes the gradient of the input, and adds to those of the parameters. Then the input's buffer is free.
    /// There is one buffer for the input's gradient.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn backward(&mut self, micro_batch: usize) -> anyhow::Result<()>;

    /// Sends the gradient of the input to the previous stage. The first stage has nothing to send.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    fn send_gradient(&mut self, micro_batch: usize) -> anyhow::Result<()>;
}

/// Enqueues all messages of `calls` as one group, so that none of them waits for another. After an error, no group
/// is left open.
///
/// # Errors
/// Returns the error of `calls`, or any error from NCCL.
fn grouped(calls: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    group_start().readable()?;
    let called = calls();
    let ended = group_end().readable();
    called.and(ended.map(drop))
}

/// Returns how many inputs the stage `rank` keeps at most, and so how many buffers it needs for them. There is at
/// least one micro-batch.
pub fn in_flight(rank: usize, stages: usize, micro_batches: usize) -> usize {
    // ANCHOR: in_flight
    // Count the micro-batches that the stage starts before the first one comes back:
    // 1. there are just enough of them that each stage after it can have one, too;
    // 2. there may be fewer micro-batches than that.
    (stages - rank).min(micro_batches)
    // ANCHOR_END: in_flight
}

/// Runs all micro-batches through the stage `rank`, forward and backward, in order. Every rank is a stage, and calls
/// this with the same number of micro-batches, which is at least 1. Enqueues everything and returns immediately.
///
/// # Errors
/// Returns any error from the stage or NCCL.
pub fn run_stage(
    rank: usize,
    stages: usize,
    micro_batches: usize,
    stage: &mut impl Stage,
) -> anyhow::Result<()> {
    let in_flight = in_flight(rank, stages, micro_batches);
    // ANCHOR: run_stage
    // Enqueue the passes of this stage, and its messages:
    // 1. the stage runs `in_flight` forward passes; then a backward and a forward pass take turns; at the end, backward passes are left;
    // 2. each of the six calls is made once per micro-batch, also on the first and the last stage, in the order of the micro-batches;
    // 3. the outputs and gradients are sent as soon as they are computed;
    // 4. no two neighbors ever wait for each other to receive;
    // 5. the host does not wait.
    let ahead = in_flight - 1;
    for first in 0..ahead {
        stage.receive_input(first)?;
        stage.forward(first)?;
        stage.send_output(first)?;
    }
    stage.receive_input(ahead)?;
    for (back, next) in (ahead..micro_batches).enumerate() {
        stage.forward(next)?;
        grouped(|| stage.send_output(next).and_then(|()| stage.receive_gradient(back)))?;
        stage.backward(back)?;
        grouped(|| {
            stage.send_gradient(back)?;
            if next + 1 < micro_batches { stage.receive_input(next + 1) } else { Ok(()) }
        })?;
    }
    for back in micro_batches - ahead..micro_batches {
        stage.receive_gradient(back)?;
        stage.backward(back)?;
        stage.send_gradient(back)?;
    }
    Ok(())
    // ANCHOR_END: run_stage
}
