//! NCCL's error table, row by row: the code that NCCL returns for each call, and words that identify the problem.

use cudarc::driver::CudaSlice;
use cudarc::nccl::result::get_uniqueid;
use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};
use lab::Check;

use crate::nccl::stream;
use crate::raw::{
    Answer, Arguments, Function, Rank, address, answer, communicators, config, floats, in_group, raw_ranks,
};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl_errors::communicators", communicators_row),
        Check::new("nccl_errors::numbers", numbers),
        Check::new("nccl_errors::pointers", pointers),
        Check::new("nccl_errors::operators_of_the_program_s_own", operators),
        Check::new("nccl_errors::to_oneself", to_oneself),
        Check::new("nccl_errors::making_communicators", making),
        Check::new("nccl_errors::two_ranks_on_one_gpu", one_gpu),
        Check::new("nccl_errors::ranks_may_share_a_gpu_where_that_is_asked_for", shared_gpu),
        Check::new("nccl_errors::configurations", configurations),
        Check::new("nccl_errors::the_end_of_a_communicator", ends),
        Check::new("nccl_errors::groups", groups),
        Check::new("nccl_errors::not_blocking", not_blocking),
    ]
}

use ncclResult_t::{ncclInvalidArgument, ncclInvalidUsage};

/// Panics unless the result has this code and contains all of these words.
#[track_caller]
fn refused(answer: Answer, code: ncclResult_t, words: &[&str]) {
    let Err((got, text)) = answer else { panic!("no error, expected {code:?} with {words:?}") };
    assert_eq!(got, code, "{text}");
    crate::contains(&text, words);
}

/// Returns two ranks on GPUs 0 and 1, driven by this thread, each with a buffer of 16 floats.
fn two() -> (Vec<Rank>, Vec<CudaSlice<f32>>) {
    let streams = [stream(0), stream(1)];
    let ranks: Vec<_> = communicators(&[0, 1])
        .unwrap()
        .into_iter()
        .zip(streams)
        .map(|(comm, stream)| Rank::of(comm, stream))
        .collect();
    let buffers = ranks.iter().map(|rank| rank.stream.clone_htod(&[1.0; 16]).unwrap()).collect();
    ranks.iter().for_each(|rank| rank.stream.synchronize().unwrap());
    (ranks, buffers)
}

fn communicators_row() -> anyhow::Result<()> {
    let (ranks, buffers) = two();
    let at = address(&buffers[0]);
    let with = |comm: ncclComm_t| {
        let rank = Rank { comm, rank: 0, n: 2, stream: ranks[0].stream.clone(), leaked: true.into() };
        rank.call(Function::AllReduce, at, at, floats(1))
    };
    refused(with(std::ptr::null_mut()), ncclInvalidArgument, &["communicator is NULL"]);
    refused(with(0xbad0 as ncclComm_t), ncclInvalidArgument, &["0xbad0 is not a communicator"]);
    let gone = ranks[1].comm;
    drop(ranks);
    let rank = Rank { comm: gone, rank: 0, n: 2, stream: stream(1), leaked: true.into() };
    let after = rank.call(Function::AllReduce, at, at, floats(1));
    refused(after, ncclInvalidArgument, &["is not a communicator, or is no longer one"]);
    // SAFETY: a null pointer is refused.
    let count = unsafe { sys::ncclCommCount(std::ptr::null_mut(), &mut 0) };
    refused(answer(count), ncclInvalidArgument, &["communicator is NULL"]);
    Ok(())
}

fn numbers() -> anyhow::Result<()> {
    let (ranks, buffers) = two();
    let at = address(&buffers[0]);
    let call = |function, with| ranks[0].call(function, at, at, with);
    for root in [-1, 2] {
        for (function, name) in [
            (Function::Broadcast, "ncclBroadcast: root"),
            (Function::Reduce, "ncclReduce: root"),
            (Function::Gather, "ncclGather: root"),
            (Function::Scatter, "ncclScatter: root"),
            (Function::Send, "ncclSend: peer"),
            (Function::Recv, "ncclRecv: peer"),
        ] {
            let answer = call(function, Arguments { root, ..floats(1) });
            refused(answer, ncclInvalidArgument, &[&format!("{name} {root} of 2 ranks")]);
        }
    }
    let data_type = Arguments { data_type: ncclDataType_t::ncclNumTypes, ..floats(1) };
    refused(call(Function::AllReduce, data_type), ncclInvalidArgument, &["ncclAllReduce: datatype 12"]);
    refused(call(Function::Send, data_type), ncclInvalidArgument, &["ncclSend: datatype 12"]);
    for (operator, value) in [(ncclRedOp_t::ncclNumOps, "op 5"), (ncclRedOp_t::ncclMaxRedOp, "op 2147483647")]
    {
        let answer = call(Function::Reduce, Arguments { operator, ..floats(1) });
        refused(answer, ncclInvalidArgument, &["ncclReduce", value]);
    }
    let float8 = Arguments { data_type: ncclDataType_t::ncclFloat8e4m3, ..floats(1) };
    refused(call(Function::AllReduce, float8), ncclInvalidArgument, &["float8e4m3 is not supported"]);
    // There is nothing to move, so the call succeeds, and no rank waits.
    for function in [Function::AllReduce, Function::Broadcast, Function::AllToAll, Function::Gather] {
        assert!(call(function, floats(0)).is_ok());
    }
    Ok(())
}

fn pointers() -> anyhow::Result<()> {
    let (ranks, buffers) = two();
    let [own, other] = [address(&buffers[0]), address(&buffers[1])];
    let call = |function, send, receive, with| ranks[0].call(function, send, receive, with);
    let refuse = |function, send, receive, words: &[&str]| {
        refused(call(function, send, receive, floats(8)), ncclInvalidArgument, words);
    };
    refuse(Function::AllReduce, 0, own, &["(sendbuff)", "the pointer is null"]);
    refuse(Function::AllReduce, own, 0, &["(recvbuff)", "the pointer is null"]);
    let elsewhere =
        ["(sendbuff)", "is not an address on GPU 0", "on GPU 1 was allocated", "a stream of GPU 0"];
    refuse(Function::AllReduce, other, own, &elsewhere);
    refuse(Function::AllReduce, own, other, &["(recvbuff)", "is not an address on GPU 0"]);
    refuse(Function::Send, 0, 0, &["(sendbuff)", "null"]);
    refuse(Function::Recv, 0, own + 40, &["(recvbuff)", "8 bytes outside"]);
    refuse(Function::AllGather, own, own + 32, &["(recvbuff)", "32 bytes outside"]);
    refuse(Function::AllReduce, own, own + 4, &["sendbuff and recvbuff overlap", "exactly the same buffer"]);
    refuse(Function::AllToAll, own, own, &["can't be done in place"]);
    // A pointer is ignored if the rank neither reads nor writes that buffer, or if the buffer has no bytes.
    let one_each = |function, first: [u64; 2], second: [u64; 2]| {
        in_group(|| {
            ranks[0].call(function, first[0], first[1], floats(8)).unwrap();
            ranks[1].call(function, second[0], second[1], floats(8)).unwrap();
        })
    };
    one_each(Function::Broadcast, [own, own], [0, other]).unwrap();
    one_each(Function::Reduce, [own, own], [other, 0]).unwrap();
    in_group(|| {
        ranks[0].call(Function::Send, 0, 0, Arguments { root: 1, ..floats(0) }).unwrap();
        ranks[1].call(Function::Recv, 0, 0, floats(0)).unwrap();
    })
    .unwrap();
    Ok(ranks.iter().try_for_each(|rank| rank.stream.synchronize())?)
}

/// Creates an operator with `ncclRedOpCreatePreMulSum` and a factor on the host.
fn operator(rank: &Rank, factor: f32) -> ncclRedOp_t {
    let mut made = ncclRedOp_t::ncclSum;
    let factor = (&raw const factor).cast_mut().cast();
    let residence = ncclScalarResidence_t::ncclScalarHostImmediate;
    // SAFETY: all pointers point to live values.
    answer(unsafe {
        sys::ncclRedOpCreatePreMulSum(&mut made, factor, ncclDataType_t::ncclFloat32, residence, rank.comm)
    })
    .unwrap();
    made
}

fn operators() -> anyhow::Result<()> {
    let (ranks, buffers) = two();
    let at = address(&buffers[0]);
    let made = operator(&ranks[0], 2.0);
    let call = |operator, data_type| {
        ranks[0].call(Function::AllReduce, at, at, Arguments { operator, data_type, ..floats(1) })
    };
    let other_type = call(made, ncclDataType_t::ncclInt32);
    refused(other_type, ncclInvalidArgument, &["op 5 was created for datatype float32, not for int32"]);
    // SAFETY: the communicators are alive.
    let destroy = |operator, rank: &Rank| answer(unsafe { sys::ncclRedOpDestroy(operator, rank.comm) });
    refused(destroy(made, &ranks[1]), ncclInvalidArgument, &["op 5 is unknown to this communicator"]);
    refused(
        destroy(ncclRedOp_t::ncclMin, &ranks[0]),
        ncclInvalidArgument,
        &["op 3 is one of NCCL's built-in operators"],
    );
    destroy(made, &ranks[0]).unwrap();
    refused(destroy(made, &ranks[0]), ncclInvalidArgument, &["op 5 is unknown"]);
    refused(
        call(made, ncclDataType_t::ncclFloat32),
        ncclInvalidArgument,
        &["op 5 is not a reduction operator"],
    );
    Ok(())
}

fn to_oneself() -> anyhow::Result<()> {
    let (ranks, buffers) = two();
    let at = address(&buffers[0]);
    for (function, words) in [
        (Function::Send, ["sends to itself without a matching ncclRecv", "nccl_errors.rs"]),
        (Function::Recv, ["receives from itself without a matching ncclSend", "nccl_errors.rs"]),
    ] {
        refused(ranks[0].call(function, at, at, floats(4)), ncclInvalidUsage, &words);
        let grouped = in_group(|| ranks[0].call(function, at, at, floats(4)).unwrap());
        refused(grouped, ncclInvalidUsage, &words);
    }
    Ok(())
}

fn making() -> anyhow::Result<()> {
    let own = stream(0);
    own.context().bind_to_thread()?;
    let id = get_uniqueid().unwrap();
    let mut comm = std::ptr::null_mut();
    // SAFETY: `comm` is writable.
    let mut init = |n, rank| answer(unsafe { sys::ncclCommInitRank(&mut comm, n, id, rank) });
    refused(init(0, 0), ncclInvalidArgument, &["0 ranks: at least 1"]);
    refused(init(-3, 0), ncclInvalidArgument, &["-3 ranks"]);
    refused(init(2, 2), ncclInvalidArgument, &["rank 2 of 2"]);
    refused(init(2, -1), ncclInvalidArgument, &["rank -1 of 2"]);
    refused(communicators(&[0, 99]).map(|_| ()), ncclInvalidArgument, &["no GPU 99"]);
    refused(communicators(&[-1]).map(|_| ()), ncclInvalidArgument, &["no GPU -1"]);
    refused(communicators(&[1, 1]).map(|_| ()), ncclInvalidUsage, &["GPU 1 is in the list twice"]);
    // Each communicator needs its own id (NVIDIA/nccl#206); NCCL itself waits forever if no process is listening
    // anymore (#1038).
    init(1, 0).unwrap();
    let words = [
        "this id has already been used to create a communicator",
        "give each communicator its own id",
        "nccl_errors.rs",
    ];
    refused(init(1, 0), ncclInvalidUsage, &words);
    // SAFETY: nothing is written for a negative count or a null pointer.
    unsafe {
        let negative = sys::ncclCommInitAll(&mut comm, -1, std::ptr::null());
        refused(answer(negative), ncclInvalidArgument, &["-1 devices"]);
        let many = sys::ncclCommInitAll(&mut comm, i32::MAX, std::ptr::null());
        refused(answer(many), ncclInvalidArgument, &["there is no GPU 8"]);
        let nowhere = sys::ncclCommInitAll(std::ptr::null_mut(), 1, std::ptr::null());
        refused(answer(nowhere), ncclInvalidArgument, &["pointer to the communicators is null"]);
    }
    Ok(())
}

fn one_gpu() -> anyhow::Result<()> {
    let id = get_uniqueid().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let own = stream(3);
                own.context().bind_to_thread().unwrap();
                let mut comm = std::ptr::null_mut();
                // SAFETY: `comm` is writable.
                let answer = answer(unsafe { sys::ncclCommInitRank(&mut comm, 2, id, rank) });
                refused(answer, ncclInvalidUsage, &["ranks 0 and 1 are both on GPU 3", "nccl_errors.rs"]);
            });
        }
    });
    Ok(())
}

fn shared_gpu() -> anyhow::Result<()> {
    // SAFETY: no other thread is running yet, and the library has not been initialized.
    unsafe { std::env::set_var("NCCL_MULTI_RANK_GPU_ENABLE", "1") };
    let own = [stream(0), stream(0), stream(1)];
    let ranks: Vec<_> = communicators(&[0, 0, 1])
        .unwrap()
        .into_iter()
        .zip(own)
        .map(|(comm, stream)| Rank::of(comm, stream))
        .collect();
    let buffers: Vec<_> =
        ranks.iter().map(|rank| rank.stream.clone_htod(&[rank.rank as f32; 5]).unwrap()).collect();
    in_group(|| {
        for (rank, buffer) in ranks.iter().zip(&buffers) {
            rank.call(Function::AllReduce, address(buffer), address(buffer), floats(5)).unwrap();
        }
    })
    .unwrap();
    for (rank, buffer) in ranks.iter().zip(&buffers) {
        assert_eq!(rank.stream.clone_dtoh(buffer)?, [3.0; 5]);
    }
    Ok(())
}

fn configurations() -> anyhow::Result<()> {
    let own = stream(0);
    own.context().bind_to_thread()?;
    let refuse = |change: fn(&mut sys::ncclConfig_t), words: &[&str]| {
        let mut given = config();
        change(&mut given);
        let mut comm = std::ptr::null_mut();
        // SAFETY: both pointers point to live values.
        let code =
            unsafe { sys::ncclCommInitRankConfig(&mut comm, 1, get_uniqueid().unwrap(), 0, &mut given) };
        refused(answer(code), ncclInvalidArgument, words);
    };
    refuse(|config| config.magic = 7, &["magic 0x7", "NCCL_CONFIG_INITIALIZER"]);
    refuse(|config| config.size = 8, &["size 8"]);
    refuse(|config| config.blocking = 2, &["blocking 2"]);
    refuse(|config| config.cgaClusterSize = -1, &["cgaClusterSize -1"]);
    refuse(|config| config.minCTAs = 0, &["minCTAs 0"]);
    refuse(|config| config.maxCTAs = -4, &["maxCTAs -4"]);
    refuse(|config| (config.minCTAs, config.maxCTAs) = (8, 4), &["minCTAs 8 is more than maxCTAs 4"]);
    refuse(|config| config.splitShare = 3, &["splitShare 3"]);
    refuse(|config| config.maxP2pPeers = 0, &["maxP2pPeers 0"]);
    // Valid values have no effect.
    let mut good = config();
    (good.minCTAs, good.maxCTAs, good.splitShare) = (1, 4, 1);
    let mut comm = std::ptr::null_mut();
    // SAFETY: both pointers point to live values.
    let made = unsafe { sys::ncclCommInitRankConfig(&mut comm, 1, get_uniqueid().unwrap(), 0, &mut good) };
    answer(made).unwrap();
    drop(Rank::of(comm, own));
    Ok(())
}

fn ends() -> anyhow::Result<()> {
    // SAFETY: null is allowed, and the communicators are alive.
    unsafe {
        answer(sys::ncclCommDestroy(std::ptr::null_mut())).unwrap();
        answer(sys::ncclCommAbort(std::ptr::null_mut())).unwrap();
        answer(sys::ncclCommFinalize(std::ptr::null_mut())).unwrap();
    }
    raw_ranks(0, 2, |rank| {
        let buffer = rank.stream.clone_htod(&[1.0f32; 4]).unwrap();
        let call = || rank.call(Function::AllReduce, address(&buffer), address(&buffer), floats(4));
        call().unwrap();
        // SAFETY: the communicator is alive.
        let finalize = || answer(unsafe { sys::ncclCommFinalize(rank.comm) });
        finalize().unwrap();
        assert_eq!(rank.stream.clone_dtoh(&buffer).unwrap(), [2.0; 4]);
        refused(finalize(), ncclInvalidArgument, &["has been finalized"]);
        refused(call(), ncclInvalidArgument, &["has been finalized"]);
    });
    Ok(())
}

fn groups() -> anyhow::Result<()> {
    let (pair, buffers) = two();
    // SAFETY: the function takes no arguments.
    let end = || answer(unsafe { sys::ncclGroupEnd() });
    refused(end(), ncclInvalidUsage, &["ncclGroupEnd without a matching ncclGroupStart"]);
    let [own, other] = [address(&buffers[0]), address(&buffers[1])];
    // `ncclGroupEnd` returns an error from inside the group once more, and nothing is launched.
    let failed = in_group(|| {
        pair[0].call(Function::AllReduce, own, own, floats(4)).unwrap();
        pair[1].call(Function::AllReduce, 0, 0, floats(4)).unwrap_err();
        pair[1].call(Function::AllReduce, other, other, floats(4)).unwrap();
    });
    refused(failed, ncclInvalidArgument, &["(sendbuff)"]);
    assert_eq!(pair[0].stream.clone_dtoh(&buffers[0])?, [1.0; 16]);
    // In nested groups, only the outermost `ncclGroupEnd` launches.
    in_group(|| {
        in_group(|| pair[0].call(Function::AllReduce, own, own, floats(4)).unwrap()).unwrap();
        in_group(|| pair[1].call(Function::AllReduce, other, other, floats(4)).unwrap()).unwrap();
    })
    .unwrap();
    assert_eq!(pair[0].stream.clone_dtoh(&buffers[0])?[..5], [2.0, 2.0, 2.0, 2.0, 1.0]);
    let id = get_uniqueid().unwrap();
    let mut comm = std::ptr::null_mut();
    let mixed = in_group(|| {
        // SAFETY: `comm` is writable.
        answer(unsafe { sys::ncclCommInitRank(&mut comm, 1, id, 0) }).unwrap();
        pair[0].call(Function::AllReduce, own, own, floats(4)).unwrap();
    });
    refused(mixed, ncclInvalidUsage, &["a group can't both create communicators and communicate"]);
    Ok(())
}

fn not_blocking() -> anyhow::Result<()> {
    let id = get_uniqueid().unwrap();
    let one = |blocking: i32, id: sys::ncclUniqueId, rank: usize| {
        let stream = stream(rank);
        stream.context().bind_to_thread().unwrap();
        let mut config = config();
        config.blocking = blocking;
        let mut comm = std::ptr::null_mut();
        // SAFETY: both pointers point to live values.
        let code = unsafe { sys::ncclCommInitRankConfig(&mut comm, 2, id, rank as i32, &mut config) };
        (comm, code, stream)
    };
    // SAFETY: the communicator is alive, and `state` is writable.
    let poll = |comm: ncclComm_t| unsafe {
        let mut state = ncclResult_t::ncclSuccess;
        answer(sys::ncclCommGetAsyncError(comm, &mut state)).unwrap();
        state
    };
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let (comm, code, stream) = one(0, id, rank);
                assert_eq!(code, ncclResult_t::ncclInProgress);
                // This does not depend on whether the other rank has joined.
                let mut count = 0;
                // SAFETY: `count` is writable.
                let count = answer(unsafe { sys::ncclCommCount(comm, &mut count) });
                refused(count, ncclInvalidArgument, &["in progress", "ncclCommGetAsyncError"]);
                while poll(comm) == ncclResult_t::ncclInProgress {
                    std::thread::yield_now();
                }
                let rank = Rank::of(comm, stream);
                let buffer = rank.stream.clone_htod(&[1.0f32; 4]).unwrap();
                let at = address(&buffer);
                let call = || rank.call(Function::AllReduce, at, at, floats(4));
                assert_eq!(call().unwrap_err().0, ncclResult_t::ncclInProgress);
                refused(call(), ncclInvalidArgument, &["in progress", "ncclCommGetAsyncError"]);
                while poll(comm) == ncclResult_t::ncclInProgress {}
                assert_eq!(in_group(|| call().unwrap()).unwrap_err().0, ncclResult_t::ncclInProgress);
                while poll(comm) == ncclResult_t::ncclInProgress {}
                assert_eq!(rank.stream.clone_dtoh(&buffer).unwrap(), [4.0; 4]);
                // After a split, the child is ready once the parent is no longer in progress.
                let mut child = std::ptr::null_mut();
                // SAFETY: `child` is writable until the split is done.
                let code = unsafe {
                    sys::ncclCommSplit(comm, 0, -(rank.rank as i32), &mut child, std::ptr::null_mut())
                };
                assert_eq!(code, ncclResult_t::ncclInProgress);
                while poll(comm) == ncclResult_t::ncclInProgress {
                    std::thread::yield_now();
                }
                let child = Rank::of(child, rank.stream.clone());
                assert_eq!(child.rank, 1 - rank.rank, "in the order of keys");
            });
        }
    });
    // One group contains both kinds of communicator.
    let (mixed, _) = two();
    let id = get_uniqueid().unwrap();
    let free = std::thread::scope(|scope| {
        let other = scope.spawn(move || one(0, id, 1).1);
        let (comm, _, stream) = one(0, id, 0);
        assert_eq!(other.join().unwrap(), ncclResult_t::ncclInProgress);
        while poll(comm) == ncclResult_t::ncclInProgress {}
        std::mem::ManuallyDrop::new(Rank::of(comm, stream))
    });
    let buffer = free.stream.clone_htod(&[1.0f32; 4])?;
    let at = address(&buffer);
    let both = in_group(|| {
        free.call(Function::AllReduce, at, at, floats(4)).unwrap();
        mixed[0].call(Function::AllReduce, at, at, floats(4)).unwrap();
    });
    refused(both, ncclInvalidArgument, &["blocking and nonblocking"]);
    Ok(())
}
