//! Communicators that lose ranks, revoked ones, windows, and simulated groups.

use std::ptr::null_mut;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::nccl::result::get_uniqueid;
use cudarc::nccl::sys::{self, ncclComm_t, ncclResult_t, ncclUniqueId};
use lab::Check;

use crate::contains;
use crate::nccl::stream;
use crate::raw::{
    Answer, Function, Rank, address, answer, communicators, config, floats, in_group, raw_ranks,
};
use crate::twins::{Said, TestRank, said, twins};

use ncclResult_t::{ncclInProgress, ncclInvalidArgument, ncclInvalidUsage};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl_management::a_shrink_keeps_the_order_of_the_ranks_that_stay", shrinks),
        Check::new("nccl_management::a_shrink_can_cancel_the_work_of_the_parent", shrink_aborts),
        Check::new("nccl_management::bad_lists_of_excluded_ranks_are_named", bad_lists),
        Check::new("nccl_management::a_group_shrinks_for_several_ranks", grouped),
        Check::new("nccl_management::a_revoked_communicator_no_longer_communicates", revoked),
        Check::new("nccl_management::a_nonblocking_shrink_and_revoke_are_polled", nonblocking),
        Check::new("nccl_management::all_ranks_register_a_window", windows),
        Check::new("nccl_management::a_simulated_group_only_estimates_its_time", simulated),
        Check::new("nccl_management::a_communicator_uses_no_gpu_memory", statistics),
        Check::new("nccl_management::a_suspended_communicator_is_resumed", suspended),
        Check::new("nccl_management::a_communicator_grows", grows),
        Check::new("nccl_management::ranks_agree_about_a_larger_communicator", disagree_about_growth),
        Check::new("nccl_management::every_rank_must_suspend", || twins(2, suspends, &SUSPENDS)),
    ]
}

#[track_caller]
fn refused(answer: Answer, code: ncclResult_t, words: &[&str]) {
    let (got, text) = answer.expect_err("an error");
    assert_eq!(got, code, "{text}");
    contains(&text, words);
}

/// `NCCL_SHRINK_DEFAULT` and `NCCL_SHRINK_ABORT`
const DEFAULT: i32 = 0;
pub(crate) const ABORT: i32 = 1;

/// Returns the smaller communicator, or the error.
pub(crate) fn shrink(of: &Rank, excluded: &[i32], flags: i32) -> Result<Rank, (ncclResult_t, String)> {
    let (mut list, mut made) = (excluded.to_vec(), null_mut());
    let (list, count) = (list.as_mut_ptr(), excluded.len() as i32);
    // SAFETY: the list has this many ranks, and the result is writable.
    answer(unsafe { sys::ncclCommShrink(of.comm, list, count, &mut made, null_mut(), flags) })?;
    Ok(Rank::of(made, of.stream.clone()))
}

fn revoke(comm: ncclComm_t, flags: i32) -> Answer {
    // SAFETY: the library checks the communicator.
    answer(unsafe { sys::ncclCommRevoke(comm, flags) })
}

/// Sums `value` over the ranks of a communicator.
pub(crate) fn sum(of: &Rank, value: f32) -> f32 {
    let buffer = of.stream.clone_htod(&[value]).unwrap();
    of.call(Function::AllReduce, address(&buffer), address(&buffer), floats(1)).unwrap();
    of.stream.clone_dtoh(&buffer).unwrap()[0]
}

fn shrinks() -> anyhow::Result<()> {
    raw_ranks(0, 4, |own| {
        let me = own.rank;
        if me != 1 {
            let without_1 = shrink(&own, &[1], DEFAULT).unwrap();
            assert_eq!((without_1.n, without_1.rank), (3, [0, 9, 1, 2][me]));
            assert_eq!(sum(&without_1, (me + 1) as f32), 8.0);
        }
        // The list may have any order, and other ranks may take part.
        if me == 1 || me == 3 {
            let pair = shrink(&own, &[2, 0], DEFAULT).unwrap();
            assert_eq!((pair.n, pair.rank), (2, me / 2));
            assert_eq!(sum(&pair, 1.0), 2.0);
            assert_eq!(shrink(&pair, &[1 - pair.rank as i32], DEFAULT).unwrap().n, 1);
        }
        // A rank that was excluded still takes part in the parent's other calls.
        let mut child = null_mut();
        // SAFETY: the child is writable.
        answer(unsafe { sys::ncclCommSplit(own.comm, 0, -(me as i32), &mut child, null_mut()) }).unwrap();
        let child = Rank::of(child, own.stream.clone());
        assert_eq!(child.rank, 3 - me);
        assert_eq!(sum(&own, 1.0), 4.0);
    });
    Ok(())
}

fn shrink_aborts() -> anyhow::Result<()> {
    raw_ranks(0, 3, |own| {
        if own.rank == 1 {
            // This rank has failed: it makes no calls.
            own.leak();
            return;
        }
        let buffer = own.stream.clone_htod(&[1.0_f32; 8]).unwrap();
        own.stream.synchronize().unwrap();
        own.call(Function::AllReduce, address(&buffer), address(&buffer), floats(8)).unwrap();
        let smaller = shrink(&own, &[1], ABORT).unwrap();
        own.stream.synchronize().unwrap();
        // The canceled work is over, so to abort the parent cancels nothing on the stream.
        // SAFETY: nothing uses the parent any more.
        answer(unsafe { sys::ncclCommAbort(own.comm) }).unwrap();
        own.leak();
        assert_eq!(sum(&smaller, 2.0), 4.0);
    });
    Ok(())
}

fn bad_lists() -> anyhow::Result<()> {
    raw_ranks(0, 2, |own| {
        let bad = |list: &[i32], words: &[&str]| {
            refused(shrink(&own, list, DEFAULT).map(drop), ncclInvalidArgument, words);
        };
        let (me, other) = (own.rank as i32, 1 - own.rank as i32);
        bad(&[], &["no rank is excluded"]);
        bad(&[me], &["excludes itself"]);
        bad(&[2], &["rank 2 of 2 ranks"]);
        bad(&[-1], &["rank -1 of 2 ranks"]);
        bad(&[other, other], &["is excluded twice"]);
        let mut made = null_mut();
        let mut list = [other];
        // SAFETY: the library checks the pointers.
        unsafe {
            let none = sys::ncclCommShrink(own.comm, null_mut(), 1, &mut made, null_mut(), DEFAULT);
            refused(answer(none), ncclInvalidArgument, &["the list of excluded ranks is null"]);
            let none = sys::ncclCommShrink(own.comm, list.as_mut_ptr(), 1, null_mut(), null_mut(), DEFAULT);
            refused(answer(none), ncclInvalidArgument, &["the pointer to the communicator is null"]);
            let none = sys::ncclCommShrink(null_mut(), list.as_mut_ptr(), 1, &mut made, null_mut(), DEFAULT);
            refused(answer(none), ncclInvalidArgument, &["the communicator is NULL"]);
        }
        assert_eq!(sum(&own, 1.0), 2.0);
    });
    Ok(())
}

fn grouped() -> anyhow::Result<()> {
    let comms = crate::raw::communicators(&[0, 1, 2]).unwrap();
    let ranks: Vec<_> =
        comms.into_iter().enumerate().map(|(gpu, comm)| Rank::of(comm, stream(gpu))).collect();
    let (mut list, mut made) = ([1], [null_mut(); 2]);
    in_group(|| {
        for (rank, to) in [&ranks[0], &ranks[2]].into_iter().zip(&mut made) {
            // SAFETY: the list has one rank, and the result is writable until the end of the group.
            answer(unsafe { sys::ncclCommShrink(rank.comm, list.as_mut_ptr(), 1, to, null_mut(), DEFAULT) })
                .unwrap();
        }
    })
    .unwrap();
    let smaller = [Rank::of(made[0], ranks[0].stream.clone()), Rank::of(made[1], ranks[2].stream.clone())];
    assert_eq!(smaller.each_ref().map(|rank| (rank.rank, rank.n)), [(0, 2), (1, 2)]);
    Ok(())
}

fn revoked() -> anyhow::Result<()> {
    raw_ranks(0, 2, |own| {
        let buffer = own.stream.clone_htod(&[1.0_f32; 8]).unwrap();
        own.stream.synchronize().unwrap();
        let at = address(&buffer);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        own.stream.begin_capture(mode).unwrap();
        own.call(Function::AllReduce, at, at, floats(8)).unwrap();
        let graph = own.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        if own.rank == 0 {
            own.call(Function::AllReduce, at, at, floats(8)).unwrap();
        }
        refused(revoke(own.comm, 1), ncclInvalidArgument, &["NCCL_REVOKE_DEFAULT"]);
        revoke(own.comm, 0).unwrap();
        own.stream.synchronize().unwrap();
        let again = own.call(Function::AllReduce, at, at, floats(8));
        refused(again, ncclInvalidUsage, &["ncclAllReduce: the communicator has been revoked"]);
        crate::fails(graph.launch(), CUresult::CUDA_ERROR_INVALID_VALUE, &["is gone (ncclCommRevoke)"]);
        drop(graph);
        let send = own.call(Function::Send, at, 0, floats(8));
        refused(send, ncclInvalidUsage, &["ncclSend: the communicator has been revoked"]);
        refused(revoke(own.comm, 0), ncclInvalidArgument, &["has been revoked already"]);
        // SAFETY: the communicator is alive.
        let finalized = unsafe { sys::ncclCommFinalize(own.comm) };
        refused(answer(finalized), ncclInvalidArgument, &["destroy it instead"]);
        let mut child = null_mut();
        // SAFETY: the child is writable.
        answer(unsafe { sys::ncclCommSplit(own.comm, 0, 0, &mut child, null_mut()) }).unwrap();
        assert_eq!(sum(&Rank::of(child, own.stream.clone()), 1.0), 2.0);
        assert_eq!(shrink(&own, &[1 - own.rank as i32], DEFAULT).unwrap().n, 1);
    });
    revoke(null_mut(), 0).unwrap();
    Ok(())
}

fn poll(comm: ncclComm_t) {
    let mut error = ncclInProgress;
    while error == ncclInProgress {
        // SAFETY: the result is writable.
        answer(unsafe { sys::ncclCommGetAsyncError(comm, &mut error) }).unwrap();
        std::thread::yield_now();
    }
    assert_eq!(error, ncclResult_t::ncclSuccess);
}

fn nonblocking() -> anyhow::Result<()> {
    let id = get_uniqueid().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let own = stream(rank as usize);
                own.context().bind_to_thread().unwrap();
                let (mut comm, mut config) = (null_mut(), config());
                config.blocking = 0;
                // SAFETY: the results and the configuration are writable.
                let code = unsafe { sys::ncclCommInitRankConfig(&mut comm, 3, id, rank, &mut config) };
                assert_eq!(code, ncclInProgress);
                poll(comm);
                if rank < 2 {
                    let (mut list, mut smaller) = ([2], null_mut());
                    // SAFETY: as above.
                    let code = unsafe {
                        sys::ncclCommShrink(comm, list.as_mut_ptr(), 1, &mut smaller, null_mut(), DEFAULT)
                    };
                    assert_eq!(code, ncclInProgress);
                    poll(comm);
                    let smaller = Rank::of(smaller, own.clone());
                    assert_eq!((smaller.rank, smaller.n), (rank as usize, 2));
                }
                assert_eq!(revoke(comm, 0).unwrap_err().0, ncclInProgress);
                poll(comm);
                drop(Rank::of(comm, own));
            });
        }
    });
    Ok(())
}

fn register(own: &Rank, address: u64, bytes: usize) -> Result<sys::ncclWindow_t, (ncclResult_t, String)> {
    let mut window = null_mut();
    // SAFETY: the result is writable, and the library checks the buffer.
    let code = unsafe { sys::ncclCommWindowRegister(own.comm, address as *mut _, bytes, &mut window, 1) };
    answer(code).map(|()| window)
}

fn windows() -> anyhow::Result<()> {
    raw_ranks(0, 2, |own| {
        // The size may differ between ranks.
        let buffer = own.stream.clone_htod(&vec![1.0_f32; 2048 + own.rank]).unwrap();
        own.stream.synchronize().unwrap();
        let at = address(&buffer);
        let bad = |address: u64, bytes: usize, words: &str| {
            refused(register(&own, address, bytes).map(drop), ncclInvalidArgument, &[words]);
        };
        bad(0, 4, "4 bytes at 0x0 can't be registered");
        bad(at, 0, "0 bytes at");
        bad(at, 1 << 20, "are not in one buffer");
        bad(at + 512, 4, "must be a multiple of 4096");
        let whole = register(&own, at, 4 * (2048 + own.rank)).unwrap();
        let half = register(&own, at + 4096, 4096).unwrap();
        assert!(!whole.is_null() && whole != half);
        let mut pointer = null_mut();
        // SAFETY: the result is writable, and the library checks the windows.
        unsafe {
            answer(sys::ncclWinGetUserPtr(own.comm, half, &mut pointer)).unwrap();
            assert_eq!(pointer as u64, at + 4096);
            own.call(Function::AllReduce, at, at, floats(4)).unwrap();
            own.stream.synchronize().unwrap();
            answer(sys::ncclCommWindowDeregister(own.comm, null_mut())).unwrap();
            answer(sys::ncclCommWindowDeregister(own.comm, half)).unwrap();
            let again = answer(sys::ncclCommWindowDeregister(own.comm, half));
            refused(again, ncclInvalidArgument, &["is not a window of this communicator"]);
            let gone = answer(sys::ncclWinGetUserPtr(own.comm, half, &mut pointer));
            refused(gone, ncclInvalidArgument, &["is no longer one"]);
        }
    });
    Ok(())
}

/// `NCCL_SIM_INFO_INITIALIZER`
fn simulation() -> sys::ncclSimInfo_t {
    let size = size_of::<sys::ncclSimInfo_t>();
    sys::ncclSimInfo_t { size, magic: 0x7468_5283, version: 23_007, estimatedTime: -1.0 }
}

/// Ends a group of calls with a simulation, and returns the estimated microseconds.
fn simulate(calls: impl FnOnce()) -> Result<f32, (ncclResult_t, String)> {
    let mut info = simulation();
    // SAFETY: the structure is writable.
    unsafe {
        answer(sys::ncclGroupStart())?;
        calls();
        answer(sys::ncclGroupSimulateEnd(&mut info))?;
    }
    Ok(info.estimatedTime)
}

fn simulated() -> anyhow::Result<()> {
    raw_ranks(0, 2, |own| {
        let buffer = own.stream.clone_htod(&vec![1.0_f32; 1 << 20]).unwrap();
        own.stream.synchronize().unwrap();
        let at = address(&buffer);
        let all_reduce = |count| own.call(Function::AllReduce, at, at, floats(count)).unwrap();
        let [small, large] = [1, 1 << 20].map(|count| simulate(|| all_reduce(count)).unwrap());
        assert!(1.0 < small && small < large, "{small} {large}");
        assert_eq!(simulate(|| ()).unwrap(), -1.0);
        // Nothing was launched.
        own.stream.synchronize().unwrap();
        assert_eq!(own.stream.clone_dtoh(&buffer).unwrap()[0], 1.0);
        assert_eq!(sum(&own, 3.0), 6.0);
        // Inside another group, the simulation only ends the inner one.
        in_group(|| assert_eq!(simulate(|| all_reduce(1)).unwrap(), -1.0)).unwrap();
        assert_eq!(own.stream.clone_dtoh(&buffer).unwrap()[..2], [2.0, 1.0]);
        let mut info = simulation();
        // SAFETY: the structure is writable.
        unsafe {
            let outside = answer(sys::ncclGroupSimulateEnd(&mut info));
            refused(outside, ncclInvalidUsage, &["without a matching ncclGroupStart"]);
            info.magic = 0;
            answer(sys::ncclGroupStart()).unwrap();
            let bad = answer(sys::ncclGroupSimulateEnd(&mut info));
            refused(bad, ncclInvalidArgument, &["NCCL_SIM_INFO_INITIALIZER"]);
        }
    });
    Ok(())
}

fn statistics() -> anyhow::Result<()> {
    raw_ranks(0, 1, |own| {
        let mut value = 7;
        let total = sys::ncclCommMemStat_t::ncclStatGpuMemTotal;
        // SAFETY: the result is writable, and the library checks the pointer.
        unsafe {
            answer(sys::ncclCommMemStats(own.comm, total, &mut value)).unwrap();
            assert_eq!(value, 0);
            let none = answer(sys::ncclCommMemStats(own.comm, total, null_mut()));
            refused(none, ncclInvalidArgument, &["the pointer to the value is null"]);
        }
    });
    Ok(())
}

/// `NCCL_SUSPEND_MEM`
const MEMORY: i32 = 1;
const SUSPENDS: [&str; 2] = ["rank 0 waits in ncclCommSuspend", "rank 1 never makes the call"];

fn suspend(of: &Rank, flags: i32) -> Answer {
    // SAFETY: the library checks the communicator.
    answer(unsafe { sys::ncclCommSuspend(of.comm, flags) })
}

fn resume(of: &Rank) -> Answer {
    // SAFETY: the library checks the communicator.
    answer(unsafe { sys::ncclCommResume(of.comm) })
}

fn suspended() -> anyhow::Result<()> {
    raw_ranks(0, 2, |own| {
        let is_suspended = || {
            let mut value = 7;
            let statistic = sys::ncclCommMemStat_t::ncclStatGpuMemSuspended;
            // SAFETY: the result is writable.
            answer(unsafe { sys::ncclCommMemStats(own.comm, statistic, &mut value) }).unwrap();
            value
        };
        refused(resume(&own), ncclInvalidUsage, &["ncclCommResume: the communicator is not suspended"]);
        suspend(&own, 0).unwrap();
        assert_eq!(is_suspended(), 0, "no flag asks for anything");
        for round in 0..2 {
            suspend(&own, MEMORY).unwrap();
            assert_eq!(is_suspended(), 1);
            refused(suspend(&own, MEMORY), ncclInvalidUsage, &["the communicator is suspended already"]);
            let buffer = own.stream.clone_htod(&[1.0_f32]).unwrap();
            let early = own.call(Function::AllReduce, address(&buffer), address(&buffer), floats(1));
            refused(early, ncclInvalidUsage, &["ncclAllReduce", "call ncclCommResume first"]);
            if round == 0 {
                resume(&own).unwrap();
                assert_eq!(is_suspended(), 0);
                assert_eq!(sum(&own, 1.0), 2.0);
            }
        }
    });
    // One thread suspends several communicators in a group.
    let comms = communicators(&[2, 3]).unwrap();
    let all = |function: unsafe fn(ncclComm_t) -> ncclResult_t| {
        // SAFETY: the library checks the communicators.
        in_group(|| comms.iter().for_each(|&comm| answer(unsafe { function(comm) }).unwrap())).unwrap();
    };
    all(|comm| {
        // SAFETY: as above.
        unsafe { sys::ncclCommSuspend(comm, MEMORY) }
    });
    all(sys::ncclCommResume);
    // SAFETY: the communicators are not used again.
    comms.iter().for_each(|&comm| answer(unsafe { sys::ncclCommDestroy(comm) }).unwrap());
    Ok(())
}

/// In the wrong twin, rank 1 leaves without suspending its communicator.
fn suspends(me: &TestRank) -> Said {
    if me.is_wrong(1) {
        return Ok(());
    }
    said(suspend(&me.own, MEMORY))?;
    said(resume(&me.own))
}

/// Makes a larger communicator. `of` is null for a new rank.
fn grow(
    of: ncclComm_t,
    size: i32,
    id: Option<&ncclUniqueId>,
    rank: i32,
) -> Result<ncclComm_t, (ncclResult_t, String)> {
    let mut made = null_mut();
    let id = id.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the id is null or valid, and the result is writable.
    answer(unsafe { sys::ncclCommGrow(of, size, id, rank, &mut made, null_mut()) }).map(|()| made)
}

fn id_of(of: &Rank) -> ncclUniqueId {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: the id is writable.
    answer(unsafe { sys::ncclCommGetUniqueId(of.comm, &mut id) }).unwrap();
    id
}

fn grows() -> anyhow::Result<()> {
    let (ids, for_new_rank) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let own = stream(2);
            own.context().bind_to_thread().unwrap();
            let id = for_new_rank.recv().unwrap();
            let rank = Rank::of(grow(null_mut(), 3, Some(&id), 2).unwrap(), own);
            assert_eq!((rank.n, rank.rank), (3, 2));
            assert_eq!(sum(&rank, 4.0), 7.0);
        });
        raw_ranks(0, 2, |own| {
            let id = (own.rank == 1).then(|| id_of(&own));
            if let Some(id) = id {
                ids.send(id).unwrap();
            }
            let larger = Rank::of(grow(own.comm, 3, id.as_ref(), -1).unwrap(), own.stream.clone());
            assert_eq!((larger.n, larger.rank), (3, own.rank));
            assert_eq!(sum(&larger, (own.rank + 1) as f32), 7.0);
            // The parent still works.
            assert_eq!(sum(&own, 1.0), 2.0);
        });
    });
    Ok(())
}

fn disagree_about_growth() -> anyhow::Result<()> {
    raw_ranks(0, 2, |own| {
        refused(grow(own.comm, 2, None, -1).map(drop), ncclInvalidArgument, &["must have more, not 2"]);
        refused(grow(own.comm, 3, None, 1).map(drop), ncclInvalidArgument, &["must pass -1, not 1"]);
        refused(grow(null_mut(), 3, None, 2).map(drop), ncclInvalidArgument, &["a new rank needs the id"]);
        let id = id_of(&own);
        let two = grow(own.comm, 3, Some(&id), -1).map(drop);
        refused(two, ncclInvalidUsage, &["2 ranks of the communicator pass an id", "exactly one must"]);
    });
    raw_ranks(2, 2, |own| {
        let id = (own.rank == 0).then(|| id_of(&own));
        let sizes = grow(own.comm, 3 + own.rank as i32, id.as_ref(), -1).map(drop);
        refused(
            sizes,
            ncclInvalidUsage,
            &["disagree about the size", "rank 1: ncclCommGrow(4 ranks, no id)"],
        );
    });
    Ok(())
}
