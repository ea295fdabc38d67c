//! Checks for `collectives/dtypes`.

use std::cmp::Ordering;

use anyhow::{Context, bail};
use approx::relative_eq;
use cudarc::driver::DeviceRepr;
use cudarc::nccl::{Comm, NcclType, ReduceOp};
use half::{bf16, f16};
use init::rendezvous::rendezvous;
use lab::compare::Element;
use lab::{
    Budget, Check, Expected, Guarded, Readable, each_call_fails, ensure, irregular, returns_at_once,
    world_of_one,
};

use crate::collectives::dtypes::{average_halves, may_be_sum, mean_of_bytes, sum_bound};
use crate::exercise::reference::small_worlds;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("dtypes::a_true_sum_is_within_its_bound", a_true_sum_is_within_its_bound)
            .calls(&["sum_bound"])
            .min_ranks(2),
        Check::new("dtypes::a_sum_in_any_order_is_within_its_bound", a_sum_in_any_order_is_within_its_bound)
            .calls(&["sum_bound"]),
        Check::new("dtypes::a_bound_is_no_wider_than_needed", a_bound_is_no_wider_than_needed)
            .calls(&["sum_bound"]),
        Check::new("dtypes::a_sum_is_compared_by_its_bound", a_sum_is_compared_by_its_bound)
            .calls(&["may_be_sum"]),
        Check::new("dtypes::halves_are_averaged_without_overflow", halves_are_averaged_without_overflow)
            .calls(&["average_halves"])
            .min_ranks(2),
        Check::new("dtypes::small_halves_are_averaged_too", small_halves_are_averaged_too)
            .calls(&["average_halves"]),
        Check::new("dtypes::the_mean_of_bytes_keeps_its_fraction", the_mean_of_bytes_keeps_its_fraction)
            .calls(&["mean_of_bytes"]),
        Check::new("dtypes::the_mean_of_bytes_does_not_wrap", the_mean_of_bytes_does_not_wrap)
            .calls(&["mean_of_bytes"])
            .min_ranks(2),
        Check::new("dtypes::averaging_returns_at_once", averaging_returns_at_once)
            .calls(&["average_halves"])
            .min_ranks(2),
        Check::new("dtypes::an_average_is_one_all_reduce", an_average_is_one_all_reduce).min_ranks(2),
        Check::new("dtypes::all_bytes_are_summed_at_once", all_bytes_are_summed_at_once).min_ranks(2),
        Check::new("dtypes::no_elements_are_not_an_error", no_elements_are_not_an_error).min_ranks(2),
        Check::new("dtypes::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const LEN: usize = 1031;

fn a_true_sum_is_within_its_bound() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            // A rank that finds a mistake continues to the end, so that the other ranks do not wait for it.
            let f64s = check_sum("f64", 53, &comm, |value| value);
            let f32s = check_sum("f32", 24, &comm, |value| value as f32);
            let f16s = check_sum("f16", 11, &comm, f16::from_f64);
            let bf16s = check_sum("bf16", 8, &comm, bf16::from_f64);
            f64s.and(f32s).and(f16s).and(bf16s)
        })?;
    }
    Ok(())
}

/// Returns integers that use all bits of the type, including the highest. Even and odd values alternate between ranks,
/// so even a sum of two values needs one more bit, and is rounded.
fn full_numbers(rank: usize, bits: u32) -> Vec<i64> {
    let first = 1_i64 << (bits - 1);
    let even = |value: &f32| ((f64::from(value.abs()) * first as f64) as i64 % first) & !1;
    irregular::fractions(rank, LEN).iter().map(|value| first + even(value) + rank as i64 % 2).collect()
}

fn check_sum<T: Element + NcclType + DeviceRepr>(
    name: &str,
    bits: u32,
    comm: &Comm,
    make: fn(f64) -> T,
) -> anyhow::Result<()> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let all: Vec<Vec<i64>> = (0..world_size).map(|rank| full_numbers(rank, bits)).collect();
    let own: Vec<T> = all[rank].iter().map(|&value| make(value as f64)).collect();
    let mut buffer = Guarded::new(&comm.stream(), &own)?;
    comm.all_reduce_in_place(&mut buffer.view_mut(), &ReduceOp::Sum).readable()?;
    let got = buffer.read()?;
    let largest = f64::powi(2.0, bits as i32);
    let bound = sum_bound(bits, world_size, largest);
    for (index, got) in got.into_iter().enumerate() {
        let exact: i64 = all.iter().map(|values| values[index]).sum();
        let off = (got.value() as i64 - exact).abs();
        ensure!(
            off as f64 <= bound,
            "sum_bound({bits}, {world_size}, {largest:?}) is {bound:?}, which is too small\n  NCCL's sum of {world_size} {name} values up to 2^{bits} is off by {off}: expected {exact}, got {got:?} at index {index}{}",
            why_so_narrow(bound, bits, world_size, largest)
        );
    }
    Ok(())
}

/// The types, each with its number of significant bits.
const TYPES: [(&str, u32); 4] = [("f64", 53), ("f32", 24), ("f16", 11), ("bf16", 8)];

/// Returns the mistake that leads to exactly this bound.
fn why_so_narrow(bound: f64, bits: u32, world_size: usize, largest: f64) -> String {
    let (n, unit) = (world_size as f64, |bits: u32| f64::powi(2.0, -(bits as i32)));
    // A few roundings of f64 are about 1e-15, and the mistakes differ by more than a tenth.
    let is = |other: f64| relative_eq!(bound, other, epsilon = 0.0, max_relative = 1e-9);
    // Each addition may round the largest result.
    let of_type = |bits: u32| (1..world_size).map(|_| n * largest * unit(bits)).sum::<f64>();
    let of_another_type = TYPES.iter().find(|(_, other)| is(of_type(*other)));
    let cause = match of_another_type {
        Some((name, other)) if *other != bits => {
            format!("that is the bound for {name}, which has {other} significant bits, not {bits}")
        }
        _ if is((n - 1.0) * largest * unit(bits)) => format!(
            "that is enough only if no result is larger than {largest:?}: an addition's rounding error is a fraction \
             of its result, and the largest result is {:?}",
            n * largest
        ),
        _ if is(largest * unit(bits)) => "that allows for one rounding of one value".to_owned(),
        // For four and for sixteen ranks, the next two are the same.
        _ if n.log2().ceil() == n.sqrt() && is(n.sqrt() * n * largest * unit(bits)) => return String::new(),
        _ if is(n.sqrt() * n * largest * unit(bits)) => {
            "that grows with the square root of the number of values, as typical errors do; the largest possible error \
             grows with the number of additions"
                .to_owned()
        }
        _ if is(of_type(bits + 1)) => format!(
            "that allows for half of each addition's rounding error: just above a power of two, it can be 2^-{bits} of \
             the result"
        ),
        _ if is(n.log2().ceil() * n * largest * unit(bits)) => format!(
            "that is the bound for summing pairs, then pairs of pairs, on {} levels: in another order, a value goes \
             through up to {} additions",
            n.log2().ceil(),
            n - 1.0
        ),
        _ if is(n * largest * unit(bits)) => {
            format!("that allows for one rounding of the largest sum, but there are {} additions", n - 1.0)
        }
        _ => return String::new(),
    };
    format!("\n  likely cause: {cause}")
}

/// Rounds a sum to this number of significant bits; ties go to even.
fn rounded(sum: i64, bits: u32) -> i64 {
    let unit = 1_i64 << (i64::BITS - sum.leading_zeros()).saturating_sub(bits);
    let down = sum / unit * unit;
    let is_up = match (2 * (sum - down)).cmp(&unit) {
        Ordering::Less => false,
        Ordering::Equal => (down / unit) % 2 == 1,
        Ordering::Greater => true,
    };
    if is_up { down + unit } else { down }
}

/// Adds integers up to `largest` one after the other, so that each addition loses as much as possible. Returns the exact
/// and the rounded sum.
fn sum_far_off(bits: u32, world_size: usize, largest: i64) -> (i64, i64) {
    let (mut exact, mut sum) = (largest, largest);
    for _ in 1..world_size {
        let lost = |value: i64| sum + value - rounded(sum + value, bits);
        // Close to the largest value, there is a value whose sum is halfway between two results and is rounded down.
        let span = 4 * world_size as i64;
        let value = (largest - span..=largest).rev().max_by_key(|&value| lost(value)).unwrap_or(largest);
        (exact, sum) = (exact + value, rounded(sum + value, bits));
    }
    (exact, sum)
}

fn a_sum_in_any_order_is_within_its_bound() -> anyhow::Result<()> {
    for (name, bits) in TYPES {
        // The causes of a bound that is too small differ most for five ranks.
        for world_size in [5, 8, 16, 3, 2] {
            // Just below a power of two, a rounding error is half as large a part of a sum as just above it.
            for highest in [(1_i64 << bits) - 1, (1 << (bits - 1)) / 10 * 11] {
                let (exact, sum) = sum_far_off(bits, world_size, highest);
                let largest = highest as f64;
                let (bound, off) = (sum_bound(bits, world_size, largest), (exact - sum).abs());
                ensure!(
                    off as f64 <= bound,
                    "sum_bound({bits}, {world_size}, {largest:?}) is {bound:?}, which is too small\n  {world_size} {name} \
                     values up to {highest}, added one after the other, can be off by {off}: the exact sum is {exact}, and \
                     the rounded one {sum}{}",
                    why_so_narrow(bound, bits, world_size, largest)
                );
            }
        }
    }
    Ok(())
}

fn a_bound_is_no_wider_than_needed() -> anyhow::Result<()> {
    for (name, bits) in TYPES {
        // The rounding error of a rounding error counts only where all roundings together reach the size of a term.
        let unit = f64::powi(2.0, -(bits as i32));
        for world_size in [1, 2, 3, 5, 8, 1000].into_iter().filter(|&size| size as f64 * unit < 0.5) {
            for largest in [1.0, 1e-3, 48.0] {
                // The limit is four times the bound for n − 1 additions.
                let most = 4.0 * (world_size * (world_size - 1)) as f64 * largest * unit;
                let bound = sum_bound(bits, world_size, largest);
                ensure!(
                    (0.0..=most).contains(&bound),
                    "sum_bound({bits}, {world_size}, {largest:?}) for {name} is out of range\n  expected 0 to \
                     {most:?}, got {bound:?}: with such a bound, wrong sums would be accepted"
                );
            }
        }
    }
    Ok(())
}

/// Exact sums of values up to `largest`, as fractions of the largest possible sum. If the values cancel, the sum is 0.
const EXACT_SUMS: [f64; 5] = [1.0, 0.5, 0.001, 0.0, -1.0];

fn a_sum_is_compared_by_its_bound() -> anyhow::Result<()> {
    for (name, bits) in TYPES {
        for (world_size, largest) in [(1, 2.0), (2, 1.0), (5, 48.0), (8, 1e-3)] {
            for part in EXACT_SUMS {
                let exact = part * world_size as f64 * largest;
                check_comparison(name, bits, world_size, largest, exact)?;
            }
        }
    }
    let nan = may_be_sum(f64::NAN, 1.0, 24, 2, 1.0);
    ensure!(
        !nan,
        "may_be_sum(NaN, 1.0, 24, 2, 1.0): expected false, got true; a NaN is not within any bound"
    );
    Ok(())
}

/// Checks `may_be_sum` against `sum_bound`. Errors of half the bound must pass, and errors of four times the bound must
/// not.
fn check_comparison(
    name: &str,
    bits: u32,
    world_size: usize,
    largest: f64,
    exact: f64,
) -> anyhow::Result<()> {
    let bound = sum_bound(bits, world_size, largest);
    for off in [0.0, 0.5 * bound, -0.5 * bound, 4.0 * bound, -4.0 * bound] {
        let (expected, got) = (off.abs() <= bound, may_be_sum(exact + off, exact, bits, world_size, largest));
        if got == expected {
            continue;
        }
        let accepted = |off: f64, exact: f64| may_be_sum(exact + off, exact, bits, world_size, largest);
        let cause = match expected {
            // 2⁻⁵² is 2.2e-16. This case allows larger errors.
            true if off.abs() > 3e-16 && accepted(2e-16, 0.0) && !accepted(2.5e-16, 0.0) => {
                "\n  likely cause: only 2⁻⁵² is allowed, which is the default of `approx` if no `epsilon` is given"
            }
            true if accepted(off, world_size as f64 * largest) => {
                "\n  likely cause: the same error is accepted for the largest sum. If the values cancel, their \
                 rounding errors don't: the bound is a distance, not a fraction of the result"
            }
            _ => "",
        };
        bail!(
            "may_be_sum({:?}, {exact:?}, {bits}, {world_size}, {largest:?}) for {name}: expected {expected}, got {got}\n  \
             the two differ by {:e}, and sum_bound returns {bound:e}{cause}",
            exact + off,
            exact + off - exact
        );
    }
    Ok(())
}

/// Returns the average of these values as an `f16`.
fn average(inputs: &[Vec<f16>]) -> Vec<f16> {
    let sum = |index: usize| inputs.iter().map(|input| input[index].to_f64()).sum::<f64>();
    (0..LEN).map(|index| f16::from_f64(sum(index) / inputs.len() as f64)).collect()
}

fn check_average(comm: &Comm, largest: f64, value: impl Fn(f32) -> f32) -> anyhow::Result<()> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let halves = |rank| -> Vec<f16> {
        irregular::fractions(rank, LEN).into_iter().map(|x| f16::from_f32(value(x))).collect()
    };
    let inputs: Vec<Vec<f16>> = (0..world_size).map(halves).collect();
    let mut buffer = Guarded::new(&comm.stream(), &inputs[rank])?;
    average_halves(comm, &mut buffer.view_mut())?;
    // 1/n and each of the n products round by 2⁻¹¹, relative to at most largest/n. n − 1 sums of at most `largest` also
    // round by 2⁻¹¹, and the expected value rounds once more.
    let bound = largest * (2.0 + world_size as f64) * f64::powi(2.0, -11);
    Expected::new(rank, "the buffer", &average(&inputs))
        .if_instead(
            &[f16::INFINITY; LEN],
            format!(
                "{world_size} such values add up to more than 65504, the largest f16: divide before you sum"
            ),
        )
        .if_instead(&inputs[rank], format!("these are rank {rank}'s own values: nothing was averaged"))
        .within(bound, &buffer.read()?)
}

fn halves_are_averaged_without_overflow() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            check_average(&comm, 60_000.0, |fraction| 50_000.0 + 10_000.0 * fraction)
        })?;
    }
    Ok(())
}

fn small_halves_are_averaged_too() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| check_average(&comm, 1.0, |fraction| fraction))?;
    }
    Ok(())
}

fn check_mean(comm: &Comm, byte: impl Fn(f32) -> u8) -> anyhow::Result<()> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let bytes = |rank| -> Vec<u8> { irregular::fractions(rank, LEN).into_iter().map(&byte).collect() };
    let inputs: Vec<Vec<u8>> = (0..world_size).map(bytes).collect();
    let sum = |index: usize| inputs.iter().map(|input| f64::from(input[index])).sum::<f64>();
    let sums: Vec<f64> = (0..LEN).map(sum).collect();
    let ranks = world_size as f64;
    let mean: Vec<f64> = sums.iter().map(|sum| sum / ranks).collect();
    let whole: Vec<f64> = mean.iter().map(|mean| mean.floor()).collect();
    let wrapped: Vec<f64> = sums.iter().map(|sum| sum % 256.0 / ranks).collect();
    let wrapped_whole: Vec<f64> = wrapped.iter().map(|mean| mean.floor()).collect();
    let wraps = "the sums wrapped at 256, because a u8 can't hold them";
    // The precision of `f32` is enough: NCCL's average in `f32` is within this bound.
    let bound = 255.0 * (2.0 + ranks) * f64::powi(2.0, -24);
    Expected::new(rank, "the mean", &mean)
        .if_instead(&whole, "the fractions were lost: these are whole numbers")
        .if_instead(&wrapped, wraps)
        .if_instead(&wrapped_whole, wraps)
        .if_instead(&sums, "this is the sum over all ranks, not divided by their number")
        .if_instead(&sums.iter().map(|sum| sum / ranks / ranks).collect::<Vec<_>>(), "it was divided twice")
        .within(bound, &mean_of_bytes(comm, &inputs[rank])?)
}

fn the_mean_of_bytes_keeps_its_fraction() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        // The values are 0 or 1, so the sum fits in a byte, and the mean is nearly always fractional.
        rendezvous(&lab::streams(world_size)?, |comm| check_mean(&comm, |x| u8::from(x > 0.0)))?;
    }
    Ok(())
}

fn the_mean_of_bytes_does_not_wrap() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| check_mean(&comm, |x| (192.0 + 63.0 * x) as u8))?;
    }
    Ok(())
}

fn averaging_returns_at_once() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let stream = comm.stream();
        let mut buffer = Guarded::new(&stream, &[f16::ONE; 37])?;
        returns_at_once("average_halves", &stream, || average_halves(&comm, &mut buffer.view_mut()))
    })?;
    Ok(())
}

fn an_average_is_one_all_reduce() -> anyhow::Result<()> {
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            let mut buffer = stream.clone_htod(&[f16::ONE; 37])?;
            let budget = Budget::of("average_halves").collectives(&[("AllReduce", 37)]).messages(0);
            let budget = budget.kernels(0).copies(0).fills(0).allocations(0).host_waits(0).communicators(0);
            budget.stream_of(&comm).spend(|| average_halves(&comm, &mut buffer.as_view_mut()))?;
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}

fn all_bytes_are_summed_at_once() -> anyhow::Result<()> {
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            // The bytes may be summed in any wider type, or gathered and then summed on the host.
            let budget = Budget::of("mean_of_bytes").any_collectives(1).messages(0).communicators(0);
            let budget = budget.copies(4).fills(2).allocations(4).host_waits(8).stream_of(&comm);
            budget.spend(|| mean_of_bytes(&comm, &[7; LEN]))
        })?;
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("average_halves", || {
        let comm = world_of_one()?;
        let mut buffer = comm.stream().clone_htod(&[f16::ONE; 37])?;
        Ok(move || {
            average_halves(&comm, &mut buffer.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })?;
    each_call_fails("mean_of_bytes", || {
        let comm = world_of_one()?;
        Ok(move || mean_of_bytes(&comm, &[1, 2, 255]).map(drop))
    })
}

fn no_elements_are_not_an_error() -> anyhow::Result<()> {
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            let mut buffer = stream.clone_htod(&[f16::ONE; 5])?;
            average_halves(&comm, &mut buffer.slice_mut(2..2))
                .context("`average_halves` over no elements")?;
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}
