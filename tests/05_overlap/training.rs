//! A model with known gradients, to check the result of a training step no matter how it groups their averages.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::Comm;
use lab::compare::UNIT_ROUNDOFF;
use lab::{Expected, Guarded, Trainable, ensure, irregular, named_ranks, while_blocked};

use super::two_streams::{MILLISECOND, Mark, Rank, on_each_rank, on_two_ranks};

/// The number of elements in each parameter.
pub(super) const LENGTHS: [usize; 6] = [300, 37, 1031, 1, 64, 257];
const STEPS: usize = 3;
const LEARNING_RATE: f32 = 0.5;

/// The exercise's training step.
pub(super) type Step = dyn Fn(&Comm, &mut Known) -> anyhow::Result<()> + Sync;

/// Returns the consecutive positions of parameters with these lengths.
pub(super) fn layout(lengths: &[usize]) -> Vec<Range<usize>> {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    ends.zip(lengths).map(|(end, length)| end - length..end).collect()
}

/// A function that returns whether a rank's samples leave a parameter unused in a step.
type Unused = fn(rank: usize, step: usize, parameter: usize) -> bool;

/// How long each stream is delayed before its work, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Delays {
    /// The delay of the compute stream before each gradient.
    gradient: u64,
    /// The delay of the comm stream before the first all-reduce.
    communication: u64,
}

/// One rank's model.
pub(super) struct Known<'a> {
    rank: &'a Rank,
    layout: Vec<Range<usize>>,
    unused: Unused,
    delays: Delays,
    /// The gradients that each step's backward pass writes.
    sources: Vec<CudaSlice<f32>>,
    step: usize,
    parameters: CudaSlice<f32>,
    gradients: Guarded<f32>,
    /// Whether to measure each gradient, and the work that its hook enqueues on the comm stream after a spin.
    watched: bool,
    computed: Vec<Mark>,
    averaged: Vec<Mark>,
    /// Whether the spin before a hook's work was done when the hook returned.
    host_waited: Vec<bool>,
    /// The gradients, as copied on the comm stream after the last hook.
    snapshot: CudaSlice<f32>,
}

fn elements() -> usize {
    LENGTHS.iter().sum()
}

fn initial() -> Vec<f32> {
    irregular::integers(999, elements())
}

/// Returns the values that the gradients have before the first step.
fn uncleared() -> Vec<f32> {
    irregular::integers(777, elements())
}

/// Returns a rank's gradients for a step. They are 0 for parameters that the rank does not use.
fn gradient(unused: Unused, rank: usize, step: usize) -> Vec<f32> {
    let mut values = irregular::integers(100 * (step + 1) + rank, elements());
    for (parameter, place) in layout(&LENGTHS).into_iter().enumerate() {
        if unused(rank, step, parameter) {
            values[place].fill(0.0);
        }
    }
    values
}

fn sum(unused: Unused, world_size: usize, step: usize) -> Vec<f32> {
    let all: Vec<_> = (0..world_size).map(|rank| gradient(unused, rank, step)).collect();
    (0..elements()).map(|at| all.iter().map(|values| values[at]).sum()).collect()
}

impl<'a> Known<'a> {
    fn new(rank: &'a Rank, unused: Unused, delays: Delays) -> anyhow::Result<Self> {
        let stream = &rank.compute;
        let sources = (0..STEPS).map(|step| Ok(stream.clone_htod(&gradient(unused, rank.number(), step))?));
        let known = Self {
            rank,
            layout: layout(&LENGTHS),
            unused,
            delays,
            sources: sources.collect::<anyhow::Result<_>>()?,
            step: 0,
            parameters: stream.clone_htod(&initial())?,
            gradients: Guarded::new(stream, &uncleared())?,
            watched: false,
            computed: Vec::new(),
            averaged: Vec::new(),
            host_waited: Vec::new(),
            snapshot: stream.alloc_zeros(elements())?,
        };
        rank.synchronize()?;
        Ok(known)
    }

    /// Compares the parameters with those of the serial run after this many steps.
    fn compare(&self, steps: usize) -> anyhow::Result<()> {
        let (rank, world_size) = (self.rank.number(), self.rank.comm.world_size());
        self.rank.synchronize()?;
        let run = SerialStep::new(self, steps - 1);
        let got = self.rank.compute.clone_dtoh(&self.parameters)?;
        // An average of values up to 1000 is off by at most 3n roundings. Each step rounds the parameters two more
        // times.
        let bound = (steps * (3 * world_size + 2)) as f64 * 2000.0 * UNIT_ROUNDOFF;
        for (parameter, place) in self.layout.iter().enumerate() {
            let users = run.users(parameter);
            let name = format!(
                "parameter {parameter}, which {} {}, after step {} of {STEPS},",
                named_ranks(&users),
                if users.len() > 1 { "use" } else { "uses" },
                run.step + 1
            );
            let at = |values: &[f32]| values[place.clone()].to_vec();
            let expected = at(&run.along(&run.average));
            let mut comparison = Expected::new(rank, &name, &expected);
            for (values, cause) in run.mistakes(place) {
                comparison = comparison.if_instead(&values, cause);
            }
            comparison.within(bound, &at(&got))?;
        }
        self.gradients.read()?;
        Ok(())
    }
}

/// One step of the serial run.
struct SerialStep<'a> {
    known: &'a Known<'a>,
    step: usize,
    /// The parameters before the step.
    before: Vec<f32>,
    average: Vec<f32>,
}

impl<'a> SerialStep<'a> {
    fn new(known: &'a Known<'a>, step: usize) -> Self {
        let before = (0..step).fold(initial(), |from, step| descended(&from, &average(known, step)));
        Self { known, step, before, average: average(known, step) }
    }

    /// Returns the parameters after a step along this gradient.
    fn along(&self, gradient: &[f32]) -> Vec<f32> {
        descended(&self.before, gradient)
    }

    /// Returns the ranks that use a parameter in this step.
    fn users(&self, parameter: usize) -> Vec<usize> {
        let ranks = 0..self.known.rank.comm.world_size();
        ranks.filter(|&rank| !(self.known.unused)(rank, self.step, parameter)).collect()
    }

    /// Returns the average that results if ranks that do not use a parameter send their gradient's old values.
    fn not_cleared(&self) -> Vec<f32> {
        let Known { rank, layout, unused, .. } = self.known;
        let world_size = rank.comm.world_size();
        let left = self.step.checked_sub(1).map_or_else(uncleared, |step| average(self.known, step));
        let averaged = |(at, sum): (usize, &f32)| {
            let parameter = layout.iter().position(|place| place.contains(&at)).unwrap_or(0);
            let others = world_size - self.users(parameter).len();
            (sum + others as f32 * left[at]) / world_size as f32
        };
        sum(*unused, world_size, self.step).iter().enumerate().map(averaged).collect()
    }

    /// Returns the values of the parameter at `place` that result from known mistakes, with their causes.
    fn mistakes(&self, place: &Range<usize>) -> Vec<(Vec<f32>, &'static str)> {
        let Known { rank, unused, .. } = self.known;
        let at = |values: &[f32]| values[place.clone()].to_vec();
        let own = at(&self.along(&gradient(*unused, rank.number(), self.step)));
        let sum = at(&self.along(&sum(*unused, rank.comm.world_size(), self.step)));
        let mut mistakes = vec![(at(&self.before), "this step did not change it")];
        if own == sum {
            // Only this rank uses the parameter.
            mistakes.push((own, "its gradient was not averaged: it must be divided by the number of ranks"));
        } else {
            mistakes.push((own, "it was updated with this rank's own gradient, not with the average"));
            mistakes.push((sum, "it was updated with the sum of the gradients, not with their average"));
        }
        let cause = "a rank that does not use the parameter averaged the old values of its gradient: clear the gradients first";
        mistakes.push((at(&self.along(&self.not_cleared())), cause));
        mistakes
    }
}

fn average(known: &Known, step: usize) -> Vec<f32> {
    let world_size = known.rank.comm.world_size();
    sum(known.unused, world_size, step).iter().map(|sum| sum / world_size as f32).collect()
}

fn descended(from: &[f32], by: &[f32]) -> Vec<f32> {
    from.iter().zip(by).map(|(value, slope)| value - LEARNING_RATE * slope).collect()
}

impl Trainable for Known<'_> {
    fn stream(&self) -> &Arc<CudaStream> {
        &self.rank.compute
    }

    fn layout(&self) -> &[Range<usize>] {
        &self.layout
    }

    fn gradients_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.gradients.view_mut()
    }

    fn backward(
        &mut self,
        mut ready: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Self { rank, layout, delays, watched, .. } = self;
        let (compute, comm) = (&rank.compute, rank.comm.stream());
        let mut gradients = self.gradients.view_mut();
        if delays.communication > 0 {
            rank.communicate_for(delays.communication)?;
        }
        for (parameter, place) in layout.iter().enumerate().rev() {
            if (self.unused)(rank.number(), self.step, parameter) {
                continue;
            }
            self.computed.push(rank.mark(compute, || {
                rank.kernels.spin(compute, delays.gradient)?;
                let source = self.sources[self.step].slice(place.clone());
                Ok(compute.memcpy_dtod(&source, &mut gradients.slice_mut(place.clone()))?)
            })?);
            if !*watched {
                ready(parameter, &mut gradients)?;
                continue;
            }
            comm.wait(&compute.record_event(None)?)?;
            self.averaged.push(rank.mark(&comm, || {
                let busy = rank.communicate_for(MILLISECOND)?;
                ready(parameter, &mut gradients)?;
                self.host_waited.push(busy.is_over()?);
                Ok(())
            })?);
        }
        if *watched {
            comm.memcpy_dtod(&gradients, &mut self.snapshot)?;
        }
        Ok(())
    }

    fn descend(&mut self) -> anyhow::Result<()> {
        let Rank { compute, kernels, .. } = self.rank;
        self.step += 1;
        kernels.sgd_step(compute, &mut self.parameters, &self.gradients.view(), LEARNING_RATE)
    }
}

/// Takes three steps, and compares after each. Then takes three steps with a new model, and compares only at the end.
fn trains(rank: &Rank, step: &Step, unused: Unused, delays: Delays) -> anyhow::Result<()> {
    let mut known = Known::new(rank, unused, delays)?;
    for done in 1..=STEPS {
        step(&rank.comm, &mut known)?;
        known.compare(done)?;
    }
    let mut known = Known::new(rank, unused, delays)?;
    for _ in 0..STEPS {
        step(&rank.comm, &mut known)?;
    }
    known.compare(STEPS)
}

fn all_used(_rank: usize, _step: usize, _parameter: usize) -> bool {
    false
}

pub(super) fn each_step_is_that_of_one_gpu(step: &Step) -> anyhow::Result<()> {
    on_each_rank(1, |rank| trains(rank, step, all_used, Delays::default()))
}

/// The unused parameters are in the middle, at the end with a neighbor, and at the beginning. One of them is unused on
/// all ranks.
pub(super) fn unused_parameters_are_averaged_too(step: &Step) -> anyhow::Result<()> {
    let unused: Unused = |rank, step, parameter| {
        let places: [&[(usize, usize)]; STEPS] =
            [&[(1, 0), (1, 1), (1, 2), (1, 3), (1, 4)], &[(0, 5), (0, 4)], &[(1, 0), (0, 1), (1, 1)]];
        places[step].contains(&(rank % 2, parameter))
    };
    on_each_rank(2, |rank| trains(rank, step, unused, Delays::default()))
}

pub(super) fn a_late_gradient_is_waited_for(step: &Step) -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        let gradient = if rank.number() == 1 { MILLISECOND / 4 } else { 0 };
        trains(rank, step, all_used, Delays { gradient, ..Delays::default() })
    })
}

pub(super) fn a_late_average_is_waited_for(step: &Step) -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        let communication = if rank.number() == 0 { MILLISECOND } else { 0 };
        trains(rank, step, all_used, Delays { communication, ..Delays::default() })
    })
}

pub(super) fn it_returns_with_everything_enqueued(step: &Step) -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        let mut first = Known::new(rank, all_used, Delays::default())?;
        step(&rank.comm, &mut first)?;
        rank.synchronize()?;
        let mut known = Known::new(rank, all_used, Delays::default())?;
        while_blocked("step", "the compute stream", &rank.compute, || step(&rank.comm, &mut known))?;
        known.compare(1)
    })
}

/// Checks that every gradient whose hook was called has been averaged by the end of the backward pass. Also checks that
/// each hook's communication overlaps with the computation of the next gradient.
pub(super) fn communication_overlaps_the_backward_pass(step: &Step) -> anyhow::Result<()> {
    communication_runs_beside(step, all_used, "")
}

/// Checks like [`communication_overlaps_the_backward_pass`], but no rank uses parameter 3, in the middle.
pub(super) fn communication_skips_an_unused_parameter(step: &Step) -> anyhow::Result<()> {
    let unused: Unused = |_, _, parameter| parameter == 3;
    communication_runs_beside(step, unused, "\n  no rank uses parameter 3, so its hook is never called")
}

/// Checks the overlap. Messages end with `told`.
fn communication_runs_beside(step: &Step, unused: Unused, told: &str) -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        let (number, world_size) = (rank.number(), rank.comm.world_size());
        let delays = Delays { gradient: MILLISECOND, ..Delays::default() };
        let mut known = Known { watched: true, ..Known::new(rank, unused, delays)? };
        step(&rank.comm, &mut known)?;
        known.compare(1)?;
        let intervals = |marks: &[Mark]| -> anyhow::Result<Vec<_>> {
            marks.iter().map(|mark| rank.interval(mark)).collect()
        };
        let (computed, averaged) = (intervals(&known.computed)?, intervals(&known.averaged)?);
        let used: Vec<usize> = (0..LENGTHS.len()).rev().filter(|&at| !unused(number, 0, at)).collect();
        for (call, (hook, next)) in averaged.iter().zip(&computed[1..]).enumerate() {
            ensure!(
                hook.overlap(*next) > 0.0,
                "rank {number}: the communication enqueued by the hook of parameter {} never overlapped the \
                 computation of the gradient of parameter {}, but it must; {}{told}",
                used[call],
                used[call + 1],
                match known.host_waited[call] {
                    true => "the host waited in the hook",
                    false => "the host did not wait in the hook, so the compute stream waited",
                }
            );
        }
        let snapshot = rank.compute.clone_dtoh(&known.snapshot)?;
        for parameter in used {
            let place = known.layout[parameter].clone();
            let own = &gradient(unused, number, 0)[place.clone()];
            ensure!(
                world_size == 1 || snapshot[place] != *own,
                "rank {number}: when the backward pass was over, the gradient of parameter {parameter} was still this \
                 rank's own: no all-reduce for it was on the comm stream by then{told}"
            );
        }
        Ok(())
    })
}

/// Returns a model with all parameters used and without delays, for other checks.
pub(super) fn plain(rank: &Rank) -> anyhow::Result<Known<'_>> {
    Known::new(rank, all_used, Delays::default())
}
