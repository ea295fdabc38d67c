//! A step of training whose work stands between events, so that it can be drawn.

use std::ops::Range;
use std::sync::Arc;

use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaStream, CudaViewMut};
use cudarc::nccl::Comm;
use lab::timeline::{Kind, Span};
use lab::{Network, Timeline, Trainable};

/// A model whose gradients can be averaged behind the backward pass, too.
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

/// A network that notes when it computes, and when it communicates.
pub(crate) struct Recorded<'a> {
    network: &'a mut Network,
    comm: &'a Comm,
    layers: usize,
    /// The name of the all-reduce that begins in the hook of each parameter, if one does.
    calls: Vec<Option<String>>,
    timeline: Timeline,
}

/// The name of the optimizer's step, the one piece of work in the compute stream that waits.
const STEP: &str = "step";

impl<'a> Recorded<'a> {
    /// Nothing is noted yet. `calls` are the names of the all-reduces that begin in the hook of each parameter.
    pub(crate) fn new(
        network: &'a mut Network,
        comm: &'a Comm,
        layers: usize,
        calls: Vec<Option<String>>,
    ) -> anyhow::Result<Self> {
        let timeline = Timeline::start(network.stream())?;
        Ok(Self { network, comm, layers, calls, timeline })
    }

    /// When everything ran. Waits until it is done.
    ///
    /// A layer's part of the backward pass ends at a mark in the compute stream, and begins where that stream's work before it ends.
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
        // A step with hooks has cleared the gradients.
        if calls.iter().any(Option::is_some) {
            timeline.record(&compute, Kind::Compute, "clear", || Ok(()))?;
        }
        network.backward(|parameter, gradients| {
            if parameter % in_each == 0 {
                let name = format!("back {}", parameter / in_each);
                timeline.record(&compute, Kind::Compute, name, || Ok(()))?;
            }
            let Some(name) = &calls[parameter] else { return ready(parameter, gradients) };
            // So that the span begins when its gradients are there, and not when the one before it is over.
            communication.wait(&compute.record_event(None)?)?;
            timeline.record(&communication, Kind::Communication, name, || ready(parameter, gradients))
        })
    }

    fn descend(&mut self) -> anyhow::Result<()> {
        let Self { network, timeline, .. } = self;
        timeline.record(&network.stream().clone(), Kind::Compute, STEP, || network.descend())
    }
}
