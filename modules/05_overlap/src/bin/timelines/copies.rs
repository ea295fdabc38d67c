//! Copies batches in and out on a separate stream, in parallel with the computation and the all-reduces.

use std::sync::Arc;

use anyhow::bail;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaViewMut, HostSlice, PinnedHostSlice, SyncOnDrop,
};
use cudarc::nccl::{Comm, ReduceOp};
use init::rendezvous::rendezvous;
use lab::timeline::{Drawing, Kind, RankRun, Span};
use lab::{Expected, Kernels, Readable, Timeline, irregular};
use m05_overlap::copies::{Streams, Work, stream_through};

const BATCHES: usize = 5;
/// How often the bias is added to a batch.
const WORK: usize = 48;

/// Runs all GPUs, and shows GPU 0.
pub(super) fn run(streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Drawing> {
    let ranks = rendezvous(streams, |comm| on_rank(&comm, 1024 * scale))?;
    let mut drawing = Drawing::of_runs(format!(
        "{BATCHES} batches, in and out in a third stream: GPU 0 of {}",
        streams.len()
    ));
    drawing.add_run("GPU 0", ranks);
    Ok(drawing)
}

fn on_rank(comm: &Comm, len: usize) -> anyhow::Result<RankRun> {
    let context = comm.context();
    // SAFETY: `stream_through` orders the streams by events, and the host waits before it reads or frees anything.
    unsafe { context.disable_event_tracking() };
    let mut rank = Rank::new(comm, len)?;
    // The first use of a kernel loads it, and the first collective sets up connections.
    rank.run()?;
    let spans = rank.run()?;
    Ok(RankRun::new(spans, rank.verify()))
}

/// Returns a rank's input for a batch.
fn input(rank: usize, batch: usize, len: usize) -> Vec<f32> {
    irregular::integers(100 * batch + rank, len)
}

/// Returns the values that are added to every batch.
fn bias(len: usize) -> Vec<f32> {
    irregular::integers(1000, len)
}

/// Allocates pinned memory without write-combining, so that the host reads it as fast as any other memory.
fn pinned(context: &Arc<CudaContext>, values: &[f32]) -> anyhow::Result<PinnedHostSlice<f32>> {
    // SAFETY: every element is written below.
    let mut slice = unsafe { context.alloc_pinned_with_flags(values.len(), 0) }?;
    slice.as_mut_slice()?.copy_from_slice(values);
    Ok(slice)
}

/// One rank, with its batches in host memory.
struct Rank<'a> {
    comm: &'a Comm,
    streams: Streams,
    kernels: Kernels,
    bias: CudaSlice<f32>,
    buffers: [CudaSlice<f32>; 2],
    inputs: Vec<PinnedHostSlice<f32>>,
    outputs: Vec<PinnedHostSlice<f32>>,
}

impl<'a> Rank<'a> {
    fn new(comm: &'a Comm, len: usize) -> anyhow::Result<Self> {
        let context = comm.context();
        let (compute, copy) = (context.new_stream()?, context.new_stream()?);
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for batch in 0..BATCHES {
            inputs.push(pinned(context, &input(comm.rank(), batch, len))?);
            outputs.push(pinned(context, &vec![0.0; len])?);
        }
        let buffers = [copy.alloc_zeros(len)?, copy.alloc_zeros(len)?];
        let bias = copy.clone_htod(&bias(len))?;
        let kernels = Kernels::load(context)?;
        copy.synchronize()?;
        let streams = Streams { compute, comm: comm.stream(), copy };
        Ok(Self { comm, streams, kernels, bias, buffers, inputs, outputs })
    }

    /// Processes all batches, and returns when everything ran. Waits for the GPU.
    fn run(&mut self) -> anyhow::Result<Vec<Span>> {
        let Self { comm, streams, kernels, bias, buffers: [one, other], inputs, outputs } = self;
        let context = comm.context();
        let timeline = Timeline::start(&streams.copy)?;
        let mut batches = Batches { comm, streams, kernels, bias, timeline };
        let mut buffers = [one.as_view_mut(), other.as_view_mut()];
        // SAFETY: tracking only affects pinned memory here: cudarc records its events after each copy. Device memory was allocated
        // without events.
        unsafe { context.enable_event_tracking() };
        let enqueued = stream_through(streams, &mut batches, &mut buffers, inputs, outputs);
        // SAFETY: as above.
        unsafe { context.disable_event_tracking() };
        enqueued?;
        let mut spans = batches.timeline.spans()?;
        let copies = copies(&batches.timeline, &streams.copy, &spans, inputs, outputs)?;
        spans.extend(copies);
        streams.copy.synchronize()?;
        Ok(spans)
    }

    /// Compares every element of the outputs with the sum over all ranks.
    fn verify(&self) -> anyhow::Result<()> {
        let (world_size, len) = (self.comm.world_size(), self.bias.len());
        for (batch, output) in self.outputs.iter().enumerate() {
            let mut expected: Vec<f32> =
                bias(len).into_iter().map(|bias| (world_size * WORK) as f32 * bias).collect();
            for rank in 0..world_size {
                expected.iter_mut().zip(input(rank, batch, len)).for_each(|(sum, x)| *sum += x);
            }
            Expected::new(self.comm.rank(), &format!("the output of batch {batch}"), &expected)
                .exactly(output.as_slice()?)?;
        }
        Ok(())
    }
}

/// Returns when each copy ran. A copy ends at the event that cudarc records after it. It starts when the previous copy in the
/// stream has ended. A copy to the host also starts no earlier than the end of its all-reduce in `spans`.
fn copies(
    timeline: &Timeline,
    copy: &CudaStream,
    spans: &[Span],
    inputs: &[PinnedHostSlice<f32>],
    outputs: &[PinnedHostSlice<f32>],
) -> anyhow::Result<Vec<Span>> {
    let summed = |batch: usize| {
        let sum = spans.iter().find(|span| span.name == named("sum", batch));
        sum.map_or(0.0, |span| span.end)
    };
    let mut copies = Vec::new();
    for (batch, (input, output)) in inputs.iter().zip(outputs).enumerate() {
        for (name, start, host) in [("in", 0.0, input), ("out", summed(batch), output)] {
            let end = end_of_copy(timeline, copy, host)?;
            copies.push(Span { kind: Kind::Copy, name: named(name, batch), start, end });
        }
    }
    // All copies are on one stream, which runs them one after another.
    copies.sort_by(|one, other| one.end.total_cmp(&other.end));
    let mut before = 0.0;
    for copy in &mut copies {
        copy.start = copy.start.max(before);
        before = copy.end;
    }
    Ok(copies)
}

fn end_of_copy(timeline: &Timeline, copy: &CudaStream, host: &PinnedHostSlice<f32>) -> anyhow::Result<f64> {
    // SAFETY: only the event is read. It is not recorded again, because event tracking is off.
    let (_, synced) = unsafe { host.stream_synced_slice(copy) };
    match &synced {
        SyncOnDrop::Record(Some((event, _))) => timeline.time(event),
        _ => bail!("cudarc keeps no event for pinned memory"),
    }
}

fn named(what: &str, batch: usize) -> String {
    format!("{what} {batch}")
}

/// The work that `stream_through` calls.
struct Batches<'a> {
    comm: &'a Comm,
    streams: &'a Streams,
    kernels: &'a Kernels,
    bias: &'a CudaSlice<f32>,
    timeline: Timeline,
}

impl Work for Batches<'_> {
    fn compute(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let Self { streams, kernels, bias, timeline, .. } = self;
        timeline.record(&streams.compute, Kind::Compute, named("compute", batch), || {
            (0..WORK).try_for_each(|_| kernels.axpy(&streams.compute, buffer, *bias, 1.0))
        })
    }

    fn all_reduce(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let Self { comm, streams, timeline, .. } = self;
        timeline.record(&streams.comm, Kind::Communication, named("sum", batch), || {
            comm.all_reduce_in_place(buffer, &ReduceOp::Sum).readable()?;
            Ok(())
        })
    }
}
