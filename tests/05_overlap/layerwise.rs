//! Checks for `overlap/layerwise`.

use std::sync::Arc;

use anyhow::bail;
use cudarc::driver::{CudaSlice, CudaStream};
use cudarc::nccl::{Comm, ReduceOp};
use lab::kernels::Product;
use lab::timeline::{Kind, Timeline};
use lab::{
    Budget, Check, Expected, Guarded, Kernels, Readable, each_call_fails, ensure, irregular, while_blocked,
};

use crate::exercise::bench::{
    MILLISECOND, ensure_beside_or, ensure_takes, mean, on_each_rank, on_ranks, on_two_ranks, span,
};
use crate::overlap::layerwise::{Layer, Part, Pending, finish, forward};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("layerwise::the_states_are_those_of_one_gpu", the_states_are_those_of_one_gpu)
            .calls(&["forward", "finish"])
            .min_ranks(2),
        Check::new("layerwise::late_sums_are_waited_for", late_sums_are_waited_for)
            .calls(&["forward", "finish"])
            .min_ranks(2),
        Check::new("layerwise::late_products_are_waited_for", late_products_are_waited_for)
            .calls(&["forward", "finish"])
            .min_ranks(2),
        Check::new("layerwise::a_sum_overlaps_the_other_half", a_sum_overlaps_the_other_half)
            .measures_time()
            .calls(&["forward", "finish"])
            .min_ranks(2),
        Check::new("layerwise::the_last_sums_are_pending", the_last_sums_are_pending)
            .calls(&["forward", "finish"])
            .min_ranks(2),
        Check::new("layerwise::one_half_may_be_pending_alone", one_half_may_be_pending_alone)
            .calls(&["forward", "finish"])
            .min_ranks(2),
        Check::new("layerwise::it_returns_with_everything_enqueued", it_returns_with_everything_enqueued)
            .calls(&["forward", "finish"])
            .min_ranks(2),
        Check::new("layerwise::the_order_needs_only_events", the_order_needs_only_events),
        Check::new("layerwise::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// The number of rows per half.
const ROWS: usize = 7;
/// The number of columns.
const WIDTH: usize = 33;
const LEN: usize = ROWS * WIDTH;
const LAYERS: usize = 2;
const HALVES: [&str; 2] = ["A", "B"];

/// How long each product and each all-reduce spins before it works, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Delays {
    product: u64,
    all_reduce: u64,
}

/// Returns the position and value of the only nonzero weight in a row of a rank's matrix, so that products remain
/// integers.
fn weight(rank: usize, layer: usize, part: Part, row: usize) -> (usize, f32) {
    let shift = 5 * rank + 3 * layer + if part == Part::Mlp { 11 } else { 0 };
    ((2 * row + shift) % WIDTH, if (row + rank + layer).is_multiple_of(3) { -1.0 } else { 1.0 })
}

/// In a real model, a layer's norm is a separate kernel. Here, it is a factor that causes no rounding.
const NORM: f32 = 0.5;

fn states(half: usize) -> Vec<f32> {
    irregular::integers(40 + half, LEN)
}

/// Returns a half's states after this many layers on one GPU that has all ranks' weights.
fn serial(world_size: usize, half: usize, layers: usize) -> Vec<f32> {
    let mut states = states(half);
    for layer in 0..layers {
        for part in [Part::Attention, Part::Mlp] {
            let mut sums = vec![0.0; LEN];
            for rank in 0..world_size {
                add_product(&mut sums, &states, rank, layer, part);
            }
            states.iter_mut().zip(sums).for_each(|(state, sum)| *state += sum);
        }
    }
    states
}

/// Adds a rank's part of a product with the normalized states.
fn add_product(sums: &mut [f32], states: &[f32], rank: usize, layer: usize, part: Part) {
    for row in 0..ROWS {
        for from in 0..WIDTH {
            let (to, value) = weight(rank, layer, part, from);
            sums[row * WIDTH + to] += NORM * states[row * WIDTH + from] * value;
        }
    }
}

/// The buffers for one half of the batch.
struct Half {
    states: Guarded<f32>,
    normed: CudaSlice<f32>,
    partial: Guarded<f32>,
    last_part: Part,
    last_call: Call,
}

/// The latest call for a half. Each half needs these calls in turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Product,
    AllReduce,
    ResidualAndNorm,
}

/// One rank's model.
struct Model<'a> {
    comm: &'a Comm,
    compute: Arc<CudaStream>,
    kernels: Kernels,
    timeline: Timeline,
    delays: Delays,
    layer: usize,
    weights: Vec<[CudaSlice<f32>; 2]>,
    halves: [Half; 2],
}

impl<'a> Model<'a> {
    fn new(comm: &'a Comm, delays: Delays) -> anyhow::Result<Self> {
        let rank = comm.rank();
        // SAFETY: events or a synchronize call must order all uses on different streams; the check verifies this.
        let compute = unsafe { lab::untracked_compute_stream(comm)? };
        let kernels = Kernels::load(comm.context())?;
        let matrix = |layer: usize, part: Part| -> anyhow::Result<CudaSlice<f32>> {
            let mut values = vec![0.0; WIDTH * WIDTH];
            for row in 0..WIDTH {
                let (column, value) = weight(rank, layer, part, row);
                values[row * WIDTH + column] = value;
            }
            Ok(compute.clone_htod(&values)?)
        };
        let weights =
            (0..LAYERS).map(|layer| Ok([matrix(layer, Part::Attention)?, matrix(layer, Part::Mlp)?]));
        let weights = weights.collect::<anyhow::Result<_>>()?;
        let half = |half: usize| -> anyhow::Result<Half> {
            let normed: Vec<f32> = states(half).iter().map(|state| NORM * state).collect();
            Ok(Half {
                states: Guarded::new(&compute, &states(half))?,
                normed: compute.clone_htod(&normed)?,
                partial: Guarded::new(&compute, &irregular::integers(90, LEN))?,
                last_part: Part::Attention,
                last_call: Call::ResidualAndNorm,
            })
        };
        let halves = [half(0)?, half(1)?];
        let timeline = Timeline::start(&compute)?;
        let mut model =
            Self { comm, compute, kernels, timeline, delays: Delays::default(), layer: 0, weights, halves };
        model.warm_up()?;
        model.timeline = Timeline::start(&model.compute)?;
        model.delays = delays;
        Ok(model)
    }

    /// Warms up: the first use of a kernel loads it, and the first all-reduce sets up its connections. Restores all initial
    /// values.
    fn warm_up(&mut self) -> anyhow::Result<()> {
        self.product(Part::Attention, 0)?;
        self.compute.synchronize()?;
        self.all_reduce(0)?;
        self.comm.stream().synchronize()?;
        self.residual_and_norm(0)?;
        let Half { states: guarded, normed, .. } = &mut self.halves[0];
        let start: Vec<f32> = states(0).iter().map(|state| NORM * state).collect();
        self.compute.memcpy_htod(&states(0), &mut guarded.view_mut())?;
        self.compute.memcpy_htod(&start, normed)?;
        Ok(self.compute.synchronize()?)
    }

    /// Runs all layers.
    fn run(&mut self) -> anyhow::Result<()> {
        let pending = self.forward()?;
        finish(&self.compute.clone(), self, pending)
    }

    /// Runs all layers, but leaves the last sums pending.
    fn forward(&mut self) -> anyhow::Result<Pending> {
        let (compute, comm) = (self.compute.clone(), self.comm.stream());
        let mut pending: Pending = [None, None];
        for layer in 0..LAYERS {
            self.layer = layer;
            pending = forward(&compute, &comm, self, pending)?;
        }
        Ok(pending)
    }

    /// Adds the sums of a pending half to its states.
    fn settle(&mut self, half: usize, pending: &mut Pending) -> anyhow::Result<()> {
        let Some(summed) = pending[half].take() else {
            bail!("nothing is pending for half {} when `forward` returns", HALVES[half])
        };
        self.compute.wait(&summed)?;
        self.residual_and_norm(half)
    }

    /// Compares the states after the compute stream is done.
    fn compare(&self) -> anyhow::Result<()> {
        self.compare_where("")
    }

    /// Compares like [`Self::compare`]. The message also contains `run`, which describes the run.
    fn compare_where(&self, run: &str) -> anyhow::Result<()> {
        let (rank, world_size) = (self.comm.rank(), self.comm.world_size());
        // Stream errors are checked first, because they are more informative than a failed comparison.
        self.comm.stream().synchronize()?;
        self.compute.synchronize()?;
        for (half, name) in HALVES.iter().enumerate() {
            // The states are fractions with few binary digits, which are exact in an f32.
            Expected::new(
                rank,
                &format!("the state buffer of half {name}{run}"),
                &serial(world_size, half, LAYERS),
            )
            .if_instead(&states(half), "they are the initial states: no sum was ever added")
            .if_instead(&serial(world_size, half, LAYERS - 1), "they are the states after one layer fewer")
            .if_instead(&self.without_the_last_sum(half), "the last layer's last sum was not added to them")
            .exactly(&self.halves[half].states.read()?)?;
            self.halves[half].partial.read()?;
        }
        Ok(())
    }

    fn without_the_last_sum(&self, half: usize) -> Vec<f32> {
        let mut states = serial(self.comm.world_size(), half, LAYERS - 1);
        let mut sums = vec![0.0; LEN];
        for rank in 0..self.comm.world_size() {
            add_product(&mut sums, &states, rank, LAYERS - 1, Part::Attention);
        }
        states.iter_mut().zip(sums).for_each(|(state, sum)| *state += sum);
        states
    }
}

/// Returns the name of a span.
fn named(what: &str, half: usize, layer: usize, part: Part) -> String {
    let part = if part == Part::Attention { "attention" } else { "MLP" };
    format!("{}'s {what} (layer {layer}, {part})", HALVES[half])
}

impl Layer for Model<'_> {
    fn product(&mut self, part: Part, half: usize) -> anyhow::Result<()> {
        let Self { compute, kernels, timeline, delays, weights, .. } = self;
        let Half { normed, partial, last_part, last_call, .. } = &mut self.halves[half];
        let half_name = HALVES[half];
        // Enqueuing these would cause a race, whose report can't know which call is missing.
        match std::mem::replace(last_call, Call::Product) {
            Call::Product => bail!(
                "`product` was called twice for half {half_name}, without an all-reduce of half {half_name} in between"
            ),
            Call::AllReduce => bail!(
                "`product` was called for half {half_name} before the sums of its last all-reduce were added to its \
                 states: if a half is pending, `residual_and_norm` comes first"
            ),
            Call::ResidualAndNorm => (),
        }
        *last_part = part;
        let name = named("product", half, self.layer, part);
        timeline.record(compute, Kind::Compute, name, || {
            kernels.spin(compute, delays.product)?;
            let weights = &weights[self.layer][if part == Part::Attention { 0 } else { 1 }];
            let shape = Product { m: ROWS, n: WIDTH, k: WIDTH };
            kernels.matmul(compute, &mut partial.view_mut(), normed, weights, shape)
        })
    }

    fn all_reduce(&mut self, half: usize) -> anyhow::Result<()> {
        let Self { comm, kernels, timeline, delays, .. } = self;
        let stream = comm.stream();
        let Half { partial, last_part, last_call, .. } = &mut self.halves[half];
        ensure!(
            std::mem::replace(last_call, Call::AllReduce) == Call::Product,
            "`all_reduce` was called for half {name} without a product of half {name} before it",
            name = HALVES[half]
        );
        let name = named("all-reduce", half, self.layer, *last_part);
        timeline.record(&stream, Kind::Communication, name, || {
            kernels.spin(&stream, delays.all_reduce)?;
            comm.all_reduce_in_place(&mut partial.view_mut(), &ReduceOp::Sum).readable()?;
            Ok(())
        })
    }

    fn residual_and_norm(&mut self, half: usize) -> anyhow::Result<()> {
        let Self { compute, kernels, timeline, .. } = self;
        let Half { states, normed, partial, last_part, last_call } = &mut self.halves[half];
        let name = HALVES[half];
        ensure!(
            std::mem::replace(last_call, Call::ResidualAndNorm) == Call::AllReduce,
            "`residual_and_norm` was called for half {name} without an all-reduce of half {name} before it: a half that \
             is not pending is left alone"
        );
        let name = named("residual", half, self.layer, *last_part);
        timeline.record(compute, Kind::Compute, name, || {
            kernels.axpy(compute, &mut states.view_mut(), &partial.view(), 1.0)?;
            compute.memcpy_dtod(&states.view(), normed)?;
            kernels.scale(compute, normed, NORM)
        })
    }
}

fn passes(comm: &Comm, delays: Delays) -> anyhow::Result<()> {
    let mut model = Model::new(comm, delays)?;
    model.run()?;
    model.compare()
}

fn the_states_are_those_of_one_gpu() -> anyhow::Result<()> {
    on_ranks(1, |comm| passes(comm, Delays::default()))?;
    on_each_rank(|comm| passes(comm, Delays::default()))
}

fn late_sums_are_waited_for() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        let all_reduce = if comm.rank() == 0 { MILLISECOND / 2 } else { 0 };
        passes(comm, Delays { all_reduce, ..Delays::default() })
    })
}

fn late_products_are_waited_for() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        let product = if comm.rank() == 1 { MILLISECOND / 2 } else { 0 };
        passes(comm, Delays { product, ..Delays::default() })
    })
}

fn a_sum_overlaps_the_other_half() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        let mut model = Model::new(comm, Delays { product: MILLISECOND, all_reduce: MILLISECOND })?;
        model.run()?;
        model.compare()?;
        let spans = model.timeline.spans()?;
        let rank = comm.rank();
        for layer in 0..LAYERS {
            for part in [Part::Attention, Part::Mlp] {
                // Either half may be first.
                let start = |half| anyhow::Ok(span(&spans, &named("product", half, layer, part))?.start);
                let (first, other) = if start(0)? < start(1)? { (0, 1) } else { (1, 0) };
                let sum = named("all-reduce", first, layer, part);
                let product = named("product", other, layer, part);
                ensure_beside_or(rank, &spans, &sum, &product, || Ok(None))?;
                let next = match part {
                    Part::Attention => named("product", first, layer, Part::Mlp),
                    Part::Mlp if layer + 1 < LAYERS => named("product", first, layer + 1, Part::Attention),
                    Part::Mlp => continue,
                };
                let others = named("all-reduce", other, layer, part);
                // Checks whether the sums that the product needs were ready before the other half's sum.
                let needed = || {
                    let were_there = span(&spans, &sum)?.end <= span(&spans, &others)?.start;
                    Ok(were_there
                        .then(|| format!("it needs only the sums from {sum}, which was over before that")))
                };
                ensure_beside_or(rank, &spans, &others, &next, needed)?;
            }
        }
        // B equal buckets take c + (B − 1) · max(c, m) + m. The residual counts toward the product after it.
        let buckets = 4.0 * LAYERS as f64;
        let c = mean(&spans, "product") + mean(&spans, "residual");
        let m = mean(&spans, "all-reduce");
        ensure_takes(rank, &spans, c + (buckets - 1.0) * c.max(m) + m, "c + (B − 1) · max(c, m) + m")
    })
}

fn the_last_sums_are_pending() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        let mut model = Model::new(comm, Delays::default())?;
        let (compute, stream) = (model.compute.clone(), comm.stream());
        let pending = forward(&compute, &stream, &mut model, [None, None])?;
        let missing: Vec<&str> = HALVES
            .into_iter()
            .zip(&pending)
            .filter(|(_, event)| event.is_none())
            .map(|(name, _)| name)
            .collect();
        ensure!(
            missing.is_empty(),
            "rank {}: nothing is pending for half {} when `forward` returns, expected the event of each half's last all-reduce",
            comm.rank(),
            missing.join(" and half ")
        );
        model.layer = 1;
        let pending = forward(&compute, &stream, &mut model, pending)?;
        finish(&compute, &mut model, pending)?;
        model.compare()
    })
}

/// Completes one half between the layers, and the same or the other half before the end. So `forward` and `finish` find
/// only one half pending.
fn one_half_may_be_pending_alone() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        for (before, last) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut model = Model::new(comm, Delays::default())?;
            let (compute, stream) = (model.compute.clone(), comm.stream());
            let mut pending = forward(&compute, &stream, &mut model, [None, None])?;
            model.settle(before, &mut pending)?;
            model.layer = 1;
            let mut pending = forward(&compute, &stream, &mut model, pending)?;
            model.settle(last, &mut pending)?;
            finish(&compute, &mut model, pending)?;
            model.compare_where(&format!(
                ", when only half {} was pending for the second `forward` and only half {} for `finish`,",
                HALVES[1 - before],
                HALVES[1 - last]
            ))?;
        }
        Ok(())
    })
}

fn it_returns_with_everything_enqueued() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        let mut first = Model::new(comm, Delays::default())?;
        first.run()?;
        comm.context().synchronize()?;
        let mut model = Model::new(comm, Delays::default())?;
        let compute = model.compute.clone();
        let pending = while_blocked("forward", "the compute stream", &compute, || model.forward())?;
        finish(&compute, &mut model, pending)?;
        model.compare()?;
        // `forward` does not wait, so if this call does, it is because of `finish`.
        let mut model = Model::new(comm, Delays::default())?;
        let compute = model.compute.clone();
        while_blocked("finish", "the compute stream", &compute, || model.run())?;
        model.compare()
    })
}

/// A layer that only fills a buffer, on the stream of each call.
struct Idle {
    compute: Arc<CudaStream>,
    comm: Arc<CudaStream>,
    halves: [CudaSlice<f32>; 2],
}

impl Idle {
    fn new() -> anyhow::Result<Self> {
        let compute = lab::streams(1)?.remove(0);
        // SAFETY: the exercise's events order all work on the two streams.
        unsafe { compute.context().disable_event_tracking() };
        let comm = compute.context().new_stream()?;
        let halves = [compute.alloc_zeros(LEN)?, compute.alloc_zeros(LEN)?];
        compute.synchronize()?;
        Ok(Self { compute, comm, halves })
    }

    /// Runs two layers.
    fn forward(&mut self) -> anyhow::Result<Pending> {
        let (compute, comm) = (self.compute.clone(), self.comm.clone());
        let pending = forward(&compute, &comm, self, [None, None])?;
        forward(&compute, &comm, self, pending)
    }

    fn finish(&mut self, pending: Pending) -> anyhow::Result<()> {
        finish(&self.compute.clone(), self, pending)
    }
}

impl Layer for Idle {
    fn product(&mut self, _part: Part, half: usize) -> anyhow::Result<()> {
        Ok(self.compute.memset_zeros(&mut self.halves[half])?)
    }

    fn all_reduce(&mut self, half: usize) -> anyhow::Result<()> {
        Ok(self.comm.memset_zeros(&mut self.halves[half])?)
    }

    fn residual_and_norm(&mut self, half: usize) -> anyhow::Result<()> {
        Ok(self.compute.memset_zeros(&mut self.halves[half])?)
    }
}

fn the_order_needs_only_events() -> anyhow::Result<()> {
    let mut layer = Idle::new()?;
    let nothing_in = |function| {
        let budget = Budget::of(function).collectives(&[]).kernels(0).copies(0).allocations(0);
        budget.new_streams(0).host_waits(0).polls(0)
    };
    let pending = nothing_in("forward").spend(|| layer.forward())?;
    nothing_in("finish").spend(|| layer.finish(pending))?;
    Ok(layer.compute.context().synchronize()?)
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("forward", || {
        let mut layer = Idle::new()?;
        Ok(move || {
            let ran = layer.forward();
            // Other checks report stream errors.
            let _ = layer.compute.context().synchronize();
            ran.map(drop)
        })
    })?;
    each_call_fails("finish", || {
        let mut layer = Idle::new()?;
        let pending = layer.forward()?;
        Ok(move || {
            let ran = layer.finish(pending);
            // Other checks report stream errors.
            let _ = layer.compute.context().synchronize();
            ran
        })
    })
}
