//! Checks for `scale/context_parallel`: attention over blocks on all ranks is that of one GPU, and every rank holds two
//! blocks at most.

use anyhow::Context;
use approx::relative_eq;
use cudarc::driver::sys::CUmemPool_attribute::{
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED, CU_MEMPOOL_ATTR_USED_MEM_HIGH as USED_HIGH,
};
use cudarc::driver::{CudaEvent, CudaView};
use cudarc::nccl::Comm;
use grouping::ring::shift;
use init::rendezvous::rendezvous;
use lab::at_once::returns_at_once_on_each;
use lab::compare::UNIT_ROUNDOFF;
use lab::timeline::timed;
use lab::{
    Budget, Check, Expected, Guarded, MemoryPool, Stopwatch, each_call_fails, ensure, irregular, world_of_one,
};

use super::in_flight::to_its_end;
use super::two_streams::Rank;
use crate::scale::context_parallel::{around_the_ring, attend};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("context_parallel::each_visible_block_is_folded_once", each_visible_block_is_folded_once)
            .calls(&["around_the_ring"])
            .min_ranks(2),
        Check::new("context_parallel::slow_streams_are_waited_for", slow_streams_are_waited_for)
            .calls(&["around_the_ring"])
            .min_ranks(3),
        Check::new("context_parallel::attention_is_that_of_one_gpu", attention_is_that_of_one_gpu)
            .calls(&["attend"])
            .min_ranks(2),
        Check::new("context_parallel::one_rank_is_a_world_too", one_rank_is_a_world_too)
            .calls(&["around_the_ring", "attend"]),
        Check::new("context_parallel::a_rank_holds_two_blocks", a_rank_holds_two_blocks)
            .calls(&["around_the_ring"])
            .min_ranks(3),
        Check::new(
            "context_parallel::blocks_arrive_while_others_are_folded",
            blocks_arrive_while_others_are_folded,
        )
        .measures_time()
        .calls(&["around_the_ring"])
        .min_ranks(3),
        Check::new("context_parallel::it_returns_at_once", it_returns_at_once)
            .calls(&["around_the_ring"])
            .min_ranks(2),
        Check::new("context_parallel::blocks_move_only_through_shift", blocks_move_only_through_shift)
            .min_ranks(3),
        Check::new("context_parallel::a_failed_call_is_an_error", a_failed_call_is_an_error)
            .calls(&["around_the_ring", "attend"]),
    ]
}

/// The number of elements in a block of keys and values.
const LEN: usize = 1031;
const MILLISECOND: u64 = 1_000_000;

/// Creates a rank and warms it up: the first message sets up its connections, which may block the host.
fn warm(comm: Comm) -> anyhow::Result<Rank> {
    let rank = Rank::new(comm)?;
    let stream = rank.comm.stream();
    let (one, mut other) = (stream.alloc_zeros::<f32>(1)?, stream.alloc_zeros::<f32>(1)?);
    shift(&rank.comm, &one.as_view(), &mut other.as_view_mut())?;
    rank.kernels.spin(&rank.compute, 0)?;
    rank.synchronize()?;
    Ok(rank)
}

fn on_each_rank<T: Send>(
    world_size: usize,
    work: impl Fn(&Rank) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let rank = warm(comm)?;
        let done = work(&rank)?;
        rank.synchronize()?;
        Ok(done)
    })
}

/// Returns a rank's block.
fn block(rank: usize, len: usize) -> Vec<f32> {
    irregular::integers(rank, len)
}

fn stale(rank: usize, len: usize) -> Vec<f32> {
    irregular::integers(1000 + rank, len)
}

/// How long a rank's streams are busy, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Delays {
    /// Before the rank's block is written, and before each fold.
    compute: u64,
    /// Before the first message.
    comm: u64,
}

/// Runs `around_the_ring` with folds that save each block. Returns the blocks' numbers in the order of the folds, and the saved
/// blocks, by number.
fn save_blocks(rank: &Rank, causal: bool, delays: Delays) -> anyhow::Result<(Vec<usize>, Vec<Vec<f32>>)> {
    let Rank { comm, compute, kernels } = rank;
    let (number, world_size) = (rank.number(), comm.world_size());
    // The block is ready on the compute stream, and nowhere else.
    let source = compute.clone_htod(&block(number, LEN))?;
    let mut own = Guarded::new(compute, &stale(number, LEN))?;
    kernels.spin(compute, delays.compute)?;
    compute.memcpy_dtod(&source, &mut own.view_mut())?;
    let saved: anyhow::Result<Vec<_>> =
        (0..world_size).map(|at| Guarded::new(compute, &stale(at, LEN))).collect();
    let (mut saved, mut folded) = (saved?, Vec::new());
    kernels.spin(&comm.stream(), delays.comm)?;
    around_the_ring(comm, compute, &mut own.view_mut(), causal, |block, keys_values| {
        folded.push(block);
        kernels.spin(compute, delays.compute)?;
        let save = saved.get_mut(block).with_context(|| {
            format!(
                "rank {number} folds block {block}, but the blocks are numbered from 0 to {}",
                world_size - 1
            )
        })?;
        Ok(compute.memcpy_dtod(keys_values, &mut save.view_mut())?)
    })?;
    rank.synchronize()?;
    let blocks = saved.iter().map(Guarded::read).collect::<anyhow::Result<_>>()?;
    own.read()?;
    Ok((folded, blocks))
}

fn compare_blocks(
    world_size: usize,
    causal: bool,
    rank: usize,
    folded: &[usize],
    blocks: &[Vec<f32>],
) -> anyhow::Result<()> {
    let of = format!("rank {rank} of {world_size}, {}", if causal { "causal" } else { "not causal" });
    let last = if causal { rank } else { world_size - 1 };
    for number in 0..world_size {
        let times = folded.iter().filter(|&&other| other == number).count();
        ensure!(
            number <= last || times == 0,
            "{of}: folded block {number}, which comes after all of the rank's queries: skip it\n  the folds: {folded:?}"
        );
        ensure!(
            number > last || times == 1,
            "{of}: folded block {number} {}, expected once\n  the folds: {folded:?}",
            match times {
                0 => "never".to_owned(),
                times => format!("{times} times"),
            }
        );
    }
    for (number, got) in blocks.iter().enumerate().take(last + 1) {
        let name =
            format!("{}: what was folded as block {number}", if causal { "causal" } else { "not causal" });
        let right = block(number, LEN);
        let mut expected = Expected::new(rank, &name, &right);
        for other in (0..world_size).filter(|&other| other != number) {
            expected = expected.if_instead(&block(other, LEN), format!("this is the block of rank {other}"));
        }
        expected
            .if_instead(&vec![0.0; LEN], "it holds zeros: no block has arrived yet")
            .if_instead(&stale(number, LEN), "it holds the values from before the rank's block was written")
            .exactly(got)?;
    }
    Ok(())
}

fn worlds(least: usize) -> impl Iterator<Item = usize> {
    lab::world_sizes().into_iter().filter(move |&size| size >= least)
}

fn each_visible_block_is_folded_once() -> anyhow::Result<()> {
    for world_size in worlds(2) {
        blocks_are_right(world_size, |_| Delays::default())?;
    }
    Ok(())
}

fn blocks_are_right(world_size: usize, delays: fn(usize) -> Delays) -> anyhow::Result<()> {
    for causal in [false, true] {
        let ranks = on_each_rank(world_size, |rank| save_blocks(rank, causal, delays(rank.number())))?;
        for (rank, (folded, blocks)) in ranks.iter().enumerate() {
            compare_blocks(world_size, causal, rank, folded, blocks)?;
        }
    }
    Ok(())
}

fn slow_streams_are_waited_for() -> anyhow::Result<()> {
    blocks_are_right(3, |rank| Delays { compute: if rank == 0 { MILLISECOND } else { 0 }, comm: 0 })?;
    blocks_are_right(3, |rank| Delays { compute: 0, comm: if rank == 1 { MILLISECOND } else { 0 } })
}

/// The positions in a block of queries, and the elements of a query.
const POSITIONS: usize = 13;
const WIDTH: usize = 5;

/// Returns a rank's queries, or its keys and values.
fn queries(rank: usize) -> Vec<f32> {
    irregular::fractions(rank, POSITIONS * WIDTH)
}

fn keys_values(rank: usize) -> Vec<f32> {
    irregular::fractions(100 + rank, 2 * POSITIONS * WIDTH)
}

/// Returns the attention of a rank's queries to those keys that `is_visible` accepts, by the positions of the query and of the
/// key in the whole sequence.
fn reference(world_size: usize, rank: usize, is_visible: impl Fn(usize, usize) -> bool) -> Vec<f32> {
    let sums = weighted_sums(world_size, rank, is_visible);
    sums.into_iter().flat_map(|(sum, weighted)| weighted.map(|value| (value / sum) as f32)).collect()
}

/// Returns, for each of a rank's queries, the sum of the weights and of the weighted values. The largest weight is 1.
fn weighted_sums(
    world_size: usize,
    rank: usize,
    is_visible: impl Fn(usize, usize) -> bool,
) -> Vec<(f64, [f64; WIDTH])> {
    let blocks: Vec<Vec<f32>> = (0..world_size).map(keys_values).collect();
    let own = queries(rank);
    let of_query = |(row, query): (usize, &[f32])| {
        let mut pairs = Vec::new();
        for (from, block) in blocks.iter().enumerate() {
            let (keys, values) = block.split_at(POSITIONS * WIDTH);
            for (at, (key, value)) in keys.chunks_exact(WIDTH).zip(values.chunks_exact(WIDTH)).enumerate() {
                if is_visible(rank * POSITIONS + row, from * POSITIONS + at) {
                    let products = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k));
                    pairs.push((products.sum::<f64>() / (WIDTH as f64).sqrt(), value));
                }
            }
        }
        let largest = pairs.iter().map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max);
        let (mut sum, mut weighted) = (0.0, [0.0; WIDTH]);
        for (score, value) in pairs {
            let weight = (score - largest).exp();
            sum += weight;
            weighted.iter_mut().zip(value).for_each(|(out, value)| *out += weight * f64::from(*value));
        }
        (sum, weighted)
    };
    own.chunks_exact(WIDTH).enumerate().map(of_query).collect()
}

/// Returns a bound on the error of the attention. A score is at most √WIDTH and has WIDTH + 1 roundings, and a weight is the
/// exponential of the difference of two scores, with 4 roundings (CUDA's `expf` is off by 2 ulp at most). Each block may
/// rescale it, with the same errors. Both sums have one rounding for each key. So a weight has this relative error, numerator and
/// denominator have it both, and values are at most 1.
fn bound(world_size: usize) -> f64 {
    let of_score = (WIDTH as f64 + 3.0) * (WIDTH as f64).sqrt();
    let of_weight = 2.0 * of_score + 4.0 + world_size as f64 * ((WIDTH as f64).sqrt() * 2.0 + 6.0);
    UNIT_ROUNDOFF * 2.0 * (of_weight + (world_size * POSITIONS) as f64)
}

fn attention_is_that_of_one_gpu() -> anyhow::Result<()> {
    worlds(2).try_for_each(attention_is_right)
}

fn attention_is_right(world_size: usize) -> anyhow::Result<()> {
    for causal in [false, true] {
        let ranks = on_each_rank(world_size, |rank| {
            let Rank { comm, compute, .. } = rank;
            let queries = Guarded::new(compute, &queries(rank.number()))?;
            let mut keys_values = Guarded::new(compute, &keys_values(rank.number()))?;
            let attention =
                attend(comm, compute, &queries.view(), &mut keys_values.view_mut(), WIDTH, causal)?;
            let output = compute.clone_dtoh(&attention.output())?;
            rank.synchronize()?;
            keys_values.read()?;
            Ok((output, queries.read()?))
        })?;
        for (rank, (output, queries)) in ranks.iter().enumerate() {
            compare_attention(world_size, causal, rank, output)?;
            Expected::new(rank, "the queries", &self::queries(rank)).exactly(queries)?;
        }
    }
    Ok(())
}

fn compare_attention(world_size: usize, causal: bool, rank: usize, output: &[f32]) -> anyhow::Result<()> {
    let own = |key: usize| key / POSITIONS == rank;
    let of = |is_visible: &dyn Fn(usize, usize) -> bool| reference(world_size, rank, is_visible);
    let name = format!(
        "{} with world size {world_size}: the attention",
        if causal { "causal" } else { "not causal" }
    );
    let right = match causal {
        true => of(&|query, key| key <= query),
        false => of(&|_, _| true),
    };
    let sums = weighted_sums(world_size, rank, |query, key| !causal || key <= query);
    let undivided: Vec<f32> =
        sums.into_iter().flat_map(|(_, weighted)| weighted.map(|value| value as f32)).collect();
    let mut expected = Expected::new(rank, &name, &right)
        .if_instead(&undivided, "the values were summed, but not divided by the sum of their weights");
    if world_size > 1 {
        expected = expected.if_instead(
            &of(&|query, key| own(key) && (!causal || key <= query)),
            "only the rank's own block was folded",
        );
    }
    if !causal {
        expected = expected
            .if_instead(
                &of(&|query, key| key <= query),
                "keys of later positions are masked, but `causal` is false",
            )
            .if_instead(
                &of(&|query, key| !own(key) || key <= query),
                "keys of later positions in the rank's own block are masked, but `causal` is false",
            );
    }
    if causal {
        expected = expected
            .if_instead(&of(&|_, _| true), "all queries see all keys: nothing was masked")
            .if_instead(
                &of(&|_, key| key / POSITIONS <= rank),
                "within the rank's own block, queries see keys of later positions",
            )
            .if_instead(
                &of(&|query, key| key / POSITIONS <= rank && key % POSITIONS <= query % POSITIONS),
                "the blocks of lower ranks are masked like the rank's own: all of their keys are earlier",
            );
    }
    expected.within(bound(world_size), output)
}

fn one_rank_is_a_world_too() -> anyhow::Result<()> {
    blocks_are_right(1, |_| Delays::default())?;
    attention_is_right(1)
}

fn a_rank_holds_two_blocks() -> anyhow::Result<()> {
    const BLOCK: usize = 1 << 18;
    on_each_rank(3, |rank| {
        let Rank { comm, compute, .. } = rank;
        let mut own = compute.alloc_zeros::<f32>(BLOCK)?;
        rank.synchronize()?;
        let pool = MemoryPool::of_gpu(compute.context().ordinal())?;
        let before = pool.figure(USED)?;
        pool.reset(USED_HIGH)?;
        around_the_ring(comm, compute, &mut own.as_view_mut(), false, |_, _| Ok(()))?;
        rank.synchronize()?;
        // Another block is as large as all other memory, which may be used in addition, is small.
        let more = (pool.figure(USED_HIGH)? - before) as f64 / (BLOCK * size_of::<f32>()) as f64;
        ensure!(
            more < 1.5,
            "rank {}: it used the memory of {more:.1} blocks in addition to its own, expected one: use both buffers in turn",
            rank.number()
        );
        Ok(())
    })?;
    Ok(())
}

/// Checks the time from the first fold's start to the last fold's end: a fold, and then the longer of a fold and a message for
/// each further block. Modeled times must match within 3%: the formula leaves out the microseconds that launches take.
fn blocks_arrive_while_others_are_folded() -> anyhow::Result<()> {
    const BLOCK: usize = 1 << 14;
    const ROUNDS: usize = 4;
    const WITHIN: f64 = 0.03;
    for fold in [3 * MILLISECOND, MILLISECOND / 2] {
        let times = on_each_rank(3, |rank| {
            let Rank { comm, compute, kernels } = rank;
            let (mut one, mut other) =
                (compute.alloc_zeros::<f32>(BLOCK)?, compute.alloc_zeros::<f32>(BLOCK)?);
            rank.synchronize()?;
            let message = {
                shift(comm, &one.as_view(), &mut other.as_view_mut())?;
                let watch = Stopwatch::start(&comm.stream())?;
                for _ in 0..ROUNDS {
                    shift(comm, &one.as_view(), &mut other.as_view_mut())?;
                }
                watch.microseconds()? / ROUNDS as f64
            };
            let mut marks: Vec<(CudaEvent, CudaEvent)> = Vec::new();
            around_the_ring(comm, compute, &mut one.as_view_mut(), false, |_, _| {
                let start = timed(compute)?;
                kernels.spin(compute, fold)?;
                marks.push((start, timed(compute)?));
                Ok(())
            })?;
            rank.synchronize()?;
            let between = |from: &CudaEvent, to: &CudaEvent| {
                Ok::<f64, anyhow::Error>(f64::from(from.elapsed_ms(to)?) * 1e3)
            };
            let (Some(first), Some(last)) = (marks.first(), marks.last()) else {
                return Ok((message, 0.0, 0.0));
            };
            Ok((message, between(&first.0, &first.1)?, between(&first.0, &last.1)?))
        })?;
        if !lab::tier::times_are_modeled() {
            return Ok(());
        }
        for (rank, (message, fold, took)) in times.into_iter().enumerate() {
            let formula = fold + 2.0 * f64::max(fold, message);
            let took_with =
                |messages: f64| relative_eq!(took, 3.0 * fold + messages * message, max_relative = WITHIN);
            let cause = match (took_with(2.0), took_with(1.0)) {
                (true, _) => "\n  likely cause: a block is sent only after it was folded",
                (_, true) => "\n  likely cause: a block is folded only after the next one has arrived",
                _ => "",
            };
            ensure!(
                relative_eq!(took, formula, max_relative = WITHIN),
                "rank {rank}: 3 blocks took {took:.0} µs, expected {formula:.0} µs: a fold takes {fold:.0} µs, and a message, \
                 which takes {message:.0} µs, runs at the same time{cause}"
            );
        }
    }
    Ok(())
}

fn it_returns_at_once() -> anyhow::Result<()> {
    on_each_rank(2, |rank| {
        let Rank { comm, compute, .. } = rank;
        let mut own = compute.alloc_zeros::<f32>(LEN)?;
        rank.synchronize()?;
        let streams = [compute.clone(), comm.stream()];
        returns_at_once_on_each("around_the_ring", &streams, || {
            around_the_ring(comm, compute, &mut own.as_view_mut(), false, |_, _| Ok(()))
        })
    })?;
    Ok(())
}

fn blocks_move_only_through_shift() -> anyhow::Result<()> {
    on_each_rank(3, |rank| {
        let Rank { comm, compute, .. } = rank;
        let mut own = compute.alloc_zeros::<f32>(LEN)?;
        rank.synchronize()?;
        for causal in [false, true] {
            Budget::of("around_the_ring")
                .collectives(&[])
                .messages(4)
                .bytes_to_nccl((2 * LEN * size_of::<f32>()) as u64)
                .copies(0)
                .kernels(0)
                .allocations(1)
                .new_streams(0)
                .host_waits(0)
                .polls(0)
                .spend(|| {
                    around_the_ring(comm, compute, &mut own.as_view_mut(), causal, |_, _: &CudaView<f32>| {
                        Ok(())
                    })
                })?;
        }
        Ok(())
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("around_the_ring", || {
        let rank = warm(world_of_one()?)?;
        let mut own = rank.compute.alloc_zeros::<f32>(LEN)?;
        Ok(move || {
            let Rank { comm, compute, .. } = &rank;
            to_its_end(comm, || around_the_ring(comm, compute, &mut own.as_view_mut(), true, |_, _| Ok(())))
        })
    })?;
    each_call_fails("attend", || {
        let rank = warm(world_of_one()?)?;
        let queries = rank.compute.clone_htod(&queries(0))?;
        let mut keys_values = rank.compute.clone_htod(&keys_values(0))?;
        Ok(move || {
            let Rank { comm, compute, .. } = &rank;
            to_its_end(comm, || {
                attend(comm, compute, &queries.as_view(), &mut keys_values.as_view_mut(), WIDTH, true)
            })
        })
    })
}
