//! Checks of `collectives/bandwidth`.

use std::cell::Cell;

use anyhow::{bail, ensure};
use approx::{abs_diff_eq, relative_eq};
use cudarc::nccl::ReduceOp;
use init::rendezvous::rendezvous;
use lab::{Check, Readable, irregular};

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
        ),
        Check::new("bandwidth::the_factor_is_that_of_the_operation", the_factor_is_that_of_the_operation),
        Check::new("bandwidth::only_warm_rounds_count", only_warm_rounds_count),
        Check::new("bandwidth::a_row_has_both_bandwidths", a_row_has_both_bandwidths),
        Check::new("bandwidth::a_collective_has_a_row", a_collective_has_a_row).min_ranks(3),
        Check::new("bandwidth::times_on_a_line_give_the_line", times_on_a_line_give_the_line),
        Check::new("bandwidth::each_time_weighs_as_much_as_any_other", each_time_weighs_as_much_as_any_other),
        Check::new("bandwidth::a_line_needs_two_sizes", a_line_needs_two_sizes),
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
                let expected = if matches!(operation, AllGather | ReduceScatter) { whole } else { shard };
                let cause = match got {
                    _ if got == expected => continue,
                    _ if got == shard => {
                        "these are the bytes of one shard: each rank has a buffer with the shards of all"
                    }
                    _ if got == whole => {
                        "these are the bytes of all ranks together: each has one buffer of that length"
                    }
                    _ if got * element_bytes == expected => "these are elements, and not bytes",
                    _ => "the larger one of a rank's two buffers counts",
                };
                bail!(
                    "{operation:?} with a count of {count}, {element_bytes} bytes each, on {world_size} ranks: expected {expected} \
                     bytes, got {got}\n  likely cause: {cause}"
                );
            }
        }
    }
    Ok(())
}

/// As nccl-tests' `doc/PERFORMANCE.md` has them, times n.
fn parts(operation: Operation, n: usize) -> usize {
    match operation {
        AllReduce => 2 * (n - 1),
        AllGather | ReduceScatter => n - 1,
        Broadcast | Reduce => n,
    }
}

fn the_factor_is_that_of_the_operation() -> anyhow::Result<()> {
    // Not two ranks first: there, an all-reduce has factor 1, and n − 1 is 1 as well.
    for n in [5, 2, 3, 4, 8, 16, 1] {
        for operation in OPERATIONS {
            let (got, expected) = (bus_factor(operation, n), parts(operation, n) as f64 / n as f64);
            let cause = match got {
                _ if abs_diff_eq!(got, expected, epsilon = 1e-9) => continue,
                1.0 => "that is the algorithm bandwidth, sold as bus bandwidth",
                _ if abs_diff_eq!(got * expected, 1.0, epsilon = 1e-9) => {
                    "that is the reciprocal: how many bytes of the operation each byte on a link stands for"
                }
                _ => "how many of n parts has each rank to send, and how often?",
            };
            bail!(
                "{operation:?} on {n} ranks: expected a factor of {expected}, got {got}\n  likely cause: {cause}"
            );
        }
    }
    Ok(())
}

/// How long a round keeps the GPU busy.
const ROUND: u64 = 400_000;

/// A row of spins. The first `slow` ones take 25 times as long as the others.
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
    // A spin lasts at least as long as it is asked to; five times that is allowed for a GPU that others use too.
    let cause = match () {
        () if calls == ROUNDS => "there was no warm-up",
        () if calls != WARM_UPS + ROUNDS => "each round is one call of `launch`, and so is each warm-up",
        () if got < 0.95 * round => {
            "that is not the time of a round: does the stopwatch start before the rounds, and is it read behind them?"
        }
        () if got >= ROUNDS as f64 * round => "all rounds together take that long: divide by their number",
        () if got >= 5.0 * round => "the warm-ups, 10 ms each, were measured too",
        () => return Ok(()),
    };
    bail!(
        "{WARM_UPS} rounds to warm up and {ROUNDS} that count, {round} µs each: `launch` was called {calls} times, and the row says \
         {got:.1} µs\n  likely cause: {cause}"
    )
}

fn check_row(operation: Operation, world_size: usize, bytes: usize, row: &Row) -> anyhow::Result<()> {
    let Row { bytes: said, microseconds, algbw, busbw } = *row;
    ensure!(said == bytes, "the row of {bytes} bytes says {said} bytes");
    ensure!(microseconds > 0.0, "the row of {bytes} bytes says {microseconds} µs");
    let alike = |got: f64, expected: f64| relative_eq!(got, expected, epsilon = 0.0, max_relative = 1e-9);
    let expected = bytes as f64 / (microseconds * 1e-6) / 1e9;
    let on_bus = expected * parts(operation, world_size) as f64 / world_size as f64;
    let what = format!("{operation:?} of {bytes} bytes on {world_size} ranks in {microseconds:.3} µs");
    ensure!(
        alike(algbw, expected),
        "{what}: expected an algbw of {expected:.6} GB/s, got {algbw:.6}\n  likely cause: {}",
        if alike(algbw, expected * 1e9 / (1u64 << 30) as f64) {
            "a GB has 10⁹ bytes here; 2³⁰ are a GiB"
        } else if alike(algbw, on_bus) {
            "that is the bus bandwidth"
        } else {
            "bytes through time, in 10⁹ bytes a second, from microseconds"
        }
    );
    ensure!(
        alike(busbw, on_bus),
        "{what}: expected a busbw of {on_bus:.6} GB/s, got {busbw:.6}{}",
        if alike(busbw, expected) {
            "\n  likely cause: that is the algorithm bandwidth, sold as bus bandwidth"
        } else {
            ""
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

/// Rows with these times.
fn rows(times: &[(usize, f64)]) -> Vec<Row> {
    let row = |&(bytes, microseconds)| Row { bytes, microseconds, algbw: f64::NAN, busbw: f64::NAN };
    times.iter().map(row).collect()
}

/// The line by least squares with these weights, from the normal equations.
fn reference(times: &[(usize, f64)], weight: impl Fn(f64) -> f64) -> Line {
    let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 {
        times.iter().map(|&(bytes, time)| weight(time) * term(bytes as f64, time)).sum()
    };
    let (w, s, t) = (sum(&|_, _| 1.0), sum(&|s, _| s), sum(&|_, t| t));
    let (ss, st) = (sum(&|s, _| s * s), sum(&|s, t| s * t));
    let determinant = w * ss - s * s;
    Line { alpha: (ss * t - s * st) / determinant, beta: (w * st - s * t) / determinant }
}

/// Two numbers that a fit gives, up to its rounding.
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
    ] {
        let line = Line { alpha, beta };
        let times: Vec<_> = sizes.iter().map(|&bytes| (bytes, alpha + beta * bytes as f64)).collect();
        let got = fit(&rows(&times))?;
        ensure!(
            same_line(got, line),
            "the times of {sizes:?} bytes lie on {line:?}, and the fit is {got:?}{}",
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
    let expected = reference(&times, |time| 1.0 / (time * time));
    let got = fit(&rows(&times))?;
    let last = times[times.len() - 1];
    let through_the_ends = (last.1 - times[0].1) / (last.0 - times[0].0) as f64;
    let cause = match got {
        _ if same_line(got, expected) => return Ok(()),
        _ if same_line(got, reference(&times, |_| 1.0)) => {
            "all errors weigh the same: so the largest operation's decides, and α may be anything"
        }
        _ if same_line(got, reference(&times, |time| 1.0 / time)) => {
            "the weights are 1/t: it is the squared error that is divided by t²"
        }
        _ if alike(got.beta, through_the_ends) => {
            "the line goes through the first and the last point, and doesn't look at the others"
        }
        _ => "the sum of ((α + β · S − t) / t)² can be smaller",
    };
    bail!("rows {times:?} (bytes, µs): expected {expected:?}, got {got:?}\n  likely cause: {cause}")
}

fn a_line_needs_two_sizes() -> anyhow::Result<()> {
    for times in [vec![], vec![(4096, 15.0)], vec![(4096, 15.0), (4096, 16.0), (4096, 14.0)]] {
        if let Ok(line) = fit(&rows(&times)) {
            bail!("rows {times:?} (bytes, µs): expected an error, got {line:?}, where any slope would do");
        }
    }
    Ok(())
}
