//! Sequence parallelism: between the tensor-parallel layers, each rank has some of the tokens instead of a copy of all.
//!
//! This is from V. Korthikanti and others, "Reducing Activation Recomputation in Large Transformer Models", 2022, arXiv 2205.05198.

use std::sync::Arc;

use collectives::all_gather::all_gather;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::kernels::{Dropout, Matrix};
use lab::{Kernels, Mlp, Readable};
use multi_gpu::tensor_forward::column_parallel;

/// The shape of the whole sequence. The world size divides the number of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// The number of tokens in the whole sequence.
    pub tokens: usize,
    /// The number of values per token.
    pub width: usize,
}

/// One rank's part of a transformer's MLP block, which computes `tokens + dropout(mlp(norm(tokens)))`.
pub struct Block {
    /// This rank's part of two layers: the first layer's columns and the second layer's rows, as in module 04. The second layer has the
    /// whole bias.
    pub mlp: Mlp,
    /// The norm of this rank's tokens. The backward pass will need it.
    pub normed: CudaSlice<f32>,
    /// Room for values of the whole sequence, for a short time.
    scratch: CudaSlice<f32>,
    kernels: Kernels,
    dropout: Dropout,
    width: usize,
}

impl Block {
    /// Creates this rank's part of a block, in a world of `world_size` ranks. `mlp` has room for all tokens.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn new(
        stream: &Arc<CudaStream>,
        sequence: Sequence,
        world_size: usize,
        mlp: Mlp,
        dropout: Dropout,
    ) -> anyhow::Result<Self> {
        let Sequence { tokens, width } = sequence;
        let kernels = Kernels::load(stream.context())?;
        // ANCHOR: new
        // Allocate the two buffers:
        // 1. `normed` has room for this rank's tokens: every rank has the same number;
        // 2. `scratch` has room for all tokens;
        // 3. each other field gets the variable with its name.
        Ok(Self {
            normed: stream.alloc_zeros(tokens / world_size * width)?,
            scratch: stream.alloc_zeros(tokens * width)?,
            mlp,
            kernels,
            dropout,
            width,
        })
        // ANCHOR_END: new
    }

    /// Computes the block for this rank's tokens. `tokens` and `output` have a row for each of them: rank `r` has the `r`-th part of the
    /// sequence. Every rank must call it. Returns without waiting for the GPU.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    pub fn forward(
        &mut self,
        comm: &Comm,
        tokens: &CudaView<f32>,
        output: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        self.enter(comm, tokens)?;
        column_parallel(&self.mlp.first, &self.scratch.as_view(), &mut self.mlp.hidden.as_view_mut())?;
        self.mlp.relu()?;
        self.leave(comm, output)?;
        self.finish(comm, tokens, output)
    }

    /// Computes the norm of this rank's tokens, and gives every rank the norm of all tokens.
    fn enter(&mut self, comm: &Comm, tokens: &CudaView<f32>) -> anyhow::Result<()> {
        let stream = comm.stream();
        let shape = Matrix { rows: tokens.len() / self.width, columns: self.width };
        // ANCHOR: enter
        // Enter the tensor-parallel layers:
        // 1. `normed` is the norm of this rank's tokens, and no rank computes that of other tokens;
        // 2. on every rank, `scratch` is the norm of all tokens, in the order of the sequence;
        // 3. one collective, and the host does not wait.
        self.kernels.rms_norm(&stream, &mut self.normed, tokens, shape)?;
        all_gather(comm, &self.normed.as_view(), &mut self.scratch.as_view_mut())
        // ANCHOR_END: enter
    }

    /// Multiplies the hidden units by this rank's rows of the second layer, and gives each rank the sum for its own tokens.
    fn leave(&mut self, comm: &Comm, output: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        // ANCHOR: leave
        // Leave the tensor-parallel layers:
        // 1. `output` is the second layer's output for this rank's tokens, including the bias, which counts once;
        // 2. nothing is allocated: what `scratch` holds is no longer needed;
        // 3. one collective, which sends as much as half an all-reduce of `scratch`, and the host does not wait.
        self.mlp.second.multiply(&self.mlp.hidden.as_view(), &mut self.scratch.as_view_mut())?;
        comm.reduce_scatter(&self.scratch, output, &ReduceOp::Sum).readable()?;
        self.mlp.second.add_bias(output)
        // ANCHOR_END: leave
    }

    /// Applies dropout to the output, and adds the tokens.
    fn finish(
        &mut self,
        comm: &Comm,
        tokens: &CudaView<f32>,
        output: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        let stream = comm.stream();
        // ANCHOR: finish
        // Finish this rank's tokens:
        // 1. each element is dropped if one GPU with the whole sequence drops it;
        // 2. then the tokens are added, of which nothing is dropped;
        // 3. nothing is sent.
        let first = comm.rank() * output.len();
        self.kernels.dropout(&stream, output, self.dropout, first)?;
        self.kernels.axpy(&stream, output, tokens, 1.0)
        // ANCHOR_END: finish
    }
}
