//! A hierarchical all-reduce: the ranks of a node sum first, so each rank sends only a part of the sum to other nodes.
//!
//! ```text
//!               GPU 0   GPU 1   GPU 2
//!     node 0      0       1       2       a row is a node: its GPUs have fast links to each other
//!     node 1      3       4       5       a column crosses the network: the GPUs with the same number in all nodes
//! ```

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// A rank's two communicators. They share one stream.
pub struct Groups {
    /// Connects the GPUs of its node. Its ranks are the GPUs' numbers in the node.
    pub node: Comm,
    /// Connects the GPUs with the same number in all nodes. Its ranks are the nodes' numbers.
    pub across: Comm,
}

/// Sums `send` over all ranks of all nodes, and writes one part of the sum into `part`: GPU `i` of each node gets part
/// `i`. Every rank must call it with the same two lengths. Returns without waiting for the GPU.
///
/// # Errors
/// Fails if `send` is not as long as the parts of a node's GPUs combined, or if an NCCL call fails.
pub fn sum_part(groups: &Groups, send: &CudaView<f32>, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: sum_part
    // Sum over all nodes, and keep this GPU's part:
    // 1. on GPU `i` of a node, `part` contains the elements of the sum from index `i * part.len()` on;
    // 2. `send` does not change;
    // 3. if `send` is not as long as the parts of the node's GPUs combined, send nothing, and return an error with
    //    the length of `send` and the length that it should have;
    // 4. two collectives, and only one part crosses the network.
    let needed = part.len() * groups.node.world_size();
    ensure!(send.len() == needed, "the parts have {needed} elements, but the send buffer has {}", send.len());
    groups.node.reduce_scatter(send, part, &ReduceOp::Sum).readable()?;
    groups.across.all_reduce_in_place(part, &ReduceOp::Sum).readable()?;
    Ok(())
    // ANCHOR_END: sum_part
}

/// Replaces every rank's `buffer` with the sum over all ranks of all nodes. Every rank must call it, with a buffer of the
/// same length. The length need not be a multiple of the number of GPUs in a node, and may be smaller. Returns without
/// waiting for the GPU.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn sum(groups: &Groups, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: sum
    // Sum `buffer` over all nodes, in three steps:
    // 1. on every rank, the sums replace the values, for any length;
    // 2. the elements are divided equally among a node's GPUs, and each sends only its part to other nodes; the
    //    remainder has fewer elements than the node has GPUs, and is summed separately;
    // 3. apart from the remainder, no element is copied: the buffer is not padded, and a rank allocates room for one part;
    // 4. the host does not wait for the GPU.
    let (node, across) = (&groups.node, &groups.across);
    let part_len = buffer.len() / node.world_size();
    let (mut equal, mut rest) = buffer.split_at_mut(part_len * node.world_size());
    if part_len > 0 {
        let mut part = node.stream().alloc_zeros::<f32>(part_len)?;
        sum_part(groups, &equal.as_view(), &mut part.as_view_mut())?;
        node.all_gather(&part, &mut equal).readable()?;
    }
    if !rest.is_empty() {
        node.all_reduce_in_place(&mut rest, &ReduceOp::Sum).readable()?;
        across.all_reduce_in_place(&mut rest, &ReduceOp::Sum).readable()?;
    }
    Ok(())
    // ANCHOR_END: sum
}
