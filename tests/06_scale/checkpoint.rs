//! Checks for `scale/checkpoint`.
//!
//! No crash is made: a disk in memory records what the ranks do, and the checks load from each state in which a crash
//! may have left it. That finds a missing sync, which no test with a real crash of a program shows.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, bail};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::disk::{Crash, Disk, Folder, RecordedDisk, Shard};
use lab::explain::error_text;
use lab::{Budget, Check, Expected, Guarded, each_call_fails, ensure, irregular, named_ranks, world_of_one};

use crate::scale::checkpoint::{folder, load, save};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("checkpoint::each_rank_saves_its_part", each_rank_saves_its_part).calls(&["save"]),
        Check::new("checkpoint::any_number_of_ranks_loads_its_parts", any_number_of_ranks_loads_its_parts)
            .calls(&["load"]),
        Check::new("checkpoint::what_is_saved_is_loaded_bit_for_bit", what_is_saved_is_loaded)
            .calls(&["save", "load"]),
        Check::new(
            "checkpoint::a_crash_leaves_the_old_or_the_new_checkpoint",
            a_crash_leaves_the_old_or_the_new,
        )
        .calls(&["save"])
        .min_ranks(2),
        Check::new("checkpoint::leftovers_of_a_crash_are_replaced", leftovers_are_replaced)
            .calls(&["save"])
            .min_ranks(2),
        Check::new("checkpoint::a_failing_disk_is_an_error_on_every_rank", a_failing_disk_is_an_error)
            .calls(&["save"])
            .min_ranks(2),
        Check::new("checkpoint::a_bad_shard_is_named_on_every_rank", a_bad_shard_is_named)
            .calls(&["load"])
            .min_ranks(2),
        Check::new("checkpoint::ranks_agree_in_few_collectives", ranks_agree_in_few_collectives).min_ranks(2),
        Check::new("checkpoint::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// The lengths of the buffers: some that few world sizes divide, and one that gives most ranks a single element.
const LENGTHS: [usize; 4] = [37, 60, 1031, 5];

/// Returns the buffer of a step. It contains what a comparison of values, instead of bits, would miss.
fn buffer(step: u64, total: usize) -> Vec<f32> {
    let mut values = irregular::fractions(step as usize, total);
    let special = [f32::from_bits(0x7fa0_1234), -0.0, f32::NEG_INFINITY, f32::from_bits(3)];
    values.iter_mut().skip(2).step_by(11).zip(special).for_each(|(value, special)| *value = special);
    values
}

/// Returns a rank's part of the buffer of a step.
fn part(comm: &Comm, step: u64, total: usize) -> Vec<f32> {
    buffer(step, total)[Shard::new(comm.rank(), comm.world_size(), total).range()].to_vec()
}

/// Calls `save` on one rank, with its part of the buffer of the step.
fn save_part(comm: &Comm, disk: &dyn Disk, step: u64, total: usize) -> anyhow::Result<()> {
    let values = part(comm, step, total);
    let guarded = Guarded::new(&comm.stream(), &values)?;
    save(comm, disk, step, &guarded.view(), total)?;
    let name = "the part, which `save` must only read,";
    Expected::new(comm.rank(), name, &values).exactly(&guarded.read()?)
}

/// Calls `load` on one rank, and copies the part to the host.
fn load_part(comm: &Comm, disk: &dyn Disk, total: usize) -> anyhow::Result<(u64, Vec<f32>)> {
    let (step, part) = load(comm, disk, total)?;
    let values = comm.stream().clone_dtoh(&part)?;
    comm.stream().synchronize()?;
    Ok((step, values))
}

/// Writes a checkpoint of `world_size` ranks, without the exercise.
fn written(disk: &dyn Disk, step: u64, world_size: usize, total: usize) -> anyhow::Result<()> {
    let (folder, buffer) = (folder(step), buffer(step, total));
    disk.create_folder(&folder)?;
    for rank in 0..world_size {
        let shard = Shard::new(rank, world_size, total);
        shard.write(disk, &folder, &buffer[shard.range()])?;
        disk.sync(&shard.path(&folder))?;
    }
    disk.sync(&folder)?;
    disk.sync("")
}

/// One rank's access to a disk. It can be slow, it can fail, and it knows what the rank has done.
struct Watched<'a> {
    disk: &'a dyn Disk,
    /// How long each operation takes.
    delay: Duration,
    /// The operation that fails, counted from 0, as do all after it.
    fails_at: Option<usize>,
    done: Mutex<Vec<String>>,
}

/// The error of a disk that fails.
const FULL: &str = "no space left on the disk";

impl<'a> Watched<'a> {
    fn new(disk: &'a dyn Disk) -> Self {
        Self { disk, delay: Duration::ZERO, fails_at: None, done: Mutex::default() }
    }

    /// Returns what the rank has done so far, as in `read step-1/shard-0-of-4`.
    fn done(&self) -> Vec<String> {
        self.done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Returns the paths of the operations of a kind.
    fn paths(&self, kind: &str) -> Vec<String> {
        self.done().iter().filter_map(|text| Some(text.strip_prefix(kind)?.trim().to_owned())).collect()
    }

    fn begin(&self, text: String) -> anyhow::Result<()> {
        std::thread::sleep(self.delay);
        let mut done = self.done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        done.push(text.clone());
        if self.fails_at.is_some_and(|at| done.len() > at) {
            bail!("can't {text}: {FULL}");
        }
        Ok(())
    }
}

impl Disk for Watched<'_> {
    fn create_folder(&self, path: &str) -> anyhow::Result<()> {
        self.begin(format!("create {path}"))?;
        self.disk.create_folder(path)
    }

    fn write(&self, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
        self.begin(format!("write {path}"))?;
        self.disk.write(path, bytes)
    }

    fn sync(&self, path: &str) -> anyhow::Result<()> {
        self.begin(format!("sync {path:?}"))?;
        self.disk.sync(path)
    }

    fn rename(&self, from: &str, to: &str) -> anyhow::Result<()> {
        self.begin(format!("rename {from} to {to}"))?;
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &str) -> anyhow::Result<()> {
        self.begin(format!("remove {path}"))?;
        self.disk.remove(path)
    }

    fn list(&self, folder: &str) -> anyhow::Result<Vec<String>> {
        self.begin(format!("list {folder:?}"))?;
        self.disk.list(folder)
    }

    fn read(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        self.begin(format!("read {path}"))?;
        self.disk.read(path)
    }
}

fn each_rank_saves_its_part() -> anyhow::Result<()> {
    const STEP: u64 = 7;
    let partial = format!("partial-{STEP}");
    for world_size in lab::world_sizes() {
        for total in LENGTHS {
            let disk = RecordedDisk::default();
            rendezvous(&lab::streams(world_size)?, |comm| {
                let watched = Watched::new(&disk);
                save_part(&comm, &watched, STEP, total)?;
                let writes = watched.paths("write");
                ensure!(
                    writes.len() <= 1,
                    "rank {} of {world_size} writes {} files, {writes:?}; its own part is enough",
                    comm.rank(),
                    writes.len()
                );
                let own = format!("{:?}", Shard::new(comm.rank(), world_size, total).path(&partial));
                let of_others = |path: &&String| path.contains("shard-") && **path != own;
                if let Some(path) = watched.paths("sync").iter().find(of_others) {
                    bail!(
                        "rank {} of {world_size} syncs {path}, which another rank writes: each rank syncs its own file, because only \
                         its own computer knows what is not on the disk yet",
                        comm.rank()
                    );
                }
                Ok(())
            })?;
            let names = disk.list("")?;
            ensure!(
                names == [folder(STEP)],
                "after `save` of step {STEP} with world size {world_size}, the disk contains {names:?}; expected only {:?}",
                folder(STEP)
            );
            for rank in 0..world_size {
                let shard = Shard::new(rank, world_size, total);
                let read = shard.read(&disk, &folder(STEP)).with_context(|| {
                    format!("after `save` with world size {world_size}, rank {rank}'s part can't be read")
                })?;
                let name = format!("the saved part of {total} elements with world size {world_size}");
                Expected::new(rank, &name, &buffer(STEP, total)[shard.range()]).exactly(&read)?;
            }
        }
    }
    Ok(())
}

fn any_number_of_ranks_loads_its_parts() -> anyhow::Result<()> {
    const STEP: u64 = 12;
    for saved_on in [1, 2, 3, 4, 8] {
        for world_size in lab::world_sizes() {
            for total in LENGTHS {
                let disk = RecordedDisk::default();
                // As a text, 9 comes after 12.
                written(&disk, 9, saved_on + 1, total)?;
                written(&disk, STEP, saved_on, total)?;
                disk.create_folder("partial-13")?;
                rendezvous(&lab::streams(world_size)?, |comm| {
                    let watched = Watched::new(&disk);
                    let loaded = load_part(&comm, &watched, total).with_context(|| {
                        format!("loading with world size {world_size} what was saved with {saved_on}")
                    })?;
                    compare_part(&comm, saved_on, total, STEP, &loaded)?;
                    compare_reads(&comm, saved_on, total, &watched.paths("read"), &folder(STEP))
                })?;
            }
        }
    }
    Ok(())
}

/// Compares a rank's part with that of the checkpoint.
fn compare_part(
    comm: &Comm,
    saved_on: usize,
    total: usize,
    step: u64,
    (loaded_step, values): &(u64, Vec<f32>),
) -> anyhow::Result<()> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    ensure!(
        *loaded_step == step,
        "rank {rank}: `load` returned step {loaded_step}; expected the newest, {step}"
    );
    let range = Shard::new(rank, world_size, total).range();
    let name = format!(
        "the part {range:?} of {total} elements, loaded with world size {world_size} and saved with {saved_on},"
    );
    let whole = buffer(step, total);
    let same_rank = whole.get(Shard::new(rank, saved_on, total).range()).filter(|_| rank < saved_on);
    let right = &whole[range.clone()];
    let mut expected = Expected::new(rank, &name, right);
    if let Some(same_rank) = same_rank.filter(|same_rank| !same_bits(same_rank, right)) {
        ensure!(
            !same_bits(same_rank, values),
            "rank {rank}: {name} is the part {:?}, which rank {rank} saved: now, the parts are others",
            Shard::new(rank, saved_on, total).range()
        );
    }
    // Each file starts with element 0 of its own part, not with that of the buffer.
    let shifted: Vec<f32> = (0..saved_on)
        .map(|rank| Shard::new(rank, saved_on, total).range())
        .filter(|old| old.start < range.end && range.start < old.end)
        .flat_map(|old| {
            let len = range.end.min(old.end) - range.start.max(old.start);
            whole[old.start..old.start + len].to_vec()
        })
        .collect();
    expected = expected.if_instead(
        &shifted,
        "each old part is copied from its first element: a part that you need may start in the middle of a file",
    );
    expected.exactly(values)
}

fn same_bits(one: &[f32], other: &[f32]) -> bool {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    bits(one) == bits(other)
}

/// Compares the files that a rank has read with those that it needs.
fn compare_reads(
    comm: &Comm,
    saved_on: usize,
    total: usize,
    read: &[String],
    folder: &str,
) -> anyhow::Result<()> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let own = Shard::new(rank, world_size, total).range();
    let needed: BTreeSet<String> = (0..saved_on)
        .map(|rank| Shard::new(rank, saved_on, total))
        .filter(|old| old.range().start < own.end && own.start < old.range().end)
        .map(|old| old.path(folder))
        .collect();
    let situation =
        format!("rank {rank} needs {own:?} of {total} elements, which {saved_on} ranks have saved");
    if let Some(path) = read.iter().find(|path| !needed.contains(*path)) {
        bail!("{situation}, and reads {path}, which has none of them");
    }
    let is_repeated = |path: &&String| read.iter().filter(|other| other == path).count() > 1;
    if let Some(path) = read.iter().find(is_repeated) {
        bail!("{situation}, and reads {path} more than once");
    }
    Ok(())
}

fn what_is_saved_is_loaded() -> anyhow::Result<()> {
    let disk = Folder::temporary()?;
    let total = 1031;
    for (step, &world_size) in (1..).zip(&lab::world_sizes()) {
        rendezvous(&lab::streams(world_size)?, |comm| save_part(&comm, &disk, step, total))?;
        for world_size in lab::world_sizes() {
            rendezvous(&lab::streams(world_size)?, |comm| {
                let (loaded, values) = load_part(&comm, &disk, total)?;
                ensure!(loaded == step, "`load` returned step {loaded}; expected the newest, {step}");
                let name = format!("the part, loaded with world size {world_size} from a real disk,");
                Expected::new(comm.rank(), &name, &part(&comm, step, total)).exactly(&values)
            })?;
        }
    }
    Ok(())
}

/// A state after a crash, and whether a rank's `save` had returned by then.
struct State {
    crash: Crash,
    returned: bool,
}

const OLD: u64 = 1;
const NEW: u64 = 2;
const TOTAL: usize = 37;
/// How many ranks have saved the old checkpoint.
const SAVED_ON: usize = 2;

/// Saves step 2 after step 1, and returns the states in which a crash may leave the disk. One rank's disk may be slow.
fn crash_states(world_size: usize, slow: Option<usize>) -> anyhow::Result<Vec<State>> {
    let disk = RecordedDisk::default();
    written(&disk, OLD, SAVED_ON, TOTAL)?;
    let first = disk.operations();
    let returned = rendezvous(&lab::streams(world_size)?, |comm| {
        let mut watched = Watched::new(&disk);
        if slow == Some(comm.rank()) {
            watched.delay = Duration::from_millis(30);
        }
        save_part(&comm, &watched, NEW, TOTAL).with_context(|| match slow {
            Some(rank) => format!("with world size {world_size}, where rank {rank}'s disk is slow"),
            None => format!("with world size {world_size}"),
        })?;
        Ok(disk.operations())
    })?;
    let promised = returned.into_iter().min().unwrap_or(usize::MAX);
    let with_promise = |crash: Crash| State { returned: crash.operations >= promised, crash };
    Ok(disk.crashes(first).into_iter().map(with_promise).collect())
}

fn a_crash_leaves_the_old_or_the_new() -> anyhow::Result<()> {
    let world_size = lab::world_sizes().into_iter().filter(|&size| size <= 3).max().unwrap_or(2);
    for slow in (0..world_size).rev().map(Some).chain([None]) {
        for state in crash_states(world_size, slow)? {
            judge(world_size, &state)?;
        }
    }
    Ok(())
}

/// Returns the newest step on a disk, if its checkpoint is whole.
fn newest_step(disk: &dyn Disk, world_size: usize) -> anyhow::Result<u64> {
    let has_new = disk.list("")?.contains(&folder(NEW));
    let (step, world_size) = if has_new { (NEW, world_size) } else { (OLD, SAVED_ON) };
    for shard in (0..world_size).map(|rank| Shard::new(rank, world_size, TOTAL)) {
        let read = shard.read(disk, &folder(step))?;
        let is_right = same_bits(&read, &buffer(step, TOTAL)[shard.range()]);
        ensure!(is_right, "{} has wrong values", shard.path(&folder(step)));
    }
    Ok(step)
}

/// Judges what a crash leaves.
fn judge(world_size: usize, state: &State) -> anyhow::Result<()> {
    let crash = &state.crash;
    let newest = newest_step(&crash.disk(), world_size);
    let got = match newest {
        Ok(NEW) => return Ok(()),
        Ok(_) if !state.returned => return Ok(()),
        Ok(_) => format!("step {OLD} is the newest checkpoint, although a rank's `save` had returned Ok"),
        Err(ref error) => format!("the newest checkpoint is not usable: {}", error_text(error)),
    };
    let has_name = crash.contents.contains_key(&folder(NEW));
    let missing: Vec<usize> = (0..world_size)
        .filter(|&rank| !crash.contents.contains_key(&Shard::new(rank, world_size, TOTAL).path(&folder(NEW))))
        .collect();
    let cause = match &crash.unsynced {
        Some(root) if root.starts_with("the root") => {
            format!("\n  help: sync {root}, after the rename and before `save` returns")
        }
        Some(unsynced) => format!("\n  help: sync {unsynced} before the rename"),
        None if crash.is_lossless && has_name && !missing.is_empty() => {
            let theirs = if missing.len() == 1 { "has written its part" } else { "have written their parts" };
            format!(
                "\n  likely cause: {} gets its name before {} {theirs}",
                folder(NEW),
                named_ranks(&missing)
            )
        }
        None if crash.is_lossless && newest.is_ok() => {
            "\n  likely cause: a rank returns before rank 0 has renamed the folder and synced".to_owned()
        }
        None => String::new(),
    };
    let expected = if state.returned { format!("step {NEW}") } else { format!("step {OLD} or {NEW}") };
    bail!(
        "`save` of step {NEW} by {world_size} ranks, and {}: {got}; expected {expected}, whole{cause}",
        crash.text
    )
}

fn leftovers_are_replaced() -> anyhow::Result<()> {
    let disk = RecordedDisk::default();
    written(&disk, OLD, SAVED_ON, TOTAL)?;
    // Four ranks crashed while they saved step 2, and the program went on from step 1 with two ranks.
    let partial = format!("partial-{NEW}");
    disk.create_folder(&partial)?;
    disk.write(&format!("{partial}/shard-0-of-4"), b"torn")?;
    disk.write(&format!("{partial}/shard-1-of-2"), b"old")?;
    rendezvous(&lab::streams(2)?, |comm| save_part(&comm, &disk, NEW, TOTAL))?;
    let names = disk.list(&folder(NEW))?;
    ensure!(
        names == ["shard-0-of-2", "shard-1-of-2"],
        "{} contains {names:?}; expected only the files of this `save`, and none that an earlier crash left in {partial}",
        folder(NEW)
    );
    for shard in (0..2).map(|rank| Shard::new(rank, 2, TOTAL)) {
        let name = format!("{}, in a folder that had files before,", shard.path(&folder(NEW)));
        let expected = &buffer(NEW, TOTAL)[shard.range()];
        Expected::of(&name, expected).exactly(&shard.read(&disk, &folder(NEW))?)?;
    }
    Ok(())
}

/// Runs `work` on each rank, and returns every rank's result, also if it is an error.
fn results<T: Send>(
    world_size: usize,
    work: impl Fn(&Comm) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<Result<T, String>>> {
    rendezvous(&lab::streams(world_size)?, |comm| Ok(work(&comm).map_err(|error| error_text(&error))))
}

fn a_failing_disk_is_an_error() -> anyhow::Result<()> {
    /// More than any right answer makes on one rank.
    const MOST_OPERATIONS: usize = 20;
    const RANKS: usize = 2;
    for failing in (0..RANKS).rev() {
        for fails_at in 0..MOST_OPERATIONS {
            let disk = RecordedDisk::default();
            written(&disk, OLD, SAVED_ON, TOTAL)?;
            let failed = Mutex::new(None);
            let results = results(RANKS, |comm| {
                let mut watched = Watched::new(&disk);
                if comm.rank() == failing {
                    watched.fails_at = Some(fails_at);
                }
                let saved = save(
                    comm,
                    &watched,
                    NEW,
                    &comm.stream().clone_htod(&part(comm, NEW, TOTAL))?.as_view(),
                    TOTAL,
                );
                if comm.rank() == failing {
                    *failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                        watched.done().get(fails_at).cloned();
                }
                saved
            })?;
            let failed = failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
            let Some(failed) = failed else { break };
            for (rank, result) in results.iter().enumerate() {
                let got = match result {
                    Err(error) if error.contains(FULL) => continue,
                    Err(error) => format!("its error does not say so: {error}"),
                    Ok(()) => "`save` returned Ok there".to_owned(),
                };
                bail!(
                    "rank {rank} of {RANKS}: rank {failing}'s `{failed}` fails, so `save` must fail on every rank, with this \
                     error; {got}"
                );
            }
        }
    }
    Ok(())
}

fn a_bad_shard_is_named() -> anyhow::Result<()> {
    let world_size = lab::world_sizes().into_iter().filter(|&size| size <= 3).max().unwrap_or(2);
    for saved_on in [4, 2] {
        for bad in [0, saved_on - 1] {
            for damage in ["is missing", "is torn", "is damaged"] {
                let disk = RecordedDisk::default();
                written(&disk, OLD, saved_on, TOTAL)?;
                let path = Shard::new(bad, saved_on, TOTAL).path(&folder(OLD));
                let mut bytes = disk.read(&path)?;
                match damage {
                    "is missing" => disk.remove(&path)?,
                    "is torn" => disk.write(&path, &bytes[..bytes.len() - 1])?,
                    _ => {
                        *bytes.last_mut().context("a shard has a header")? ^= 0x10;
                        disk.write(&path, &bytes)?;
                    }
                }
                let results = results(world_size, |comm| load_part(comm, &disk, TOTAL))?;
                for (rank, result) in results.iter().enumerate() {
                    let got = match result {
                        Err(error) if error.contains(&path) => continue,
                        Err(error) => format!("its error does not name the file: {error}"),
                        Ok(_) => "`load` returned Ok there".to_owned(),
                    };
                    bail!(
                        "rank {rank} of {world_size}: {path} {damage}, so `load` must fail on every rank, with an error that names it; \
                         {got}"
                    );
                }
            }
        }
    }
    Ok(())
}

fn ranks_agree_in_few_collectives() -> anyhow::Result<()> {
    let (disk, many_shards) = (RecordedDisk::default(), RecordedDisk::default());
    written(&many_shards, NEW, 5, TOTAL)?;
    rendezvous(&lab::streams(2)?, |comm| {
        let stream = comm.stream();
        let values = stream.clone_htod(&part(&comm, NEW, TOTAL))?;
        let budget = |function: &str, collectives| {
            let budget = Budget::of(function).any_collectives(collectives).messages(0).communicators(0);
            budget.kernels(0).new_streams(0).stream_of(&comm)
        };
        let saved = budget("save", 4).spend(|| save(&comm, &disk, NEW, &values.as_view(), TOTAL));
        // Two find the newest checkpoint, and one or two agree on the rest.
        let loaded = budget("load", 4).spend(|| load(&comm, &many_shards, TOTAL).map(drop));
        stream.synchronize()?;
        saved.and(loaded)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("save", || {
        let comm = world_of_one()?;
        let values = comm.stream().clone_htod(&buffer(NEW, TOTAL))?;
        comm.stream().synchronize()?;
        let disk = RecordedDisk::default();
        Ok(move || save(&comm, &disk, NEW, &values.as_view(), TOTAL))
    })?;
    each_call_fails("load", || {
        let comm = world_of_one()?;
        let disk = RecordedDisk::default();
        written(&disk, NEW, 3, TOTAL)?;
        Ok(move || {
            let (_, part) = load(&comm, &disk, TOTAL)?;
            // The copy may still be in flight.
            comm.stream().synchronize()?;
            drop(part);
            Ok(())
        })
    })
}
