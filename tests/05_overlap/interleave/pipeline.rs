//! One rank's pipeline: stages with a known result, each delayed by a spin and measured with events.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::timeline::timed;
use lab::{Expected, Guarded, Kernels, Readable, irregular};

use crate::overlap::interleave::{Stages, interleave};

/// How long each stage spins before it works, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delays {
    pub(super) preprocess: u64,
    pub(super) all_reduce: u64,
    pub(super) postprocess: u64,
}

/// When a stage ran, in milliseconds since the pipeline was created.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) start: f32,
    pub(super) end: f32,
}

/// The events around one stage of one iteration.
struct Mark {
    start: CudaEvent,
    end: CudaEvent,
}

/// One rank's stages. The result of iteration i is 3 · (sum over the ranks of 2 · input) + own input.
pub(super) struct Pipeline<'a> {
    comm: &'a Comm,
    pub(super) compute: Arc<CudaStream>,
    kernels: Kernels,
    inputs: Vec<CudaSlice<f32>>,
    delays: Delays,
    origin: CudaEvent,
    preprocessed: Vec<Mark>,
    reduced: Vec<Mark>,
    /// For each preprocessing stage, whether the last all-reduce was done when it was enqueued.
    was_over: Vec<bool>,
    len: usize,
}

/// Returns a rank's input for an iteration.
fn input(rank: usize, iteration: usize, len: usize) -> Vec<f32> {
    irregular::integers(10 * iteration + rank, len)
}

/// Returns the initial values of an iteration's buffer.
fn stale(rank: usize, iteration: usize, len: usize) -> Vec<f32> {
    irregular::integers(10_000 + 10 * iteration + rank, len)
}

/// Warms up: the first use of a kernel loads it, and the first collective sets up connections. Both may block the host
/// and wait for the GPU.
fn warm_up(comm: &Comm, compute: &Arc<CudaStream>, kernels: &Kernels, len: usize) -> anyhow::Result<()> {
    let (mut one, other) = (compute.alloc_zeros::<f32>(len)?, compute.alloc_zeros::<f32>(len)?);
    kernels.spin(compute, 0)?;
    kernels.scale(compute, &mut one, 1.0)?;
    kernels.axpy(compute, &mut one, &other, 1.0)?;
    compute.synchronize()?;
    comm.all_reduce_in_place(&mut one, &ReduceOp::Sum).readable()?;
    Ok(comm.stream().synchronize()?)
}

impl<'a> Pipeline<'a> {
    /// Creates a pipeline with `iterations` inputs of `len` elements. Disables event tracking, so that only the
    /// exercise orders the work.
    pub(super) fn new(comm: &'a Comm, iterations: usize, len: usize, delays: Delays) -> anyhow::Result<Self> {
        // SAFETY: events or a synchronize call must order all uses on different streams; the check verifies this.
        let compute = unsafe { lab::untracked_compute_stream(comm)? };
        let inputs = (0..iterations).map(|i| Ok(compute.clone_htod(&input(comm.rank(), i, len))?));
        let inputs = inputs.collect::<anyhow::Result<_>>()?;
        let kernels = Kernels::load(comm.context())?;
        warm_up(comm, &compute, &kernels, len)?;
        let origin = timed(&compute)?;
        let (preprocessed, reduced, was_over) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { comm, compute, kernels, inputs, delays, origin, preprocessed, reduced, was_over, len })
    }

    /// Runs the pipeline on buffers created on `owner`, without reading them.
    pub(super) fn run(&mut self, owner: &Arc<CudaStream>) -> anyhow::Result<Vec<Guarded<f32>>> {
        let rank = self.comm.rank();
        let mut buffers = Vec::new();
        for iteration in 0..self.inputs.len() {
            buffers.push(Guarded::new(owner, &stale(rank, iteration, self.len))?);
        }
        owner.synchronize()?;
        let (compute, comm) = (self.compute.clone(), self.comm.stream());
        let mut views: Vec<_> = buffers.iter_mut().map(Guarded::view_mut).collect();
        interleave(&compute, &comm, self, &mut views)?;
        Ok(buffers)
    }

    /// Compares each buffer with the serial result, and reads it on its owner's stream.
    pub(super) fn compare(&self, buffers: &[Guarded<f32>]) -> anyhow::Result<()> {
        let (rank, world_size) = (self.comm.rank(), self.comm.world_size());
        for (iteration, buffer) in buffers.iter().enumerate() {
            let inputs: Vec<_> = (0..world_size).map(|rank| input(rank, iteration, self.len)).collect();
            let own = &inputs[rank];
            let each = |value: &dyn Fn(usize) -> f32| -> Vec<f32> { (0..self.len).map(value).collect() };
            let sum = |index: usize| inputs.iter().map(|input| 2.0 * input[index]).sum::<f32>();
            // Integers below 2²⁴ are exact in an f32.
            let expected = each(&|index| 3.0 * sum(index) + own[index]);
            Expected::new(
                rank,
                &format!("the buffer of iteration {iteration} of {}", buffers.len()),
                &expected,
            )
            .if_instead(&stale(rank, iteration, self.len), "it holds its old values")
            .if_instead(&each(&sum), "this is the sum, without the postprocessing")
            .if_instead(
                &each(&|index| 7.0 * own[index]),
                "these are only this rank's values: the other ranks' values are missing",
            )
            .if_instead(
                &each(&|index| 3.5 * sum(index)),
                "the sum includes values that had already been postprocessed",
            )
            .exactly(&buffer.read()?)?;
        }
        Ok(())
    }

    /// Returns whether the last all-reduce was done when this preprocessing stage was enqueued.
    pub(super) fn was_over(&self, preprocessing: usize) -> bool {
        self.was_over.get(preprocessing).copied().unwrap_or(false)
    }

    /// Waits for both streams, and returns when the preprocessing and the all-reduce of each iteration ran.
    pub(super) fn intervals(&self) -> anyhow::Result<(Vec<Interval>, Vec<Interval>)> {
        let measured = |marks: &[Mark]| -> anyhow::Result<Vec<Interval>> {
            let since = |event: &CudaEvent| self.origin.elapsed_ms(event);
            marks
                .iter()
                .map(|mark| Ok(Interval { start: since(&mark.start)?, end: since(&mark.end)? }))
                .collect()
        };
        Ok((measured(&self.preprocessed)?, measured(&self.reduced)?))
    }
}

impl Stages for Pipeline<'_> {
    fn preprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let last = self.reduced.last().map(|mark| mark.end.try_is_complete()).transpose()?;
        self.was_over.push(last.unwrap_or(false));
        let start = timed(&self.compute)?;
        self.kernels.spin(&self.compute, self.delays.preprocess)?;
        self.compute.memcpy_dtod(&self.inputs[iteration], buffer)?;
        self.kernels.scale(&self.compute, buffer, 2.0)?;
        self.preprocessed.push(Mark { start, end: timed(&self.compute)? });
        Ok(())
    }

    fn all_reduce(&mut self, _iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let stream = self.comm.stream();
        let start = timed(&stream)?;
        self.kernels.spin(&stream, self.delays.all_reduce)?;
        self.comm.all_reduce_in_place(buffer, &ReduceOp::Sum).readable()?;
        self.reduced.push(Mark { start, end: timed(&stream)? });
        Ok(())
    }

    fn postprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        self.kernels.spin(&self.compute, self.delays.postprocess)?;
        self.kernels.scale(&self.compute, buffer, 3.0)?;
        self.kernels.axpy(&self.compute, buffer, &self.inputs[iteration], 1.0)
    }
}
