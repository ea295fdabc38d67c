//! Random programs whose calls match. They must compute the right numbers without a report or a hang.
//!
//! `LAB_TIMEOUT=3600 RANDOM_PROGRAMS=1000 cargo test -p conformance --test virtual_gpu random` runs more programs than the
//! few that run by default. With `SEED=1000`, too, it runs the 1000 after them.

use std::ops::Range;

use anyhow::Context;
use cudarc::driver::CudaSlice;
use cudarc::nccl::safe::{Comm, Id, ReduceOp, group_end, group_start};
use lab::Check;
use lab::random::SplitMix64;

use crate::twins::{Said, TestRank};

pub(crate) fn checks() -> Vec<Check> {
    vec![Check::new("random::programs_of_matched_calls", programs_of_matched_calls)]
}

const BUFFERS: usize = 3;
const COMMUNICATORS: usize = 2;
const STEPS: usize = 16;

/// A step, which is the same on every rank; `on` is the communicator whose stream the step uses.
#[derive(Clone, Copy, Debug)]
enum Step {
    AllReduce {
        on: usize,
        buffer: usize,
        max: bool,
    },
    Broadcast {
        on: usize,
        buffer: usize,
        root: usize,
    },
    AllGatherAndKeepOwn {
        on: usize,
        buffer: usize,
    },
    Clear {
        on: usize,
        buffer: usize,
    },
    Copy {
        on: usize,
        from: usize,
        to: usize,
    },
    /// Each rank sends its buffer to the rank that is this many ranks after it.
    Pass {
        on: usize,
        buffer: usize,
        by: usize,
    },
    Synchronize {
        on: usize,
    },
}

impl Step {
    /// Returns the communicator on whose stream the step writes, if it writes.
    fn writes(self) -> Option<usize> {
        match self {
            Self::Synchronize { .. } => None,
            Self::AllReduce { on, .. }
            | Self::Broadcast { on, .. }
            | Self::AllGatherAndKeepOwn { on, .. }
            | Self::Clear { on, .. }
            | Self::Pass { on, .. }
            | Self::Copy { on, .. } => Some(on),
        }
    }
}

fn program(random: &mut SplitMix64, ranks: usize) -> Vec<Step> {
    let mut below = |n: usize| random.below(n);
    (0..STEPS)
        .map(|_| {
            let (on, buffer) = (below(COMMUNICATORS), below(BUFFERS));
            match below(12) {
                0..4 => Step::AllReduce { on, buffer, max: below(2) == 0 },
                4..6 => Step::Broadcast { on, buffer, root: below(ranks) },
                6 => Step::AllGatherAndKeepOwn { on, buffer },
                7 => Step::Clear { on, buffer },
                8..10 => Step::Pass { on, buffer, by: below(ranks) },
                10 => Step::Copy { on, from: buffer, to: (buffer + 1 + below(BUFFERS - 1)) % BUFFERS },
                _ => Step::Synchronize { on },
            }
        })
        .collect()
}

/// Returns a buffer's contents before the first step.
fn initial(rank: usize, buffer: usize, len: usize) -> Vec<i32> {
    (0..len).map(|i| (i * 31 + rank * 17 + buffer * 7) as i32 % 1009 - 500).collect()
}

/// Runs the program on the host. Returns every rank's buffers after the last step.
fn serial(program: &[Step], ranks: usize, len: usize) -> Vec<Vec<Vec<i32>>> {
    let mut all: Vec<Vec<Vec<i32>>> =
        (0..ranks).map(|rank| (0..BUFFERS).map(|buffer| initial(rank, buffer, len)).collect()).collect();
    for &step in program {
        match step {
            Step::AllReduce { buffer, max, .. } => {
                let combine = |a: i32, b: i32| if max { a.max(b) } else { a.wrapping_add(b) };
                let reduced: Vec<i32> = (0..len)
                    .map(|i| all.iter().map(|rank| rank[buffer][i]).reduce(combine).unwrap())
                    .collect();
                all.iter_mut().for_each(|rank| rank[buffer].clone_from(&reduced));
            }
            Step::Broadcast { buffer, root, .. } => {
                let sent = all[root][buffer].clone();
                all.iter_mut().for_each(|rank| rank[buffer].clone_from(&sent));
            }
            Step::Clear { buffer, .. } => all.iter_mut().for_each(|rank| rank[buffer].fill(0)),
            Step::Copy { from, to, .. } => all.iter_mut().for_each(|rank| rank[to] = rank[from].clone()),
            Step::Pass { buffer, by, .. } => {
                let sent: Vec<_> = all.iter().map(|rank| rank[buffer].clone()).collect();
                for (from, sent) in sent.into_iter().enumerate() {
                    all[(from + by) % ranks][buffer] = sent;
                }
            }
            Step::AllGatherAndKeepOwn { .. } | Step::Synchronize { .. } => {}
        }
    }
    all
}

fn run(program: &[Step], ranks: usize, len: usize) -> anyhow::Result<Vec<Vec<Vec<i32>>>> {
    let ids = [(); COMMUNICATORS].map(|()| Id::new().unwrap());
    lab::each_rank(ranks, |rank| run_rank(program, (rank, ranks), len, ids))
}

/// Returns one rank's buffers after the last step.
fn run_rank(
    program: &[Step],
    (rank, ranks): (usize, usize),
    len: usize,
    ids: [Id; COMMUNICATORS],
) -> anyhow::Result<Vec<Vec<i32>>> {
    let context = cudarc::driver::CudaContext::new(rank)?;
    let mut comms = Vec::new();
    for id in ids {
        comms.push(Comm::from_rank(context.new_stream()?, rank, ranks, id).unwrap());
    }
    let own = comms[0].stream();
    let mut buffers: Vec<CudaSlice<i32>> = Vec::new();
    for buffer in 0..BUFFERS {
        buffers.push(own.clone_htod(&initial(rank, buffer, len))?);
    }
    let mut gathered = own.alloc_zeros::<i32>(len * ranks)?;
    for &step in program {
        // cudarc's tracking remembers only a slice's last read, so a write would not wait for earlier reads.
        if let Some(on) = step.writes() {
            comms[on].stream().join(&comms[1 - on].stream())?;
        }
        match step {
            Step::AllReduce { on, buffer, max } => {
                let operator = if max { ReduceOp::Max } else { ReduceOp::Sum };
                comms[on].all_reduce_in_place(&mut buffers[buffer], &operator).unwrap();
            }
            Step::Broadcast { on, buffer, root } => {
                comms[on].broadcast_in_place(&mut buffers[buffer], root as i32).unwrap();
            }
            Step::AllGatherAndKeepOwn { on, buffer } => {
                comms[on].all_gather(&buffers[buffer], &mut gathered).unwrap();
                let part = gathered.slice(rank * len..(rank + 1) * len);
                comms[on].stream().memcpy_dtod(&part, &mut buffers[buffer])?;
            }
            Step::Clear { on, buffer } => comms[on].stream().memset_zeros(&mut buffers[buffer])?,
            Step::Pass { on, buffer, by } => {
                let (to, from) = ((rank + by) % ranks, (rank + ranks - by) % ranks);
                let mut got = gathered.slice_mut(..len);
                group_start().unwrap();
                comms[on].send(&buffers[buffer], to as i32).unwrap();
                comms[on].recv(&mut got, from as i32).unwrap();
                group_end().unwrap();
                comms[on].stream().memcpy_dtod(&got, &mut buffers[buffer])?;
            }
            Step::Copy { on, from, to } => {
                let [source, target] = buffers.get_disjoint_mut([from, to])?;
                comms[on].stream().memcpy_dtod(source, target)?;
            }
            Step::Synchronize { on } => comms[on].stream().synchronize()?,
        }
        if (rank * 7 + len).is_multiple_of(3) {
            std::thread::yield_now();
        }
    }
    let results: Result<Vec<Vec<i32>>, _> = buffers.iter().map(|buffer| own.clone_dtoh(buffer)).collect();
    comms.iter().try_for_each(|comm| comm.stream().synchronize())?;
    Ok(results?)
}

/// Returns the programs to run.
fn programs() -> anyhow::Result<Range<u64>> {
    let number = |name: &str, default| match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text} is not a number")),
        Err(_) => Ok(default),
    };
    let (first, count) = (number("SEED", 0)?, number("RANDOM_PROGRAMS", 20)?);
    Ok(first..first + count)
}

/// Creates unused ids, the same ones on all ranks.
fn fresh_ids(me: &TestRank) -> anyhow::Result<[Id; COMMUNICATORS]> {
    let mut numbers = Vec::new();
    for _ in 0..COMMUNICATORS {
        let made = *Id::new().unwrap().internal();
        // The sum over all ranks is rank 0's value.
        numbers.extend(made.map(|byte| if me.rank == 0 { f32::from(byte as u8) } else { 0.0 }));
    }
    let stream = &me.own.stream;
    let buffer = stream.clone_htod(&numbers)?;
    me.all_reduce(&buffer).map_err(anyhow::Error::msg)?;
    let bytes = stream.clone_dtoh(&buffer)?;
    let id = |index: usize| Id::uninit(std::array::from_fn(|byte| bytes[index * 128 + byte] as u8 as _));
    Ok(std::array::from_fn(id))
}

/// Runs the same programs with ranks in several processes, each with its own communicators.
pub(crate) fn programs_of_processes(me: &TestRank) -> Said {
    let run = || -> anyhow::Result<()> {
        for seed in programs()? {
            let mut random = SplitMix64::new(seed);
            let len = 1 + random.below(700);
            let program = program(&mut random, me.n);
            let got = run_rank(&program, (me.rank, me.n), len, fresh_ids(me)?)?;
            let expected = &serial(&program, me.n, len)[me.rank];
            anyhow::ensure!(got == *expected, "seed {seed}: wrong numbers after {program:?}");
        }
        Ok(())
    };
    run().map_err(|error| format!("{error:#}"))
}

fn programs_of_matched_calls() -> anyhow::Result<()> {
    for seed in programs()? {
        let mut random = SplitMix64::new(seed);
        let ranks = 2 + random.below(4);
        let len = 1 + random.below(700);
        let program = program(&mut random, ranks);
        let got =
            run(&program, ranks, len).map_err(|error| error.context(format!("seed {seed}: {program:?}")))?;
        anyhow::ensure!(got == serial(&program, ranks, len), "seed {seed}: wrong numbers after {program:?}");
    }
    Ok(())
}
