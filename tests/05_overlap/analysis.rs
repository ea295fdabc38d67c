//! Checks for `overlap/analysis`.

use anyhow::Context;
use approx::abs_diff_eq;
use cudarc::nccl::{Comm, ReduceOp};
use init::rendezvous::rendezvous;
use lab::timeline::{Kind, Row, Span, Timeline};
use lab::{Check, Kernels, Readable, Tier, ensure, without_panic};

use crate::exercise::bench::{MILLISECOND, WITHIN, mean};
use crate::overlap::analysis::{Overlap, align, busy, measure, predicted};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("analysis::every_moment_counts_once", every_moment_counts_once).calls(&["busy"]),
        Check::new("analysis::the_total_is_from_the_first_to_the_last", the_total_is_from_first_to_last)
            .calls(&["measure"]),
        Check::new("analysis::the_efficiency_is_between_0_and_1", the_efficiency_is_between_0_and_1)
            .calls(&["Overlap::efficiency"]),
        Check::new("analysis::gaps_make_the_efficiency_negative", gaps_make_the_efficiency_negative)
            .calls(&["Overlap::efficiency"]),
        Check::new("analysis::a_prediction_is_never_below_the_ideal", a_prediction_is_never_below_the_ideal)
            .calls(&["predicted"]),
        Check::new("analysis::the_gpus_get_one_clock", the_gpus_get_one_clock).calls(&["align"]),
        Check::new("analysis::the_gpus_differ_in_collectives", the_gpus_differ_in_collectives)
            .calls(&["align"]),
        Check::new(
            "analysis::spans_measured_with_events_show_the_overlap",
            spans_measured_with_events_show_the_overlap,
        )
        .measures_time()
        .calls(&["measure", "Overlap::efficiency", "align"])
        .min_ranks(2),
    ]
}

/// The tolerance, which is far above the rounding error when a few milliseconds are summed in `f64`.
const ROUNDING: f64 = 1e-9;

fn span(kind: Kind, start: f64, end: f64) -> Span {
    Span { kind, name: format!("{start} to {end}"), start, end }
}

/// Returns the total length of the spans after the origin, 0, if no spans overlap.
fn after_the_origin(times: &[(f64, f64)]) -> f64 {
    times.iter().map(|(start, end)| end.max(0.0) - start.max(0.0)).sum()
}

/// Spans of which the first one lasts longest, and their total length if each is counted from the end of the span that
/// starts before it.
const FIRST_IS_LONGEST: (&[(f64, f64)], f64) = (&[(1.0, 9.0), (2.0, 3.0), (4.0, 5.0)], 9.0);

fn every_moment_counts_once() -> anyhow::Result<()> {
    let cases: [(&[(f64, f64)], f64); 9] = [
        (&[], 0.0),
        (&[(2.0, 5.0)], 3.0),
        (&[(7.0, 8.5), (2.0, 5.0)], 4.5),
        (&[(2.0, 5.0), (4.0, 6.0)], 4.0),
        (FIRST_IS_LONGEST.0, 8.0),
        (&[(0.0, 2.0), (2.0, 3.0), (6.0, 7.0), (6.0, 7.0)], 4.0),
        (&[(-7.0, -4.5)], 2.5),
        (&[(-3.0, 2.0), (4.0, 5.0)], 6.0),
        (&[(-9.0, -6.0), (-7.0, -5.0), (-1.0, 1.0)], 6.0),
    ];
    for (times, expected) in cases {
        let spans: Vec<Span> = times.iter().map(|&(start, end)| span(Kind::Compute, start, end)).collect();
        let got = busy(&spans.iter().collect::<Vec<_>>());
        let all: f64 = times.iter().map(|(start, end)| end - start).sum();
        ensure!(
            abs_diff_eq!(got, expected, epsilon = ROUNDING),
            "`busy` is wrong for the spans {times:?} (start, end in ms)\n  expected {expected} ms during which at \
             least one of them is running, got {got} ms{}",
            if abs_diff_eq!(got, all, epsilon = ROUNDING) {
                "\n  likely cause: the time during which two spans overlap is counted twice; that leads to an \
                 efficiency above 1"
            } else if (times, got) == FIRST_IS_LONGEST {
                "\n  likely cause: a span is counted from the end of the span before it, but an earlier one may end \
                 later"
            } else if abs_diff_eq!(got, after_the_origin(times), epsilon = ROUNDING) {
                "\n  likely cause: the time before 0 is not counted, but the origin is arbitrary, so spans may be \
                 before it"
            } else {
                ""
            }
        );
    }
    Ok(())
}

fn the_total_is_from_first_to_last() -> anyhow::Result<()> {
    use Kind::{Communication, Compute, Copy};
    let spans = [
        span(Compute, 12.0, 15.0),
        span(Compute, 3.0, 7.0),
        span(Compute, 13.0, 14.0),
        span(Communication, 7.0, 13.0),
        span(Copy, 14.0, 17.0),
        span(Communication, 15.0, 16.0),
        span(Copy, 2.5, 2.75),
    ];
    // The origin is arbitrary: it may be before all spans, between them, or after them.
    for by in [0.0, -8.0, -20.0] {
        check_measure(&shifted(&spans, by), by)?;
    }
    Ok(())
}

/// Checks the spans from [`the_total_is_from_first_to_last`], shifted by this many milliseconds.
fn check_measure(spans: &[Span], by: f64) -> anyhow::Result<()> {
    let got = measure(spans);
    let expected = Overlap { compute: 7.0, communication: 7.0, total: 14.5 };
    ensure!(
        got.total != 6.0,
        "`measure` returned a `total` of {} ms, expected 14.5 ms: that is only the longest span\n  it leads to an \
         efficiency of {:.2}, but an efficiency can't be above 1",
        got.total,
        got.efficiency().unwrap_or_default()
    );
    let alike = |one: f64, other: f64| abs_diff_eq!(one, other, epsilon = ROUNDING);
    // The totals that result if the first span in the list is used as the start, or the last one as the end.
    let in_their_order = [2.75 - 12.0, 17.0 - 12.0, 2.75 - 2.5];
    let cause = if alike(got.compute, 8.0) {
        "\n  likely cause: the lengths were summed. Two spans of the same kind may overlap, but `busy` counts each \
         moment once"
    } else if in_their_order.iter().any(|&total| alike(got.total, total)) {
        "\n  likely cause: spans may come in any order; `total` is from the earliest start to the latest end"
    } else if alike(got.total, 13.0) {
        "\n  likely cause: `total` leaves out the copies, but they are a part of it, too"
    } else if alike(got.total, 14.25) {
        "\n  likely cause: `total` leaves out the time in which nothing runs, but it is the time from the first start to \
         the last end"
    } else if alike(got.total, 13.5) {
        "\n  likely cause: `total` ends with the span that starts last, but one that starts earlier may end later"
    } else {
        ""
    };
    ensure!(
        alike(got.compute, 7.0) && alike(got.communication, 7.0) && alike(got.total, 14.5),
        "`measure` is wrong for spans from {} ms to {} ms (the first and the last are copies)\n  expected {expected:?}\n  got {got:?}{cause}",
        2.5 + by,
        17.0 + by
    );
    Ok(())
}

/// Values of C, M, T, and η.
const CASES: [[f64; 4]; 6] = [
    [50.0, 10.0, 60.0, 0.0],
    [50.0, 10.0, 52.0, 0.8],
    [50.0, 10.0, 50.0, 1.0],
    [10.0, 40.0, 50.0, 0.0],
    [10.0, 40.0, 45.0, 0.5],
    [10.0, 40.0, 40.0, 1.0],
];

fn the_efficiency_is_between_0_and_1() -> anyhow::Result<()> {
    for [compute, communication, total, expected] in CASES {
        let got = Overlap { compute, communication, total }
            .efficiency()
            .with_context(|| format!("Overlap::efficiency returned None, expected Some({expected})"))?;
        ensure!(
            abs_diff_eq!(got, expected, epsilon = ROUNDING),
            "Overlap::efficiency with C = {compute}, M = {communication}, T = {total} ms: expected η = {expected}, got \
             {got}{}",
            if abs_diff_eq!(got, (compute + communication - total) / communication, epsilon = ROUNDING) {
                "\n  likely cause: the time saved was divided by M. At most the shorter of C and M can be hidden, \
                 which is C here"
            } else if abs_diff_eq!(got, compute.max(communication) / total, epsilon = ROUNDING) {
                "\n  likely cause: this is the shortest possible time divided by T, which is not 0 if nothing overlaps"
            } else {
                ""
            }
        );
    }
    for (compute, communication) in [(3.0, 0.0), (0.0, 3.0), (0.0, 0.0)] {
        let total = compute + communication;
        let nothing = Overlap { compute, communication, total }.efficiency();
        ensure!(
            nothing.is_none(),
            "Overlap::efficiency with C = {compute} and M = {communication} ms: expected None, because nothing can \
             overlap, got {nothing:?}"
        );
    }
    Ok(())
}

fn gaps_make_the_efficiency_negative() -> anyhow::Result<()> {
    for [compute, communication, total, expected] in [[50.0, 10.0, 65.0, -0.5], [10.0, 40.0, 70.0, -2.0]] {
        let got = Overlap { compute, communication, total }
            .efficiency()
            .with_context(|| format!("Overlap::efficiency returned None, expected Some({expected})"))?;
        ensure!(
            abs_diff_eq!(got, expected, epsilon = ROUNDING),
            "Overlap::efficiency with C = {compute}, M = {communication}, T = {total} ms: expected η = {expected}, \
             because gaps make T longer than C + M, got {got}{}",
            match got == 0.0 {
                true => "\n  likely cause: η is clamped to 0, which hides the gaps",
                false => "",
            }
        );
    }
    Ok(())
}

fn a_prediction_is_never_below_the_ideal() -> anyhow::Result<()> {
    for [compute, communication, total, efficiency] in CASES {
        let got = predicted(compute, communication, efficiency);
        let ideal = Overlap { compute, communication, total }.ideal();
        ensure!(
            got > ideal - ROUNDING,
            "predicted with C = {compute} ms, M = {communication} ms, and η = {efficiency}\n  expected {total} ms, got \
             {got} ms, which is less than {ideal} ms, the time for the longer one alone{}",
            match abs_diff_eq!(got, compute + communication * (1.0 - efficiency), epsilon = ROUNDING) {
                true => "\n  likely cause: C + M · (1 − η) is correct only if M is the shorter one",
                false => "",
            }
        );
        ensure!(
            abs_diff_eq!(got, total, epsilon = ROUNDING),
            "`predicted` with C = {compute} ms, M = {communication} ms, and η = {efficiency}: expected {total} ms, got {got} ms"
        );
    }
    Ok(())
}

/// Returns the spans of three collectives on three GPUs, on a common clock. The GPUs arrive at different times, but
/// leave within microseconds of each other.
fn run_of_three() -> Vec<Vec<Span>> {
    let late = [[0.0, 0.3, 0.1], [1.5, 0.0, 0.9], [0.2, 2.0, 0.0]];
    let leave = [[0.0, 0.0, 0.0], [0.004, -0.001, 0.0], [0.0, -0.002, 0.0]];
    let gpu = |gpu: usize| -> Vec<Span> {
        let collective = |at: usize| {
            let end = 10.0 * (at + 1) as f64;
            [
                span(Kind::Compute, end - 8.0, end - 4.0 + late[gpu][at]),
                span(Kind::Communication, end - 4.0 + late[gpu][at], end + leave[gpu][at]),
            ]
        };
        (0..3).flat_map(collective).collect()
    };
    (0..3).map(gpu).collect()
}

fn shifted(spans: &[Span], by: f64) -> Vec<Span> {
    spans.iter().map(|span| Span { start: span.start + by, end: span.end + by, ..span.clone() }).collect()
}

fn the_gpus_get_one_clock() -> anyhow::Result<()> {
    let expected = run_of_three();
    let clocks = [0.0, 5000.0, -37.25];
    let own: Vec<Vec<Span>> = expected.iter().zip(clocks).map(|(spans, by)| shifted(spans, by)).collect();
    let rows = align(own.clone())?;
    ensure!(rows.len() == 3, "align(…) returned {} rows for 3 GPUs", rows.len());
    let alike = |one: &Span, other: &Span| {
        abs_diff_eq!(one.start, other.start, epsilon = ROUNDING)
            && abs_diff_eq!(one.end, other.end, epsilon = ROUNDING)
    };
    for (gpu, (row, expected)) in rows.iter().zip(&expected).enumerate() {
        ensure!(
            row.spans.len() == expected.len(),
            "GPU {gpu} has {} spans after `align`, expected {}",
            row.spans.len(),
            expected.len()
        );
        let collectives = |spans: &[Span]| -> Vec<Span> {
            spans.iter().filter(|span| span.kind == Kind::Communication).cloned().collect()
        };
        let (of_first, of_this) = (collectives(&own[0]), collectives(&own[gpu]));
        let by_the_start_of = |at: &usize| {
            let by = of_first[*at].start - of_this[*at].start;
            row.spans.iter().zip(shifted(&own[gpu], by)).all(|(got, moved)| alike(got, &moved))
        };
        let cause = if row.spans == own[gpu] && gpu > 0 {
            "\n  likely cause: its times are still by its own clock, so they can't be compared with GPU 0's"
                .to_owned()
        } else if let Some(at) = (0..of_this.len()).find(by_the_start_of) {
            format!(
                "\n  likely cause: the clocks were compared at the wrong moment, the start of collective {at}. GPUs \
                 arrive at a collective at different times, but leave it together"
            )
        } else {
            String::new()
        };
        for (got, expected) in row.spans.iter().zip(expected) {
            ensure!(
                alike(got, expected),
                "`align` is wrong for GPU {gpu}: {:?} from {} to {} ms by its own clock\n  expected from {} to {} ms \
                 by GPU 0's clock, got from {:.3} to {:.3} ms{cause}",
                got.kind,
                expected.start + clocks[gpu],
                expected.end + clocks[gpu],
                expected.start,
                expected.end,
                got.start,
                got.end
            );
        }
    }
    for (gpu, (row, apart)) in rows.iter().zip([0.0, 0.004, 0.002]).enumerate() {
        // Aligning moves a row by milliseconds, and its uncertainty is a few thousandths.
        let is_unaligned = gpu > 0 && abs_diff_eq!(row.uncertainty, f64::abs(clocks[gpu]), epsilon = 0.01);
        let cause = match is_unaligned {
            true => "\n  likely cause: this is the difference before the clocks are aligned",
            false => "",
        };
        ensure!(
            abs_diff_eq!(row.uncertainty, apart, epsilon = ROUNDING),
            "GPU {gpu} has an `uncertainty` of {} ms, expected {apart} ms\n  once aligned, the ends of its \
             collectives differ from GPU 0's by up to {apart} ms, in both directions{cause}",
            row.uncertainty
        );
    }
    Ok(())
}

fn the_gpus_differ_in_collectives() -> anyhow::Result<()> {
    let mut gpus = run_of_three();
    gpus[2].pop();
    let differing = without_panic("align when GPU 2 has one collective fewer", || align(gpus))?;
    ensure!(differing.is_err(), "GPU 2 has one collective fewer, but `align` returned Ok; expected an error");
    let compute = vec![span(Kind::Compute, 0.0, 1.0)];
    let none = without_panic("align when there is no collective", || align(vec![compute.clone(), compute]))?;
    ensure!(none.is_err(), "there is no collective, but `align` returned Ok; expected an error");
    ensure!(align(Vec::new())?.is_empty(), "`align` with no GPUs returned a row, expected none");
    Ok(())
}

const BUCKETS: usize = 4;

/// Computes each bucket and sums it, either in sequence or while the next bucket is being computed. Rank 1's clock
/// starts later.
fn run(comm: &Comm, overlaps: bool) -> anyhow::Result<Vec<Span>> {
    let (context, stream) = (comm.context(), comm.stream());
    // SAFETY: each bucket is summed after its computation, and freed after the sum.
    unsafe { context.disable_event_tracking() };
    let compute = context.new_stream()?;
    let kernels = Kernels::load(context)?;
    let mut buckets =
        (0..BUCKETS).map(|_| Ok(stream.alloc_zeros::<f32>(37)?)).collect::<anyhow::Result<Vec<_>>>()?;
    comm.all_reduce_in_place(&mut buckets[0], &ReduceOp::Sum).readable()?;
    kernels.spin(&compute, if comm.rank() == 1 { MILLISECOND } else { 0 })?;
    stream.synchronize()?;
    compute.synchronize()?;
    let mut timeline = Timeline::start(&compute)?;
    for (at, bucket) in buckets.iter_mut().enumerate() {
        timeline.record(&compute, Kind::Compute, format!("computing {at}"), || {
            kernels.spin(&compute, MILLISECOND)
        })?;
        stream.wait(&compute.record_event(None)?)?;
        timeline.record(&stream, Kind::Communication, format!("summing {at}"), || {
            kernels.spin(&stream, MILLISECOND)?;
            comm.all_reduce_in_place(bucket, &ReduceOp::Sum).readable()?;
            Ok(())
        })?;
        if !overlaps {
            compute.wait(&stream.record_event(None)?)?;
        }
    }
    let spans = timeline.spans()?;
    stream.synchronize()?;
    Ok(spans)
}

fn spans_measured_with_events_show_the_overlap() -> anyhow::Result<()> {
    for overlaps in [false, true] {
        let gpus = rendezvous(&lab::streams(2)?, |comm| run(&comm, overlaps))?;
        for (rank, spans) in gpus.iter().enumerate() {
            let overlap = measure(spans);
            let efficiency = overlap
                .efficiency()
                .context("the rank both computed and communicated, so its efficiency must be known")?;
            ensure!(
                (efficiency > 0.25) == overlaps && efficiency <= 1.0 + ROUNDING,
                "rank {rank}: {} buckets were summed {}, but the measured η is {efficiency:.2} ({overlap:.2?})",
                BUCKETS,
                if overlaps { "in parallel with the next computation" } else { "one after the other" }
            );
            // With overlap, a sum starts when its bucket is ready and the sum before it is done.
            let (c, m, buckets) = (mean(spans, "computing"), mean(spans, "summing"), BUCKETS as f64);
            let ready = (1..=BUCKETS).map(|bucket| bucket as f64 * c);
            let overlapped = ready.fold(0.0, |done: f64, ready| done.max(ready) + m);
            let formula = if overlaps { overlapped } else { buckets * (c + m) };
            ensure!(
                lab::attach(2)? != Tier::Virtual
                    || abs_diff_eq!(overlap.total / formula, 1.0, epsilon = WITHIN),
                "rank {rank}: the measured T is {:.2} ms, but the formula for {buckets} buckets predicts {formula:.2} \
                 ms",
                overlap.total
            );
        }
        told_in_order(&align(gpus)?)?;
    }
    Ok(())
}

/// Checks that, within the uncertainty of their times, no GPU leaves a collective before the other GPU arrives.
fn told_in_order(rows: &[Row]) -> anyhow::Result<()> {
    let of =
        |row: &Row, at: usize| row.spans.iter().find(|span| span.name == format!("summing {at}")).cloned();
    for at in 0..BUCKETS {
        for (one, other) in [(0, 1), (1, 0)] {
            let left = of(&rows[one], at).context("a sum is missing")?.end;
            let came = of(&rows[other], at).context("a sum is missing")?.start;
            let uncertain = rows[one].uncertainty + rows[other].uncertainty;
            ensure!(
                left + uncertain >= came,
                "sum {at}: GPU {one} left it at {left:.3} ms, but GPU {other} did not arrive until {came:.3} ms by the \
                 common clock, whose `uncertainty` is {uncertain:.3} ms: no sum can be done before all GPUs have \
                 arrived"
            );
        }
    }
    Ok(())
}
