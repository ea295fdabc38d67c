//! Train a small GPT on all GPUs of a node, in your own way.
//!
//! Everything in this file is yours, except for the signatures of `Trainer`'s functions that are `pub`. What is here
//! suits data parallelism with a sharded optimizer. For another design, replace it.

use std::sync::Arc;

use collectives::all_gather::all_gather;
use collectives::all_reduce::average_in_place;
use collectives::reduce_scatter::average_part;
use cudarc::driver::{CudaSlice, CudaStream};
use cudarc::nccl::Comm;
use lab::gpt::Batch;
use lab::{Gpt, GptShape};

/// The fraction of its velocity that a parameter keeps in each step.
const MOMENTUM: f32 = 0.5;
/// The learning rate.
const LEARNING_RATE: f32 = 0.25;

/// One rank's part of the training.
pub struct Trainer {
    comm: Comm,
    gpt: Gpt,
    layers: Vec<Layer>,
    /// The number of sequences of the batch that are this rank's.
    share: usize,
}

/// A layer, padded with zeros so that all ranks have shards of the same length.
struct Layer {
    /// The number of parameters without padding.
    len: usize,
    weights: CudaSlice<f32>,
    gradient: CudaSlice<f32>,
    /// This rank's shards of the weights, of the average gradient, and of the velocities.
    shard: CudaSlice<f32>,
    average: CudaSlice<f32>,
    velocity: CudaSlice<f32>,
}

impl Layer {
    fn new(comm: &Comm, stream: &Arc<CudaStream>, weights: &[f32]) -> anyhow::Result<Self> {
        let (rank, len) = (comm.rank(), weights.len().div_ceil(comm.world_size()));
        let mut padded = weights.to_vec();
        padded.resize(len * comm.world_size(), 0.0);
        Ok(Self {
            len: weights.len(),
            weights: stream.clone_htod(&padded)?,
            gradient: stream.alloc_zeros(padded.len())?,
            shard: stream.clone_htod(&padded[rank * len..(rank + 1) * len])?,
            average: stream.alloc_zeros(len)?,
            velocity: stream.alloc_zeros(len)?,
        })
    }
}

impl Trainer {
    /// Prepares the training of a model with these weights, in batches of this number of sequences. Every rank passes
    /// the same. The number of ranks is 1, 2, or 4, and divides the sequences, the heads, and the hidden units.
    /// cudarc's event tracking is off.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    pub fn new(comm: Comm, shape: GptShape, sequences: usize, weights: &[f32]) -> anyhow::Result<Self> {
        // ANCHOR: new
        // Give this rank its part of the model and of the work:
        // 1. the design is yours: what each rank stores, and what it computes;
        // 2. after this call, the first step can begin;
        // 3. you may change the fields of `Trainer`.
        todo!("Give this rank its part of the model and of the work")
        // ANCHOR_END: new
    }

    /// Takes a step with momentum on the gradient of the mean loss of the whole batch, which every rank passes.
    /// Returns the mean loss before the step, on every rank. Every rank must call it.
    ///
    /// # Errors
    /// Returns any error from the model, NCCL, or the driver.
    pub fn step(&mut self, batch: &Batch) -> anyhow::Result<f32> {
        // ANCHOR: step
        // Take the step that one GPU with the whole batch takes:
        // 1. `velocity = MOMENTUM · velocity + gradient`, and `weights -= LEARNING_RATE · velocity`;
        // 2. every rank returns the mean loss over the whole batch;
        // 3. rounding may differ from one GPU's, but nothing else.
        todo!("Take the step that one GPU with the whole batch takes")
        // ANCHOR_END: step
    }

    /// Returns the weights of the whole model in the order of [`GptShape`], the same on every rank. Every rank must
    /// call it.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    pub fn weights(&mut self) -> anyhow::Result<Vec<f32>> {
        // ANCHOR: weights
        // Return the current weights:
        // 1. every rank returns the whole model, without any padding;
        // 2. all ranks return the same bits;
        // 3. training can continue afterwards.
        todo!("Return the current weights")
        // ANCHOR_END: weights
    }
}

/// Updates a layer's weights on the communicator's stream, while the model computes the gradients of the layers before
/// it.
fn update(comm: &Comm, gpt: &Gpt, layer: &mut Layer) -> anyhow::Result<()> {
    // ANCHOR: update
    // Update the layer from the ranks' gradients, which the compute stream has by now:
    // 1. this function belongs to the design of the starter, and another design may not need it;
    // 2. each rank averages, steps, and keeps the velocities of only its shard;
    // 3. afterwards, every rank has all weights of the layer.
    todo!("Update the layer from the ranks' gradients, which the compute stream has by now")
    // ANCHOR_END: update
}
