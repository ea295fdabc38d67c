//! Checks for `grouping/tracking`.

use std::cell::Cell;
use std::sync::Arc;

use anyhow::{Context, bail};
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, CudaViewMut};
use lab::timeline::timed;
use lab::{Budget, Check, Expected, Kernels, each_call_fails, ensure, irregular};

use crate::grouping::tracking::{in_one_slice, in_two_slices, write_after_reads};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("tracking::two_slices_are_worked_on_at_once", two_slices_are_worked_on_at_once)
            .measures_time()
            .calls(&["in_two_slices"]),
        Check::new("tracking::two_slices_stay_tracked", two_slices_stay_tracked).calls(&["in_two_slices"]),
        Check::new("tracking::one_slice_is_worked_on_at_once", one_slice_is_worked_on_at_once)
            .measures_time()
            .calls(&["in_one_slice"]),
        Check::new("tracking::a_late_upload_is_waited_for", a_late_upload_is_waited_for)
            .calls(&["in_one_slice"]),
        Check::new("tracking::a_late_half_is_waited_for", a_late_half_is_waited_for)
            .calls(&["in_two_slices", "in_one_slice"]),
        Check::new("tracking::a_slice_outlives_failed_work", a_slice_outlives_failed_work)
            .calls(&["in_one_slice"]),
        Check::new("tracking::all_readers_are_waited_for", all_readers_are_waited_for)
            .calls(&["write_after_reads"]),
        Check::new("tracking::there_may_be_no_readers", there_may_be_no_readers)
            .calls(&["write_after_reads"]),
        Check::new("tracking::readers_read_at_once", readers_read_at_once)
            .measures_time()
            .calls(&["write_after_reads"]),
        Check::new("tracking::writing_after_reading_returns_at_once", writing_after_reading_returns_at_once)
            .calls(&["write_after_reads"]),
        Check::new("tracking::each_value_is_copied_once_each_way", each_value_is_copied_once_each_way)
            .calls(&["in_two_slices", "in_one_slice"]),
        Check::new("tracking::readers_and_writer_share_the_slice", readers_and_writer_share_the_slice)
            .calls(&["write_after_reads"]),
        Check::new("tracking::a_failed_call_is_an_error", a_failed_call_is_an_error).calls(&[
            "in_two_slices",
            "in_one_slice",
            "write_after_reads",
        ]),
    ]
}

const MILLISECOND: u64 = 1_000_000;
const LEN: usize = 1031;

/// Streams on one GPU with event tracking, and kernels that are already loaded.
struct Bench {
    streams: Vec<Arc<CudaStream>>,
    kernels: Kernels,
}

impl Bench {
    fn new(streams: usize) -> anyhow::Result<Self> {
        let first = lab::streams(1)?.remove(0);
        let context = first.context();
        let kernels = Kernels::load(context)?;
        // Loads the kernels first, so that loading does not affect later work.
        let mut some = first.alloc_zeros::<f32>(1)?;
        kernels.spin(&first, 0)?;
        kernels.scale(&first, &mut some, 1.0)?;
        first.synchronize()?;
        let others = (1..streams).map(|_| Ok(context.new_stream()?));
        let streams = std::iter::once(Ok(first.clone())).chain(others).collect::<anyhow::Result<_>>()?;
        Ok(Self { streams, kernels })
    }
}

/// Returns the overlap of two intervals in milliseconds. A negative result is the gap between them. Each interval is a
/// pair of events on one GPU.
fn overlap(one: &(CudaEvent, CudaEvent), other: &(CudaEvent, CudaEvent)) -> anyhow::Result<f32> {
    let (starts, ends) = (one.0.elapsed_ms(&other.0)?, one.0.elapsed_ms(&other.1)?);
    Ok(one.0.elapsed_ms(&one.1)?.min(ends) - starts.max(0.0))
}

/// The work that the exercise does on each half.
type InHalves<'a> = &'a mut dyn FnMut(&Arc<CudaStream>, &mut CudaViewMut<f32>) -> anyhow::Result<()>;
/// A way to work on the halves: in two slices or in one.
type Way = fn(&Arc<CudaStream>, &Arc<CudaStream>, &[f32], InHalves) -> anyhow::Result<Vec<f32>>;

const TWO_SLICES: Way = |first, second, values, work| in_two_slices(first, second, values, work);
const ONE_SLICE: Way = |first, second, values, work| in_one_slice(first, second, values, work);

/// When the halves were processed.
struct Worked {
    /// The events around the two spins.
    marks: Vec<(CudaEvent, CudaEvent)>,
    /// Whether the first half was done when the host enqueued the second half.
    one_was_done: bool,
}

/// Multiplies each half by 2, spins, and multiplies it by 3, all on the half's stream. Compares the result.
fn halves(bench: &Bench, way: Way, spins: [u64; 2]) -> anyhow::Result<Worked> {
    let [first, second] = &bench.streams[..] else { anyhow::bail!("two streams") };
    let kernels = &bench.kernels;
    let values = irregular::integers(0, LEN);
    let mut marks: Vec<(CudaEvent, CudaEvent)> = Vec::new();
    let mut lengths = Vec::new();
    let mut one_was_done = false;
    let got = way(first, second, &values, &mut |stream, half| {
        if let Some((_, end)) = marks.last() {
            one_was_done = end.try_is_complete()?;
        }
        // The view is used before the first event is recorded, so that the work that tracking waits for also comes
        // before that event.
        kernels.scale(stream, half, 2.0)?;
        let start = timed(stream)?;
        kernels.spin(stream, spins[usize::from(stream == second)])?;
        marks.push((start, timed(stream)?));
        lengths.push((stream == second, half.len()));
        kernels.scale(stream, half, 3.0)
    })?;
    let of = |second: bool| -> Vec<usize> {
        lengths.iter().filter(|(stream, _)| *stream == second).map(|(_, len)| *len).collect()
    };
    ensure!(
        lengths.contains(&(false, LEN / 2)) && lengths.contains(&(true, LEN - LEN / 2)) && lengths.len() == 2,
        "of {LEN} values, the first stream must work on {} once, and the second stream on the other {} once; but the \
         first stream worked on {:?}, and the second on {:?}",
        LEN / 2,
        LEN - LEN / 2,
        of(false),
        of(true)
    );
    first.synchronize()?;
    second.synchronize()?;
    let times = |factors: [f32; 2]| -> Vec<f32> {
        (0..LEN).map(|index| values[index] * factors[usize::from(index >= LEN / 2)]).collect()
    };
    let done = times([6.0, 6.0]);
    let swapped = [&done[LEN / 2..], &done[..LEN / 2]].concat();
    Expected::of("the result of both halves", &done)
        .if_instead(&swapped, "the two halves are swapped")
        .if_instead(&times([6.0, 2.0]), "the second half was read before its work was done")
        .if_instead(&times([2.0, 6.0]), "the first half was read before its work was done")
        .if_instead(&times([6.0, 1.0]), "the second half was read before its work had started")
        .exactly(&got)?;
    Ok(Worked { marks, one_was_done })
}

fn worked_on_at_once(way: Way) -> anyhow::Result<()> {
    let bench = Bench::new(2)?;
    let Worked { marks, one_was_done } = halves(&bench, way, [2 * MILLISECOND; 2])?;
    let both = overlap(&marks[0], &marks[1])?;
    let why = match one_was_done {
        true => "the host waited for the first half before it enqueued the second",
        false => {
            "the second half was enqueued while the first was running, but its stream waited for the first"
        }
    };
    ensure!(
        both > 0.0,
        "each half has 2 ms of work, on its own stream, but the halves never ran at the same time\n  {why}{}",
        match bench.streams[0].context().is_event_tracking() {
            true => "\n  event tracking is on, and inserted that wait",
            false => "\n  event tracking is off",
        }
    );
    Ok(())
}

fn two_slices_are_worked_on_at_once() -> anyhow::Result<()> {
    worked_on_at_once(TWO_SLICES)
}

fn two_slices_stay_tracked() -> anyhow::Result<()> {
    let bench = Bench::new(2)?;
    halves(&bench, TWO_SLICES, [0, 0])?;
    ensure!(
        bench.streams[0].context().is_event_tracking(),
        "in_two_slices has switched event tracking off, but two slices don't need that"
    );
    Ok(())
}

fn one_slice_is_worked_on_at_once() -> anyhow::Result<()> {
    worked_on_at_once(ONE_SLICE)?;
    let bench = Bench::new(2)?;
    halves(&bench, ONE_SLICE, [0, 0])?;
    ensure!(
        !bench.streams[0].context().is_event_tracking(),
        "`in_one_slice` switched event tracking on again; expected it to stay off"
    );
    Ok(())
}

fn a_late_upload_is_waited_for() -> anyhow::Result<()> {
    let bench = Bench::new(2)?;
    bench.kernels.spin(&bench.streams[0], 2 * MILLISECOND)?;
    halves(&bench, ONE_SLICE, [0, 0])?;
    Ok(())
}

fn a_late_half_is_waited_for() -> anyhow::Result<()> {
    for way in [TWO_SLICES, ONE_SLICE] {
        halves(&Bench::new(2)?, way, [0, 2 * MILLISECOND])?;
    }
    Ok(())
}

/// Lets `work` fail on either half after it has enqueued some of its work, and then reuses the memory of the slice.
fn a_slice_outlives_failed_work() -> anyhow::Result<()> {
    let values = irregular::integers(0, LEN);
    for failing in 0..2 {
        let bench = Bench::new(2)?;
        let (first, second) = (&bench.streams[0], &bench.streams[1]);
        let result = in_one_slice(first, second, &values, |stream, half| {
            let is_second = stream == second;
            bench.kernels.spin(stream, if is_second { 2 * MILLISECOND } else { 0 })?;
            bench.kernels.scale(stream, half, 2.0)?;
            ensure!(is_second != (failing == 1), "half {failing} has no second kernel");
            Ok(())
        });
        ensure!(
            result.is_err(),
            "`work` failed on half {failing} of `in_one_slice`, which returned `Ok`; expected the error from `work`"
        );
        let _reused = first.alloc_zeros::<f32>(LEN)?;
        let ended = bench.streams.iter().try_for_each(|stream| stream.synchronize());
        ended.with_context(|| {
            format!(
                "`work` failed on half {failing} of `in_one_slice`, after it had enqueued a kernel; then the GPU \
                 failed, too"
            )
        })?;
    }
    Ok(())
}

/// The readers' results, and the times of their reads.
struct Read {
    outputs: Vec<CudaSlice<f32>>,
    slice: CudaSlice<f32>,
    marks: Vec<(CudaEvent, CudaEvent)>,
}

/// Lets three readers copy a slice, each after a spin, and then lets a fourth stream overwrite it.
fn written_after_reads(bench: &Bench, spins: [u64; 3]) -> anyhow::Result<Read> {
    written_after_reads_by(bench, spins, |call| call())
}

/// Like [`written_after_reads`], but makes the exercise's call through `run`.
fn written_after_reads_by(
    bench: &Bench,
    spins: [u64; 3],
    run: impl FnOnce(&mut dyn FnMut() -> anyhow::Result<()>) -> anyhow::Result<()>,
) -> anyhow::Result<Read> {
    let kernels = &bench.kernels;
    let (writer, readers) = (&bench.streams[3], &bench.streams[..3]);
    let mut outputs = Vec::new();
    for reader in readers {
        outputs.push(reader.clone_htod(&stale())?);
    }
    let mut slice = writer.clone_htod(&irregular::integers(0, LEN))?;
    let new = writer.clone_htod(&irregular::integers(1, LEN))?;
    bench.streams.iter().try_for_each(|stream| stream.synchronize())?;
    let mut marks = Vec::new();
    run(&mut || {
        write_after_reads(
            &mut slice,
            readers,
            writer,
            |index, slice| {
                let start = timed(&readers[index])?;
                kernels.spin(&readers[index], spins[index])?;
                readers[index].memcpy_dtod(slice, &mut outputs[index])?;
                marks.push((start, timed(&readers[index])?));
                Ok(())
            },
            |slice| Ok(writer.memcpy_dtod(&new, slice)?),
        )
    })?;
    Ok(Read { outputs, slice, marks })
}

/// Returns the initial values of an output.
fn stale() -> Vec<f32> {
    irregular::integers(1000, LEN)
}

fn compare(bench: &Bench, read: &Read) -> anyhow::Result<()> {
    // Stream errors are checked first: they are more informative than a failed comparison.
    let ended = bench.streams.iter().try_for_each(|stream| stream.synchronize());
    ended.context(
        "the GPU failed while the readers' streams read the slice and the writer's stream wrote it",
    )?;
    for (index, output) in read.outputs.iter().enumerate() {
        Expected::of(&format!("the output of reader {index} of 3"), &irregular::integers(0, LEN))
            .if_instead(
                &irregular::integers(1, LEN),
                "it is what was written afterwards: the writer did not wait for this reader",
            )
            .if_instead(&stale(), "it holds its old values: nothing was read")
            .exactly(&output.stream().clone_dtoh(output)?)?;
    }
    Expected::of("the slice at the end", &irregular::integers(1, LEN))
        .if_instead(&irregular::integers(0, LEN), "it is what the readers read: nothing was written")
        .exactly(&read.slice.stream().clone_dtoh(&read.slice)?)
}

fn all_readers_are_waited_for() -> anyhow::Result<()> {
    for late in 0..3 {
        let mut spins = [0; 3];
        spins[late] = 2 * MILLISECOND;
        let bench = Bench::new(4)?;
        let read = written_after_reads(&bench, spins)?;
        compare(&bench, &read)?;
        ensure!(
            bench.streams[0].context().is_event_tracking(),
            "`write_after_reads` switched event tracking off; expected it to stay on"
        );
    }
    Ok(())
}

fn there_may_be_no_readers() -> anyhow::Result<()> {
    let writer = lab::streams(1)?.remove(0);
    let mut slice = writer.alloc_zeros(LEN)?;
    let writes = Cell::new(0);
    let read = |index: usize, _: &CudaSlice<f32>| bail!("`read` was called for reader {index}");
    let write = |_: &mut CudaSlice<f32>| {
        writes.set(writes.get() + 1);
        Ok(())
    };
    write_after_reads(&mut slice, &[], &writer, read, write)
        .context("`write_after_reads`: there are no readers, which must not be an error")?;
    let writes = writes.get();
    ensure!(
        writes == 1,
        "`write_after_reads` called `write` {writes} times without readers; expected one call"
    );
    Ok(())
}

fn readers_read_at_once() -> anyhow::Result<()> {
    let bench = Bench::new(4)?;
    let read = written_after_reads(&bench, [2 * MILLISECOND; 3])?;
    compare(&bench, &read)?;
    ensure!(read.marks.len() == 3, "there are 3 readers, but {} reads", read.marks.len());
    for (index, pair) in read.marks.windows(2).enumerate() {
        let both = overlap(&pair[0], &pair[1])?;
        ensure!(
            both > 0.0,
            "readers {index} and {} worked for 2 ms each, but never at the same time: only the writer has to wait",
            index + 1
        );
    }
    Ok(())
}

fn writing_after_reading_returns_at_once() -> anyhow::Result<()> {
    let first = Bench::new(4)?;
    compare(&first, &written_after_reads(&first, [0; 3])?)?;
    let bench = Bench::new(4)?;
    let reader = bench.streams[0].clone();
    let read = written_after_reads_by(&bench, [0; 3], |call| {
        lab::while_blocked("write_after_reads", "a reader's stream", &reader, call)
    })?;
    compare(&bench, &read)
}

/// `work` makes no CUDA calls, so that only the exercise's calls are counted.
fn each_value_is_copied_once_each_way() -> anyhow::Result<()> {
    let values = irregular::integers(0, LEN);
    let bytes = size_of_val(&values[..]) as u64;
    for (function, way, slices) in [("in_two_slices", TWO_SLICES, 2), ("in_one_slice", ONE_SLICE, 1)] {
        let bench = Bench::new(2)?;
        let (first, second) = (&bench.streams[0], &bench.streams[1]);
        let budget = Budget::of(function).bytes_to_device(bytes).bytes_to_host(bytes).bytes_on_device(0);
        let budget = budget.allocations(slices).copies(4).kernels(0).new_streams(0).host_waits(4);
        let budget = budget.streams(&[(first, "the first stream"), (second, "the second stream")]);
        budget.spend(|| way(first, second, &values, &mut |_, _| Ok(())))?;
    }
    Ok(())
}

/// `read` and `write` make no CUDA calls, so that only the exercise's calls are counted.
fn readers_and_writer_share_the_slice() -> anyhow::Result<()> {
    let bench = Bench::new(4)?;
    let (writer, readers) = (&bench.streams[3], &bench.streams[..3]);
    let mut slice = writer.clone_htod(&irregular::integers(0, LEN))?;
    let mut read = Vec::new();
    let budget = Budget::of("write_after_reads").copies(0).fills(0).kernels(0).allocations(0).new_streams(0);
    budget.events(8).host_waits(0).polls(0).spend(|| {
        let note = |index, _: &_| {
            read.push(index);
            Ok(())
        };
        write_after_reads(&mut slice, readers, writer, note, |_| Ok(()))
    })?;
    read.sort_unstable();
    ensure!(
        read == [0, 1, 2],
        "`write_after_reads` called `read` for readers {read:?}; expected one call for each of the 3 readers"
    );
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let values = irregular::integers(0, LEN);
    for (function, way) in [("in_two_slices", TWO_SLICES), ("in_one_slice", ONE_SLICE)] {
        // `work` makes no CUDA calls. Otherwise, if the last join fails, work on the second stream would race with the
        // release of the slice.
        each_call_fails(function, || {
            let bench = Bench::new(2)?;
            let values = &values;
            Ok(move || way(&bench.streams[0], &bench.streams[1], values, &mut |_, _| Ok(())).map(drop))
        })?;
        for failing in 0..2 {
            let bench = Bench::new(2)?;
            let mut calls = 0;
            let result = way(&bench.streams[0], &bench.streams[1], &values, &mut |_, _| {
                calls += 1;
                ensure!(calls != failing + 1, "half {failing} has no kernel");
                Ok(())
            });
            let text = result.map_or_else(|error| format!("{error:?}"), |_| "Ok".to_owned());
            ensure!(
                text.contains("has no kernel"),
                "`work` failed on half {failing} with \"half {failing} has no kernel\", but `{function}` returned \
                 this: {text}; expected the error from `work`"
            );
        }
    }
    each_call_fails("write_after_reads", || {
        let bench = Bench::new(4)?;
        Ok(move || written_after_reads(&bench, [0; 3]).map(drop))
    })
}
