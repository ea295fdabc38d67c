//! The stages for [`interleave`](crate::interleave) and [`depth`](crate::depth) with real work, each between two
//! events, so that the programs can draw them.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::timeline::{Kind, Span};
use lab::{Expected, Kernels, Readable, Timeline, irregular};

use crate::interleave::Stages;

/// The amount of work in a pipeline.
#[derive(Clone, Copy)]
pub struct Load {
    /// The number of iterations.
    pub iterations: usize,
    /// The number of elements in each iteration's buffer.
    pub elements: usize,
    /// The number of elements that are summed, in even and in odd iterations.
    pub summed: [usize; 2],
    /// How many times preprocessing and postprocessing each pass over the buffer.
    pub work: [usize; 2],
}

/// The stages of one rank.
pub struct Work<'a> {
    comm: &'a Comm,
    compute: Arc<CudaStream>,
    kernels: Kernels,
    inputs: Vec<CudaSlice<f32>>,
    /// Where postprocessing copies the results in a pipeline that reuses its buffers. Empty if each iteration has its own buffer.
    outputs: Vec<CudaSlice<f32>>,
    timeline: Timeline,
    load: Load,
}

/// Returns the name of a stage's span.
pub fn named(stage: &str, iteration: usize) -> String {
    format!("{stage} {iteration}")
}

/// Returns a rank's data for an iteration: integers, so that no sum is rounded.
fn input(rank: usize, iteration: usize, len: usize) -> Vec<f32> {
    irregular::integers(100 * iteration + rank, len)
}

impl<'a> Work<'a> {
    /// Uploads the inputs, and runs every stage once: the first use of a kernel loads it, and the first collective sets
    /// up connections. None of this appears in the timeline.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    pub fn new(comm: &'a Comm, compute: &Arc<CudaStream>, load: Load) -> anyhow::Result<Self> {
        let inputs = (0..load.iterations)
            .map(|at| Ok(compute.clone_htod(&input(comm.rank(), at, load.elements))?))
            .collect::<anyhow::Result<_>>()?;
        let mut buffer = compute.alloc_zeros::<f32>(load.elements)?;
        let kernels = Kernels::load(comm.context())?;
        let (compute, timeline) = (compute.clone(), Timeline::start(compute)?);
        let mut work = Self { comm, compute, kernels, inputs, outputs: Vec::new(), timeline, load };
        let mut view = buffer.as_view_mut();
        work.preprocess(0, &mut view)?;
        work.compute.synchronize()?;
        work.all_reduce(0, &mut view)?;
        comm.stream().synchronize()?;
        drop(buffer);
        work.timeline = Timeline::start(&work.compute)?;
        Ok(work)
    }

    /// Like [`new`](Self::new), but postprocessing also copies each result to an output.
    ///
    /// # Errors
    /// Fails like [`new`](Self::new).
    pub fn with_outputs(comm: &'a Comm, compute: &Arc<CudaStream>, load: Load) -> anyhow::Result<Self> {
        let outputs = (0..load.iterations).map(|_| Ok(compute.alloc_zeros::<f32>(load.elements)?));
        let outputs = outputs.collect::<anyhow::Result<_>>()?;
        Ok(Self { outputs, ..Self::new(comm, compute, load)? })
    }

    /// Returns when each stage ran. Waits until all stages are done.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn spans(&self) -> anyhow::Result<Vec<Span>> {
        self.timeline.spans()
    }

    /// Compares every element of the outputs.
    ///
    /// # Errors
    /// Fails if an element is wrong. The error describes the first one, with its rank, iteration, and index.
    pub fn verify_outputs(&self) -> anyhow::Result<()> {
        self.verify(&self.outputs)
    }

    /// Compares every element of these results, with one buffer per iteration.
    ///
    /// # Errors
    /// Fails like [`verify_outputs`](Self::verify_outputs).
    pub fn verify(&self, results: &[CudaSlice<f32>]) -> anyhow::Result<()> {
        let (got, expected) = (results.len(), self.load.iterations);
        ensure!(got == expected, "expected {expected} results, one for each iteration, but got {got}");
        for (iteration, result) in results.iter().enumerate() {
            let name = format!("the result of iteration {iteration}");
            Expected::new(self.comm.rank(), &name, &self.serial(iteration))
                .exactly(&self.compute.clone_dtoh(result)?)?;
        }
        Ok(())
    }

    /// Returns the serial result: (passes before + 1) · (sum of all ranks' inputs, where it is summed) + passes after ·
    /// own input.
    fn serial(&self, iteration: usize) -> Vec<f32> {
        let Load { elements, summed, work: [before, behind], .. } = self.load;
        let own = input(self.comm.rank(), iteration, elements);
        let mut expected = own.clone();
        for rank in (0..self.comm.world_size()).filter(|&rank| rank != self.comm.rank()) {
            let other = input(rank, iteration, summed[iteration % 2]);
            expected.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
        }
        expected.iter_mut().zip(own).for_each(|(x, own)| *x = (before + 1) as f32 * *x + behind as f32 * own);
        expected
    }
}

impl Stages for Work<'_> {
    fn preprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let Self { compute, kernels, inputs, timeline, load, .. } = self;
        let input = &inputs[iteration];
        timeline.record(compute, Kind::Compute, named("pre", iteration), || {
            compute.memcpy_dtod(input, buffer)?;
            (0..load.work[0]).try_for_each(|_| kernels.axpy(compute, buffer, input, 1.0))
        })
    }

    fn all_reduce(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let Self { comm, timeline, load, .. } = self;
        let mut summed = buffer.slice_mut(..load.summed[iteration % 2]);
        timeline.record(&comm.stream(), Kind::Communication, named("sum", iteration), || {
            comm.all_reduce_in_place(&mut summed, &ReduceOp::Sum).readable()?;
            Ok(())
        })
    }

    fn postprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let Self { compute, kernels, inputs, outputs, timeline, load, .. } = self;
        let input = &inputs[iteration];
        timeline.record(compute, Kind::Compute, named("post", iteration), || {
            (0..load.work[1]).try_for_each(|_| kernels.axpy(compute, buffer, input, 1.0))?;
            if let Some(output) = outputs.get_mut(iteration) {
                compute.memcpy_dtod(buffer, output)?;
            }
            Ok(())
        })
    }
}
