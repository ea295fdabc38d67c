//! Checks for `scale/one_f_one_b`: the gradients of a pipeline are those of one GPU, and its stages keep few inputs.
//!
//! Each stage is a linear layer. All values are integers; the reference asserts that no sum, in any order, can exceed
//! 2²⁴, so every comparison is exact.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::bail;
use approx::abs_diff_eq;
use cudarc::driver::{CudaSlice, CudaStream};
use cudarc::nccl::{Comm, ReduceOp};
use init::rendezvous::rendezvous;
use lab::timeline::{Kind, Span, Timeline};
use lab::{
    Budget, Check, Expected, Kernels, Linear, Readable, Tier, Weights, each_call_fails, ensure, irregular,
    while_blocked,
};

use crate::scale::one_f_one_b::{Stage, in_flight, run_stage};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("one_f_one_b::a_stage_keeps_few_inputs", a_stage_keeps_few_inputs).calls(&["in_flight"]),
        Check::new("one_f_one_b::forward_and_backward_passes_take_turns", passes_take_turns)
            .calls(&["run_stage"]),
        Check::new("one_f_one_b::gradients_are_those_of_one_gpu", gradients_are_those_of_one_gpu)
            .calls(&["run_stage"])
            .min_ranks(2),
        Check::new("one_f_one_b::one_stage_is_a_pipeline_too", one_stage_is_a_pipeline_too)
            .calls(&["run_stage"]),
        Check::new("one_f_one_b::idle_time_is_only_the_bubble", idle_time_is_only_the_bubble)
            .measures_time()
            .calls(&["run_stage"])
            .min_ranks(3),
        Check::new("one_f_one_b::it_returns_with_everything_enqueued", it_returns_with_all_enqueued)
            .calls(&["run_stage"])
            .min_ranks(2),
        Check::new("one_f_one_b::a_schedule_only_orders_calls", a_schedule_only_orders_calls)
            .calls(&["run_stage"]),
        Check::new("one_f_one_b::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

fn a_stage_keeps_few_inputs() -> anyhow::Result<()> {
    // For each number of stages and of micro-batches, the inputs that each stage keeps.
    for (stages, micro_batches, expected) in [
        (4, 100, &[4, 3, 2, 1][..]),
        (1, 3, &[1]),
        (2, 1, &[1, 1]),
        (2, 2, &[2, 1]),
        (2, 50, &[2, 1]),
        (4, 1, &[1, 1, 1, 1]),
        (4, 3, &[3, 3, 2, 1]),
        (4, 4, &[4, 3, 2, 1]),
        (5, 2, &[2, 2, 2, 2, 1]),
    ] {
        for (rank, &expected) in expected.iter().enumerate() {
            let got = in_flight(rank, stages, micro_batches);
            let cause = match got {
                _ if got == stages - rank => {
                    "\n  likely cause: there are fewer micro-batches than this stage could keep"
                }
                _ if got == micro_batches => {
                    "\n  likely cause: this is enough for all micro-batches, but the first one comes back before the last one starts"
                }
                _ if got == (rank + 1).min(micro_batches) => {
                    "\n  likely cause: the stages after this one are counted from the wrong end: the last stage needs 1"
                }
                _ if got + 1 == expected => "\n  likely cause: the stage itself has a micro-batch, too",
                _ => "",
            };
            ensure!(
                got == expected,
                "in_flight({rank}, {stages}, {micro_batches}): expected {expected}, got {got}{cause}"
            );
        }
    }
    Ok(())
}

/// One of the six calls of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    ReceiveInput,
    Forward,
    SendOutput,
    ReceiveGradient,
    Backward,
    SendGradient,
}

impl Call {
    const ALL: [Self; 6] = [
        Self::ReceiveInput,
        Self::Forward,
        Self::SendOutput,
        Self::ReceiveGradient,
        Self::Backward,
        Self::SendGradient,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ReceiveInput => "receive_input",
            Self::Forward => "forward",
            Self::SendOutput => "send_output",
            Self::ReceiveGradient => "receive_gradient",
            Self::Backward => "backward",
            Self::SendGradient => "send_gradient",
        }
    }
}

/// What a stage has done so far. It rejects a call that would lose something, or has nothing to work on.
struct Books {
    rank: usize,
    stages: usize,
    micro_batches: usize,
    done: Vec<(Call, usize)>,
    /// The micro-batches whose inputs are in a buffer.
    inputs: BTreeSet<usize>,
    /// The micro-batches whose output, gradient of the output, and gradient of the input are in the buffers for them.
    output: Option<usize>,
    gradient: Option<usize>,
    input_gradient: Option<usize>,
}

impl Books {
    fn new(rank: usize, stages: usize, micro_batches: usize) -> Self {
        Self {
            rank,
            stages,
            micro_batches,
            done: Vec::new(),
            inputs: BTreeSet::new(),
            output: None,
            gradient: None,
            input_gradient: None,
        }
    }

    fn has(&self, call: Call, micro_batch: usize) -> bool {
        self.done.contains(&(call, micro_batch))
    }

    /// Enters a call.
    fn enter(&mut self, call: Call, micro_batch: usize) -> anyhow::Result<()> {
        let problem = self.problem(call, micro_batch);
        if let Some(problem) = problem {
            bail!("{}: `{}({micro_batch})` {problem}", self.stage(), call.name());
        }
        match call {
            Call::ReceiveInput => drop(self.inputs.insert(micro_batch)),
            Call::Forward => self.output = Some(micro_batch),
            Call::SendOutput => self.output = None,
            Call::ReceiveGradient => self.gradient = Some(micro_batch),
            Call::Backward => {
                self.inputs.remove(&micro_batch);
                (self.gradient, self.input_gradient) = (None, Some(micro_batch));
            }
            Call::SendGradient => self.input_gradient = None,
        }
        self.done.push((call, micro_batch));
        Ok(())
    }

    /// Returns the start of a message.
    fn stage(&self) -> String {
        let Self { rank, stages, micro_batches, .. } = self;
        let plural = if *micro_batches == 1 { "" } else { "es" };
        format!("stage {rank} of {stages} with {micro_batches} micro-batch{plural}")
    }

    /// Returns what is wrong with a call.
    fn problem(&self, call: Call, micro_batch: usize) -> Option<String> {
        if micro_batch >= self.micro_batches {
            return Some("is for a micro-batch that does not exist: they are counted from 0".to_owned());
        }
        if self.has(call, micro_batch) {
            return Some("is called a second time".to_owned());
        }
        let before = self.done.iter().filter(|(other, _)| *other == call).count();
        if before != micro_batch {
            return Some(format!(
                "is called instead of `{}({before})`: messages have no tags, so every stage goes through the micro-batches in order",
                call.name()
            ));
        }
        let needs = |needed: Call| {
            (!self.has(needed, micro_batch))
                .then(|| format!("is called before `{}({micro_batch})`", needed.name()))
        };
        let overwrites = |held: Option<usize>, what: &str, use_: Call| {
            held.map(|held| {
                format!("overwrites the {what} of micro-batch {held} before `{}({held})`", use_.name())
            })
        };
        match call {
            Call::ReceiveInput => {
                let buffers = self.stages - self.rank;
                (self.inputs.len() >= buffers).then(|| {
                    format!(
                        "has no free buffer: this stage has {buffers}, and the inputs of micro-batches {:?} are needed until their \
                         backward passes",
                        self.inputs.iter().collect::<Vec<_>>()
                    )
                })
            }
            Call::Forward => {
                needs(Call::ReceiveInput).or_else(|| overwrites(self.output, "output", Call::SendOutput))
            }
            Call::SendOutput => needs(Call::Forward),
            Call::ReceiveGradient => {
                needs(Call::Forward).or_else(|| overwrites(self.gradient, "gradient", Call::Backward))
            }
            Call::Backward => needs(Call::ReceiveGradient)
                .or_else(|| overwrites(self.input_gradient, "input gradient", Call::SendGradient)),
            Call::SendGradient => needs(Call::Backward),
        }
    }

    /// Compares the calls with those of the contract, after `run_stage` has returned.
    fn close(&self) -> anyhow::Result<()> {
        let Self { rank, stages, micro_batches, .. } = *self;
        let stage = self.stage();
        let missing = |call: &Call| (0..micro_batches).find(|&at| !self.has(*call, at)).map(|at| (*call, at));
        if let Some((call, at)) = Call::ALL.iter().find_map(missing) {
            bail!("{stage}: `run_stage` returned without a call of `{}({at})`", call.name());
        }
        let passes: Vec<String> = self.done.iter().filter_map(|(call, at)| pass(*call, *at)).collect();
        let expected = one_forward_one_backward(rank, stages, micro_batches);
        let ahead = |passes: &[String]| passes.iter().take_while(|pass| pass.starts_with('F')).count();
        let (expected_ahead, got_ahead) = (ahead(&expected), ahead(&passes));
        let cause = if got_ahead != expected_ahead {
            format!(
                "\n  the first backward pass comes after {got_ahead} forward pass{}; expected {expected_ahead}",
                if got_ahead == 1 { "" } else { "es" }
            )
        } else {
            String::new()
        };
        ensure!(
            passes == expected,
            "{stage}: the passes are in another order, with F for forward and B for backward\n  expected {}\n  got      {}{cause}",
            expected.join(" "),
            passes.join(" ")
        );
        Ok(())
    }
}

/// Returns the name of a pass, as in `F0`.
fn pass(call: Call, micro_batch: usize) -> Option<String> {
    match call {
        Call::Forward => Some(format!("F{micro_batch}")),
        Call::Backward => Some(format!("B{micro_batch}")),
        _ => None,
    }
}

/// Returns the order of the passes of a stage.
fn one_forward_one_backward(rank: usize, stages: usize, micro_batches: usize) -> Vec<String> {
    let ahead = (stages - rank).min(micro_batches);
    let mut passes: Vec<String> = (0..ahead).map(|at| format!("F{at}")).collect();
    for at in 0..micro_batches {
        passes.push(format!("B{at}"));
        if ahead + at < micro_batches {
            passes.push(format!("F{}", ahead + at));
        }
    }
    passes
}

/// Implements [`Stage`] by one function that takes the call and the micro-batch.
macro_rules! stage {
    ($type:ty) => {
        impl Stage for $type {
            fn receive_input(&mut self, micro_batch: usize) -> anyhow::Result<()> {
                self.call(Call::ReceiveInput, micro_batch)
            }

            fn forward(&mut self, micro_batch: usize) -> anyhow::Result<()> {
                self.call(Call::Forward, micro_batch)
            }

            fn send_output(&mut self, micro_batch: usize) -> anyhow::Result<()> {
                self.call(Call::SendOutput, micro_batch)
            }

            fn receive_gradient(&mut self, micro_batch: usize) -> anyhow::Result<()> {
                self.call(Call::ReceiveGradient, micro_batch)
            }

            fn backward(&mut self, micro_batch: usize) -> anyhow::Result<()> {
                self.call(Call::Backward, micro_batch)
            }

            fn send_gradient(&mut self, micro_batch: usize) -> anyhow::Result<()> {
                self.call(Call::SendGradient, micro_batch)
            }
        }
    };
}

impl Books {
    fn call(&mut self, call: Call, micro_batch: usize) -> anyhow::Result<()> {
        self.enter(call, micro_batch)
    }
}

stage!(Books);

fn passes_take_turns() -> anyhow::Result<()> {
    for stages in 1..=5 {
        for micro_batches in [1, 2, 3, 5, 8] {
            for rank in 0..stages {
                let mut books = Books::new(rank, stages, micro_batches);
                run_stage(rank, stages, micro_batches, &mut books)?;
                books.close()?;
            }
        }
    }
    Ok(())
}

/// The number of samples of a micro-batch. The last micro-batch has one less, like the remainder of a batch.
const SAMPLES: usize = 3;

fn samples(micro_batch: usize, micro_batches: usize) -> usize {
    if micro_batch + 1 == micro_batches { SAMPLES - 1 } else { SAMPLES }
}

/// Returns the number of inputs of a stage, and of outputs of the stage before it.
fn width(stage: usize) -> usize {
    3 + 2 * stage % 5
}

/// Returns a stage's layer. Most weights are 0, so that the numbers stay small.
fn layer(stage: usize) -> Weights {
    let (inputs, outputs) = (width(stage), width(stage + 1));
    let sparse = |values: Vec<f32>| -> Vec<f32> {
        values.into_iter().map(|value| if value.abs() > 5.0 { value.signum() } else { 0.0 }).collect()
    };
    Weights {
        inputs,
        outputs,
        weights: sparse(irregular::small_integers(200 + stage, inputs * outputs)),
        bias: irregular::small_integers(300 + stage, outputs),
    }
}

/// Returns the data of a micro-batch.
fn data(micro_batch: usize, micro_batches: usize) -> Vec<f32> {
    irregular::small_integers(micro_batch, samples(micro_batch, micro_batches) * width(0))
}

/// Returns what the last stage should compute. The loss is half the sum of the squared differences.
fn target(micro_batch: usize, micro_batches: usize, stages: usize) -> Vec<f32> {
    irregular::small_integers(100 + micro_batch, samples(micro_batch, micro_batches) * width(stages))
}

/// The gradients of a layer.
#[derive(Clone, PartialEq, Debug)]
struct Gradients {
    weights: Vec<f32>,
    bias: Vec<f32>,
}

/// Computes the gradients of all stages on the host, over all micro-batches.
fn serial(stages: usize, micro_batches: usize) -> Vec<Gradients> {
    let layers: Vec<Weights> = (0..stages).map(layer).collect();
    let mut weights: Vec<Vec<f64>> = layers.iter().map(|layer| vec![0.0; layer.weights.len()]).collect();
    let mut biases: Vec<Vec<f64>> = layers.iter().map(|layer| vec![0.0; layer.bias.len()]).collect();
    // The largest magnitude that any sum can have, in any order.
    let mut reach = vec![0.0_f64; stages];
    for at in 0..micro_batches {
        let rows = samples(at, micro_batches);
        let mut inputs: Vec<Vec<f64>> = vec![data(at, micro_batches).into_iter().map(f64::from).collect()];
        for layer in &layers {
            let input = &inputs[inputs.len() - 1];
            let output = (0..rows * layer.outputs).map(|index| {
                let (row, column) = (index / layer.outputs, index % layer.outputs);
                let products = (0..layer.inputs).map(|k| {
                    input[row * layer.inputs + k] * f64::from(layer.weights[k * layer.outputs + column])
                });
                products.sum::<f64>() + f64::from(layer.bias[column])
            });
            let output = output.collect();
            inputs.push(output);
        }
        let outputs = inputs.pop().unwrap_or_default();
        let targets = target(at, micro_batches, stages);
        let mut gradient: Vec<f64> =
            outputs.iter().zip(&targets).map(|(output, target)| output - f64::from(*target)).collect();
        for (stage, layer) in layers.iter().enumerate().rev() {
            let input = &inputs[stage];
            for row in 0..rows {
                for column in 0..layer.outputs {
                    let slope = gradient[row * layer.outputs + column];
                    biases[stage][column] += slope;
                    for k in 0..layer.inputs {
                        let product = input[row * layer.inputs + k] * slope;
                        weights[stage][k * layer.outputs + column] += product;
                        reach[stage] += product.abs();
                    }
                }
            }
            gradient = (0..rows * layer.inputs)
                .map(|index| {
                    let (row, k) = (index / layer.inputs, index % layer.inputs);
                    let weights = &layer.weights[k * layer.outputs..(k + 1) * layer.outputs];
                    weights
                        .iter()
                        .enumerate()
                        .map(|(column, weight)| gradient[row * layer.outputs + column] * f64::from(*weight))
                        .sum()
                })
                .collect();
        }
    }
    assert!(reach.iter().all(|&reach| reach < f64::from(1 << 24)), "the reference is not exact: {reach:?}");
    let round = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
    weights
        .into_iter()
        .zip(biases)
        .map(|(weights, bias)| Gradients { weights: round(weights), bias: round(bias) })
        .collect()
}

/// One rank's stage, on the GPU.
struct Layer<'a> {
    comm: &'a Comm,
    books: Books,
    kernels: Kernels,
    linear: Linear,
    /// How long a forward pass spins, in nanoseconds. A backward pass takes twice as long.
    spin: u64,
    timeline: Timeline,
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
    fn new(comm: &'a Comm, micro_batches: usize, spin: u64) -> anyhow::Result<Self> {
        let (rank, stages, stream) = (comm.rank(), comm.world_size(), comm.stream());
        let weights = layer(rank);
        let negative = |values: Vec<f32>| values.into_iter().map(|value| -value).collect::<Vec<f32>>();
        let data = (0..micro_batches).map(|at| Ok(stream.clone_htod(&data(at, micro_batches))?));
        let targets = (0..micro_batches)
            .map(|at| Ok(stream.clone_htod(&negative(target(at, micro_batches, stages)))?));
        let buffer = |width: usize| Ok(stream.alloc_zeros::<f32>(SAMPLES * width)?);
        let layer = Self {
            comm,
            books: Books::new(rank, stages, micro_batches),
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

    fn run(&mut self) -> anyhow::Result<()> {
        let Books { rank, stages, micro_batches, .. } = self.books;
        run_stage(rank, stages, micro_batches, self)
    }

    /// Compares the gradients with those of one GPU.
    fn compare(&self) -> anyhow::Result<()> {
        self.books.close()?;
        let stream = self.comm.stream();
        let Books { rank, stages, micro_batches, .. } = self.books;
        let right = &serial(stages, micro_batches)[rank];
        let weights = stream.clone_dtoh(&self.weights_gradient)?;
        let bias = stream.clone_dtoh(&self.bias_gradient)?;
        stream.synchronize()?;
        let name = |what: &str| {
            format!(
                "the gradient of the {what} of stage {rank} of {stages}, over {micro_batches} micro-batches,"
            )
        };
        Expected::new(rank, &name("weights"), &right.weights).exactly(&weights)?;
        Expected::new(rank, &name("bias"), &right.bias).exactly(&bias)
    }

    fn call(&mut self, call: Call, micro_batch: usize) -> anyhow::Result<()> {
        self.books.enter(call, micro_batch)?;
        let Self {
            comm,
            books,
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
        let Books { rank, stages, micro_batches, .. } = *books;
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

stage!(Layer<'_>);

/// Runs a step on this many ranks for each number of micro-batches, and compares the gradients. Even if that fails, the
/// communicators are dropped only after their work is done.
fn train(world_size: usize, micro_batches: &[usize]) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let mut verdict = Ok(());
        for &micro_batches in micro_batches {
            let mut layer = Layer::new(&comm, micro_batches, 0)?;
            let ran = layer.run();
            let done = comm.stream().synchronize();
            ran?;
            done?;
            // A rank that finds a mistake continues, so that the other ranks do not wait for it.
            verdict = verdict.and(layer.compare());
        }
        verdict
    })?;
    Ok(())
}

fn gradients_are_those_of_one_gpu() -> anyhow::Result<()> {
    let sizes = lab::world_sizes().into_iter().filter(|&size| size > 1);
    sizes.into_iter().try_for_each(|world_size| train(world_size, &[1, 2, 4, 7]))
}

fn one_stage_is_a_pipeline_too() -> anyhow::Result<()> {
    train(1, &[1, 3])
}

/// The passes of all stages take equally long, and messages take next to no time. Then the first stage is idle for
/// `p − 1` of the `m + p − 1` steps between the start of its first pass and the end of its last one, where a step is a
/// forward and a backward pass.
fn idle_time_is_only_the_bubble() -> anyhow::Result<()> {
    /// The tolerance covers messages, launches, and events, which take microseconds each.
    const WITHIN: f64 = 0.03;
    const MICRO_BATCHES: usize = 5;
    let world_size = lab::world_sizes().into_iter().filter(|&size| size <= 4).max().unwrap_or(3);
    rendezvous(&lab::streams(world_size)?, |comm| {
        let mut layer = Layer::new(&comm, MICRO_BATCHES, 1_000_000)?;
        let ran = layer.run();
        let done = comm.stream().synchronize();
        ran?;
        done?;
        layer.compare()?;
        let spans = layer.timeline.spans()?;
        if comm.rank() > 0 || lab::attach(1)? != Tier::Virtual {
            return Ok(());
        }
        let mean = |pass: char| {
            let lengths: Vec<f64> = spans
                .iter()
                .filter(|span| span.name.starts_with(pass))
                .map(|span| span.end - span.start)
                .collect();
            lengths.iter().sum::<f64>() / lengths.len() as f64
        };
        let step = mean('F') + mean('B');
        let start = spans.iter().map(|span: &Span| span.start).fold(f64::INFINITY, f64::min);
        let end = spans.iter().map(|span| span.end).fold(f64::NEG_INFINITY, f64::max);
        let (took, steps) = ((end - start) / step, (MICRO_BATCHES + world_size - 1) as f64);
        ensure!(
            abs_diff_eq!(took / steps, 1.0, epsilon = WITHIN),
            "stage 0 of {world_size} with {MICRO_BATCHES} micro-batches: its first to its last pass take {took:.2} steps of a \
             forward and a backward pass, expected m + p − 1 = {steps}\n  it is idle for {:.0} % of the time; the bubble is {:.0} \
             %\n  likely cause: an output or a gradient is sent later than it could be, so another stage starts late",
            100.0 * (1.0 - MICRO_BATCHES as f64 / took),
            100.0 * (1.0 - MICRO_BATCHES as f64 / steps)
        );
        Ok(())
    })?;
    Ok(())
}

fn it_returns_with_all_enqueued() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let mut first = Layer::new(&comm, 3, 0)?;
        let ran = first.run();
        comm.stream().synchronize()?;
        ran?;
        let mut layer = Layer::new(&comm, 3, 0)?;
        let stream = comm.stream();
        let ran = while_blocked("run_stage", "the communicator's stream", &stream, || layer.run());
        stream.synchronize()?;
        ran?;
        layer.compare()
    })?;
    Ok(())
}

/// A single stage that only fills a buffer in each call.
struct Fills {
    stream: Arc<CudaStream>,
    buffer: CudaSlice<f32>,
    books: Books,
}

impl Fills {
    fn new(micro_batches: usize) -> anyhow::Result<Self> {
        let stream = lab::streams(1)?.remove(0);
        let buffer = stream.alloc_zeros(1)?;
        Ok(Self { stream, buffer, books: Books::new(0, 1, micro_batches) })
    }

    fn run(&mut self) -> anyhow::Result<()> {
        run_stage(0, 1, self.books.micro_batches, self)
    }

    fn call(&mut self, call: Call, micro_batch: usize) -> anyhow::Result<()> {
        self.books.enter(call, micro_batch)?;
        Ok(self.stream.memset_zeros(&mut self.buffer)?)
    }
}

stage!(Fills);

fn a_schedule_only_orders_calls() -> anyhow::Result<()> {
    for micro_batches in [1, 2, 5] {
        let mut stage = Fills::new(micro_batches)?;
        let budget = Budget::of("run_stage").collectives(&[]).messages(0).kernels(0).copies(0);
        let budget = budget.fills(6 * micro_batches as u64).allocations(0).new_streams(0).host_waits(0);
        budget.polls(0).spend(|| stage.run())?;
        stage.stream.synchronize()?;
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("run_stage", || {
        let mut stage = Fills::new(2)?;
        Ok(move || stage.run())
    })
}
