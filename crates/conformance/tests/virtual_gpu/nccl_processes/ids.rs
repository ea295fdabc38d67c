//! How many communicators can be created with one id.

use super::values::sums;
use super::{all_right, free_port, plan, reported};
use crate::rank_processes::{Plan, run};
use crate::raw::Rank;
use crate::twins::{Said, TestRank};

/// Creates a second communicator with the first one's id; both are used.
pub(super) fn again(me: &TestRank) -> Said {
    let TestRank { rank, n, ids, .. } = *me;
    let stream = me.own.stream.context().new_stream().unwrap();
    let second = Rank::try_join(ids[0], rank, n, stream);
    sums(me)?;
    let own = second?;
    sums(&TestRank { rank, n, wrong: false, first_gpu: 0, own, ids })
}

pub(super) fn one_communicator() -> anyhow::Result<()> {
    for layout in [&[2][..], &[1, 1], &[1, 2]] {
        for (rank, said) in run(&plan("again", layout))?.into_iter().enumerate() {
            let words = [
                "ncclInvalidUsage",
                "this id has already been used to create a communicator",
                "again: ncclCommInitRank",
                "give each communicator its own id",
            ];
            reported(&format!("{layout:?}, rank {rank}"), said, &words)?;
        }
    }
    Ok(())
}

pub(super) fn any_number_by_address() -> anyhow::Result<()> {
    let address = format!("127.0.0.1:{}", free_port()?);
    all_right(&Plan { env: &[("NCCL_COMM_ID", &address)], ..plan("again", &[1, 2]) })
}
