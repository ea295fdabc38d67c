//! Checks for `multi_gpu/sharded_optimizer`: the parts of an optimizer update the parameters as a single optimizer
//! would.
//!
//! Parameters and gradients are integers; the learning rate and the momentum are negative powers of 2. If the world
//! size is also a power of 2, an average does not round. In that case, all numbers are exact for the few steps made
//! here.

use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, each_call_fails, ensure, irregular, returns_at_once, world_of_one,
};

use crate::multi_gpu::sharded_optimizer::{ShardedOptimizer, padded_len};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("sharded_optimizer::a_padded_length_has_equal_parts", padded_lengths)
            .calls(&["padded_len"]),
        Check::new("sharded_optimizer::each_rank_remembers_its_part_alone", each_rank_remembers_its_part)
            .calls(&["ShardedOptimizer::new"])
            .min_ranks(2),
        Check::new("sharded_optimizer::each_step_is_that_of_one_optimizer", each_step_is_that_of_one)
            .calls(&["ShardedOptimizer::step"])
            .min_ranks(2),
        Check::new("sharded_optimizer::replicas_stay_bit_identical", replicas_stay_identical)
            .calls(&["ShardedOptimizer::step"])
            .min_ranks(2),
        Check::new("sharded_optimizer::one_rank_is_a_world_too", one_rank_is_a_world_too)
            .calls(&["ShardedOptimizer::step"]),
        Check::new("sharded_optimizer::a_step_returns_at_once", a_step_returns_at_once)
            .calls(&["ShardedOptimizer::step"])
            .min_ranks(2),
        Check::new("sharded_optimizer::a_step_is_two_collectives", a_step_is_two_collectives).min_ranks(3),
        Check::new("sharded_optimizer::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const STEPS: usize = 5;
const LEARNING_RATE: f32 = 0.25;
/// The fraction of its velocity that the exercise's optimizer keeps in each step.
const MOMENTUM: f32 = 0.5;
/// The numbers of parameters: two that few world sizes divide, one that most divide, and one that is smaller than most
/// world sizes.
const LENGTHS: [usize; 4] = [37, 60, 1031, 3];

fn padded_lengths() -> anyhow::Result<()> {
    for world_size in 1..=9 {
        for len in [0, 1, 2, 3, 8, 10, 37, 60, 1031, (1 << 24) + 1, (1 << 53) + 1] {
            let padded = padded_len(len, world_size);
            let in_floats = (len as f32 / world_size as f32).ceil() as usize * world_size;
            let told = format!("{len} parameters with world size {world_size}: a padded length of {padded}");
            ensure!(
                padded >= len,
                "{told} is {} too short{}",
                len - padded,
                match (padded == len / world_size * world_size && len % world_size > 0, padded == in_floats) {
                    (true, _) => ": the remainder of the division needs room, too",
                    (false, true) => ": an f32 does not hold this number, so compute with integers",
                    (false, false) => "",
                }
            );
            ensure!(
                padded.is_multiple_of(world_size),
                "{told} can't be divided into {world_size} equal parts"
            );
            ensure!(padded - len < world_size, "{told}, but {} would be enough", padded - world_size);
        }
    }
    Ok(())
}

fn each_rank_remembers_its_part() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        for len in LENGTHS {
            rendezvous(&lab::streams(world_size)?, |comm| {
                let padded = divisible(len, world_size);
                let bytes = ShardedOptimizer::new(&comm, padded)?.momentum.bytes();
                let expected = padded / world_size * size_of::<f32>();
                let cause = match bytes {
                    _ if bytes == padded * size_of::<f32>() => {
                        "\n  likely cause: it keeps the velocities for all parameters, but each rank updates only its \
                         own part"
                    }
                    _ => "",
                };
                ensure!(
                    bytes == expected,
                    "rank {} of {world_size}: for buffers of {padded} parameters, the optimizer keeps {bytes} bytes, \
                     expected {expected}{cause}",
                    comm.rank()
                );
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Returns the first length from `len` on that the world size divides.
fn divisible(len: usize, world_size: usize) -> usize {
    (len..).find(|len| len.is_multiple_of(world_size)).unwrap_or(len)
}

/// Runs on one rank, and returns the parameters after each step.
fn run(comm: &Comm, len: usize, gradient: fn(usize, usize) -> Vec<f32>) -> anyhow::Result<Vec<Vec<f32>>> {
    let (stream, rank) = (comm.stream(), comm.rank());
    // The check pads the parameters itself. Another check reports wrong padding.
    let padded = |mut values: Vec<f32>| {
        values.resize(divisible(len, comm.world_size()), 0.0);
        values
    };
    let mut parameters = Guarded::new(&stream, &padded(irregular::integers(0, len)))?;
    let mut optimizer = ShardedOptimizer::new(comm, padded(Vec::new()).len())?;
    let mut steps = Vec::new();
    for step in 0..STEPS {
        let own = padded(gradient(seed(step, rank), len));
        let on_gpu = Guarded::new(&stream, &own)?;
        optimizer.step(comm, &mut parameters.view_mut(), &on_gpu.view(), LEARNING_RATE)?;
        steps.push(parameters.read()?[..len].to_vec());
        Expected::new(rank, "the gradient, which the step must only read,", &own).exactly(&on_gpu.read()?)?;
    }
    Ok(steps)
}

/// Returns a seed that is different on each rank and in each step.
fn seed(step: usize, rank: usize) -> usize {
    1 + 100 * step + rank
}

/// A single optimizer, with the entire gradient or the gradient that a known mistake leads to.
#[derive(Clone)]
struct Serial {
    parameters: Vec<f64>,
    velocity: Vec<f64>,
}

impl Serial {
    fn new(len: usize) -> Self {
        let parameters = irregular::integers(0, len).into_iter().map(f64::from).collect();
        Self { parameters, velocity: vec![0.0; len] }
    }

    /// Takes a step with `of_sum` times the sum of these ranks' gradients.
    fn step(&mut self, step: usize, ranks: std::ops::Range<usize>, of_sum: f64) {
        let gradients: Vec<_> =
            ranks.map(|rank| irregular::integers(seed(step, rank), self.parameters.len())).collect();
        for (index, (parameter, velocity)) in self.parameters.iter_mut().zip(&mut self.velocity).enumerate() {
            let sum: f64 = gradients.iter().map(|gradient| f64::from(gradient[index])).sum();
            *velocity = f64::from(MOMENTUM) * *velocity + of_sum * sum;
            *parameter -= f64::from(LEARNING_RATE) * *velocity;
        }
    }

    fn values(&self) -> Vec<f32> {
        self.parameters.iter().map(|&value| value as f32).collect()
    }
}

/// Returns a bound on the error of a parameter after this many steps. It is 0 if the world size is a power of 2.
/// Otherwise, an average of numbers up to 1000 rounds 1 / n, n products, and n − 1 sums. Each of them rounds by 2⁻²⁴ of
/// at most 1000. A velocity of at most 2000 and a parameter below 4000 round twice per step. In each step, a quarter of
/// a velocity's error carries over to the parameters, and the error itself halves. So half of it carries over in total.
fn bound(world_size: usize, steps: usize) -> f64 {
    if world_size.is_power_of_two() {
        return 0.0;
    }
    let unit = f64::powi(2.0, -24);
    let average = 1000.0 * (2.0 * world_size as f64 + 1.0);
    steps as f64 * unit * (0.5 * (average + 2.0 * 2000.0) + 2.0 * 4000.0)
}

fn each_step_is_that_of_one() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        for len in LENGTHS {
            let ranks = rendezvous(&lab::streams(world_size)?, |comm| run(&comm, len, irregular::integers))?;
            let gathered = ranks.iter().all(|steps| *steps == ranks[0]);
            for (rank, steps) in ranks.iter().enumerate() {
                compare(world_size, len, rank, gathered, steps)?;
            }
        }
    }
    Ok(())
}

fn one_rank_is_a_world_too() -> anyhow::Result<()> {
    let ranks = rendezvous(&lab::streams(1)?, |comm| run(&comm, 37, irregular::integers))?;
    compare(1, 37, 0, true, &ranks[0])
}

/// Compares a rank's steps. If `gathered`, all ranks have the same parameters, right or wrong.
fn compare(
    world_size: usize,
    len: usize,
    rank: usize,
    gathered: bool,
    steps: &[Vec<f32>],
) -> anyhow::Result<()> {
    let mut serial = Serial::new(len);
    for (step, got) in steps.iter().enumerate() {
        let name = format!(
            "after step {} of {STEPS} with {world_size} rank{}, the buffer with {len} parameters",
            step + 1,
            if world_size == 1 { "" } else { "s" }
        );
        let before = serial.clone();
        serial.step(step, 0..world_size, 1.0 / world_size as f64);
        let right = serial.values();
        let mut expected = Expected::new(rank, &name, &right);
        if world_size > 1 {
            expected = with_mistakes(expected, &before, &right, step, (rank, world_size), gathered);
        }
        if step > 0 {
            let mut forgetful = Serial { velocity: vec![0.0; len], ..before };
            forgetful.step(step, 0..world_size, 1.0 / world_size as f64);
            expected =
                expected.if_instead(&forgetful.values(), "the velocities were forgotten between steps");
        }
        expected.within(bound(world_size, step + 1), got)?;
    }
    Ok(())
}

/// Adds the results of mistakes that need several ranks, if they differ from `right`. `before` is the state before the
/// step.
fn with_mistakes<'a>(
    expected: Expected<'a, f32>,
    before: &Serial,
    right: &[f32],
    step: usize,
    (rank, world_size): (usize, usize),
    gathered: bool,
) -> Expected<'a, f32> {
    let part = right.len().div_ceil(world_size);
    let of = |rank: usize| (rank * part).min(right.len())..((rank + 1) * part).min(right.len());
    let aside = |ranks, of_sum| {
        let mut other = before.clone();
        other.step(step, ranks, of_sum);
        other.values()
    };
    let unaveraged: Vec<f32> =
        (0..world_size).flat_map(|rank| aside(rank..rank + 1, 1.0)[of(rank)].to_vec()).collect();
    let before = before.values();
    // Combines `inside` in this rank's part with `outside` elsewhere.
    let joined = |inside: &[f32], outside: &[f32]| {
        let mut values = outside.to_vec();
        values[of(rank)].copy_from_slice(&inside[of(rank)]);
        values
    };
    let stepped_alone = match gathered {
        true => format!(
            "only rank {rank}'s part of the parameters was updated: each rank must update its own part"
        ),
        false => "only this rank's own part is new, and the other parts are from before the step: gather the parts after the update"
            .to_owned(),
    };
    expected
        .if_instead(&before, "the parameters are unchanged: there was no update, or the gradient was 0")
        .if_instead(&joined(right, &before), stepped_alone)
        .if_instead(
            &joined(&before, right),
            "the rank's own part is from before the step: gather after the step, not before it",
        )
        .if_instead(
            &aside(0..world_size, 1.0),
            format!("the step is {world_size} times as long: the gradients were summed, not averaged, or the learning rate was multiplied"),
        )
        .if_instead(&unaveraged, "each rank stepped with its own gradient: nothing was averaged")
}

fn replicas_stay_identical() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let ranks = rendezvous(&lab::streams(world_size)?, |comm| run(&comm, 1031, irregular::fractions))?;
        for step in 0..STEPS {
            for (rank, steps) in ranks.iter().enumerate() {
                let name = format!("the parameter buffer after step {}, compared with rank 0's,", step + 1);
                Expected::new(rank, &name, &ranks[0][step]).exactly(&steps[step])?;
            }
        }
    }
    Ok(())
}

fn a_step_returns_at_once() -> anyhow::Result<()> {
    const LEN: usize = 60;
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let mut parameters = Guarded::new(&stream, &irregular::integers(0, LEN))?;
        let gradient = Guarded::new(&stream, &irregular::integers(seed(0, rank), LEN))?;
        let mut optimizer = ShardedOptimizer::new(&comm, LEN)?;
        returns_at_once("ShardedOptimizer::step", &stream, || {
            optimizer.step(&comm, &mut parameters.view_mut(), &gradient.view(), LEARNING_RATE)
        })
    })?;
    Ok(())
}

fn a_step_is_two_collectives() -> anyhow::Result<()> {
    const PART: usize = 37;
    rendezvous(&lab::streams(3)?, |comm| {
        let (rank, stream, len) = (comm.rank(), comm.stream(), PART * comm.world_size());
        let mut parameters = stream.clone_htod(&irregular::integers(0, len))?;
        let gradient = stream.clone_htod(&irregular::integers(seed(0, rank), len))?;
        let budget = |function: &str| {
            let budget = Budget::of(function).messages(0).communicators(0).bytes_to_host(0);
            budget.host_waits(0).stream_of(&comm)
        };
        let mut optimizer = budget("ShardedOptimizer::new")
            .collectives(&[])
            .allocations(2)
            .spend(|| ShardedOptimizer::new(&comm, len))?;
        budget("ShardedOptimizer::step")
            .collectives(&[("ReduceScatter", PART), ("AllGather", PART)])
            .kernels(3)
            .bytes_to_device(0)
            .spend(|| {
                let (mut parameters, gradient) = (parameters.as_view_mut(), gradient.as_view());
                optimizer.step(&comm, &mut parameters, &gradient, LEARNING_RATE)
            })?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    const LEN: usize = 37;
    each_call_fails("ShardedOptimizer::new", || {
        let comm = world_of_one()?;
        Ok(move || ShardedOptimizer::new(&comm, LEN).map(drop))
    })?;
    each_call_fails("ShardedOptimizer::step", || {
        let comm = world_of_one()?;
        let mut optimizer = ShardedOptimizer::new(&comm, LEN)?;
        let mut parameters = comm.stream().alloc_zeros::<f32>(LEN)?;
        let gradient = comm.stream().alloc_zeros::<f32>(LEN)?;
        Ok(move || {
            optimizer.step(&comm, &mut parameters.as_view_mut(), &gradient.as_view(), LEARNING_RATE)?;
            Ok(comm.stream().synchronize()?)
        })
    })
}
