//! How processes find the root and join: addresses, interfaces, and problems with joining processes.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::ensure;

use super::{LONG, SHORT, all_report, all_right, free_port, plan, reported};
use crate::rank_processes::{Plan, share_ids, spawn};

/// With `NCCL_COMM_ID`, every process has the same id, and the processes may start in any order.
pub(super) fn an_address_for_all() -> anyhow::Result<()> {
    let address = format!("127.0.0.1:{}", free_port()?);
    all_right(&Plan { env: &[("NCCL_COMM_ID", &address)], ..plan("sums", &[1, 2]) })
}

pub(super) fn an_interface_by_name() -> anyhow::Result<()> {
    all_right(&Plan { env: &[("NCCL_SOCKET_IFNAME", "=lo")], ..plan("sums", &[1, 1]) })?;
    let mut process = spawn("joins 0 1 1 0", &[("NCCL_SOCKET_IFNAME", "nothing0")])?;
    ensure!(!process.child.wait()?.success(), "a missing interface was accepted");
    Ok(())
}

/// The processes on a node share the GPUs that they can see.
pub(super) fn a_gpu_for_each_process() -> anyhow::Result<()> {
    let one = |gpu: &'static str| [("CUDA_VISIBLE_DEVICES", gpu)];
    let words =
        ["ncclInvalidUsage", "ranks 0 and 1 are both on GPU 3", "with GPU 0 current", "CUDA_VISIBLE_DEVICES"];
    all_report(&Plan { env: &one("3"), ..plan("joins", &[1, 1]) }, &words)?;
    let shared = [("CUDA_VISIBLE_DEVICES", "3"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
    all_right(&Plan { env: &shared, ..plan("sums", &[1, 1]) })?;
    let of = ["4", "1,0"];
    let mut processes = [spawn("sums 0 1 2 0", &one(of[0]))?, spawn("sums 1 1 2 0", &one(of[1]))?];
    share_ids(&mut processes)?;
    for process in processes {
        process.said()?.map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

pub(super) fn a_port_in_use() -> anyhow::Result<()> {
    let other = TcpListener::bind("127.0.0.1:0")?;
    let address = other.local_addr()?.to_string();
    let process = spawn("joins 0 1 1 0", &[("NCCL_COMM_ID", &address)])?;
    reported("rank 0", process.said()?, &["ncclSystemError", &format!("NCCL_COMM_ID={address}"), "in use"])?;
    for bad in ["nonsense", "127.0.0.1", "127.0.0.1:99999"] {
        let mut process = spawn("joins 0 1 1 0", &[("NCCL_COMM_ID", bad)])?;
        ensure!(!process.child.wait()?.success(), "NCCL_COMM_ID={bad} was accepted");
    }
    Ok(())
}

pub(super) fn an_id_of_an_ended_process() -> anyhow::Result<()> {
    let mut first = spawn("joins 0 1 2 0", &[])?;
    let ids = first.line("ids: ")?;
    first.child.kill()?;
    first.child.wait()?;
    let mut second = spawn("joins 1 1 2 0", &[])?;
    second.give(&ids)?;
    reported(
        "rank 1",
        second.said()?,
        &["ncclRemoteError", "which made the id, is not listening at 127.0.0.1:"],
    )
}

pub(super) fn killed_before_all_join() -> anyhow::Result<()> {
    let mut processes = [spawn("joins 0 1 3 0", &[])?, spawn("joins 1 1 3 0", &[])?];
    share_ids(&mut processes)?;
    std::thread::sleep(Duration::from_millis(300));
    let [root, mut member] = processes;
    member.child.kill()?;
    member.child.wait()?;
    let words = ["ncclRemoteError", "rank 1 is gone", "ended before the communicator was created"];
    reported("rank 0", root.said()?, &words)
}

pub(super) fn a_rank_that_never_joins() -> anyhow::Result<()> {
    // The root's timeout also applies to the other process.
    let mut processes = [spawn("joins 0 1 3 0", &SHORT)?, spawn("joins 2 1 3 0", &LONG)?];
    share_ids(&mut processes)?;
    for process in processes {
        let words = ["ncclTimeout", "rank 1 of 3 never joined the communicator", "not proved"];
        reported("a rank that joined", process.said()?, &words)?;
    }
    Ok(())
}

pub(super) fn two_ranks_with_one_number() -> anyhow::Result<()> {
    let mut processes =
        [spawn("joins 0 1 3 0", &[])?, spawn("joins 1 1 3 0", &[])?, spawn("joins 1 1 3 0", &[])?];
    share_ids(&mut processes)?;
    for process in processes {
        let words = ["ncclInvalidUsage", "two ranks of one communicator are both rank 1", "in process"];
        reported("a rank", process.said()?, &words)?;
    }
    Ok(())
}

pub(super) fn world_sizes_that_differ() -> anyhow::Result<()> {
    let mut processes = [spawn("joins 0 1 2 0", &[])?, spawn("joins 1 1 3 0", &[])?];
    share_ids(&mut processes)?;
    for process in processes {
        reported(
            "a rank",
            process.said()?,
            &["ncclInvalidArgument", "disagree about the world size", "of 2", "of 3"],
        )?;
    }
    Ok(())
}
