//! Checks for `scale/one_sided`: a plate whose ranks write into their neighbors' halos.
//!
//! Each element is the average of two others, so every rank and one host compute the same bits.

use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use cudarc::driver::CudaStream;
use cudarc::nccl::Id;
use lab::{
    Budget, Check, Expected, HostGroup, Kernels, OneSidedComm, Readable, each_call_fails, each_rank, ensure,
    irregular, returns_at_once,
};

use crate::scale::one_sided::Plate;

pub(crate) fn checks() -> Vec<Check> {
    let checks = vec![
        Check::new("one_sided::the_first_halos_are_complete", the_first_halos_are_complete)
            .calls(&["Plate::exchange", "Plate::step"])
            .min_ranks(2),
        Check::new("one_sided::the_next_halos_are_complete", the_next_halos_are_complete)
            .calls(&["Plate::step"])
            .min_ranks(2),
        Check::new("one_sided::every_step_is_that_of_one_gpu", every_step_is_that_of_one_gpu)
            .calls(&["Plate::step"])
            .min_ranks(3),
        Check::new("one_sided::a_slow_rank_finds_its_halos", a_slow_rank_finds_its_halos)
            .calls(&["Plate::step"])
            .min_ranks(3),
        Check::new("one_sided::one_rank_is_a_world_too", || plates(1)).calls(&["Plate::step"]),
        Check::new("one_sided::the_host_does_not_wait", the_host_does_not_wait)
            .calls(&["Plate::step"])
            .min_ranks(2),
        Check::new("one_sided::a_step_is_one_put_per_neighbor", a_step_is_one_put_per_neighbor).min_ranks(3),
        Check::new("one_sided::a_failed_call_is_an_error", a_failed_call_is_an_error).min_ranks(2),
    ];
    checks.into_iter().map(Check::puts_into_windows).collect()
}

const ROWS: usize = 3;
/// More than one block of a kernel, and odd.
const WIDTH: usize = 261;
const STEPS: usize = 7;

/// Returns the values at the start, of all rows.
fn start(world_size: usize) -> Vec<f32> {
    irregular::fractions(world_size, world_size * ROWS * WIDTH)
}

/// What the halos of a rank have before a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Halos {
    /// The neighbors' outermost rows.
    Right,
    /// Zeros.
    Empty,
    /// Right above; zeros below.
    OnlyAbove,
    /// Right below; zeros above.
    OnlyBelow,
    /// Right, and the last row above the first one, and the first row below the last one.
    Around,
    /// The neighbors' rows on the far side.
    FarRows,
    /// What the neighbor below sent is above, and the other way around.
    Swapped,
}

/// Takes one step on the host.
fn step(values: &[f32], world_size: usize, halos: Halos) -> Vec<f32> {
    let rows = world_size * ROWS;
    let row = |of: &[f32], row: Option<usize>| match row {
        Some(row) => of[row * WIDTH..(row + 1) * WIDTH].to_vec(),
        None => vec![0.0; WIDTH],
    };
    let mut next = Vec::with_capacity(values.len());
    for at in 0..rows {
        let (above, below) = (at.checked_sub(1), Some(at + 1).filter(|&below| below < rows));
        let (is_first, is_last) = (at % ROWS == 0, at % ROWS == ROWS - 1);
        let outer = |is_edge: bool, right: Option<usize>, is_above: bool| -> Vec<f32> {
            let (far, other) = match is_above {
                true => (at.checked_sub(ROWS), Some(at + ROWS).filter(|&row| row < rows)),
                false => (Some(at + ROWS).filter(|&row| row < rows), at.checked_sub(ROWS)),
            };
            match halos {
                _ if !is_edge => row(values, right),
                Halos::Right => row(values, right),
                Halos::Empty => row(values, None),
                Halos::OnlyAbove => row(values, right.filter(|_| is_above)),
                Halos::OnlyBelow => row(values, right.filter(|_| !is_above)),
                Halos::Around => row(values, right.or(Some(if is_above { rows - 1 } else { 0 }))),
                Halos::FarRows => row(values, far),
                Halos::Swapped => row(values, other),
            }
        };
        let (above, below) = (outer(is_first, above, true), outer(is_last, below, false));
        next.extend(above.iter().zip(&below).map(|(above, below)| 0.5 * above + 0.5 * below));
    }
    next
}

/// Returns the values after a number of steps on the host. All steps but the first `right` ones have these halos.
fn after(steps: usize, world_size: usize, right: usize, halos: Halos) -> Vec<f32> {
    (0..steps).fold(start(world_size), |values, number| {
        step(&values, world_size, if number < right { Halos::Right } else { halos })
    })
}

/// Returns a rank's part of all rows.
fn part(values: &[f32], rank: usize) -> &[f32] {
    &values[rank * ROWS * WIDTH..(rank + 1) * ROWS * WIDTH]
}

/// Compares a rank's rows after a number of steps with those of the host, and with those that known mistakes lead to.
fn compare(rank: usize, world_size: usize, steps: usize, got: &[f32]) -> anyhow::Result<()> {
    let right = after(steps, world_size, steps, Halos::Right);
    let plural = if steps == 1 { "" } else { "s" };
    let name = format!("the plate after {steps} step{plural}, with world size {world_size},");
    let mut expected = Expected::new(rank, &name, part(&right, rank));
    let mistakes = [
        (Halos::Empty, "the halos are 0: no row had been put into them by then, or one that is 0"),
        (Halos::OnlyAbove, "the halo below is 0: the neighbor below must put its first row there"),
        (Halos::OnlyBelow, "the halo above is 0: the neighbor above must put its last row there"),
        (Halos::Around, "the first and the last rank are neighbors, but the plate ends there"),
        (Halos::FarRows, "each neighbor put its row on the far side, not the one next to this rank"),
        (Halos::Swapped, "each row was put into the halo on the wrong side"),
    ];
    for (halos, cause) in mistakes {
        for right in 0..steps.min(2) {
            expected = expected.if_instead(part(&after(steps, world_size, right, halos), rank), cause);
        }
    }
    if let Some(before) = steps.checked_sub(1) {
        let behind = after(before, world_size, before, Halos::Right);
        expected = expected.if_instead(part(&behind, rank), "they are one step behind");
    }
    expected.exactly(got)
}

/// One rank in a check.
struct Case<'a> {
    comm: &'a OneSidedComm,
    group: &'a HostGroup,
}

impl Case<'_> {
    /// Waits until every rank has enqueued its work. A rank that waits for its stream earlier may hide a race.
    fn all_have_enqueued(&self) -> anyhow::Result<()> {
        self.group.all_gather(self.comm.rank(), Vec::new()).map(drop)
    }
}

/// Runs `work` on every rank of a world, with a plate. The windows stay until all ranks are done, even if some fail.
fn on_all_ranks(
    world_size: usize,
    work: impl Fn(&Case<'_>, &mut Plate) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let (streams, id) = (lab::streams(world_size)?, Id::new().readable()?);
    let group = HostGroup::new(world_size);
    each_rank(world_size, |rank| {
        let comm = OneSidedComm::from_rank(streams[rank].clone(), rank, world_size, id)?;
        let all = start(world_size);
        let mut plate = Plate::new(&comm, ROWS, WIDTH, part(&all, rank));
        let worked = match &mut plate {
            Ok(plate) => work(&Case { comm: &comm, group: &group }, plate),
            Err(_) => Ok(()),
        };
        let waited = comm.stream().synchronize();
        // A rank that is missing here has panicked, which is reported.
        let _ = group.all_gather(rank, Vec::new());
        let _plate = plate?;
        // Another rank's put may have raced with this rank's work, and then this call fails. That explains wrong
        // values.
        waited.and_then(|()| comm.stream().synchronize())?;
        worked
    })?;
    Ok(())
}

fn the_first_halos_are_complete() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        on_all_ranks(world_size, |case, plate| {
            plate.step(case.comm)?;
            case.all_have_enqueued()?;
            compare(case.comm.rank(), world_size, 1, &plate.read(case.comm)?)
        })?;
    }
    Ok(())
}

fn the_next_halos_are_complete() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        on_all_ranks(world_size, |case, plate| {
            let comm = case.comm;
            plate.step(comm)?;
            plate.step(comm)?;
            case.all_have_enqueued()?;
            ensure!(
                plate.steps == 2,
                "rank {}: `steps` is {} after 2 steps; expected 2",
                comm.rank(),
                plate.steps
            );
            compare(comm.rank(), world_size, 2, &plate.read(comm)?)
        })?;
    }
    Ok(())
}

fn every_step_is_that_of_one_gpu() -> anyhow::Result<()> {
    lab::world_sizes().into_iter().try_for_each(plates)
}

/// Compares the plate after each step.
fn plates(world_size: usize) -> anyhow::Result<()> {
    on_all_ranks(world_size, |case, plate| {
        let comm = case.comm;
        for steps in 0..=STEPS {
            compare(comm.rank(), world_size, steps, &plate.read(comm)?)?;
            plate.step(comm)?;
        }
        Ok(())
    })
}

/// Makes many steps in a row, in which another rank is slow each time. No host waits in between, so only signals
/// order the ranks.
fn a_slow_rank_finds_its_halos() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size > 1) {
        on_all_ranks(world_size, |case, plate| {
            let comm = case.comm;
            let kernels = Kernels::load(comm.stream().context())?;
            for step in 0..STEPS {
                delay(&kernels, &comm.stream(), (step * 2) % world_size == comm.rank())?;
                plate.step(comm)?;
            }
            case.all_have_enqueued()?;
            compare(comm.rank(), world_size, STEPS, &plate.read(comm)?)
        })?;
    }
    Ok(())
}

fn delay(kernels: &Kernels, stream: &CudaStream, is_slow: bool) -> anyhow::Result<()> {
    if is_slow { kernels.spin(stream, 20_000) } else { Ok(()) }
}

fn the_host_does_not_wait() -> anyhow::Result<()> {
    on_all_ranks(2, |case, plate| {
        returns_at_once("Plate::step", &case.comm.stream(), || plate.step(case.comm))
    })
}

fn a_step_is_one_put_per_neighbor() -> anyhow::Result<()> {
    on_all_ranks(3, |case, plate| {
        let comm = case.comm;
        let stream = comm.stream();
        let budget = Budget::of("Plate::step")
            .puts(if comm.rank() == 1 { 2 } else { 1 })
            .messages(0)
            .any_collectives(0)
            .communicators(0)
            .allocations(0)
            .copies(0)
            .host_waits(0)
            .polls(0)
            // The zeros that the two sums start from.
            .fills(1)
            .kernels(2)
            .streams(&[(&stream, "the communicator's stream")]);
        budget.spend(|| plate.step(comm))
    })
}

/// The other rank of two, which has sent its signals in advance. It makes no further call, so it never waits for a
/// call that has failed.
struct Neighbor {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Neighbor {
    /// Starts the rank, which sends more signals than the first halos and one step need.
    fn new(rank: usize, id: Id) -> anyhow::Result<Self> {
        let (end, ended) = channel();
        let stream = lab::streams(2)?.remove(rank);
        let work = move || {
            let comm = OneSidedComm::from_rank(stream, rank, 2, id)?;
            let _window = comm.window(2 * (ROWS + 2) * WIDTH)?;
            (0..4).try_for_each(|_| comm.signal(1 - rank))?;
            comm.stream().synchronize()?;
            // Its window stays until the other rank is done, and the sender is dropped.
            let _ = ended.recv();
            Ok(())
        };
        Ok(Self { end: Some(end), thread: Some(thread::spawn(work)) })
    }
}

impl Drop for Neighbor {
    fn drop(&mut self) {
        drop(self.end.take());
        // If it has failed, so has the other rank.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    for rank in [0, 1] {
        each_call_fails("Plate::step", || {
            let id = Id::new().readable()?;
            let neighbor = Neighbor::new(1 - rank, id)?;
            let comm = OneSidedComm::from_rank(lab::streams(2)?.remove(rank), rank, 2, id)?;
            let mut plate = Plate::new(&comm, ROWS, WIDTH, part(&start(2), rank))?;
            comm.stream().synchronize()?;
            Ok(move || {
                let stepped = plate.step(&comm);
                // Nothing may be in flight when the neighbor's window is dropped. Other checks report an error of the
                // work.
                let _ = comm.stream().synchronize();
                drop((plate, neighbor));
                stepped
            })
        })?;
    }
    Ok(())
}
