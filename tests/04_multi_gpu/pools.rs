//! Checks for `multi_gpu/pools`: the pool's figures are read correctly, and no memory is allocated unnecessarily or
//! freed too early.

mod holes;
mod release;

use std::sync::Arc;

use anyhow::{Context, bail};
use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use cudarc::driver::sys::CUmemPool_attribute::{
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as RESERVED, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as RESERVED_HIGH,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED, CU_MEMPOOL_ATTR_USED_MEM_HIGH as USED_HIGH,
};
use cudarc::driver::{CudaSlice, CudaStream};
use lab::{Budget, Check, Expected, Kernels, MemoryPool, each_call_fails, ensure, irregular, without_panic};

use crate::multi_gpu::pools::{Distances, Layer, PoolReport, allocate as allocate_layers};
use crate::multi_gpu::pools::{release as release_buffer, report, watch};
use holes::{freed_activations_leave_one_hole, layers_have_their_buffers};
use release::{Spins, released};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("pools::the_report_is_of_the_stream_s_gpu", report_of_the_stream_s_gpu)
            .calls(&["report"])
            .min_ranks(2),
        Check::new("pools::each_time_has_its_own_marks", each_time_has_its_own_marks).calls(&["watch"]),
        Check::new("pools::the_report_comes_when_the_work_is_done", report_comes_when_the_work_is_done)
            .calls(&["watch"]),
        Check::new("pools::an_error_of_the_work_is_returned", an_error_of_the_work_is_returned)
            .calls(&["watch"]),
        Check::new("pools::distances_are_right", distances_are_right).calls(&["Distances::squared"]),
        Check::new("pools::longer_vectors_are_an_error", longer_vectors_are_an_error)
            .calls(&["Distances::new", "Distances::squared"]),
        Check::new("pools::measuring_allocates_nothing", measuring_allocates_nothing)
            .calls(&["Distances::squared"]),
        Check::new("pools::the_other_stream_is_done_before_the_free", || {
            released(Spins { own: 0, other: SPIN })
        })
        .calls(&["release"]),
        Check::new("pools::its_own_stream_is_done_before_the_free", || {
            released(Spins { own: SPIN, other: 0 })
        })
        .calls(&["release"]),
        Check::new("pools::each_layer_has_its_buffers", layers_have_their_buffers).calls(&["allocate"]),
        Check::new("pools::freed_activations_leave_one_hole", freed_activations_leave_one_hole)
            .calls(&["allocate"]),
        Check::new("pools::a_distance_stays_on_the_gpu", a_distance_stays_on_the_gpu),
        Check::new("pools::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const MIB: usize = 1 << 20;
/// How long a stream is busy, in nanoseconds, so that work that does not wait runs too early.
const SPIN: u64 = 20_000_000;
/// The maximum number of bytes by which a pool may round up an allocation. Sizes here differ by much more.
const ROUNDING: u64 = 64 << 10;

/// Allocates uninitialized bytes.
fn allocate(stream: &Arc<CudaStream>, bytes: usize) -> anyhow::Result<CudaSlice<u8>> {
    // SAFETY: the bytes are never read.
    Ok(unsafe { stream.alloc(bytes) }?)
}

/// Returns a GPU's figures, as reported by the pool itself.
fn truth(gpu: usize) -> anyhow::Result<PoolReport> {
    let pool = MemoryPool::of_gpu(gpu)?;
    Ok(PoolReport {
        used: pool.figure(USED)?,
        used_high: pool.figure(USED_HIGH)?,
        reserved: pool.figure(RESERVED)?,
        reserved_high: pool.figure(RESERVED_HIGH)?,
    })
}

fn report_of_the_stream_s_gpu() -> anyhow::Result<()> {
    let worlds = lab::world_sizes();
    let streams = lab::streams(worlds.into_iter().max().unwrap_or(1))?;
    let mut kept = Vec::new();
    for (rank, stream) in streams.iter().enumerate() {
        // Each GPU has different amounts, and its four figures differ.
        kept.push(allocate(stream, (rank + 1) * MIB)?);
        drop(allocate(stream, (70 + rank) * MIB)?);
        stream.synchronize()?;
        kept.push(allocate(stream, (rank + 2) * MIB / 4)?);
        drop(allocate(stream, (rank + 3) * MIB)?);
        stream.synchronize()?;
    }
    for (rank, stream) in streams.iter().enumerate().rev() {
        let gpu = stream.context().ordinal();
        let (got, expected) = (report(stream)?, truth(gpu)?);
        if got == expected {
            continue;
        }
        let mut cause = "";
        let (now, marks) = ((got.used, got.reserved), (expected.used_high, expected.reserved_high));
        if now == marks && marks == (got.used_high, got.reserved_high) {
            cause = "\n  likely cause: these are the marks: `used` and `reserved` are as of now";
        }
        for other in streams.iter().map(|stream| stream.context().ordinal()).filter(|&other| other != gpu) {
            if got == truth(other)? {
                cause = "\n  likely cause: this is the report of another GPU: each has its own pool, so ask the pool of the stream's GPU";
            }
        }
        ensure!(
            got == expected,
            "the report of GPU {gpu}, of rank {rank}, is wrong\n  expected {expected:?}\n  got {got:?}{cause}"
        );
    }
    Ok(())
}

fn each_time_has_its_own_marks() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let gpu = stream.context().ordinal();
    let _held = allocate(&stream, 3 * MIB)?;
    // Earlier work used a lot of memory.
    drop(allocate(&stream, 99 * MIB)?);
    stream.synchronize()?;
    let before = truth(gpu)?.used;
    let scratch = [40, 8, 24, 2].map(|size| size * MIB);
    let mut kept = Vec::new();
    let reports = watch(&stream, scratch.len(), |index| {
        kept.push(allocate(&stream, MIB)?);
        drop(allocate(&stream, scratch[index])?);
        Ok(())
    })?;
    ensure!(
        reports.len() == scratch.len(),
        "watch(…) returned {} reports, expected {}",
        reports.len(),
        scratch.len()
    );
    // The maximum use in each earlier period.
    let mut earlier = vec![before + (99 * MIB) as u64];
    for (index, (report, scratch)) in reports.iter().zip(scratch).enumerate() {
        let used = before + ((index + 1) * MIB) as u64;
        let time = format!("time {} of 4, in which {scratch} bytes are allocated and freed:", index + 1);
        check_report(&time, report, used, used + scratch as u64, &earlier)?;
        earlier.push(used + scratch as u64);
    }
    let after = watch(&stream, 2, |_| Ok(()))?;
    let (marks, now) = (after[1].reserved_high, after[1].reserved);
    ensure!(
        marks == now,
        "watch(…), where the work does nothing: `reserved_high` is {marks} bytes, expected {now}, which the pool holds\n  reset both marks before each call of the work"
    );
    Ok(())
}

/// Compares a report with the memory in use after a period, and with the maximum during that period. `earlier` contains
/// the maxima of earlier periods.
fn check_report(
    time: &str,
    report: &PoolReport,
    used: u64,
    used_high: u64,
    earlier: &[u64],
) -> anyhow::Result<()> {
    let is = |got: u64, expected: u64| (expected..=expected + ROUNDING).contains(&got);
    ensure!(is(report.used, used), "{time} `used` is {} bytes, expected {used}", report.used);
    ensure!(
        is(report.used_high, used_high),
        "{time} `used_high` is {} bytes, expected {used_high}{}",
        report.used_high,
        match report.used_high {
            high if earlier.iter().any(|&earlier| is(high, earlier)) => {
                "\n  likely cause: the mark is that of an earlier time: reset it before each"
            }
            high if is(high, used) => {
                "\n  likely cause: that is what is in use at the end: the mark was reset after the work, not before it"
            }
            _ => "",
        }
    );
    ensure!(
        report.reserved_high >= report.used_high && report.reserved >= report.used,
        "{time} more is in use than the pool holds: {report:?}"
    );
    Ok(())
}

fn report_comes_when_the_work_is_done() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let kernels = Kernels::load(stream.context())?;
    kernels.spin(&stream, 0)?;
    stream.synchronize()?;
    let mut ends = Vec::new();
    let reports = watch(&stream, 3, |index| {
        let earlier = ends.last().map_or(Ok(true), cudarc::driver::CudaEvent::try_is_complete)?;
        ensure!(
            earlier,
            "watch(…) begins time {}, and the work of the time before is not done: wait for the stream before each report",
            index + 1
        );
        let scratch = allocate(&stream, 80 * MIB)?;
        kernels.spin(&stream, SPIN)?;
        drop(scratch);
        ends.push(stream.record_event(Some(CU_EVENT_DEFAULT))?);
        Ok(())
    })?;
    let done = ends.last().context("`watch` never called its work")?.try_is_complete()?;
    ensure!(
        done,
        "`watch` returned before the last time's work was done: wait for the stream before each report"
    );
    stream.synchronize()?;
    let (told, now) =
        (reports.last().map_or(0, |report| report.reserved), truth(stream.context().ordinal())?.reserved);
    ensure!(
        told <= now,
        "the last report of `watch` has `reserved` = {told} bytes, and the pool holds {now} once the stream is done: the pool returns memory while the host waits for the stream, so report after it"
    );
    Ok(())
}

fn an_error_of_the_work_is_returned() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    for failing in [0, 2] {
        let watched = without_panic("watch, whose work fails,", || {
            watch(&stream, 4, |index| {
                ensure!(index != failing, "batch {index} is missing");
                Ok(())
            })
        })?;
        let error = match watched {
            Ok(reports) => bail!(
                "call {} of `work` failed, and `watch` returned Ok with {} reports; expected the error of `work`",
                failing + 1,
                reports.len()
            ),
            Err(error) => format!("{error:#}"),
        };
        ensure!(
            error.contains(&format!("batch {failing} is missing")),
            "`watch` must return the error of `work`, `batch {failing} is missing`; it returned: {error}"
        );
    }
    Ok(())
}

const LENGTHS: [usize; 6] = [1, 1031, 37, 700, 1031, 2];
const LONGEST: usize = 1031;

/// Returns pairs of vectors with these lengths on the GPU.
fn pairs(stream: &Arc<CudaStream>) -> anyhow::Result<Vec<[CudaSlice<f32>; 2]>> {
    let vector = |index: usize, of: usize| {
        stream.clone_htod(&irregular::small_integers(2 * index + of, LENGTHS[index]))
    };
    (0..LENGTHS.len()).map(|index| Ok([vector(index, 0)?, vector(index, 1)?])).collect()
}

fn distances_are_right() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let mut distances = Distances::new(&stream, LONGEST)?;
    // The contents of the buffer of differences.
    let mut left = vec![0.0_f32; LONGEST];
    for (index, [a, b]) in pairs(&stream)?.iter().enumerate() {
        let got = distances.squared(&a.as_view(), &b.as_view())?;
        let host = |of| irregular::small_integers(2 * index + of, LENGTHS[index]);
        let (a_host, b_host) = (host(0), host(1));
        let sum = |combine: fn(f32, f32) -> f32| -> f32 {
            a_host.iter().zip(&b_host).map(|(&a, &b)| combine(a, b)).sum()
        };
        let expected = sum(|a, b| (a - b) * (a - b));
        for (left, (a, b)) in left.iter_mut().zip(a_host.iter().zip(&b_host)) {
            *left = a - b;
        }
        let cause = match () {
            () if got == sum(|a, b| (a + b) * (a + b)) => "\n  likely cause: this is the square of a + b",
            () if got == sum(|a, _| a * a) => "\n  likely cause: this is the square of a alone",
            () if got == left.iter().map(|left| left * left).sum::<f32>() => {
                "\n  likely cause: differences of an earlier, longer vector are in it: use only as many elements of the buffer as this vector has"
            }
            () => "",
        };
        // Integers below 2²⁴ are exact in an f32.
        ensure!(
            got == expected,
            "the squared distance of two vectors of {} elements is {got}, expected {expected}{cause}",
            LENGTHS[index]
        );
        Expected::of("a, which is only read,", &a_host).exactly(&stream.clone_dtoh(a)?)?;
    }
    Ok(())
}

fn longer_vectors_are_an_error() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let mut distances = Distances::new(&stream, LONGEST)?;
    let mut is_taken = |len: usize| -> anyhow::Result<bool> {
        let (a, b) = (stream.alloc_zeros::<f32>(len)?, stream.alloc_zeros::<f32>(len)?);
        without_panic("Distances::squared of vectors that are too long", || {
            Ok(distances.squared(&a.as_view(), &b.as_view()).is_ok())
        })?
    };
    let longer = LONGEST + 1;
    if is_taken(longer)? {
        const BYTES: usize = LONGEST * size_of::<f32>();
        let cause = match is_taken(BYTES)? && !is_taken(BYTES + 1)? {
            true => format!(
                "\n  likely cause: `difference` has {BYTES} elements, the number of bytes: cudarc allocates elements"
            ),
            false => String::new(),
        };
        bail!(
            "`Distances::new` was told that vectors have at most {LONGEST} elements, but `squared` took vectors of {longer}; expected an error, since `difference` has no room for them{cause}"
        );
    }
    Ok(())
}

fn measuring_allocates_nothing() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let pool = MemoryPool::of_gpu(stream.context().ordinal())?;
    let pairs = pairs(&stream)?;
    stream.synchronize()?;
    let empty = pool.figure(USED)?;
    let mut distances = Distances::new(&stream, LONGEST)?;
    stream.synchronize()?;
    pool.reset(USED_HIGH)?;
    let before = pool.figure(USED)?;
    let least = (LONGEST * size_of::<f32>()) as u64;
    ensure!(
        before - empty >= least,
        "Distances for vectors of {LONGEST} has {} bytes of GPU memory, which is less than a difference needs, {least}: allocate \
         its buffers once, at the start",
        before - empty
    );
    for (index, [a, b]) in pairs.iter().enumerate() {
        distances.squared(&a.as_view(), &b.as_view())?;
        let most = pool.figure(USED_HIGH)?;
        ensure!(
            most == before,
            "measurement {} of {}, of {} elements: the pool's mark rose by {} bytes above the {before} that were in use\n  \
             likely cause: `squared` allocates: use the buffers made at the start",
            index + 1,
            pairs.len(),
            LENGTHS[index],
            most - before
        );
    }
    Ok(())
}

fn a_distance_stays_on_the_gpu() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let only = [(&stream, "the stream that `new` is given")];
    let budget = |function: &str| Budget::of(function).bytes_to_device(0).streams(&only);
    let mut distances = budget("Distances::new").allocations(2).spend(|| Distances::new(&stream, LONGEST))?;
    for [a, b] in pairs(&stream)? {
        budget("Distances::squared")
            .allocations(0)
            .kernels(4)
            .bytes_to_host(size_of::<f32>() as u64)
            .spend(|| distances.squared(&a.as_view(), &b.as_view()))?;
    }
    const TIMES: usize = 3;
    // The contract requires one wait after each call of the work.
    let watching = Budget::of("watch").allocations(0).kernels(0).polls(0).host_waits(2 * TIMES as u64);
    watching.spend(|| watch(&stream, TIMES, |_| Ok(())))?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    each_call_fails("report", || Ok(|| report(&stream).map(drop)))?;
    each_call_fails("watch", || Ok(|| watch(&stream, 2, |_| Ok(())).map(drop)))?;
    each_call_fails("Distances::new", || Ok(|| Distances::new(&stream, 37).map(drop)))?;
    each_call_fails("Distances::squared", || {
        let mut distances = Distances::new(&stream, 37)?;
        let (a, b) = (stream.alloc_zeros::<f32>(37)?, stream.alloc_zeros::<f32>(37)?);
        Ok(move || distances.squared(&a.as_view(), &b.as_view()).map(drop))
    })?;
    let other = stream.context().new_stream()?;
    each_call_fails("release", || {
        let buffer = stream.alloc_zeros::<f32>(37)?;
        Ok(|| release_buffer(buffer, &other))
    })?;
    let layers = [Layer { parameters: 37, activations: 5 }; 2];
    each_call_fails("allocate", || Ok(|| allocate_layers(&stream, &layers).map(drop)))
}
