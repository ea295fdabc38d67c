//! Checks for `overlap/depth`.

use approx::abs_diff_eq;
use cudarc::driver::result::device::get_default_mem_pool;
use cudarc::driver::sys::{CUmemPool_attribute, cuMemPoolGetAttribute, cuMemPoolSetAttribute};
use cudarc::driver::{CudaContext, CudaSlice, CudaViewMut};
use cudarc::nccl::ReduceOp;
use lab::{Budget, Check, Expected, Readable, each_call_fails, ensure, irregular, while_blocked};

use super::quiet::QuietStages;
use super::two_streams::{
    Interval, MILLISECOND, Mark, Rank, check_formula, mean, on_each_rank, on_two_ranks, one_rank,
};
use crate::overlap::depth::run;
use crate::overlap::interleave::Stages;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("depth::each_depth_gives_the_serial_result", each_depth_gives_the_serial_result)
            .calls(&["run"])
            .min_ranks(2),
        Check::new("depth::a_late_sum_is_waited_for", a_late_sum_is_waited_for).calls(&["run"]).min_ranks(2),
        Check::new("depth::buffers_outlive_their_last_use", buffers_outlive_their_last_use)
            .calls(&["run"])
            .min_ranks(2),
        Check::new("depth::computation_runs_ahead_by_the_depth", computation_runs_ahead_by_the_depth)
            .measures_time()
            .calls(&["run"])
            .min_ranks(2),
        Check::new("depth::it_returns_with_everything_enqueued", it_returns_with_everything_enqueued)
            .calls(&["run"]),
        Check::new("depth::memory_is_that_of_the_buffers", memory_is_that_of_the_buffers).calls(&["run"]),
        Check::new("depth::an_iteration_takes_the_longer_stream", an_iteration_takes_the_longer_stream)
            .measures_time()
            .calls(&["run"]),
        Check::new("depth::only_events_are_used", only_events_are_used).calls(&["run"]),
        Check::new("depth::a_failed_call_is_an_error", a_failed_call_is_an_error).calls(&["run"]),
    ]
}

const LEN: usize = 1031;

/// How long each stage spins before it works, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Delays {
    preprocess: u64,
    all_reduce: u64,
    postprocess: u64,
}

/// One rank's stages. The result of iteration i is 3 · (the sum over the ranks of 2 · input).
struct Pipeline<'a> {
    rank: &'a Rank,
    inputs: Vec<CudaSlice<f32>>,
    outputs: Vec<CudaSlice<f32>>,
    delays: Delays,
    preprocessed: Vec<Mark>,
    reduced: Vec<Mark>,
    postprocessed: Vec<Mark>,
}

fn input(rank: usize, iteration: usize) -> Vec<f32> {
    irregular::integers(10 * iteration + rank, LEN)
}

fn stale(iteration: usize) -> Vec<f32> {
    irregular::integers(10_000 + iteration, LEN)
}

impl<'a> Pipeline<'a> {
    fn new(rank: &'a Rank, iterations: usize, delays: Delays) -> anyhow::Result<Self> {
        let upload = |values: Vec<f32>| anyhow::Ok(rank.compute.clone_htod(&values)?);
        let inputs =
            (0..iterations).map(|i| upload(input(rank.number(), i))).collect::<anyhow::Result<_>>()?;
        let outputs = (0..iterations).map(|i| upload(stale(i))).collect::<anyhow::Result<_>>()?;
        rank.synchronize()?;
        let (preprocessed, reduced, postprocessed) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { rank, inputs, outputs, delays, preprocessed, reduced, postprocessed })
    }

    fn run(&mut self, depth: usize) -> anyhow::Result<()> {
        let rank = self.rank;
        let iterations = self.inputs.len();
        run(&rank.compute, &rank.comm.stream(), self, iterations, LEN, depth)
    }

    fn compare(&self, depth: usize) -> anyhow::Result<()> {
        let (rank, world_size) = (self.rank, self.rank.comm.world_size());
        rank.synchronize()?;
        let times = |factor: f32, values: &[f32]| -> Vec<f32> { values.iter().map(|x| factor * x).collect() };
        let sums: Vec<Vec<f32>> = (0..self.inputs.len())
            .map(|iteration| {
                let inputs: Vec<_> = (0..world_size).map(|rank| input(rank, iteration)).collect();
                (0..LEN).map(|at| inputs.iter().map(|input| input[at]).sum()).collect()
            })
            .collect();
        for (iteration, output) in self.outputs.iter().enumerate() {
            // Integers below 2²⁴ are exact in an f32.
            let expected = times(6.0, &sums[iteration]);
            let name = format!("depth {depth}: the result of iteration {iteration}");
            let mut comparison = Expected::new(rank.number(), &name, &expected)
                .if_instead(&stale(iteration), "it holds its old values: it was never postprocessed")
                .if_instead(
                    &times(6.0, &input(rank.number(), iteration)),
                    "these are only this rank's values: the other ranks' values are missing",
                );
            for (later, sum) in sums.iter().enumerate().skip(iteration + 1) {
                let cause = format!(
                    "this is iteration {later}: its preprocessing overwrote the buffer while it was in use"
                );
                comparison = comparison.if_instead(&times(6.0, sum), cause);
            }
            comparison.exactly(&rank.compute.clone_dtoh(output)?)?;
        }
        Ok(())
    }

    fn intervals(&self, marks: &[Mark]) -> anyhow::Result<Vec<Interval>> {
        marks.iter().map(|mark| self.rank.interval(mark)).collect()
    }
}

impl Stages for Pipeline<'_> {
    fn preprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let Rank { compute, kernels, .. } = self.rank;
        let iterations = self.inputs.len();
        ensure!(
            iteration < iterations,
            "`preprocess` was called for iteration {iteration}, but the number of iterations is \
             {iterations}, counted from 0: it may be smaller than the number of buffers"
        );
        self.preprocessed.push(self.rank.mark(compute, || {
            kernels.spin(compute, self.delays.preprocess)?;
            compute.memcpy_dtod(&self.inputs[iteration], buffer)?;
            kernels.scale(compute, buffer, 2.0)
        })?);
        Ok(())
    }

    fn all_reduce(&mut self, _iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let Rank { comm, kernels, .. } = self.rank;
        let stream = comm.stream();
        self.reduced.push(self.rank.mark(&stream, || {
            kernels.spin(&stream, self.delays.all_reduce)?;
            comm.all_reduce_in_place(buffer, &ReduceOp::Sum).readable()?;
            Ok(())
        })?);
        Ok(())
    }

    fn postprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let Rank { compute, kernels, .. } = self.rank;
        self.postprocessed.push(self.rank.mark(compute, || {
            kernels.spin(compute, self.delays.postprocess)?;
            kernels.scale(compute, buffer, 3.0)?;
            Ok(compute.memcpy_dtod(buffer, &mut self.outputs[iteration])?)
        })?);
        Ok(())
    }
}

const DEPTHS: [usize; 4] = [1, 2, 3, 5];

fn each_depth_gives_the_serial_result() -> anyhow::Result<()> {
    on_each_rank(2, |rank| {
        for depth in DEPTHS {
            for iterations in [0, 1, 2, 7] {
                let mut pipeline = Pipeline::new(rank, iterations, Delays::default())?;
                pipeline.run(depth)?;
                pipeline.compare(depth)?;
            }
        }
        Ok(())
    })
}

fn a_late_sum_is_waited_for() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        for depth in [1, 2, 3] {
            let all_reduce = if rank.number() == 0 { MILLISECOND } else { 0 };
            let mut pipeline = Pipeline::new(rank, 5, Delays { all_reduce, ..Delays::default() })?;
            pipeline.run(depth)?;
            pipeline.compare(depth)?;
        }
        Ok(())
    })
}

/// Enqueues later work that immediately overwrites freed memory, so that buffers that are freed too early contain wrong
/// results.
fn buffers_outlive_their_last_use() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        for depth in [1, 2, 3] {
            let mut pipeline =
                Pipeline::new(rank, depth, Delays { postprocess: MILLISECOND, ..Delays::default() })?;
            pipeline.run(depth)?;
            let stream = rank.comm.stream();
            let next: Vec<CudaSlice<f32>> =
                (0..depth).map(|_| stream.clone_htod(&stale(0))).collect::<Result<_, _>>()?;
            pipeline.compare(depth)?;
            drop(next);
        }
        Ok(())
    })
}

fn computation_runs_ahead_by_the_depth() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        for depth in [2, 3] {
            // The other rank's all-reduce waits for this rank's.
            let all_reduce = if rank.number() == 0 { 3 * MILLISECOND } else { 0 };
            let delays = Delays { preprocess: MILLISECOND, all_reduce, postprocess: 0 };
            let mut pipeline = Pipeline::new(rank, depth + 1, delays)?;
            pipeline.run(depth)?;
            pipeline.compare(depth)?;
            let reduced = pipeline.intervals(&pipeline.reduced)?;
            let preprocessed = pipeline.intervals(&pipeline.preprocessed)?;
            for (iteration, sum) in reduced.iter().enumerate().take(2) {
                let ahead = iteration + depth - 1;
                ensure!(
                    sum.overlap(preprocessed[ahead]) > 0.0,
                    "rank {}: the all-reduce of iteration {iteration} and the preprocessing of iteration {ahead} never overlapped, but with {depth} buffers they must",
                    rank.number()
                );
            }
        }
        Ok(())
    })
}

fn it_returns_with_everything_enqueued() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        let mut first = Pipeline::new(rank, 4, Delays::default())?;
        first.run(2)?;
        rank.synchronize()?;
        let mut pipeline = Pipeline::new(rank, 4, Delays::default())?;
        while_blocked("run", "the compute stream", &rank.compute, || pipeline.run(2))?;
        pipeline.compare(2)
    })
}

/// Returns the maximum number of bytes in use in the GPU's memory pool since the last call.
fn most_in_use(context: &CudaContext) -> anyhow::Result<u64> {
    let (attribute, mut bytes, mut reset) =
        (CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0_u64, 0_u64);
    // SAFETY: the pool is the device's own, and both calls take the address of a 64-bit number.
    unsafe {
        let pool = get_default_mem_pool(context.cu_device())?;
        cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()).result()?;
        cuMemPoolSetAttribute(pool, attribute, (&raw mut reset).cast()).result()?;
    }
    Ok(bytes)
}

/// Formats a number of buffers, such as `8`, or `1.5` if it is not an integer to one decimal place.
fn buffers(used: f64) -> String {
    match abs_diff_eq!(used, used.round(), epsilon = 0.05) {
        true => format!("{used:.0}"),
        false => format!("{used:.1}"),
    }
}

fn memory_is_that_of_the_buffers() -> anyhow::Result<()> {
    /// Stages that do nothing.
    struct Idle;
    impl Stages for Idle {
        fn preprocess(&mut self, _: usize, _: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
            Ok(())
        }
        fn all_reduce(&mut self, _: usize, _: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
            Ok(())
        }
        fn postprocess(&mut self, _: usize, _: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
            Ok(())
        }
    }
    const BUFFER: usize = 1 << 20;
    const ITERATIONS: usize = 8;
    on_two_ranks(|rank| {
        let context = rank.compute.context();
        for depth in DEPTHS {
            most_in_use(context)?;
            run(&rank.compute, &rank.comm.stream(), &mut Idle, ITERATIONS, BUFFER / size_of::<f32>(), depth)?;
            rank.synchronize()?;
            // All other memory in use is much smaller than half a buffer.
            let used = most_in_use(context)? as f64 / BUFFER as f64;
            ensure!(
                abs_diff_eq!(used, depth as f64, epsilon = 0.49),
                "rank {}: a pipeline of depth {depth} used the memory of {} buffers at the same time, expected \
                 {depth}{}",
                rank.number(),
                buffers(used),
                match abs_diff_eq!(used, ITERATIONS as f64, epsilon = 0.49) {
                    true =>
                        "\n  likely cause: each of the 8 iterations has its own buffer instead of reusing an earlier \
                         one",
                    false => "",
                }
            );
        }
        Ok(())
    })
}

/// Checks the time that an iteration takes in the middle of a long run. With one buffer, it is t_pre + t_comm + t_post.
/// With more buffers, it is the longer of t_pre + t_post and t_comm.
fn an_iteration_takes_the_longer_stream() -> anyhow::Result<()> {
    const ITERATIONS: usize = 9;
    let spins = [(120_000, 120_000, 120_000), (50_000, 300_000, 50_000)];
    on_two_ranks(|rank| {
        for (preprocess, all_reduce, postprocess) in spins {
            for depth in [1, 2, 3] {
                let delays = Delays { preprocess, all_reduce, postprocess };
                let mut pipeline = Pipeline::new(rank, ITERATIONS, delays)?;
                pipeline.run(depth)?;
                pipeline.compare(depth)?;
                let pre = mean(&pipeline.intervals(&pipeline.preprocessed)?);
                let comm = mean(&pipeline.intervals(&pipeline.reduced)?);
                let postprocessed = pipeline.intervals(&pipeline.postprocessed)?;
                let post = mean(&postprocessed);
                let one = (postprocessed[6].end - postprocessed[3].end) / 3.0;
                let formula = if depth == 1 { pre + comm + post } else { comm.max(pre + post) };
                check_formula(rank, &format!("an iteration with {depth} buffers"), one, formula)?;
            }
        }
        Ok(())
    })
}

/// The stages make no CUDA calls, so that only the exercise's calls are counted.
fn only_events_are_used() -> anyhow::Result<()> {
    const ITERATIONS: usize = 11;
    on_two_ranks(|rank| {
        for depth in [1, 2, 3] {
            let mut stages = QuietStages::new(rank);
            // The lines before the region allocate the buffers. Each of the three stages may have two events.
            let budget = Budget::of("run").allocations(depth as u64).fills(depth as u64).copies(0);
            let budget = budget.events(6 * ITERATIONS as u64 + 4 + 2 * depth as u64).collectives(&[]);
            let budget = budget.messages(0).kernels(0).new_streams(0).host_waits(0).polls(0);
            budget.spend(|| run(&rank.compute, &rank.comm.stream(), &mut stages, ITERATIONS, LEN, depth))?;
            stages.compare("run", ITERATIONS)?;
        }
        Ok(())
    })
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("run", || {
        let rank = one_rank()?;
        Ok(move || {
            let mut stages = QuietStages::at_work(&rank);
            let result = run(&rank.compute, &rank.comm.stream(), &mut stages, 3, LEN, 2);
            rank.synchronize()?;
            result
        })
    })
}
