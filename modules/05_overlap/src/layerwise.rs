//! Overlap inside a model: one half of the batch is summed while the other half is computed.
//!
//! In a tensor-parallel layer, the ranks sum their partial results twice: after the attention and after the MLP. For
//! each half, the residual, the norm, and the next product need the sum of that half. The other half does not.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};

/// The two parts of a layer, in order. Each ends with an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first part.
    Attention,
    /// The second part.
    Mlp,
}

/// The work of a layer on half 0 or 1 of the batch. Each call enqueues work on one stream, and returns at once.
pub trait Layer {
    /// On the compute stream: computes this rank's partial sums from the normed states of the half.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn product(&mut self, part: Part, half: usize) -> anyhow::Result<()>;

    /// On the comm stream: sums the half's partial sums over all ranks, in place.
    ///
    /// # Errors
    /// Returns NCCL's error.
    fn all_reduce(&mut self, half: usize) -> anyhow::Result<()>;

    /// On the compute stream: adds the half's sums to its states (the residual), and norms the states for the next product.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn residual_and_norm(&mut self, half: usize) -> anyhow::Result<()>;
}

/// For each half, an event after its last all-reduce, if those sums have not been added to its states yet.
pub type Pending = [Option<CudaEvent>; 2];

/// Enqueues one layer. `pending` is what the layer before returned, and the result is for the next layer. Returns at once.
///
/// # Errors
/// Returns the errors of the layer and of the driver.
pub fn forward(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    layer: &mut impl Layer,
    mut pending: Pending,
) -> anyhow::Result<Pending> {
    // ANCHOR: forward
    // Run both parts for both halves:
    // 1. each part is a product, then an all-reduce of the same half;
    // 2. a half's product comes after its residual and norm, which need its sums from the part or the layer before;
    // 3. where a half is not pending, its states are normed already;
    // 4. the all-reduce of one half is free to run in parallel with the product of the other half;
    // 5. the last all-reduce of each half stays pending, and the host waits for nothing;
    // 6. the two streams and events are enough: no other stream is made.
    todo!("Run both parts for both halves")
    // ANCHOR_END: forward
}

/// Ends the last layer. Returns at once. Later work on the compute stream comes after everything.
///
/// # Errors
/// Returns the errors of the layer and of the driver.
pub fn finish(compute: &Arc<CudaStream>, layer: &mut impl Layer, pending: Pending) -> anyhow::Result<()> {
    // ANCHOR: finish
    // Add the sums that are still pending:
    // 1. the residual and norm of a half come after its all-reduce;
    // 2. a half that is not pending is left alone, and the host waits for nothing.
    todo!("Add the sums that are still pending")
    // ANCHOR_END: finish
}
