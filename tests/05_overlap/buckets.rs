//! Checks of `overlap/buckets`.

use std::ops::Range;
use std::sync::Arc;

use anyhow::ensure;
use approx::relative_eq;
use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::Comm;
use lab::{Check, NcclLog, Trainable};

use super::training::{self, Known, LENGTHS, layout, plain};
use super::two_streams::{Mark, Rank, check_formula, mean, on_two_ranks};
use crate::overlap::buckets::{best_number, plan, predicted, step};

/// Bytes of a bucket in the checks: the parameters of 300, 37, 1031, 1, 64 and 257 floats come into three.
const CAP: usize = 1500;

pub(crate) fn checks() -> Vec<Check> {
    let own = |comm: &Comm, model: &mut Known| step(comm, model, &plan(&layout(&LENGTHS), CAP));
    vec![
        Check::new("buckets::the_plan_goes_from_the_last_parameter_to_the_first", the_plan_goes_backwards)
            .calls(&["plan"]),
        Check::new(
            "buckets::a_large_parameter_has_a_bucket_of_its_own",
            a_large_parameter_has_a_bucket_of_its_own,
        )
        .calls(&["plan"]),
        Check::new("buckets::each_step_is_that_of_one_gpu", move || {
            training::each_step_is_that_of_one_gpu(&own)
        })
        .calls(&["step"]),
        Check::new("buckets::what_one_rank_does_not_use_is_averaged_too", move || {
            training::what_one_rank_does_not_use_is_averaged_too(&own)
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
        Check::new("buckets::communication_runs_beside_the_backward_pass", move || {
            training::communication_runs_beside_the_backward_pass(&own)
        })
        .calls(&["step"])
        .min_ranks(2),
        Check::new("buckets::it_returns_with_everything_enqueued", move || {
            training::it_returns_with_everything_enqueued(&own)
        })
        .calls(&["step"]),
        Check::new("buckets::each_bucket_has_an_all_reduce", each_bucket_has_an_all_reduce).calls(&["step"]),
        Check::new("buckets::the_arithmetic_is_that_of_the_lesson", the_arithmetic_is_that_of_the_lesson)
            .calls(&["predicted", "best_number"]),
        Check::new("buckets::a_sweep_takes_what_was_predicted", a_sweep_takes_what_was_predicted)
            .calls(&["step", "predicted"])
            .min_ranks(2),
    ]
}

/// Compares a plan with what is due, and says what is wrong with it.
fn check_plan(lengths: &[usize], cap: usize, expected: &[Range<usize>]) -> anyhow::Result<()> {
    let got = plan(&layout(lengths), cap);
    let told =
        format!("parameters of {lengths:?} floats, at most {cap} bytes in a bucket: the plan is {got:?}");
    let mut owners = vec![0; lengths.len()];
    for parameter in got.iter().flat_map(Clone::clone) {
        ensure!(parameter < lengths.len(), "{told}: there is no parameter {parameter}");
        owners[parameter] += 1;
    }
    if let Some(nobodys) = owners.iter().position(|&owners| owners == 0) {
        let last = expected.split_last().filter(|(_, others)| got == *others);
        let lost = last.map_or_else(String::new, |(last, _)| format!("; the last bucket, {last:?}, is lost"));
        anyhow::bail!("{told}: parameter {nobodys} is in no bucket{lost}");
    }
    if let Some(twice) = owners.iter().position(|&owners| owners > 1) {
        anyhow::bail!("{told}: parameter {twice} is in {} buckets", owners[twice]);
    }
    if let Some(empty) = got.iter().position(|bucket| bucket.is_empty()) {
        anyhow::bail!("{told}: bucket {empty} is empty");
    }
    let backwards = got.windows(2).all(|pair| pair[0].start > pair[1].start);
    ensure!(
        backwards,
        "{told}: the last parameter's gradient is ready first, so it has to be in the first bucket"
    );
    for bucket in &got {
        let bytes: usize = 4 * lengths[bucket.clone()].iter().sum::<usize>();
        ensure!(
            bytes <= cap || bucket.len() == 1,
            "{told}: bucket {bucket:?} has {bytes} bytes; only a parameter that alone is larger may have more than {cap}, and \
             then it is alone"
        );
    }
    ensure!(
        got == expected,
        "{told}, expected {expected:?}: each bucket takes as many as fit, from the last on"
    );
    Ok(())
}

#[expect(clippy::single_range_in_vec_init, reason = "a plan may be one bucket")]
fn the_plan_goes_backwards() -> anyhow::Result<()> {
    check_plan(&[], 100, &[])?;
    check_plan(&[7], 28, &[0..1])?;
    check_plan(&[10, 10, 10, 10], 80, &[2..4, 0..2])?;
    check_plan(&[10, 10, 10, 10, 10], 80, &[3..5, 1..3, 0..1])?;
    check_plan(&[10, 10, 10, 10, 10], 79, &[4..5, 3..4, 2..3, 1..2, 0..1])?;
    check_plan(&[5, 30, 1, 9, 20, 3], 1_000_000, &[0..6])?;
    check_plan(&[5, 30, 1, 9, 20, 3], 120, &[4..6, 2..4, 1..2, 0..1])
}

fn a_large_parameter_has_a_bucket_of_its_own() -> anyhow::Result<()> {
    check_plan(&[3, 1000, 4, 5], 100, &[2..4, 1..2, 0..1])?;
    check_plan(&[1000, 2000], 100, &[1..2, 0..1])?;
    check_plan(&LENGTHS, CAP, &[3..6, 2..3, 0..2])
}

fn each_bucket_has_an_all_reduce() -> anyhow::Result<()> {
    // SAFETY: the check's other threads are not there yet.
    let log = unsafe { NcclLog::open() };
    let ranks = lab::world_sizes().len().min(2);
    let buckets = plan(&layout(&LENGTHS), CAP);
    // Each rank's warm-up is one call of one element.
    let mut expected = vec![1; ranks];
    let sizes = buckets.iter().map(|bucket| LENGTHS[bucket.clone()].iter().sum::<usize>());
    expected.extend(sizes.flat_map(|length| vec![length; ranks]));
    on_two_ranks(|rank| step(&rank.comm, &mut plain(rank)?, &buckets))?;
    let mut counts = log.calls("AllReduce")?;
    expected.sort_unstable();
    counts.sort_unstable();
    ensure!(
        counts == expected,
        "`step` made other all-reduces than one for each of the buckets {buckets:?}, of parameters of {LENGTHS:?} floats\n  elements of those of all ranks: expected {expected:?}, got {counts:?}"
    );
    Ok(())
}

fn check_close(what: &str, got: f64, expected: f64) -> anyhow::Result<()> {
    ensure!(
        relative_eq!(got, expected, epsilon = 0.0, max_relative = 1e-9),
        "{what} is {got}, expected {expected}"
    );
    Ok(())
}

fn the_arithmetic_is_that_of_the_lesson() -> anyhow::Result<()> {
    // One bucket: nothing overlaps.
    check_close(
        "predicted(1 bucket, compute 8, communication 12, latency 1)",
        predicted(1.0, 8.0, 12.0, 1.0),
        21.0,
    )?;
    // Communication is the longer part: 2 + 4 · (3 + 1).
    check_close(
        "predicted(4 buckets, compute 8, communication 12, latency 1)",
        predicted(4.0, 8.0, 12.0, 1.0),
        18.0,
    )?;
    // Computation is: 5 + 3 · 5 + (1 + 1).
    check_close(
        "predicted(4 buckets, compute 20, communication 4, latency 1)",
        predicted(4.0, 20.0, 4.0, 1.0),
        22.0,
    )?;
    check_close("best_number(compute 900, latency 9)", best_number(900.0, 9.0), 10.0)?;
    check_close("best_number(compute 8, latency 0.5)", best_number(8.0, 0.5), 4.0)
}

/// Equal parameters, each computed by a spin.
struct Equal<'a> {
    rank: &'a Rank,
    layout: Vec<Range<usize>>,
    gradients: CudaSlice<f32>,
    spin: u64,
    computed: Vec<Mark>,
    /// Around the backward pass and the wait behind it.
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

/// Milliseconds that an all-reduce of so many elements takes, alone.
fn alone(rank: &Rank, elements: usize) -> anyhow::Result<f32> {
    let stream = rank.comm.stream();
    let mut buffer = stream.alloc_zeros::<f32>(elements)?;
    let mut marks = Vec::new();
    for _ in 0..3 {
        marks.push(rank.mark(&stream, || average_in_place(&rank.comm, &mut buffer.as_view_mut()))?);
    }
    // The first begins when the last rank has come.
    rank.interval(&marks[2]).map(|interval| interval.length())
}

/// What a backward pass with some number of buckets took, and its parts, in milliseconds.
struct Measured {
    total: f32,
    compute: f32,
    latency: f32,
    /// What the bytes of all buckets take.
    bytes: f32,
}

/// Elements of a parameter in the sweep.
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
    // T is linear in the bytes: what twice the bytes don't take twice is the latency.
    let latency = 2.0 * averaged - alone(rank, 2 * in_each)?;
    rank.synchronize()?;
    let plan = plan(&model.layout, 4 * in_each);
    ensure!(
        plan.len() == buckets,
        "{PARAMETERS} equal parameters in {buckets} buckets: the plan is {plan:?}"
    );
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

/// All numbers of buckets, where communication is the longer part.
fn a_sweep_takes_what_was_predicted() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        let mut took = Vec::new();
        let (mut compute, mut latency) = (0.0, 0.0);
        for buckets in [1, 2, 4, 8, 16] {
            let measured = measured(rank, buckets)?;
            (compute, latency) = (measured.compute, measured.latency);
            let formula = predicted(buckets as f64, compute.into(), measured.bytes.into(), latency.into());
            check_formula(
                rank,
                &format!("a backward pass with {buckets} buckets"),
                measured.total,
                formula as f32,
            )?;
            took.push((buckets, measured.total));
        }
        let &(best, _) = took.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(&(0, 0.0));
        let wanted = best_number(compute.into(), latency.into());
        // The sweep goes in steps of 2: the best one lies no further away than that.
        ensure!(
            (wanted / 2.0..=wanted * 2.0).contains(&(best as f64)) || !lab::tier::times_are_modeled(),
            "rank {}: of the measured {took:?} (buckets, ms), {best} buckets are the fastest, and best_number returned {wanted:.1}",
            rank.number()
        );
        Ok(())
    })
}
