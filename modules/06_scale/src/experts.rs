//! A mixture of experts: each rank holds one expert. A router chooses one expert for each token, and the token goes to
//! that expert's rank and back.
//!
//! No token is dropped, and no message is padded.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::{Comm, NcclType, group_end, group_start};
use lab::{Kernels, Readable};

/// A rank's tokens, ordered by their experts.
pub struct Route {
    /// The tokens' numbers: first those for rank 0's expert, then those for rank 1's, and so on.
    pub order: Vec<u32>,
    /// The number of tokens for each rank's expert.
    pub counts: Vec<usize>,
}

/// A buffer on a GPU that may be empty. Without memory pools, CUDA refuses an allocation of 0 bytes, so an empty buffer
/// has room for one element.
pub struct Buffer<T> {
    memory: CudaSlice<T>,
    len: usize,
}

impl<T: DeviceRepr + ValidAsZeroBits> Buffer<T> {
    /// Allocates a buffer of zeros.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn zeros(stream: &Arc<CudaStream>, len: usize) -> anyhow::Result<Self> {
        Ok(Self { memory: stream.alloc_zeros(len.max(1))?, len })
    }

    /// Copies values to the GPU.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn from_host(stream: &Arc<CudaStream>, values: &[T]) -> anyhow::Result<Self> {
        let mut buffer = Self::zeros(stream, values.len())?;
        stream.memcpy_htod(values, &mut buffer.view_mut())?;
        Ok(buffer)
    }

    /// Borrows the elements for reading.
    pub fn view(&self) -> CudaView<'_, T> {
        self.memory.slice(..self.len)
    }

    /// Borrows the elements for writing.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.memory.slice_mut(..self.len)
    }
}

/// Orders tokens by their experts. Token `i` chose the expert of rank `choices[i]`, which is below `experts`. Tokens with the
/// same expert stay in order.
pub fn route(choices: &[usize], experts: usize) -> Route {
    let mut order: Vec<u32> = (0..choices.len() as u32).collect();
    order.sort_by_key(|&token| choices[token as usize]);
    let count = |expert| choices.iter().filter(|&&choice| choice == expert).count();
    Route { order, counts: (0..experts).map(count).collect() }
}

/// Sends `sent[r]` rows of `outgoing` to each rank `r`, and receives `received[r]` rows from it into `incoming`. A row has
/// `width` elements. Every rank must call it, with counts that match. Returns without waiting for the GPU.
///
/// # Errors
/// Returns any error from NCCL. No group is left open.
pub fn exchange<T: DeviceRepr + NcclType>(
    comm: &Comm,
    outgoing: &CudaView<T>,
    sent: &[usize],
    incoming: &mut CudaViewMut<T>,
    received: &[usize],
    width: usize,
) -> anyhow::Result<()> {
    // ANCHOR: exchange
    // Exchange parts of different lengths with all ranks:
    // 1. both buffers consist of one part for each rank, in rank order and without gaps;
    // 2. a part may be empty, and a rank also has a part for itself;
    // 3. all messages are in one group, and no group is left open, even if one of the calls fails.
    todo!("Exchange parts of different lengths with all ranks")
    // ANCHOR_END: exchange
}

/// Returns how many tokens each rank has for this rank. `counts` are the numbers of this rank's tokens for each rank. Every
/// rank must call it. Waits for the GPU once.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn arriving(comm: &Comm, counts: &[usize]) -> anyhow::Result<Vec<usize>> {
    // ANCHOR: arriving
    // Exchange the counts:
    // 1. element `r` of the result is the number of tokens that rank `r` has for this rank;
    // 2. the numbers travel from GPU to GPU; NCCL has no type for `usize`, but it has one for `u64`;
    // 3. the host waits once.
    todo!("Exchange the counts")
    // ANCHOR_END: arriving
}

/// Sends each token through its expert. Row `i` of `output` becomes the result of the expert of rank `choices[i]` for row `i`
/// of `tokens`. `expert` applies this rank's expert to the rows of a matrix, in place; there may be none. Every rank must call
/// it, even if it has no tokens.
///
/// # Errors
/// Returns any error from `expert`, NCCL, or the driver.
pub fn forward(
    comm: &Comm,
    kernels: &Kernels,
    tokens: &CudaView<f32>,
    choices: &[usize],
    width: usize,
    expert: impl FnOnce(&mut CudaViewMut<f32>) -> anyhow::Result<()>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: forward
    // Send the tokens to their experts and back:
    // 1. row `i` of `output` is the result for row `i` of `tokens`, and `tokens` does not change;
    // 2. tokens are exchanged twice, counts are exchanged once, and nothing is padded;
    // 3. the expert is called once, with the tokens from all ranks;
    // 4. the host waits only for the counts.
    todo!("Send the tokens to their experts and back")
    // ANCHOR_END: forward
}
