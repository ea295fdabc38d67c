//! Checks for `grouping/recover`.

use std::cell::Cell;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use cudarc::driver::CudaEvent;
use cudarc::nccl::{Comm, Id};
use init::rendezvous::rendezvous;
use lab::roll_call::roll_call;
use lab::{
    Budget, Check, Expected, Guarded, NcclLog, Readable, each_call_fails, ensure, irregular, without_panic,
    world_of_one,
};

use crate::grouping::recover::{Muster, rejoin, sum_of_survivors};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("recover::survivors_get_consecutive_ranks", survivors_get_consecutive_ranks)
            .calls(&["rejoin"])
            .min_ranks(2),
        Check::new("recover::the_old_communicator_goes_first", the_old_communicator_goes_first)
            .calls(&["rejoin"])
            .reads_aborts()
            .min_ranks(2),
        Check::new("recover::survivors_finish_the_sum", survivors_finish_the_sum)
            .calls(&["sum_of_survivors"])
            .min_ranks(2),
        Check::new("recover::a_second_loss_is_survived_too", a_second_loss_is_survived_too)
            .calls(&["sum_of_survivors"])
            .min_ranks(3),
        Check::new("recover::it_begins_again_until_the_sum_arrives", it_begins_again_until_the_sum_arrives)
            .calls(&["sum_of_survivors"]),
        Check::new("recover::an_error_of_arrives_is_returned", an_error_of_arrives_is_returned)
            .calls(&["sum_of_survivors"]),
        Check::new("recover::without_a_loss_nothing_changes", without_a_loss_nothing_changes)
            .calls(&["sum_of_survivors"]),
        Check::new("recover::a_rank_that_is_given_up_can_t_rejoin", a_rank_that_is_given_up_can_t_rejoin)
            .calls(&["rejoin"]),
        Check::new("recover::each_attempt_is_one_all_reduce", each_attempt_is_one_all_reduce)
            .calls(&["rejoin", "sum_of_survivors"]),
        Check::new("recover::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const LEN: usize = 1031;
/// How long a rank waits for the other survivors, or for a sum after the first. Before either, NCCL creates a
/// communicator, which takes up to 2 s; ten times that is for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The supervisor of the ranks when one of them is lost. It knows which rank is lost, and waits until all other ranks
/// have asked.
struct Watch {
    survivors: Vec<usize>,
    asked: Mutex<Vec<usize>>,
    complete: Condvar,
    id: Id,
}

impl Watch {
    /// Creates a watch for a world of `world_size` ranks that loses rank `lost`.
    fn new(world_size: usize, lost: usize) -> anyhow::Result<Self> {
        let survivors = (0..world_size).filter(|&rank| rank != lost).collect();
        Ok(Self { survivors, asked: Mutex::default(), complete: Condvar::new(), id: Id::new().readable()? })
    }

    /// Returns a rank's position among the survivors.
    fn place(&self, rank: usize) -> usize {
        self.survivors.iter().filter(|&&survivor| survivor < rank).count()
    }

    fn muster(&self, rank: usize) -> anyhow::Result<Muster> {
        let mut asked = self.asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        ensure!(
            asked.len() < self.survivors.len() && !asked.contains(&rank),
            "rank {rank} asked for the survivors a second time, although no other rank is lost; expected one call from \
             each of the survivors {:?}",
            self.survivors
        );
        asked.push(rank);
        self.complete.notify_all();
        let waited =
            self.complete.wait_timeout_while(asked, TIMEOUT, |asked| asked.len() < self.survivors.len());
        let asked = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0.len();
        ensure!(
            asked >= self.survivors.len(),
            "rank {rank} asked for the survivors, but only {asked} of {} ranks did so within {TIMEOUT:?}",
            self.survivors.len()
        );
        Ok(Muster { survivors: self.survivors.clone(), id: self.id })
    }
}

/// Waits for events, but not forever. The first event is for a sum without the lost rank, so its wait is short. Later
/// waits are longer than any sum takes.
fn arrivals(lost: usize) -> impl Fn(&CudaEvent) -> anyhow::Result<bool> {
    let short = Duration::from_millis(10);
    let deadline = Cell::new(short);
    move |event| {
        let since = Instant::now();
        while !event.try_is_complete()? {
            if since.elapsed() > deadline.get() {
                deadline.set(TIMEOUT);
                return Ok(false);
            }
            std::thread::yield_now();
        }
        ensure!(
            deadline.get() != short,
            "the first event that `arrives` received is complete, but the sum is not, because rank {lost} is missing: \
             record the event after the all-reduce"
        );
        Ok(true)
    }
}

/// Returns worlds with at least `least` ranks, each with a rank to lose. The largest world loses each rank in turn, and
/// the other worlds lose one in the middle.
fn losses(least: usize) -> Vec<(usize, usize)> {
    let mut sizes: Vec<usize> = lab::world_sizes().into_iter().filter(|&size| size >= least).collect();
    let largest = sizes.pop().unwrap_or(least);
    let middle = sizes.into_iter().map(|size| (size, (size - 1) / 2));
    middle.chain((0..largest).map(|lost| (largest, lost))).collect()
}

/// Returns the sum of these ranks' inputs.
fn sum(ranks: &[usize]) -> Vec<f32> {
    let inputs: Vec<_> = ranks.iter().map(|&rank| irregular::integers(rank, LEN)).collect();
    (0..LEN).map(|index| inputs.iter().map(|input| input[index]).sum()).collect()
}

/// Sets up the connections of a communicator, as in a program that has been running for a while. If a rank were missing
/// from the first collective, a host might wait forever.
fn in_use(comm: &Comm) -> anyhow::Result<()> {
    roll_call(comm)?;
    let input = comm.stream().clone_htod(&irregular::integers(comm.rank(), LEN))?;
    let mut total = comm.stream().alloc_zeros::<f32>(LEN)?;
    collectives::all_reduce::sum(comm, &input.as_view(), &mut total.as_view_mut())?;
    Ok(comm.stream().synchronize()?)
}

/// Compares the ranks and GPUs in a new world with those of the survivors. The ranks exchange their numbers through
/// NCCL.
fn compare_world(old_rank: usize, comm: &Comm, survivors: &[usize], gpu_of: &[usize]) -> anyhow::Result<()> {
    let heard = roll_call(comm)?;
    let got: Vec<_> = heard.iter().map(|answer| (answer.rank, answer.world_size, answer.gpu)).collect();
    let expected: Vec<_> =
        survivors.iter().enumerate().map(|(rank, &old)| (rank, survivors.len(), gpu_of[old])).collect();
    ensure!(
        got == expected,
        "old rank {old_rank}, with survivors {survivors:?}: the new communicator has wrong (rank, world size, \
         GPU)\n  expected {expected:?}, got {got:?}\n  a rank's new number is its position among the survivors"
    );
    Ok(())
}

/// Returns each rank's stream, and the number of its GPU. With two ranks, no rank has the same number as its GPU.
fn streams(
    world_size: usize,
) -> anyhow::Result<(Vec<std::sync::Arc<cudarc::driver::CudaStream>>, Vec<usize>)> {
    let mut streams = lab::streams(world_size)?;
    streams.reverse();
    let gpus = streams.iter().map(|stream| stream.context().ordinal()).collect();
    Ok((streams, gpus))
}

fn survivors_get_consecutive_ranks() -> anyhow::Result<()> {
    for (world_size, lost) in losses(2) {
        let watch = Watch::new(world_size, lost)?;
        let (streams, gpu_of) = streams(world_size)?;
        rendezvous(&streams, |comm| {
            let rank = comm.rank();
            in_use(&comm)?;
            if rank == lost {
                return Ok(());
            }
            let new = rejoin(comm, |rank| watch.muster(rank)).with_context(|| {
                format!(
                    "rank {lost} of {world_size} is lost, but old rank {rank} could not rejoin as one of {:?}, where \
                     it is now rank {}",
                    watch.survivors,
                    watch.place(rank)
                )
            })?;
            compare_world(rank, &new, &watch.survivors, &gpu_of)
        })?;
    }
    Ok(())
}

fn the_old_communicator_goes_first() -> anyhow::Result<()> {
    // SAFETY: the check has not started any other threads yet.
    let log = unsafe { NcclLog::open() };
    for (world_size, lost) in losses(2) {
        let watch = Watch::new(world_size, lost)?;
        let (streams, gpu_of) = streams(world_size)?;
        rendezvous(&streams, |comm| {
            in_use(&comm)?;
            if comm.rank() == lost {
                return Ok(());
            }
            rejoin(comm, |rank| watch.muster(rank)).map(drop)
        })?;
        for &rank in &watch.survivors {
            let ranks = gpu_of.iter().filter(|&&gpu| gpu == gpu_of[rank]).count();
            let most = log.most_at_once(gpu_of[rank])?;
            ensure!(
                most <= ranks,
                "rank {lost} of {world_size} is lost, but the GPU of old rank {rank} had {most} communicators at the \
                 same time; expected {ranks}\n  abort the old one before you create the new one: creating one may wait for \
                 the GPU's pending work, and the old world's sum never ends"
            );
        }
    }
    Ok(())
}

fn survivors_finish_the_sum() -> anyhow::Result<()> {
    for (world_size, lost) in losses(2) {
        let watch = Watch::new(world_size, lost)?;
        let (streams, gpu_of) = streams(world_size)?;
        rendezvous(&streams, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            in_use(&comm)?;
            if rank == lost {
                return Ok(());
            }
            let input = Guarded::new(&stream, &irregular::integers(rank, LEN))?;
            let mut total = Guarded::new(&stream, &irregular::integers(1000 + rank, LEN))?;
            // An event recorded before the sum is now complete at once.
            stream.synchronize()?;
            let muster = |rank| watch.muster(rank);
            let new = sum_of_survivors(comm, &input.view(), &mut total.view_mut(), arrivals(lost), muster)
                .with_context(|| {
                    format!(
                        "rank {lost} of {world_size} is lost, but old rank {rank} could not continue as rank {}",
                        watch.place(rank)
                    )
                })?;
            compare_total(rank, &watch.survivors, lost, &total)?;
            compare_world(rank, &new, &watch.survivors, &gpu_of)
        })?;
    }
    Ok(())
}

fn compare_total(rank: usize, survivors: &[usize], lost: usize, total: &Guarded<f32>) -> anyhow::Result<()> {
    let mut all = survivors.to_vec();
    all.push(lost);
    let average: Vec<f32> = sum(survivors).iter().map(|value| value / survivors.len() as f32).collect();
    Expected::new(rank, &format!("the sum over the survivors {survivors:?}"), &sum(survivors))
        .if_instead(
            &irregular::integers(1000 + rank, LEN),
            "it holds its old values: repeat the interrupted sum with the new communicator",
        )
        .if_instead(&sum(&all), format!("it includes the values of rank {lost}, which is lost"))
        .if_instead(&irregular::integers(rank, LEN), "these are only the rank's own values")
        .if_instead(&average, "this is the average, not the sum")
        .exactly(&total.read()?)
}

fn a_second_loss_is_survived_too() -> anyhow::Result<()> {
    let world_size = lab::world_sizes().into_iter().max().unwrap_or(3);
    // Rank 1 is lost first. Then rank 2, which is rank 1 among the survivors, is lost.
    let watches = [Watch::new(world_size, 1)?, Watch::new(world_size - 1, 1)?];
    rendezvous(&lab::streams(world_size)?, |mut comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        in_use(&comm)?;
        let input = Guarded::new(&stream, &irregular::integers(rank, LEN))?;
        let mut total = Guarded::new(&stream, &irregular::integers(1000 + rank, LEN))?;
        for (lost, watch) in (1..).zip(&watches) {
            if rank == lost {
                return Ok(());
            }
            let muster = |rank| watch.muster(rank);
            comm = sum_of_survivors(comm, &input.view(), &mut total.view_mut(), arrivals(lost), muster)
                .with_context(|| {
                    let place = rank.saturating_sub(lost);
                    format!("rank {lost} is lost, but old rank {rank} could not continue as rank {place}")
                })?;
            let survivors: Vec<usize> = (0..world_size).filter(|&rank| rank == 0 || rank > lost).collect();
            compare_total(rank, &survivors, lost, &total)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// No rank is lost, but `arrives` returns false for the first two sums, although they complete. After each of them, all
/// ranks start again in a new world.
fn it_begins_again_until_the_sum_arrives() -> anyhow::Result<()> {
    const REFUSED: usize = 2;
    for world_size in lab::world_sizes() {
        let watches: Vec<Watch> =
            (0..REFUSED).map(|_| Watch::new(world_size, world_size)).collect::<anyhow::Result<_>>()?;
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            in_use(&comm)?;
            let input = Guarded::new(&stream, &irregular::integers(rank, LEN))?;
            let mut total = Guarded::new(&stream, &irregular::integers(1000 + rank, LEN))?;
            let (sums, asked) = (Cell::new(0), Cell::new(0));
            let arrives = |event: &CudaEvent| {
                event.synchronize()?;
                sums.set(sums.get() + 1);
                Ok(sums.get() > REFUSED)
            };
            let muster = |rank| {
                let watch = watches.get(asked.get());
                asked.set(asked.get() + 1);
                watch
                    .context("`muster` was called more often than there were sums that did not arrive")?
                    .muster(rank)
            };
            let again = "it must rejoin and try again until a sum arrives";
            let times =
                |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
            let comm = sum_of_survivors(comm, &input.view(), &mut total.view_mut(), arrives, muster)
                .with_context(|| {
                    format!(
                        "rank {rank} of {world_size}: the first {REFUSED} sums failed, and then `sum_of_survivors` \
                         returned an error: {again}"
                    )
                })?;
            comm.stream().synchronize()?;
            ensure!(
                sums.get() == REFUSED + 1 && asked.get() == REFUSED,
                "rank {rank} of {world_size}: the first {REFUSED} sums failed, but `sum_of_survivors` returned after \
                 waiting for {} and rejoining {}: {again}",
                times(sums.get(), "sum"),
                times(asked.get(), "time")
            );
            let all: Vec<usize> = (0..world_size).collect();
            let sum = sum(&all);
            let again = (world_size as f32).powi(REFUSED as i32);
            let summed_again: Vec<f32> = sum.iter().map(|value| value * again).collect();
            Expected::new(rank, &format!("the sum over {world_size} ranks"), &sum)
                .if_instead(
                    &summed_again,
                    "each attempt summed what the one before had left in `total`: sum `values`",
                )
                .exactly(&total.read()?)
        })?;
    }
    Ok(())
}

fn an_error_of_arrives_is_returned() -> anyhow::Result<()> {
    let comm = world_of_one()?;
    let stream = comm.stream();
    let values = stream.clone_htod(&irregular::integers(0, LEN))?;
    let mut total = stream.alloc_zeros::<f32>(LEN)?;
    let asked = Cell::new(false);
    let muster = |rank| {
        asked.set(true);
        anyhow::bail!("rank {rank} asked for the survivors")
    };
    let arrives = |event: &CudaEvent| {
        event.synchronize()?;
        anyhow::bail!("the clock has stopped")
    };
    let failed = sum_of_survivors(comm, &values.as_view(), &mut total.as_view_mut(), arrives, muster);
    stream.synchronize()?;
    let text = match failed {
        Ok(_) => "`sum_of_survivors` returned Ok".to_owned(),
        Err(error) => format!("the error says: {}", lab::explain::error_text(&error)),
    };
    ensure!(
        !asked.get() && text.contains("the clock has stopped"),
        "`arrives` returned an error, `the clock has stopped`: `sum_of_survivors` must return it{}\n  {text}",
        if asked.get() { ", but called `muster`, as if the sum had not arrived" } else { "" }
    );
    Ok(())
}

fn without_a_loss_nothing_changes() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            in_use(&comm)?;
            let input = Guarded::new(&stream, &irregular::integers(rank, LEN))?;
            let mut total = Guarded::new(&stream, &irregular::integers(1000 + rank, LEN))?;
            let asked = Cell::new(false);
            let muster = |rank| {
                asked.set(true);
                anyhow::bail!("rank {rank} asked for the survivors, although no rank is lost")
            };
            let comm = sum_of_survivors(
                comm,
                &input.view(),
                &mut total.view_mut(),
                |event| Ok(event.synchronize().map(|()| true)?),
                muster,
            )?;
            ensure!(
                !asked.get() && comm.world_size() == world_size,
                "rank {rank}: no rank was lost, but the world of {world_size} ranks became one of {}",
                comm.world_size()
            );
            let all: Vec<usize> = (0..world_size).collect();
            Expected::new(rank, &format!("the sum over {world_size} ranks"), &sum(&all))
                .exactly(&total.read()?)
        })?;
    }
    Ok(())
}

fn a_rank_that_is_given_up_can_t_rejoin() -> anyhow::Result<()> {
    rendezvous(&lab::streams(1)?, |comm| {
        let id = Id::new().readable()?;
        let result = without_panic("`rejoin` on rank 0 when the survivors are [1, 3]", || {
            rejoin(comm, |_| Ok(Muster { survivors: vec![1, 3], id }))
        })?;
        let text = match result {
            Ok(new) => anyhow::bail!(
                "rank 0 is not one of the survivors [1, 3], but rejoined as rank {} of {}",
                new.rank(),
                new.world_size()
            ),
            Err(error) => lab::explain::error_text(&error),
        };
        ensure!(
            !text.contains("nccl"),
            "rank 0 is not one of the survivors [1, 3], but called NCCL anyway: {text}"
        );
        Ok(())
    })?;
    Ok(())
}

/// Musters a single rank, any number of times.
fn alone(_rank: usize) -> anyhow::Result<Muster> {
    Ok(Muster { survivors: vec![0], id: Id::new().readable()? })
}

fn each_attempt_is_one_all_reduce() -> anyhow::Result<()> {
    const REFUSED: usize = 2;
    let comm = world_of_one()?;
    let stream = comm.stream();
    let budget = |function: &str, new: usize| {
        let budget = Budget::of(function).communicators(new as u64).messages(0).kernels(0).new_streams(0);
        budget.polls(0).streams(&[(&stream, "the communicator's stream")])
    };
    let comm = budget("rejoin", 1)
        .collectives(&[])
        .host_waits(0)
        .copies(0)
        .allocations(0)
        .spend(|| rejoin(comm, alone))?;
    let values = stream.clone_htod(&irregular::integers(0, LEN))?;
    let mut total = stream.alloc_zeros::<f32>(LEN)?;
    let sums = Cell::new(0);
    let arrives = |event: &CudaEvent| {
        event.synchronize()?;
        sums.set(sums.get() + 1);
        Ok(sums.get() > REFUSED)
    };
    // Each attempt may copy the values and sum them in place. Only `arrives` waits; a wait after the last sum, which has
    // arrived, ends at once.
    let budget = budget("sum_of_survivors", REFUSED).collectives(&[("AllReduce", LEN); REFUSED + 1]);
    let budget =
        budget.host_waits(REFUSED as u64 + 2).copies(REFUSED as u64 + 1).bytes_to_host(0).allocations(1);
    budget.spend(|| sum_of_survivors(comm, &values.as_view(), &mut total.as_view_mut(), arrives, alone))?;
    Ok(stream.synchronize()?)
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("rejoin", || {
        let comm = world_of_one()?;
        let id = Id::new().readable()?;
        Ok(move || rejoin(comm, |_| Ok(Muster { survivors: vec![0], id })).map(drop))
    })?;
    each_call_fails("sum_of_survivors", || {
        let comm = world_of_one()?;
        let stream = comm.stream();
        let values = stream.clone_htod(&irregular::integers(0, LEN))?;
        let mut total = stream.alloc_zeros::<f32>(LEN)?;
        stream.synchronize()?;
        Ok(move || {
            let arrives = |event: &CudaEvent| Ok(event.synchronize().map(|()| true)?);
            sum_of_survivors(comm, &values.as_view(), &mut total.as_view_mut(), arrives, alone).map(drop)
        })
    })
}
