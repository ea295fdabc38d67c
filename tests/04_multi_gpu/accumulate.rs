//! Checks for `multi_gpu/accumulate`: accumulating a batch in pieces leads to the same result, with one collective.

use std::cell::RefCell;
use std::ops::Range;

use anyhow::{anyhow, bail};
use approx::abs_diff_eq;
use init::rendezvous::rendezvous;
use lab::digits::{Digits, Samples};
use lab::{Budget, Check, Expected, NcclLog, Perceptron, each_call_fails, ensure};

use super::whole_batch::{
    HIDDEN, LEARNING_RATE, SEED, Step, alone_on, another_rate, batches, piece, steps, times, to_its_end,
};
use crate::multi_gpu::accumulate::Accumulator;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("accumulate::each_step_is_that_of_the_whole_batch", each_step_is_that_of_the_whole_batch)
            .calls(&["Accumulator::step"]),
        Check::new("accumulate::uneven_pieces_count_by_their_samples", uneven_pieces_count_by_their_samples)
            .calls(&["Accumulator::step"])
            .min_ranks(2),
        Check::new("accumulate::a_step_has_one_all_reduce", a_step_has_one_all_reduce)
            .calls(&["Accumulator::step"])
            .min_ranks(2),
        Check::new("accumulate::the_pieces_cost_no_extra_waits", the_pieces_cost_no_extra_waits).min_ranks(3),
        Check::new("accumulate::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// The number of micro-batches per rank in the even runs.
const PIECES: usize = 4;
/// The number of samples per micro-batch in the even runs.
const SAMPLES: usize = 5;

/// A function that returns a rank's micro-batches of a batch.
type Cut = fn(batch: &Range<usize>, rank: usize, world_size: usize) -> Vec<Range<usize>>;

fn evenly(batch: &Range<usize>, rank: usize, world_size: usize) -> Vec<Range<usize>> {
    let own = piece(batch, rank, world_size);
    (0..PIECES).map(|index| piece(&own, index, PIECES)).collect()
}

/// Divides a batch so that rank r has r + 1 pieces, whose lengths differ from those on other ranks.
fn unevenly(batch: &Range<usize>, rank: usize, world_size: usize) -> Vec<Range<usize>> {
    let own = piece(batch, rank, world_size);
    (0..=rank).map(|index| piece(&own, index, rank + 1)).collect()
}

/// The results of one rank's step.
struct Made {
    loss: f32,
    parameters: Vec<f32>,
}

/// Trains, and returns each rank's steps.
fn train(
    samples: &Samples,
    batches: &[Range<usize>],
    world_size: usize,
    cut: Cut,
) -> anyhow::Result<Vec<Vec<Made>>> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let on_gpu = samples.to_device(&stream)?;
        let own: Vec<_> = batches.iter().map(|batch| cut(batch, rank, world_size)).collect();
        // The model has room for the longest micro-batch, but not for all of a rank's samples in one pass.
        let room = own.iter().flatten().map(Range::len).max().unwrap_or(1).max(1);
        let mut model = Perceptron::new(&stream, HIDDEN, room, SEED)?;
        let mut accumulator = Accumulator::new(&model)?;
        let mut made = Vec::new();
        for (batch, own) in batches.iter().zip(&own) {
            let loss = accumulator.step(&comm, &mut model, &on_gpu, own, batch.len(), LEARNING_RATE)?;
            made.push(Made { loss, parameters: stream.clone_dtoh(&model.parameters())? });
        }
        stream.synchronize()?;
        Ok(made)
    })
}

fn each_step_is_that_of_the_whole_batch() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        compare(world_size, &[PIECES * SAMPLES * world_size; 2], evenly)?;
    }
    Ok(())
}

fn uneven_pieces_count_by_their_samples() -> anyhow::Result<()> {
    // If each piece had its own collective, ranks with more pieces would wait here for ranks that have finished.
    a_step_has_one_all_reduce()?;
    for world_size in lab::world_sizes() {
        // In the shortest batches, some micro-batches are empty, and some ranks have only empty ones.
        compare(world_size, &[53, 31, 2, 1], unevenly)?;
    }
    Ok(())
}

fn compare(world_size: usize, lengths: &[usize], cut: Cut) -> anyhow::Result<()> {
    let samples = Digits::load()?.train;
    let batches = batches(lengths);
    let ranks = train(&samples, &batches, world_size, cut)?;
    let most = (0..world_size).map(|rank| cut(&batches[0], rank, world_size).len()).sum();
    let mut earlier = vec![0.0; ranks[0][0].parameters.len()];
    let mut earlier_loss = 0.0;
    for (index, step) in steps(&samples, &batches, most).iter().enumerate() {
        let place = format!("world size {world_size}, step {} (samples {:?})", index + 1, step.batch);
        for (rank, made) in ranks.iter().enumerate() {
            let cuts: Vec<_> = (0..world_size).map(|rank| cut(&step.batch, rank, world_size)).collect();
            let attempt =
                Attempt { samples: &samples, step, cuts: &cuts, rank, earlier: &earlier, earlier_loss };
            attempt
                .compare_parameters(&made[index])
                .and_then(|()| attempt.compare_loss(made[index].loss))
                .map_err(|error| anyhow!("{place}, {error}"))?;
        }
        for (rank, made) in ranks.iter().enumerate() {
            Expected::new(rank, "the parameter buffer, compared with rank 0's,", &ranks[0][index].parameters)
                .exactly(&made[index].parameters)
                .map_err(|error| anyhow!("{place}, {error}"))?;
        }
        earlier.iter_mut().zip(&step.gradient).for_each(|(sum, slope)| *sum += slope);
        earlier_loss += step.loss;
    }
    Ok(())
}

/// A rank's step, with the data for its expected result and for the results of known mistakes.
struct Attempt<'a> {
    samples: &'a Samples,
    step: &'a Step,
    /// Each rank's micro-batches.
    cuts: &'a [Vec<Range<usize>>],
    rank: usize,
    /// The sum of the gradients of earlier steps.
    earlier: &'a [f64],
    /// The sum of the losses of earlier steps.
    earlier_loss: f64,
}

impl Attempt<'_> {
    fn world_size(&self) -> f64 {
        self.cuts.len() as f64
    }

    /// Returns the loss and gradient of these micro-batches. Each sample is weighted by its share of the batch.
    fn by_samples(&self, pieces: &[Range<usize>]) -> (f64, Vec<f64>) {
        let batch = self.step.batch.len() as f64;
        let weighted = pieces.iter().map(|piece| (piece.clone(), piece.len() as f64 / batch));
        self.step.sum(self.samples, &weighted.collect::<Vec<_>>())
    }

    /// Returns the loss and gradient of all micro-batches. The weight depends on the rank's micro-batches.
    fn each_as(&self, weight: impl Fn(&[Range<usize>]) -> f64) -> (f64, Vec<f64>) {
        let weighted = self.cuts.iter().flat_map(|own| own.iter().map(|piece| (piece.clone(), weight(own))));
        self.step.sum(self.samples, &weighted.collect::<Vec<_>>())
    }

    /// Returns the loss and gradient of only the last micro-batch of each rank.
    fn of_last(&self) -> (f64, Vec<f64>) {
        let last: Vec<_> = self.cuts.iter().flat_map(|own| own.last().cloned()).collect();
        self.by_samples(&last)
    }

    fn of_own(&self) -> (f64, Vec<f64>) {
        self.by_samples(&self.cuts[self.rank])
    }

    /// Returns the result if each micro-batch's mean is not weighted by its size.
    fn unscaled(&self) -> (f64, Vec<f64>) {
        self.each_as(|_| 1.0 / self.world_size())
    }

    fn mean_of_means(&self) -> (f64, Vec<f64>) {
        self.each_as(|own| 1.0 / (self.world_size() * own.len() as f64))
    }

    /// Returns the result if each rank's mean counts the same, no matter how many samples the rank has.
    fn mean_of_rank_means(&self) -> (f64, Vec<f64>) {
        let weighted = self.cuts.iter().flat_map(|own| {
            let samples: usize = own.iter().map(Range::len).sum();
            let of_all = samples as f64 * self.world_size();
            own.iter().map(move |piece| (piece.clone(), piece.len() as f64 / of_all))
        });
        self.step.sum(self.samples, &weighted.collect::<Vec<_>>())
    }

    fn scale_is_forgotten(&self) -> String {
        format!(
            "the means of this rank's {} micro-batches were added without a scale. In the mean over the batch, each \
             sample counts for 1 / {}",
            self.cuts[self.rank].len(),
            self.step.batch.len()
        )
    }

    fn compare_parameters(&self, made: &Made) -> anyhow::Result<()> {
        let (step, world_size, got) = (self.step, self.world_size(), &made.parameters);
        let right = step.after();
        let mut expected = Expected::new(self.rank, "the parameter buffer", &right).if_instead(
            &step.unchanged(),
            "the parameters are unchanged: there was no update, or the gradient was 0",
        );
        if world_size > 1.0 {
            let of_own = self.of_own().1;
            expected = expected
                .if_instead(
                    &step.along(&times(&step.gradient, world_size)),
                    "the step is too long by a factor of the number of ranks: the gradients were summed, not averaged",
                )
                .if_instead(
                    &step.along(&times(&step.gradient, 1.0 / world_size)),
                    "averaged twice: both the average and the weight divide by the world size",
                )
                .if_instead(
                    &step.along(&self.mean_of_rank_means().1),
                    "this is the mean of the ranks' means, but a rank with more samples must count for more",
                )
                .if_instead(&step.along(&of_own), "this is only the rank's own part of the average: the other ranks' parts are missing")
                .if_instead(
                    &step.along(&times(&of_own, world_size)),
                    "the step follows the rank's own gradient: nothing was averaged over the ranks",
                );
        }
        let with_earlier: Vec<f64> =
            step.gradient.iter().zip(self.earlier).map(|(new, old)| new + old).collect();
        expected = expected
            .if_instead(
                &step.along(&self.of_last().1),
                "it includes only the last micro-batch: `backward` replaces the gradients instead of adding to them",
            )
            .if_instead(&step.along(&self.unscaled().1), self.scale_is_forgotten())
            .if_instead(
                &step.along(&self.mean_of_means().1),
                "this is the mean of the micro-batches' means, but a longer micro-batch must count for more",
            )
            .if_instead(
                &step.along(&with_earlier),
                "it also includes the gradients from earlier steps: `total` was not cleared",
            );
        // If the loss is wrong, too, the gradient is scaled rather than the rate.
        if step.has_loss(made.loss) {
            let (rate, at_that_rate) = step.rate_of(got);
            expected = expected.if_instead(&at_that_rate, another_rate(rate));
        }
        expected.within(step.bound, got)
    }

    fn compare_loss(&self, got: f32) -> anyhow::Result<()> {
        let Self { step, rank, .. } = self;
        let alike = |loss: f64| abs_diff_eq!(f64::from(got), loss, epsilon = step.loss_bound);
        if step.has_loss(got) {
            return Ok(());
        }
        let (own, count) = (self.of_own().0, self.world_size());
        let of_own = "it is this rank's own loss: average it like the gradient";
        let mut candidates = vec![
            (self.of_last().0, "it includes only the last micro-batch".to_owned()),
            (own, of_own.to_owned()),
            (own * count, of_own.to_owned()),
            (step.loss * count, format!("it is the correct loss times {count}, the world size")),
            (step.loss / count, format!("it is the correct loss divided by {count}, the world size")),
            (self.unscaled().0, self.scale_is_forgotten()),
            (
                self.mean_of_means().0,
                "it is the mean of the micro-batches' means, but a longer micro-batch must count for more"
                    .to_owned(),
            ),
        ];
        if self.earlier_loss > 0.0 {
            let earlier = "it also includes the losses from earlier steps: the loss is the last element of `total`, \
                           which was not cleared";
            candidates.push((self.earlier_loss + step.loss, earlier.to_owned()));
        }
        // If several mistakes lead to this loss, it does not tell which one was made.
        let mut causes: Vec<String> =
            candidates.into_iter().filter(|(loss, _)| alike(*loss)).map(|(_, cause)| cause).collect();
        causes.dedup();
        let cause = match causes.as_slice() {
            [cause] => format!("\n  likely cause: {cause}"),
            _ => String::new(),
        };
        bail!("rank {rank}: the loss is {got}, expected {:.6}{cause}", step.loss)
    }
}

fn a_step_has_one_all_reduce() -> anyhow::Result<()> {
    // SAFETY: the check has not started any other threads yet.
    let log = unsafe { NcclLog::open() };
    let samples = Digits::load()?.train;
    let mut before = 0;
    for world_size in lab::world_sizes() {
        let batches = batches(&[PIECES * SAMPLES * world_size; 3]);
        let len = train(&samples, &batches, world_size, evenly)?[0][0].parameters.len();
        let calls = log.calls("AllReduce")?;
        let new = &calls[before..];
        let (made, expected) = (new.len(), world_size * batches.len());
        // Reducing a gradient in parts may lead to the same number of calls.
        let whole = new.iter().all(|&count| count == len || count == len + 1);
        let cause = match made {
            _ if whole && made == expected * PIECES => {
                "\n  likely cause: the gradients are reduced after each micro-batch: sum them first, and then reduce \
                 the sum"
            }
            _ if whole && made == expected * (PIECES + 1) => {
                "\n  likely cause: each micro-batch is reduced, and then their sum is reduced again"
            }
            _ => "",
        };
        ensure!(
            made == expected,
            "world size {world_size}: {} steps of {PIECES} micro-batches made {made} calls to AllReduce, expected \
             {expected}, one for each rank and step{cause}",
            batches.len()
        );
        let short = new.iter().find(|&&count| count != len + 1);
        ensure!(
            short.is_none(),
            "an AllReduce had {} elements, expected {}, for all gradients and the loss",
            short.copied().unwrap_or(0),
            len + 1
        );
        before = calls.len();
    }
    Ok(())
}

fn the_pieces_cost_no_extra_waits() -> anyhow::Result<()> {
    const BATCH: Range<usize> = 3..40;
    let samples = Digits::load()?.train;
    rendezvous(&lab::streams(3)?, |comm| {
        let on_gpu = samples.to_device(&comm.stream())?;
        let own = evenly(&BATCH, comm.rank(), comm.world_size());
        let mut model = Perceptron::new(&comm.stream(), HIDDEN, BATCH.len(), SEED)?;
        let mut accumulator = Accumulator::new(&model)?;
        let len = model.parameters().len() + 1;
        // The forward and backward passes take 15 kernels, and the sum takes one more.
        Budget::of("Accumulator::step")
            .collectives(&[("AllReduce", len)])
            .messages(0)
            .kernels((PIECES * 18 + 4) as u64)
            .bytes_to_device(0)
            .bytes_to_host(size_of::<f32>() as u64)
            .allocations(2)
            .host_waits(0)
            .polls(0)
            .communicators(0)
            .stream_of(&comm)
            .spend(|| accumulator.step(&comm, &mut model, &on_gpu, &own, BATCH.len(), LEARNING_RATE))?;
        Ok(comm.stream().synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    const BATCH: Range<usize> = 3..8;
    let samples = Digits::load()?.train;
    let stream = lab::streams(1)?.remove(0);
    let on_gpu = samples.to_device(&stream)?;
    let model = Perceptron::new(&stream, HIDDEN, BATCH.len(), SEED)?;
    let accumulator = Accumulator::new(&model)?;
    let run = RefCell::new((accumulator, model));
    each_call_fails("Accumulator::step", || {
        let (comm, run, on_gpu) = (alone_on(&stream)?, &run, &on_gpu);
        Ok(move || {
            let (accumulator, model) = &mut *run.borrow_mut();
            to_its_end(&comm, || accumulator.step(&comm, model, on_gpu, &[BATCH], BATCH.len(), LEARNING_RATE))
        })
    })
}
