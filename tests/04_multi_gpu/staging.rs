//! Checks for `multi_gpu/staging`: batches and results move between the host and the GPU while both do other work.

use std::sync::Arc;

use anyhow::{Context, bail};
use cudarc::driver::sys::{self, CU_MEMHOSTALLOC_WRITECOMBINED};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use lab::kernels::SCALE_AND_ADD_ONE;
use lab::{
    Block, Budget, Check, Expected, Guarded, Kernels, each_call_fails, ensure, irregular, with_host_waits,
};

use crate::multi_gpu::staging::{Feed, Results, scaled_sum};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("staging::every_batch_arrives", every_batch_arrives).calls(&["Feed::next"]),
        Check::new("staging::batches_are_staged_in_pinned_memory", batches_are_staged_in_pinned_memory)
            .calls(&["Feed::next", "Slot::new"]),
        Check::new("staging::two_batches_are_under_way", two_batches_are_under_way).calls(&["Feed::next"]),
        Check::new(
            "staging::a_batch_is_copied_while_another_is_processed",
            a_batch_is_copied_while_another_is_processed,
        )
        .calls(&["Feed::next"]),
        Check::new("staging::results_are_fetched_at_once", results_are_fetched_at_once)
            .calls(&["Results::fetch"]),
        Check::new("staging::results_lie_in_memory_that_is_fast_to_read", results_are_fast_to_read)
            .calls(&["Results::new"]),
        Check::new("staging::host_and_gpu_share_the_memory", host_and_gpu_share_the_memory)
            .calls(&["scaled_sum"]),
        Check::new("staging::the_sum_is_over_what_the_gpu_wrote", the_sum_is_over_what_the_gpu_wrote)
            .calls(&["scaled_sum"]),
        Check::new("staging::each_batch_is_one_copy", each_batch_is_one_copy),
        Check::new("staging::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// How long a stream is kept busy, in nanoseconds, so that a call that waits for it is detected.
const SPIN: u64 = 20_000_000;
const LEN: usize = 4099;

/// A copy stream and a compute stream on one GPU, with cudarc's event tracking.
struct Bench {
    copies: Arc<CudaStream>,
    compute: Arc<CudaStream>,
    kernels: Kernels,
}

impl Bench {
    fn new() -> anyhow::Result<Self> {
        let compute = lab::streams(1)?.remove(0);
        let copies = compute.context().new_stream()?;
        lab::name_stream(&compute, "compute")?;
        lab::name_stream(&copies, "copy")?;
        let kernels = Kernels::load(compute.context())?;
        // Loads the kernels first, so that loading does not affect later work.
        kernels.spin(&compute, 0)?;
        compute.synchronize()?;
        Ok(Self { copies, compute, kernels })
    }

    fn busy(&self, stream: &CudaStream) -> anyhow::Result<cudarc::driver::CudaEvent> {
        self.kernels.spin(stream, SPIN)?;
        Ok(stream.record_event(None)?)
    }
}

fn batch(index: usize) -> Vec<f32> {
    irregular::integers(index, LEN)
}

/// Returns the flags of pinned memory, or `None` for other memory.
fn flags(memory: &[f32]) -> Option<u32> {
    let mut flags = 0;
    // SAFETY: the driver looks up the address, and writes only to `flags`.
    let answer = unsafe { sys::cuMemHostGetFlags(&raw mut flags, memory.as_ptr().cast_mut().cast()) };
    (answer == sys::CUresult::CUDA_SUCCESS).then_some(flags)
}

fn every_batch_arrives() -> anyhow::Result<()> {
    let Bench { copies, compute, kernels } = &Bench::new()?;
    for (copies_spin, compute_spin) in [(0, 0), (2_000_000, 0), (0, 2_000_000)] {
        let mut feed = Feed::new(copies, LEN)?;
        let mut seen: Vec<CudaSlice<f32>> = Vec::new();
        for index in 0..5 {
            kernels.spin(copies, copies_spin)?;
            let own = batch(index);
            let arrived = feed.next(|staged| staged.copy_from_slice(&own))?;
            ensure!(
                arrived.len() == LEN,
                "Feed::next returned a batch of {} elements, expected {LEN}",
                arrived.len()
            );
            kernels.spin(compute, compute_spin)?;
            seen.push(compute.clone_dtod(arrived)?);
        }
        for (index, seen) in seen.iter().enumerate() {
            let right = batch(index);
            let name = format!("batch {index} as the GPU saw it");
            let mut wanted = Expected::of(&name, &right)
                .if_instead(&vec![0.0; LEN], "these are zeros, not what `fill` wrote");
            for other in (0..5).filter(|&other| other != index) {
                let cause = if other > index {
                    format!("this is batch {other}: it overwrote an earlier batch, which was still needed")
                } else {
                    format!("this is still batch {other}")
                };
                wanted = wanted.if_instead(&batch(other), cause);
            }
            wanted.exactly(&compute.clone_dtoh(seen)?)?;
        }
    }
    Ok(())
}

fn batches_are_staged_in_pinned_memory() -> anyhow::Result<()> {
    let Bench { copies, .. } = &Bench::new()?;
    let mut feed = Feed::new(copies, LEN)?;
    for index in 0..3 {
        let mut kind = None;
        feed.next(|staged| {
            kind = flags(staged);
            staged.fill(1.0);
        })?;
        let Some(kind) = kind else {
            bail!(
                "`Feed::next` let `fill` write batch {index} to pageable memory, expected pinned memory: the slot's \
             `staged`\n  a copy from pageable memory is not asynchronous, and copying from there to `staged` takes the \
             host as long as `fill`"
            )
        };
        ensure!(
            kind & CU_MEMHOSTALLOC_WRITECOMBINED != 0,
            "`Slot::new` allocated `staged` as cached memory, expected write-combined memory: the host only writes to it, \
             and never reads from it"
        );
    }
    copies.synchronize()?;
    Ok(())
}

fn two_batches_are_under_way() -> anyhow::Result<()> {
    let bench = Bench::new()?;
    let mut feed = Feed::new(&bench.copies, LEN)?;
    bench.copies.synchronize()?;
    let block = Block::enqueue(&bench.copies)?;
    let mut places = Vec::new();
    for index in 0..2 {
        let own = batch(index);
        let (_, waits) = with_host_waits(|| {
            feed.next(|staged| {
                places.push(staged.as_ptr());
                staged.copy_from_slice(&own);
            })
        })?;
        let cause = match places[..] {
            [first, second] if first == second => {
                "\n  likely cause: both batches are filled in the same buffer, so the host can't fill it until the \
                 first batch has been copied"
            }
            _ => "",
        };
        ensure!(
            block.is_blocked(),
            "the check had blocked the copy stream, and `Feed::next` for batch {index} returned only after that: the host \
             must not wait for it{waits}{cause}"
        );
    }
    block.release();
    bench.copies.synchronize()?;
    Ok(())
}

fn a_batch_is_copied_while_another_is_processed() -> anyhow::Result<()> {
    let bench = Bench::new()?;
    let Bench { copies, compute, .. } = &bench;
    let mut feed = Feed::new(copies, LEN)?;
    let (first, second) = (batch(0), batch(1));
    let arrived = feed.next(|staged| staged.copy_from_slice(&first))?;
    copies.synchronize()?;
    let block = Block::enqueue(compute)?;
    let seen = compute.clone_dtod(arrived)?;
    let place = arrived.device_ptr(compute).0;
    let arrived = feed.next(|staged| staged.copy_from_slice(&second))?;
    copies.synchronize()?;
    let was_blocked = block.release();
    let cause = match arrived.device_ptr(compute).0 == place {
        true => {
            "\n  likely cause: both batches are in the same GPU buffer, so the copy waits until the work on the first \
             batch is done"
        }
        false => "",
    };
    ensure!(
        was_blocked,
        "batch 1 did not reach the GPU until the work on batch 0 was done, although it does not need that work{cause}"
    );
    Expected::of("batch 0 as the GPU saw it", &first)
        .if_instead(&second, "this is batch 1: it overwrote batch 0, which was still needed")
        .exactly(&compute.clone_dtoh(&seen)?)
}

fn results_are_fetched_at_once() -> anyhow::Result<()> {
    let bench = Bench::new()?;
    let compute = &bench.compute;
    let mut results = Results::new(compute, LEN)?;
    for index in 0..2 {
        // The second buffer was created on another stream than the one that it is fetched on.
        let created_on = if index == 0 { compute } else { &bench.copies };
        let values = Guarded::new(created_on, &batch(index))?;
        created_on.synchronize()?;
        let block = Block::enqueue(compute)?;
        let spun = bench.busy(compute)?;
        results.fetch(compute, &values.view())?;
        ensure!(
            block.release(),
            "`fetch` returned only when all work before the copy was done; it must return while that work runs"
        );
        results.values()?;
        ensure!(
            spun.try_is_complete()?,
            "`values` returned before the earlier work on `stream` was done, so it did not wait for a copy on `stream`: \
             {}",
            match index {
                0 =>
                    "`fetch` must copy on `stream`, and to `landing` itself; `values` does not wait for a copy to a slice",
                _ => "`fetch` must copy on `stream`, even if the buffer was created on another stream",
            }
        );
        Expected::of("`landing` after `fetch`", &batch(index))
            .if_instead(&vec![0.0; LEN], "these are zeros: nothing was copied to `landing`")
            .exactly(results.values()?)?;
    }
    Ok(())
}

fn results_are_fast_to_read() -> anyhow::Result<()> {
    let compute = &Bench::new()?.compute;
    let results = Results::new(compute, LEN)?;
    let flags = flags(results.values()?).context("`landing` is pageable memory, expected pinned memory")?;
    ensure!(
        flags & CU_MEMHOSTALLOC_WRITECOMBINED == 0,
        "`landing` is write-combined memory, which is slow for the host to read: use such memory only if the host only \
         writes to it"
    );
    Ok(())
}

fn host_and_gpu_share_the_memory() -> anyhow::Result<()> {
    let bench = Bench::new()?;
    let compute = &bench.compute;
    // SAFETY: all of it is written before it is read, and all bit patterns are valid numbers.
    let mut shared = unsafe { compute.context().alloc_unified::<f32>(LEN, true) }?;
    shared.as_mut_slice()?.fill(0.0);
    for (index, factor) in [3.0, -2.0].into_iter().enumerate() {
        // Integers below 2²⁴ have exact sums in any order: |sum| ≤ 9 · 3 · 4099.
        let input = irregular::small_integers(index, LEN);
        let sum = scaled_sum(compute, &bench.kernels, &mut shared, &input, factor)?;
        let own: f32 = input.iter().sum();
        let cause = match sum == own {
            true => "\n  likely cause: this is the sum of the input, not of the products",
            false => "",
        };
        ensure!(sum == own * factor, "scaled_sum returned {sum}, expected {}{cause}", own * factor);
        let products: Vec<f32> = input.iter().map(|value| value * factor).collect();
        Expected::of("`shared` after scaled_sum", &products)
            .if_instead(&input, "this is the input: the GPU worked on a copy of it, not on `shared`")
            .exactly(shared.as_slice()?)?;
    }
    Ok(())
}

/// Passes a `scale` kernel that also adds 1, so that the sum of its results differs from every sum over the input.
fn the_sum_is_over_what_the_gpu_wrote() -> anyhow::Result<()> {
    const FACTOR: f32 = 3.0;
    let compute = &Bench::new()?.compute;
    let kernels = Kernels::with_scale(compute.context(), SCALE_AND_ADD_ONE)?;
    // SAFETY: all of it is written before it is read, and all bit patterns are valid numbers.
    let mut shared = unsafe { compute.context().alloc_unified::<f32>(LEN, true) }?;
    shared.as_mut_slice()?.fill(0.0);
    // Integers below 2²⁴ have exact sums in any order: |sum| ≤ (9 · 3 + 1) · 4099.
    let input = irregular::small_integers(2, LEN);
    let sum = scaled_sum(compute, &kernels, &mut shared, &input, FACTOR)?;
    let written: f32 = shared.as_slice()?.iter().sum();
    let cause = match sum == FACTOR * input.iter().sum::<f32>() {
        true => format!("\n  {sum} is the sum of factor × `input`, so the host did not read `shared`"),
        false => String::new(),
    };
    ensure!(
        sum == written,
        "`scaled_sum` returned {sum}, expected {written}, the sum of what the GPU wrote to `shared`: in this check, \
         the kernel adds 1 to each product{cause}"
    );
    Ok(())
}

fn each_batch_is_one_copy() -> anyhow::Result<()> {
    let Bench { copies, compute, kernels } = &Bench::new()?;
    let bytes = (LEN * size_of::<f32>()) as u64;
    let mut feed = Budget::of("Feed::new").allocations(4).spend(|| Feed::new(copies, LEN))?;
    for index in 0..3 {
        let own = batch(index);
        Budget::of("Feed::next")
            .copies(1)
            .bytes_to_device(bytes)
            .allocations(0)
            .kernels(0)
            .polls(0)
            .streams(&[(copies, "the stream `copies`")])
            .spend(|| feed.next(|staged| staged.copy_from_slice(&own)).map(drop))?;
    }
    let mut results = Budget::of("Results::new").allocations(1).spend(|| Results::new(compute, LEN))?;
    let values = compute.clone_htod(&batch(0))?;
    Budget::of("Results::fetch")
        .copies(1)
        .bytes_to_host(bytes)
        .allocations(0)
        .host_waits(0)
        .streams(&[(compute, "the stream passed to `fetch`")])
        .spend(|| results.fetch(compute, &values.as_view()))?;
    results.values()?;
    // SAFETY: all of it is written before it is read, and all bit patterns are valid numbers.
    let mut shared = unsafe { compute.context().alloc_unified::<f32>(LEN, true) }?;
    Budget::of("scaled_sum")
        .copies(0)
        .allocations(0)
        .kernels(1)
        .streams(&[(compute, "the stream passed to `scaled_sum`")])
        .spend(|| scaled_sum(compute, kernels, &mut shared, &batch(0), 2.0))?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    const LEN: usize = 37;
    let Bench { copies, compute, kernels } = &Bench::new()?;
    each_call_fails("Feed::new", || Ok(|| Feed::new(copies, LEN).map(drop)))?;
    each_call_fails("Feed::next", || {
        let mut feed = Feed::new(copies, LEN)?;
        Ok(move || {
            // The third batch must wait until the first has been copied.
            for value in [1.0, 2.0, 3.0] {
                feed.next(|staged| staged.fill(value))?;
            }
            Ok(())
        })
    })?;
    each_call_fails("Results::new", || Ok(|| Results::new(compute, LEN).map(drop)))?;
    each_call_fails("Results::fetch", || {
        let mut results = Results::new(compute, LEN)?;
        let values = compute.alloc_zeros::<f32>(LEN)?;
        Ok(move || results.fetch(compute, &values.as_view()))
    })?;
    each_call_fails("scaled_sum", || {
        // SAFETY: all of it is written before it is read, and all bit patterns are valid numbers.
        let mut shared = unsafe { compute.context().alloc_unified::<f32>(LEN, true) }?;
        Ok(move || scaled_sum(compute, kernels, &mut shared, &[1.0; LEN], 2.0).map(drop))
    })
}
