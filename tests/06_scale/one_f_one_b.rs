//! Checks for `scale/one_f_one_b`: the gradients of a pipeline are those of one GPU, and its stages keep few inputs.

mod calls;
mod layer;
mod model;

use std::sync::Arc;

use anyhow::bail;
use approx::abs_diff_eq;
use cudarc::driver::{CudaSlice, CudaStream};
use init::rendezvous::rendezvous;
use lab::{Budget, Check, Tier, each_call_fails, ensure, while_blocked};

use self::calls::{Call, Calls, Record};
use self::layer::Layer;
use super::in_flight::to_its_end;
use crate::scale::one_f_one_b::{in_flight, run_stage};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("one_f_one_b::a_stage_keeps_few_inputs", a_stage_keeps_few_inputs).calls(&["in_flight"]),
        Check::new("one_f_one_b::forward_and_backward_passes_take_turns", passes_take_turns)
            .calls(&["run_stage"]),
        Check::new("one_f_one_b::gradients_are_those_of_one_gpu", gradients_are_those_of_one_gpu)
            .calls(&["run_stage"])
            .min_ranks(2),
        Check::new("one_f_one_b::one_stage_is_a_pipeline_too", one_stage_is_a_pipeline_too)
            .calls(&["run_stage"]),
        Check::new("one_f_one_b::idle_time_is_only_the_bubble", idle_time_is_only_the_bubble)
            .measures_time()
            .calls(&["run_stage"])
            .min_ranks(3),
        Check::new("one_f_one_b::it_returns_with_everything_enqueued", it_returns_with_all_enqueued)
            .calls(&["run_stage"])
            .min_ranks(2),
        Check::new("one_f_one_b::a_schedule_only_orders_calls", a_schedule_only_orders_calls)
            .calls(&["run_stage"]),
        Check::new("one_f_one_b::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const ITSELF: &str = "the stage itself has a micro-batch, too";
const ALL_STAGES: &str = "this counts all stages, also those before this one";
const SUBTRACTED_LAST: &str =
    "with few micro-batches, the rank is subtracted from their number, instead of from the number of stages";

/// A wrong way to count the inputs of a stage, and its likely cause.
struct Miscount {
    /// Takes the stage, the number of stages, and the number of micro-batches.
    count: fn(usize, usize, usize) -> usize,
    cause: &'static str,
}

const MISCOUNTS: [Miscount; 10] = [
    Miscount {
        count: |rank, stages, _| stages - rank,
        cause: "there are fewer micro-batches than this stage could keep",
    },
    Miscount {
        count: |_, _, micro_batches| micro_batches,
        cause: "this is enough for all micro-batches, but the first one comes back before the last one starts",
    },
    Miscount {
        count: |rank, _, micro_batches| (rank + 1).min(micro_batches),
        cause: "the stages are counted from the wrong end: the last stage needs 1",
    },
    Miscount {
        count: |rank, stages, micro_batches| (stages - rank + 1).min(micro_batches),
        cause: "this is one more than the number of stages from this one to the last",
    },
    Miscount {
        count: |rank, stages, micro_batches| (stages - rank - 1).min(micro_batches).max(1),
        cause: ITSELF,
    },
    Miscount { count: |rank, stages, micro_batches| (stages - rank - 1).min(micro_batches), cause: ITSELF },
    Miscount { count: |_, stages, micro_batches| stages.min(micro_batches), cause: ALL_STAGES },
    Miscount { count: |_, stages, _| stages, cause: ALL_STAGES },
    Miscount {
        count: |rank, stages, micro_batches| stages.min(micro_batches).saturating_sub(rank),
        cause: SUBTRACTED_LAST,
    },
    Miscount {
        count: |rank, stages, micro_batches| stages.min(micro_batches).saturating_sub(rank).max(1),
        cause: SUBTRACTED_LAST,
    },
];

fn a_stage_keeps_few_inputs() -> anyhow::Result<()> {
    // For each number of stages and of micro-batches, the inputs that each stage keeps.
    let cases = [
        (4, 100, &[4, 3, 2, 1][..]),
        (1, 3, &[1]),
        (2, 1, &[1, 1]),
        (2, 2, &[2, 1]),
        (2, 50, &[2, 1]),
        (4, 1, &[1, 1, 1, 1]),
        (4, 3, &[3, 3, 2, 1]),
        (4, 4, &[4, 3, 2, 1]),
        (5, 2, &[2, 2, 2, 2, 1]),
    ];
    let counts = |count: fn(usize, usize, usize) -> usize, stages, micro_batches| -> Vec<usize> {
        (0..stages).map(|rank| count(rank, stages, micro_batches)).collect()
    };
    let mut got = Vec::new();
    for (stages, micro_batches, expected) in cases {
        got.push(counts(in_flight, stages, micro_batches));
        let last = &got[got.len() - 1];
        let Some(rank) = (0..stages).find(|&rank| last[rank] != expected[rank]) else { continue };
        // A likely cause fits all cases so far.
        let fits = |miscount: &&Miscount| {
            cases.iter().zip(&got).all(|(case, got)| counts(miscount.count, case.0, case.1) == *got)
        };
        let cause = MISCOUNTS.iter().find(fits);
        bail!(
            "in_flight({rank}, {stages}, {micro_batches}): expected {}, got {}{}",
            expected[rank],
            last[rank],
            cause.map_or_else(String::new, |miscount| format!("\n  likely cause: {}", miscount.cause))
        );
    }
    Ok(())
}

fn passes_take_turns() -> anyhow::Result<()> {
    for stages in 1..=5 {
        for micro_batches in [1, 2, 3, 5, 8] {
            for rank in 0..stages {
                let mut record = Record::new(rank, stages, micro_batches);
                run_stage(rank, stages, micro_batches, &mut record)?;
                record.compare()?;
            }
        }
    }
    Ok(())
}

/// Runs a step on this many ranks for each number of micro-batches, and compares the gradients.
fn train(world_size: usize, micro_batches: &[usize]) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let mut verdict = Ok(());
        for &micro_batches in micro_batches {
            let mut layer = Layer::new(&comm, micro_batches, 0)?;
            to_its_end(&comm, || layer.run())?;
            // A rank that finds a mistake continues, so that the other ranks do not wait for it.
            verdict = verdict.and(layer.compare());
        }
        verdict
    })?;
    Ok(())
}

fn gradients_are_those_of_one_gpu() -> anyhow::Result<()> {
    let sizes = lab::world_sizes().into_iter().filter(|&size| size > 1);
    sizes.into_iter().try_for_each(|world_size| train(world_size, &[1, 2, 4, 7]))
}

fn one_stage_is_a_pipeline_too() -> anyhow::Result<()> {
    train(1, &[1, 3])
}

/// Each pass takes as long on all stages, and messages take almost no time. A step is a forward and a backward pass. Then
/// the first stage is idle for `p − 1` of the `m + p − 1` steps between the start of its first pass and the end of its
/// last one.
fn idle_time_is_only_the_bubble() -> anyhow::Result<()> {
    /// The tolerance covers messages, launches, and events, which take microseconds each.
    const WITHIN: f64 = 0.03;
    const MICRO_BATCHES: usize = 5;
    let world_size = lab::world_sizes().into_iter().filter(|&size| size <= 4).max().unwrap_or(3);
    rendezvous(&lab::streams(world_size)?, |comm| {
        let mut layer = Layer::new(&comm, MICRO_BATCHES, 1_000_000)?;
        to_its_end(&comm, || layer.run())?;
        layer.compare()?;
        let spans = layer.timeline.spans()?;
        if comm.rank() > 0 || lab::attach(1)? != Tier::Virtual {
            return Ok(());
        }
        let passes: f64 = spans.iter().map(|span| span.end - span.start).sum();
        let step = passes / MICRO_BATCHES as f64;
        let start = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
        let end = spans.iter().map(|span| span.end).fold(f64::NEG_INFINITY, f64::max);
        let (took, steps) = ((end - start) / step, (MICRO_BATCHES + world_size - 1) as f64);
        ensure!(
            abs_diff_eq!(took / steps, 1.0, epsilon = WITHIN),
            "stage 0 of {world_size} with {MICRO_BATCHES} micro-batches: its first to its last pass take {took:.2} steps of a \
             forward and a backward pass, expected m + p − 1 = {steps}\n  it is idle for {:.0} % of the time; the bubble is {:.0} \
             %\n  likely cause: an output or a gradient is sent later than it could be, so another stage starts late",
            100.0 * (1.0 - MICRO_BATCHES as f64 / took),
            100.0 * (1.0 - MICRO_BATCHES as f64 / steps)
        );
        Ok(())
    })?;
    Ok(())
}

fn it_returns_with_all_enqueued() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let mut first = Layer::new(&comm, 3, 0)?;
        to_its_end(&comm, || first.run())?;
        let (mut layer, stream) = (Layer::new(&comm, 3, 0)?, comm.stream());
        to_its_end(&comm, || {
            while_blocked("run_stage", "the communicator's stream", &stream, || layer.run())
        })?;
        layer.compare()
    })?;
    Ok(())
}

/// A single stage that only fills a buffer in each call.
struct Fills {
    stream: Arc<CudaStream>,
    buffer: CudaSlice<f32>,
    record: Record,
}

impl Fills {
    fn new(micro_batches: usize) -> anyhow::Result<Self> {
        let stream = lab::streams(1)?.remove(0);
        let buffer = stream.alloc_zeros(1)?;
        Ok(Self { stream, buffer, record: Record::new(0, 1, micro_batches) })
    }

    fn run(&mut self) -> anyhow::Result<()> {
        run_stage(0, 1, self.record.micro_batches, self)
    }
}

impl Calls for Fills {
    fn call(&mut self, call: Call, micro_batch: usize) -> anyhow::Result<()> {
        self.record.call(call, micro_batch)?;
        Ok(self.stream.memset_zeros(&mut self.buffer)?)
    }
}

fn a_schedule_only_orders_calls() -> anyhow::Result<()> {
    for micro_batches in [1, 2, 5] {
        let mut stage = Fills::new(micro_batches)?;
        let budget = Budget::of("run_stage").collectives(&[]).messages(0).kernels(0).copies(0);
        let budget = budget.fills(6 * micro_batches as u64).allocations(0).new_streams(0).host_waits(0);
        budget.polls(0).spend(|| stage.run())?;
        stage.stream.synchronize()?;
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("run_stage", || {
        let mut stage = Fills::new(2)?;
        Ok(move || stage.run())
    })
}
