//! Communicators whose calls do not wait.

use cudarc::nccl::sys::{self, ncclComm_t, ncclResult_t};

use super::async_error;
use super::values::{LEN, expect, given, upload};
use crate::nccl::last_error;
use crate::raw::{Answer, Function, Rank, address, answer, config, floats};
use crate::twins::{Said, TestRank, said, split};

/// Starts creating a communicator for `n` ranks with the second id; [`poll`] waits until it is ready.
pub(super) fn init_without_waiting(me: &TestRank, n: usize) -> ncclComm_t {
    let mut config = config();
    config.blocking = 0;
    let mut comm: ncclComm_t = std::ptr::null_mut();
    // SAFETY: both pointers point to live values.
    let code =
        unsafe { sys::ncclCommInitRankConfig(&mut comm, n as i32, me.ids[1], me.rank as i32, &mut config) };
    assert_eq!(code, ncclResult_t::ncclInProgress);
    comm
}

/// Polls until no call on the communicator is in progress.
pub(super) fn poll(comm: ncclComm_t) -> Said {
    loop {
        match async_error(comm) {
            ncclResult_t::ncclSuccess => return Ok(()),
            ncclResult_t::ncclInProgress => std::thread::yield_now(),
            code => {
                return Err(format!("{code:?}: {}", last_error()));
            }
        }
    }
}

/// Initializes, reduces, splits, and finalizes; no call waits.
pub(super) fn not_blocking(me: &TestRank) -> Said {
    let comm = init_without_waiting(me, me.n);
    poll(comm)?;
    let own = Rank::of(comm, me.own.stream.clone());
    let in_progress = |answer: Answer| match answer {
        Err((ncclResult_t::ncclInProgress, _)) => poll(comm),
        other => said(other),
    };
    let buffer = upload(&own, &given(me.rank, 0))?;
    let at = address(&buffer);
    in_progress(own.call(Function::AllReduce, at, at, floats(LEN)))?;
    let sums = (0..LEN).map(|i| (0..me.n).map(|rank| given(rank, 0)[i]).sum()).collect();
    expect("a sum", &own, &buffer, sums)?;
    let mut child: ncclComm_t = std::ptr::null_mut();
    in_progress(split(comm, (me.rank % 2) as i32, &mut child))?;
    let half = Rank::of(child, own.stream.clone());
    if half.n != me.n / 2 {
        return Err(format!("a half has {} of {} ranks", half.n, me.n));
    }
    // SAFETY: the communicator is alive.
    in_progress(answer(unsafe { sys::ncclCommFinalize(comm) }))
}
