//! The algorithms of a communication library, on kernels of one's own.

use super::Arg::{Address as A, Int as I};
use super::{Arg, Failed, Node, Ranks, run};

/// An algorithm, and on how many GPUs it runs.
type Algorithm = (&'static str, &'static [usize], fn(&Node, usize) -> anyhow::Result<()>);

pub(super) const ALGORITHMS: &[Algorithm] = &[
    ("one_shot_all_reduce", &[2, 4, 8], one_shot),
    ("two_shot_all_reduce", &[2, 4, 8], two_shot),
    ("ring_all_reduce", &[2, 4, 8], ring),
    ("put_with_signal", &[2, 4, 8], put_with_signal),
];

/// The number of words of each rank.
const COUNT: usize = 1 << 12;

/// Returns what a rank contributes.
fn own(rank: usize) -> Vec<u32> {
    (0..COUNT as u32).map(|at| at * 3 + 1000 * rank as u32).collect()
}

/// Returns the sum over all ranks.
fn sum(ranks: usize) -> Vec<u32> {
    let mut sum = vec![0; COUNT];
    for rank in 0..ranks {
        sum.iter_mut().zip(own(rank)).for_each(|(sum, own)| *sum += own);
    }
    sum
}

/// Allocates data and flags on each GPU.
fn on_each(node: &Node, ranks: usize, words: usize) -> Result<Ranks, Failed> {
    node.enable_all(ranks)?;
    let mut all = Ranks { data: [0; 8], flags: [0; 8] };
    for rank in 0..ranks {
        all.data[rank] = node.words(rank, words)?;
        all.flags[rank] = node.words(rank, 8 * 8)?;
    }
    Ok(all)
}

fn one_shot(node: &Node, ranks: usize) -> anyhow::Result<()> {
    let all = on_each(node, ranks, COUNT)?;
    let mut outs = Vec::new();
    let mut runs = Vec::new();
    for rank in 0..ranks {
        node.write(rank, all.data[rank], &own(rank))?;
        outs.push(node.words(rank, COUNT)?);
        let args = [Arg::Ranks(all), A(outs[rank]), I(rank as i32), I(ranks as i32), I(COUNT as i32)];
        runs.push(run(rank, "one_shot", &args).shape(4, 64));
    }
    node.launch(&runs)?;
    for (rank, &out) in outs.iter().enumerate() {
        anyhow::ensure!(node.read(rank, out, COUNT)? == sum(ranks), "rank {rank}");
    }
    Ok(())
}

fn two_shot(node: &Node, ranks: usize) -> anyhow::Result<()> {
    let all = on_each(node, ranks, COUNT)?;
    let mut runs = Vec::new();
    for rank in 0..ranks {
        node.write(rank, all.data[rank], &own(rank))?;
        let args = [Arg::Ranks(all), I(rank as i32), I(ranks as i32), I(COUNT as i32)];
        runs.push(run(rank, "two_shot", &args).shape(4, 64));
    }
    node.launch(&runs)?;
    for rank in 0..ranks {
        anyhow::ensure!(node.read(rank, all.data[rank], COUNT)? == sum(ranks), "rank {rank}");
    }
    Ok(())
}

fn ring(node: &Node, ranks: usize) -> anyhow::Result<()> {
    let all = on_each(node, ranks, 2 * COUNT)?;
    let mut runs = Vec::new();
    let mut data = Vec::new();
    for rank in 0..ranks {
        data.push(node.words(rank, COUNT)?);
        node.write(rank, data[rank], &own(rank))?;
        let args = [Arg::Ranks(all), A(data[rank]), I(rank as i32), I(ranks as i32), I(COUNT as i32)];
        runs.push(run(rank, "ring", &args).shape(1, 256));
    }
    node.launch(&runs)?;
    for (rank, &data) in data.iter().enumerate() {
        anyhow::ensure!(node.read(rank, data, COUNT)? == sum(ranks), "rank {rank}");
    }
    Ok(())
}

fn put_with_signal(node: &Node, ranks: usize) -> anyhow::Result<()> {
    let all = on_each(node, ranks, COUNT)?;
    let (mut runs, mut outs) = (Vec::new(), Vec::new());
    for rank in 0..ranks {
        let data = node.words(rank, COUNT)?;
        node.write(rank, data, &own(rank))?;
        outs.push(node.words(rank, COUNT)?);
        let count = I(COUNT as i32);
        let put = [Arg::Ranks(all), A(data), I(rank as i32), I(ranks as i32), count.clone()];
        let wait = [Arg::Ranks(all), A(outs[rank]), I(rank as i32), I(4), count];
        runs.push(run(rank, "put_with_signal", &put).shape(4, 64));
        runs.push(run(rank, "wait_for_signal", &wait).shape(1, 256));
    }
    node.launch(&runs)?;
    for (rank, &out) in outs.iter().enumerate() {
        let came: Vec<u32> = own((rank + ranks - 1) % ranks).iter().map(|word| word + 1).collect();
        anyhow::ensure!(node.read(rank, out, COUNT)? == came, "rank {rank}");
    }
    Ok(())
}
