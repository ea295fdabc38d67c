//! Checks for `init/lifetime`.

use std::cell::Cell;
use std::sync::Mutex;

use anyhow::Context;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::Id;
use lab::{
    Budget, Check, Expected, Guarded, Kernels, NcclLog, Readable, each_call_fails, each_rank, ensure,
    irregular,
};

use crate::init::lifetime::{UnconnectedRank, run, run_anew};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("lifetime::every_iteration_is_summed", every_iteration_is_summed).calls(&["run"]),
        Check::new("lifetime::all_sums_are_done_on_return", all_sums_are_done_on_return)
            .calls(&["run"])
            .min_ranks(2),
        Check::new(
            "lifetime::one_communicator_serves_all_iterations",
            one_communicator_serves_all_iterations,
        )
        .calls(&["run"]),
        Check::new("lifetime::each_tensor_is_summed_once_and_whole", each_tensor_is_summed_once_and_whole)
            .min_ranks(2),
        Check::new("lifetime::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const MILLISECOND: u64 = 1_000_000;
const ITERATIONS: usize = 3;
/// The number of tensors is neither `ITERATIONS` nor `ITERATIONS + 1`. So the number of communicators shows whether the
/// program creates one per tensor, one per iteration, or one per iteration plus one.
const LENGTHS: [usize; 5] = [1, 37, 1031, 300, 64];

/// The ids for communicators whose ranks are threads. The first rank that needs an id creates it.
#[derive(Default)]
struct Ids(Mutex<Vec<Id>>);

impl Ids {
    fn number(&self, index: usize) -> anyhow::Result<Id> {
        let mut ids = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while ids.len() <= index {
            ids.push(Id::new().readable()?);
        }
        Ok(ids[index])
    }
}

fn input(rank: usize, iteration: usize, tensor: usize) -> Vec<f32> {
    irregular::integers(100 * rank + 10 * iteration + tensor, LENGTHS[tensor])
}

/// Returns the sum of these ranks' inputs over all iterations.
fn added(ranks: &[usize], tensor: usize) -> Vec<f32> {
    let mut total = vec![0.0; LENGTHS[tensor]];
    for &rank in ranks {
        for iteration in 0..ITERATIONS {
            total.iter_mut().zip(input(rank, iteration, tensor)).for_each(|(total, value)| *total += value);
        }
    }
    total
}

/// Returns the expected values. Each iteration adds the rank's input to the previous result, and sums over all ranks.
fn expected(world_size: usize, tensor: usize) -> Vec<f32> {
    let mut total = vec![0.0; LENGTHS[tensor]];
    for iteration in 0..ITERATIONS {
        let inputs: Vec<_> = (0..world_size).map(|rank| input(rank, iteration, tensor)).collect();
        for (index, total) in total.iter_mut().enumerate() {
            let new: f32 = inputs.iter().map(|input| input[index]).sum();
            *total = *total * world_size as f32 + new;
        }
    }
    total
}

type Fill<'a> = &'a mut dyn FnMut(usize, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>;
type Run = fn(&UnconnectedRank, usize, &mut [CudaViewMut<f32>], Fill) -> anyhow::Result<()>;

/// Runs the iterations on each rank of a world, and compares the results. In each `fill`, the last rank's stream spins.
fn compare(world_size: usize, run: Run, spin: u64) -> anyhow::Result<()> {
    let streams = lab::streams(world_size)?;
    let ids = Ids::default();
    let ranks: Vec<usize> = (0..world_size).collect();
    each_rank(world_size, |rank| {
        let stream = streams[rank].clone();
        let kernels = Kernels::load(stream.context())?;
        let asked = Cell::new(0);
        let next_id = || ids.number(asked.replace(asked.get() + 1));
        let unconnected = UnconnectedRank { rank, world_size, stream: stream.clone(), next_id: &next_id };
        let spin = if rank + 1 == world_size { spin } else { 0 };
        let mut inputs = Vec::new();
        for iteration in 0..ITERATIONS {
            for tensor in 0..LENGTHS.len() {
                inputs.push(stream.clone_htod(&input(rank, iteration, tensor))?);
            }
        }
        let mut buffers = Vec::new();
        for len in LENGTHS {
            buffers.push(Guarded::new(&stream, &vec![0.0; len])?);
        }
        // Loads the kernels first, so that loading does not affect later work.
        kernels.spin(&stream, 0)?;
        stream.synchronize()?;
        let mut views: Vec<_> = buffers.iter_mut().map(Guarded::view_mut).collect();
        let mut filled = Vec::new();
        run(&unconnected, ITERATIONS, &mut views, &mut |iteration, tensors| {
            filled.push(iteration);
            if iteration >= ITERATIONS {
                return Ok(());
            }
            kernels.spin(&stream, spin)?;
            for (tensor, view) in tensors.iter_mut().enumerate() {
                kernels.axpy(&stream, view, &inputs[iteration * LENGTHS.len() + tensor], 1.0)?;
            }
            Ok(())
        })?;
        let once_each: Vec<usize> = (0..ITERATIONS).collect();
        ensure!(
            filled == once_each,
            "`run` called `fill` with the iterations {filled:?}; expected {once_each:?}: one call in each iteration"
        );
        for (tensor, buffer) in buffers.iter().enumerate() {
            let name = format!("tensor {tensor} after the return of `run`, with world size {world_size},");
            // Integers below 2²⁴ are exact in an f32.
            Expected::new(rank, &name, &expected(world_size, tensor))
                .if_instead(
                    &added(&[rank], tensor),
                    "these are only the rank's own values from all iterations, and no other rank's",
                )
                .if_instead(&added(&ranks, tensor), "it was summed only once, not in each iteration")
                .exactly(&buffer.read()?)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn every_iteration_is_summed() -> anyhow::Result<()> {
    lab::world_sizes().into_iter().try_for_each(|size| compare(size, |p, n, t, f| run(p, n, t, f), 0))
}

fn all_sums_are_done_on_return() -> anyhow::Result<()> {
    let worlds = lab::world_sizes().into_iter().filter(|&size| size >= 2);
    worlds.into_iter().try_for_each(|size| compare(size, |p, n, t, f| run(p, n, t, f), 5 * MILLISECOND))
}

fn one_communicator_serves_all_iterations() -> anyhow::Result<()> {
    // SAFETY: the check has not started any other threads yet.
    let log = unsafe { NcclLog::open() };
    let mut before = 0;
    for world_size in lab::world_sizes() {
        compare(world_size, |p, n, t, f| run(p, n, t, f), 0)?;
        let made = log.communicators()? - before;
        let (tensors, cause) = (LENGTHS.len(), "\n  likely cause: ");
        let cause = match () {
            () if made == world_size * ITERATIONS => {
                format!("{cause}a communicator is created in each iteration of the loop")
            }
            () if made == world_size * tensors => {
                format!("{cause}a separate communicator is created for each tensor")
            }
            () if made == world_size * ITERATIONS * tensors => {
                format!("{cause}a separate communicator is created for each sum")
            }
            () => String::new(),
        };
        ensure!(
            made == world_size,
            "`run` created {made} communicators for {ITERATIONS} iterations over {tensors} tensors, expected \
             {world_size}, one for each rank{cause}"
        );
        compare(world_size, |p, n, t, f| run_anew(p, n, t, f), 0)?;
        let after = log.communicators()?;
        let created = after - before - made;
        ensure!(
            created == world_size * ITERATIONS,
            "`run_anew`, which calls `run` in each of {ITERATIONS} iterations on each of {world_size} ranks, created \
             {created} communicators; expected {}",
            world_size * ITERATIONS
        );
        before = after;
    }
    Ok(())
}

fn each_tensor_is_summed_once_and_whole() -> anyhow::Result<()> {
    let streams = lab::streams(2)?;
    let ids = Ids::default();
    each_rank(2, |rank| {
        let stream = &streams[rank];
        stream.context().bind_to_thread()?;
        let asked = Cell::new(0);
        let next_id = || ids.number(asked.replace(asked.get() + 1));
        let unconnected = UnconnectedRank { rank, world_size: 2, stream: stream.clone(), next_id: &next_id };
        let mut buffers = Vec::new();
        for len in LENGTHS {
            buffers.push(stream.alloc_zeros::<f32>(len)?);
        }
        let mut views: Vec<_> = buffers.iter_mut().map(|buffer| buffer.as_view_mut()).collect();
        let sums: Vec<_> = LENGTHS.repeat(ITERATIONS).into_iter().map(|len| ("AllReduce", len)).collect();
        // One wait is enough, and a second one is harmless. With a wait in each iteration, there would be a third.
        let waits = ITERATIONS as u64 - 1;
        let budget =
            Budget::of("run").case("with 3 iterations").communicators(1).collectives(&sums).host_waits(waits);
        let budget = budget.copies(0).fills(0).kernels(0).allocations(0).new_streams(0);
        let budget = budget.streams(&[(stream, "the stream of `rank`")]);
        budget.spend(|| run(&unconnected, ITERATIONS, &mut views, |_, _| Ok(())))?;
        let none = Budget::of("run").collectives(&[]).communicators(1);
        none.spend(|| run(&unconnected, 0, &mut views, |_, _| Ok(()))).context("`run` with 0 iterations")
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("run", || {
        let stream = lab::streams(1)?.remove(0);
        let mut buffers = [stream.alloc_zeros::<f32>(37)?, stream.alloc_zeros::<f32>(5)?];
        Ok(move || {
            let next_id = || Id::new().readable();
            let rank = UnconnectedRank { rank: 0, world_size: 1, stream: stream.clone(), next_id: &next_id };
            let mut views: Vec<_> = buffers.iter_mut().map(|buffer| buffer.as_view_mut()).collect();
            run(&rank, 2, &mut views, |_, tensors| Ok(stream.memset_zeros(&mut tensors[0])?))
        })
    })
}
