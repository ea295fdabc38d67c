//! Checks for `init/buffers`.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, bail};
use cudarc::driver::CudaStream;
use lab::{
    Budget, Check, Expected, Guarded, Kernels, caught, each_call_fails, ensure, irregular, returns_at_once,
    without_panic,
};

use crate::init::buffers::{copy, read, spread};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("buffers::each_gpu_has_its_part_and_no_more", each_gpu_has_its_part_and_no_more)
            .calls(&["spread"]),
        Check::new("buffers::a_part_is_read", a_part_is_read).calls(&["read"]),
        Check::new("buffers::a_part_is_copied_to_its_place", || copied_between(&[(0, 0)])).calls(&["copy"]),
        Check::new("buffers::a_part_is_copied_to_another_gpu", || copied_between(&[(0, 1), (1, 0)]))
            .calls(&["copy"])
            .min_ranks(2),
        Check::new("buffers::a_copy_waits_for_its_source", a_copy_waits_for_its_source).calls(&["copy"]),
        Check::new("buffers::a_copy_returns_at_once", a_copy_returns_at_once).calls(&["copy"]),
        Check::new("buffers::a_range_out_of_bounds_is_an_error", a_range_out_of_bounds_is_an_error)
            .calls(&["read", "spread", "copy"]),
        Check::new("buffers::each_value_is_copied_once", each_value_is_copied_once),
        Check::new("buffers::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const MILLISECOND: u64 = 1_000_000;
const LEN: usize = 1031;

/// Returns ranges within [`LEN`] values, in descending order, with different lengths and with gaps between them.
fn parts(count: usize) -> Vec<Range<usize>> {
    (0..count).rev().map(|index| 7 + 190 * index..100 + 190 * index + 13 * index).collect()
}

fn each_gpu_has_its_part_and_no_more() -> anyhow::Result<()> {
    let values = irregular::integers(0, LEN);
    for count in lab::world_sizes().into_iter().filter(|&count| count <= 5) {
        let mut streams = lab::streams(count)?;
        // Reversed, so that at most one GPU has the same index as its part.
        streams.reverse();
        let parts = parts(count);
        let buffers = spread(&streams, &values, &parts)?;
        ensure!(
            buffers.len() == count,
            "spread(…) returned {} buffers for {count} streams, expected one per stream",
            buffers.len()
        );
        for (index, (buffer, part)) in buffers.iter().zip(&parts).enumerate() {
            let (gpu, expected) = (buffer.context().ordinal(), streams[index].context().ordinal());
            ensure!(
                gpu == expected,
                "buffer {index} of {count} is on GPU {gpu}, expected GPU {expected}, the GPU of streams[{index}]"
            );
            ensure!(
                buffer.stream() == &streams[index],
                "buffer {index} of {count} was created on another stream, expected streams[{index}]"
            );
            ensure!(
                buffer.len() == part.len(),
                "buffer {index} of {count} has {} elements, expected {}, which is the length of part {part:?}",
                buffer.len(),
                part.len()
            );
            let got = streams[index].clone_dtoh(buffer)?;
            streams[index].synchronize()?;
            Expected::new(index, &format!("the buffer of part {part:?}"), &values[part.clone()])
                .if_instead(&values[..part.len()], "these are the first values, not the values in the part")
                .exactly(&got)?;
        }
    }
    let (stream, part) = (lab::streams(1)?, LEN - 3..LEN);
    let buffers = spread(&stream, &values, std::slice::from_ref(&part))
        .with_context(|| format!("spread(…) returned an error for the part {part:?} of {LEN} values"))?;
    let got = stream[0].clone_dtoh(&buffers[0])?;
    stream[0].synchronize()?;
    Expected::new(0, &format!("the buffer of part {part:?}"), &values[part.clone()]).exactly(&got)
}

fn a_part_is_read() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let values = irregular::integers(0, LEN);
    let buffer = Guarded::new(&stream, &values)?;
    for part in [0..1, 0..LEN, 37..38, 37..301, LEN - 1..LEN] {
        let call = format!("read(buffer, {part:?}) on a buffer of {LEN} elements");
        // Parts that start at 0 come first.
        let others = if part.start > 0 {
            format!(", although 0..1 and 0..{LEN} could be read")
        } else {
            String::new()
        };
        let got = match caught(|| read(&buffer.view(), part.clone())) {
            Ok(got) => got.with_context(|| format!("{call} returned an error{others}"))?,
            Err(panic) => bail!("{call} {panic}"),
        };
        Expected::of(&format!("the result of read(buffer, {part:?})"), &values[part.clone()])
            .if_instead(&values[..part.len()], "these are the first values, not the values in the part")
            .exactly(&got)?;
    }
    Ok(())
}

/// Copies parts between buffers on these pairs of GPUs, given as (from, to).
fn copied_between(gpus: &[(usize, usize)]) -> anyhow::Result<()> {
    let most = gpus.iter().map(|&(from, to)| from.max(to)).max().unwrap_or(0);
    let streams = lab::streams(most + 1)?;
    let (values, stale) = (irregular::integers(0, LEN), irregular::integers(1, 700));
    for &(source, target) in gpus {
        for (part, at) in [(0..1, 0), (37..301, 0), (37..301, 5), (400..1031, 69), (1030..1031, 699)] {
            let from = Guarded::new(&streams[source], &values)?;
            let mut to = Guarded::new(&streams[target], &stale)?;
            let call = format!("copy(from, {part:?}, to, {at}) from GPU {source} to GPU {target}");
            let what = format!("`to` after {call}");
            // On another stream, the copy would race with the work on `to`, and a report of the race doesn't know the contract.
            let budget = Budget::of("copy").copies_on(&streams[target], "the stream of `to`");
            let spent = caught(|| {
                budget.spend(|| {
                    copy(&from.view(), part.clone(), &mut to.view_mut(), at)
                        .with_context(|| format!("{call} returned an error"))
                })
            });
            match spent {
                Ok(copied) => copied?,
                Err(panic) => bail!("{call} {panic}"),
            }
            let placed = |at: usize, part: Range<usize>| {
                let mut all = stale.clone();
                all[at..at + part.len()].copy_from_slice(&values[part]);
                all
            };
            let expected = placed(at, part.clone());
            let mut comparison = Expected::of(&what, &expected)
                .if_instead(&stale, "it holds its old values: nothing was copied")
                .if_instead(
                    &placed(at, 0..part.len()),
                    "these are the first values, not the values in the part",
                );
            if part.end <= stale.len() {
                comparison = comparison.if_instead(
                    &placed(part.start, part.clone()),
                    "the part was copied to its position in the other buffer",
                );
            }
            comparison.exactly(&to.read()?)?;
            Expected::of("`from`, which copy(…) must only read,", &values).exactly(&from.read()?)?;
        }
    }
    Ok(())
}

fn a_copy_waits_for_its_source() -> anyhow::Result<()> {
    for count in lab::world_sizes().into_iter().filter(|&count| count <= 2) {
        let streams = lab::streams(count)?;
        // If there is only one GPU, both streams are on it.
        let to_stream = match count {
            1 => streams[0].context().new_stream()?,
            _ => streams[1].clone(),
        };
        let (values, stale) = (irregular::integers(0, LEN), irregular::integers(1, LEN));
        let late = Guarded::new(&streams[0], &values)?;
        let mut from = Guarded::new(&streams[0], &stale)?;
        let mut to = Guarded::new(&to_stream, &stale)?;
        Kernels::load(streams[0].context())?.spin(&streams[0], 5 * MILLISECOND)?;
        streams[0].memcpy_dtod(&late.view(), &mut from.view_mut())?;
        copy(&from.view(), 37..301, &mut to.view_mut(), 5)?;
        let mut expected = stale.clone();
        expected[5..5 + 264].copy_from_slice(&values[37..301]);
        let mut early = stale.clone();
        early[5..5 + 264].copy_from_slice(&stale[37..301]);
        Expected::of("`to`, after a copy from a buffer that was filled late,", &expected)
            .if_instead(&early, "the copy did not wait for the stream that filled its source")
            .exactly(&to.read()?)?;
    }
    Ok(())
}

fn a_copy_returns_at_once() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let values = irregular::integers(0, LEN);
    let from = Guarded::new(&stream, &values)?;
    let mut to = Guarded::new(&stream, &irregular::integers(1, LEN))?;
    returns_at_once("copy", &stream, || copy(&from.view(), 0..LEN, &mut to.view_mut(), 0))?;
    Expected::of("`to`", &values).exactly(&to.read()?)
}

/// Checks that the call is rejected with an error that contains both numbers.
fn refused<T>(
    call: &str,
    (end, len): (usize, usize),
    function: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<()> {
    let result = without_panic(call, function)?;
    let Err(error) = result else {
        bail!("{call}: expected an error, because {end} is beyond {len}, but got Ok")
    };
    let text = format!("{error:#}");
    ensure!(
        text.contains(&end.to_string()) && text.contains(&len.to_string()),
        "{call}: the error must contain both numbers, {end} and {len}; got: {text}"
    );
    Ok(())
}

fn a_range_out_of_bounds_is_an_error() -> anyhow::Result<()> {
    let streams = lab::streams(1)?;
    let values = irregular::integers(0, 701);
    let stale = irregular::integers(1, 503);
    let from = Guarded::new(&streams[0], &values)?;
    for part in [0..702, 700..717, 900..901] {
        let numbers = (part.end, 701);
        refused(&format!("read(buffer, {part:?}) on a buffer of 701 elements"), numbers, || {
            read(&from.view(), part.clone())
        })?;
        refused(&format!("spread(streams, values, [{part:?}]) with 701 values"), numbers, || {
            spread(&streams, &values, std::slice::from_ref(&part))
        })?;
        // Only the part is out of range, so only its numbers are right.
        let long = irregular::integers(1, 709);
        let mut to = Guarded::new(&streams[0], &long)?;
        refused(&format!("copy(from, {part:?}, to, 0) with 701 elements in `from`"), numbers, || {
            copy(&from.view(), part.clone(), &mut to.view_mut(), 0)
        })?;
        Expected::of("`to` after a rejected copy(…)", &long).exactly(&to.read()?)?;
    }
    for (part, at) in [(0..504, 0), (100..101, 503), (30..60, 480), (7..8, 700)] {
        let mut to = Guarded::new(&streams[0], &stale)?;
        refused(
            &format!("copy(from, {part:?}, to, {at}) with 503 elements in `to`"),
            (at + part.len(), 503),
            || copy(&from.view(), part.clone(), &mut to.view_mut(), at),
        )?;
        Expected::of("`to` after a rejected copy(…)", &stale).exactly(&to.read()?)?;
    }
    Ok(())
}

/// Returns two streams on one GPU.
fn two_streams() -> anyhow::Result<[Arc<CudaStream>; 2]> {
    let stream = lab::streams(1)?.remove(0);
    Ok([stream.context().new_stream()?, stream])
}

fn each_value_is_copied_once() -> anyhow::Result<()> {
    const BYTES: u64 = size_of::<f32>() as u64;
    let [first, second] = two_streams()?;
    let streams = [first.clone(), second.clone()];
    let values = irregular::integers(0, LEN);
    let budget = |function: &str| Budget::of(function).kernels(0).communicators(0);

    // Values may pass through a pinned buffer, but must be copied to the GPU only once.
    let spreading = budget("spread").copies(2).bytes_to_device(267 * BYTES).bytes_to_host(0).allocations(4);
    let spreading = spreading.streams(&[(&first, "streams[0]"), (&second, "streams[1]")]);
    spreading.spend(|| spread(&streams, &values, &[37..301, 5..8]))?;

    let from = first.clone_htod(&values)?;
    let reading = budget("read").copies(1).bytes_to_host(264 * BYTES).allocations(1);
    let reading = reading.waits_for_values().streams(&[(&first, "the buffer's stream")]);
    reading.spend(|| read(&from.as_view(), 37..301))?;

    let mut to = second.alloc_zeros::<f32>(LEN)?;
    let copying = budget("copy").copies(1).bytes_on_device(264 * BYTES).bytes_to_device(0).allocations(0);
    let copying = copying.streams(&[(&second, "the stream of `to`")]);
    copying.spend(|| copy(&from.as_view(), 37..301, &mut to.as_view_mut(), 5))?;
    Ok(second.synchronize()?)
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let values = irregular::integers(0, 37);
    each_call_fails("spread", || {
        let streams = two_streams()?;
        let values = &values;
        Ok(move || spread(&streams, values, &[5..12, 0..37]).map(drop))
    })?;
    each_call_fails("read", || {
        let [stream, _] = two_streams()?;
        let buffer = stream.clone_htod(&values)?;
        Ok(move || read(&buffer.as_view(), 5..12).map(drop))
    })?;
    each_call_fails("copy", || {
        let [source, target] = two_streams()?;
        let from = source.clone_htod(&values)?;
        let mut to = target.alloc_zeros::<f32>(37)?;
        Ok(move || copy(&from.as_view(), 5..12, &mut to.as_view_mut(), 3))
    })
}
