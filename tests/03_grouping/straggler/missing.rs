//! Checks with ranks that do not arrive before the deadline.

use std::cell::{Cell, OnceCell};
use std::sync::{Barrier, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::bail;
use cudarc::driver::CudaSlice;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::explain::error_text;
use lab::{Kernels, ensure, named_ranks};

use super::{DEADLINE, LONG_AFTER, MILLISECOND, prepared, worlds};
use crate::grouping::straggler::{Register, barrier, lateness};

/// The time after which the check helps a rank that is waiting for a missing rank without reading the clock. A correct
/// rank returns a few milliseconds after the others have signed; the rest is for a busy machine, and every wrong answer
/// takes it all.
const RESCUE: Duration = Duration::from_secs(3);
/// The time after which the deadline passes for a rank that has not signed, although its GPU has arrived. A rank signs
/// as soon as it queries its event, which a wait does at least every few milliseconds; the rest is for a busy machine. It
/// is less than [`RESCUE`], so a rank that never signs still gives up by its deadline.
const SIGNING: Duration = Duration::from_secs(1);
/// How long the check waits for the ranks that do arrive. They need milliseconds, or [`SIGNING`] if their answer is wrong,
/// so this only bounds a run in which a rank has failed.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A rank's result, and the number of times that it read the clock; `None` if it did not call `barrier`.
type Told = Option<(Result<Vec<f32>, String>, usize)>;

/// The progress of the ranks in a world.
#[derive(Default)]
struct Returned {
    number: Mutex<usize>,
    changed: Condvar,
}

impl Returned {
    fn one_more(&self) {
        *self.number.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) += 1;
        self.changed.notify_all();
    }

    /// Waits until `number` ranks have returned, up to a timeout. Returns whether they did.
    fn are(&self, number: usize) -> bool {
        let returned = self.number.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let waited = self.changed.wait_timeout_while(returned, RESCUE, |returned| *returned < number);
        waited.is_ok_and(|(returned, _)| *returned >= number)
    }
}

/// Returns the clock of a rank whose GPU has arrived. The deadline passes as soon as all ranks except `late` have
/// signed.
fn until_the_others_have_signed(register: &Register, rank: usize, late: &[usize]) -> impl Fn() -> Duration {
    let (looks, asks) = (Cell::new(0), OnceCell::new());
    move || {
        // The deadline is relative to the first reading.
        if looks.replace(looks.get() + 1) == 0 {
            return Duration::ZERO;
        }
        let asks: &Instant = asks.get_or_init(Instant::now);
        if register.missing().contains(&rank) {
            return if asks.elapsed() < SIGNING { Duration::ZERO } else { LONG_AFTER };
        }
        wait_for_the_others(register, late, TIMEOUT);
        LONG_AFTER
    }
}

/// Waits until all ranks except `late` have signed, up to a timeout.
fn wait_for_the_others(register: &Register, late: &[usize], timeout: Duration) {
    let since = Instant::now();
    while register.missing().iter().any(|missing| !late.contains(missing)) && since.elapsed() < timeout {
        std::thread::yield_now();
    }
}

/// Judges a rank's result after the ranks `late`, in ascending order, did not arrive in time.
fn judge(
    rank: usize,
    late: &[usize],
    told: &Told,
    register: &Register,
    world_size: usize,
) -> anyhow::Result<()> {
    let those = named_ranks(late);
    let of = format!("rank {rank} of {world_size}: {those} did not reach the barrier before the deadline");
    match told {
        None => Ok(()),
        Some((Ok(_), looks)) => bail!(
            "{of}, but `barrier` returned Ok afterward; expected an error that names {those}\n  this rank \
             read the clock {}: on every rank, the waits for both events must end at the deadline",
            if *looks == 1 { "once".to_owned() } else { format!("{looks} times") }
        ),
        Some((Err(text), _)) => {
            let numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
            let mut named: Vec<usize> = numbers.filter(|&number: &usize| number < world_size).collect();
            named.sort_unstable();
            named.dedup();
            let unsigned = register.missing();
            let others: Vec<usize> = named
                .iter()
                .copied()
                .filter(|named| !late.contains(named) && unsigned.contains(named))
                .collect();
            let signed = late.iter().find(|late| !named.contains(late) && !unsigned.contains(late));
            let cause = match signed {
                _ if !others.is_empty() => format!(
                    "\n  likely cause: ranks {others:?} have not signed, although their GPUs have arrived: a rank \
                     signs as soon as its own GPU has arrived, not when all GPUs have"
                ),
                Some(late) => format!(
                    "\n  rank {late} has signed, so it does not seem to be missing; a rank signs only if its GPU arrived \
                     before the deadline"
                ),
                None => String::new(),
            };
            ensure!(
                named == late,
                "{of}, so the error must name {}, and no other; got: {text}{cause}",
                if late.len() == 1 { "that rank" } else { "those ranks" }
            );
            Ok(())
        }
    }
}

/// Helps a rank that would wait forever for the sum. That rank then calls `lateness`, so the ranks that gave up must
/// call it, too.
fn help_out(comm: &Comm, stuck: bool, told: &Told) -> anyhow::Result<()> {
    match stuck && matches!(told, Some((Err(_), _))) {
        true => lateness(comm, 0.0).map(drop),
        false => Ok(()),
    }
}

/// The state that the ranks of one barrier share.
struct Ranks {
    warm_up: Register,
    register: Register,
    start: Barrier,
    returned: Returned,
    rescue: OnceLock<bool>,
    end: Barrier,
}

impl Ranks {
    fn new(world_size: usize) -> Self {
        Self {
            warm_up: Register::new(world_size),
            register: Register::new(world_size),
            start: Barrier::new(world_size),
            returned: Returned::default(),
            rescue: OnceLock::new(),
            end: Barrier::new(world_size),
        }
    }

    /// Calls the barrier with this clock.
    fn call(&self, comm: &Comm, token: &mut CudaSlice<f32>, clock: impl Fn() -> Duration) -> Told {
        let looks = Cell::new(0);
        let counted = || {
            looks.set(looks.get() + 1);
            clock()
        };
        let told = barrier(comm, token, &self.register, counted, DEADLINE);
        Some((told.map_err(|error| error_text(&error)), looks.get()))
    }
}

pub(super) fn a_missing_rank_is_named_by_all() -> anyhow::Result<()> {
    for world_size in worlds() {
        let (missing, ranks) = ([world_size / 2], Ranks::new(world_size));
        let told = rendezvous(&lab::streams(world_size)?, |comm| {
            let rank = comm.rank();
            let (mut token, _kernels) = prepared(&comm, &ranks.warm_up)?;
            if missing.contains(&rank) {
                // If another rank would wait forever, the missing rank joins late, so that the check ends on any GPU.
                let stuck = !ranks.returned.are(world_size - 1);
                ranks.rescue.set(stuck).ok();
                if stuck {
                    ranks.call(&comm, &mut token, || Duration::ZERO);
                }
                ranks.end.wait();
                return Ok(None);
            }
            let clock = until_the_others_have_signed(&ranks.register, rank, &missing);
            let told = ranks.call(&comm, &mut token, clock);
            ranks.returned.one_more();
            let helped = help_out(&comm, *ranks.rescue.wait(), &told);
            ranks.end.wait();
            // The sum may be in flight, so the communicator is dropped first.
            drop(comm);
            helped.map(|()| told)
        })?;
        let judge = |(rank, told)| judge(rank, &missing, told, &ranks.register, world_size);
        told.iter().enumerate().try_for_each(judge)?;
    }
    Ok(())
}

pub(super) fn a_gpu_that_is_too_late_is_named_by_all() -> anyhow::Result<()> {
    for world_size in worlds() {
        // With three or more ranks, two are late.
        let mut late = vec![world_size / 2, world_size - 1];
        late.dedup();
        let ranks = Ranks::new(world_size);
        let told = rendezvous(&lab::streams(world_size)?, |comm| {
            let (mut token, kernels) = prepared(&comm, &ranks.warm_up)?;
            ranks.start.wait();
            let told = match late.contains(&comm.rank()) {
                true => called_late(&comm, &mut token, &kernels, &late, &ranks)?,
                false => called_in_time(&comm, &mut token, &late, &ranks),
            };
            let helped = help_out(&comm, *ranks.rescue.wait(), &told);
            // All ranks have made the call, so the work in flight completes.
            let done = comm.stream().synchronize();
            ranks.end.wait();
            helped?;
            done?;
            Ok(told)
        })?;
        let judge = |(rank, told)| judge(rank, &late, told, &ranks.register, world_size);
        told.iter().enumerate().try_for_each(judge)?;
    }
    Ok(())
}

/// Runs a rank whose GPU arrives too late.
fn called_late(
    comm: &Comm,
    token: &mut CudaSlice<f32>,
    kernels: &Kernels,
    late: &[usize],
    ranks: &Ranks,
) -> anyhow::Result<Told> {
    // The spin takes longer than the other ranks need to sign.
    kernels.spin(&comm.stream(), 100 * MILLISECOND)?;
    let looks = Cell::new(0);
    // The deadline passes as soon as the others have signed, but not at the first reading, because it is relative to
    // that.
    let told = ranks.call(comm, token, || {
        if looks.replace(looks.get() + 1) == 0 {
            return Duration::ZERO;
        }
        wait_for_the_others(&ranks.register, late, RESCUE);
        LONG_AFTER
    });
    ranks.returned.one_more();
    ranks.rescue.set(!ranks.returned.are(comm.world_size())).ok();
    Ok(told)
}

/// Runs a rank whose GPU has arrived, and which is waiting for the late ranks' GPUs.
fn called_in_time(comm: &Comm, token: &mut CudaSlice<f32>, late: &[usize], ranks: &Ranks) -> Told {
    let others = until_the_others_have_signed(&ranks.register, comm.rank(), late);
    let told = ranks.call(comm, token, || {
        let time = others();
        if time == LONG_AFTER {
            ranks.returned.are(late.len());
        }
        time
    });
    ranks.returned.one_more();
    told
}
