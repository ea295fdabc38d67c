//! Overlap inside a model: one half of the batch is summed while the other half is computed.
//!
//! In a tensor-parallel layer, the ranks sum their partial results twice: after the attention and after the MLP. In
//! each half, the residual, the norm, and the next product need the sum for that half, but the other half does not.

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

/// The work that a layer does on half 0 or 1 of the batch. Each call enqueues work on one stream, and returns immediately.
pub trait Layer {
    /// On the compute stream: computes this rank's partial sums from the half's normalized states.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn product(&mut self, part: Part, half: usize) -> anyhow::Result<()>;

    /// On the comm stream: sums the half's partial sums over all ranks, in place.
    ///
    /// # Errors
    /// Returns any error from NCCL.
    fn all_reduce(&mut self, half: usize) -> anyhow::Result<()>;

    /// On the compute stream: adds the half's sums to its states (the residual), and normalizes the states for the next product.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn residual_and_norm(&mut self, half: usize) -> anyhow::Result<()>;
}

/// For each half, an event recorded after its last all-reduce, if those sums have not been added to its states yet.
pub type Pending = [Option<CudaEvent>; 2];

/// Enqueues one layer. `pending` is what the previous layer returned, and the result is for the next layer. Returns immediately.
///
/// # Errors
/// Returns any error from the layer or the driver.
pub fn forward(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    layer: &mut impl Layer,
    mut pending: Pending,
) -> anyhow::Result<Pending> {
    // ANCHOR: forward
    // Run both parts for both halves:
    // 1. each part is a product, then an all-reduce of the same half;
    // 2. a half's product comes after its residual and norm, which need its sums from the previous part or layer;
    // 3. if a half is not pending, its states have already been normalized;
    // 4. one half's all-reduce can run in parallel with the other half's product;
    // 5. the last all-reduce of each half stays pending, and the host does not wait;
    // 6. the two streams and events are enough: no other stream is created.
    for part in [Part::Attention, Part::Mlp] {
        for half in [0, 1] {
            if let Some(summed) = pending[half].take() {
                compute.wait(&summed)?;
                layer.residual_and_norm(half)?;
            }
            layer.product(part, half)?;
            comm.wait(&compute.record_event(None)?)?;
            layer.all_reduce(half)?;
            pending[half] = Some(comm.record_event(None)?);
        }
    }
    Ok(pending)
    // ANCHOR_END: forward
}

/// Ends the last layer. Returns immediately. Later work on the compute stream runs after all of this work.
///
/// # Errors
/// Returns any error from the layer or the driver.
pub fn finish(compute: &Arc<CudaStream>, layer: &mut impl Layer, pending: Pending) -> anyhow::Result<()> {
    // ANCHOR: finish
    // Add the sums that are still pending:
    // 1. the residual and norm of a half come after its all-reduce;
    // 2. a half that is not pending is left alone, and the host does not wait.
    for (half, summed) in pending.into_iter().enumerate() {
        if let Some(summed) = summed {
            compute.wait(&summed)?;
            layer.residual_and_norm(half)?;
        }
    }
    Ok(())
    // ANCHOR_END: finish
}
