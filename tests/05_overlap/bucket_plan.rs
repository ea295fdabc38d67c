//! Checks for `overlap/bucket_plan`.

use std::ops::Range;

use anyhow::anyhow;
use approx::relative_eq;
use lab::{Check, ensure};

use super::training::{LENGTHS, layout};
use crate::overlap::bucket_plan::{best_number, plan, predicted};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("bucket_plan::the_last_parameters_are_in_the_first_bucket", the_plan_goes_backwards)
            .calls(&["plan"]),
        Check::new("bucket_plan::a_large_parameter_has_its_own_bucket", a_large_parameter_has_its_own_bucket)
            .calls(&["plan"]),
        Check::new("bucket_plan::buckets_may_be_larger_than_4_gib", buckets_may_be_larger_than_4_gib)
            .calls(&["plan"]),
        Check::new("bucket_plan::the_arithmetic_is_that_of_the_lesson", the_arithmetic_is_that_of_the_lesson)
            .calls(&["predicted", "best_number"]),
    ]
}

/// Compares a plan with the expected one, and explains the difference.
fn check_plan(lengths: &[usize], cap: usize, expected: &[Range<usize>]) -> anyhow::Result<()> {
    let got = plan(&layout(lengths), cap);
    let told =
        format!("parameters with {lengths:?} floats, at most {cap} bytes in a bucket: the plan is {got:?}");
    let mut owners = vec![0; lengths.len()];
    for parameter in got.iter().flat_map(Clone::clone) {
        ensure!(parameter < lengths.len(), "{told}: there is no parameter {parameter}");
        owners[parameter] += 1;
    }
    if let Some(nobodys) = owners.iter().position(|&owners| owners == 0) {
        let last = expected.split_last().filter(|(_, others)| got == *others);
        let lost =
            last.map_or_else(String::new, |(last, _)| format!("; the last bucket, {last:?}, is missing"));
        anyhow::bail!("{told}: parameter {nobodys} is not in any bucket{lost}");
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
            "{told}: bucket {bucket:?} has {bytes} bytes; a bucket may exceed {cap} bytes only if it contains a single \
             parameter that is larger than that"
        );
    }
    ensure!(
        got == expected,
        "{told}, expected {expected:?}: starting with the last parameter, each bucket takes as many as fit"
    );
    Ok(())
}

#[expect(clippy::single_range_in_vec_init, reason = "a plan may consist of one bucket")]
fn the_plan_goes_backwards() -> anyhow::Result<()> {
    check_plan(&[], 100, &[])?;
    check_plan(&[7], 28, &[0..1])?;
    check_plan(&[10, 10, 10, 10], 80, &[2..4, 0..2])?;
    check_plan(&[10, 10, 10, 10, 10], 80, &[3..5, 1..3, 0..1])?;
    check_plan(&[10, 10, 10, 10, 10], 79, &[4..5, 3..4, 2..3, 1..2, 0..1])?;
    check_plan(&[5, 30, 1, 9, 20, 3], 1_000_000, &[0..6])?;
    // The largest number effectively means that there is no cap.
    check_plan(&[5, 30, 1, 9, 20, 3], usize::MAX, &[0..6])?;
    // The first and last lengths are equal. One cap is one byte too small.
    check_plan(&[7, 30, 7], 148, &[1..3, 0..1])?;
    check_plan(&[7, 30, 7], 147, &[2..3, 1..2, 0..1])?;
    check_plan(&[7, 30, 7], 151, &[1..3, 0..1])?;
    check_plan(&[5, 30, 1, 9, 20, 3], 120, &[4..6, 2..4, 1..2, 0..1])
}

fn a_large_parameter_has_its_own_bucket() -> anyhow::Result<()> {
    check_plan(&[3, 1000, 4, 5], 100, &[2..4, 1..2, 0..1])?;
    check_plan(&[1000, 2000], 100, &[1..2, 0..1])?;
    // No parameter fits, not even the smallest.
    check_plan(&[3, 1, 4], 3, &[2..3, 1..2, 0..1])?;
    check_plan(&[3, 1, 4], 0, &[2..3, 1..2, 0..1])?;
    check_plan(&LENGTHS, 1500, &[3..6, 2..3, 0..2])
}

/// Compares a plan that has sizes too large for 32 bits. `in_32_bits` is the plan that results if bucket sizes and the
/// cap are 32-bit numbers.
fn check_large_plan(
    lengths: &[usize],
    cap: usize,
    expected: &[Range<usize>],
    in_32_bits: &[Range<usize>],
) -> anyhow::Result<()> {
    check_plan(lengths, cap, expected).map_err(|error| match plan(&layout(lengths), cap) == in_32_bits {
        true => {
            anyhow!("{error}\n  this is the plan for the sizes modulo 4 GiB: a `u32` can't hold them")
        }
        false => error,
    })
}

#[expect(clippy::single_range_in_vec_init, reason = "a plan may consist of one bucket")]
/// A plan needs no memory for gradients, so they may be larger than any GPU's memory.
fn buckets_may_be_larger_than_4_gib() -> anyhow::Result<()> {
    // Each parameter takes 2 GiB.
    const HALF: usize = 1 << 29;
    check_large_plan(&[HALF; 4], 6 << 30, &[1..4, 0..1], &[0..4])?;
    check_large_plan(&[HALF; 4], 4 << 30, &[2..4, 0..2], &[2..4, 0..2])?;
    let in_32_bits = [4..5, 2..4, 1..2, 0..1];
    check_large_plan(&[3, HALF, HALF, HALF, 5], 100, &[4..5, 3..4, 2..3, 1..2, 0..1], &in_32_bits)?;
    // A parameter that takes 20 GiB.
    check_large_plan(&[7, 10 * HALF, 7, 30], 1000, &[2..4, 1..2, 0..1], &[0..4])
}

/// The tolerance for a few operations on f64. Their roundings are about 1e-15, and mistakes differ by more than a hundredth.
const ROUNDING: f64 = 1e-9;

fn check_close(what: &str, got: f64, expected: f64) -> anyhow::Result<()> {
    ensure!(
        relative_eq!(got, expected, epsilon = 0.0, max_relative = ROUNDING),
        "{what} is {got}, expected {expected}"
    );
    Ok(())
}

/// Compares a prediction with the expected one.
fn check_predicted(
    buckets: f64,
    [compute, communication, latency]: [f64; 3],
    expected: f64,
) -> anyhow::Result<()> {
    let got = predicted(buckets, compute, communication, latency);
    // What the time would be if each all-reduce took this long.
    let time = |averaged: f64| {
        let ready = (1..=buckets as u32).map(|bucket| f64::from(bucket) * compute / buckets);
        // An all-reduce starts when its bucket is ready and the all-reduce before it is done.
        ready.fold(0.0, |done: f64, ready| done.max(ready) + averaged)
    };
    let (computed, averaged) = (compute / buckets, communication / buckets + latency);
    let by_totals = match compute > communication {
        true => compute + averaged,
        false => computed + buckets * averaged,
    };
    let mistakes = [
        (
            by_totals,
            "the totals were compared, but the times of one bucket, with its latency, decide which is longer",
        ),
        (
            time(communication / buckets) + latency,
            "the latency was counted once, but every all-reduce has it",
        ),
        (time(communication / buckets), "the latency is missing"),
        (compute + communication + buckets * latency, "nothing overlaps in it"),
        (buckets * averaged, "the first bucket has to be computed before any all-reduce"),
        (compute, "the all-reduce of the last bucket follows the computation, and nothing hides it"),
    ];
    let is_it = |value: f64| relative_eq!(got, value, epsilon = 0.0, max_relative = ROUNDING);
    let cause = mistakes.iter().find(|(value, _)| is_it(*value) && !relative_eq!(*value, expected));
    let cause = cause.map_or_else(String::new, |(_, cause)| format!("\n  likely cause: {cause}"));
    ensure!(
        is_it(expected),
        "predicted({buckets} buckets, compute {compute}, communication {communication}, latency {latency}) is {got}, expected \
         {expected}{cause}"
    );
    Ok(())
}

fn the_arithmetic_is_that_of_the_lesson() -> anyhow::Result<()> {
    // With one bucket, nothing overlaps.
    check_predicted(1.0, [8.0, 12.0, 1.0], 21.0)?;
    // Communication takes longer: 2 + 4 · (3 + 1).
    check_predicted(4.0, [8.0, 12.0, 1.0], 18.0)?;
    // Computation takes longer: 5 + 3 · 5 + (1 + 1).
    check_predicted(4.0, [20.0, 4.0, 1.0], 22.0)?;
    // Communication takes longer only with the latency of each all-reduce: 3 + 4 · (2.5 + 1).
    check_predicted(4.0, [12.0, 10.0, 1.0], 17.0)?;
    check_close("best_number(compute 900, latency 9)", best_number(900.0, 9.0), 10.0)?;
    check_close("best_number(compute 8, latency 0.5)", best_number(8.0, 0.5), 4.0)?;
    // The square root of 6.25; and if an all-reduce takes longer than all the computation, less than one bucket.
    check_close("best_number(compute 12.5, latency 2)", best_number(12.5, 2.0), 2.5)?;
    check_close("best_number(compute 1, latency 4)", best_number(1.0, 4.0), 0.5)
}
