//! Checks for `overlap/pipeline_parallel`.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::bail;
use approx::abs_diff_eq;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::timeline::{Kind, Span, Timeline};
use lab::{
    Budget, Check, Expected, Guarded, Kernels, Readable, each_call_fails, ensure, irregular, while_blocked,
};

use crate::exercise::bench::{
    MILLISECOND, address, ensure_beside, ensure_takes, mean, on_each_rank, on_ranks, on_two_ranks,
};
use crate::overlap::pipeline_parallel::{Stage, bubble, run_stage};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new(
            "pipeline_parallel::every_micro_batch_passes_every_stage",
            every_micro_batch_passes_every_stage,
        )
        .calls(&["run_stage"])
        .min_ranks(2),
        Check::new("pipeline_parallel::a_late_stage_is_waited_for", a_late_stage_is_waited_for)
            .calls(&["run_stage"])
            .min_ranks(3),
        Check::new("pipeline_parallel::slow_messages_are_waited_for", slow_messages_are_waited_for)
            .calls(&["run_stage"])
            .min_ranks(2),
        Check::new("pipeline_parallel::receiving_overlaps_computation", receiving_overlaps_computation)
            .measures_time()
            .calls(&["run_stage"])
            .min_ranks(3),
        Check::new("pipeline_parallel::it_returns_with_everything_enqueued", it_returns_with_all_enqueued)
            .calls(&["run_stage"])
            .min_ranks(2),
        Check::new("pipeline_parallel::the_bubble_is_what_is_idle", the_bubble_is_what_is_idle)
            .measures_time()
            .calls(&["bubble"]),
        Check::new("pipeline_parallel::the_order_needs_only_events", the_order_needs_only_events),
        Check::new("pipeline_parallel::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// The length of a micro-batch. The last micro-batch is shorter, like the remainder of a batch.
const LEN: usize = 131;
const SHORTER: usize = 40;

/// How long a stage spins before it computes, and before it receives, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Delays {
    compute: u64,
    receive: u64,
}

/// One rank's stage. Each stage doubles its input, and adds its own bias.
struct Line<'a> {
    comm: &'a Comm,
    compute: Arc<CudaStream>,
    kernels: Kernels,
    timeline: Timeline,
    delays: Delays,
    bias: CudaSlice<f32>,
    /// The first stage's data.
    inputs: Vec<CudaSlice<f32>>,
    /// The last stage's results.
    outputs: Vec<CudaSlice<f32>>,
    /// The micro-batch in each buffer, by the buffer's address.
    held: HashMap<CUdeviceptr, Held>,
}

/// A micro-batch that has been received, but not sent yet.
#[derive(Clone, Copy)]
struct Held {
    micro_batch: usize,
    is_computed: bool,
}

fn input(micro_batch: usize, micro_batches: usize) -> Vec<f32> {
    irregular::integers(micro_batch, if micro_batch + 1 == micro_batches { LEN - SHORTER } else { LEN })
}

fn bias(stage: usize) -> Vec<f32> {
    irregular::integers(300 + stage, LEN)
}

fn stale(len: usize) -> Vec<f32> {
    irregular::integers(999, len)
}

/// Returns the results after this many stages. Integers below 2²⁴ are exact in an f32.
fn serial(mut values: Vec<f32>, stages: usize) -> Vec<f32> {
    for stage in 0..stages {
        values.iter_mut().zip(bias(stage)).for_each(|(value, bias)| *value = 2.0 * *value + bias);
    }
    values
}

impl<'a> Line<'a> {
    fn new(comm: &'a Comm, micro_batches: usize, delays: Delays) -> anyhow::Result<Self> {
        // SAFETY: events or a synchronize call must order all uses on different streams; the check verifies this.
        let compute = unsafe { lab::untracked_compute_stream(comm)? };
        let kernels = Kernels::load(comm.context())?;
        let bias = compute.clone_htod(&bias(comm.rank()))?;
        let input = |at| input(at, micro_batches);
        let inputs = (0..micro_batches).map(|at| Ok(compute.clone_htod(&input(at))?));
        let inputs = inputs.collect::<anyhow::Result<_>>()?;
        let outputs = (0..micro_batches).map(|at| Ok(compute.clone_htod(&stale(input(at).len()))?));
        let outputs = outputs.collect::<anyhow::Result<_>>()?;
        warm_up(comm, &compute, &kernels)?;
        let timeline = Timeline::start(&comm.stream())?;
        let held = HashMap::new();
        Ok(Self { comm, compute, kernels, timeline, delays, bias, inputs, outputs, held })
    }

    fn is_last(&self) -> bool {
        self.comm.rank() + 1 == self.comm.world_size()
    }

    fn run(&mut self) -> anyhow::Result<[Guarded<f32>; 2]> {
        let (compute, comm) = (self.compute.clone(), self.comm.stream());
        let mut buffers = [Guarded::new(&comm, &stale(LEN))?, Guarded::new(&comm, &stale(LEN))?];
        // A sum ends at the same time on all ranks, so all of their clocks start then.
        let mut one = comm.alloc_zeros::<f32>(1)?;
        self.comm.all_reduce_in_place(&mut one, &ReduceOp::Sum).readable()?;
        self.timeline = Timeline::start(&comm)?;
        comm.synchronize()?;
        let [first, second] = &mut buffers;
        let micro_batches = self.inputs.len();
        run_stage(&compute, &comm, self, &mut [first.view_mut(), second.view_mut()], micro_batches)?;
        Ok(buffers)
    }

    /// Compares the last stage's results after its comm stream is done.
    fn compare(&self, buffers: &[Guarded<f32>; 2]) -> anyhow::Result<()> {
        let (rank, stages, micro_batches) = (self.comm.rank(), self.comm.world_size(), self.inputs.len());
        self.comm.stream().synchronize()?;
        for (at, output) in self.outputs.iter().enumerate().filter(|_| self.is_last()) {
            let input = input(at, micro_batches);
            Expected::new(rank, &format!("the result of micro-batch {at}"), &serial(input.clone(), stages))
                .if_instead(&stale(input.len()), "it holds its old values")
                .if_instead(
                    &serial(input, stages - 1),
                    "it is what the last stage received, not what it computed",
                )
                .exactly(&self.comm.stream().clone_dtoh(output)?)?;
        }
        buffers.iter().try_for_each(|buffer| buffer.read().map(drop))
    }

    fn name(&self, what: &str, micro_batch: usize) -> String {
        format!("{what} micro-batch {micro_batch}")
    }

    fn ensure_there_is(&self, micro_batch: usize) -> anyhow::Result<()> {
        ensure!(
            micro_batch < self.inputs.len(),
            "stage {}: `receive` was called for micro-batch {micro_batch}, but the number of micro-batches is {}, \
             counted from 0: no stage sends it, so the receive will never end",
            self.comm.rank(),
            self.inputs.len()
        );
        Ok(())
    }

    /// Fails if `call` got a buffer that does not hold this micro-batch, or not at this step. Enqueuing the call would
    /// then cause a race, whose report can't know that another buffer was meant.
    fn ensure_holds(&self, call: &str, buffer: CUdeviceptr, micro_batch: usize) -> anyhow::Result<()> {
        let rank = self.comm.rank();
        let Some(held) = self.held.get(&buffer) else {
            bail!(
                "rank {rank}: for micro-batch {micro_batch}, `{call}` got a buffer into which nothing has been received \
                 since it was last sent"
            )
        };
        ensure!(
            held.micro_batch == micro_batch,
            "rank {rank}: for micro-batch {micro_batch}, `{call}` got the buffer that holds micro-batch {}: pass \
             `buffers[i % 2]` for micro-batch i",
            held.micro_batch
        );
        ensure!(
            held.is_computed || call == "compute",
            "rank {rank}: `send` was called for micro-batch {micro_batch} before `compute`"
        );
        ensure!(
            !held.is_computed || call == "send",
            "rank {rank}: `compute` was called twice for micro-batch {micro_batch}"
        );
        Ok(())
    }
}

/// Warms up: the first use of a kernel loads it, and the first message and the first collective each set up connections
/// of their own.
fn warm_up(comm: &Comm, compute: &Arc<CudaStream>, kernels: &Kernels) -> anyhow::Result<()> {
    let (rank, last) = (comm.rank() as i32, comm.world_size() as i32 - 1);
    let (mut one, other) = (compute.alloc_zeros::<f32>(LEN)?, compute.alloc_zeros::<f32>(LEN)?);
    kernels.spin(compute, 0)?;
    kernels.scale(compute, &mut one, 1.0)?;
    kernels.axpy(compute, &mut one, &other, 1.0)?;
    compute.synchronize()?;
    if rank > 0 {
        comm.recv(&mut one, rank - 1).readable()?;
    }
    if rank < last {
        comm.send(&other, rank + 1).readable()?;
    }
    comm.stream().synchronize()?;
    comm.all_reduce_in_place(&mut one, &ReduceOp::Sum).readable()?;
    Ok(comm.stream().synchronize()?)
}

impl Stage for Line<'_> {
    fn receive(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        self.ensure_there_is(micro_batch)?;
        let name = self.name("receiving", micro_batch);
        let Self { comm, kernels, timeline, delays, inputs, held, .. } = self;
        let stream = comm.stream();
        // Enqueuing this receive would cause a race. The report would then suggest a wait, which does not bring back
        // the lost micro-batch.
        let received = Held { micro_batch, is_computed: false };
        if let Some(before) = held.insert(address(buffer, &stream), received) {
            bail!(
                "rank {}: for micro-batch {micro_batch}, `receive` got the buffer of micro-batch {before} before \
                 `{call}` was called for micro-batch {before}{instead}",
                comm.rank(),
                before = before.micro_batch,
                call = if before.is_computed { "send" } else { "compute" },
                instead = match before.micro_batch % 2 == micro_batch % 2 {
                    true => "",
                    false => ": use the other buffer",
                },
            );
        }
        let mut part = buffer.slice_mut(..inputs[micro_batch].len());
        timeline.record(&stream, Kind::Communication, name, || {
            kernels.spin(&stream, delays.receive)?;
            match comm.rank() {
                0 => stream.memcpy_dtod(&inputs[micro_batch], &mut part)?,
                rank => {
                    comm.recv(&mut part, rank as i32 - 1).readable()?;
                }
            }
            Ok(())
        })
    }

    fn compute(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let name = self.name("computing", micro_batch);
        let at = address(buffer, &self.compute);
        self.ensure_holds("compute", at, micro_batch)?;
        self.held.insert(at, Held { micro_batch, is_computed: true });
        let Self { compute, kernels, timeline, delays, bias, inputs, .. } = self;
        let len = inputs[micro_batch].len();
        let mut part = buffer.slice_mut(..len);
        timeline.record(compute, Kind::Compute, name, || {
            kernels.spin(compute, delays.compute)?;
            kernels.scale(compute, &mut part, 2.0)?;
            kernels.axpy(compute, &mut part, &bias.slice(..len), 1.0)
        })
    }

    fn send(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let at = address(buffer, &self.comm.stream());
        self.ensure_holds("send", at, micro_batch)?;
        self.held.remove(&at);
        let (name, last) = (self.name("sending", micro_batch), self.is_last());
        let Self { comm, timeline, inputs, outputs, .. } = self;
        let stream = comm.stream();
        let part = buffer.slice(..inputs[micro_batch].len());
        timeline.record(&stream, Kind::Communication, name, || {
            if last {
                stream.memcpy_dtod(&part, &mut outputs[micro_batch])?;
            } else {
                comm.send(&part, comm.rank() as i32 + 1).readable()?;
            }
            Ok(())
        })
    }
}

fn passes(comm: &Comm, micro_batches: usize, delays: Delays) -> anyhow::Result<()> {
    let mut line = Line::new(comm, micro_batches, delays)?;
    let buffers = line.run()?;
    line.compare(&buffers)
}

fn every_micro_batch_passes_every_stage() -> anyhow::Result<()> {
    // A single stage is both the first and the last.
    on_ranks(1, |comm| passes(comm, 3, Delays::default()))?;
    // Only the last stage sees the results, so no stage starts on other micro-batches before all are done.
    [1, 2, 5, 0]
        .into_iter()
        .try_for_each(|micro_batches| on_each_rank(|comm| passes(comm, micro_batches, Delays::default())))
}

fn a_late_stage_is_waited_for() -> anyhow::Result<()> {
    on_ranks(3, |comm| {
        let compute = if comm.rank() == 1 { MILLISECOND / 2 } else { 0 };
        passes(comm, 3, Delays { compute, ..Delays::default() })
    })
}

fn slow_messages_are_waited_for() -> anyhow::Result<()> {
    on_two_ranks(|comm| passes(comm, 3, Delays { receive: MILLISECOND / 2, compute: 0 }))
}

fn receiving_overlaps_computation() -> anyhow::Result<()> {
    const MICRO_BATCHES: usize = 4;
    on_ranks(3, |comm| {
        let (rank, stages) = (comm.rank(), comm.world_size());
        let mut line = Line::new(comm, MICRO_BATCHES, Delays { compute: MILLISECOND, receive: 0 })?;
        let buffers = line.run()?;
        line.compare(&buffers)?;
        let spans = line.timeline.spans()?;
        // The first stage receives nothing. It copies its data, which takes almost no time.
        for next in (1..MICRO_BATCHES).filter(|_| rank > 0) {
            let (receiving, computing) = (line.name("receiving", next), line.name("computing", next - 1));
            ensure_beside(rank, &spans, &receiving, &computing)?;
        }
        if !line.is_last() {
            return Ok(());
        }
        // The time starts when all stages start their clocks.
        let from_the_start = Span { kind: Kind::Compute, name: "it".to_owned(), start: 0.0, end: 0.0 };
        let computing = mean(&spans, "computing");
        let spans = [&[from_the_start][..], &spans].concat();
        let steps = (MICRO_BATCHES + stages - 1) as f64;
        ensure_takes(rank, &spans, steps * computing, "(m + p − 1) · t")
    })
}

fn it_returns_with_all_enqueued() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        let mut first = Line::new(comm, 3, Delays::default())?;
        let _first_buffers = first.run()?;
        comm.context().synchronize()?;
        let mut line = Line::new(comm, 3, Delays::default())?;
        let compute = line.compute.clone();
        let buffers = while_blocked("run_stage", "the compute stream", &compute, || line.run())?;
        line.compare(&buffers)
    })
}

fn the_bubble_is_what_is_idle() -> anyhow::Result<()> {
    for (stages, micro_batches, idle, steps) in [(1, 7, 0, 7), (2, 1, 1, 2), (4, 4, 3, 7), (3, 100, 2, 102)] {
        let (expected, got) = (f64::from(idle) / f64::from(steps), bubble(stages, micro_batches));
        ensure!(
            // One division of f64 rounds by 1e-16.
            abs_diff_eq!(got, expected, epsilon = 1e-12),
            "bubble({stages}, {micro_batches}): expected {expected:.4}, got {got:.4}\n  the last micro-batch is done after {steps} steps, and each stage is idle in {idle} of them"
        );
    }
    Ok(())
}

/// A stage that only fills the buffer, on the stream of each call.
struct Idle {
    compute: Arc<CudaStream>,
    comm: Arc<CudaStream>,
}

impl Idle {
    fn new() -> anyhow::Result<Self> {
        let compute = lab::streams(1)?.remove(0);
        // SAFETY: the exercise's events order all work on the two streams.
        unsafe { compute.context().disable_event_tracking() };
        let comm = compute.context().new_stream()?;
        Ok(Self { compute, comm })
    }

    fn run(&mut self, buffers: &mut [CudaSlice<f32>; 2], micro_batches: usize) -> anyhow::Result<()> {
        let (compute, comm) = (self.compute.clone(), self.comm.clone());
        let [first, second] = buffers;
        let mut buffers = [first.as_view_mut(), second.as_view_mut()];
        run_stage(&compute, &comm, self, &mut buffers, micro_batches)
    }

    fn buffers(&self) -> anyhow::Result<[CudaSlice<f32>; 2]> {
        let buffers = [self.comm.alloc_zeros(LEN)?, self.comm.alloc_zeros(LEN)?];
        self.comm.synchronize()?;
        Ok(buffers)
    }
}

impl Stage for Idle {
    fn receive(&mut self, _micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        Ok(self.comm.memset_zeros(buffer)?)
    }

    fn compute(&mut self, _micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        Ok(self.compute.memset_zeros(buffer)?)
    }

    fn send(&mut self, _micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        Ok(self.comm.memset_zeros(buffer)?)
    }
}

fn the_order_needs_only_events() -> anyhow::Result<()> {
    let mut stage = Idle::new()?;
    let mut buffers = stage.buffers()?;
    for micro_batches in [1, 2, 3, 7] {
        let budget = Budget::of("run_stage").collectives(&[]).messages(0).kernels(0).copies(0);
        let budget = budget.fills(3 * micro_batches as u64).allocations(0).new_streams(0).host_waits(0);
        budget.polls(0).spend(|| stage.run(&mut buffers, micro_batches))?;
    }
    Ok(stage.compute.context().synchronize()?)
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("run_stage", || {
        let mut stage = Idle::new()?;
        let mut buffers = stage.buffers()?;
        Ok(move || {
            let ran = stage.run(&mut buffers, 3);
            // Other checks report stream errors.
            let _ = stage.compute.context().synchronize();
            ran
        })
    })
}
