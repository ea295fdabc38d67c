//! Runs layers of a tensor-parallel model, and computes one half of the batch while the other half is summed.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use cudarc::nccl::{Comm, ReduceOp};
use init::rendezvous::rendezvous;
use lab::kernels::Product;
use lab::timeline::{Drawing, Kind, RankRun};
use lab::{Expected, Kernels, Readable, Timeline, irregular};
use m05_overlap::analysis::align;
use m05_overlap::layerwise::{Layer, Part, Pending, finish, forward};

const LAYERS: usize = 2;
const WIDTH: usize = 128;
const HALVES: [&str; 2] = ["A", "B"];
/// The factor that stands in for a norm. It never rounds. In a real model, the norm is a separate kernel.
const NORM: f32 = 0.5;

/// Runs the model, and shows all GPUs on one clock.
pub(super) fn run(streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Drawing> {
    let ranks = rendezvous(streams, |comm| on_rank(&comm, 16 * scale))?;
    let title = format!("{LAYERS} layers on {} GPUs, the batch in two halves", streams.len());
    Drawing::of_gpus(ranks, align, |_| title)
}

fn on_rank(comm: &Comm, rows: usize) -> anyhow::Result<RankRun> {
    let (context, stream) = (comm.context(), comm.stream());
    // SAFETY: `forward` and `finish` order the two streams by events, and the host waits before it reads or frees anything.
    unsafe { context.disable_event_tracking() };
    let compute = context.new_stream()?;
    // The first use of a kernel loads it, and the first collective sets up connections.
    Model::new(comm, &compute, rows)?.run()?;
    compute.synchronize()?;
    let mut model = Model::new(comm, &compute, rows)?;
    model.run()?;
    let spans = model.timeline.spans()?;
    compute.synchronize()?;
    stream.synchronize()?;
    Ok(RankRun::new(spans, model.verify()))
}

fn states(half: usize, rows: usize) -> Vec<f32> {
    irregular::small_integers(half, rows * WIDTH)
}

/// Returns the column and the value of the only nonzero weight in a row of a rank's weights. The value is 1 or −1, so
/// products don't round.
fn weight(rank: usize, layer: usize, part: Part, row: usize) -> (usize, f32) {
    let shift = 5 * rank + 3 * layer + if part == Part::Mlp { 11 } else { 0 };
    ((2 * row + shift) % WIDTH, if (row + rank + layer).is_multiple_of(3) { -1.0 } else { 1.0 })
}

/// Computes the final states of a half serially, with the weights of all ranks.
fn serial(world_size: usize, half: usize, rows: usize) -> Vec<f32> {
    let mut states = states(half, rows);
    for (layer, part) in (0..LAYERS).flat_map(|layer| [(layer, Part::Attention), (layer, Part::Mlp)]) {
        for row in states.chunks_mut(WIDTH) {
            let normed: Vec<f32> = row.iter().map(|state| NORM * state).collect();
            for rank in 0..world_size {
                for (from, normed) in normed.iter().enumerate() {
                    let (to, value) = weight(rank, layer, part, from);
                    row[to] += value * normed;
                }
            }
        }
    }
    states
}

/// The buffers of half the batch, each with rows × [`WIDTH`] elements.
struct Half {
    states: CudaSlice<f32>,
    normed: CudaSlice<f32>,
    partial: CudaSlice<f32>,
}

/// One rank's part of the model.
struct Model<'a> {
    comm: &'a Comm,
    compute: Arc<CudaStream>,
    kernels: Kernels,
    timeline: Timeline,
    rows: usize,
    layer: usize,
    /// For each layer, the weights of the attention and of the MLP.
    weights: Vec<[CudaSlice<f32>; 2]>,
    halves: [Half; 2],
}

impl<'a> Model<'a> {
    fn new(comm: &'a Comm, compute: &Arc<CudaStream>, rows: usize) -> anyhow::Result<Self> {
        let matrix = |layer: usize, part: Part| -> anyhow::Result<CudaSlice<f32>> {
            let mut values = vec![0.0; WIDTH * WIDTH];
            for row in 0..WIDTH {
                let (column, value) = weight(comm.rank(), layer, part, row);
                values[row * WIDTH + column] = value;
            }
            Ok(compute.clone_htod(&values)?)
        };
        let mut weights = Vec::new();
        for layer in 0..LAYERS {
            weights.push([matrix(layer, Part::Attention)?, matrix(layer, Part::Mlp)?]);
        }
        let half = |half: usize| -> anyhow::Result<Half> {
            let states = states(half, rows);
            let normed: Vec<f32> = states.iter().map(|state| NORM * state).collect();
            Ok(Half {
                normed: compute.clone_htod(&normed)?,
                partial: compute.alloc_zeros(states.len())?,
                states: compute.clone_htod(&states)?,
            })
        };
        let (halves, kernels) = ([half(0)?, half(1)?], Kernels::load(comm.context())?);
        let (compute, timeline) = (compute.clone(), Timeline::start(compute)?);
        Ok(Self { comm, compute, kernels, timeline, rows, layer: 0, weights, halves })
    }

    /// Enqueues all layers.
    fn run(&mut self) -> anyhow::Result<()> {
        let (compute, comm) = (self.compute.clone(), self.comm.stream());
        let mut pending: Pending = [None, None];
        for layer in 0..LAYERS {
            self.layer = layer;
            pending = forward(&compute, &comm, self, pending)?;
        }
        finish(&compute, self, pending)
    }

    /// Compares every element of both halves' states. Nothing rounds: the states are far less than 2²⁴ times the smallest power of
    /// ½ in them.
    fn verify(&self) -> anyhow::Result<()> {
        for (half, name) in HALVES.iter().enumerate() {
            let expected = serial(self.comm.world_size(), half, self.rows);
            Expected::new(self.comm.rank(), &format!("the states of half {name}"), &expected)
                .exactly(&self.compute.clone_dtoh(&self.halves[half].states)?)?;
        }
        Ok(())
    }
}

impl Layer for Model<'_> {
    fn product(&mut self, part: Part, half: usize) -> anyhow::Result<()> {
        let Self { compute, kernels, timeline, rows, layer, weights, halves, .. } = self;
        let (name, weights) = match part {
            Part::Attention => ("attn", &weights[*layer][0]),
            Part::Mlp => ("MLP", &weights[*layer][1]),
        };
        let Half { normed, partial, .. } = &mut halves[half];
        timeline.record(compute, Kind::Compute, format!("{name} {}", HALVES[half]), || {
            kernels.matmul(compute, partial, normed, weights, Product { m: *rows, n: WIDTH, k: WIDTH })
        })
    }

    fn all_reduce(&mut self, half: usize) -> anyhow::Result<()> {
        let Self { comm, timeline, halves, .. } = self;
        let partial = &mut halves[half].partial;
        timeline.record(&comm.stream(), Kind::Communication, format!("sum {}", HALVES[half]), || {
            comm.all_reduce_in_place(partial, &ReduceOp::Sum).readable()?;
            Ok(())
        })
    }

    fn residual_and_norm(&mut self, half: usize) -> anyhow::Result<()> {
        let Self { compute, kernels, timeline, halves, .. } = self;
        let Half { states, normed, partial } = &mut halves[half];
        timeline.record(compute, Kind::Compute, format!("add {}", HALVES[half]), || {
            kernels.axpy(compute, states, partial, 1.0)?;
            compute.memcpy_dtod(states, normed)?;
            kernels.scale(compute, normed, NORM)
        })
    }
}
