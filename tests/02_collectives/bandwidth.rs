//! Checks for `collectives/bandwidth`.

use std::cell::Cell;

use anyhow::{Context, bail};
use approx::{abs_diff_eq, relative_eq};
use cudarc::nccl::ReduceOp;
use init::rendezvous::rendezvous;
use lab::tier::times_are_modeled;
use lab::{Budget, Check, Readable, Stopwatch, each_call_fails, ensure, irregular, without_panic};

use crate::collectives::bandwidth::Operation::{
    self, AllGather, AllReduce, Broadcast, Reduce, ReduceScatter,
};
use crate::collectives::bandwidth::{Line, ROUNDS, Row, WARM_UPS, bus_factor, fit, measure, operation_bytes};
use crate::exercise::spinning::spinning;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new(
            "bandwidth::the_bytes_are_those_of_the_larger_buffer",
            the_bytes_are_those_of_the_larger_buffer,
        )
        .calls(&["operation_bytes"]),
        Check::new("bandwidth::the_factor_is_that_of_the_operation", the_factor_is_that_of_the_operation)
            .calls(&["bus_factor"]),
        Check::new("bandwidth::only_warm_rounds_count", only_warm_rounds_count)
            .measures_time()
            .calls(&["measure"]),
        Check::new("bandwidth::a_row_has_both_bandwidths", a_row_has_both_bandwidths)
            .measures_time()
            .calls(&["measure"]),
        Check::new("bandwidth::a_collective_has_a_row", a_collective_has_a_row)
            .measures_time()
            .calls(&["measure"])
            .min_ranks(3),
        Check::new("bandwidth::short_rounds_are_not_rounded", short_rounds_are_not_rounded)
            .measures_time()
            .calls(&["measure"]),
        Check::new("bandwidth::times_on_a_line_give_the_line", times_on_a_line_give_the_line).calls(&["fit"]),
        Check::new("bandwidth::each_time_weighs_as_much_as_any_other", each_time_weighs_as_much_as_any_other)
            .calls(&["fit"]),
        Check::new("bandwidth::a_line_needs_two_sizes", a_line_needs_two_sizes).calls(&["fit"]),
        Check::new("bandwidth::measuring_costs_little", measuring_costs_little),
        Check::new("bandwidth::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const OPERATIONS: [Operation; 5] = [AllReduce, Broadcast, Reduce, AllGather, ReduceScatter];

fn the_bytes_are_those_of_the_larger_buffer() -> anyhow::Result<()> {
    for world_size in 1..=5 {
        for (count, element_bytes) in [(1031, 4), (37, 2), (5, 8), (0, 4)] {
            for operation in OPERATIONS {
                let got = operation_bytes(operation, world_size, count, element_bytes);
                let shard = count * element_bytes;
                let whole = shard * world_size;
                let (send, receive) = match operation {
                    AllGather => (shard, whole),
                    ReduceScatter => (whole, shard),
                    AllReduce | Broadcast | Reduce => (shard, shard),
                };
                let expected = send.max(receive);
                // The first world has one rank, so a shard is the whole buffer. A value that is wrong by any other
                // factor matches no case.
                let cause = match got {
                    _ if got == expected => continue,
                    _ if got == shard => {
                        "\n  likely cause: these are the bytes of one shard, but each rank has a buffer that holds all \
                         ranks' shards"
                    }
                    _ if got == whole => {
                        "\n  likely cause: these are the bytes on all ranks together: count the bytes on one rank"
                    }
                    _ if got == count => "\n  likely cause: these are elements, not bytes",
                    _ => "",
                };
                bail!(
                    "operation_bytes({operation:?}, {world_size}, {count}, {element_bytes}) is wrong\n  expected \
                     {expected} bytes, the size of a rank's larger buffer, got {got} bytes{cause}"
                );
            }
        }
    }
    Ok(())
}

/// The number of ranks, and an all-reduce's factor for it, from nccl-tests' `doc/PERFORMANCE.md`.
const OF_ALL_REDUCE: [(usize, f64); 9] = [
    (1, 0.0),
    (2, 1.0),
    (3, 4.0 / 3.0),
    (4, 1.5),
    (5, 1.6),
    (6, 5.0 / 3.0),
    (7, 12.0 / 7.0),
    (8, 1.75),
    (16, 1.875),
];

fn factor(operation: Operation, n: usize) -> f64 {
    let of_all_reduce =
        OF_ALL_REDUCE.iter().find(|(ranks, _)| *ranks == n).expect("the table has this size").1;
    match operation {
        AllReduce => of_all_reduce,
        // Each is one half of an all-reduce.
        AllGather | ReduceScatter => of_all_reduce / 2.0,
        Broadcast | Reduce => 1.0,
    }
}

/// The tolerance for a few operations on f64. Their roundings are about 1e-15, and mistakes differ by more than a hundredth.
const ROUNDING: f64 = 1e-9;

/// Returns the mistake that leads to exactly these factors on n ranks.
fn why_these_factors(n: usize) -> Option<String> {
    let got = OPERATIONS.map(|operation| bus_factor(operation, n));
    let are = |factor: &dyn Fn(Operation) -> f64| {
        OPERATIONS.iter().zip(got).all(|(&one, got)| abs_diff_eq!(got, factor(one), epsilon = ROUNDING))
    };
    if are(&|_| 1.0) {
        return Some(
            "every operation has a factor of 1, which makes the bus bandwidth equal to the algorithm bandwidth"
                .to_owned(),
        );
    }
    if let Some(other) = OPERATIONS.into_iter().find(|&other| are(&|_| factor(other, n))) {
        return Some(format!("every operation has the factor for {other:?}"));
    }
    if are(&|operation| factor(operation, n).floor()) {
        return Some("all factors are rounded down: integer division drops the fraction".to_owned());
    }
    are(&|operation| 1.0 / factor(operation, n))
        .then(|| "these are the reciprocals of the factors".to_owned())
}

fn the_factor_is_that_of_the_operation() -> anyhow::Result<()> {
    // Two ranks don't come first, because with two ranks, the factor for an all-reduce equals both 1 and n − 1.
    for n in [5, 2, 3, 4, 8, 16, 1] {
        for operation in OPERATIONS {
            let (got, expected) = (bus_factor(operation, n), factor(operation, n));
            if !abs_diff_eq!(got, expected, epsilon = ROUNDING) {
                // A fractional value can't be the result of an integer division.
                let of_another = || {
                    let same = |other: &Operation| abs_diff_eq!(got, factor(*other, n), epsilon = ROUNDING);
                    let other = OPERATIONS.into_iter().find(same).filter(|_| got.fract() != 0.0)?;
                    Some(format!("that is the factor for {other:?}"))
                };
                let cause = match (n, operation) {
                    // Larger worlds have passed, so the factors are not simply those of another operation.
                    (1, Broadcast | Reduce) => {
                        Some("this factor does not depend on the number of ranks".to_owned())
                    }
                    (1, _) => Some("with one rank, there is nothing to send".to_owned()),
                    _ => why_these_factors(n).or_else(of_another),
                };
                let cause = cause.map_or_else(String::new, |cause| format!("\n  likely cause: {cause}"));
                bail!("bus_factor({operation:?}, {n}): expected {expected}, got {got}{cause}");
            }
        }
    }
    Ok(())
}

/// How long a round keeps the GPU busy.
const ROUND: u64 = 400_000;

/// Measures a row in which each round is a spin. The first `slow` spins take 25 times as long as the others.
fn spins(operation: Operation, world_size: usize, bytes: usize, slow: usize) -> anyhow::Result<(Row, usize)> {
    let (stream, kernels) = spinning()?;
    let calls = Cell::new(0);
    let row = measure(&stream, operation, world_size, bytes, || {
        let call = calls.replace(calls.get() + 1);
        kernels.spin(&stream, if call < slow { 25 * ROUND } else { ROUND })
    })?;
    Ok((row, calls.get()))
}

fn only_warm_rounds_count() -> anyhow::Result<()> {
    let (row, calls) = spins(AllReduce, 4, 1 << 20, WARM_UPS)?;
    let (got, round) = (row.microseconds, ROUND as f64 / 1e3);
    // A spin lasts at least as long as requested. It may last up to five times as long, because the GPU may have other
    // users.
    if calls == WARM_UPS + ROUNDS && (0.95 * round..5.0 * round).contains(&got) {
        return Ok(());
    }
    // The times per round that known mistakes lead to. They differ enough for a tolerance of a factor of two.
    let [warm_ups, rounds] = [WARM_UPS, ROUNDS].map(|count| count as f64);
    let first_ones = (25.0 * warm_ups + rounds - warm_ups) / rounds;
    let with_warm_ups = (25.0 * warm_ups + rounds) / rounds;
    let took = |times: f64| (0.95 * times * round..2.0 * times * round).contains(&got);
    let cause = match () {
        () if calls == ROUNDS && took(first_ones) => {
            "\n  likely cause: there was no warm-up: the first rounds, which take 10 ms each, were measured"
        }
        () if calls == WARM_UPS + ROUNDS && took(rounds) => {
            "\n  likely cause: that is the time for all rounds together: divide it by the number of rounds"
        }
        () if calls == WARM_UPS + ROUNDS && took(with_warm_ups) => {
            "\n  likely cause: the warm-ups, which take 10 ms each, were measured, too"
        }
        () => "",
    };
    bail!(
        "`measure` is wrong for {WARM_UPS} warm-ups and {ROUNDS} rounds of {round} µs\n  calls to `launch`: expected \
         {}, got {calls}\n  `microseconds` in the row: expected about {round}, got {got:.1}{cause}",
        WARM_UPS + ROUNDS
    )
}

fn short_rounds_are_not_rounded() -> anyhow::Result<()> {
    const NANOSECONDS: u64 = 1_500;
    if !times_are_modeled() {
        println!("rounds this short can't be measured exactly enough on a real GPU");
        return Ok(());
    }
    let (stream, kernels) = spinning()?;
    let watch = Stopwatch::start(&stream)?;
    for _ in 0..ROUNDS {
        kernels.spin(&stream, NANOSECONDS)?;
    }
    let expected = watch.microseconds()? / ROUNDS as f64;
    let got = measure(&stream, AllReduce, 4, 4096, || kernels.spin(&stream, NANOSECONDS))?.microseconds;
    ensure!(
        // Launching the first round adds a few hundredths. Without its fraction, the mean is off by a third.
        relative_eq!(got, expected, max_relative = 0.1),
        "`measure` is wrong for rounds of {expected:.3} µs: `microseconds` in the row is {got}; expected the mean, with its \
         fraction"
    );
    Ok(())
}

fn check_row(operation: Operation, world_size: usize, bytes: usize, row: &Row) -> anyhow::Result<()> {
    let Row { bytes: said, microseconds, algbw, busbw } = *row;
    ensure!(said == bytes, "the row's `bytes` is {said}, expected {bytes}");
    ensure!(microseconds > 0.0, "the row's `microseconds` is {microseconds}, expected more than 0");
    let alike = |got: f64, expected: f64| relative_eq!(got, expected, epsilon = 0.0, max_relative = ROUNDING);
    let expected = bytes as f64 / (microseconds * 1e-6) / 1e9;
    let on_bus = expected * factor(operation, world_size);
    let what = format!("{operation:?} of {bytes} bytes on {world_size} ranks in {microseconds:.3} µs");
    ensure!(
        alike(algbw, expected),
        "{what}: expected an algbw of {expected:.6} GB/s, got {algbw:.6} GB/s{}",
        if alike(algbw, expected * 1e9 / (1u64 << 30) as f64) {
            "\n  likely cause: a GB is 10⁹ bytes here; 2³⁰ bytes are a GiB"
        } else if alike(algbw, on_bus) {
            "\n  likely cause: that is the bus bandwidth"
        } else {
            ""
        }
    );
    let (given, right) = (bus_factor(operation, world_size), factor(operation, world_size));
    ensure!(
        alike(busbw, on_bus),
        "{what}: expected a busbw of {on_bus:.6} GB/s, got {busbw:.6} GB/s{}",
        if !abs_diff_eq!(given, right, epsilon = ROUNDING) {
            format!("; bus_factor({operation:?}, {world_size}) is {given}, expected {right}")
        } else if alike(busbw, expected) {
            "\n  likely cause: that is the algorithm bandwidth: it was not multiplied by bus_factor"
                .to_owned()
        } else {
            String::new()
        }
    );
    Ok(())
}

fn a_row_has_both_bandwidths() -> anyhow::Result<()> {
    for (operation, world_size, bytes) in
        [(AllReduce, 5, 123_456), (ReduceScatter, 3, 1 << 20), (Broadcast, 4, 1000), (AllGather, 7, 7 * 4096)]
    {
        check_row(operation, world_size, bytes, &spins(operation, world_size, bytes, 0)?.0)?;
    }
    Ok(())
}

fn a_collective_has_a_row() -> anyhow::Result<()> {
    let world_size = lab::world_sizes().into_iter().max().unwrap_or(3);
    rendezvous(&lab::streams(world_size)?, |comm| {
        const COUNT: usize = 1 << 14;
        let stream = comm.stream();
        let mut buffer = stream.clone_htod(&irregular::integers(comm.rank(), COUNT))?;
        let bytes = operation_bytes(AllReduce, world_size, COUNT, 4);
        let row = measure(&stream, AllReduce, world_size, bytes, || {
            comm.all_reduce_in_place(&mut buffer, &ReduceOp::Max).readable()?;
            Ok(())
        })?;
        check_row(AllReduce, world_size, 4 * COUNT, &row)
    })?;
    Ok(())
}

/// Returns rows with these times.
fn rows(times: &[(usize, f64)]) -> Vec<Row> {
    let row = |&(bytes, microseconds)| Row { bytes, microseconds, algbw: f64::NAN, busbw: f64::NAN };
    times.iter().map(row).collect()
}

/// Returns whether two results of a fit are equal, except for rounding. A fit subtracts sums, which loses digits: of
/// the sixteen that f64 has, this compares six.
fn alike(got: f64, expected: f64) -> bool {
    relative_eq!(got, expected, epsilon = 0.0, max_relative = 1e-6)
}

fn same_line(got: Line, expected: Line) -> bool {
    alike(got.alpha, expected.alpha) && alike(got.beta, expected.beta)
}

fn times_on_a_line_give_the_line() -> anyhow::Result<()> {
    for (alpha, beta, sizes) in [
        (12.5, 4.0e-6, vec![8, 4096, 1 << 20, 64 << 20]),
        (8.0, 2.5e-3, vec![100, 50, 3000]),
        (40.0, 1.0e-5, vec![1 << 20, 1 << 10]),
        (25.0, 2.0e-5, vec![4096, 8, 1 << 20, 4096]),
        (25.0, 2.0e-5, vec![4096, 4096, 1 << 20]),
    ] {
        let line = Line { alpha, beta };
        let times: Vec<_> = sizes.iter().map(|&bytes| (bytes, alpha + beta * bytes as f64)).collect();
        let got = fit(&rows(&times))
            .with_context(|| format!("`fit` for times on a line and sizes of {sizes:?} bytes"))?;
        ensure!(
            same_line(got, line),
            "`fit` for times on a line and sizes of {sizes:?} bytes is wrong\n  expected {line:?}\n  got {got:?}{}",
            if same_line(Line { alpha: got.beta, beta: got.alpha }, line) {
                "\n  likely cause: α and β are swapped"
            } else {
                ""
            }
        );
    }
    Ok(())
}

fn each_time_weighs_as_much_as_any_other() -> anyhow::Result<()> {
    let times = [
        (8, 15.1),
        (512, 14.8),
        (4096, 15.9),
        (1 << 16, 17.0),
        (1 << 20, 24.0),
        (16 << 20, 101.0),
        (256 << 20, 1290.0),
    ];
    // The lines that exact fractions lead to if an error has the weight 1/t², 1/t, or 1.
    let expected = Line { alpha: 15.859956300, beta: 4.952531382e-06 };
    let by_time = Line { alpha: 16.209865432, beta: 4.762017964e-06 };
    let unweighted = Line { alpha: 17.107245490, beta: 4.742928235e-06 };
    let got = fit(&rows(&times))?;
    let last = times[times.len() - 1];
    let slope = (last.1 - times[0].1) / (last.0 - times[0].0) as f64;
    let through_the_ends = Line { alpha: last.1 - slope * last.0 as f64, beta: slope };
    let cause = match got {
        _ if same_line(got, expected) => return Ok(()),
        _ if same_line(got, unweighted) => {
            "all errors have the same weight, so the largest operation dominates, and α is arbitrary"
        }
        _ if same_line(got, by_time) => "the weights are 1/t: divide the squared error by t²",
        _ if same_line(got, through_the_ends) => {
            "the line goes through the first and last points, and ignores the others"
        }
        _ => "",
    };
    let cause = if cause.is_empty() { String::new() } else { format!("\n  likely cause: {cause}") };
    bail!(
        "`fit` for (bytes, µs) {times:?} is wrong\n  expected {expected:?}, which minimizes the sum of ((α + β · S − \
         t) / t)²\n  got {got:?}{cause}"
    )
}

fn a_line_needs_two_sizes() -> anyhow::Result<()> {
    for times in [vec![], vec![(4096, 15.0)], vec![(4096, 15.0), (4096, 16.0), (4096, 14.0)]] {
        if let Ok(line) = without_panic(&format!("fit of {times:?}"), || fit(&rows(&times)))? {
            bail!(
                "`fit` for (bytes, µs) {times:?}: expected an error, because any slope would fit, but got {line:?}"
            );
        }
    }
    Ok(())
}

fn measuring_costs_little() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    // All rounds are measured together, so a round needs no event or wait. Warm-ups may wait.
    let budget = Budget::of("measure").events(4).host_waits(12).kernels(0).copies(0).allocations(0);
    let budget = budget.streams(&[(&stream, "`stream`")]);
    budget.spend(|| measure(&stream, AllReduce, 1, 4096, || Ok(())))?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("measure", || {
        let stream = lab::streams(1)?.remove(0);
        let mut buffer = stream.alloc_zeros::<f32>(37)?;
        Ok(move || measure(&stream, AllReduce, 1, 148, || Ok(stream.memset_zeros(&mut buffer)?)).map(drop))
    })
}
