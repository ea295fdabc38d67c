//! Fully sharded data parallelism: each rank stores a shard of every layer, and has whole layers only while it uses them.
//!
//! This is stage 3 of ZeRO (S. Rajbhandari and others, 2020, arXiv 1910.02054), as in PyTorch's FSDP (Y. Zhao and others, "PyTorch FSDP:
//! Experiences on Scaling Fully Sharded Data Parallel", 2023, arXiv 2304.11277).

use std::sync::Arc;

use collectives::all_gather::all_gather;
use collectives::reduce_scatter::average_part;
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::Momentum;

/// The fraction of a velocity that each step keeps.
const MOMENTUM: f32 = 0.5;

/// The layers of a model. Each call enqueues work on the compute stream, and returns immediately.
pub trait Layers {
    /// Computes the outputs of a layer from those of the layer before it.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn forward(&mut self, layer: usize, parameters: &CudaView<f32>) -> anyhow::Result<()>;

    /// Computes the gradient of a layer's parameters, and that of its inputs for the layer before it. Overwrites `gradient`, which is as
    /// long as `parameters`.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn backward(
        &mut self,
        layer: usize,
        parameters: &CudaView<f32>,
        gradient: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()>;
}

/// One rank's shards of all layers. Both of its streams are on one GPU, and cudarc's event tracking is off.
pub struct Fsdp {
    compute: Arc<CudaStream>,
    world_size: usize,
    /// For each layer, this rank's shard of the parameters.
    pub shards: Vec<CudaSlice<f32>>,
    /// For each layer, this rank's shard of the averaged gradient.
    gradients: Vec<CudaSlice<f32>>,
    /// For each layer, the optimizer of this rank's shard.
    optimizers: Vec<Momentum>,
    /// Room for the parameters of two layers. Layer `l` uses buffer `l % 2`.
    whole: [CudaSlice<f32>; 2],
    /// Room for the gradients of two layers. Layer `l` uses buffer `l % 2`.
    whole_gradients: [CudaSlice<f32>; 2],
}

impl Fsdp {
    /// Shards these layers, of which there is at least one. Every rank passes the same parameters. Each layer is padded with zeros, so that
    /// all ranks have shards of the same length, in rank order.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn new(comm: &Comm, compute: &Arc<CudaStream>, layers: &[Vec<f32>]) -> anyhow::Result<Self> {
        let (rank, world_size) = (comm.rank(), comm.world_size());
        let (mut shards, mut gradients, mut optimizers) = (Vec::new(), Vec::new(), Vec::new());
        for layer in layers {
            let len = layer.len().div_ceil(world_size);
            let mut padded = layer.clone();
            padded.resize(len * world_size, 0.0);
            shards.push(compute.clone_htod(&padded[rank * len..(rank + 1) * len])?);
            gradients.push(compute.alloc_zeros(len)?);
            optimizers.push(Momentum::new(compute, len, MOMENTUM)?);
        }
        let longest = shards.iter().map(CudaSlice::len).max().unwrap_or_default() * world_size;
        let two = || anyhow::Ok([compute.alloc_zeros(longest)?, compute.alloc_zeros(longest)?]);
        let (whole, whole_gradients) = (two()?, two()?);
        Ok(Self {
            compute: compute.clone(),
            world_size,
            shards,
            gradients,
            optimizers,
            whole,
            whole_gradients,
        })
    }

    /// Returns the length of a whole layer, with its padding.
    pub fn whole_len(&self, layer: usize) -> usize {
        self.shards[layer].len() * self.world_size
    }

    /// Takes one step with the average of the ranks' gradients. Every rank must call it, with a model that computes on the compute stream.
    /// Returns without waiting for the GPU.
    ///
    /// # Errors
    /// Returns any error from the model, NCCL, or the driver.
    pub fn step(&mut self, comm: &Comm, model: &mut impl Layers, learning_rate: f32) -> anyhow::Result<()> {
        self.forward(comm, model)?;
        self.backward(comm, model)?;
        for ((optimizer, shard), gradient) in
            self.optimizers.iter_mut().zip(&mut self.shards).zip(&self.gradients)
        {
            optimizer.step(&mut shard.as_view_mut(), &gradient.as_view(), learning_rate)?;
        }
        Ok(())
    }

    /// Enqueues the gather of a whole layer on the communicator's stream. Returns an event that is complete when the layer is there.
    fn gather(&mut self, comm: &Comm, layer: usize) -> anyhow::Result<CudaEvent> {
        // ANCHOR: gather
        // Gather the layer's shards in the layer's buffer:
        // 1. the gather starts after all work that is on the compute stream by now, which may still use the buffer;
        // 2. the buffer then starts with the whole layer: `whole_len` elements;
        // 3. nothing is allocated, and the host does not wait.
        let (stream, len) = (comm.stream(), self.whole_len(layer));
        stream.wait(&self.compute.record_event(None)?)?;
        let mut whole = self.whole[layer % 2].slice_mut(..len);
        all_gather(comm, &self.shards[layer].as_view(), &mut whole)?;
        Ok(stream.record_event(None)?)
        // ANCHOR_END: gather
    }

    /// Enqueues the forward pass.
    fn forward(&mut self, comm: &Comm, model: &mut impl Layers) -> anyhow::Result<()> {
        let layers = self.shards.len();
        // ANCHOR: forward
        // Run all layers in order, each with its whole parameters:
        // 1. each layer is gathered once, and computes after its own gather;
        // 2. while a layer computes, the next layer is gathered; later layers are not, because their buffer is in use;
        // 3. the model gets a view of exactly `whole_len` elements.
        let mut gathered = self.gather(comm, 0)?;
        for layer in 0..layers {
            self.compute.wait(&gathered)?;
            if layer + 1 < layers {
                gathered = self.gather(comm, layer + 1)?;
            }
            let whole = self.whole[layer % 2].slice(..self.whole_len(layer));
            model.forward(layer, &whole)?;
        }
        Ok(())
        // ANCHOR_END: forward
    }

    /// Enqueues the backward pass. Leaves the averaged gradient of this rank's shards in `gradients`.
    fn backward(&mut self, comm: &Comm, model: &mut impl Layers) -> anyhow::Result<()> {
        let layers = self.shards.len();
        // ANCHOR: backward
        // Run all layers in reverse order, and average their gradients:
        // 1. the last layer is still in its buffer; each other layer is gathered while the layer after it computes;
        // 2. a layer's gradient is written to `whole_gradients[layer % 2]`; then each rank gets the average of its shard;
        // 3. this average can run while the next layer computes, but its buffer must not be overwritten before it is done;
        // 4. work that is enqueued on the compute stream after this call starts after all averages.
        for layer in (0..layers).rev() {
            let next = layer.checked_sub(1).map(|next| self.gather(comm, next)).transpose()?;
            let (slot, len) = (layer % 2, self.whole_len(layer));
            let mut gradient = self.whole_gradients[slot].slice_mut(..len);
            model.backward(layer, &self.whole[slot].slice(..len), &mut gradient)?;
            comm.stream().wait(&self.compute.record_event(None)?)?;
            average_part(comm, &gradient.as_view(), &mut self.gradients[layer].as_view_mut())?;
            let last = comm.stream().record_event(None)?;
            self.compute.wait(&next.unwrap_or(last))?;
        }
        Ok(())
        // ANCHOR_END: backward
    }
}
