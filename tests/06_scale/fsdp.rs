//! Checks for `scale/fsdp`: a model whose parameters are in shards trains like one that is whole on one GPU.
//!
//! The loss of each layer is a linear function of its parameters plus an eighth of their squares, so its gradient depends
//! on the parameters that the layer gets. Parameters and slopes are integers, and all factors are powers of 2. If the
//! world size is also a power of 2, nothing rounds in the few steps made here.

use cudarc::driver::sys::CUmemPool_attribute::{
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED, CU_MEMPOOL_ATTR_USED_MEM_HIGH as USED_HIGH,
};
use cudarc::driver::{CudaEvent, CudaSlice, CudaView, CudaViewMut};
use init::rendezvous::rendezvous;
use lab::timeline::timed;
use lab::{
    Budget, Check, Expected, MemoryPool, NcclLog, each_call_fails, ensure, irregular,
    returns_at_once_on_each, world_of_one,
};

use super::two_streams::Rank;
use crate::scale::fsdp::{Fsdp, Layers};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("fsdp::each_layer_computes_with_all_of_its_parameters", each_layer_is_whole)
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::each_step_is_that_of_one_gpu", each_step_is_that_of_one_gpu)
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::late_work_is_waited_for", late_work_is_waited_for)
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::one_rank_is_a_world_too", one_rank_is_a_world_too).calls(&["Fsdp::step"]),
        Check::new("fsdp::the_next_layer_is_gathered_early", the_next_layer_is_gathered_early)
            .calls(&["Fsdp::step"]),
        Check::new("fsdp::gathers_and_averages_are_hidden", gathers_and_averages_are_hidden)
            .measures_time()
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::a_step_returns_at_once", a_step_returns_at_once)
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::memory_is_that_of_shards_and_two_layers", memory_is_that_of_two_layers)
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::a_step_moves_each_layer_three_times", a_step_moves_each_layer_three_times)
            .min_ranks(2),
        Check::new("fsdp::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const STEPS: usize = 3;
const LEARNING_RATE: f32 = 0.25;
/// The fraction of its velocity that the exercise's optimizer keeps in each step.
const MOMENTUM: f64 = 0.5;
/// How much of its parameters each layer adds to its gradient.
const CURVATURE: f32 = 0.25;
/// The numbers of parameters in the layers of some models. Few world sizes divide them, and one is smaller than most
/// world sizes.
const MODELS: [&[usize]; 4] = [&[37, 131, 3, 60, 101], &[60, 37], &[37], &[5, 1031, 64]];
const MILLISECOND: u64 = 1_000_000;

/// Returns a layer's parameters before the first step.
fn start(layer: usize, len: usize) -> Vec<f32> {
    irregular::integers(1_000 + layer, len)
}

/// Returns the slopes of a layer's loss on a rank.
fn slopes(step: usize, layer: usize, rank: usize, len: usize) -> Vec<f32> {
    irregular::integers(100 * (100 * step + layer) + rank, len)
}

impl Rank {
    fn model(&self, lens: &[usize]) -> anyhow::Result<Model<'_>> {
        let zeros = || {
            let new = lens.iter().map(|len| self.compute.alloc_zeros(self.padded(*len)));
            new.collect::<Result<Vec<_>, _>>()
        };
        let (slopes, seen, seen_back) = (zeros()?, zeros()?, zeros()?);
        let mut model = Model {
            rank: self,
            lens: lens.to_vec(),
            slopes,
            seen,
            seen_back,
            spin: 0,
            log: None,
            passes: Vec::new(),
        };
        model.begin(0)?;
        Ok(model)
    }

    fn fsdp(&self, lens: &[usize]) -> anyhow::Result<Fsdp> {
        let layers: Vec<Vec<f32>> = lens.iter().enumerate().map(|(layer, &len)| start(layer, len)).collect();
        let fsdp = Fsdp::new(&self.comm, &self.compute, &layers)?;
        self.compute.synchronize()?;
        Ok(fsdp)
    }

    /// Returns the length of a layer with this many parameters, divided into equal shards.
    fn padded(&self, len: usize) -> usize {
        len.next_multiple_of(self.comm.world_size())
    }

    fn read(&self, slice: &CudaSlice<f32>) -> anyhow::Result<Vec<f32>> {
        let values = self.compute.clone_dtoh(slice)?;
        self.compute.synchronize()?;
        Ok(values)
    }
}

/// A layer's computation in one pass.
struct Pass {
    layer: usize,
    is_backward: bool,
    /// The numbers of gathers in NCCL's log when the computation was enqueued, if they were counted.
    gathers: Option<usize>,
    /// The start and the end of the computation on the compute stream.
    start: CudaEvent,
    end: CudaEvent,
    /// The end of all work that was on the communicator's stream when the computation was enqueued.
    communicated: CudaEvent,
}

/// Layers that keep a copy of the parameters that they get, on the GPU.
struct Model<'a> {
    rank: &'a Rank,
    lens: Vec<usize>,
    slopes: Vec<CudaSlice<f32>>,
    seen: Vec<CudaSlice<f32>>,
    seen_back: Vec<CudaSlice<f32>>,
    /// How long each computation takes before it reads anything, in nanoseconds.
    spin: u64,
    /// NCCL's log, if the gathers are counted.
    log: Option<&'a NcclLog>,
    passes: Vec<Pass>,
}

impl Model<'_> {
    /// Prepares the slopes for a step.
    fn begin(&mut self, step: usize) -> anyhow::Result<()> {
        self.passes.clear();
        let rank = self.rank.number();
        for (layer, buffer) in self.slopes.iter_mut().enumerate() {
            let mut slopes = slopes(step, layer, rank, self.lens[layer]);
            slopes.resize(buffer.len(), 0.0);
            self.rank.compute.memcpy_htod(&slopes, buffer)?;
        }
        Ok(self.rank.compute.synchronize()?)
    }

    fn enqueue(
        &mut self,
        (layer, is_backward): (usize, bool),
        len: usize,
        work: impl FnOnce(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let name = if is_backward { "backward" } else { "forward" };
        let layers = self.lens.len();
        let turn = self.passes.len();
        let expected =
            if turn < layers { (turn, false) } else { ((2 * layers - 1).saturating_sub(turn), true) };
        ensure!(
            (layer, is_backward) == expected && turn < 2 * layers,
            "call {} of the model is `{name}` of layer {layer}, which is out of order: {layers} layers run forward from the first to the \
             last, and then backward from the last to the first",
            turn + 1
        );
        let whole = self.rank.padded(self.lens[layer]);
        ensure!(
            len == whole,
            "`{name}` of layer {layer} gets {len} parameters, expected {whole}, which is `whole_len` of this layer"
        );
        let Rank { compute, kernels, comm } = self.rank;
        let gathers = self.log.map(|log| anyhow::Ok(log.calls("AllGather")?.len())).transpose()?;
        if let Some(gathers) = gathers.filter(|_| !is_backward) {
            check_gathers(layer, layers, gathers)?;
        }
        let (communicated, start) = (timed(&comm.stream())?, timed(compute)?);
        if self.spin > 0 {
            kernels.spin(compute, self.spin)?;
        }
        work(self)?;
        let end = timed(compute)?;
        self.passes.push(Pass { layer, is_backward, gathers, start, end, communicated });
        Ok(())
    }
}

impl Layers for Model<'_> {
    fn forward(&mut self, layer: usize, parameters: &CudaView<f32>) -> anyhow::Result<()> {
        self.enqueue((layer, false), parameters.len(), |model| {
            Ok(model.rank.compute.memcpy_dtod(parameters, &mut model.seen[layer])?)
        })
    }

    fn backward(
        &mut self,
        layer: usize,
        parameters: &CudaView<f32>,
        gradient: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        ensure!(
            gradient.len() == parameters.len(),
            "`backward` of layer {layer} gets {} parameters and room for {} gradients; both must be `whole_len` of this layer",
            parameters.len(),
            gradient.len()
        );
        self.enqueue((layer, true), parameters.len(), |model| {
            let Rank { compute, kernels, .. } = model.rank;
            compute.memcpy_dtod(parameters, &mut model.seen_back[layer])?;
            compute.memcpy_dtod(&model.slopes[layer], gradient)?;
            kernels.axpy(compute, gradient, parameters, CURVATURE)
        })
    }
}

/// The layers of one GPU, as vectors of parameters and velocities.
#[derive(Clone)]
struct Serial {
    parameters: Vec<Vec<f64>>,
    velocities: Vec<Vec<f64>>,
}

impl Serial {
    fn new(lens: &[usize]) -> Self {
        let start = |(layer, &len): (usize, &usize)| start(layer, len).into_iter().map(f64::from).collect();
        Self {
            parameters: lens.iter().enumerate().map(start).collect(),
            velocities: lens.iter().map(|&len| vec![0.0; len]).collect(),
        }
    }

    /// Makes a step with `factor` times the sum of these ranks' gradients.
    fn step(&mut self, step: usize, ranks: std::ops::Range<usize>, factor: f64) {
        for (layer, parameters) in self.parameters.iter_mut().enumerate() {
            let slopes: Vec<_> =
                ranks.clone().map(|rank| slopes(step, layer, rank, parameters.len())).collect();
            for (index, parameter) in parameters.iter_mut().enumerate() {
                let sum: f64 = slopes
                    .iter()
                    .map(|slopes| f64::from(slopes[index]) + f64::from(CURVATURE) * *parameter)
                    .sum();
                let velocity = &mut self.velocities[layer][index];
                *velocity = MOMENTUM * *velocity + factor * sum;
                *parameter -= f64::from(LEARNING_RATE) * *velocity;
            }
        }
    }

    /// Returns a layer's parameters, padded with zeros.
    fn whole(&self, layer: usize, world_size: usize) -> Vec<f32> {
        let parameters = &self.parameters[layer];
        let mut values: Vec<f32> = parameters.iter().map(|&value| value as f32).collect();
        values.resize(parameters.len().next_multiple_of(world_size), 0.0);
        values
    }
}

/// Returns a bound on the error of a parameter after this many steps. It is 0 if the world size is a power of 2.
/// Otherwise, an average of numbers up to 1500 rounds 1 / n, n products, and n − 1 sums, each by 2⁻²⁴ of at most 1500.
/// A gradient, a velocity of at most 3000, and a parameter below 4000 round a few times per step. A velocity collects at
/// most twice the errors of the gradients, and a quarter of it goes into the parameter. A quarter of a parameter's error goes
/// into the next gradient, which at most doubles all errors in three steps.
fn bound(world_size: usize, steps: usize) -> f64 {
    if world_size.is_power_of_two() {
        return 0.0;
    }
    let unit = f64::powi(2.0, -24);
    let average = 1500.0 * (2.0 * world_size as f64 + 3.0);
    2.0 * steps as f64 * unit * (0.5 * (average + 2.0 * 3000.0) + 2.0 * 4000.0)
}

fn each_layer_is_whole() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        for lens in MODELS {
            rendezvous(&lab::streams(world_size)?, |comm| {
                let rank = Rank::new(comm)?;
                let (mut model, mut fsdp) = (rank.model(lens)?, rank.fsdp(lens)?);
                fsdp.step(&rank.comm, &mut model, LEARNING_RATE)?;
                rank.synchronize()?;
                compare_seen(&rank, &model, &Serial::new(lens), 0)
            })?;
        }
    }
    Ok(())
}

/// Compares the parameters that the layers got in a step with those before the step.
fn compare_seen(rank: &Rank, model: &Model<'_>, before: &Serial, step: usize) -> anyhow::Result<()> {
    let (number, world_size) = (rank.number(), rank.comm.world_size());
    for (seen, name) in [(&model.seen, "forward"), (&model.seen_back, "backward")] {
        for (layer, seen) in seen.iter().enumerate() {
            let right = before.whole(layer, world_size);
            let buffer = format!(
                "step {} with world size {world_size}: the buffer of parameters that `{name}` of layer {layer} computed with",
                step + 1
            );
            let mut expected = Expected::new(number, &buffer, &right)
                .if_instead(&vec![0.0; right.len()], "no layer was gathered in this buffer");
            if world_size > 1 {
                let len = right.len() / world_size;
                let mut only_own = vec![0.0; right.len()];
                only_own[..len].copy_from_slice(&right[number * len..(number + 1) * len]);
                expected = expected.if_instead(&only_own, "only this rank's shard is there");
            }
            let got = rank.read(seen)?;
            for other in (0..model.lens.len()).filter(|&other| other != layer) {
                // The buffer may hold another layer, or its first elements.
                let mut values = before.whole(other, world_size);
                values.resize(got.len().max(values.len()), 0.0);
                let start = values[..got.len()].to_vec();
                expected = expected.if_instead(
                    &start,
                    format!("these are the parameters of layer {other}, which has the same buffer"),
                );
            }
            expected.within(bound(world_size, step), &got)?;
        }
    }
    Ok(())
}

fn each_step_is_that_of_one_gpu() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        for lens in MODELS {
            train(world_size, lens, |_| 0)?;
        }
    }
    Ok(())
}

fn one_rank_is_a_world_too() -> anyhow::Result<()> {
    train(1, MODELS[0], |_| 0)
}

fn late_work_is_waited_for() -> anyhow::Result<()> {
    // The computation is slow on all ranks, or on one of them, which delays the others' collectives.
    train(2, MODELS[0], |_| MILLISECOND / 2)?;
    train(2, MODELS[0], |rank| if rank == 1 { MILLISECOND / 2 } else { 0 })
}

/// Makes some steps in which each computation on a rank spins for `spin(rank)` nanoseconds, and compares them with those of one
/// GPU.
fn train(world_size: usize, lens: &[usize], spin: fn(usize) -> u64) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let rank = Rank::new(comm)?;
        let (mut model, mut fsdp) = (rank.model(lens)?, rank.fsdp(lens)?);
        model.spin = spin(rank.number());
        let mut serial = Serial::new(lens);
        // A rank that finds a mistake continues to the end, so that the other ranks do not wait for it.
        let mut verdict = Ok(());
        for step in 0..STEPS {
            model.begin(step)?;
            fsdp.step(&rank.comm, &mut model, LEARNING_RATE)?;
            rank.synchronize()?;
            let before = serial.clone();
            serial.step(step, 0..world_size, 1.0 / world_size as f64);
            if verdict.is_ok() {
                verdict = compare_seen(&rank, &model, &before, step)
                    .and_then(|()| compare_shards(&rank, &fsdp, &before, &serial, step));
            } else {
                for shard in &fsdp.shards {
                    rank.read(shard)?;
                }
            }
        }
        verdict
    })?;
    Ok(())
}

/// Compares the shards after a step. `before` and `after` are the parameters of one GPU.
fn compare_shards(
    rank: &Rank,
    fsdp: &Fsdp,
    before: &Serial,
    after: &Serial,
    step: usize,
) -> anyhow::Result<()> {
    let (number, world_size) = (rank.number(), rank.comm.world_size());
    let aside = |ranks, factor| {
        let mut other = before.clone();
        other.step(step, ranks, factor);
        other
    };
    let forgetful = {
        let velocities = before.velocities.iter().map(|velocity| vec![0.0; velocity.len()]).collect();
        let mut other = Serial { velocities, ..before.clone() };
        other.step(step, 0..world_size, 1.0 / world_size as f64);
        other
    };
    for (layer, shard) in fsdp.shards.iter().enumerate() {
        let part = |serial: &Serial, rank: usize| {
            serial.whole(layer, world_size)[rank * shard.len()..(rank + 1) * shard.len()].to_vec()
        };
        let name = format!(
            "after step {} of {STEPS} with world size {world_size}, the shard of layer {layer} of {}",
            step + 1,
            fsdp.shards.len()
        );
        let right = part(after, number);
        let mut expected = Expected::new(number, &name, &right).if_instead(
            &part(before, number),
            "it is from before the step: the optimizer got a gradient of 0",
        );
        if world_size > 1 {
            expected = expected
                .if_instead(
                    &part(&aside(0..world_size, 1.0), number),
                    "the gradients were summed, not averaged",
                )
                .if_instead(
                    &part(&aside(number..number + 1, 1.0), number),
                    "the rank stepped with its own gradient: nothing was averaged",
                );
        }
        if step > 0 {
            expected =
                expected.if_instead(&part(&forgetful, number), "the velocities were forgotten between steps");
        }
        expected.within(bound(world_size, step + 1), &rank.read(shard)?)?;
    }
    Ok(())
}

/// Checks the number of gathers that are enqueued when the forward pass reaches a layer.
fn check_gathers(layer: usize, layers: usize, gathers: usize) -> anyhow::Result<()> {
    let expected = (layer + 2).min(layers);
    let told = format!(
        "when the forward pass of layer {layer} of {layers} is enqueued, the number of gathers before it is {gathers}, expected {expected}"
    );
    ensure!(
        gathers >= expected,
        "{told}\n  likely cause: layer {} is gathered after layer {layer} computes, so nothing overlaps: gather it before",
        layer + 1
    );
    ensure!(
        gathers <= expected,
        "{told}\n  likely cause: layers after the next one are gathered too early: there is room for two layers"
    );
    Ok(())
}

fn the_next_layer_is_gathered_early() -> anyhow::Result<()> {
    // SAFETY: this is the check's first statement, so its process has no other threads that use the environment.
    let log = unsafe { NcclLog::open() };
    let lens = MODELS[0];
    rendezvous(&lab::streams(1)?, |comm| {
        let rank = Rank::new(comm)?;
        let (mut model, mut fsdp) = (rank.model(lens)?, rank.fsdp(lens)?);
        model.log = Some(&log);
        fsdp.step(&rank.comm, &mut model, LEARNING_RATE)?;
        rank.synchronize()?;
        // The last layer need not be gathered again, and neither need the one before it.
        let gathers = |pass: &Pass| pass.gathers.unwrap_or_default();
        let all = model.passes.last().map_or(0, gathers);
        for pass in model.passes.iter().filter(|pass| pass.is_backward && pass.layer > 0) {
            let layer = pass.layer;
            ensure!(
                gathers(pass) + layer > all,
                "when the backward pass of layer {layer} of {} is enqueued, the gather of layer {} is not, so nothing overlaps: gather it before",
                lens.len(),
                layer - 1
            );
        }
        Ok(())
    })?;
    Ok(())
}

fn gathers_and_averages_are_hidden() -> anyhow::Result<()> {
    let lens = MODELS[0];
    rendezvous(&lab::streams(2)?, |comm| {
        let rank = Rank::new(comm)?;
        let origin = timed(&rank.compute)?;
        let (mut model, mut fsdp) = (rank.model(lens)?, rank.fsdp(lens)?);
        // The first step sets up NCCL's connections.
        fsdp.step(&rank.comm, &mut model, LEARNING_RATE)?;
        rank.synchronize()?;
        model.begin(1)?;
        model.spin = 2 * MILLISECOND;
        fsdp.step(&rank.comm, &mut model, LEARNING_RATE)?;
        rank.synchronize()?;
        let at = |event: &CudaEvent| origin.elapsed_ms(event);
        for pass in &model.passes {
            let (start, end, communicated) = (at(&pass.start)?, at(&pass.end)?, at(&pass.communicated)?);
            let name = if pass.is_backward { "backward" } else { "forward" };
            ensure!(
                communicated < end,
                "rank {}: the {name} computation of layer {} ran from {start:.2} to {end:.2} ms, and what was enqueued before it on the \
                 communicator's stream ended at {communicated:.2} ms: it must be able to run at the same time",
                rank.number(),
                pass.layer
            );
        }
        let last = &model.passes[2 * lens.len() - 1];
        let (start, communicated) = (at(&last.start)?, at(&last.communicated)?);
        ensure!(
            communicated > start,
            "rank {}: the backward computation of layer 0 started at {start:.3} ms, and the average of layer 1's gradient ended before, at \
             {communicated:.3} ms: the computation must not wait for it, because it has another buffer",
            rank.number()
        );
        Ok(())
    })?;
    Ok(())
}

fn a_step_returns_at_once() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let rank = Rank::new(comm)?;
        let (mut model, mut fsdp) = (rank.model(MODELS[0])?, rank.fsdp(MODELS[0])?);
        let streams = [rank.compute.clone(), rank.comm.stream()];
        returns_at_once_on_each("Fsdp::step", &streams, || {
            model.passes.clear();
            fsdp.step(&rank.comm, &mut model, LEARNING_RATE)
        })
    })?;
    Ok(())
}

fn memory_is_that_of_two_layers() -> anyhow::Result<()> {
    const LAYER: usize = 1 << 16;
    const LAYERS: usize = 8;
    let lens = [LAYER; LAYERS];
    rendezvous(&lab::streams(2)?, |comm| {
        let rank = Rank::new(comm)?;
        let mut model = rank.model(&lens)?;
        let pool = MemoryPool::of_gpu(rank.comm.context().ordinal())?;
        let before = pool.figure(USED)?;
        pool.reset(USED_HIGH)?;
        let mut fsdp = rank.fsdp(&lens)?;
        fsdp.step(&rank.comm, &mut model, LEARNING_RATE)?;
        rank.synchronize()?;
        // Half of each layer's parameters, gradient, and velocities, and two whole layers with their gradients. Other
        // allocations are much smaller than half a layer.
        let layer = (LAYER * size_of::<f32>()) as f64;
        let used = (pool.figure(USED_HIGH)? - before) as f64 / layer;
        let expected = (3 * LAYERS / 2 + 4) as f64;
        ensure!(
            used < expected + 0.5,
            "rank {}: with {LAYERS} equal layers and world size 2, the memory of {used:.1} whole layers is in use at the same time, \
             expected {expected}: half of all parameters, gradients, and velocities, and two layers with their gradients{}",
            rank.number(),
            match (used - expected - LAYERS as f64).abs() < 0.5 {
                true =>
                    "\n  likely cause: each layer is gathered in a buffer of its own, instead of the two in `whole`",
                false => "",
            }
        );
        Ok(())
    })?;
    Ok(())
}

fn a_step_moves_each_layer_three_times() -> anyhow::Result<()> {
    // Equal layers make a short message.
    let lens = [37; 4];
    rendezvous(&lab::streams(2)?, |comm| {
        let rank = Rank::new(comm)?;
        let (mut model, mut fsdp) = (rank.model(&lens)?, rank.fsdp(&lens)?);
        let shards = lens.map(|len| len.div_ceil(2));
        // All layers forward. Backward, the last layer need not be gathered again, and neither need the one before it.
        let gathers = |back: usize| {
            let again = shards[..back].iter().map(|&len| ("AllGather", len));
            let averages = shards.map(|len| ("ReduceScatter", len));
            shards.map(|len| ("AllGather", len)).into_iter().chain(again).chain(averages).collect::<Vec<_>>()
        };
        let streams =
            [(&rank.compute, "the compute stream"), (&rank.comm.stream(), "the communicator's stream")];
        let budget = Budget::of("Fsdp::step")
            .collectives(&gathers(3))
            .or_collectives(&gathers(2))
            .messages(0)
            .communicators(0)
            .allocations(0)
            // The model makes three copies per layer.
            .copies(3 * lens.len() as u64)
            .fills(0)
            .host_waits(0)
            .polls(0)
            .new_streams(0)
            .streams(&streams);
        budget.spend(|| fsdp.step(&rank.comm, &mut model, LEARNING_RATE))?;
        rank.synchronize()
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("Fsdp::step", || {
        let rank = Rank::new(world_of_one()?)?;
        Ok(move || {
            let mut fsdp = rank.fsdp(&[7, 5, 3])?;
            let mut model = rank.model(&[7, 5, 3])?;
            let stepped = fsdp.step(&rank.comm, &mut model, LEARNING_RATE);
            rank.synchronize()?;
            stepped
        })
    })
}
