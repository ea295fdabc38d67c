//! Checks for `overlap/copies`.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaEvent, CudaViewMut, PinnedHostSlice};
use cudarc::nccl::{Comm, ReduceOp};
use lab::timeline::{Kind, Timeline, timed};
use lab::{
    Budget, Check, Expected, Guarded, Kernels, Readable, each_call_fails, ensure, irregular, while_blocked,
};

use crate::exercise::bench::{
    MILLISECOND, address, ensure_beside_or, on_each_rank, on_ranks, on_two_ranks, span,
};
use crate::overlap::copies::{Streams, Work, stream_through};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("copies::every_batch_arrives", every_batch_arrives)
            .calls(&["stream_through"])
            .min_ranks(2),
        Check::new("copies::a_late_copy_is_waited_for", a_late_copy_is_waited_for)
            .calls(&["stream_through"])
            .min_ranks(2),
        Check::new("copies::a_late_computation_is_waited_for", a_late_computation_is_waited_for)
            .calls(&["stream_through"])
            .min_ranks(2),
        Check::new("copies::a_late_sum_is_waited_for", a_late_sum_is_waited_for)
            .calls(&["stream_through"])
            .min_ranks(2),
        Check::new("copies::the_next_batch_overlaps_the_sum", the_next_batch_is_computed_beside_it)
            .measures_time()
            .calls(&["stream_through"])
            .min_ranks(2),
        Check::new("copies::the_copies_are_in_their_own_stream", the_copies_are_in_their_own_stream)
            .measures_time()
            .calls(&["stream_through"])
            .min_ranks(2),
        Check::new("copies::it_returns_with_everything_enqueued", it_returns_with_everything_enqueued)
            .calls(&["stream_through"])
            .min_ranks(2),
        Check::new("copies::each_batch_is_copied_once_each_way", each_batch_is_copied_once_each_way)
            .min_ranks(3),
        Check::new("copies::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const LEN: usize = 257;

/// How long the streams spin, in nanoseconds: the copy stream before all batches, the others before each batch.
#[derive(Clone, Copy, Default)]
struct Delays {
    copy: u64,
    compute: u64,
    all_reduce: u64,
}

/// One rank's work. The result of batch i is 2 · (sum of all ranks' inputs).
struct Bench<'a> {
    comm: &'a Comm,
    streams: Streams,
    kernels: Kernels,
    timeline: Timeline,
    delays: Delays,
    /// For each batch, an event after all copies enqueued before its computation.
    copied: Vec<CudaEvent>,
    inputs: Vec<PinnedHostSlice<f32>>,
    outputs: Vec<PinnedHostSlice<f32>>,
    buffers: [Guarded<f32>; 2],
}

/// Returns a rank's input for a batch.
fn input(rank: usize, batch: usize) -> Vec<f32> {
    irregular::integers(10 * batch + rank, LEN)
}

/// Returns the initial values of the outputs and buffers.
fn stale(which: usize) -> Vec<f32> {
    irregular::integers(10_000 + which, LEN)
}

/// Allocates pinned memory that is not write-combined, so the host can read it quickly.
fn pinned(context: &Arc<CudaContext>, values: &[f32]) -> anyhow::Result<PinnedHostSlice<f32>> {
    // SAFETY: every element is written immediately.
    let mut slice = unsafe { context.alloc_pinned_with_flags(values.len(), 0) }?;
    slice.as_mut_slice()?.copy_from_slice(values);
    Ok(slice)
}

impl<'a> Bench<'a> {
    fn new(comm: &'a Comm, batches: usize, delays: Delays) -> anyhow::Result<Self> {
        let context = comm.context();
        let streams =
            Streams { compute: context.new_stream()?, comm: comm.stream(), copy: context.new_stream()? };
        for (stream, role) in
            [(&streams.compute, "compute"), (&streams.comm, "comm"), (&streams.copy, "copy")]
        {
            lab::name_stream(stream, role)?;
        }
        Self::on(streams, comm, batches, delays)
    }

    /// Uses these streams, which may be the same one.
    fn on(streams: Streams, comm: &'a Comm, batches: usize, delays: Delays) -> anyhow::Result<Self> {
        let context = comm.context();
        // SAFETY: events or a synchronize call must order all uses on different streams; the check verifies this.
        unsafe { context.disable_event_tracking() };
        let kernels = Kernels::load(context)?;
        let inputs = (0..batches).map(|batch| pinned(context, &input(comm.rank(), batch)));
        let inputs = inputs.collect::<anyhow::Result<_>>()?;
        let outputs = (0..batches).map(|batch| pinned(context, &stale(batch)));
        let outputs = outputs.collect::<anyhow::Result<_>>()?;
        let buffers = [Guarded::new(&streams.copy, &stale(100))?, Guarded::new(&streams.copy, &stale(101))?];
        // Warms up: the first use of a kernel loads it, and the first all-reduce sets up its connections.
        let mut one = streams.comm.alloc_zeros::<f32>(LEN)?;
        comm.all_reduce_in_place(&mut one, &ReduceOp::Sum).readable()?;
        kernels.scale(&streams.comm, &mut one, 1.0)?;
        for stream in [&streams.compute, &streams.comm, &streams.copy] {
            kernels.spin(stream, 0)?;
            stream.synchronize()?;
        }
        let timeline = Timeline::start(&streams.compute)?;
        let copied = Vec::new();
        Ok(Self { comm, streams, kernels, timeline, delays, copied, inputs, outputs, buffers })
    }

    fn run(&mut self) -> anyhow::Result<()> {
        let Self { comm, streams, kernels, timeline, delays, copied, inputs, outputs, buffers } = self;
        timeline.record(&streams.copy, Kind::Copy, "the spin before", || {
            kernels.spin(&streams.copy, delays.copy)
        })?;
        let [first, second] = buffers;
        let mut buffers = [first.view_mut(), second.view_mut()];
        let addresses = [address(&buffers[0], &streams.copy), address(&buffers[1], &streams.copy)];
        let mut batches = Batches { comm, streams, kernels, timeline, copied, delays: *delays, addresses };
        stream_through(streams, &mut batches, &mut buffers, inputs, outputs)
    }

    /// Compares the outputs after the copy stream is done.
    fn compare(&self) -> anyhow::Result<()> {
        let (rank, world_size) = (self.comm.rank(), self.comm.world_size());
        self.streams.copy.synchronize()?;
        let sum = |batch: usize| -> Vec<f32> {
            let inputs: Vec<_> = (0..world_size).map(|rank| input(rank, batch)).collect();
            (0..LEN).map(|at| inputs.iter().map(|input| 2.0 * input[at]).sum()).collect()
        };
        for (batch, output) in self.outputs.iter().enumerate() {
            // Integers below 2²⁴ are exact in an f32.
            let (expected, own) = (sum(batch), input(rank, batch));
            let halved: Vec<f32> = expected.iter().map(|x| x / 2.0).collect();
            let doubled: Vec<f32> = own.iter().map(|x| 2.0 * x).collect();
            let name = format!("the output of batch {batch}");
            let mut comparison = Expected::new(rank, &name, &expected)
                .if_instead(&stale(batch), "it holds its old values: nothing was copied into it")
                .if_instead(
                    &doubled,
                    "these are only this rank's values: the other ranks' values are missing",
                )
                .if_instead(&own, "this is the batch as it was copied in: it was neither computed nor summed")
                .if_instead(
                    &halved,
                    "this is the sum of the batches as they were copied in: they were not computed",
                );
            for other in (0..self.outputs.len()).filter(|&other| other != batch) {
                let uses = match other % 2 == batch % 2 {
                    true => ", which uses the same buffer",
                    false => ", which uses the other buffer",
                };
                let cause = format!("this is the output of batch {other}{uses}");
                comparison = comparison.if_instead(&sum(other), cause);
            }
            comparison.exactly(output.as_slice()?)?;
        }
        self.buffers.iter().try_for_each(|buffer| buffer.read().map(drop))
    }
}

/// The callbacks for `stream_through`.
struct Batches<'a> {
    comm: &'a Comm,
    streams: &'a Streams,
    kernels: &'a Kernels,
    timeline: &'a mut Timeline,
    copied: &'a mut Vec<CudaEvent>,
    delays: Delays,
    /// The addresses of the two buffers.
    addresses: [CUdeviceptr; 2],
}

impl Batches<'_> {
    /// Fails if `call` got the wrong buffer. With that buffer, the call would cause a race, whose report can't know that
    /// the other buffer was meant.
    fn ensure_gets_its_buffer(
        &self,
        call: &str,
        batch: usize,
        buffer: &CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        ensure!(
            address(buffer, &self.streams.copy) == self.addresses[batch % 2],
            "rank {}: for batch {batch}, `{call}` did not get `buffers[{}]`: batch i uses `buffers[i % 2]`",
            self.comm.rank(),
            batch % 2
        );
        Ok(())
    }
}

impl Work for Batches<'_> {
    fn compute(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        self.ensure_gets_its_buffer("compute", batch, buffer)?;
        let Self { streams, kernels, delays, .. } = self;
        self.copied.push(timed(&streams.copy)?);
        self.timeline.record(&streams.compute, Kind::Compute, format!("batch {batch}'s computation"), || {
            kernels.spin(&streams.compute, delays.compute)?;
            kernels.scale(&streams.compute, buffer, 2.0)
        })
    }

    fn all_reduce(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        self.ensure_gets_its_buffer("all_reduce", batch, buffer)?;
        let Self { comm, streams, kernels, delays, .. } = self;
        let name = format!("batch {batch}'s all-reduce");
        self.timeline.record(&streams.comm, Kind::Communication, name, || {
            kernels.spin(&streams.comm, delays.all_reduce)?;
            comm.all_reduce_in_place(buffer, &ReduceOp::Sum).readable()?;
            Ok(())
        })
    }
}

fn every_batch_arrives() -> anyhow::Result<()> {
    on_ranks(1, |comm| {
        // With one stream in all three roles, the calls run in their order, so nothing races, and a wrong order leads to
        // wrong values.
        let stream = comm.stream();
        let streams = Streams { compute: stream.clone(), comm: stream.clone(), copy: stream };
        let mut bench = Bench::on(streams, comm, 5, Delays::default())?;
        bench.run()?;
        bench.compare()?;
        passes(comm, 3, Delays::default())
    })?;
    on_each_rank(|comm| {
        [0, 1, 2, 5].into_iter().try_for_each(|batches| passes(comm, batches, Delays::default()))
    })
}

fn passes(comm: &Comm, batches: usize, delays: Delays) -> anyhow::Result<()> {
    let mut bench = Bench::new(comm, batches, delays)?;
    bench.run()?;
    bench.compare()
}

fn a_late_copy_is_waited_for() -> anyhow::Result<()> {
    on_each_rank(|comm| passes(comm, 3, Delays { copy: MILLISECOND, ..Delays::default() }))
}

fn a_late_computation_is_waited_for() -> anyhow::Result<()> {
    on_each_rank(|comm| {
        let compute = if comm.rank() == 1 { MILLISECOND } else { 0 };
        passes(comm, 3, Delays { compute, ..Delays::default() })
    })
}

fn a_late_sum_is_waited_for() -> anyhow::Result<()> {
    on_each_rank(|comm| {
        let all_reduce = if comm.rank() == 0 { MILLISECOND } else { 0 };
        passes(comm, 3, Delays { all_reduce, ..Delays::default() })
    })
}

fn the_next_batch_is_computed_beside_it() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        let delays = Delays { compute: MILLISECOND, all_reduce: MILLISECOND, copy: 0 };
        let mut bench = Bench::new(comm, 3, delays)?;
        bench.run()?;
        bench.compare()?;
        let spans = bench.timeline.spans()?;
        (0..2).try_for_each(|batch| {
            let (sum, next) =
                (format!("batch {batch}'s all-reduce"), format!("batch {}'s computation", batch + 1));
            // Checks whether the batch arrived only after the sum, so that its computation could not start earlier.
            let came_late = || {
                let came = bench.timeline.time(&bench.copied[batch + 1])?;
                let late = came >= span(&spans, &sum)?.end;
                let told = "the copies that were enqueued before that computation were also done only after the \
                            all-reduce";
                Ok(late.then(|| told.to_owned()))
            };
            ensure_beside_or(comm.rank(), &spans, &sum, &next, came_late)
        })
    })
}

fn the_copies_are_in_their_own_stream() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        let mut bench = Bench::new(comm, 2, Delays { copy: 2 * MILLISECOND, ..Delays::default() })?;
        bench.run()?;
        bench.compare()?;
        let spans = bench.timeline.spans()?;
        let busy = span(&spans, "the spin before")?;
        let first = span(&spans, "batch 0's computation")?;
        ensure!(
            first.end >= busy.end,
            "rank {}: the copy stream was busy until {:.1} ms, but batch 0 had been computed by {:.1} ms, so it was \
             copied in on another stream",
            comm.rank(),
            busy.end,
            first.end
        );
        Ok(())
    })
}

fn it_returns_with_everything_enqueued() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        let mut first = Bench::new(comm, 3, Delays::default())?;
        first.run()?;
        comm.context().synchronize()?;
        let mut bench = Bench::new(comm, 3, Delays::default())?;
        let copy = bench.streams.copy.clone();
        while_blocked("stream_through", "the copy stream", &copy, || bench.run())?;
        bench.compare()
    })
}

fn each_batch_is_copied_once_each_way() -> anyhow::Result<()> {
    const BATCHES: u64 = 5;
    on_ranks(3, |comm| {
        let mut bench = Bench::new(comm, BATCHES as usize, Delays::default())?;
        let bytes = BATCHES * (LEN * size_of::<f32>()) as u64;
        let Streams { compute, comm: sums, copy } = &bench.streams;
        Budget::of("stream_through")
            .collectives(&[("AllReduce", LEN); BATCHES as usize])
            .copies(2 * BATCHES)
            .bytes_to_device(bytes)
            .bytes_to_host(bytes)
            .allocations(0)
            .new_streams(0)
            .host_waits(0)
            .polls(0)
            .streams(&[(compute, "the compute stream"), (sums, "the comm stream"), (copy, "the copy stream")])
            .copies_on(copy, "the copy stream")
            .spend(|| bench.run())?;
        bench.compare()
    })
}

/// Work that only fills the buffer, on the stream of each call.
struct Idle<'a>(&'a Streams);

impl Work for Idle<'_> {
    fn compute(&mut self, _batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        Ok(self.0.compute.memset_zeros(buffer)?)
    }

    fn all_reduce(&mut self, _batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        Ok(self.0.comm.memset_zeros(buffer)?)
    }
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    const BATCHES: usize = 3;
    let compute = lab::streams(1)?.remove(0);
    let context = compute.context();
    // SAFETY: the exercise's events order all work on the three streams.
    unsafe { context.disable_event_tracking() };
    let streams =
        &Streams { comm: context.new_stream()?, copy: context.new_stream()?, compute: compute.clone() };
    let inputs: Vec<_> =
        (0..BATCHES).map(|at| pinned(context, &input(0, at))).collect::<anyhow::Result<_>>()?;
    each_call_fails("stream_through", || {
        let outputs = (0..BATCHES).map(|at| pinned(context, &stale(at)));
        let mut outputs = outputs.collect::<anyhow::Result<Vec<_>>>()?;
        let mut buffers = [streams.copy.alloc_zeros::<f32>(LEN)?, streams.copy.alloc_zeros::<f32>(LEN)?];
        streams.copy.synchronize()?;
        let inputs = &inputs;
        Ok(move || {
            let [first, second] = &mut buffers;
            let mut buffers = [first.as_view_mut(), second.as_view_mut()];
            let ran = stream_through(streams, &mut Idle(streams), &mut buffers, inputs, &mut outputs);
            // Other checks report stream errors.
            let _ = context.synchronize();
            ran
        })
    })
}
