//! Tests `VIRTUAL_NCCL`: what NCCL may do, and what its versions do differently. Programs run in processes of their own,
//! because the variable is read only once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::ensure;
use cudarc::nccl::result::{comm_abort, get_nccl_version};
use lab::Check;

use crate::raw::{Arguments, Function, Rank, address, floats, raw_ranks};
use crate::{child, contains};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("strict::another_word_is_an_error", unknown_word),
        Check::new("strict::nccl_has_the_version_that_was_asked_for", versions),
        Check::new("strict::a_pool_s_memory_is_refused_below_2_23", pool_memory),
        Check::new("strict::an_abort_is_logged_as_the_version_does", abort_lines),
        Check::new("strict::a_first_use_blocks_until_the_others_connect", first_use),
        Check::new("strict::a_sum_has_another_order", order),
    ]
}

/// The number of ranks.
const RANKS: usize = 3;

/// Runs a program with a strict NCCL, which must succeed, and returns what it prints.
fn printed(program: &str, nccl: &str, switches: &[(&str, &str)]) -> anyhow::Result<String> {
    let (well, said) = child::start(program, &[&[("VIRTUAL_NCCL", nccl)], switches].concat())?;
    ensure!(well, "{said}");
    Ok(said)
}

fn unknown_word() -> anyhow::Result<()> {
    let (well, said) = child::start("topology::start", &[("VIRTUAL_NCCL", "strikt")])?;
    ensure!(!well, "{said}");
    contains(&said, &["VIRTUAL_NCCL=strikt: it must be strict, or strict-VERSION, such as strict-2.21.5"]);
    Ok(())
}

/// Prints NCCL's version, makes all ranks sum a short and a long buffer from a memory pool, and aborts.
pub(crate) fn reduce() -> anyhow::Result<()> {
    lab::attach(RANKS)?;
    println!("version {}", get_nccl_version().map_err(|error| anyhow::anyhow!("{error:?}"))?);
    let said = raw_ranks(0, RANKS, |rank: Rank| {
        let said = [1000, 5000].map(|len| {
            let buffer = rank.stream.clone_htod(&vec![1.0_f32; len]).unwrap();
            let at = address(&buffer);
            let said = rank.call(Function::AllReduce, at, at, floats(len));
            rank.stream.synchronize().unwrap();
            said.map_or_else(|(_, text)| text, |()| "summed".to_owned())
        });
        rank.leaked.set(true);
        // SAFETY: only this thread uses the communicator, for the last time.
        unsafe { comm_abort(rank.comm) }.unwrap();
        said
    });
    println!("short: {}\nlong: {}", said[0][0], said[0][1]);
    Ok(())
}

fn versions() -> anyhow::Result<()> {
    contains(&printed("strict::reduce", "strict", &[])?, &["version 23007\n"]);
    contains(&printed("strict::reduce", "strict-2.21.5", &[])?, &["version 22105\n"]);
    Ok(())
}

fn pool_memory() -> anyhow::Result<()> {
    let refused = printed("strict::reduce", "strict-2.22.3", &[])?;
    contains(&refused, &["short: summed", "long: ", "from a memory pool", "set NCCL_P2P_DIRECT_DISABLE=1"]);
    for (nccl, switch) in [("strict-2.23.4", "0"), ("strict-2.22.3", "1")] {
        let summed = printed("strict::reduce", nccl, &[("NCCL_P2P_DIRECT_DISABLE", switch)])?;
        contains(&summed, &["short: summed", "long: summed"]);
    }
    Ok(())
}

fn abort_lines() -> anyhow::Result<()> {
    let lines = |nccl, word: &str| -> anyhow::Result<usize> {
        let switches =
            [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "DESTROY"), ("NCCL_P2P_DIRECT_DISABLE", "1")];
        let said = printed("strict::reduce", nccl, &switches)?;
        Ok(said.lines().filter(|line| line.ends_with(&format!("- Abort {word}"))).count())
    };
    for (nccl, started, complete) in [("strict-2.21.5", 0, 3), ("strict-2.27.5", 0, 1), ("strict", 3, 0)] {
        let got = (lines(nccl, "START")?, lines(nccl, "COMPLETE")?);
        ensure!(got == (started, complete), "{nccl}: {got:?} lines about the start and the end of aborts");
    }
    Ok(())
}

/// Prints whether rank 0's first all-reduce and its first send blocked the host until the last rank had made its call.
/// The calls after those must not wait: the last rank makes its own only after rank 0's has returned.
pub(crate) fn connects() -> anyhow::Result<()> {
    lab::attach(RANKS)?;
    let (others, rank_0) = (AtomicUsize::new(0), Barrier::new(2));
    let last = RANKS - 1;
    let blocked = raw_ranks(0, RANKS, |rank: Rank| {
        let buffer = rank.stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let at = address(&buffer);
        let mut blocked = Vec::new();
        for function in [Function::AllReduce, Function::Send] {
            let (function, peer) = match (function, rank.rank) {
                (Function::Send, 0) => (function, last),
                (Function::Send, other) if other == last => (Function::Recv, 0),
                (Function::Send, _) => continue,
                (other, _) => (other, 0),
            };
            let call = || rank.call(function, at, at, Arguments { root: peer as i32, ..floats(8) }).unwrap();
            if rank.rank == last {
                std::thread::sleep(Duration::from_millis(50));
                others.fetch_add(1, Ordering::SeqCst);
            }
            let before = blocked.len() + 1;
            call();
            blocked.push(others.load(Ordering::SeqCst) == before);
            // All ranks are connected now.
            if rank.rank == last {
                rank_0.wait();
            }
            call();
            if rank.rank == 0 {
                rank_0.wait();
            }
        }
        rank.stream.synchronize().unwrap();
        blocked
    });
    println!("blocked: {:?}", blocked[0]);
    Ok(())
}

fn first_use() -> anyhow::Result<()> {
    contains(&printed("strict::connects", "strict", &[])?, &["blocked: [true, true]"]);
    Ok(())
}

/// Prints the sum of four ranks' values, which depends on the order.
pub(crate) fn sums() -> anyhow::Result<()> {
    // 1 is half a unit in the last place of 2²⁴, and is lost if it is added to it alone.
    let values = [0.0, 16_777_216.0_f32, 1.0, 1.0];
    lab::attach(values.len())?;
    let sums = raw_ranks(0, values.len(), |rank: Rank| {
        let buffer = rank.stream.clone_htod(&[values[rank.rank]; 1]).unwrap();
        rank.call(Function::AllReduce, address(&buffer), address(&buffer), floats(1)).unwrap();
        rank.stream.clone_dtoh(&buffer).unwrap()[0]
    });
    println!("sums: {sums:?}");
    Ok(())
}

fn order() -> anyhow::Result<()> {
    let (_, around_the_ring) = child::start("strict::sums", &[])?;
    contains(&around_the_ring, &["sums: [16777216.0, 16777216.0, 16777216.0, 16777216.0]"]);
    let along_the_chain = printed("strict::sums", "strict", &[])?;
    contains(&along_the_chain, &["sums: [16777218.0, 16777218.0, 16777218.0, 16777218.0]"]);
    Ok(())
}
