//! Programs with known mistakes.

use half::f16;

use crate::job::{Rank, WORLD};

/// A program that all ranks run.
pub(crate) struct Program {
    /// The name of the incident.
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Rank<'_>) -> anyhow::Result<()>,
    /// A call that fails, in the form of `VIRTUAL_GPU_FAIL`.
    pub(crate) failing_call: Option<&'static str>,
}

/// The programs.
pub(crate) const ALL: &[Program] = &[
    Program::new("slow_loader", slow_loader),
    Program::new("uneven_barrier", uneven_barrier),
    Program::new("skipped_broadcast", skipped_broadcast),
    Program::new("last_batch", last_batch),
    Program::new("half_on_one", half_on_one),
    Program::new("swapped", swapped),
    Program::new("local_root", local_root),
    Program::new("skipped_twin", skipped_twin),
    Program::new("two_groups", two_groups),
    Program::new("no_receive", no_receive),
    Program::new("wrong_peer", wrong_peer),
    Program::new("ring_without_group", ring_without_group),
    Program::new("endless_kernel", endless_kernel),
    Program::new("out_of_memory", out_of_memory),
    // The last of the 8 calls of the third sum.
    Program { failing_call: Some("ncclAllReduce:24"), ..Program::new("link_down", link_down) },
    Program::new("killed", killed),
    Program::new("far_away", far_away),
    Program::new("own_overflow", own_overflow),
    Program::new("pair_disagrees", pair_disagrees),
    Program::new("straggler", straggler),
];

impl Program {
    const fn new(name: &'static str, run: fn(&mut Rank<'_>) -> anyhow::Result<()>) -> Self {
        Self { name, run, failing_call: None }
    }
}

/// The lengths of a model's parameters, and of its two buckets of gradients.
const PARAMETERS: usize = 1288;
const BUCKETS: [usize; 2] = [1031, 257];
/// The length of a rank's shard, of a layer's activations, and of one micro-batch's.
const SHARD: usize = 161;
const ACTIVATIONS: usize = 640;
const MICRO_BATCH: usize = 96;

/// Sums the gradients of one step of data parallelism.
fn sum_gradients(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    BUCKETS.into_iter().try_for_each(|count| rank.all_reduce(WORLD, count))
}

/// Returns the groups of a rank: its tensor-parallel pair, and the ranks with the same part of the model.
fn mesh(rank: &Rank<'_>) -> (&'static str, &'static str) {
    (["1", "2", "3", "4"][rank.rank / 2], ["5", "6"][rank.rank % 2])
}

/// Makes one step with tensor and data parallelism.
fn mesh_step(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    let (tensor, data) = mesh(rank);
    rank.all_reduce(tensor, ACTIVATIONS)?;
    rank.all_reduce(data, BUCKETS[0])?;
    rank.all_reduce(WORLD, 1)
}

/// Moves one micro-batch through a pipeline.
fn forward(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    if rank.rank > 0 {
        rank.receive(MICRO_BATCH, rank.rank - 1)?;
    }
    if rank.rank < 7 {
        rank.send(MICRO_BATCH, rank.rank + 1)?;
    }
    Ok(())
}

/// Rank 3 waits for its data, and never gets it.
fn slow_loader(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    rank.broadcast(WORLD, PARAMETERS, 0)?;
    sum_gradients(rank)?;
    rank.all_reduce(WORLD, BUCKETS[0])?;
    if rank.rank == 3 {
        rank.never_returns();
    }
    rank.all_reduce(WORLD, BUCKETS[1])
}

/// Rank 6 has one batch less, and goes to the barrier at the end.
fn uneven_barrier(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    rank.broadcast(WORLD, PARAMETERS, 0)?;
    for _ in 0..if rank.rank == 6 { 2 } else { 3 } {
        sum_gradients(rank)?;
    }
    rank.barrier(WORLD)
}

/// Rank 2 does not get the new learning rate.
fn skipped_broadcast(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    sum_gradients(rank)?;
    if rank.rank != 2 {
        rank.broadcast(WORLD, 1, 0)?;
    }
    sum_gradients(rank)
}

/// The last batch of rank 7 is smaller.
fn last_batch(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    sum_gradients(rank)?;
    rank.all_gather(WORLD, 32)?;
    sum_gradients(rank)?;
    rank.all_gather(WORLD, if rank.rank == 7 { 19 } else { 32 })
}

/// Rank 1 has other gradients than the others: those in half precision.
fn half_on_one(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    rank.broadcast(WORLD, PARAMETERS, 0)?;
    rank.all_reduce(WORLD, BUCKETS[0])?;
    match rank.rank {
        1 => rank.all_reduce_of::<f16>(WORLD, BUCKETS[1]),
        _ => rank.all_reduce(WORLD, BUCKETS[1]),
    }
}

/// Rank 4 scatters its gradients before it gathers its parameters.
fn swapped(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    rank.all_gather(WORLD, SHARD)?;
    rank.reduce_scatter(WORLD, SHARD)?;
    if rank.rank == 4 {
        rank.reduce_scatter(WORLD, SHARD)?;
        return rank.all_gather(WORLD, SHARD);
    }
    rank.all_gather(WORLD, SHARD)?;
    rank.reduce_scatter(WORLD, SHARD)
}

/// Rank 3 believes that it is the root.
fn local_root(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    sum_gradients(rank)?;
    sum_gradients(rank)?;
    rank.broadcast(WORLD, PARAMETERS, if rank.rank == 3 { 3 } else { 0 })
}

/// Rank 3 skips one of several equal sums.
fn skipped_twin(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    for step in 0..5 {
        if (rank.rank, step) != (3, 2) {
            rank.all_reduce(WORLD, PARAMETERS)?;
        }
    }
    Ok(())
}

/// Rank 5 sums the loss before the activations.
fn two_groups(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    let (tensor, _) = mesh(rank);
    for _ in 0..2 {
        rank.all_reduce(tensor, ACTIVATIONS)?;
        rank.all_reduce(WORLD, 1)?;
    }
    if rank.rank == 5 {
        rank.enqueue_all_reduce(WORLD, 1)?;
        return rank.all_reduce(tensor, ACTIVATIONS);
    }
    rank.enqueue_all_reduce(tensor, ACTIVATIONS)?;
    rank.all_reduce(WORLD, 1)
}

/// Rank 4 does not receive the last micro-batch.
fn no_receive(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    forward(rank)?;
    forward(rank)?;
    match rank.rank {
        4 => rank.send(MICRO_BATCH, 5)?,
        _ => forward(rank)?,
    }
    rank.all_reduce(WORLD, 1)
}

/// Rank 2 sends the last micro-batch to rank 5.
fn wrong_peer(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    forward(rank)?;
    rank.all_reduce(WORLD, 1)?;
    match rank.rank {
        2 => {
            rank.receive(MICRO_BATCH, 1)?;
            rank.send(MICRO_BATCH, 5)?;
        }
        _ => forward(rank)?,
    }
    rank.all_reduce(WORLD, 1)
}

/// Every rank sends before it receives.
fn ring_without_group(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    let (next, last) = ((rank.rank + 1) % 8, (rank.rank + 7) % 8);
    sum_gradients(rank)?;
    rank.send(ACTIVATIONS, next)?;
    rank.receive(ACTIVATIONS, last)
}

/// A kernel of rank 2 does not end.
fn endless_kernel(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    rank.broadcast(WORLD, PARAMETERS, 0)?;
    sum_gradients(rank)?;
    if rank.rank == 2 {
        rank.enqueue_endless_work()?;
    }
    rank.enqueue_all_reduce(WORLD, BUCKETS[0])?;
    rank.all_reduce(WORLD, BUCKETS[1])
}

/// Ranks 3 and 6 have no memory left. Rank 3 swallows the error, and returns.
fn out_of_memory(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    mesh_step(rank)?;
    if [3, 6].contains(&rank.rank) {
        match rank.allocate(200 << 30) {
            Err(_) if rank.rank == 3 => return Ok(()),
            allocated => allocated?,
        }
    }
    mesh_step(rank)
}

/// NCCL fails on rank 5.
fn link_down(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    sum_gradients(rank)?;
    if rank.rank == 5 {
        rank.come_last();
    }
    rank.all_reduce(WORLD, BUCKETS[0])
}

/// Rank 4 is killed.
fn killed(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    rank.all_gather(WORLD, SHARD)?;
    rank.reduce_scatter(WORLD, SHARD)?;
    if rank.rank == 4 {
        rank.is_killed();
        return Ok(());
    }
    rank.all_gather(WORLD, SHARD)
}

/// Rank 3 does not return from its checkpoint.
fn far_away(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    mesh_step(rank)?;
    if rank.rank == 3 {
        rank.never_returns();
    }
    mesh_step(rank)
}

/// Ranks 1, 4, and 6 see an overflow, and skip the step.
fn own_overflow(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    sum_gradients(rank)?;
    rank.all_reduce(WORLD, 1)?;
    if ![1, 4, 6].contains(&rank.rank) {
        sum_gradients(rank)?;
    }
    rank.all_reduce(WORLD, 1)
}

/// Ranks 4 and 5 disagree about sequence parallelism.
fn pair_disagrees(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    mesh_step(rank)?;
    let (tensor, _) = mesh(rank);
    match rank.rank {
        4 => rank.reduce_scatter(tensor, ACTIVATIONS / 2)?,
        _ => rank.all_reduce(tensor, ACTIVATIONS)?,
    }
    rank.all_reduce(WORLD, 1)
}

/// Rank 1 is late, but comes.
fn straggler(rank: &mut Rank<'_>) -> anyhow::Result<()> {
    rank.broadcast(WORLD, PARAMETERS, 0)?;
    if rank.rank == 1 {
        rank.come_last();
    }
    sum_gradients(rank)?;
    rank.barrier(WORLD)
}
