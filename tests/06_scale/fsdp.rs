//! Checks for `scale/fsdp`: a model whose parameters are in shards trains like one that is whole on one GPU.
//!
//! The loss of each layer is a linear function of its parameters plus an eighth of their squares, so its gradient depends
//! on the parameters that the layer gets. Parameters and slopes are integers, and all factors are powers of 2. If the
//! world size is also a power of 2, nothing rounds in the few steps made here.

mod serial;

use cudarc::driver::sys::CUmemPool_attribute::{
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED, CU_MEMPOOL_ATTR_USED_MEM_HIGH as USED_HIGH,
};
use cudarc::driver::{CudaEvent, CudaSlice, CudaView, CudaViewMut, DevicePtr};
use init::rendezvous::rendezvous;
use lab::timeline::timed;
use lab::{
    Budget, Check, Expected, MemoryPool, NcclLog, each_call_fails, ensure, irregular,
    returns_at_once_on_each, world_of_one,
};

use self::serial::Serial;
use super::two_streams::Rank;
use crate::scale::fsdp::{Fsdp, Layers};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("fsdp::each_layer_computes_with_all_of_its_parameters", || logged(each_layer_is_whole))
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::each_step_is_that_of_one_gpu", || logged(each_step_is_that_of_one_gpu))
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::late_work_is_waited_for", || logged(late_work_is_waited_for))
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::one_rank_is_a_world_too", || logged(one_rank_is_a_world_too))
            .calls(&["Fsdp::step"]),
        Check::new("fsdp::the_next_layer_is_gathered_early", || logged(the_next_layer_is_gathered_early))
            .calls(&["Fsdp::step"]),
        Check::new("fsdp::gathers_and_averages_are_hidden", || logged(gathers_and_averages_are_hidden))
            .measures_time()
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::a_step_returns_at_once", || logged(a_step_returns_at_once))
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::memory_is_that_of_shards_and_two_layers", || logged(memory_is_that_of_two_layers))
            .calls(&["Fsdp::step"])
            .min_ranks(2),
        Check::new("fsdp::a_step_moves_each_layer_three_times", a_step_moves_each_layer_three_times)
            .min_ranks(2),
        Check::new("fsdp::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// Runs a check with NCCL's log.
fn logged(check: fn(&NcclLog) -> anyhow::Result<()>) -> anyhow::Result<()> {
    // SAFETY: this is the check's first statement, so its process has no other threads that use the environment.
    let log = unsafe { NcclLog::open() };
    check(&log)
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
    /// Returns a model that finds the gathers in `log`, if there is one.
    fn model<'a>(&'a self, lens: &[usize], log: Option<&'a NcclLog>) -> anyhow::Result<Model<'a>> {
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
            log,
            counts_gathers: false,
            gathers_before: 0,
            shards: Vec::new(),
            passes: Vec::new(),
        };
        model.begin(0)?;
        Ok(model)
    }

    /// Returns the shards of a model's layers, and tells the model where they are.
    fn fsdp(&self, model: &mut Model<'_>) -> anyhow::Result<Fsdp> {
        let layers: Vec<Vec<f32>> =
            model.lens.iter().enumerate().map(|(layer, &len)| start(layer, len)).collect();
        let fsdp = Fsdp::new(&self.comm, &self.compute, &layers)?;
        model.shards = fsdp.shards.iter().map(|shard| shard.device_ptr(&self.compute).0).collect();
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
    /// The number of this rank's gathers when the computation was enqueued, if there is a log.
    gathers: usize,
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
    /// NCCL's log, if the gathers are compared with it.
    log: Option<&'a NcclLog>,
    /// Whether the number of gathers before each forward computation is checked.
    counts_gathers: bool,
    /// The number of this rank's gathers before the step.
    gathers_before: usize,
    /// The addresses of this rank's shards of the layers.
    shards: Vec<u64>,
    passes: Vec<Pass>,
}

impl Model<'_> {
    /// Prepares the slopes for a step.
    fn begin(&mut self, step: usize) -> anyhow::Result<()> {
        self.passes.clear();
        self.gathers_before = match self.log {
            Some(log) => log.buffers("AllGather")?.len(),
            None => 0,
        };
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
        parameters: &CudaView<f32>,
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
        let (whole, len) = (self.rank.padded(self.lens[layer]), parameters.len());
        ensure!(
            len == whole,
            "`{name}` of layer {layer} gets {len} parameters, expected {whole}, which is `whole_len` of this layer"
        );
        let Rank { compute, kernels, comm } = self.rank;
        let buffer = parameters.device_ptr(compute).0;
        let gathers = self.log.map(|log| log.buffers("AllGather")).transpose()?;
        if let Some(gathers) = &gathers {
            if self.counts_gathers && !is_backward {
                check_gathers(layer, layers, gathers.len())?;
            }
            self.check_buffer((layer, is_backward), buffer, gathers)?;
        }
        let (communicated, start) = (timed(&comm.stream())?, timed(compute)?);
        if self.spin > 0 {
            kernels.spin(compute, self.spin)?;
        }
        work(self)?;
        let end = timed(compute)?;
        let gathers = gathers.map_or(0, |gathers| gathers.len());
        self.passes.push(Pass { layer, is_backward, gathers, start, end, communicated });
        Ok(())
    }

    /// Checks that a layer computes with the buffer in which it was gathered last. `gathers` has the addresses of the send and receive
    /// buffers of all gathers so far.
    fn check_buffer(
        &self,
        (layer, is_backward): (usize, bool),
        buffer: u64,
        gathers: &[(u64, u64)],
    ) -> anyhow::Result<()> {
        let gathered = |(shard, _): &(u64, u64)| self.shards.iter().position(|other| other == shard);
        let last = |buffer: u64| gathers.iter().rfind(|(_, receive)| *receive == buffer).map(gathered);
        // What was not sent from a shard is compared by its values.
        if [Some(Some(layer)), Some(None)].contains(&last(buffer)) {
            return Ok(());
        }
        let name = if is_backward { "backward" } else { "forward" };
        let contents = match last(buffer).flatten() {
            Some(other) => format!("in which layer {other} was gathered last"),
            None => "in which no layer was gathered".to_owned(),
        };
        // The gathers since the step began, or since the layer's forward computation.
        let since = if is_backward { self.passes[layer].gathers } else { self.gathers_before };
        let to = |(_, receive): &(u64, u64)| *receive;
        let told = if gathers.iter().any(|gather| last(to(gather)) == Some(Some(layer))) {
            "they are in another buffer"
        } else if gathers[since..].contains(&(self.shards[layer], buffer)) {
            "they were overwritten too early; there is room for two layers"
        } else if is_backward {
            "the layer was not gathered again"
        } else {
            "the layer was not gathered"
        };
        anyhow::bail!(
            "`{name}` of layer {layer} computes with a buffer {contents}\n  the parameters of layer {layer} are not there: {told}"
        )
    }
}

impl Layers for Model<'_> {
    fn forward(&mut self, layer: usize, parameters: &CudaView<f32>) -> anyhow::Result<()> {
        self.enqueue((layer, false), parameters, |model| {
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
        self.enqueue((layer, true), parameters, |model| {
            let Rank { compute, kernels, .. } = model.rank;
            compute.memcpy_dtod(parameters, &mut model.seen_back[layer])?;
            compute.memcpy_dtod(&model.slopes[layer], gradient)?;
            kernels.axpy(compute, gradient, parameters, CURVATURE)
        })
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

fn each_layer_is_whole(log: &NcclLog) -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        for lens in MODELS {
            rendezvous(&lab::streams(world_size)?, |comm| {
                let rank = Rank::new(comm)?;
                let mut model = rank.model(lens, Some(log))?;
                let mut fsdp = rank.fsdp(&mut model)?;
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

fn each_step_is_that_of_one_gpu(log: &NcclLog) -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        for lens in MODELS {
            train(log, world_size, lens, |_| 0)?;
        }
    }
    Ok(())
}

fn one_rank_is_a_world_too(log: &NcclLog) -> anyhow::Result<()> {
    train(log, 1, MODELS[0], |_| 0)
}

fn late_work_is_waited_for(log: &NcclLog) -> anyhow::Result<()> {
    // The computation is slow on all ranks, or on one of them, which delays the others' collectives.
    train(log, 2, MODELS[0], |_| MILLISECOND / 2)?;
    train(log, 2, MODELS[0], |rank| if rank == 1 { MILLISECOND / 2 } else { 0 })
}

/// Makes some steps in which each computation on a rank spins for `spin(rank)` nanoseconds, and compares them with those of one
/// GPU.
fn train(log: &NcclLog, world_size: usize, lens: &[usize], spin: fn(usize) -> u64) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let rank = Rank::new(comm)?;
        let mut model = rank.model(lens, Some(log))?;
        let mut fsdp = rank.fsdp(&mut model)?;
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
    let of_parameters = {
        let mut other = before.clone();
        other.descend(|_, parameters| parameters.to_vec());
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
        let mut expected = Expected::new(number, &name, &right)
            .if_instead(
                &part(before, number),
                "it is from before the step: the optimizer got a gradient of 0",
            )
            .if_instead(
                &part(&of_parameters, number),
                "the parameters were averaged instead of the gradients",
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
            for other in (0..world_size).filter(|&other| other != number) {
                let mut values = part(&aside(0..world_size, 1.0 / world_size as f64), other);
                let (own, others) = (part(before, number), part(before, other));
                for ((value, own), other) in values.iter_mut().zip(own).zip(others) {
                    *value += own - other;
                }
                expected =
                    expected.if_instead(&values, format!("the gradient is that of rank {other}'s shard"));
            }
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

fn the_next_layer_is_gathered_early(log: &NcclLog) -> anyhow::Result<()> {
    let lens = MODELS[0];
    rendezvous(&lab::streams(1)?, |comm| {
        let rank = Rank::new(comm)?;
        let mut model = rank.model(lens, Some(log))?;
        let mut fsdp = rank.fsdp(&mut model)?;
        model.counts_gathers = true;
        fsdp.step(&rank.comm, &mut model, LEARNING_RATE)?;
        rank.synchronize()?;
        // The last layer need not be gathered again, and neither need the one before it.
        let all = model.passes.last().map_or(0, |pass| pass.gathers);
        for pass in model.passes.iter().filter(|pass| pass.is_backward && pass.layer > 0) {
            let layer = pass.layer;
            ensure!(
                pass.gathers + layer > all,
                "when the backward pass of layer {layer} of {} is enqueued, the gather of layer {} is not, so nothing overlaps: gather it before",
                lens.len(),
                layer - 1
            );
        }
        Ok(())
    })?;
    Ok(())
}

fn gathers_and_averages_are_hidden(log: &NcclLog) -> anyhow::Result<()> {
    let lens = MODELS[0];
    rendezvous(&lab::streams(2)?, |comm| {
        let rank = Rank::new(comm)?;
        let origin = timed(&rank.compute)?;
        let mut model = rank.model(lens, Some(log))?;
        let mut fsdp = rank.fsdp(&mut model)?;
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
        // What is gathered or averaged during a computation has another buffer.
        let at_the_same_time = |pass: &&Pass| pass.layer + 1 < lens.len();
        for pass in model.passes.iter().filter(at_the_same_time) {
            let (layer, start, communicated) = (pass.layer, at(&pass.start)?, at(&pass.communicated)?);
            let next = layer + 1;
            let (name, what) = match (pass.is_backward, layer.checked_sub(1)) {
                (false, _) => ("forward", format!("the gather of layer {next}")),
                (true, None) => ("backward", format!("the average of layer {next}'s gradient")),
                (true, Some(last)) => (
                    "backward",
                    format!("the average of layer {next}'s gradient, or for the gather of layer {last}"),
                ),
            };
            ensure!(
                communicated > start,
                "rank {}: the {name} computation of layer {layer} started at {start:.3} ms, and all that was enqueued before it on the \
                 communicator's stream ended before, at {communicated:.3} ms: the computation must not wait for {what}",
                rank.number()
            );
        }
        Ok(())
    })?;
    Ok(())
}

fn a_step_returns_at_once(log: &NcclLog) -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let rank = Rank::new(comm)?;
        let mut model = rank.model(MODELS[0], Some(log))?;
        let mut fsdp = rank.fsdp(&mut model)?;
        let streams = [rank.compute.clone(), rank.comm.stream()];
        returns_at_once_on_each("Fsdp::step", &streams, || {
            model.passes.clear();
            fsdp.step(&rank.comm, &mut model, LEARNING_RATE)
        })
    })?;
    Ok(())
}

fn memory_is_that_of_two_layers(log: &NcclLog) -> anyhow::Result<()> {
    const LAYER: usize = 1 << 16;
    const LAYERS: usize = 8;
    let lens = [LAYER; LAYERS];
    rendezvous(&lab::streams(2)?, |comm| {
        let rank = Rank::new(comm)?;
        let mut model = rank.model(&lens, Some(log))?;
        let pool = MemoryPool::of_gpu(rank.comm.context().ordinal())?;
        let before = pool.figure(USED)?;
        pool.reset(USED_HIGH)?;
        let mut fsdp = rank.fsdp(&mut model)?;
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
        let mut model = rank.model(&lens, None)?;
        let mut fsdp = rank.fsdp(&mut model)?;
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
            let mut model = rank.model(&[7, 5, 3], None)?;
            let mut fsdp = rank.fsdp(&mut model)?;
            let stepped = fsdp.step(&rank.comm, &mut model, LEARNING_RATE);
            rank.synchronize()?;
            stepped
        })
    })
}
