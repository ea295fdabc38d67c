//! Elastic training: when a rank is lost, the other ranks shrink the communicator and continue, without a restart.
//!
//! No step is lost, and none is taken twice. The remaining ranks divide the whole batch, so training continues exactly as
//! on one GPU.

use std::ops::Range;

use cudarc::driver::{CudaEvent, CudaSlice, CudaView, CudaViewMut};
use lab::{ElasticComm, Kernels};
use multi_gpu::data_parallel::shard;

/// A model that can be trained. A batch has at least one sample for each rank.
pub trait Model {
    /// The number of samples in a batch.
    const SAMPLES: usize;

    /// Enqueues the gradient of the loss, summed over these samples of the step's batch, on the communicator's stream.
    /// Overwrites `gradient`.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn differentiate(
        &self,
        step: u64,
        samples: Range<usize>,
        weights: &CudaView<f32>,
        gradient: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()>;
}

/// Watches the ranks, from outside NCCL.
pub trait Watch {
    /// Waits for an event, but not forever. Returns whether it is complete.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn arrives(&self, event: &CudaEvent) -> anyhow::Result<bool>;

    /// Waits until every remaining rank has called it. Returns the lost ranks, of which there is at least one, by their
    /// numbers in the communicator with `world_size` ranks, where this rank is `rank`.
    ///
    /// # Errors
    /// Fails if a remaining rank does not call it.
    fn lost(&self, rank: usize, world_size: usize) -> anyhow::Result<Vec<usize>>;
}

/// One rank's replica of the weights.
pub struct Replica {
    /// The number of steps that led to these weights.
    pub steps: u64,
    /// The weights.
    pub weights: CudaSlice<f32>,
    gradient: CudaSlice<f32>,
    kernels: Kernels,
}

impl Replica {
    /// Creates a replica with these weights, which are the same on every rank.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn new(comm: &ElasticComm, weights: &[f32]) -> anyhow::Result<Self> {
        let stream = comm.stream();
        Ok(Self {
            steps: 0,
            weights: stream.clone_htod(weights)?,
            gradient: stream.alloc_zeros(weights.len())?,
            kernels: Kernels::load(stream.context())?,
        })
    }

    /// Tries to take a step. Returns whether it was taken. If it was not, `steps` and the weights are as before.
    fn step<M: Model>(
        &mut self,
        comm: &ElasticComm,
        model: &M,
        watch: &impl Watch,
        learning_rate: f32,
    ) -> anyhow::Result<bool> {
        let (stream, rate) = (comm.stream(), learning_rate / M::SAMPLES as f32);
        // ANCHOR: step
        // Take the step that one GPU would take with the whole batch, unless a rank is missing:
        // 1. the ranks of `comm`, whose number may have changed since the last step, divide the samples;
        // 2. the sum of their gradients, times `rate`, is subtracted from the weights;
        // 3. if the sum does not arrive, neither the weights nor `steps` change.
        let samples = shard(0..M::SAMPLES, comm.rank(), comm.world_size());
        let mut gradient = self.gradient.as_view_mut();
        model.differentiate(self.steps, samples, &self.weights.as_view(), &mut gradient)?;
        comm.sum(&mut gradient)?;
        if !watch.arrives(&stream.record_event(None)?)? {
            return Ok(false);
        }
        self.kernels.sgd_step(&stream, &mut self.weights, &self.gradient, rate)?;
        self.steps += 1;
        Ok(true)
        // ANCHOR_END: step
    }

    /// Continues without the lost ranks. Every remaining rank must call it. Returns their communicator.
    fn shrink(&mut self, comm: ElasticComm, watch: &impl Watch) -> anyhow::Result<ElasticComm> {
        // ANCHOR: shrink
        // Shrink the communicator, and make all replicas equal again:
        // 1. nothing waits for the work in flight;
        // 2. the last sum may have arrived on only some of the ranks: then they are one step ahead of the others;
        // 3. afterwards, every rank has the weights and the number of steps of the ranks that are ahead.
        let lost = watch.lost(comm.rank(), comm.world_size())?;
        let comm = comm.shrink(&lost)?;
        let steps = comm.gather(self.steps)?;
        let ahead = (0..steps.len()).max_by_key(|&rank| steps[rank]).unwrap_or(0);
        comm.broadcast(&mut self.weights.as_view_mut(), ahead)?;
        self.steps = steps[ahead];
        Ok(comm)
        // ANCHOR_END: shrink
    }

    /// Trains until `steps` steps are taken, and shrinks the communicator whenever ranks are lost. Returns the last
    /// communicator. Every rank must call it. The sum of the last step arrives on all ranks or on none.
    ///
    /// # Errors
    /// Returns any error from the model, the watch, NCCL, or the driver.
    pub fn train<M: Model>(
        &mut self,
        mut comm: ElasticComm,
        model: &M,
        watch: &impl Watch,
        steps: u64,
        learning_rate: f32,
    ) -> anyhow::Result<ElasticComm> {
        // ANCHOR: train
        // Train until `steps` steps are taken:
        // 1. if a step is not taken, try it again with the remaining ranks;
        // 2. ranks may be lost any number of times.
        while self.steps < steps {
            if !self.step(&comm, model, watch, learning_rate)? {
                comm = self.shrink(comm, watch)?;
            }
        }
        Ok(comm)
        // ANCHOR_END: train
    }
}
