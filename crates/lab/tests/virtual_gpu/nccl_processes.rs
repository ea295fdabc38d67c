//! Ranks as processes: right programs with the right numbers, wrong ones with a report, and processes that end.

use anyhow::ensure;
use lab::Check;

use crate::rank_processes::{Plan, Program, run};
use crate::raw::{Function, address, floats};
use crate::twins::{Place, Said, driver, said};

pub(crate) fn checks() -> Vec<Check> {
    vec![Check::new("nccl_processes::ranks_of_any_mix_of_processes_sum_up", any_mix)]
}

/// What the processes of these checks run.
pub(crate) const PROGRAMS: [(&str, Program); 1] = [("sums", sums)];

fn any_mix() -> anyhow::Result<()> {
    for layout in [&[1, 1][..], &[2, 2], &[1, 3], &[1, 1, 1, 1], &[3]] {
        for (rank, said) in
            run(&Plan { program: "sums", layout, wrong: false, env: &[] })?.into_iter().enumerate()
        {
            ensure!(said.is_ok(), "{layout:?}, rank {rank}: {}", said.unwrap_err());
        }
    }
    Ok(())
}

/// Sums of what differs by rank and place, several times over.
fn sums(place: &Place) -> Said {
    let Place { rank, n, .. } = *place;
    for len in [1usize, 1000, 70_001] {
        let give = |rank: usize| (0..len).map(move |i| ((i * 7 + rank * 13) % 101) as f32);
        let mut buffer = driver(place.own.stream.clone_htod(&give(rank).collect::<Vec<_>>()))?;
        said(place.own.call(Function::AllReduce, address(&buffer), address(&buffer), floats(len)))?;
        let got = driver(place.own.stream.clone_dtoh(&buffer))?;
        let mut all: Vec<_> = (0..n).map(give).collect();
        let expected: Vec<f32> =
            (0..len).map(|_| all.iter_mut().map(|of| of.next().unwrap()).sum()).collect();
        if got != expected {
            return Err(format!("rank {rank}: wrong sums of {len}"));
        }
        driver(place.own.stream.memset_zeros(&mut buffer))?;
    }
    Ok(())
}
