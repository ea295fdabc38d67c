//! Sends micro-batches through the stages of a model, each on its own GPU.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::timeline::{Drawing, Kind, RankRun, idle, on_one_clock};
use lab::{Expected, Kernels, Readable, Timeline, irregular};
use m05_overlap::analysis::align;
use m05_overlap::pipeline_parallel::{Stage, bubble, run_stage};

const MICRO_BATCHES: usize = 6;
/// How often a stage adds its bias.
const WORK: usize = 16;

/// Runs the pipeline, and shows all GPUs on one clock.
pub(super) fn run(streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Drawing> {
    let stages = streams.len();
    let ranks = rendezvous(streams, |comm| on_rank(&comm, 1024 * scale))?;
    Drawing::of_gpus(
        ranks,
        |spans| on_one_clock(spans, align),
        |rows| {
            let (idle, formula) = (100.0 * idle(rows), 100.0 * bubble(stages, MICRO_BATCHES));
            format!(
                "{MICRO_BATCHES} micro-batches through {stages} stages: {idle:.0}% idle, {formula:.0}% by the formula"
            )
        },
    )
}

fn on_rank(comm: &Comm, len: usize) -> anyhow::Result<RankRun> {
    let (context, stream) = (comm.context(), comm.stream());
    // SAFETY: `run_stage` orders the two streams by events, and the host waits before it reads or frees anything.
    unsafe { context.disable_event_tracking() };
    let mut line = Line::new(comm, len)?;
    // The first use of a kernel loads it, and the first message sets up connections.
    line.run()?;
    line.timeline = Timeline::start(&stream)?;
    line.timeline.mark_clock(comm)?;
    line.run()?;
    line.timeline.mark_clock(comm)?;
    let spans = line.timeline.spans()?;
    stream.synchronize()?;
    Ok(RankRun::new(spans, line.verify()))
}

fn input(micro_batch: usize, len: usize) -> Vec<f32> {
    irregular::integers(micro_batch, len)
}

fn bias(stage: usize, len: usize) -> Vec<f32> {
    irregular::integers(100 + stage, len)
}

/// One rank's stage. It doubles its input, and then adds its bias `WORK` times.
struct Line<'a> {
    comm: &'a Comm,
    compute: Arc<CudaStream>,
    kernels: Kernels,
    timeline: Timeline,
    bias: CudaSlice<f32>,
    /// The first stage's data, and the last stage's results.
    inputs: Vec<CudaSlice<f32>>,
    outputs: Vec<CudaSlice<f32>>,
}

impl<'a> Line<'a> {
    fn new(comm: &'a Comm, len: usize) -> anyhow::Result<Self> {
        let compute = comm.context().new_stream()?;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for micro_batch in 0..MICRO_BATCHES {
            inputs.push(compute.clone_htod(&input(micro_batch, len))?);
            outputs.push(compute.alloc_zeros(len)?);
        }
        let bias = compute.clone_htod(&bias(comm.rank(), len))?;
        let (kernels, timeline) = (Kernels::load(comm.context())?, Timeline::start(&compute)?);
        compute.synchronize()?;
        Ok(Self { comm, compute, kernels, timeline, bias, inputs, outputs })
    }

    /// Runs all micro-batches through this stage. Waits for the GPU.
    fn run(&mut self) -> anyhow::Result<()> {
        let (compute, stream) = (self.compute.clone(), self.comm.stream());
        let (mut one, mut other) =
            (stream.alloc_zeros(self.bias.len())?, stream.alloc_zeros(self.bias.len())?);
        compute.wait(&stream.record_event(None)?)?;
        let mut buffers = [one.as_view_mut(), other.as_view_mut()];
        run_stage(&compute, &stream, self, &mut buffers, MICRO_BATCHES)?;
        Ok(stream.synchronize()?)
    }

    fn is_last(&self) -> bool {
        self.comm.rank() + 1 == self.comm.world_size()
    }

    /// Compares every element of the last stage's results. They are whole numbers below 2²⁴, so nothing rounds.
    fn verify(&self) -> anyhow::Result<()> {
        let (rank, len) = (self.comm.rank(), self.bias.len());
        for (micro_batch, output) in self.outputs.iter().enumerate().filter(|_| self.is_last()) {
            let mut expected = input(micro_batch, len);
            for stage in 0..self.comm.world_size() {
                let bias = bias(stage, len);
                expected.iter_mut().zip(bias).for_each(|(x, bias)| *x = 2.0 * *x + WORK as f32 * bias);
            }
            Expected::new(rank, &format!("the result of micro-batch {micro_batch}"), &expected)
                .exactly(&self.compute.clone_dtoh(output)?)?;
        }
        Ok(())
    }
}

impl Stage for Line<'_> {
    fn receive(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let Self { comm, timeline, inputs, .. } = self;
        let stream = comm.stream();
        timeline.record(&stream, Kind::Communication, format!("recv {micro_batch}"), || {
            match comm.rank() {
                0 => stream.memcpy_dtod(&inputs[micro_batch], buffer)?,
                rank => {
                    comm.recv(buffer, rank as i32 - 1).readable()?;
                }
            }
            Ok(())
        })
    }

    fn compute(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let Self { compute, kernels, timeline, bias, .. } = self;
        timeline.record(compute, Kind::Compute, format!("batch {micro_batch}"), || {
            kernels.scale(compute, buffer, 2.0)?;
            (0..WORK).try_for_each(|_| kernels.axpy(compute, buffer, bias, 1.0))
        })
    }

    fn send(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let is_last = self.is_last();
        let Self { comm, timeline, outputs, .. } = self;
        let stream = comm.stream();
        timeline.record(&stream, Kind::Communication, format!("send {micro_batch}"), || {
            if is_last {
                stream.memcpy_dtod(buffer, &mut outputs[micro_batch])?;
            } else {
                comm.send(buffer, comm.rank() as i32 + 1).readable()?;
            }
            Ok(())
        })
    }
}
