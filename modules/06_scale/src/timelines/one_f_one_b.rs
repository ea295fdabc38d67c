//! Sends micro-batches forward and back through the stages of a model, each on its own GPU.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::timeline::{Drawing, Kind, RankRun, idle, on_one_clock};
use lab::{Expected, Kernels, Readable, Timeline, irregular};
use m06_scale::one_f_one_b::{Stage, in_flight, run_stage};
use overlap::analysis::align;
use overlap::pipeline_parallel::bubble;

const MICRO_BATCHES: usize = 8;
/// How often a forward pass computes its layer. The number is odd, so the result is that of one time.
const WORK: usize = 25;

/// Runs the pipeline, and shows all GPUs on one clock.
pub(crate) fn run(streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Drawing> {
    let stages = streams.len();
    let ranks = rendezvous(streams, |comm| on_rank(&comm, 1024 * scale))?;
    Drawing::of_gpus(
        ranks,
        |spans| on_one_clock(spans, align),
        |rows| {
            let (idle, formula) = (100.0 * idle(rows), 100.0 * bubble(stages, MICRO_BATCHES));
            format!(
                "{MICRO_BATCHES} micro-batches forward (F) and back (B) through {stages} stages: {idle:.0}% idle, \
                 {formula:.0}% by the formula"
            )
        },
    )
}

fn on_rank(comm: &Comm, len: usize) -> anyhow::Result<RankRun> {
    // The first use of a kernel loads it, and the first messages set up connections.
    Layer::new(comm, len)?.run()?;
    let mut layer = Layer::new(comm, len)?;
    layer.timeline.mark_clock(comm)?;
    layer.run()?;
    layer.timeline.mark_clock(comm)?;
    let spans = layer.timeline.spans()?;
    Ok(RankRun::new(spans, layer.compare()))
}

fn data(micro_batch: usize, len: usize) -> Vec<f32> {
    irregular::integers(micro_batch, len)
}

fn bias(stage: usize, len: usize) -> Vec<f32> {
    irregular::integers(100 + stage, len)
}

/// One rank's stage. Its output is its bias minus its input, and the gradient of the last stage's output is that output.
struct Layer<'a> {
    comm: &'a Comm,
    stream: Arc<CudaStream>,
    kernels: Kernels,
    timeline: Timeline,
    bias: CudaSlice<f32>,
    bias_gradient: CudaSlice<f32>,
    /// The first stage's data.
    data: Vec<CudaSlice<f32>>,
    /// Micro-batch `i` uses buffer `i % inputs.len()`.
    inputs: Vec<CudaSlice<f32>>,
    output: CudaSlice<f32>,
    gradient: CudaSlice<f32>,
    input_gradient: CudaSlice<f32>,
}

impl<'a> Layer<'a> {
    fn new(comm: &'a Comm, len: usize) -> anyhow::Result<Self> {
        let (rank, stages, stream) = (comm.rank(), comm.world_size(), comm.stream());
        let buffers = |count: usize| -> anyhow::Result<Vec<CudaSlice<f32>>> {
            (0..count).map(|_| Ok(stream.alloc_zeros(len)?)).collect()
        };
        let data = (0..MICRO_BATCHES).map(|at| Ok(stream.clone_htod(&data(at, len))?));
        Ok(Self {
            comm,
            kernels: Kernels::load(comm.context())?,
            timeline: Timeline::start(&stream)?,
            bias: stream.clone_htod(&bias(rank, len))?,
            bias_gradient: stream.alloc_zeros(len)?,
            data: data.collect::<anyhow::Result<_>>()?,
            inputs: buffers(in_flight(rank, stages, MICRO_BATCHES))?,
            output: stream.alloc_zeros(len)?,
            gradient: stream.alloc_zeros(len)?,
            input_gradient: stream.alloc_zeros(len)?,
            stream,
        })
    }

    fn run(&mut self) -> anyhow::Result<()> {
        run_stage(self.comm.rank(), self.comm.world_size(), MICRO_BATCHES, self)
    }

    fn is_first(&self) -> bool {
        self.comm.rank() == 0
    }

    fn is_last(&self) -> bool {
        self.comm.rank() + 1 == self.comm.world_size()
    }

    /// Compares the gradient of the bias. All values are whole numbers below 2²⁴, so nothing rounds.
    fn compare(&self) -> anyhow::Result<()> {
        let (rank, stages, len) = (self.comm.rank(), self.comm.world_size(), self.bias.len());
        let mut expected = vec![0.0; len];
        for micro_batch in 0..MICRO_BATCHES {
            let mut output = data(micro_batch, len);
            for stage in 0..stages {
                output.iter_mut().zip(bias(stage, len)).for_each(|(x, bias)| *x = bias - *x);
            }
            // Each later stage changes the sign of the gradient.
            let sign = if (stages - 1 - rank).is_multiple_of(2) { 1.0 } else { -1.0 };
            expected.iter_mut().zip(output).for_each(|(sum, output)| *sum += sign * output);
        }
        let got = self.stream.clone_dtoh(&self.bias_gradient)?;
        self.stream.synchronize()?;
        Expected::new(rank, "the gradient of the bias", &expected).exactly(&got)
    }
}

impl Stage for Layer<'_> {
    fn receive_input(&mut self, micro_batch: usize) -> anyhow::Result<()> {
        let (is_first, buffer) = (self.is_first(), micro_batch % self.inputs.len());
        let input = &mut self.inputs[buffer];
        if is_first {
            return Ok(self.stream.memcpy_dtod(&self.data[micro_batch], input)?);
        }
        self.comm.recv(input, self.comm.rank() as i32 - 1).readable().map(drop)
    }

    fn forward(&mut self, micro_batch: usize) -> anyhow::Result<()> {
        let Self { stream, kernels, timeline, bias, inputs, output, .. } = self;
        timeline.record(stream, Kind::Compute, format!("F{micro_batch}"), || {
            stream.memcpy_dtod(&inputs[micro_batch % inputs.len()], output)?;
            (0..WORK).try_for_each(|_| {
                kernels.scale(stream, output, -1.0)?;
                kernels.axpy(stream, output, bias, 1.0)
            })
        })
    }

    fn send_output(&mut self, _micro_batch: usize) -> anyhow::Result<()> {
        if self.is_last() {
            return Ok(());
        }
        self.comm.send(&self.output, self.comm.rank() as i32 + 1).readable().map(drop)
    }

    fn receive_gradient(&mut self, _micro_batch: usize) -> anyhow::Result<()> {
        if self.is_last() {
            return Ok(self.stream.memcpy_dtod(&self.output, &mut self.gradient)?);
        }
        self.comm.recv(&mut self.gradient, self.comm.rank() as i32 + 1).readable().map(drop)
    }

    fn backward(&mut self, micro_batch: usize) -> anyhow::Result<()> {
        let Self { stream, kernels, timeline, bias_gradient, gradient, input_gradient, .. } = self;
        timeline.record(stream, Kind::Compute, format!("B{micro_batch}"), || {
            kernels.axpy(stream, bias_gradient, gradient, 1.0)?;
            stream.memcpy_dtod(gradient, input_gradient)?;
            // An odd number of changes of the sign is one. A forward pass moves five buffers `WORK` times, and this moves twice as
            // many, two at a time.
            (0..5 * WORK).try_for_each(|_| kernels.scale(stream, input_gradient, -1.0))
        })
    }

    fn send_gradient(&mut self, _micro_batch: usize) -> anyhow::Result<()> {
        if self.is_first() {
            return Ok(());
        }
        self.comm.send(&self.input_gradient, self.comm.rank() as i32 - 1).readable().map(drop)
    }
}
