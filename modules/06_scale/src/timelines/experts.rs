//! Sends tokens to their experts and back. More than half of the tokens choose the same expert.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::{CudaEvent, CudaStream};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::timeline::{Drawing, Kind, RankRun, Span, on_one_clock, timed};
use lab::{Expected, Kernels, Timeline, irregular};
use m06_scale::experts::forward;
use overlap::analysis::align;

const WIDTH: usize = 64;
/// How often an expert passes over its tokens.
const PASSES: usize = 24;
/// The rank whose expert most tokens choose.
const POPULAR: usize = 1;

/// Runs one layer of experts, and shows all GPUs on one clock.
pub(crate) fn run(streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Drawing> {
    let tokens = 64 * scale;
    let ranks = rendezvous(streams, |comm| on_rank(&comm, tokens))?;
    let title = format!("{tokens} tokens of each of {} GPUs, to their experts and back", streams.len());
    Drawing::of_gpus(ranks, |spans| on_one_clock(spans, align), |_| title)
}

/// Returns the expert that each token of a rank chooses: three of eight choose in turn, and the others the popular one.
fn choices(rank: usize, world_size: usize, tokens: usize) -> Vec<usize> {
    let choice = |token: usize| if token % 8 < 3 { (token + rank) % world_size } else { POPULAR };
    (0..tokens).map(choice).collect()
}

/// Returns the factor of a rank's expert.
fn factor(rank: usize) -> f32 {
    (rank + 1) as f32
}

fn on_rank(comm: &Comm, count: usize) -> anyhow::Result<RankRun> {
    let (stream, kernels) = (comm.stream(), Kernels::load(comm.context())?);
    let choices = choices(comm.rank(), comm.world_size(), count);
    let tokens = irregular::integers(comm.rank(), count * WIDTH);
    let on_gpu = stream.clone_htod(&tokens)?;
    let mut output = stream.alloc_zeros::<f32>(tokens.len())?;
    let mut layer = |marks: &mut Marks| {
        marks.add(&stream)?;
        let expert = |guests: &mut cudarc::driver::CudaViewMut<f32>| {
            marks.add(&stream)?;
            marks.guests = guests.len() / WIDTH;
            if !guests.is_empty() {
                kernels.scale(&stream, guests, factor(comm.rank()))?;
                // An even number of changes of the sign changes nothing.
                (0..PASSES).try_for_each(|_| kernels.scale(&stream, guests, -1.0))?;
            }
            marks.add(&stream)
        };
        forward(comm, &kernels, &on_gpu.as_view(), &choices, WIDTH, expert, &mut output.as_view_mut())?;
        marks.add(&stream)
    };
    // The first use of a kernel loads it, and the first messages set up connections.
    layer(&mut Marks::default())?;
    let (mut timeline, mut marks) = (Timeline::start(&stream)?, Marks::default());
    timeline.mark_clock(comm)?;
    layer(&mut marks)?;
    timeline.mark_clock(comm)?;
    let mut spans = timeline.spans()?;
    spans.extend(marks.spans(&timeline)?);
    let output = stream.clone_dtoh(&output)?;
    stream.synchronize()?;
    let expected: Vec<f32> = choices
        .iter()
        .zip(tokens.chunks_exact(WIDTH))
        .flat_map(|(&choice, token)| token.iter().map(move |value| factor(choice) * value))
        .collect();
    Ok(RankRun::new(spans, Expected::new(comm.rank(), "the output", &expected).exactly(&output)))
}

/// The events before and after each part of the layer, and the number of tokens that came to the expert.
#[derive(Default)]
struct Marks {
    events: Vec<CudaEvent>,
    guests: usize,
}

impl Marks {
    fn add(&mut self, stream: &CudaStream) -> anyhow::Result<()> {
        self.events.push(timed(stream)?);
        Ok(())
    }

    fn spans(&self, timeline: &Timeline) -> anyhow::Result<Vec<Span>> {
        let times =
            self.events.iter().map(|event| timeline.time(event)).collect::<anyhow::Result<Vec<_>>>()?;
        let [start, arrived, done, end] =
            <[f64; 4]>::try_from(times).ok().context("`forward` didn't call the expert exactly once")?;
        let span = |kind, name: String, start, end| Span { kind, name, start, end };
        Ok(vec![
            span(Kind::Communication, "to the experts".to_owned(), start, arrived),
            span(Kind::Compute, format!("{} tokens", self.guests), arrived, done),
            span(Kind::Communication, "back".to_owned(), done, end),
        ])
    }
}
