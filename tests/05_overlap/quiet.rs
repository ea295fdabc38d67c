//! Stages and a model that make no CUDA calls, or only spin, so that a check counts only the exercise's calls.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use lab::{Trainable, ensure};

use super::training::{LENGTHS, layout};
use super::two_streams::Rank;
use crate::overlap::interleave::Stages;

/// The stages of a pipeline. They only record their iterations.
pub(super) struct QuietStages<'a> {
    rank: &'a Rank,
    /// Whether each stage enqueues a kernel, so that it can fail.
    works: bool,
    iterations: [Vec<usize>; 3],
}

const STAGES: [&str; 3] = ["preprocess", "all_reduce", "postprocess"];

impl<'a> QuietStages<'a> {
    pub(super) fn new(rank: &'a Rank) -> Self {
        Self { rank, works: false, iterations: Default::default() }
    }

    /// Creates stages that each enqueue a kernel without memory accesses.
    pub(super) fn at_work(rank: &'a Rank) -> Self {
        Self { works: true, ..Self::new(rank) }
    }

    fn note(&mut self, stage: usize, iteration: usize, stream: &CudaStream) -> anyhow::Result<()> {
        self.iterations[stage].push(iteration);
        if self.works { self.rank.kernels.spin(stream, 0) } else { Ok(()) }
    }

    /// Checks that each stage ran once per iteration. The iterations of different buffers may be postprocessed in any
    /// order.
    pub(super) fn compare(&self, function: &str, iterations: usize) -> anyhow::Result<()> {
        let expected: Vec<usize> = (0..iterations).collect();
        for (stage, found) in STAGES.iter().zip(&self.iterations) {
            let mut sorted = found.clone();
            sorted.sort_unstable();
            ensure!(
                sorted == expected,
                "rank {}: `{function}` with {iterations} iterations called `{stage}` for iterations {found:?}; \
                 expected {expected:?}",
                self.rank.number()
            );
        }
        Ok(())
    }
}

impl Stages for QuietStages<'_> {
    fn preprocess(&mut self, iteration: usize, _: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        self.note(0, iteration, &self.rank.compute)
    }

    fn all_reduce(&mut self, iteration: usize, _: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        self.note(1, iteration, &self.rank.comm.stream())
    }

    fn postprocess(&mut self, iteration: usize, _: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        self.note(2, iteration, &self.rank.compute)
    }
}

/// A model whose passes compute nothing.
pub(super) struct QuietModel<'a> {
    rank: &'a Rank,
    layout: Vec<Range<usize>>,
    gradients: CudaSlice<f32>,
    /// Whether each pass enqueues a kernel, so that it can fail.
    works: bool,
    /// The number of optimizer steps.
    pub(super) steps: usize,
}

impl<'a> QuietModel<'a> {
    /// The parameters whose hooks are called, in the order of the calls. The first, the fourth, and the last parameter
    /// are unused.
    pub(super) const USED: [usize; 3] = [4, 2, 1];

    pub(super) fn new(rank: &'a Rank) -> anyhow::Result<Self> {
        let gradients = rank.compute.alloc_zeros(LENGTHS.iter().sum())?;
        rank.synchronize()?;
        Ok(Self { rank, layout: layout(&LENGTHS), gradients, works: false, steps: 0 })
    }

    /// Creates a model whose passes enqueue kernels without memory accesses.
    pub(super) fn at_work(rank: &'a Rank) -> anyhow::Result<Self> {
        Ok(Self { works: true, ..Self::new(rank)? })
    }

    fn work(&self) -> anyhow::Result<()> {
        if self.works { self.rank.kernels.spin(&self.rank.compute, 0) } else { Ok(()) }
    }
}

impl Trainable for QuietModel<'_> {
    fn stream(&self) -> &Arc<CudaStream> {
        &self.rank.compute
    }

    fn layout(&self) -> &[Range<usize>] {
        &self.layout
    }

    fn gradients_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.gradients.as_view_mut()
    }

    fn backward(
        &mut self,
        mut ready: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.work()?;
        Self::USED.into_iter().try_for_each(|parameter| ready(parameter, &mut self.gradients.as_view_mut()))
    }

    fn descend(&mut self) -> anyhow::Result<()> {
        self.steps += 1;
        self.work()
    }
}
