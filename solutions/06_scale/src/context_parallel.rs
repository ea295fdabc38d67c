//! Context parallelism: each rank holds one block of a long sequence. Its queries stay where they are, while the keys and
//! values of all blocks go around a ring.
//!
//! This is ring attention (H. Liu, M. Zaharia, and P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
//! Context", 2023, arXiv 2310.01889).

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use grouping::ring::shift;
use lab::Attention;

/// Passes the blocks of all ranks around the ring. `own` is this rank's block, which is ready on the compute stream.
/// `fold(block, keys_values)` enqueues work on the compute stream that reads the block of rank `block`.
///
/// If `causal`, the queries of a rank don't see the blocks of higher ranks. Afterwards, the contents of `own` are unspecified. Enqueues everything and
/// returns immediately; later work on the compute stream runs after it. All blocks have the same length, and cudarc's event
/// tracking is off. Every rank must call it.
///
/// # Errors
/// Returns any error from `fold`, [`shift`], or the driver.
pub fn around_the_ring(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    own: &mut CudaViewMut<f32>,
    causal: bool,
    mut fold: impl FnMut(usize, &CudaView<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: around_the_ring
    // Fold all blocks that the queries see, while the blocks go around the ring:
    // 1. each of these blocks is folded once, and no other block is;
    // 2. the next block arrives on the communicator's stream while the current one is folded on the compute stream;
    // 3. a rank has room for two blocks, in `own` and in one more buffer; a block stays until it has been folded and sent;
    // 4. the blocks move only through `shift`, with at most `world_size - 1` calls on each rank;
    // 5. the host waits for nothing.
    let (stream, rank, world_size) = (comm.stream(), comm.rank(), comm.world_size());
    let mut other = compute.alloc_zeros::<f32>(own.len())?;
    let mut buffers = [own.slice_mut(..), other.as_view_mut()];
    for step in 0..world_size {
        let [current, next] = &mut buffers;
        let arrived = stream.record_event(None)?;
        if step + 1 < world_size {
            stream.wait(&compute.record_event(None)?)?;
            shift(comm, &current.as_view(), next)?;
        }
        compute.wait(&arrived)?;
        let block = (rank + world_size - step) % world_size;
        if !causal || block <= rank {
            fold(block, &current.as_view())?;
        }
        buffers.swap(0, 1);
    }
    Ok(())
    // ANCHOR_END: around_the_ring
}

/// Computes the attention of this rank's queries to the keys and values of all ranks. A query has `width` elements.
/// `keys_values` has all keys of this rank's block, and then all values; it is overwritten. If `causal`, a query sees only
/// the keys up to its own position in the whole sequence. Otherwise like [`around_the_ring`].
///
/// # Errors
/// Returns any error from [`around_the_ring`] or the driver.
pub fn attend(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    queries: &CudaView<f32>,
    keys_values: &mut CudaViewMut<f32>,
    width: usize,
    causal: bool,
) -> anyhow::Result<Attention> {
    // ANCHOR: attend
    // Compute the attention to the whole sequence:
    // 1. the result is complete, and equals that of one GPU with the whole sequence;
    // 2. only the rank's own block needs a mask: there, a query sees the keys up to its own position.
    let mut attention = Attention::new(compute, queries.len() / width, width)?;
    around_the_ring(comm, compute, keys_values, causal, |block, keys_values| {
        attention.fold(queries, keys_values, causal && block == comm.rank())
    })?;
    attention.finish()?;
    Ok(attention)
    // ANCHOR_END: attend
}
