//! A training step whose work is recorded between events, so that it can be drawn.

use std::ops::Range;
use std::sync::Arc;

use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaStream, CudaViewMut};
use cudarc::nccl::Comm;
use lab::timeline::{Kind, Span};
use lab::{Network, Timeline, Trainable};

/// A model whose gradients can also be averaged after the backward pass.
pub(crate) trait Model: Trainable {
    /// Computes every layer's outputs. Returns at once.
    fn forward(&mut self) -> anyhow::Result<()>;

    /// Averages this part of the gradients over all ranks, on the communicator's stream. Returns at once.
    fn average(&mut self, comm: &Comm, part: Range<usize>) -> anyhow::Result<()> {
        average_in_place(comm, &mut self.gradients_mut().slice_mut(part))
    }
}

impl Model for Network {
    fn forward(&mut self) -> anyhow::Result<()> {
        Self::forward(self)
    }
}

/// A network that records when it computes and when it communicates.
pub(crate) struct Recorded<'a> {
    network: &'a mut Network,
    comm: &'a Comm,
    layers: usize,
    /// For each parameter, the name of the all-reduce that its hook starts, if it starts one.
    calls: Vec<Option<String>>,
    timeline: Timeline,
}

/// The name of the optimizer's step, the only work in the compute stream that waits.
const STEP: &str = "step";

impl<'a> Recorded<'a> {
    /// Creates a network with nothing recorded yet. `calls` has, for each parameter, the name of the all-reduce that
    /// its hook starts.
    pub(crate) fn new(
        network: &'a mut Network,
        comm: &'a Comm,
        layers: usize,
        calls: Vec<Option<String>>,
    ) -> anyhow::Result<Self> {
        let timeline = Timeline::start(network.stream())?;
        Ok(Self { network, comm, layers, calls, timeline })
    }

    /// Returns when everything ran. Waits for the GPU.
    ///
    /// Each layer's part of the backward pass ends at a mark in the compute stream, and starts where the stream's previous work
    /// ends.
    pub(crate) fn spans(&self) -> anyhow::Result<Vec<Span>> {
        let mut spans = self.timeline.spans()?;
        let mut before = 0.0;
        for span in spans.iter_mut().filter(|span| span.kind == Kind::Compute) {
            if span.name != STEP {
                span.start = before;
            }
            before = span.end;
        }
        Ok(spans)
    }
}

impl Model for Recorded<'_> {
    fn forward(&mut self) -> anyhow::Result<()> {
        let Self { network, timeline, .. } = self;
        timeline.record(&network.stream().clone(), Kind::Compute, "forward", || network.forward())
    }

    fn average(&mut self, comm: &Comm, part: Range<usize>) -> anyhow::Result<()> {
        let Self { network, timeline, .. } = self;
        let name = format!("gradients {} to {}", part.start, part.end);
        timeline.record(&comm.stream(), Kind::Communication, name, || network.average(comm, part))
    }
}

impl Trainable for Recorded<'_> {
    fn stream(&self) -> &Arc<CudaStream> {
        self.network.stream()
    }

    fn layout(&self) -> &[Range<usize>] {
        self.network.layout()
    }

    fn gradients_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.network.gradients_mut()
    }

    fn backward(
        &mut self,
        mut ready: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Self { network, comm, layers, calls, timeline } = self;
        let (compute, communication) = (network.stream().clone(), comm.stream());
        let in_each = calls.len() / *layers;
        // A step with hooks clears the gradients first.
        if calls.iter().any(Option::is_some) {
            timeline.record(&compute, Kind::Compute, "clear", || Ok(()))?;
        }
        network.backward(|parameter, gradients| {
            if parameter % in_each == 0 {
                let name = format!("back {}", parameter / in_each);
                timeline.record(&compute, Kind::Compute, name, || Ok(()))?;
            }
            let Some(name) = &calls[parameter] else { return ready(parameter, gradients) };
            // Without this wait, the span would begin when the previous all-reduce ends, even if its gradients aren't
            // ready yet.
            communication.wait(&compute.record_event(None)?)?;
            timeline.record(&communication, Kind::Communication, name, || ready(parameter, gradients))
        })
    }

    fn descend(&mut self) -> anyhow::Result<()> {
        let Self { network, timeline, .. } = self;
        timeline.record(&network.stream().clone(), Kind::Compute, STEP, || network.descend())
    }
}
