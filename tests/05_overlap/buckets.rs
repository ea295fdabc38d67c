//! Checks for `overlap/buckets`.

use std::ops::Range;
use std::sync::Arc;

use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::Comm;
use lab::{Budget, Check, NcclLog, Trainable, each_call_fails, ensure, world_of_one};

use super::training::{self, Known, LENGTHS, layout};
use super::two_streams::{Mark, Rank, check_formula, mean, on_two_ranks};
use crate::overlap::buckets::step;

/// The checks' buckets of at most 1500 bytes, for parameters with 300, 37, 1031, 1, 64, and 257 floats.
const BUCKETS: [Range<usize>; 3] = [3..6, 2..3, 0..2];

pub(crate) fn checks() -> Vec<Check> {
    let own = |comm: &Comm, model: &mut Known| step(comm, model, &BUCKETS);
    vec![
        Check::new("buckets::each_bucket_has_an_all_reduce", each_bucket_has_an_all_reduce).calls(&["step"]),
        Check::new("buckets::each_step_is_that_of_one_gpu", move || {
            training::each_step_is_that_of_one_gpu(&own)
        })
        .calls(&["step"]),
        Check::new("buckets::unused_parameters_are_averaged_too", move || {
            training::unused_parameters_are_averaged_too(&own)
        })
        .calls(&["step"])
        .min_ranks(2),
        Check::new("buckets::a_late_gradient_is_waited_for", move || {
            training::a_late_gradient_is_waited_for(&own)
        })
        .calls(&["step"])
        .min_ranks(2),
        Check::new("buckets::a_late_average_is_waited_for", move || {
            training::a_late_average_is_waited_for(&own)
        })
        .calls(&["step"])
        .min_ranks(2),
        Check::new("buckets::communication_overlaps_the_backward_pass", move || {
            training::communication_overlaps_the_backward_pass(&own)
        })
        .measures_time()
        .calls(&["step"])
        .min_ranks(2),
        Check::new("buckets::a_bucket_is_ready_without_an_unused_gradient", move || {
            training::communication_skips_an_unused_parameter(&own)
        })
        .calls(&["step"])
        .min_ranks(2),
        Check::new("buckets::it_returns_with_everything_enqueued", move || {
            training::it_returns_with_everything_enqueued(&own)
        })
        .calls(&["step"]),
        Check::new("buckets::a_sweep_matches_the_prediction", a_sweep_matches_the_prediction)
            .measures_time()
            .calls(&["step"])
            .min_ranks(2),
        Check::new("buckets::the_buckets_are_averaged_in_place", the_buckets_are_averaged_in_place)
            .min_ranks(2),
        Check::new("buckets::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

fn each_bucket_has_an_all_reduce() -> anyhow::Result<()> {
    // SAFETY: the check has not started any other threads yet.
    let log = unsafe { NcclLog::open() };
    let ranks = lab::world_sizes().len().min(2);
    // Each rank's warm-up is one call with one element.
    let mut expected = vec![1; ranks];
    let sizes = BUCKETS.iter().map(|bucket| LENGTHS[bucket.clone()].iter().sum::<usize>());
    expected.extend(sizes.flat_map(|length| vec![length; ranks]));
    // This model writes no gradients, so all-reduces of the wrong elements do not race with them.
    on_two_ranks(|rank| {
        let mut model = Idle::new(&rank.compute)?;
        rank.synchronize()?;
        step(&rank.comm, &mut model, &BUCKETS)
    })?;
    let mut counts = log.calls("AllReduce")?;
    expected.sort_unstable();
    counts.sort_unstable();
    // The warm-up's calls, and one call with as many elements as a bucket has parameters.
    let mut parameters = vec![1; ranks];
    parameters.extend(BUCKETS.iter().flat_map(|bucket| vec![bucket.len(); ranks]));
    parameters.sort_unstable();
    let cause = match counts == parameters {
        true => {
            "\n  likely cause: a bucket is a range of parameters, but it was used as a range of elements; `layout` has \
             the elements of each parameter"
        }
        false => "",
    };
    ensure!(
        counts == expected,
        "`step` must make one all-reduce for each of the buckets {BUCKETS:?}, whose parameters have {LENGTHS:?} \
         floats\n  elements in each all-reduce, over all ranks: expected {expected:?}, got {counts:?}{cause}"
    );
    Ok(())
}

/// A model with equal parameters, each of which is computed with a spin.
struct Equal<'a> {
    rank: &'a Rank,
    layout: Vec<Range<usize>>,
    gradients: CudaSlice<f32>,
    spin: u64,
    computed: Vec<Mark>,
    /// The marks around the backward pass and the wait after it.
    begin: Option<Mark>,
    end: Option<Mark>,
}

impl Trainable for Equal<'_> {
    fn stream(&self) -> &Arc<CudaStream> {
        &self.rank.compute
    }

    fn layout(&self) -> &[Range<usize>] {
        &self.layout
    }

    fn gradients_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.gradients.as_view_mut()
    }

    fn backward(
        &mut self,
        mut ready: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.begin = Some(self.rank.compute_for(0)?);
        for parameter in (0..self.layout.len()).rev() {
            self.computed.push(self.rank.compute_for(self.spin)?);
            ready(parameter, &mut self.gradients.as_view_mut())?;
        }
        Ok(())
    }

    fn descend(&mut self) -> anyhow::Result<()> {
        self.end = Some(self.rank.compute_for(0)?);
        Ok(())
    }
}

const PARAMETERS: usize = 16;

/// Returns how many milliseconds an all-reduce of this many elements takes when nothing else is running.
fn alone(rank: &Rank, elements: usize) -> anyhow::Result<f32> {
    let stream = rank.comm.stream();
    let mut buffer = stream.alloc_zeros::<f32>(elements)?;
    let mut marks = Vec::new();
    for _ in 0..3 {
        marks.push(rank.mark(&stream, || average_in_place(&rank.comm, &mut buffer.as_view_mut()))?);
    }
    // The first all-reduce starts only when the last rank arrives.
    rank.interval(&marks[2]).map(|interval| interval.length())
}

/// The time that a backward pass takes with some number of buckets, and its components, in milliseconds.
struct Measured {
    total: f32,
    compute: f32,
    latency: f32,
    /// The time for the bytes in all buckets.
    bytes: f32,
}

/// The number of elements per parameter in the sweep.
const ELEMENTS: usize = 1024;

fn measured(rank: &Rank, buckets: usize) -> anyhow::Result<Measured> {
    let in_each = ELEMENTS * PARAMETERS / buckets;
    let mut model = Equal {
        rank,
        layout: layout(&[ELEMENTS; PARAMETERS]),
        gradients: rank.compute.alloc_zeros(ELEMENTS * PARAMETERS)?,
        spin: 60_000,
        computed: Vec::new(),
        begin: None,
        end: None,
    };
    let averaged = alone(rank, in_each)?;
    // The time is linear in the bytes. Doubling the bytes does not double the latency, so the difference is the
    // latency.
    let latency = 2.0 * averaged - alone(rank, 2 * in_each)?;
    rank.synchronize()?;
    let of_each = PARAMETERS / buckets;
    let plan: Vec<_> = (0..buckets).rev().map(|bucket| bucket * of_each..(bucket + 1) * of_each).collect();
    step(&rank.comm, &mut model, &plan)?;
    let computed: Vec<_> =
        model.computed.iter().map(|mark| rank.interval(mark)).collect::<anyhow::Result<_>>()?;
    let (Some(begin), Some(end)) = (&model.begin, &model.end) else {
        anyhow::bail!("rank {}: there was no backward pass, or no step", rank.number())
    };
    Ok(Measured {
        total: rank.interval(end)?.start - rank.interval(begin)?.end,
        compute: mean(&computed) * PARAMETERS as f32,
        latency,
        bytes: (averaged - latency) * buckets as f32,
    })
}

/// Sweeps over numbers of buckets for which communication takes longer. The first bucket's computation and the last
/// bucket's all-reduce do not overlap. In between, the longer of the two counts.
fn a_sweep_matches_the_prediction() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        for buckets in [1, 2, 4, 8, 16] {
            let Measured { total, compute, latency, bytes } = measured(rank, buckets)?;
            let number = buckets as f32;
            let (computed, averaged) = (compute / number, bytes / number + latency);
            let formula = computed + (number - 1.0) * computed.max(averaged) + averaged;
            check_formula(rank, &format!("a backward pass with {buckets} buckets"), total, formula)?;
        }
        Ok(())
    })
}

/// A model whose backward pass writes nothing and takes no time.
struct Idle {
    compute: Arc<CudaStream>,
    layout: Vec<Range<usize>>,
    gradients: CudaSlice<f32>,
}

impl Idle {
    fn new(compute: &Arc<CudaStream>) -> anyhow::Result<Self> {
        let gradients = compute.alloc_zeros(LENGTHS.iter().sum())?;
        Ok(Self { compute: compute.clone(), layout: layout(&LENGTHS), gradients })
    }
}

impl Trainable for Idle {
    fn stream(&self) -> &Arc<CudaStream> {
        &self.compute
    }

    fn layout(&self) -> &[Range<usize>] {
        &self.layout
    }

    fn gradients_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.gradients.as_view_mut()
    }

    fn backward(
        &mut self,
        mut ready: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        // The samples do not use the first parameter, so its hook is never called.
        (1..self.layout.len()).rev().try_for_each(|at| ready(at, &mut self.gradients.as_view_mut()))
    }

    fn descend(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

fn the_buckets_are_averaged_in_place() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        let (compute, communication) = (&rank.compute, rank.comm.stream());
        let mut model = Idle::new(compute)?;
        rank.synchronize()?;
        let sizes = BUCKETS.map(|bucket| ("AllReduce", LENGTHS[bucket].iter().sum()));
        let streams = [(compute, "the compute stream"), (&communication, "the communicator's stream")];
        Budget::of("step")
            .collectives(&sizes)
            .messages(0)
            .kernels(BUCKETS.len() as u64)
            .copies(0)
            .allocations(0)
            .new_streams(0)
            .host_waits(0)
            .polls(0)
            .streams(&streams)
            .spend(|| step(&rank.comm, &mut model, &BUCKETS))
    })
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    // SAFETY: the events recorded by `step` order all work on the two streams.
    unsafe { stream.context().disable_event_tracking() };
    each_call_fails("step", || {
        let comm = world_of_one()?;
        let mut model = Idle::new(&stream)?;
        stream.synchronize()?;
        Ok(move || {
            let stepped = step(&comm, &mut model, &BUCKETS);
            // Dropping the communicator would abort the averages in flight. Other checks report stream errors.
            let _ = comm.context().synchronize();
            stepped
        })
    })
}
