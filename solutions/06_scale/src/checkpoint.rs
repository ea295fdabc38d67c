//! Checkpoints in shards: each rank saves its part of a buffer, and any number of ranks can load it again.
//!
//! A checkpoint of step 7 is a folder, `step-7`, with a file for each part. A crash at any moment must leave the last
//! checkpoint usable, so the folder has another name until it is complete.

use anyhow::Context;
use cudarc::driver::{CudaSlice, CudaView};
use cudarc::nccl::Comm;
use lab::disk::{Disk, Shard};
use lab::{Readable, all_succeed};

/// Returns the folder of a complete checkpoint.
pub fn folder(step: u64) -> String {
    format!("step-{step}")
}

/// Saves a checkpoint of a buffer with `total` elements, of which each rank has its part, as described by [`Shard`].
/// There is no checkpoint of this step yet. Every rank must call it, with the same step.
///
/// # Errors
/// Fails on every rank if the disk fails on any of them. Also returns any error from NCCL or the driver.
pub fn save(
    comm: &Comm,
    disk: &dyn Disk,
    step: u64,
    part: &CudaView<f32>,
    total: usize,
) -> anyhow::Result<()> {
    let (rank, stream) = (comm.rank(), comm.stream());
    let (partial, complete) = (format!("partial-{step}"), folder(step));
    // A crash may have left files of other ranks there.
    all_succeed(comm, || match rank {
        0 => disk.remove(&partial).and_then(|()| disk.create_folder(&partial)),
        _ => Ok(()),
    })?;
    let shard = Shard::new(rank, comm.world_size(), total);
    // ANCHOR: save
    // Save this rank's part so that a crash at any moment leaves the previous checkpoint or this one:
    // 1. all ranks write to the folder `partial`, which exists and is empty;
    // 2. it gets the name `complete` in one step, and only when a crash can't damage any rank's file in it any more;
    // 3. once any rank returns `Ok`, a crash can't undo that either;
    // 4. if the disk fails on one rank, no rank waits forever, and every rank returns an error that contains the disk's;
    // 5. each rank writes and syncs its own file, and rank 0 does the rest.
    all_succeed(comm, || {
        let values = stream.clone_dtoh(part)?;
        stream.synchronize()?;
        shard.write(disk, &partial, &values)?;
        disk.sync(&shard.path(&partial))
    })?;
    all_succeed(comm, || {
        if rank == 0 {
            disk.sync(&partial)?;
            disk.rename(&partial, &complete)?;
            disk.sync("")?;
        }
        Ok(())
    })
    // ANCHOR_END: save
}

/// Returns the step of the newest complete checkpoint, and the number of its shards. Rank 0 looks it up for all
/// ranks.
fn newest(comm: &Comm, disk: &dyn Disk) -> anyhow::Result<(u64, usize)> {
    let stream = comm.stream();
    let found = all_succeed(comm, || {
        if comm.rank() > 0 {
            return Ok([0, 0]);
        }
        let names = disk.list("")?;
        let steps = names.iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok());
        let step = steps.max().context("there is no complete checkpoint")?;
        let files = disk.list(&folder(step))?;
        let shards = files.iter().find_map(|name| name.rsplit_once("-of-")?.1.parse().ok());
        Ok([step, shards.with_context(|| format!("{} has no shards", folder(step)))?])
    })?;
    let mut found = stream.clone_htod(&found)?;
    comm.broadcast_in_place(&mut found, 0).readable()?;
    let found = stream.clone_dtoh(&found)?;
    stream.synchronize()?;
    Ok((found[0], usize::try_from(found[1])?))
}

/// Loads this rank's part of the newest complete checkpoint, which any number of ranks may have saved. The buffer has
/// `total` elements, and at least one for each rank. Returns the step and the part. Every rank must call it.
///
/// # Errors
/// Fails on every rank if a shard is missing, torn, or damaged. Each rank's error names a file. Also returns any
/// error from NCCL or the driver.
pub fn load(comm: &Comm, disk: &dyn Disk, total: usize) -> anyhow::Result<(u64, CudaSlice<f32>)> {
    let (step, shards) = newest(comm, disk)?;
    let own = Shard::new(comm.rank(), comm.world_size(), total).range();
    // ANCHOR: load
    // Put this rank's part, `own`, together from the parts of the ranks that saved the checkpoint:
    // 1. the parts were those of `shards` ranks, which may be more or fewer than there are now;
    // 2. read each file that has elements of this rank's part, once, and no other file;
    // 3. an error on one rank is an error on every rank, and no rank waits forever;
    // 4. the number of collectives does not depend on the number of files.
    let values = all_succeed(comm, || {
        let mut values = Vec::new();
        for shard in (0..shards).map(|rank| Shard::new(rank, shards, total)) {
            let old = shard.range();
            let (start, end) = (own.start.max(old.start), own.end.min(old.end));
            if start < end {
                let read = shard.read(disk, &folder(step))?;
                values.extend_from_slice(&read[start - old.start..end - old.start]);
            }
        }
        Ok(values)
    })?;
    Ok((step, comm.stream().clone_htod(&values)?))
    // ANCHOR_END: load
}
