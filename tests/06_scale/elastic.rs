//! Checks for `scale/elastic`: training continues after ranks are lost, exactly as on one GPU.
//!
//! The loss of each sample is a linear function of the weights plus half of their squares. Weights and slopes are
//! integers, and all factors are powers of 2, so nothing rounds in the few steps taken here, in any order.

mod processes;
mod supervisor;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::bail;
use cudarc::driver::{CudaEvent, CudaSlice, CudaView, CudaViewMut};
use cudarc::nccl::Id;
use lab::{
    Budget, Check, ElasticComm, Expected, Kernels, Readable, each_call_fails, each_rank, ensure, irregular,
};
use multi_gpu::data_parallel::shard;

use self::supervisor::{Loss, Supervisor};
use crate::scale::elastic::{Model, Replica, Watch};

pub(crate) fn checks() -> Vec<Check> {
    let checks = vec![
        Check::new("elastic::without_a_loss_it_trains_like_one_gpu", without_a_loss),
        Check::new("elastic::a_lost_rank_is_left_behind", a_lost_rank_is_left_behind).min_ranks(2),
        Check::new("elastic::a_rank_that_missed_a_sum_catches_up", a_rank_that_missed_a_sum_catches_up)
            .min_ranks(3),
        Check::new("elastic::a_second_loss_is_survived_too", a_second_loss_is_survived_too).min_ranks(3),
        Check::new("elastic::a_killed_process_is_left_behind", processes::a_killed_process_is_left_behind)
            .process(processes::train_as_a_process)
            .min_ranks(processes::WORLD_SIZE),
        Check::new("elastic::a_step_is_one_sum", a_step_is_one_sum).min_ranks(2),
        Check::new("elastic::an_error_of_the_watch_is_returned", an_error_of_the_watch_is_returned),
        Check::new("elastic::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ];
    checks.into_iter().map(|check| check.calls(&["Replica::train"]).shrinks_communicators()).collect()
}

/// More than one block of a kernel, and odd.
const LEN: usize = 261;
const STEPS: u64 = 6;
const SAMPLES: usize = 16;
/// With 16 samples, a quarter of each weight is subtracted in a step.
const LEARNING_RATE: f32 = 0.25;
/// How long a rank waits for the others, or for a sum that arrives. Before either, NCCL may create a communicator, which
/// takes up to 2 s; four times that is for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(8);

fn start() -> Vec<f32> {
    irregular::small_integers(0, LEN)
}

/// Returns the slopes of a sample in a step.
fn slopes(step: u64, sample: usize) -> Vec<f32> {
    irregular::small_integers(1 + 100 * step as usize + sample, LEN)
}

/// Takes a step on the host, with these samples.
fn descend(weights: &mut [f64], step: u64, samples: impl Iterator<Item = usize>) {
    let samples: Vec<Vec<f32>> = samples.map(|sample| slopes(step, sample)).collect();
    for (index, weight) in weights.iter_mut().enumerate() {
        let sum: f64 = samples.iter().map(|slopes| f64::from(slopes[index]) + *weight).sum();
        *weight -= f64::from(LEARNING_RATE) / SAMPLES as f64 * sum;
    }
}

/// Returns the weights on one GPU before each step, and after the last one.
fn serial() -> Vec<Vec<f32>> {
    let mut weights: Vec<f64> = start().into_iter().map(f64::from).collect();
    let mut curve = vec![start()];
    for step in 0..STEPS {
        descend(&mut weights, step, 0..SAMPLES);
        curve.push(weights.iter().map(|&weight| weight as f32).collect());
    }
    curve
}

/// One rank: its model, and its connection to the supervisor.
struct Member<'a> {
    supervisor: &'a Supervisor,
    /// Its number in the first communicator.
    rank: usize,
    kernels: Kernels,
    /// The slopes of all samples of each step.
    slopes: Vec<CudaSlice<f32>>,
    /// The latest step, and the number of losses that this rank knows of.
    step: Cell<u64>,
    losses: Cell<usize>,
    /// The weights that each attempt of a step started with.
    curve: RefCell<Vec<(u64, Vec<f32>)>>,
    /// What was wrong with the step after a loss.
    problem: RefCell<Option<String>>,
    /// The number of losses that this rank knew of in its last attempt.
    known: Cell<usize>,
    stream: std::sync::Arc<cudarc::driver::CudaStream>,
}

impl<'a> Member<'a> {
    fn new(comm: &ElasticComm, supervisor: &'a Supervisor) -> anyhow::Result<Self> {
        let stream = comm.stream();
        let of_step = |step| (0..SAMPLES).flat_map(|sample| slopes(step, sample)).collect::<Vec<f32>>();
        let slopes = (0..STEPS).map(|step| Ok(stream.clone_htod(&of_step(step))?));
        let slopes = slopes.collect::<anyhow::Result<_>>()?;
        let kernels = Kernels::load(stream.context())?;
        let (step, losses, curve) = (Cell::new(0), Cell::new(0), RefCell::default());
        let (problem, known, rank) = (RefCell::default(), Cell::new(0), comm.rank());
        Ok(Self { supervisor, rank, kernels, slopes, step, losses, curve, problem, known, stream })
    }
}

impl Model for Member<'_> {
    const SAMPLES: usize = SAMPLES;

    fn differentiate(
        &self,
        step: u64,
        samples: Range<usize>,
        weights: &CudaView<f32>,
        gradient: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        ensure!(
            step < STEPS,
            "rank {}: it takes step {step}, counted from 0, but there are only {STEPS} steps",
            self.rank
        );
        self.step.set(step);
        let losses = self.losses.get();
        if losses > self.known.replace(losses) {
            let Loss { rank: lost, steps, .. } = self.supervisor.losses[losses - 1];
            if step != steps {
                *self.problem.borrow_mut() = Some(format!(
                    "rank {}: after the loss of rank {lost}, it continues with step {step}; expected {steps}, because the ranks that \
                     are ahead have taken {steps} steps",
                    self.rank
                ));
            }
        }
        let (stream, count) = (&self.stream, samples.len() as f32);
        let now = stream.clone_dtoh(weights)?;
        stream.synchronize()?;
        self.curve.borrow_mut().push((step, now));
        stream.memset_zeros(gradient)?;
        for sample in samples {
            let slopes = self.slopes[step as usize].slice(sample * LEN..(sample + 1) * LEN);
            self.kernels.axpy(stream, gradient, &slopes, 1.0)?;
        }
        self.kernels.axpy(stream, gradient, weights, count)
    }
}

/// Waits for an event, at most this long.
fn completes(event: &CudaEvent, within: Duration) -> anyhow::Result<bool> {
    let since = Instant::now();
    while !event.try_is_complete()? {
        if since.elapsed() > within {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(true)
}

impl Watch for Member<'_> {
    fn arrives(&self, event: &CudaEvent) -> anyhow::Result<bool> {
        let Some(loss) = self.supervisor.losses.get(self.losses.get()) else {
            return completes(event, TIMEOUT);
        };
        if loss.late == Some(self.rank) && self.step.get() + 1 == loss.steps {
            // The sum arrives, but the deadline is over.
            event.synchronize()?;
            return Ok(false);
        }
        if self.step.get() < loss.steps {
            return completes(event, TIMEOUT);
        }
        // If NCCL knows that a rank's process has ended, it enqueues no sum, and the event completes.
        ensure!(
            self.supervisor.has_processes() || !completes(event, Duration::from_millis(10))?,
            "rank {}: the event that `arrives` received is complete, but the sum is not, because rank {} is missing: record the \
             event after the sum",
            self.rank,
            loss.rank
        );
        Ok(false)
    }

    fn lost(&self, rank: usize, world_size: usize) -> anyhow::Result<Vec<usize>> {
        let number = self.losses.get();
        let before = self.supervisor.left(number);
        let own = before.iter().position(|&other| other == self.rank);
        ensure!(
            (own, before.len()) == (Some(rank), world_size),
            "rank {} of the first communicator: `lost` is called for rank {rank} of {world_size}; it is now rank {} of {}",
            self.rank,
            own.unwrap_or_default(),
            before.len()
        );
        let Some(loss) = self.supervisor.losses.get(number) else {
            bail!("rank {}: `lost` is called, but no other rank is lost", self.rank);
        };
        self.losses.set(number + 1);
        self.supervisor.ask(number, self.rank)?;
        Ok(before.iter().position(|&other| other == loss.rank).into_iter().collect())
    }
}

/// Trains on this many ranks, with these losses, and compares each step with that of one GPU.
fn train(world_size: usize, losses: &[Loss]) -> anyhow::Result<()> {
    let supervisor = Supervisor::of_threads(world_size, losses);
    let (streams, id) = (lab::streams(world_size)?, Id::new().readable()?);
    each_rank(world_size, |rank| {
        let comm = ElasticComm::from_rank(streams[rank].clone(), rank, world_size, id)?;
        // As in a program that has been running for a while, connections are set up. Otherwise, a host might wait.
        comm.gather(0)?;
        let mut warm = comm.stream().alloc_zeros::<f32>(LEN)?;
        comm.sum(&mut warm.as_view_mut())?;
        let member = Member::new(&comm, &supervisor)?;
        let mut replica = Replica::new(&comm, &start())?;
        comm.stream().synchronize()?;
        let steps = losses.iter().find(|loss| loss.rank == rank).map_or(STEPS, |loss| loss.steps);
        let trained = replica.train(comm, &member, &member, steps, LEARNING_RATE);
        if let Some(problem) = member.problem.take() {
            bail!(problem);
        }
        let comm = trained?;
        let got = comm.stream().clone_dtoh(&replica.weights)?;
        comm.stream().synchronize()?;
        if steps < STEPS {
            // This rank is lost.
            return Ok(());
        }
        let left = supervisor.left(losses.len());
        ensure!(
            comm.world_size() == left.len() && replica.steps == STEPS,
            "rank {rank}: `train` returned a communicator with {} ranks after {} steps; expected {} ranks and {STEPS} steps",
            comm.world_size(),
            replica.steps,
            left.len()
        );
        compare(world_size, losses, &member, &got)
    })?;
    Ok(())
}

/// Compares the weights at each step, and at the end.
fn compare(world_size: usize, losses: &[Loss], member: &Member, last: &[f32]) -> anyhow::Result<()> {
    let right = serial();
    let losses: Vec<String> = losses
        .iter()
        .map(|loss| match loss.late {
            Some(late) => format!(
                ", of which rank {} is lost after {} steps, and rank {late} misses the last of them",
                loss.rank, loss.steps
            ),
            None => format!(", of which rank {} is lost after {} steps", loss.rank, loss.steps),
        })
        .collect();
    let situation =
        format!("with {world_size} rank{}{}", if world_size == 1 { "" } else { "s" }, losses.concat());
    let curve = member.curve.borrow();
    let at_end = (STEPS, last.to_vec());
    for (step, got) in curve.iter().chain([&at_end]) {
        let name = if *step == STEPS {
            format!("the weights after all steps, {situation},")
        } else {
            format!("the weights before step {step}, {situation},")
        };
        let mut expected = Expected::new(member.rank, &name, &right[*step as usize]);
        if let Some(behind) = step.checked_sub(1) {
            expected = expected
                .if_instead(&right[behind as usize], "they are one step behind: a step was counted, but not taken")
                .if_instead(&without_samples_of_the_lost(&right[behind as usize], behind, member), "the samples of the lost rank are missing: divide the samples among the remaining communicator's ranks");
        }
        if let Some(ahead) = right.get(*step as usize + 1) {
            expected =
                expected.if_instead(ahead, "they are one step ahead: a step was taken, but not counted");
        }
        let mut twice: Vec<f64> = right[*step as usize].iter().map(|&weight| f64::from(weight)).collect();
        if let Some(last) = step.checked_sub(1) {
            descend(&mut twice, last, 0..SAMPLES);
            let twice: Vec<f32> = twice.into_iter().map(|weight| weight as f32).collect();
            expected = expected.if_instead(&twice, format!("step {last} was taken twice"));
        }
        if world_size > 1 && member.supervisor.losses.iter().all(|loss| loss.steps >= *step) {
            expected = with_mistakes(expected, *step, &right, member.rank, world_size);
        }
        expected.exactly(got)?;
    }
    Ok(())
}

/// Adds the results of mistakes in the first step, if no rank is lost by then.
fn with_mistakes<'a>(
    expected: Expected<'a, f32>,
    step: u64,
    right: &[Vec<f32>],
    rank: usize,
    world_size: usize,
) -> Expected<'a, f32> {
    if step != 1 {
        return expected;
    }
    let after = |samples: &mut dyn Iterator<Item = usize>| -> Vec<f32> {
        let mut weights: Vec<f64> = right[0].iter().map(|&weight| f64::from(weight)).collect();
        descend(&mut weights, 0, samples);
        weights.into_iter().map(|weight| weight as f32).collect()
    };
    let of_rank = 1.0 / world_size as f32;
    let pairs = right[0].iter().zip(&right[1]);
    let divided: Vec<f32> = pairs.map(|(before, after)| before + of_rank * (after - before)).collect();
    expected
        .if_instead(
            &after(&mut shard(0..SAMPLES, rank, world_size)),
            "only this rank's samples count: sum the gradients over the ranks",
        )
        .if_instead(
            &after(&mut (0..world_size).flat_map(|_| 0..SAMPLES)),
            format!("each sample counts {world_size} times: the ranks divide the samples, and their gradients are summed once"),
        )
        .if_instead(
            &after(&mut (0..SAMPLES / world_size * world_size)),
            "the last samples are missing: some ranks need one more, because the number of ranks does not divide that of \
             the samples",
        )
        .if_instead(
            &divided,
            format!("the step is 1/{world_size} of the right one: `rate` already divides by all samples"),
        )
}

/// Returns the weights after a step in which the remaining ranks have only their old samples.
fn without_samples_of_the_lost(before: &[f32], step: u64, member: &Member) -> Vec<f32> {
    let Supervisor { world_size, losses, .. } = member.supervisor;
    let mut weights: Vec<f64> = before.iter().map(|&weight| f64::from(weight)).collect();
    let samples = (0..*world_size)
        .filter(|rank| losses.iter().all(|loss| loss.rank != *rank))
        .flat_map(|rank| shard(0..SAMPLES, rank, *world_size));
    descend(&mut weights, step, samples);
    weights.into_iter().map(|weight| weight as f32).collect()
}

fn without_a_loss() -> anyhow::Result<()> {
    lab::world_sizes().into_iter().try_for_each(|world_size| train(world_size, &[]))
}

fn a_lost_rank_is_left_behind() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size > 1) {
        let rank = world_size / 2;
        train(world_size, &[Loss { rank, steps: 2, late: None }])?;
    }
    let largest = lab::world_sizes().into_iter().max().unwrap_or(2);
    train(largest, &[Loss { rank: 0, steps: 0, late: None }])?;
    train(largest, &[Loss { rank: largest - 1, steps: STEPS - 1, late: None }])
}

fn a_rank_that_missed_a_sum_catches_up() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size > 2) {
        for late in [0, world_size - 1] {
            train(world_size, &[Loss { rank: 1, steps: 3, late: Some(late) }])?;
        }
    }
    Ok(())
}

fn a_second_loss_is_survived_too() -> anyhow::Result<()> {
    let world_size = lab::world_sizes().into_iter().max().unwrap_or(3);
    let late = if world_size > 3 { Some(world_size - 1) } else { None };
    train(world_size, &[Loss { rank: 0, steps: 1, late: None }, Loss { rank: 2, steps: 3, late }])
}

/// Trains on one rank without losses.
fn alone(steps: u64) -> anyhow::Result<impl FnOnce() -> anyhow::Result<()>> {
    let stream = lab::streams(1)?.remove(0);
    let comm = ElasticComm::from_rank(stream, 0, 1, Id::new().readable()?)?;
    let supervisor = Supervisor::of_threads(1, &[]);
    let mut replica = Replica::new(&comm, &start())?;
    comm.stream().synchronize()?;
    Ok(move || {
        let member = Member::new(&comm, &supervisor)?;
        let comm = replica.train(comm, &member, &member, steps, LEARNING_RATE)?;
        Ok(comm.stream().synchronize()?)
    })
}

fn a_step_is_one_sum() -> anyhow::Result<()> {
    let (streams, id) = (lab::streams(2)?, Id::new().readable()?);
    let supervisor = Supervisor::of_threads(2, &[]);
    each_rank(2, |rank| {
        let comm = ElasticComm::from_rank(streams[rank].clone(), rank, 2, id)?;
        let stream = comm.stream();
        let member = Member::new(&comm, &supervisor)?;
        let mut replica = Replica::new(&comm, &start())?;
        let budget = Budget::of("Replica::train").collectives(&[("AllReduce", LEN); 2]).messages(0);
        let budget = budget.communicators(0).streams(&[(&stream, "the communicator's stream")]);
        let comm = budget.spend(|| replica.train(comm, &member, &member, 2, LEARNING_RATE))?;
        Ok(comm.stream().synchronize()?)
    })?;
    Ok(())
}

fn an_error_of_the_watch_is_returned() -> anyhow::Result<()> {
    struct Broken;
    impl Watch for Broken {
        fn arrives(&self, event: &CudaEvent) -> anyhow::Result<bool> {
            event.synchronize()?;
            bail!("the clock has stopped")
        }

        fn lost(&self, _rank: usize, _world_size: usize) -> anyhow::Result<Vec<usize>> {
            bail!("`lost` was called")
        }
    }
    let stream = lab::streams(1)?.remove(0);
    let comm = ElasticComm::from_rank(stream.clone(), 0, 1, Id::new().readable()?)?;
    let supervisor = Supervisor::of_threads(1, &[]);
    let member = Member::new(&comm, &supervisor)?;
    let mut replica = Replica::new(&comm, &start())?;
    let text = match replica.train(comm, &member, &Broken, 1, LEARNING_RATE) {
        Ok(_) => "`Replica::train` returned Ok".to_owned(),
        Err(error) => format!("the error says: {}", lab::explain::error_text(&error)),
    };
    stream.synchronize()?;
    ensure!(
        text.contains("the clock has stopped"),
        "`arrives` returned an error, `the clock has stopped`, and `Replica::train` must return it\n  {text}"
    );
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("Replica::train", || alone(1))
}
