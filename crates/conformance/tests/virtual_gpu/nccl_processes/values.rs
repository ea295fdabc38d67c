//! Correct programs: every NCCL function computes the right values, with any mix of processes and threads.

use cudarc::driver::CudaSlice;
use cudarc::nccl::sys::{self, ncclComm_t};

use super::{all_right, plan};
use crate::device::untracked;
use crate::raw::{Function, Rank, address, answer, floats, in_group};
use crate::twins::{Said, TestRank, driver, peer, said};

pub(super) fn any_mix() -> anyhow::Result<()> {
    for layout in [&[1, 1][..], &[2, 2], &[1, 3], &[1, 1, 1, 1], &[3]] {
        all_right(&plan("sums", layout))?;
    }
    Ok(())
}

/// Sums values that differ by rank and position, several times.
pub(super) fn sums(me: &TestRank) -> Said {
    let TestRank { rank, n, .. } = *me;
    for len in [1usize, 1000, 70_001] {
        let give = |rank: usize| (0..len).map(move |i| ((i * 7 + rank * 13) % 101) as f32);
        let mut buffer = driver(me.own.stream.clone_htod(&give(rank).collect::<Vec<_>>()))?;
        me.all_reduce(&buffer)?;
        let got = driver(me.own.stream.clone_dtoh(&buffer))?;
        let mut all: Vec<_> = (0..n).map(give).collect();
        let expected: Vec<f32> =
            (0..len).map(|_| all.iter_mut().map(|of| of.next().unwrap()).sum()).collect();
        if got != expected {
            return Err(format!("rank {rank}: wrong sums of {len} elements"));
        }
        driver(me.own.stream.memset_zeros(&mut buffer))?;
    }
    Ok(())
}

pub(super) fn every_function() -> anyhow::Result<()> {
    for layout in [&[1, 1][..], &[1, 1, 1], &[2, 1, 2]] {
        all_right(&plan("functions", layout))?;
    }
    Ok(())
}

/// The number of elements in each part.
pub(super) const LEN: usize = 5;

/// Returns the values that `rank` contributes in `part`.
pub(super) fn given(rank: usize, part: usize) -> Vec<f32> {
    (0..LEN).map(|i| (100 * rank + 10 * part + i) as f32).collect()
}

/// Calls every NCCL function, on data that shows where it came from.
pub(super) fn functions(me: &TestRank) -> Said {
    let TestRank { rank, n, .. } = *me;
    let own = &me.own;
    collectives(own, rank, n)?;

    // Send around the ring, and to all ranks at once.
    let from = upload(own, &given(rank, 0))?;
    let all = driver(own.stream.alloc_zeros::<f32>(LEN * n))?;
    said(in_group(|| {
        for other in 0..n {
            me.send(&from, other).unwrap();
            let to = address(&all) + (other * LEN * 4) as u64;
            said(own.call(Function::Recv, 0, to, peer(other, LEN))).unwrap();
        }
    }))?;
    expect("sends", own, &all, (0..n).flat_map(|rank| given(rank, 0)).collect())?;
    for round in 0..3 {
        let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
        let (from, to) = (upload(own, &given(rank, round))?, driver(own.stream.alloc_zeros::<f32>(LEN))?);
        said(in_group(|| me.send(&from, next).and_then(|()| me.receive(&to, last)).unwrap()))?;
        expect("a ring", own, &to, given(last, round))?;
    }

    // Split into even and odd ranks, in reverse order.
    let mut child: ncclComm_t = std::ptr::null_mut();
    // SAFETY: the communicator is alive, and the child is writable.
    said(answer(unsafe {
        sys::ncclCommSplit(own.comm, (rank % 2) as i32, -(rank as i32), &mut child, std::ptr::null_mut())
    }))?;
    let child = Rank::of(child, own.stream.clone());
    let mut siblings: Vec<usize> = (0..n).filter(|other| other % 2 == rank % 2).collect();
    siblings.reverse();
    if (child.n, siblings[child.rank]) != (siblings.len(), rank) {
        return Err(format!("rank {rank} is {} of {} in its half", child.rank, child.n));
    }
    let (gathered, from) =
        (driver(own.stream.alloc_zeros::<f32>(LEN * child.n))?, upload(own, &given(rank, 1))?);
    said(child.call(Function::AllGather, address(&from), address(&gathered), floats(LEN)))?;
    expect("a half", own, &gathered, siblings.iter().flat_map(|&rank| given(rank, 1)).collect())?;

    // The communicator with the second id uses another connection.
    let second = me.second();
    collectives(&second, rank, n)?;
    // SAFETY: the communicators are alive.
    said(answer(unsafe { sys::ncclCommFinalize(second.comm) }))?;
    // SAFETY: as above.
    said(answer(unsafe { sys::ncclCommFinalize(own.comm) }))
}

/// One process has rank 0, and one thread of another process has ranks 1 and 2, in groups.
pub(super) fn grouped(me: &TestRank) -> Said {
    let ranks: &[usize] = if me.rank == 0 { &[0] } else { &[1, 2] };
    let streams: Vec<_> =
        ranks.iter().map(|rank| untracked(me.first_gpu + rank).new_stream().unwrap()).collect();
    let mut comms: Vec<ncclComm_t> = vec![std::ptr::null_mut(); ranks.len()];
    said(in_group(|| {
        for ((comm, &rank), stream) in comms.iter_mut().zip(ranks).zip(&streams) {
            stream.context().bind_to_thread().unwrap();
            // SAFETY: the communicator is writable until the group ends.
            said(answer(unsafe { sys::ncclCommInitRank(comm, 3, me.ids[1], rank as i32) })).unwrap();
        }
    }))?;
    let ends: Vec<Rank> = comms.iter().zip(streams).map(|(&comm, stream)| Rank::of(comm, stream)).collect();
    let buffers: Vec<_> = ends.iter().map(|own| upload(own, &given(own.rank, 0)).unwrap()).collect();
    said(in_group(|| {
        for (own, buffer) in ends.iter().zip(&buffers) {
            let at = address(buffer);
            said(own.call(Function::AllReduce, at, at, floats(LEN))).unwrap();
        }
    }))?;
    let sums: Vec<f32> = (0..LEN).map(|i| (0..3).map(|rank| given(rank, 0)[i]).sum()).collect();
    ends.iter().zip(&buffers).try_for_each(|(own, buffer)| expect("a group", own, buffer, sums.clone()))
}

pub(super) fn upload(own: &Rank, values: &[f32]) -> Result<CudaSlice<f32>, String> {
    driver(own.stream.clone_htod(values))
}

pub(super) fn expect(what: &str, own: &Rank, got: &CudaSlice<f32>, expected: Vec<f32>) -> Said {
    let got = driver(own.stream.clone_dtoh(got))?;
    if got == expected { Ok(()) } else { Err(format!("{what}: expected {expected:?}, but got {got:?}")) }
}

fn collectives(own: &Rank, rank: usize, n: usize) -> Said {
    let sum = |part: usize| -> Vec<f32> {
        let all: Vec<_> = (0..n).map(|rank| given(rank, part)).collect();
        (0..LEN).map(|i| all.iter().map(|of| of[i]).sum()).collect()
    };
    let parts = |rank: usize| (0..n).flat_map(|part| given(rank, part)).collect::<Vec<_>>();
    let root = n - 1;
    let zeros = |len: usize| driver(own.stream.alloc_zeros::<f32>(len));
    let one = upload(own, &given(rank, 0))?;
    let many = upload(own, &parts(rank))?;
    let call = |function, from: &CudaSlice<f32>, to: &CudaSlice<f32>, with| {
        said(own.call(function, address(from), address(to), with))
    };

    let to = zeros(LEN)?;
    call(Function::AllReduce, &one, &to, floats(LEN))?;
    expect("ncclAllReduce", own, &to, sum(0))?;
    call(Function::Broadcast, &one, &to, peer(root, LEN))?;
    expect("ncclBroadcast", own, &to, given(root, 0))?;
    let to = zeros(LEN)?;
    call(Function::Reduce, &one, &to, peer(root, LEN))?;
    expect("ncclReduce", own, &to, if rank == root { sum(0) } else { vec![0.0; LEN] })?;
    call(Function::ReduceScatter, &many, &to, floats(LEN))?;
    expect("ncclReduceScatter", own, &to, sum(rank))?;
    call(Function::Scatter, &many, &to, peer(root, LEN))?;
    expect("ncclScatter", own, &to, given(root, rank))?;
    let to = zeros(LEN * n)?;
    call(Function::AllGather, &one, &to, floats(LEN))?;
    expect("ncclAllGather", own, &to, (0..n).flat_map(|rank| given(rank, 0)).collect())?;
    call(Function::AllToAll, &many, &to, floats(LEN))?;
    expect("ncclAlltoAll", own, &to, (0..n).flat_map(|from| given(from, rank)).collect())?;
    let to = zeros(LEN * n)?;
    call(Function::Gather, &one, &to, peer(root, LEN))?;
    let gathered =
        if rank == root { (0..n).flat_map(|rank| given(rank, 0)).collect() } else { vec![0.0; LEN * n] };
    expect("ncclGather", own, &to, gathered)
}
