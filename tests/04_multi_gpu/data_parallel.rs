//! Checks for `multi_gpu/data_parallel`: for every world size, training on many GPUs leads to the same result as
//! training on one GPU with entire batches.

mod diagnosis;
mod training;

use std::cell::RefCell;
use std::ops::Range;

use anyhow::bail;
use approx::{abs_diff_eq, abs_diff_ne};
use init::rendezvous::rendezvous;
use lab::digits::Digits;
use lab::perceptron::Layout;
use lab::{Budget, Check, Perceptron, each_call_fails, ensure};

use super::whole_batch::{alone_on, to_its_end};
use crate::multi_gpu::data_parallel::{shard, start_equal, step};
use diagnosis::likely_cause;
use training::{HIDDEN, LEARNING_RATE, Serial, Training, seed};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("data_parallel::shards_cover_the_batch_without_gaps_or_overlap", shards_are_the_batch)
            .calls(&["shard"]),
        Check::new("data_parallel::every_replica_starts_with_rank_0s_parameters", replicas_start_equal)
            .calls(&["start_equal"])
            .min_ranks(2),
        Check::new("data_parallel::each_step_is_that_of_one_gpu", each_step_is_that_of_one_gpu)
            .calls(&["step"])
            .min_ranks(2),
        Check::new(
            "data_parallel::uneven_shards_count_by_their_samples",
            uneven_shards_count_by_their_samples,
        )
        .calls(&["step"])
        .min_ranks(2),
        Check::new("data_parallel::replicas_are_bit_identical_after_every_step", replicas_are_bit_identical)
            .calls(&["step"])
            .min_ranks(2),
        Check::new("data_parallel::the_loss_is_that_of_the_whole_batch", the_loss_is_that_of_the_whole_batch)
            .calls(&["step"])
            .min_ranks(2),
        Check::new("data_parallel::a_step_is_one_all_reduce", a_step_is_one_all_reduce).min_ranks(3),
        Check::new("data_parallel::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

fn shards_are_the_batch() -> anyhow::Result<()> {
    for world_size in 1..=9 {
        for batch in [0..40, 100..113, 7..15, 3..6, 5..6, 9..9, 1000..1257] {
            let shards: Vec<_> = (0..world_size).map(|rank| shard(batch.clone(), rank, world_size)).collect();
            let told = format!("batch {batch:?} on {world_size} ranks: the shards are {shards:?}");
            let same = shards.iter().all(|shard| *shard == shards[0]);
            ensure!(world_size == 1 || batch.is_empty() || !same, "{told}: every rank has the same shard");
            let mut next = batch.start;
            for (rank, shard) in shards.iter().enumerate() {
                if shard.is_empty() && shard.start == shard.end {
                    continue;
                }
                let (start, end) = (shard.start, shard.end);
                ensure!(start < end, "{told}: rank {rank}'s shard ends before it starts");
                ensure!(
                    start >= batch.start && end <= batch.end,
                    "{told}: rank {rank}'s shard extends outside the batch{}",
                    if end <= batch.len() { "; it would be right for a batch that starts at 0" } else { "" }
                );
                ensure!(start <= next, "{told}: samples {next}..{start} are not in any shard");
                ensure!(start >= next, "{told}: samples {start}..{next} are in two shards");
                next = end;
            }
            let (each, rest) = (batch.len() / world_size, batch.len() % world_size);
            let rounded_down = batch.end - next == rest && shards.iter().all(|shard| shard.len() == each);
            ensure!(
                next == batch.end,
                "{told}: samples {next}..{} are not in any shard{}",
                batch.end,
                if rounded_down { "; the remainder of the division is lost" } else { "" }
            );
            let lengths = shards.iter().map(Range::len);
            let (least, most) = (lengths.clone().min().unwrap_or(0), lengths.max().unwrap_or(0));
            ensure!(
                most - least <= 1,
                "{told}: the longest has {most} samples, but the shortest has {least}; spread the remainder"
            );
        }
    }
    Ok(())
}

/// Returns whether these are the averages of the ranks' initial parameters, which are below 1.
fn is_average(start: &[f32], initial: &[Vec<f32>]) -> bool {
    start.iter().enumerate().all(|(index, &value)| {
        let sum: f64 = initial.iter().map(|initial| f64::from(initial[index])).sum();
        (f64::from(value) - sum / initial.len() as f64).abs() < 1e-6
    })
}

fn replicas_start_equal() -> anyhow::Result<()> {
    let layout = Layout { hidden: HIDDEN };
    for world_size in lab::world_sizes() {
        let starts = rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            let mut model = Perceptron::new(&stream, HIDDEN, 1, seed(comm.rank()))?;
            start_equal(&comm, &mut model)?;
            let parameters = stream.clone_dtoh(&model.parameters())?;
            stream.synchronize()?;
            Ok(parameters)
        })?;
        let initial: Vec<Vec<f32>> = (0..world_size).map(|rank| layout.initial(seed(rank))).collect();
        for (rank, start) in starts.iter().enumerate() {
            let Some(index) = first_difference(start, &initial[0]) else { continue };
            let cause = match initial.iter().position(|initial| first_difference(start, initial).is_none()) {
                Some(own) if own == rank => {
                    "\nthe rank still has its own parameters: nothing was broadcast".to_owned()
                }
                Some(other) => format!("\nthese are rank {other}'s parameters, but the root is rank 0"),
                None if is_average(start, &initial) => {
                    "\nthese are the averages of all ranks' parameters: broadcast rank 0's instead".to_owned()
                }
                None => String::new(),
            };
            bail!(
                "world size {world_size}, rank {rank}: parameter {index} ({}) starts as {}, expected {}, as on rank \
                 0{cause}",
                layout.part(index),
                start[index],
                initial[0][index]
            );
        }
    }
    Ok(())
}

fn each_step_is_that_of_one_gpu() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        equals_one_gpu(&Training::even(world_size)?)?;
    }
    Ok(())
}

fn uneven_shards_count_by_their_samples() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        equals_one_gpu(&Training::uneven(world_size)?)?;
    }
    Ok(())
}

/// Compares every parameter of every rank with the serial run after each step.
fn equals_one_gpu(training: &Training) -> anyhow::Result<()> {
    let layout = Layout { hidden: HIDDEN };
    let serial = Serial::of(training);
    for step in 0..training.batches.len() {
        let bound = training.bound(step + 1);
        for (rank, replica) in training.replicas.iter().enumerate() {
            let pairs = replica.steps[step].parameters.iter().zip(&serial.steps[step].parameters);
            let off = |(_, (got, expected)): &(usize, (&f32, &f64))| {
                abs_diff_ne!(f64::from(**got), **expected, epsilon = bound)
            };
            if let Some((index, (got, expected))) = pairs.enumerate().find(off) {
                bail!(
                    "{}, rank {rank}: parameter {index} ({}) is {got}, expected {expected:.7}\noff by {:.1e}; rounding \
                     explains at most {bound:.1e}{}",
                    training.place(step),
                    layout.part(index),
                    (f64::from(*got) - expected).abs(),
                    said(likely_cause(training, rank, step))
                );
            }
        }
    }
    Ok(())
}

/// Formats a cause on a separate line.
fn said(cause: Option<String>) -> String {
    cause.map_or_else(String::new, |cause| format!("\nlikely cause: {cause}"))
}

fn replicas_are_bit_identical() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let training = Training::uneven(world_size)?;
        for step in 0..training.batches.len() {
            let first = &training.replicas[0].steps[step];
            for (rank, replica) in training.replicas.iter().enumerate() {
                let own = &replica.steps[step];
                if let Some(index) = first_difference(&own.parameters, &first.parameters) {
                    // Either of the two replicas may be wrong.
                    let right = |rank: &usize| {
                        let serial = Serial::of(&training);
                        let pairs = training.replicas[*rank].steps[step].parameters.iter();
                        pairs.zip(&serial.steps[step].parameters).all(|(got, expected)| {
                            abs_diff_eq!(f64::from(*got), *expected, epsilon = training.bound(step + 1))
                        })
                    };
                    let cause = [rank, 0].into_iter().find(|rank| !right(rank)).and_then(|wrong| {
                        Some(format!("on rank {wrong}, {}", likely_cause(&training, wrong, step)?))
                    });
                    bail!(
                        "{}: parameter {index} is {} on rank {rank} but {} on rank 0; expected the same bits{}",
                        training.place(step),
                        own.parameters[index],
                        first.parameters[index],
                        said(cause)
                    );
                }
                if own.loss.to_bits() != first.loss.to_bits() {
                    let serial = &Serial::of(&training).steps[step];
                    let cause = [rank, 0].into_iter().find_map(|rank| {
                        let loss = training.replicas[rank].steps[step].loss.into();
                        let cause = diagnosis::of_loss(&training, step, loss, serial)?;
                        Some(format!("on rank {rank}, {cause}"))
                    });
                    bail!(
                        "{}: the loss is {} on rank {rank} but {} on rank 0; expected the same bits{}",
                        training.place(step),
                        own.loss,
                        first.loss,
                        said(cause)
                    );
                }
            }
        }
    }
    Ok(())
}

fn the_loss_is_that_of_the_whole_batch() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let training = Training::uneven(world_size)?;
        let serial = Serial::of(&training);
        for step in 0..training.batches.len() {
            let expected = &serial.steps[step];
            let bound = training.loss_bound(step + 1, expected);
            for (rank, replica) in training.replicas.iter().enumerate() {
                let got = f64::from(replica.steps[step].loss);
                let off = (got - expected.loss).abs();
                ensure!(
                    abs_diff_eq!(got, expected.loss, epsilon = bound),
                    "{}, rank {rank}: the loss is {got:.6}, expected {:.6}\noff by {off:.1e}; rounding explains at \
                     most {bound:.1e}{}",
                    training.place(step),
                    expected.loss,
                    said(diagnosis::of_loss(&training, step, got, expected))
                );
            }
        }
    }
    Ok(())
}

/// Returns the first index at which the bits of two buffers of equal length differ.
fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())
}

fn a_step_is_one_all_reduce() -> anyhow::Result<()> {
    // Two ranks have five samples each, and one rank has four.
    const BATCH: Range<usize> = 3..17;
    let samples = Digits::load()?.train;
    rendezvous(&lab::streams(3)?, |comm| {
        let stream = comm.stream();
        let samples = samples.to_device(&stream)?;
        let mut model = Perceptron::new(&stream, HIDDEN, BATCH.len(), seed(comm.rank()))?;
        let len = model.parameters().len();
        let budget = |function: &str| Budget::of(function).messages(0).communicators(0).bytes_to_device(0);
        budget("start_equal")
            .collectives(&[("Broadcast", len)])
            .kernels(0)
            .bytes_to_host(0)
            .host_waits(0)
            .stream_of(&comm)
            .spend(|| start_equal(&comm, &mut model))?;
        // A forward pass, a backward pass, and the step take 16 kernels.
        budget("step")
            .collectives(&[("AllReduce", len + 1)])
            .kernels(20)
            .bytes_to_host(size_of::<f32>() as u64)
            .stream_of(&comm)
            .spend(|| step(&comm, &mut model, &samples, BATCH, LEARNING_RATE))?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    const BATCH: Range<usize> = 3..8;
    let samples = Digits::load()?.train;
    let stream = lab::streams(1)?.remove(0);
    let samples = samples.to_device(&stream)?;
    let model = RefCell::new(Perceptron::new(&stream, HIDDEN, BATCH.len(), seed(0))?);
    // A single rank may have nothing to broadcast, so one run covers both functions.
    each_call_fails("start_equal` or `step", || {
        let (comm, model, samples) = (alone_on(&stream)?, &model, &samples);
        Ok(move || {
            to_its_end(&comm, || {
                start_equal(&comm, &mut model.borrow_mut())?;
                step(&comm, &mut model.borrow_mut(), samples, BATCH, LEARNING_RATE)
            })
        })
    })
}
