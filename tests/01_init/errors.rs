//! Checks for `init/errors`.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::bail;
use cudarc::nccl::{Comm, Id, ReduceOp};
use lab::explain::error_text;
use lab::{
    Budget, Check, Expected, Guarded, Readable, each_call_fails, each_rank, ensure, irregular, named_ranks,
    without_panic, world_of_one,
};

use crate::init::errors::together;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("errors::without_a_failure_all_communicate", without_a_failure_all_communicate)
            .calls(&["together"]),
        Check::new("errors::every_rank_learns_who_failed", every_rank_learns_who_failed)
            .calls(&["together"])
            .min_ranks(2),
        Check::new("errors::a_failed_rank_keeps_its_own_error", a_failed_rank_keeps_its_own_error)
            .calls(&["together"]),
        Check::new("errors::prepared_resources_are_released", prepared_resources_are_released)
            .calls(&["together"]),
        Check::new("errors::the_next_attempt_succeeds", the_next_attempt_succeeds).calls(&["together"]),
        Check::new("errors::the_ranks_decide_once", the_ranks_decide_once).min_ranks(2),
        Check::new("errors::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const LEN: usize = 1031;

/// Runs each rank in its own thread, with a communicator.
fn on_each_rank<T: Send>(
    world_size: usize,
    work: impl Fn(&Comm) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let streams = lab::streams(world_size)?;
    let id = Id::new().readable()?;
    each_rank(world_size, |rank| {
        streams[rank].context().bind_to_thread()?;
        work(&Comm::from_rank(streams[rank].clone(), rank, world_size, id).readable()?)
    })
}

/// The error of a failed preparation. Its type tells it from another error with the same text.
#[derive(Debug)]
struct DiskFull {
    machine: usize,
}

impl std::fmt::Display for DiskFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the disk on machine {} is full", self.machine)
    }
}

impl std::error::Error for DiskFull {}

/// The outcome of one rank's attempt.
struct Outcome {
    /// The result of `together`, with any error as text.
    result: Result<Vec<f32>, String>,
    /// Whether the error is that of `prepare` itself, perhaps with context.
    is_own_error: bool,
    /// Whether the rank communicated.
    communicated: bool,
    /// The number of owners that the prepared value still has.
    owners: usize,
}

/// Makes an attempt in which preparation fails on the ranks in `failing`. The other ranks prepare a buffer, and sum it
/// over all ranks.
fn attempt(comm: &Comm, failing: &[usize]) -> anyhow::Result<Outcome> {
    let (rank, stream) = (comm.rank(), comm.stream());
    let values = irregular::integers(rank, LEN);
    let token = Arc::new(());
    let owner = token.clone();
    let mut communicated = false;
    let work = || {
        together(
            comm,
            || {
                let prepared = (Guarded::new(&stream, &values)?, owner);
                if failing.contains(&rank) {
                    return Err(DiskFull { machine: 700 + rank }.into());
                }
                Ok(prepared)
            },
            |(mut buffer, _owner)| {
                communicated = true;
                comm.all_reduce_in_place(&mut buffer.view_mut(), &ReduceOp::Sum).readable()?;
                buffer.read()
            },
        )
    };
    let result = match failing {
        [] => work(),
        _ => without_panic(&format!("`together` when preparation fails on ranks {failing:?}"), work)?,
    };
    let is_own_error = result.as_ref().is_err_and(|error| error.downcast_ref::<DiskFull>().is_some());
    let result = result.map_err(|error| error_text(&error));
    Ok(Outcome { result, is_own_error, communicated, owners: Arc::strong_count(&token) - 1 })
}

/// Compares an outcome with the expected one if preparation fails on the ranks in `failing`.
fn judge(rank: usize, world_size: usize, failing: &[usize], outcome: &Outcome) -> anyhow::Result<()> {
    if let Err(text) = &outcome.result
        && text.contains("nccl")
    {
        // Without a call of `communicate`, the error is that of the ranks' exchange of results.
        let wrong = match outcome.communicated {
            true => "`communicate` was called, although preparation failed",
            false => "the ranks' exchange of results failed after preparation failed",
        };
        bail!(
            "rank {rank} of {world_size}: {wrong} on {}\n  a rank may only communicate once it knows that preparation \
             succeeded on every rank; all ranks must take part in finding out. NCCL returned:\n{text}",
            named_ranks(failing)
        );
    }
    match (&outcome.result, failing.contains(&rank)) {
        (Ok(sums), _) if failing.is_empty() => {
            let expected = (0..world_size).map(|rank| irregular::integers(rank, LEN));
            let expected: Vec<f32> = expected
                .reduce(|one, other| one.iter().zip(other).map(|(one, other)| one + other).collect())
                .unwrap_or_default();
            Expected::new(rank, "the sum over all ranks", &expected).exactly(sums)
        }
        (Ok(_), _) => bail!(
            "rank {rank} of {world_size}: `together` returned Ok, although preparation failed on ranks {failing:?}; \
             expected an error"
        ),
        (Err(text), _) if failing.is_empty() => {
            bail!(
                "rank {rank} of {world_size}: preparation succeeded on every rank, but `together` returned an error: {text}"
            )
        }
        (Err(text), _) if outcome.communicated => bail!(
            "rank {rank} of {world_size}: `together` communicated, although preparation failed on ranks {failing:?}; \
             it must not start. Its error: {text}"
        ),
        (Err(text), true) => {
            let own = DiskFull { machine: 700 + rank }.to_string();
            ensure!(
                text.contains(&own),
                "rank {rank} of {world_size}: preparation failed here with `{own}`, so the error from `together` must \
                 contain that; got the error: {text}"
            );
            ensure!(
                outcome.is_own_error,
                "rank {rank} of {world_size}: `together` must return the error from `prepare` itself, but returned a new \
                 error that only has its text: a caller can no longer find the error's type or its causes"
            );
            Ok(())
        }
        (Err(text), false) => {
            let named: HashSet<usize> =
                text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
            ensure!(
                failing.iter().all(|failed| named.contains(failed)),
                "rank {rank} of {world_size}: the error from `together` must name {}, which failed; got the \
                 error: {text}",
                named_ranks(failing)
            );
            Ok(())
        }
    }
}

/// Makes attempts in each world with at least `least` ranks, with several sets of failing ranks.
fn attempts(
    least: usize,
    judge: impl Fn(usize, usize, &[usize], &Outcome) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= least) {
        let last = world_size - 1;
        for failing in [vec![last], vec![0], (0..world_size).collect(), (0..world_size).step_by(2).collect()]
        {
            let outcomes = on_each_rank(world_size, |comm| attempt(comm, &failing))?;
            for (rank, outcome) in outcomes.iter().enumerate() {
                judge(rank, world_size, &failing, outcome)?;
            }
        }
    }
    Ok(())
}

fn without_a_failure_all_communicate() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let outcomes = on_each_rank(world_size, |comm| attempt(comm, &[]))?;
        for (rank, outcome) in outcomes.iter().enumerate() {
            judge(rank, world_size, &[], outcome)?;
        }
    }
    Ok(())
}

fn every_rank_learns_who_failed() -> anyhow::Result<()> {
    attempts(2, judge)
}

fn a_failed_rank_keeps_its_own_error() -> anyhow::Result<()> {
    attempts(1, |rank, world_size, failing, outcome| match failing.contains(&rank) {
        true => judge(rank, world_size, failing, outcome),
        false => Ok(()),
    })
}

fn prepared_resources_are_released() -> anyhow::Result<()> {
    attempts(1, |rank, world_size, failing, outcome| {
        ensure!(
            outcome.owners == 0,
            "rank {rank} of {world_size}: `together` has returned, but the prepared value has not been dropped, \
             although preparation failed on ranks {failing:?}"
        );
        Ok(())
    })
}

fn the_next_attempt_succeeds() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        for failing in [vec![world_size - 1], vec![0]] {
            let outcomes =
                on_each_rank(world_size, |comm| Ok((attempt(comm, &failing)?, attempt(comm, &[])?)))?;
            for (rank, (first, second)) in outcomes.iter().enumerate() {
                judge(rank, world_size, &failing, first)?;
                judge(rank, world_size, &[], second)?;
            }
        }
    }
    Ok(())
}

fn the_ranks_decide_once() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|size| (2..=3).contains(size)) {
        for failing in [vec![], vec![world_size - 1]] {
            on_each_rank(world_size, |comm| {
                let budget = Budget::of("together").collectives(&[("AllReduce", world_size)]).messages(0);
                budget.communicators(0).spend(|| {
                    let prepare = || {
                        ensure!(!failing.contains(&comm.rank()), "the disk is full");
                        Ok(())
                    };
                    Ok(together(comm, prepare, |()| Ok(())).is_ok())
                })
            })?;
        }
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("together", || {
        let comm = world_of_one()?;
        let stream = comm.stream();
        let mut buffer = stream.alloc_zeros::<f32>(37)?;
        Ok(move || together(&comm, || Ok(()), |()| Ok(stream.memset_zeros(&mut buffer)?)))
    })
}
