//! Tests sends and receives through cudarc on the virtual libraries. `nccl_wrong` tests wrong programs.

use cudarc::nccl::result::{group_end, group_start};
use cudarc::nccl::safe::Comm;
use cudarc::nccl::sys::ncclDataType_t;
use lab::Check;
use lab::random::SplitMix64;

use crate::device::untracked;
use crate::nccl::{ranks, stream};
use crate::raw::{Arguments, Function, address, floats, in_group, raw_ranks};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("point_to_point::a_ring_passes_data_on", ring),
        Check::new("point_to_point::messages_of_one_pair_keep_their_order", order),
        Check::new("point_to_point::a_send_needs_no_group", ungrouped),
        Check::new("point_to_point::all_to_all_in_any_order_within_a_group", all_to_all),
        Check::new("point_to_point::a_rank_sends_to_itself", to_itself),
        Check::new("point_to_point::no_elements_still_pair_up", empty),
        Check::new("point_to_point::beside_collectives_in_one_group", mixed),
        Check::new("point_to_point::a_send_is_done_before_its_peer_s_other_messages", independent),
        Check::new("point_to_point::several_streams_in_one_group", several_streams),
        Check::new("point_to_point::one_thread_for_all_ranks", one_thread),
        Check::new("point_to_point::random_patterns", random),
    ]
}

/// Returns the values that `from` sends to `to`, which identify both ranks.
fn values(from: usize, to: usize, count: usize) -> Vec<i32> {
    (0..count).map(|i| (from * 1_000_000 + to * 10_000 + i) as i32).collect()
}

/// Runs `calls` in a group.
fn grouped(calls: impl FnOnce()) {
    group_start().unwrap();
    calls();
    group_end().unwrap();
}

fn ring() -> anyhow::Result<()> {
    for n in 1..=6 {
        ranks(0, n, |rank, comm| {
            let stream = comm.stream();
            let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
            let mut holds = stream.clone_htod(&values(rank, 0, 501)).unwrap();
            let mut gets = stream.alloc_zeros::<i32>(501).unwrap();
            for _ in 0..n {
                grouped(|| {
                    comm.send(&holds, next as i32).unwrap();
                    comm.recv(&mut gets, last as i32).unwrap();
                });
                stream.memcpy_dtod(&gets, &mut holds).unwrap();
            }
            assert_eq!(stream.clone_dtoh(&holds).unwrap(), values(rank, 0, 501), "once around {n} ranks");
        });
    }
    Ok(())
}

fn order() -> anyhow::Result<()> {
    ranks(0, 2, |rank, comm| {
        let stream = comm.stream();
        for grouping in [true, false] {
            let mut parts: Vec<_> =
                (0..5).map(|part| stream.clone_htod(&values(part, rank, 10 + part)).unwrap()).collect();
            if grouping {
                group_start().unwrap();
            }
            for part in &mut parts {
                match rank {
                    0 => comm.send(part, 1).unwrap(),
                    _ => {
                        comm.recv(part, 0).unwrap();
                    }
                }
            }
            if grouping {
                group_end().unwrap();
            }
            for (at, part) in parts.iter().enumerate() {
                assert_eq!(stream.clone_dtoh(part).unwrap(), values(at, 0, 10 + at));
            }
        }
    });
    Ok(())
}

fn ungrouped() -> anyhow::Result<()> {
    let results = ranks(0, 3, |rank, comm| {
        let stream = comm.stream();
        let mut data = stream.clone_htod(&values(rank, 7, 33)).unwrap();
        if rank > 0 {
            comm.recv(&mut data, rank as i32 - 1).unwrap();
        }
        if rank < 2 {
            comm.send(&data, rank as i32 + 1).unwrap();
        }
        stream.clone_dtoh(&data).unwrap()
    });
    assert!(results.iter().all(|result| *result == values(0, 7, 33)));
    Ok(())
}

fn all_to_all() -> anyhow::Result<()> {
    const COUNT: usize = 100;
    ranks(0, 5, |rank, comm| {
        let stream = comm.stream();
        let sends: Vec<_> =
            (0..5).map(|to| stream.clone_htod(&values(rank, to, COUNT + to)).unwrap()).collect();
        let mut receives: Vec<_> = (0..5).map(|_| stream.alloc_zeros::<i32>(COUNT + rank).unwrap()).collect();
        grouped(|| {
            // Each rank receives in a different order.
            for step in 0..5 {
                let peer = (rank * 3 + step * 2) % 5;
                comm.recv(&mut receives[peer], peer as i32).unwrap();
            }
            for (peer, send) in sends.iter().enumerate() {
                comm.send(send, peer as i32).unwrap();
            }
        });
        for (from, receive) in receives.iter().enumerate() {
            assert_eq!(stream.clone_dtoh(receive).unwrap(), values(from, rank, COUNT + rank));
        }
    });
    Ok(())
}

fn to_itself() -> anyhow::Result<()> {
    ranks(0, 2, |rank, comm| {
        let stream = comm.stream();
        let mut sent = stream.clone_htod(&values(rank, rank, 9)).unwrap();
        let mut got = stream.alloc_zeros::<i32>(9).unwrap();
        grouped(|| {
            comm.recv(&mut got, rank as i32).unwrap();
            comm.send(&sent, rank as i32).unwrap();
        });
        assert_eq!(stream.clone_dtoh(&got).unwrap(), values(rank, rank, 9));
        // In place, no data moves.
        grouped(|| {
            comm.send(&sent, rank as i32).unwrap();
            comm.recv(&mut sent, rank as i32).unwrap();
        });
        assert_eq!(stream.clone_dtoh(&sent).unwrap(), values(rank, rank, 9));
    });
    Ok(())
}

fn empty() -> anyhow::Result<()> {
    raw_ranks(0, 2, |rank| {
        let one = rank.stream.clone_htod(&[rank.rank as f32 + 5.0]).unwrap();
        for (count, buffer) in [(0, 0), (1, address(&one))] {
            let (function, peer) = if rank.rank == 0 { (Function::Send, 1) } else { (Function::Recv, 0) };
            rank.call(function, buffer, buffer, Arguments { root: peer, ..floats(count) }).unwrap();
        }
        assert_eq!(rank.stream.clone_dtoh(&one).unwrap(), [5.0]);
    });
    Ok(())
}

fn mixed() -> anyhow::Result<()> {
    ranks(0, 3, |rank, comm| {
        let stream = comm.stream();
        let mut sum = stream.clone_htod(&[rank as i32; 3]).unwrap();
        let mut sent = stream.clone_htod(&[rank as i32 * 10; 2]).unwrap();
        let mut got = stream.alloc_zeros::<i32>(2).unwrap();
        grouped(|| {
            comm.send(&sent, (rank as i32 + 1) % 3).unwrap();
            comm.all_reduce_in_place(&mut sum, &cudarc::nccl::safe::ReduceOp::Sum).unwrap();
            comm.recv(&mut got, (rank as i32 + 2) % 3).unwrap();
        });
        assert_eq!(stream.clone_dtoh(&sum).unwrap(), [3; 3]);
        assert_eq!(stream.clone_dtoh(&got).unwrap(), [(rank as i32 + 2) % 3 * 10; 2]);
        stream.memset_zeros(&mut sent).unwrap();
    });
    Ok(())
}

/// Rank 0's send completes while rank 1 is still waiting for rank 2 in the same group; rank 2 makes its call only after
/// that.
fn independent() -> anyhow::Result<()> {
    let sent = std::sync::Barrier::new(2);
    ranks(0, 3, |rank, comm| {
        let stream = comm.stream();
        let mut one = stream.clone_htod(&values(rank, 1, 4)).unwrap();
        let mut other = stream.alloc_zeros::<i32>(4).unwrap();
        match rank {
            0 => {
                comm.send(&one, 1).unwrap();
                stream.synchronize().unwrap();
                sent.wait();
            }
            1 => {
                grouped(|| {
                    comm.recv(&mut one, 0).unwrap();
                    comm.recv(&mut other, 2).unwrap();
                });
                assert_eq!(stream.clone_dtoh(&one).unwrap(), values(0, 1, 4));
                assert_eq!(stream.clone_dtoh(&other).unwrap(), values(2, 1, 4));
            }
            _ => {
                sent.wait();
                comm.send(&one, 1).unwrap();
                stream.synchronize().unwrap();
            }
        }
    });
    Ok(())
}

/// A group that uses two streams waits for both, and both wait for it.
fn several_streams() -> anyhow::Result<()> {
    raw_ranks(0, 2, |rank| {
        let other = untracked(rank.rank).new_stream().unwrap();
        let (one, peer) = (&rank.stream, 1 - rank.rank);
        let first = one.clone_htod(&values(rank.rank, 1, 50)).unwrap();
        let second = other.clone_htod(&values(rank.rank, 2, 60)).unwrap();
        let mut parts = [one.alloc_zeros::<i32>(50).unwrap(), other.alloc_zeros::<i32>(60).unwrap()];
        let with =
            |count| Arguments { data_type: ncclDataType_t::ncclInt32, root: peer as i32, ..floats(count) };
        in_group(|| {
            rank.call_on(one, Function::Send, address(&first), 0, with(50)).unwrap();
            rank.call_on(&other, Function::Send, address(&second), 0, with(60)).unwrap();
            rank.call_on(one, Function::Recv, 0, address(&parts[0]), with(50)).unwrap();
            rank.call_on(&other, Function::Recv, 0, address(&parts[1]), with(60)).unwrap();
        })
        .unwrap();
        // Each stream reads what the other stream's call received, without an event, because the group has ordered
        // them.
        let mut copy = one.alloc_zeros::<i32>(60).unwrap();
        one.memcpy_dtod(&parts[1], &mut copy).unwrap();
        other.memset_zeros(&mut parts[0]).unwrap();
        assert_eq!(one.clone_dtoh(&copy).unwrap(), values(peer, 2, 60));
        other.synchronize().unwrap();
    });
    Ok(())
}

fn one_thread() -> anyhow::Result<()> {
    let comms = Comm::from_devices((0..4).map(stream).collect()).unwrap();
    let sends: Vec<_> =
        (0..4).map(|rank| comms[rank].stream().clone_htod(&values(rank, 0, 20)).unwrap()).collect();
    let mut gets: Vec<_> = comms.iter().map(|comm| comm.stream().alloc_zeros::<i32>(20).unwrap()).collect();
    grouped(|| {
        for (rank, comm) in comms.iter().enumerate() {
            comm.send(&sends[rank], (rank as i32 + 1) % 4).unwrap();
            comm.recv(&mut gets[rank], (rank as i32 + 3) % 4).unwrap();
        }
    });
    for (rank, (comm, got)) in comms.iter().zip(&gets).enumerate() {
        assert_eq!(comm.stream().clone_dtoh(got).unwrap(), values((rank + 3) % 4, 0, 20));
    }
    Ok(())
}

/// Runs rounds of messages between random pairs; each round is one group on every rank.
fn random() -> anyhow::Result<()> {
    for seed in 0..10 {
        let mut random = SplitMix64::new(seed);
        let n = 2 + random.below(5);
        let rounds: Vec<Vec<(usize, usize, usize)>> = (0..6)
            .map(|_| {
                let messages = random.below(12);
                (0..messages).map(|_| (random.below(n), random.below(n), random.below(300))).collect()
            })
            .collect();
        ranks(0, n, |rank, comm| {
            let stream = comm.stream();
            for round in &rounds {
                let mut sends = Vec::new();
                let mut gets = Vec::new();
                for &(from, to, count) in round {
                    if from == rank {
                        sends.push((to, stream.clone_htod(&values(from, to, count + 1)).unwrap()));
                    }
                    if to == rank {
                        gets.push((from, stream.alloc_zeros::<i32>(count + 1).unwrap()));
                    }
                }
                grouped(|| {
                    sends.iter().for_each(|(to, send)| comm.send(send, *to as i32).unwrap());
                    for (from, got) in &mut gets {
                        comm.recv(got, *from as i32).unwrap();
                    }
                });
                for (from, got) in &gets {
                    assert_eq!(
                        stream.clone_dtoh(got).unwrap(),
                        values(*from, rank, got.len()),
                        "seed {seed}"
                    );
                }
            }
            stream.synchronize().unwrap();
        });
    }
    Ok(())
}
