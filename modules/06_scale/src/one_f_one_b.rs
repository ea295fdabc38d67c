//! One forward, one backward (1F1B): a pipeline that trains, and keeps few activations.
//!
//! A backward pass needs the input of its forward pass. So a stage keeps the input of each micro-batch from the
//! forward to the backward pass, and the order of the passes decides how many it has to keep. (D. Narayanan and
//! others, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021, arXiv 2104.04473,
//! call this order PipeDream-Flush.)

use grouping::group::in_group;

/// The work that a stage does for one micro-batch. Each call enqueues work on the communicator's stream, and returns
/// immediately. Messages between two stages have no tags: they are received in the order in which they are sent. A
/// send waits on the GPU for its receive, and a receive for its send.
pub trait Stage {
    /// Receives the input from the previous stage into a free buffer. The first stage reads it from its data.
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

    /// Computes the gradient of the input, and adds to the gradients of the parameters. Frees the input's buffer.
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

/// Returns how many inputs the stage `rank` keeps at most, and so how many buffers it needs for them. There is at
/// least one micro-batch.
pub fn in_flight(rank: usize, stages: usize, micro_batches: usize) -> usize {
    // ANCHOR: in_flight
    // Count the forward passes that the stage runs before its first backward pass:
    // 1. they are just enough to give this stage and each stage after it a micro-batch;
    // 2. there may be fewer micro-batches than that.
    todo!("Count the forward passes that the stage runs before its first backward pass")
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
    // 1. the first `in_flight` passes are forward passes; then backward and forward passes alternate; the remaining ones are backward passes;
    // 2. every stage, including the first and the last, makes each of the six calls once per micro-batch, in the order of the micro-batches;
    // 3. each output and each gradient is sent directly after the pass that computes it;
    // 4. neighbors never both wait for the other to receive, which would be a deadlock;
    // 5. the host does not wait.
    todo!("Enqueue the passes of this stage, and its messages")
    // ANCHOR_END: run_stage
}
