//! Attention over keys and values that come in blocks.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaStream, CudaView};

use crate::Kernels;
use crate::kernels::{Matrix, Running};

/// The attention of a block of queries. Blocks of keys and values are folded into it in any order, and its softmax is computed
/// online: M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867.
///
/// It keeps a result of the queries' size, and never the scores of all keys.
#[derive(Debug)]
pub struct Attention {
    kernels: Kernels,
    stream: Arc<CudaStream>,
    running: Running,
    shape: Matrix,
}

impl Attention {
    /// Creates the attention of `queries` queries with `width` elements each, before it has seen any key. Enqueues its
    /// work on this stream.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn new(stream: &Arc<CudaStream>, queries: usize, width: usize) -> anyhow::Result<Self> {
        let kernels = Kernels::load(stream.context())?;
        let mut maximum = stream.alloc_zeros(queries)?;
        kernels.fill(stream, &mut maximum, f32::NEG_INFINITY)?;
        let running = Running {
            output: stream.alloc_zeros(queries * width)?,
            maximum,
            sum: stream.alloc_zeros(queries)?,
        };
        Ok(Self { kernels, stream: stream.clone(), running, shape: Matrix { rows: queries, columns: width } })
    }

    /// Folds a block of keys and values into the result. `keys_values` has all keys of the block, and then all values. If
    /// `causal`, query `i` sees only the keys up to `i`, which is right if queries and keys are of the same block.
    ///
    /// # Errors
    /// Fails if a length does not match the shape. Also returns any error from the driver.
    pub fn fold(
        &mut self,
        queries: &CudaView<'_, f32>,
        keys_values: &CudaView<'_, f32>,
        causal: bool,
    ) -> anyhow::Result<()> {
        ensure!(
            !causal || keys_values.len() == 2 * queries.len(),
            "a causal block has as many keys as queries, but there are {} elements of queries, and {} of keys and values",
            queries.len(),
            keys_values.len()
        );
        self.kernels.attend(&self.stream, &mut self.running, queries, keys_values, self.shape, causal)
    }

    /// Completes the result, after all blocks were folded.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        let Running { output, sum, .. } = &mut self.running;
        self.kernels.divide_rows(&self.stream, output, sum, self.shape)
    }

    /// Returns the result, with one row for each query.
    pub fn output(&self) -> CudaView<'_, f32> {
        self.running.output.as_view()
    }
}
