//! A stage on the GPU: a linear layer with its buffers, and messages to its neighbors.

use cudarc::driver::CudaSlice;
use cudarc::nccl::{Comm, ReduceOp};
use lab::timeline::{Kind, Timeline};
use lab::{Expected, Kernels, Linear, Readable};

use super::calls::{Call, Calls, Record, pass};
use super::model::{SAMPLES, data, layer, negative, samples, serial, target, width};
use crate::scale::one_f_one_b::run_stage;

/// One rank's stage.
pub(super) struct Layer<'a> {
    comm: &'a Comm,
    record: Record,
    kernels: Kernels,
    linear: Linear,
    /// How long a forward pass spins, in nanoseconds. A backward pass takes twice as long.
    spin: u64,
    pub(super) timeline: Timeline,
    /// The buffers for the inputs. Micro-batch `i` uses buffer `i % inputs.len()`.
    inputs: Vec<CudaSlice<f32>>,
    output: CudaSlice<f32>,
    gradient: CudaSlice<f32>,
    input_gradient: CudaSlice<f32>,
    /// The sums of the gradients over the micro-batches.
    weights_gradient: CudaSlice<f32>,
    bias_gradient: CudaSlice<f32>,
    /// The first stage's data, and the last stage's targets with the opposite sign.
    data: Vec<CudaSlice<f32>>,
    targets: Vec<CudaSlice<f32>>,
}

impl<'a> Layer<'a> {
    pub(super) fn new(comm: &'a Comm, micro_batches: usize, spin: u64) -> anyhow::Result<Self> {
        let (rank, stages, stream) = (comm.rank(), comm.world_size(), comm.stream());
        let weights = layer(rank);
        let data = (0..micro_batches).map(|at| Ok(stream.clone_htod(&data(at, micro_batches))?));
        let targets = (0..micro_batches)
            .map(|at| Ok(stream.clone_htod(&negative(target(at, micro_batches, stages)))?));
        let buffer = |width: usize| Ok(stream.alloc_zeros::<f32>(SAMPLES * width)?);
        let layer = Self {
            comm,
            record: Record::new(rank, stages, micro_batches),
            kernels: Kernels::load(comm.context())?,
            linear: Linear::new(&stream, &weights)?,
            spin,
            timeline: Timeline::start(&stream)?,
            inputs: (0..stages - rank).map(|_| buffer(width(rank))).collect::<anyhow::Result<_>>()?,
            output: buffer(width(rank + 1))?,
            gradient: buffer(width(rank + 1))?,
            input_gradient: buffer(width(rank))?,
            weights_gradient: stream.alloc_zeros(weights.weights.len())?,
            bias_gradient: stream.alloc_zeros(weights.bias.len())?,
            data: data.collect::<anyhow::Result<_>>()?,
            targets: targets.collect::<anyhow::Result<_>>()?,
        };
        layer.warm_up()?;
        Ok(layer)
    }

    /// Loads a kernel, and sets up the connections to both neighbors, in both directions.
    fn warm_up(&self) -> anyhow::Result<()> {
        let (rank, last, stream) =
            (self.comm.rank() as i32, self.comm.world_size() as i32 - 1, self.comm.stream());
        let (one, mut other) = (stream.alloc_zeros::<f32>(1)?, stream.alloc_zeros::<f32>(1)?);
        self.kernels.spin(&stream, 0)?;
        if rank > 0 {
            self.comm.recv(&mut other, rank - 1).readable()?;
        }
        if rank < last {
            self.comm.send(&one, rank + 1).readable()?;
            self.comm.recv(&mut other, rank + 1).readable()?;
        }
        if rank > 0 {
            self.comm.send(&one, rank - 1).readable()?;
        }
        // A sum ends at the same time on all ranks.
        self.comm.all_reduce_in_place(&mut other, &ReduceOp::Sum).readable()?;
        Ok(stream.synchronize()?)
    }

    pub(super) fn run(&mut self) -> anyhow::Result<()> {
        let Record { rank, stages, micro_batches, .. } = self.record;
        run_stage(rank, stages, micro_batches, self)
    }

    /// Compares the gradients with those of one GPU.
    pub(super) fn compare(&self) -> anyhow::Result<()> {
        self.record.compare()?;
        let stream = self.comm.stream();
        let Record { rank, stages, micro_batches, .. } = self.record;
        let right = &serial(stages, micro_batches)[rank];
        let weights = stream.clone_dtoh(&self.weights_gradient)?;
        let bias = stream.clone_dtoh(&self.bias_gradient)?;
        stream.synchronize()?;
        let name = |what: &str| format!("the gradient of the {what} of {}", self.record.situation());
        Expected::new(rank, &name("weights"), &right.weights)
            .if_instead(
                &vec![0.0; weights.len()],
                "the passes ran before their messages arrived: the messages of a group start only when the group ends",
            )
            .exactly(&weights)?;
        Expected::new(rank, &name("bias"), &right.bias).exactly(&bias)
    }
}

impl Calls for Layer<'_> {
    fn call(&mut self, call: Call, micro_batch: usize) -> anyhow::Result<()> {
        self.record.call(call, micro_batch)?;
        let Self {
            comm,
            record,
            kernels,
            linear,
            spin,
            timeline,
            inputs,
            output,
            gradient,
            input_gradient,
            ..
        } = self;
        let Record { rank, stages, micro_batches, .. } = *record;
        let (stream, rows, slot) =
            (comm.stream(), samples(micro_batch, micro_batches), micro_batch % inputs.len());
        let input = &mut inputs[slot];
        let mut input = input.slice_mut(..rows * width(rank));
        let mut output = output.slice_mut(..rows * width(rank + 1));
        let mut gradient = gradient.slice_mut(..rows * width(rank + 1));
        let mut input_gradient = input_gradient.slice_mut(..rows * width(rank));
        let (previous, next) = (rank as i32 - 1, rank as i32 + 1);
        let (is_first, is_last) = (rank == 0, rank + 1 == stages);
        let name = pass(call, micro_batch).unwrap_or_default();
        match call {
            Call::ReceiveInput if is_first => stream.memcpy_dtod(&self.data[micro_batch], &mut input)?,
            Call::ReceiveInput => {
                comm.recv(&mut input, previous).readable()?;
            }
            Call::Forward => timeline.record(&stream, Kind::Compute, name, || {
                kernels.spin(&stream, *spin)?;
                linear.multiply(&input.as_view(), &mut output)?;
                linear.add_bias(&mut output)
            })?,
            Call::SendOutput if is_last => {}
            Call::SendOutput => {
                comm.send(&output, next).readable()?;
            }
            Call::ReceiveGradient if is_last => {
                stream.memcpy_dtod(&self.targets[micro_batch], &mut gradient)?;
                kernels.axpy(&stream, &mut gradient, &output, 1.0)?;
            }
            Call::ReceiveGradient => {
                comm.recv(&mut gradient, next).readable()?;
            }
            Call::Backward => timeline.record(&stream, Kind::Compute, name, || {
                kernels.spin(&stream, 2 * *spin)?;
                linear.differentiate(&input.as_view(), &gradient.as_view())?;
                kernels.axpy(&stream, &mut self.weights_gradient, &linear.weights_gradient(), 1.0)?;
                kernels.axpy(&stream, &mut self.bias_gradient, &linear.bias_gradient(), 1.0)?;
                linear.multiply_back(&gradient.as_view(), &mut input_gradient)
            })?,
            Call::SendGradient if is_first => {}
            Call::SendGradient => {
                comm.send(&input_gradient, previous).readable()?;
            }
        }
        Ok(())
    }
}
