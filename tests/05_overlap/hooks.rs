//! Checks for `overlap/hooks`.

use cudarc::nccl::Comm;
use lab::{Budget, Check, NcclLog, each_call_fails, ensure};

use super::quiet::QuietModel;
use super::training::{self, Known, LENGTHS, plain};
use super::two_streams::{on_each_rank, on_two_ranks, one_rank};
use crate::overlap::hooks::step;

pub(crate) fn checks() -> Vec<Check> {
    let own = |comm: &Comm, model: &mut Known| step(comm, model);
    vec![
        Check::new("hooks::each_step_is_that_of_one_gpu", move || {
            training::each_step_is_that_of_one_gpu(&own)
        })
        .calls(&["step"]),
        Check::new("hooks::the_order_is_from_the_last_to_the_first", the_order_is_from_the_last_to_the_first)
            .calls(&["step"]),
        Check::new("hooks::unused_parameters_are_averaged_too", move || {
            training::unused_parameters_are_averaged_too(&own)
        })
        .calls(&["step"])
        .min_ranks(2),
        Check::new("hooks::a_late_gradient_is_waited_for", move || {
            training::a_late_gradient_is_waited_for(&own)
        })
        .calls(&["step"])
        .min_ranks(2),
        Check::new("hooks::a_late_average_is_waited_for", move || {
            training::a_late_average_is_waited_for(&own)
        })
        .calls(&["step"])
        .min_ranks(2),
        Check::new("hooks::communication_overlaps_the_backward_pass", move || {
            training::communication_overlaps_the_backward_pass(&own)
        })
        .calls(&["step"])
        .min_ranks(2),
        Check::new("hooks::it_returns_with_everything_enqueued", move || {
            training::it_returns_with_everything_enqueued(&own)
        })
        .calls(&["step"]),
        Check::new("hooks::each_gradient_has_an_all_reduce", each_gradient_has_an_all_reduce)
            .calls(&["step"]),
        Check::new("hooks::gradients_are_averaged_in_place", gradients_are_averaged_in_place)
            .calls(&["step"]),
        Check::new("hooks::a_failed_call_is_an_error", a_failed_call_is_an_error).calls(&["step"]),
    ]
}

/// Compares the order on a single rank, so that no rank can wait for a collective that is never enqueued. The samples
/// use only half of the parameters, so only those parameters' hooks are called.
fn the_order_is_from_the_last_to_the_first() -> anyhow::Result<()> {
    // SAFETY: the check has not started any other threads yet.
    let log = unsafe { NcclLog::open() };
    let rank = one_rank()?;
    let before = log.calls("AllReduce")?.len();
    step(&rank.comm, &mut QuietModel::new(&rank)?)?;
    rank.synchronize()?;
    // All lengths are different.
    let parameter = |&count: &usize| LENGTHS.iter().position(|&length| length == count);
    let got: Option<Vec<usize>> = log.calls("AllReduce")?[before..].iter().map(parameter).collect();
    // Another check compares the lengths.
    let Some(got) = got else { return Ok(()) };
    let missing: Vec<usize> = (0..LENGTHS.len()).filter(|parameter| !got.contains(parameter)).collect();
    let hooks = QuietModel::USED;
    ensure!(
        missing.is_empty(),
        "`step` made no all-reduce for parameters {missing:?} of {}; expected one for each parameter, used or \
         not\n  the backward pass called only the hooks of parameters {hooks:?}, because the samples use only these",
        LENGTHS.len()
    );
    let last_to_first: Vec<usize> = (0..LENGTHS.len()).rev().collect();
    ensure!(
        got == last_to_first,
        "`step` made all-reduces for parameters {got:?}, in that order; expected {last_to_first:?}\n  the backward \
         pass called only the hooks of parameters {hooks:?}, because the samples use only these"
    );
    Ok(())
}

fn each_gradient_has_an_all_reduce() -> anyhow::Result<()> {
    // SAFETY: the check has not started any other threads yet.
    let log = unsafe { NcclLog::open() };
    let ranks = lab::world_sizes().len().min(2);
    // Each rank's warm-up is one call with one element.
    let mut expected = vec![1; ranks];
    expected.extend(LENGTHS.iter().flat_map(|&length| vec![length; ranks]));
    on_two_ranks(|rank| step(&rank.comm, &mut plain(rank)?))?;
    let mut counts = log.calls("AllReduce")?;
    expected.sort_unstable();
    counts.sort_unstable();
    let got = counts.len() / ranks - 1;
    ensure!(
        counts == expected,
        "`step` made {got} all-reduces on each rank, expected {}, one for each parameter\n  elements in each \
         all-reduce, over all ranks: expected {expected:?}, got {counts:?}",
        LENGTHS.len()
    );
    Ok(())
}

/// The model makes no CUDA calls, so that only the exercise's calls are counted. Half of its parameters are unused.
fn gradients_are_averaged_in_place() -> anyhow::Result<()> {
    let parameters = LENGTHS.len() as u64;
    on_each_rank(1, |rank| {
        let mut model = QuietModel::new(rank)?;
        let each: Vec<_> = LENGTHS.iter().map(|&length| ("AllReduce", length)).collect();
        let budget = Budget::of("step").collectives(&each).messages(0).kernels(0).copies(0).allocations(0);
        // Each gradient may be cleared separately, and may have two events on each stream.
        let budget =
            budget.fills(parameters).events(4 * parameters + 4).new_streams(0).host_waits(0).polls(0);
        let streams =
            [(&rank.compute, "the compute stream"), (&rank.comm.stream(), "the communicator's stream")];
        budget.communicators(0).streams(&streams).spend(|| step(&rank.comm, &mut model))?;
        let steps = model.steps;
        ensure!(steps == 1, "rank {}: `step` called `descend` {steps} times, expected once", rank.number());
        rank.synchronize()
    })
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("step", || {
        let rank = one_rank()?;
        Ok(move || {
            let mut model = QuietModel::at_work(&rank)?;
            let result = step(&rank.comm, &mut model);
            // Nothing else orders the release of the gradients.
            rank.synchronize()?;
            result
        })
    })
}
