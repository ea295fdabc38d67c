//! Checks for `multi_gpu/single_process`: a single thread that scatters and gathers trains like one GPU.

use std::cell::RefCell;
use std::ops::Range;

use anyhow::{Context, anyhow};
use approx::abs_diff_eq;
use lab::digits::{Digits, PIXELS, Samples};
use lab::perceptron::HostPerceptron;
use lab::{Budget, Check, Expected, Kernels, each_call_fails, ensure, returns_at_once_on_each};

use super::whole_batch::{HIDDEN, LEARNING_RATE, SEED, Step, another_rate, batches, piece, steps, times};
use crate::multi_gpu::single_process::SingleProcess;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("single_process::all_replicas_are_refreshed", all_replicas_are_refreshed)
            .calls(&["SingleProcess::refresh"])
            .min_ranks(2),
        Check::new("single_process::each_step_is_that_of_one_gpu", each_step_is_that_of_one_gpu)
            .calls(&["SingleProcess::step"])
            .min_ranks(2),
        Check::new(
            "single_process::uneven_parts_count_by_their_samples",
            uneven_parts_count_by_their_samples,
        )
        .calls(&["SingleProcess::step"])
        .min_ranks(2),
        Check::new("single_process::bytes_through_gpu_0_are_counted", bytes_through_gpu_0)
            .calls(&["SingleProcess::step"])
            .min_ranks(2),
        Check::new("single_process::no_part_of_a_step_waits_on_the_host", no_part_waits_on_the_host)
            .calls(&["refresh", "scatter", "gather"])
            .copies_between_gpus()
            .min_ranks(2),
        Check::new("single_process::nothing_is_sent_twice", nothing_is_sent_twice).min_ranks(3),
        Check::new("single_process::a_failed_call_is_an_error", a_failed_call_is_an_error).min_ranks(2),
    ]
}

/// How long a GPU is kept busy, in nanoseconds, so that work that does not wait runs too early.
const SPIN: u64 = 1_000_000;

/// Creates a run on `count` GPUs, each with room for one part of a batch.
fn start(count: usize, batches: &[Range<usize>]) -> anyhow::Result<SingleProcess> {
    let room = batches.iter().map(|batch| batch.len().div_ceil(count)).max().unwrap_or(1);
    SingleProcess::new(&lab::streams(count)?, HIDDEN, room, SEED)
}

fn all_replicas_are_refreshed() -> anyhow::Result<()> {
    let initial = |index: usize| -> Vec<f32> {
        let model = HostPerceptron::new(HIDDEN, SEED + index as u64);
        model.parameters().iter().map(|&value| value as f32).collect()
    };
    for count in lab::world_sizes() {
        let mut run = start(count, &batches(&[count]))?;
        let mut right = initial(0);
        // The first replica's parameters have changed before the second refresh.
        for time in 1..=2 {
            for replica in &run.replicas[1..] {
                let stream = replica.model.stream();
                Kernels::load(stream.context())?.spin(stream, SPIN)?;
            }
            run.refresh()?;
            // At this time, the other GPUs are still busy, and their copies have not started.
            let changed: Vec<f32> = right.iter().map(|value| value * 2.0).collect();
            let first = &mut run.replicas[0].model;
            first.stream().clone().memcpy_htod(&changed, &mut first.parameters_mut())?;
            for (index, replica) in run.replicas.iter().enumerate().skip(1) {
                let got = replica.model.stream().clone_dtoh(&replica.model.parameters())?;
                let name = format!(
                    "the parameter buffer of replica {index}, after call {time} to `refresh` on {count} GPUs,"
                );
                Expected::of(&name, &right)
                    .if_instead(&initial(index), "it still has its old values: nothing was sent to it")
                    .if_instead(
                        &changed,
                        "these are GPU 0's later values: GPU 0 did not wait until its parameters were sent",
                    )
                    .exactly(&got)?;
            }
            right = changed;
        }
    }
    Ok(())
}

fn each_step_is_that_of_one_gpu() -> anyhow::Result<()> {
    for count in lab::world_sizes() {
        compare(count, &[9 * count; 3])?;
    }
    Ok(())
}

fn uneven_parts_count_by_their_samples() -> anyhow::Result<()> {
    for count in lab::world_sizes() {
        // In the shortest batches, some GPUs have no samples.
        compare(count, &[13, 31, 2, 1])?;
    }
    Ok(())
}

fn compare(count: usize, lengths: &[usize]) -> anyhow::Result<()> {
    let samples = Digits::load()?.train;
    let batches = batches(lengths);
    let mut run = start(count, &batches)?;
    let on_gpu = samples.to_device(run.replicas[0].model.stream())?;
    let all = &steps(&samples, &batches, count);
    for (index, step) in all.iter().enumerate() {
        let place = format!("{count} GPUs, step {} (samples {:?})", index + 1, step.batch);
        let loss = run
            .step(&on_gpu, &step.batch, LEARNING_RATE)
            .with_context(|| format!("SingleProcess::step returned an error on {place}"))?;
        let first = &run.replicas[0].model;
        let parameters = first.stream().clone_dtoh(&first.parameters())?;
        let place = format!("{count} GPUs, step {} (samples {:?})", index + 1, step.batch);
        compare_parameters(&samples, (all, index), count, (&parameters, loss))
            .map_err(|error| anyhow!("{place}: {error}"))?;
        compare_loss(&samples, step, count, loss).map_err(|error| anyhow!("{place}: {error}"))?;
    }
    Ok(())
}

/// Returns the parts of the batch, each weighted by its share of the samples.
fn parts(step: &Step, count: usize) -> Vec<(Range<usize>, f64)> {
    let of = |index| piece(&step.batch, index, count);
    (0..count).map(|index| (of(index), of(index).len() as f64 / step.batch.len() as f64)).collect()
}

/// Returns the parts of the batch, all with the same weight.
fn equally(step: &Step, count: usize, weight: f64) -> Vec<(Range<usize>, f64)> {
    parts(step, count).into_iter().map(|(part, _)| (part, weight)).collect()
}

/// Returns the gradient that results if the other replicas have these models.
fn stale_gradient(
    samples: &Samples,
    step: &Step,
    parts: &[(Range<usize>, f64)],
    model_of: &dyn Fn(usize) -> HostPerceptron,
) -> Vec<f64> {
    let mut gradient = step.sum(samples, &parts[..1]).1;
    for (index, (part, weight)) in parts.iter().enumerate().skip(1) {
        let (_, own) = model_of(index).loss_and_gradient(samples, part.clone());
        gradient.iter_mut().zip(own).for_each(|(sum, slope)| *sum += weight * slope);
    }
    gradient
}

/// Returns the gradient that results if replicas without samples keep their previous gradients, and the number of the
/// first such replica.
fn with_leftovers(
    samples: &Samples,
    steps: &[Step],
    index: usize,
    count: usize,
) -> Option<(Vec<f64>, usize)> {
    let idle = |index: usize, replica: usize| piece(&steps[index].batch, replica, count).is_empty();
    let first = (0..count).find(|&replica| idle(index, replica))?;
    let mut gradient = steps[index].gradient.clone();
    let mut add = |slopes: &[f64]| gradient.iter_mut().zip(slopes).for_each(|(sum, slope)| *sum += slope);
    for replica in (0..count).filter(|&replica| idle(index, replica)) {
        let Some(last) = (0..index).rev().find(|&earlier| !idle(earlier, replica)) else { continue };
        match replica {
            // Replica 0's gradient is the sum over all replicas.
            0 => add(&steps[last].gradient),
            _ => add(&steps[last].sum(samples, &parts(&steps[last], count)[replica..=replica]).1),
        }
    }
    Some((gradient, first))
}

/// Compares the parameters after the step with this index.
fn compare_parameters(
    samples: &Samples,
    (steps, index): (&[Step], usize),
    count: usize,
    (got, loss): (&[f32], f32),
) -> anyhow::Result<()> {
    let (step, gpus) = (&steps[index], count as f64);
    let parts = parts(step, count);
    let stale = |model_of: &dyn Fn(usize) -> HostPerceptron| stale_gradient(samples, step, &parts, model_of);
    let never = stale(&|index| HostPerceptron::new(HIDDEN, SEED + index as u64));
    let once = stale(&|_| HostPerceptron::new(HIDDEN, SEED));
    let right = step.after();
    let mut expected = Expected::of("the parameter buffer on GPU 0", &right).if_instead(
        &step.unchanged(),
        "the parameters are unchanged: there was no update, or the gradient was 0",
    );
    if count > 1 {
        expected = expected
            .if_instead(
                &step.along(&never),
                "the other replicas compute with their own parameters: refresh them before they compute",
            )
            .if_instead(
                &step.along(&once),
                "the other replicas compute with the parameters from the start: refresh them before each step",
            )
            .if_instead(
                &step.along(&step.sum(samples, &parts[..1]).1),
                "the step used only the gradient from GPU 0's replica: gather the others' gradients",
            )
            .if_instead(
                &step.along(&step.sum(samples, &parts[count - 1..]).1),
                "the step used only the last replica's gradient: sum the gradients of all replicas",
            )
            .if_instead(
                &step.along(&step.sum(samples, &[&parts[..1], &parts[..count - 1]].concat()).1),
                "each replica from 1 on computed the part before its own: part 0 counts twice, and the last part not at all",
            )
            .if_instead(
                &step.along(&times(&step.gradient, 1.0 / gpus)),
                "the step is too small by a factor of the number of GPUs: the parts' shares already add up to 1",
            )
            .if_instead(
                &step.along(&step.sum(samples, &equally(step, count, 1.0)).1),
                "the parts' means were summed, but each part must be weighted by its share of the batch",
            )
            .if_instead(
                &step.along(&step.sum(samples, &equally(step, count, 1.0 / gpus)).1),
                "this is the mean of the parts' means, but a part with more samples must count for more",
            );
    }
    if let Some((leftovers, replica)) = with_leftovers(samples, steps, index, count) {
        expected = expected.if_instead(
            &step.along(&leftovers),
            format!(
                "replica {replica} has no samples in this step, but its gradient from an earlier step was summed again"
            ),
        );
    }
    // If the loss is wrong, too, the gradient is scaled rather than the rate.
    if step.has_loss(loss) {
        let (rate, at_that_rate) = step.rate_of(got);
        expected = expected.if_instead(&at_that_rate, another_rate(rate));
    }
    expected.within(step.bound, got)
}

fn compare_loss(samples: &Samples, step: &Step, count: usize, got: f32) -> anyhow::Result<()> {
    let parts = parts(step, count);
    let is = |loss: f64| abs_diff_eq!(f64::from(got), loss, epsilon = step.loss_bound);
    let (first, weight) = parts[0].clone();
    let of_first = step.before.loss_and_gradient(samples, first).0;
    let cause = match () {
        () if is(of_first) || is(weight * of_first) => {
            "\n  likely cause: this is the loss of one shard, GPU 0's, because the loss was not gathered, or not yet: \
             each replica's loss is stored after its gradient; gather both"
        }
        () => "",
    };
    ensure!(
        is(step.loss),
        "the loss is {got}, expected {:.6}, the loss of the whole batch{cause}",
        step.loss
    );
    Ok(())
}

fn bytes_through_gpu_0() -> anyhow::Result<()> {
    let samples = Digits::load()?.train;
    for count in lab::world_sizes() {
        let batches = batches(&[23, 8]);
        // Each replica has room for an entire batch, so that it can receive too many samples.
        let mut run = SingleProcess::new(&lab::streams(count)?, HIDDEN, 23, SEED)?;
        let on_gpu = samples.to_device(run.replicas[0].model.stream())?;
        let parameters = run.replicas[0].model.parameters().len();
        for batch in batches {
            let before = run.bytes;
            run.step(&on_gpu, &batch, LEARNING_RATE)?;
            let bytes = run.bytes - before;
            let sent: usize = (1..count).map(|index| piece(&batch, index, count).len()).sum();
            let others = count - 1;
            let expected =
                size_of::<f32>() * (others * parameters + sent * (PIXELS + 1) + others * (parameters + 1));
            let all_samples = size_of::<f32>() * (others * batch.len() - sent) * (PIXELS + 1);
            let cause = match () {
                () if bytes == expected + all_samples => {
                    "\n  likely cause: the whole batch was sent to each GPU, instead of its part"
                }
                () if bytes + size_of::<f32>() * others * parameters == expected => {
                    "\n  likely cause: the parameters were not sent in this step"
                }
                () if bytes == expected + size_of::<f32>() * others * parameters => {
                    "\n  likely cause: the parameters were sent twice: refresh the replicas only once, before the step"
                }
                () => "",
            };
            ensure!(
                bytes == expected,
                "{count} GPUs, {} samples: {bytes} bytes passed between GPU 0 and the others, expected {expected}: the \
                 parameters and its samples to each, and its gradient and loss back{cause}",
                batch.len()
            );
        }
    }
    Ok(())
}

fn no_part_waits_on_the_host() -> anyhow::Result<()> {
    let batches = batches(&[23]);
    let mut run = start(2, &batches)?;
    let streams: Vec<_> = run.replicas.iter().map(|replica| replica.model.stream().clone()).collect();
    let on_gpu = Digits::load()?.train.to_device(&streams[0])?;
    returns_at_once_on_each("refresh", &streams, || run.refresh())?;
    returns_at_once_on_each("scatter", &streams, || run.scatter(&on_gpu, &batches[0]))?;
    returns_at_once_on_each("gather", &streams, || run.gather())
}

/// Counts all bytes that pass between GPUs, even without `send`.
fn nothing_is_sent_twice() -> anyhow::Result<()> {
    const GPUS: usize = 3;
    // The last part is the longest, so an answer with equal parts fails.
    let batches = batches(&[23]);
    let mut run = start(GPUS, &batches)?;
    let on_gpu = Digits::load()?.train.to_device(run.replicas[0].model.stream())?;
    let parameters = run.replicas[0].model.parameters().len();
    let others = GPUS - 1;
    let sent: usize = (1..GPUS).map(|index| piece(&batches[0], index, GPUS).len()).sum();
    let bytes = |elements: usize| (size_of::<f32>() * elements) as u64;
    let [refreshed, scattered, gathered] =
        [others * parameters, sent * (PIXELS + 1), others * (parameters + 1)].map(bytes);
    let budget = |function: &str, on_device: u64| {
        let budget = Budget::of(function).collectives(&[]).messages(0).bytes_to_device(0);
        budget.bytes_on_device(on_device).new_streams(0)
    };
    budget("refresh", refreshed).bytes_to_host(0).allocations(0).kernels(0).spend(|| run.refresh())?;
    // The forward and backward passes take 15 kernels.
    let passes = 18 * GPUS as u64;
    let scatter = budget("scatter", scattered).bytes_to_host(0).allocations(0).kernels(passes);
    scatter.spend(|| run.scatter(&on_gpu, &batches[0]))?;
    let gather = budget("gather", gathered).bytes_to_host(0).allocations(0).kernels(2 * GPUS as u64);
    gather.spend(|| run.gather())?;
    let step = budget("step", refreshed + scattered + gathered).bytes_to_host(bytes(1));
    step.spend(|| run.step(&on_gpu, &batches[0], LEARNING_RATE))?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let batches = batches(&[5]);
    let run = RefCell::new(start(2, &batches)?);
    let on_gpu = Digits::load()?.train.to_device(run.borrow().replicas[0].model.stream())?;
    // A step also includes the calls made by `refresh`, `scatter`, and `gather`.
    each_call_fails("step", || Ok(|| run.borrow_mut().step(&on_gpu, &batches[0], LEARNING_RATE).map(drop)))
}
