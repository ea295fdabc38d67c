//! Overlap inside a model: while the all-reduce of one half of the batch is under way, the other half is computed.
//!
//! In a tensor-parallel block each rank computes a part of every product, and the parts have to be summed over the ranks: twice
//! in a layer, behind the attention and behind the MLP. What comes next (residual, norm, the next product) needs the sum.
//! So for one half of the batch alone there is nothing to do meanwhile. For the other half there is.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};

/// The two parts of a layer, in their order. Each ends in an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first one.
    Attention,
    /// The second one.
    Mlp,
}

/// What is done in a layer with a half of the batch, 0 or 1. Each call puts work into one stream, and returns at once.
pub trait Layer {
    /// On the compute stream: this rank's part of the product, from the half's normed states into its partial sums.
    ///
    /// # Errors
    /// What the driver answers.
    fn product(&mut self, part: Part, half: usize) -> anyhow::Result<()>;

    /// On the comm stream: sums the half's partial sums over all ranks, in place.
    ///
    /// # Errors
    /// What NCCL answers.
    fn all_reduce(&mut self, half: usize) -> anyhow::Result<()>;

    /// On the compute stream: adds the half's sums to its states (the residual), and norms them for the next product.
    ///
    /// # Errors
    /// What the driver answers.
    fn residual_and_norm(&mut self, half: usize) -> anyhow::Result<()>;
}

/// For each half, an event behind its last all-reduce, whose sums have not been added to its states yet. None where there was no
/// all-reduce.
pub type Pending = [Option<CudaEvent>; 2];

/// Puts one layer into the streams. `pending` is what the layer before has returned: its last sums come in here. What is returned
/// is for the next layer; no half's last all-reduce is waited for here. The halves are independent of each other. Returns at once.
///
/// # Errors
/// Those of the layer, and what the driver answers.
pub fn forward(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    layer: &mut impl Layer,
    mut pending: Pending,
) -> anyhow::Result<Pending> {
    // ANCHOR: forward
    // Do both parts, each for both halves.
    // The all-reduce of a half must be free to run in parallel with the product of the other one. Before a half's product come its residual
    // and norm, and they need its sums: those of the part before, or of the layer before.
    todo!("Do both parts, each for both halves")
    // ANCHOR_END: forward
}

/// Ends the last layer: adds what is still pending. Returns at once; whatever is enqueued on the compute stream afterwards comes
/// after everything.
///
/// # Errors
/// Those of the layer, and what the driver answers.
pub fn finish(compute: &Arc<CudaStream>, layer: &mut impl Layer, pending: Pending) -> anyhow::Result<()> {
    // ANCHOR: finish
    // Wait for each half's sums, and add them.
    // It is the compute stream that has to wait, not the host.
    todo!("Wait for each half's sums, and add them")
    // ANCHOR_END: finish
}
