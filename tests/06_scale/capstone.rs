//! Checks for `scale/capstone`: a GPT that is trained on several GPUs, in any way, trains like one on one GPU.
//!
//! The reference is a GPT on the host, in double precision. Every rank's losses and weights are compared with its own.

use std::ops::Range;

use approx::abs_diff_eq;
use cudarc::driver::sys::CUmemPool_attribute::{
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED, CU_MEMPOOL_ATTR_USED_MEM_HIGH as USED_HIGH,
};
use cudarc::nccl::{Comm, ReduceOp};
use init::rendezvous::rendezvous;
use lab::compare::UNIT_ROUNDOFF;
use lab::gpt::{Batch, HostGpt, Text};
use lab::tier::whose_times;
use lab::{
    Budget, Check, Expected, Gpt, GptShape, MemoryPool, Momentum, Readable, Score, Stopwatch,
    each_call_fails, ensure, with_bytes_sent, world_of_one,
};

use crate::scale::capstone::Trainer;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("capstone::one_gpu_trains_like_the_host", || train(1)).calls(&["Trainer::step"]),
        Check::new("capstone::two_gpus_train_like_one", || train(2)).calls(&["Trainer::step"]).min_ranks(2),
        Check::new("capstone::four_gpus_train_like_one", || train(4)).calls(&["Trainer::step"]).min_ranks(4),
        Check::new("capstone::steps_wait_for_values_and_keep_no_memory", steps_wait_and_keep_no_memory)
            .calls(&["Trainer::step"])
            .min_ranks(2),
        Check::new("capstone::a_failed_call_is_an_error", a_failed_call_is_an_error),
        Check::new("capstone::a_design_has_a_score", a_design_has_a_score)
            .measures_time()
            .calls(&["Trainer::step"])
            .min_ranks(4),
    ]
}

const SEQUENCES: usize = 8;
const STEPS: usize = 3;
/// The exercise's constants.
const MOMENTUM: f64 = 0.5;
const LEARNING_RATE: f64 = 0.25;

/// The model and the text that it is trained on.
fn shape(text: &Text) -> GptShape {
    let vocabulary = text.alphabet.len();
    // No number of ranks divides a layer.
    GptShape { vocabulary, context: 8, width: 31, heads: 4, head_width: 7, hidden: 60, blocks: 2 }
}

/// Returns initial weights. All gains differ, so that it matters which of them a rank uses.
fn initial(shape: &GptShape) -> Vec<f32> {
    let mut weights = shape.initial(11);
    for layer in 1..shape.layers() {
        let start = shape.range(layer).start;
        let gains = weights[start..start + shape.width].iter_mut().enumerate();
        gains.for_each(|(index, gain)| *gain += 0.02 * (index as f32 - 9.0));
    }
    weights
}

/// Returns the batch of a step.
fn batch(text: &Text, shape: &GptShape, step: usize) -> Batch {
    text.batch(step as u64 + 1, SEQUENCES, shape.context)
}

/// How many times a result may be rounded. The longest sum, over the queries, keys, and values, has 84 terms; 6 layers
/// forward and backward have at most 4 sums each that follow each other, and the ranks add few. Roundings mostly
/// cancel, so real errors are far smaller.
const ROUNDINGS: f64 = 84.0 * 6.0 * 2.0 * 4.0;
/// The absolute values of what a loss is computed from.
const LARGEST_SCORE: f64 = 8.0;
/// The largest sum of the absolute values of what an element of a gradient is summed from.
const LARGEST_GRADIENT: f64 = 0.25;

/// Returns a bound on the error of a weight after this many steps. A velocity collects at most 1 / (1 - MOMENTUM)
/// times the error of a gradient.
fn weight_bound(steps: usize) -> f64 {
    let gradient = ROUNDINGS * UNIT_ROUNDOFF * LARGEST_GRADIENT;
    steps as f64 * LEARNING_RATE * gradient / (1.0 - MOMENTUM)
}

/// A bound on the error of a loss.
const LOSS_BOUND: f64 = ROUNDINGS * UNIT_ROUNDOFF * LARGEST_SCORE;

/// Training on the host.
#[derive(Clone)]
struct Serial {
    model: HostGpt,
    velocity: Vec<f64>,
}

impl Serial {
    fn new(shape: GptShape, weights: &[f32]) -> Self {
        Self { model: HostGpt::new(shape, weights), velocity: vec![0.0; weights.len()] }
    }

    /// Takes a step. Returns the loss before the step.
    fn step(&mut self, batch: &Batch) -> f64 {
        let (loss, gradient) = self.model.loss_and_gradient(batch);
        for ((weight, velocity), slope) in
            self.model.parameters_mut().iter_mut().zip(&mut self.velocity).zip(gradient)
        {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= LEARNING_RATE * *velocity;
        }
        loss
    }

    fn weights(&self) -> Vec<f32> {
        self.model.parameters().iter().map(|&weight| weight as f32).collect()
    }
}

/// What training on the host does in each step, and what it would do with foreseen mistakes.
struct Reference {
    text: Text,
    shape: GptShape,
    initial: Vec<f32>,
    world_size: usize,
    /// The losses of each step.
    losses: Vec<f64>,
    /// The weights after each step.
    weights: Vec<Vec<f32>>,
}

impl Reference {
    fn new(world_size: usize) -> Self {
        let text = Text::sonnets();
        let shape = shape(&text);
        let initial = initial(&shape);
        let mut serial = Serial::new(shape, &initial);
        let (mut losses, mut weights) = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            losses.push(serial.step(&batch(&text, &shape, step)));
            weights.push(serial.weights());
        }
        Self { text, shape, initial, world_size, losses, weights }
    }

    /// Returns parts of the batch that a rank or a micro-batch may have, with their descriptions.
    fn shares(&self, rank: usize) -> Vec<(Range<usize>, String)> {
        let own = SEQUENCES / self.world_size;
        let parts = [2, 4, 8].map(|parts| (0..parts).map(move |part| (part, SEQUENCES / parts)));
        let described = |(part, len): (usize, usize)| {
            let share = part * len..(part + 1) * len;
            let which = match len {
                1 => format!("sequence {part} of the {SEQUENCES}"),
                _ => format!("sequences {} to {} of the {SEQUENCES}", share.start, share.end - 1),
            };
            let is_own = share == (rank * own..(rank + 1) * own);
            (share, if is_own { format!("{which}, which are this rank's") } else { which })
        };
        parts.into_iter().flatten().map(described).collect()
    }

    /// Returns the model before a step.
    fn before(&self, step: usize) -> HostGpt {
        HostGpt::new(self.shape, self.before_step(step))
    }

    /// Compares a rank's loss.
    fn compare_loss(&self, rank: usize, step: usize, got: f32) -> anyhow::Result<()> {
        let expected = self.losses[step];
        if abs_diff_eq!(f64::from(got), expected, epsilon = LOSS_BOUND) {
            return Ok(());
        }
        // Some value is near any wrong loss, so a cause has to be far nearer than the bound.
        let is = |value: f64| abs_diff_eq!(f64::from(got), value, epsilon = LOSS_BOUND / 50.0);
        let (whole, ranks) = (batch(&self.text, &self.shape, step), self.world_size as f64);
        let of_shares: Vec<(f64, String)> = self
            .shares(rank)
            .into_iter()
            .map(|(share, whose)| (self.before(step).loss_and_gradient(&whole.sequences(share)).0, whose))
            .collect();
        let after = HostGpt::new(self.shape, &self.weights[step]).loss_and_gradient(&whole).0;
        let cause = if is(expected * ranks) {
            "the losses of the ranks were summed, not averaged".to_owned()
        } else if is(expected / ranks) {
            format!("the mean was divided by the {} ranks once too often", self.world_size)
        } else if is(after) {
            "this is the loss after the step".to_owned()
        } else if let Some((_, whose)) = of_shares.iter().find(|(loss, _)| is(*loss)) {
            format!("this is only the loss of {whose}")
        } else if step > 0 && is(self.losses[step - 1]) {
            "this is the loss of the step before".to_owned()
        } else if got == 0.0 {
            "this rank does not have the loss: only a rank with the output layer computes it".to_owned()
        } else {
            String::new()
        };
        let cause = match cause.as_str() {
            "" => cause,
            _ if cause.starts_with("this is ") => format!("\n  {cause}"),
            _ => format!("\n  likely cause: {cause}"),
        };
        let step = step + 1;
        anyhow::bail!(
            "rank {rank}: the loss of step {step} of {STEPS} with world size {} is wrong\n  expected {expected:.5}, got {got:.5}{cause}",
            self.world_size
        )
    }

    /// Checks the number of a rank's weights.
    fn compare_count(&self, rank: usize, got: &[f32]) -> anyhow::Result<()> {
        let Self { shape, world_size, .. } = self;
        let (own, all) = (got.len(), shape.parameters());
        ensure!(
            own == all,
            "rank {rank}: `weights` returned {own} values, expected {all}, which are all parameters without padding{}",
            if own == all.div_ceil(*world_size) && *world_size > 1 {
                "\n  likely cause: these are the weights of this rank only"
            } else {
                ""
            }
        );
        Ok(())
    }

    /// Compares a rank's weights after a step.
    fn compare_weights(&self, rank: usize, step: usize, got: &[f32]) -> anyhow::Result<()> {
        let Self { shape, world_size, .. } = self;
        self.compare_count(rank, got)?;
        let bound = weight_bound(step + 1);
        let is_right = |(got, expected): (&f32, &f32)| {
            abs_diff_eq!(f64::from(*got), f64::from(*expected), epsilon = bound)
        };
        if got.iter().zip(&self.weights[step]).all(is_right) {
            return Ok(());
        }
        let mut mistakes = self.mistakes(rank, step);
        if let Some(factor) = self.factor(step, got) {
            mistakes.push((self.stretched(step, factor), told(factor)));
        }
        // Backward, the first layer that is wrong is the cause of what is wrong in the layers before it.
        for layer in (0..shape.layers()).rev() {
            let range = shape.range(layer);
            let name = format!(
                "after step {} of {STEPS} with world size {world_size}, the part of the weights for layer {layer}, {},",
                step + 1,
                shape.name(layer)
            );
            let mut expected = Expected::new(rank, &name, &self.weights[step][range.clone()]);
            for (weights, cause) in &mistakes {
                expected = expected.if_instead(&weights[range.clone()], cause);
            }
            let Err(error) = expected.within(bound, &got[range]) else { continue };
            let is_explained = |(_, cause): &(Vec<f32>, String)| error.to_string().contains(cause);
            ensure!(
                layer + 1 == shape.layers() || mistakes.iter().any(is_explained),
                "{error}\n  the layers after it are right, and the backward pass runs from the last layer to the first"
            );
            return Err(error);
        }
        Ok(())
    }

    /// Returns the weights that a step of another length in the right direction leads to.
    fn stretched(&self, step: usize, factor: f64) -> Vec<f32> {
        let moved = self
            .before_step(step)
            .iter()
            .zip(&self.weights[step])
            .map(|(&before, &after)| f64::from(before) + factor * (f64::from(after) - f64::from(before)));
        moved.map(|weight| weight as f32).collect()
    }

    /// Returns how many times as long as the right first step a step is, if it goes in the same direction.
    fn factor(&self, step: usize, got: &[f32]) -> Option<f64> {
        if step > 0 {
            return None;
        }
        let (mut products, mut squares) = (0.0, 0.0);
        for ((&before, &after), &got) in self.before_step(step).iter().zip(&self.weights[step]).zip(got) {
            let right = f64::from(after) - f64::from(before);
            products += right * (f64::from(got) - f64::from(before));
            squares += right * right;
        }
        let factor = products / squares;
        let bound = weight_bound(1) * factor.abs().max(1.0);
        let is_it = |(got, stretched): (&f32, &f32)| abs_diff_eq!(*got, *stretched, epsilon = bound as f32);
        got.iter().zip(&self.stretched(step, factor)).all(is_it).then_some(factor)
    }

    fn before_step(&self, step: usize) -> &[f32] {
        if step == 0 { &self.initial } else { &self.weights[step - 1] }
    }

    /// Returns the weights that foreseen mistakes lead to, and their causes.
    fn mistakes(&self, rank: usize, step: usize) -> Vec<(Vec<f32>, String)> {
        let whole = batch(&self.text, &self.shape, step);
        let before = self.before_step(step).to_vec();
        let mut mistakes = vec![(before.clone(), "they are those from before the step".to_owned())];
        if step > 0 {
            // A step without the velocity of the steps before it.
            let mut forgetful = Serial::new(self.shape, &before);
            forgetful.step(&whole);
            mistakes
                .push((forgetful.weights(), "the velocities of the steps before were forgotten".to_owned()));
            return mistakes;
        }
        let stepped = |share: Range<usize>| {
            let mut serial = Serial::new(self.shape, &before);
            serial.step(&whole.sequences(share));
            serial.weights()
        };
        for (share, whose) in self.shares(rank) {
            mistakes.push((stepped(share), format!("the gradient is only that of {whose}")));
        }
        if self.world_size == 1 {
            return mistakes;
        }
        let share = SEQUENCES / self.world_size;
        let of_ranks: Vec<Vec<f32>> =
            (0..self.world_size).map(|owner| stepped(owner * share..(owner + 1) * share)).collect();
        let own_shard = |owner| if owner == rank { &self.weights[step] } else { &before };
        let cause = "only the shard of this rank has taken the step, and the other shards were not gathered";
        mistakes.push((self.by_shards(own_shard), cause.to_owned()));
        let cause = "each rank's shard has taken a step with the gradient of that rank's own sequences";
        mistakes.push((self.by_shards(|owner| &of_ranks[owner]), cause.to_owned()));
        mistakes
    }

    /// Returns weights in which each rank's shard of each layer is from the weights that `of` returns for the rank.
    fn by_shards<'a>(&self, of: impl Fn(usize) -> &'a Vec<f32>) -> Vec<f32> {
        let mut all = Vec::with_capacity(self.shape.parameters());
        for layer in 0..self.shape.layers() {
            let range = self.shape.range(layer);
            let len = range.len().div_ceil(self.world_size);
            all.extend(range.clone().map(|index| of((index - range.start) / len)[index]));
        }
        all
    }
}

/// Describes a step that is longer or shorter than the right one.
fn told(factor: f64) -> String {
    if factor < 0.0 {
        return "this is a step up the gradient instead of down".to_owned();
    }
    let times = if factor >= 1.0 { format!("{factor:.1}") } else { format!("{factor:.3}") };
    let step = format!("this is a step that is {times} times as long as that of one GPU");
    // The numbers of ranks and of micro-batches are powers of 2.
    let is_number = |count: f64| [2.0, 4.0, 8.0].iter().any(|number| (count / number - 1.0).abs() < 0.01);
    match is_number(factor) || is_number(1.0 / factor) {
        true => {
            step + ": check the constants, and divide a sum over ranks or micro-batches by their number exactly once"
        }
        false => step,
    }
}

/// Turns off event tracking, so that only the exercise orders its work, and creates a trainer.
fn trainer(comm: Comm, shape: GptShape, sequences: usize, weights: &[f32]) -> anyhow::Result<Trainer> {
    // SAFETY: events or a synchronize call must order all uses on different streams; the virtual GPU verifies this.
    unsafe { comm.context().disable_event_tracking() };
    Trainer::new(comm, shape, sequences, weights)
}

fn train(world_size: usize) -> anyhow::Result<()> {
    let reference = Reference::new(world_size);
    let all = rendezvous(&lab::streams(world_size)?, |comm| {
        let rank = comm.rank();
        let mut trainer = trainer(comm, reference.shape, SEQUENCES, &reference.initial)?;
        // A rank that finds a mistake continues to the end, so that the other ranks do not wait for it.
        let mut last = trainer.weights()?;
        let name = "before the first step, the buffer of weights";
        let mut verdict = reference
            .compare_count(rank, &last)
            .and_then(|()| Expected::new(rank, name, &reference.initial).exactly(&last));
        for step in 0..STEPS {
            let loss = trainer.step(&batch(&reference.text, &reference.shape, step))?;
            last = trainer.weights()?;
            if verdict.is_ok() {
                verdict = reference
                    .compare_loss(rank, step, loss)
                    .and_then(|()| reference.compare_weights(rank, step, &last));
            }
        }
        verdict?;
        Ok(last)
    })?;
    for (rank, weights) in all.iter().enumerate().skip(1) {
        Expected::new(rank, "the buffer of weights, compared bit by bit with that of rank 0,", &all[0])
            .exactly(weights)?;
    }
    Ok(())
}

fn steps_wait_and_keep_no_memory() -> anyhow::Result<()> {
    let text = Text::sonnets();
    let shape = GptShape { width: 8, heads: 2, head_width: 4, hidden: 8, context: 4, ..shape(&text) };
    let waits = |function| Budget::of(function).waits_for_values();
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, context) = (comm.rank(), comm.context().clone());
        let pool = MemoryPool::of_gpu(context.ordinal())?;
        let mut trainer = trainer(comm, shape, SEQUENCES, &shape.initial(2))?;
        let mut used = Vec::new();
        for step in 0..4 {
            let batch = text.batch(step, SEQUENCES, shape.context);
            waits("Trainer::step").spend(|| trainer.step(&batch))?;
            waits("Trainer::weights").spend(|| trainer.weights())?;
            context.synchronize()?;
            used.push(pool.figure(USED)?);
        }
        // The first step may allocate what all later steps use.
        ensure!(
            used[3] <= used[1],
            "rank {rank}: after the second step, {} bytes of GPU memory are in use, and after the fourth step {}: each step keeps \
             memory that it no longer needs",
            used[1],
            used[3]
        );
        Ok(())
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let shape =
        GptShape { vocabulary: 3, context: 2, width: 2, heads: 1, head_width: 2, hidden: 2, blocks: 1 };
    let batch = Batch { context: 2, tokens: vec![0, 1], targets: vec![1, 2] };
    let weights = shape.initial(1);
    each_call_fails("Trainer", || {
        let comm = world_of_one()?;
        let (context, batch) = (comm.context().clone(), &batch);
        let mut trainer = trainer(comm, shape, 1, &weights)?;
        Ok(move || {
            let trained = trainer.step(batch).and_then(|_| trainer.weights());
            // A failed call leaves work on the GPU, which must end before the trainer is dropped.
            context.synchronize()?;
            trained.map(drop)
        })
    })
}

/// The number of ranks of a score.
const SCORED_RANKS: usize = 4;
/// The number of steps that are measured after the first step, which sets up NCCL's connections. Modeled times hardly
/// differ from step to step.
const MEASURED_STEPS: usize = 1;

/// What a rank measures.
struct Measured {
    microseconds: f64,
    /// The bytes that the rank sends in a step, if they are counted.
    sent: Option<u64>,
    memory: u64,
    /// The time of an all-reduce of one number.
    all_reduce: f64,
}

fn a_design_has_a_score() -> anyhow::Result<()> {
    let text = Text::sonnets();
    let shape = GptShape { context: 16, ..shape(&text) };
    let weights = shape.initial(3);
    let one_gpu = time_of_one_gpu(&text, shape, &weights)?;
    let all = rendezvous(&lab::streams(SCORED_RANKS)?, |comm| measure(comm, &text, shape, &weights))?;
    // A GPU's clock has a resolution of about half a microsecond, and no digits below a tenth are shown.
    let rounded = |microseconds: f64| (microseconds * 10.0).round() / 10.0;
    let largest = |of: fn(&Measured) -> f64| all.iter().map(of).fold(0.0, f64::max);
    let score = Score {
        ranks: SCORED_RANKS,
        microseconds: rounded(largest(|rank| rank.microseconds)),
        // Some rank does at least its share of what one GPU does, and every rank gets the loss from all ranks.
        bound: rounded((one_gpu / SCORED_RANKS as f64).max(largest(|rank| rank.all_reduce))),
        sent: all.iter().map(|rank| rank.sent).max().flatten(),
        memory: all.iter().map(|rank| rank.memory).max().unwrap_or_default(),
        times: whose_times()?,
    };
    println!("{score:?}");
    score.keep();
    Ok(())
}

fn measure(comm: Comm, text: &Text, shape: GptShape, weights: &[f32]) -> anyhow::Result<Measured> {
    let (stream, context) = (comm.stream(), comm.context().clone());
    let mut number = stream.alloc_zeros::<f32>(1)?;
    let mut reduce = || comm.all_reduce_in_place(&mut number, &ReduceOp::Sum).readable().map(drop);
    reduce()?;
    stream.synchronize()?;
    let watch = Stopwatch::start(&stream)?;
    (0..MEASURED_STEPS).try_for_each(|_| reduce())?;
    let all_reduce = watch.microseconds()? / MEASURED_STEPS as f64;

    let pool = MemoryPool::of_gpu(context.ordinal())?;
    let before = pool.figure(USED)?;
    pool.reset(USED_HIGH)?;
    let mut trainer = trainer(comm, shape, SEQUENCES, weights)?;
    let mut step = |number: usize| trainer.step(&text.batch(number as u64, SEQUENCES, shape.context));
    step(0)?;
    context.synchronize()?;
    let watch = Stopwatch::start(&stream)?;
    let (_, sent) = with_bytes_sent(|| {
        (1..=MEASURED_STEPS).try_for_each(|number| step(number).map(drop))?;
        // Work on any stream of the design counts.
        Ok(context.synchronize()?)
    })?;
    let microseconds = watch.microseconds()? / MEASURED_STEPS as f64;
    let memory = pool.figure(USED_HIGH)?.saturating_sub(before);
    Ok(Measured { microseconds, sent: sent.map(|bytes| bytes / MEASURED_STEPS as u64), memory, all_reduce })
}

/// Returns the time of a step on one GPU, in microseconds.
fn time_of_one_gpu(text: &Text, shape: GptShape, weights: &[f32]) -> anyhow::Result<f64> {
    let stream = lab::streams(1)?.remove(0);
    let mut gpt = Gpt::new(&stream, shape, SEQUENCES)?;
    let mut optimizer = Momentum::new(&stream, weights.len(), MOMENTUM as f32)?;
    let mut gradient = stream.alloc_zeros::<f32>(weights.len())?;
    let mut weights = stream.clone_htod(weights)?;
    let mut step = |number: usize| -> anyhow::Result<()> {
        gpt.begin(&text.batch(number as u64, SEQUENCES, shape.context))?;
        for layer in 0..shape.layers() {
            gpt.forward(layer, &weights.slice(shape.range(layer)))?;
        }
        for layer in (0..shape.layers()).rev() {
            let range = shape.range(layer);
            gpt.backward(layer, &weights.slice(range.clone()), &mut gradient.slice_mut(range))?;
        }
        optimizer.step(&mut weights.as_view_mut(), &gradient.as_view(), LEARNING_RATE as f32)?;
        stream.clone_dtoh(&gpt.loss())?;
        Ok(stream.synchronize()?)
    };
    step(0)?;
    let watch = Stopwatch::start(&stream)?;
    (1..=MEASURED_STEPS).try_for_each(step)?;
    Ok(watch.microseconds()? / MEASURED_STEPS as f64)
}
