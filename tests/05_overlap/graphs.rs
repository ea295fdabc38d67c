//! Checks for `overlap/graphs`.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, bail};
use cudarc::driver::sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
use cudarc::driver::sys::CUstreamCaptureStatus;
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::explain::error_text;
use lab::{
    Budget, Check, Expected, Guarded, HostGroup, Kernels, Readable, each_call_fails, ensure, irregular,
    while_blocked, without_panic,
};

use crate::exercise::bench::{on_each_rank, on_ranks, on_two_ranks};
use crate::overlap::graphs::{capture, replay};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("graphs::nothing_runs_before_the_launch", nothing_runs_before_the_launch)
            .calls(&["capture"])
            .min_ranks(2),
        Check::new("graphs::every_input_runs_through_the_graph", every_input_runs_through_the_graph)
            .calls(&["replay"])
            .min_ranks(2),
        Check::new("graphs::another_thread_may_allocate_meanwhile", another_thread_may_allocate_meanwhile)
            .calls(&["capture"])
            .min_ranks(2),
        Check::new("graphs::an_error_ends_the_capture", an_error_ends_the_capture).calls(&["capture"]),
        Check::new(
            "graphs::an_error_between_fork_and_join_is_returned",
            an_error_before_the_join_is_returned,
        )
        .calls(&["capture"]),
        Check::new("graphs::it_returns_with_everything_enqueued", it_returns_with_everything_enqueued)
            .calls(&["replay"])
            .min_ranks(2),
        Check::new("graphs::each_round_is_two_copies", each_round_is_two_copies).min_ranks(3),
        Check::new("graphs::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const LEN: usize = 1031;

/// One rank's pipeline. It turns an input into 2 · (sum over the ranks) + own bias.
struct Bench<'a> {
    comm: &'a Comm,
    compute: Arc<CudaStream>,
    kernels: Kernels,
    bias: CudaSlice<f32>,
}

fn bias(rank: usize) -> Vec<f32> {
    irregular::integers(1000 + rank, LEN)
}

/// Returns a rank's input for a round. The buffer initially holds the input of round 100.
fn input(rank: usize, round: usize) -> Vec<f32> {
    irregular::integers(10 * round + rank, LEN)
}

const AT_FIRST: usize = 100;

/// Returns a rank's output for a round.
fn output(rank: usize, world_size: usize, round: usize) -> Vec<f32> {
    let inputs: Vec<_> = (0..world_size).map(|rank| input(rank, round)).collect();
    let bias = bias(rank);
    // Integers below 2²⁴ are exact in an f32.
    (0..LEN).map(|at| inputs.iter().map(|input| 2.0 * input[at]).sum::<f32>() + bias[at]).collect()
}

impl<'a> Bench<'a> {
    fn new(comm: &'a Comm) -> anyhow::Result<Self> {
        // SAFETY: events or a synchronize call order all uses on different streams.
        let compute = unsafe { lab::untracked_compute_stream(comm)? };
        let kernels = Kernels::load(comm.context())?;
        let bias = compute.clone_htod(&bias(comm.rank()))?;
        let bench = Self { comm, compute, kernels, bias };
        // Warms up: the first use of a kernel loads it, and the first all-reduce sets up its connections.
        let mut one = bench.compute.alloc_zeros::<f32>(LEN)?;
        bench.enqueue(&mut one.as_view_mut())?;
        bench.kernels.spin(&bench.compute, 0)?;
        bench.compute.synchronize()?;
        Ok(bench)
    }

    /// Enqueues one run of the pipeline on both streams.
    fn enqueue(&self, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let (compute, comm) = (&self.compute, self.comm.stream());
        self.kernels.scale(compute, buffer, 2.0)?;
        comm.wait(&compute.record_event(None)?)?;
        self.comm.all_reduce_in_place(buffer, &ReduceOp::Sum).readable()?;
        compute.wait(&comm.record_event(None)?)?;
        self.kernels.axpy(compute, buffer, &self.bias, 1.0)
    }

    fn inputs(&self, rounds: usize) -> anyhow::Result<Vec<CudaSlice<f32>>> {
        (0..rounds).map(|round| Ok(self.compute.clone_htod(&input(self.comm.rank(), round))?)).collect()
    }

    /// Returns one output per round, with stale values.
    fn outputs(&self, rounds: usize) -> anyhow::Result<Vec<CudaSlice<f32>>> {
        (0..rounds).map(|round| Ok(self.compute.clone_htod(&stale(round))?)).collect()
    }

    fn compare(&self, replayed: &Replayed) -> anyhow::Result<()> {
        let (rank, world_size) = (self.comm.rank(), self.comm.world_size());
        self.compute.synchronize()?;
        for (round, got) in replayed.outputs.iter().enumerate() {
            let (name, right) = (format!("the output of round {round}"), output(rank, world_size, round));
            Expected::new(rank, &name, &right)
                .if_instead(
                    &output(rank, world_size, 0),
                    "it is the output of round 0: the graph works on the addresses from its capture, but the new input \
                     was not copied to that buffer",
                )
                .if_instead(&stale(round), "it holds its old values: nothing was copied into it")
                .if_instead(
                    &output(rank, world_size, AT_FIRST),
                    "it comes from the buffer's initial values: the input was not copied into it before the launch",
                )
                .if_instead(
                    &input(rank, round),
                    "it is the input: nothing was computed with it before it was copied out",
                )
                .exactly(&self.compute.clone_dtoh(got)?)?;
        }
        replayed.buffer.read().map(drop)
    }
}

fn stale(round: usize) -> Vec<f32> {
    irregular::integers(20_000 + round, LEN)
}

fn nothing_runs_before_the_launch() -> anyhow::Result<()> {
    on_each_rank(|comm| {
        let (rank, world_size) = (comm.rank(), comm.world_size());
        let bench = Bench::new(comm)?;
        let mut buffer = Guarded::new(&bench.compute, &input(rank, AT_FIRST))?;
        let graph = capture(&bench.compute, || bench.enqueue(&mut buffer.view_mut()))?;
        Expected::new(rank, "the buffer before the launch", &input(rank, AT_FIRST))
            .if_instead(
                &output(rank, world_size, AT_FIRST),
                "the pipeline has run: it was enqueued outside the capture",
            )
            .exactly(&buffer.read()?)?;
        graph.launch()?;
        Expected::new(rank, "the buffer after the launch", &output(rank, world_size, AT_FIRST))
            .if_instead(&input(rank, AT_FIRST), "it is unchanged by the launch: nothing has run")
            .exactly(&buffer.read()?)
    })
}

/// The results of `replay`. The graph stays alive until they are compared.
struct Replayed {
    _graph: CudaGraph,
    buffer: Guarded<f32>,
    outputs: Vec<CudaSlice<f32>>,
}

/// Calls `replay` with this many rounds.
fn replayed(bench: &Bench, rounds: usize) -> anyhow::Result<Replayed> {
    let rank = bench.comm.rank();
    let (inputs, mut outputs) = (bench.inputs(rounds)?, bench.outputs(rounds)?);
    let mut buffer = Guarded::new(&bench.compute, &input(rank, AT_FIRST))?;
    let calls = Cell::new(0);
    let graph = replay(&bench.compute, &mut buffer.view_mut(), &inputs, &mut outputs, |buffer| {
        calls.set(calls.get() + 1);
        bench.enqueue(buffer)
    });
    let calls = calls.get();
    let graph = match rounds {
        0 => graph.context("there are no inputs, which must not be an error")?,
        _ => graph?,
    };
    ensure!(
        calls == 1,
        "rank {rank}: `replay` called `iteration` {calls} times for {rounds} input{}; expected one call, inside the capture",
        if rounds == 1 { "" } else { "s" }
    );
    Ok(Replayed { _graph: graph, buffer, outputs })
}

fn every_input_runs_through_the_graph() -> anyhow::Result<()> {
    on_each_rank(|comm| {
        for rounds in [1, 4, 0] {
            let bench = Bench::new(comm)?;
            bench.compare(&replayed(&bench, rounds)?)?;
        }
        Ok(())
    })?;
    on_ranks(1, |comm| {
        let bench = Bench::new(comm)?;
        bench.compare(&replayed(&bench, 3)?)
    })
}

fn another_thread_may_allocate_meanwhile() -> anyhow::Result<()> {
    let ranks = HostGroup::new(2);
    on_two_ranks(|comm| {
        let bench = Bench::new(comm)?;
        let rank = comm.rank();
        let mut buffer = bench.compute.clone_htod(&input(rank, 0))?;
        let context = comm.context();
        let graph = capture(&bench.compute, || {
            bench.enqueue(&mut buffer.as_view_mut())?;
            thread::scope(|scope| {
                // SAFETY: the memory is never read.
                let allocating = scope.spawn(|| unsafe { context.alloc_pinned::<f32>(LEN) }.map(drop));
                let Ok(allocated) = allocating.join() else { bail!("the other thread panicked") };
                // In other modes, the driver rejects such a call only in the capturing thread.
                let cause = match &allocated {
                    Err(error) if error.0 == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => {
                        "\n  likely cause: the capture mode is global, which forbids such calls in other threads"
                    }
                    _ => "",
                };
                allocated.with_context(|| {
                    format!(
                        "rank {rank}: while `capture` was capturing a stream, another thread could not allocate pinned \
                         memory{cause}"
                    )
                })
            })
        })?;
        // An allocation may wait for the GPU. There, this rank's graph would wait for the graph of a rank that is still
        // allocating.
        ranks.all_gather(rank, Vec::new())?;
        graph.launch()?;
        Expected::new(rank, "the buffer", &output(rank, 2, 0)).exactly(&bench.compute.clone_dtoh(&buffer)?)
    })
}

/// The error from the pipelines that fail while they are being enqueued.
const FAILURE: &str = "no weights for this layer";

/// Returns the error that `capture` returned. The pipeline's own error is [`FAILURE`].
fn error_of(captured: anyhow::Result<CudaGraph>) -> anyhow::Result<anyhow::Error> {
    match captured {
        Ok(_) => bail!("the pipeline returned an error, but `capture` returned Ok; expected that error"),
        Err(error) => Ok(error),
    }
}

fn an_error_ends_the_capture() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    // SAFETY: there is only one stream.
    unsafe { stream.context().disable_event_tracking() };
    let kernels = Kernels::load(stream.context())?;
    let mut buffer = stream.clone_htod(&input(0, 0))?;
    let captured = without_panic("capture when the pipeline can't be enqueued", || {
        capture(&stream, || {
            kernels.scale(&stream, &mut buffer, 2.0)?;
            bail!(FAILURE)
        })
    })?;
    let error = error_of(captured)?;
    ensure!(
        format!("{error:#}").contains(FAILURE),
        "the error from `capture` must contain the pipeline's error, `{FAILURE}`; got: {error:#}"
    );
    ensure!(
        stream.capture_status()? == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        "the stream is still being captured after `capture` returned an error, so work enqueued on it from now on will \
         never run: end the capture even if the pipeline fails"
    );
    Ok(())
}

/// If a pipeline fails before it joins its second stream, the end of the capture fails, too.
fn an_error_before_the_join_is_returned() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    // SAFETY: the second stream's work is only captured, and never runs.
    unsafe { stream.context().disable_event_tracking() };
    let (other, kernels) = (stream.context().new_stream()?, Kernels::load(stream.context())?);
    let mut buffer = stream.clone_htod(&input(0, 0))?;
    let captured = without_panic("capture when the pipeline fails before its streams are joined", || {
        capture(&stream, || {
            other.wait(&stream.record_event(None)?)?;
            kernels.scale(&other, &mut buffer, 2.0)?;
            bail!(FAILURE)
        })
    })?;
    let error = error_of(captured)?;
    ensure!(
        format!("{error:#}").contains(FAILURE),
        "`capture` lost the pipeline's error, `{FAILURE}`, and returned the error from the end of the capture\n  the \
         pipeline failed before its second stream was joined, so the capture could not be ended either\n  returned: \
         {}",
        error_text(&error)
    );
    Ok(())
}

fn it_returns_with_everything_enqueued() -> anyhow::Result<()> {
    on_two_ranks(|comm| {
        let bench = Bench::new(comm)?;
        let first = replayed(&bench, 2)?;
        bench.compute.synchronize()?;
        drop(first);
        let replayed = while_blocked("replay", "the stream", &bench.compute, || replayed(&bench, 2))?;
        bench.compare(&replayed)
    })
}

fn each_round_is_two_copies() -> anyhow::Result<()> {
    const ROUNDS: u64 = 4;
    on_ranks(3, |comm| {
        let bench = Bench::new(comm)?;
        let (inputs, mut outputs) = (bench.inputs(ROUNDS as usize)?, bench.outputs(ROUNDS as usize)?);
        let mut buffer = Guarded::new(&bench.compute, &input(comm.rank(), AT_FIRST))?;
        bench.compute.synchronize()?;
        // The pipeline is captured once, so its two kernels and its collective count once.
        let budget = Budget::of("replay").collectives(&[("AllReduce", LEN)]).kernels(2).copies(2 * ROUNDS);
        let budget = budget.bytes_to_host(0).allocations(0).new_streams(0).host_waits(0).polls(0);
        let graph = budget.spend(|| {
            let mut buffer = buffer.view_mut();
            replay(&bench.compute, &mut buffer, &inputs, &mut outputs, |buffer| bench.enqueue(buffer))
        })?;
        bench.compare(&Replayed { _graph: graph, buffer, outputs })
    })
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let memory = &lab::streams(1)?.remove(0);
    let context = memory.context();
    // SAFETY: buffers are ready before a different stream uses them, and are dropped afterwards.
    unsafe { context.disable_event_tracking() };
    // If a capture can't be ended, its stream is unusable, even for freeing a buffer. So each call has a new stream.
    each_call_fails("capture", || {
        let (stream, mut buffer) = (context.new_stream()?, memory.alloc_zeros::<f32>(LEN)?);
        memory.synchronize()?;
        Ok(move || capture(&stream, || Ok(stream.memset_zeros(&mut buffer)?)).map(drop))
    })?;
    each_call_fails("replay", || {
        let (stream, mut buffer) = (context.new_stream()?, memory.alloc_zeros::<f32>(LEN)?);
        let inputs = [memory.alloc_zeros(LEN)?, memory.alloc_zeros(LEN)?];
        let mut outputs = [memory.alloc_zeros(LEN)?, memory.alloc_zeros(LEN)?];
        memory.synchronize()?;
        Ok(move || {
            let iteration = |buffer: &mut CudaViewMut<f32>| Ok(stream.memset_zeros(buffer)?);
            let replayed = replay(&stream, &mut buffer.as_view_mut(), &inputs, &mut outputs, iteration);
            // This fails if the capture could not be ended. In that case, nothing has run.
            let _ = stream.synchronize();
            replayed.map(drop)
        })
    })
}
