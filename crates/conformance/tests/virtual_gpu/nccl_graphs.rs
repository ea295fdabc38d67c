//! NCCL calls on captured streams, according to the NCCL User Guide, "Using NCCL with CUDA Graphs".

use std::sync::Arc;

use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL;
use cudarc::driver::{CudaGraph, CudaStream};
use lab::Check;

use crate::raw::{Function, Rank, address, floats, in_group};
use crate::twins::{Said, TestRank, driver, pair, peer, said, twins, wait};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl_graphs::a_collective_at_each_launch", || right(3, at_each_launch)),
        Check::new("nccl_graphs::a_ring_of_messages", || right(3, ring)),
        Check::new("nccl_graphs::two_ranks_of_a_thread_in_one_graph", || right(1, one_graph)),
        Check::new("nccl_graphs::several_streams_of_a_group", || right(2, several_streams)),
        Check::new("nccl_graphs::a_split_s_ranks", || right(2, second_communicator)),
        Check::new("nccl_graphs::captured_by_one_rank_only", || {
            let words = [
                "the 1st collective differs between ranks: some launch a graph that makes it, and others call it",
                "rank 0: ncclAllReduce(count 4, float32, sum) from a graph (the 1st call in it)",
                "rank 1: ncclAllReduce(count 4, float32, sum), called outside of a graph",
                "nccl_graphs.rs:",
            ];
            twins(2, one_captures, &words)
        }),
        Check::new("nccl_graphs::another_graph_than_the_others", || {
            let words =
                ["ranks 0 and 2: ncclAllReduce", "(the 1st call in it)", "rank 1: ", "(the 2nd call in it)"];
            twins(3, another_graph, &words)
        }),
        Check::new("nccl_graphs::a_message_captured_at_one_end", || {
            let words = ["message 1 from rank 0 to rank 1", "captured in a graph", "both be captured"];
            twins(2, half_captured_message, &words)
        }),
        Check::new("nccl_graphs::a_stream_of_the_group_is_not_captured", || {
            twins(2, half_captured_group, &["all be captured by the same graph or not be captured at all"])
        }),
        Check::new("nccl_graphs::a_rank_that_doesn_t_launch", || {
            twins(2, not_launched, &["rank 0 waits in ncclAllReduce", "rank 1"])
        }),
        Check::new("nccl_graphs::ranks_of_a_thread_captured_without_a_group", || {
            twins(1, no_group, &["rank 1 is missing from a group", "one thread drives all the ranks"])
        }),
        Check::new("nccl_graphs::a_kernel_that_does_not_wait_for_the_launch", || {
            let words = ["data race on GPU", "ncclAllReduce", "stream 1 of a graph", "a memset"];
            twins(2, races, &words)
        }),
        Check::new("nccl_graphs::a_communicator_that_is_gone", || {
            twins(
                2,
                gone,
                &[
                    "communicator ends while a graph still holds it",
                    "captured here: ncclAllReduce",
                    "ncclCommDestroy",
                ],
            )
        }),
    ]
}

/// Runs a correct program.
fn right(n: usize, program: fn(&TestRank) -> Said) -> anyhow::Result<()> {
    for (rank, said) in crate::twins::run(n, program, false).into_iter().enumerate() {
        anyhow::ensure!(said.is_ok(), "rank {rank}: {}", said.unwrap_err());
    }
    Ok(())
}

/// Captures the calls on `stream`, and on streams that wait for it, into a graph.
fn capture(stream: &Arc<CudaStream>, calls: impl FnOnce() -> Said) -> Result<CudaGraph, String> {
    driver(stream.begin_capture(THREAD_LOCAL))?;
    calls()?;
    let flags = cudarc::driver::sys::CUgraphInstantiate_flags(0);
    Ok(driver(stream.end_capture(flags))?.expect("a graph"))
}

fn at_each_launch(me: &TestRank) -> Said {
    let buffer = me.buffer(4);
    let graph = capture(&me.own.stream, || me.all_reduce(&buffer))?;
    assert_eq!(driver(me.own.stream.clone_dtoh(&buffer))?, [1.0; 4]);
    for launches in 1..=3 {
        driver(graph.launch())?;
        assert_eq!(driver(me.own.stream.clone_dtoh(&buffer))?, [3.0_f32.powi(launches); 4]);
    }
    // A call outside the graph has its own sequence number.
    me.all_reduce(&buffer)?;
    driver(graph.launch())?;
    assert_eq!(driver(me.own.stream.clone_dtoh(&buffer))?, [3.0_f32.powi(5); 4]);
    Ok(())
}

fn ring(me: &TestRank) -> Said {
    let stream = &me.own.stream;
    let (next, before) = ((me.rank + 1) % me.n, (me.rank + me.n - 1) % me.n);
    let mut given = driver(stream.clone_htod(&[me.rank as f32; 8]))?;
    let got = me.buffer(8);
    let graph = capture(stream, || {
        let group = in_group(|| {
            me.send(&given, next).unwrap();
            me.receive(&got, before).unwrap();
        });
        said(group)?;
        driver(stream.memcpy_dtod(&got, &mut given))
    })?;
    for step in 1..=me.n {
        driver(graph.launch())?;
        let from = (me.rank + me.n - step % me.n) % me.n;
        assert_eq!(driver(stream.clone_dtoh(&got))?, [from as f32; 8]);
    }
    Ok(())
}

fn one_graph(me: &TestRank) -> Said {
    let [one, other] = pair(me);
    let (x, y) =
        (driver(one.stream.clone_htod(&[1.0_f32; 6]))?, driver(other.stream.clone_htod(&[5.0_f32; 6]))?);
    wait(&other.stream)?;
    let graph = capture(&one.stream, || {
        driver(other.stream.wait(&driver(one.stream.record_event(None))?))?;
        let group = in_group(|| {
            all_reduce(&one, address(&x)).unwrap();
            all_reduce(&other, address(&y)).unwrap();
        });
        said(group)?;
        driver(one.stream.wait(&driver(other.stream.record_event(None))?))
    })?;
    driver(graph.launch())?;
    driver(graph.launch())?;
    assert_eq!(driver(one.stream.clone_dtoh(&x))?, [12.0; 6]);
    driver(other.stream.wait(&driver(one.stream.record_event(None))?))?;
    assert_eq!(driver(other.stream.clone_dtoh(&y))?, [12.0; 6]);
    Ok(())
}

fn all_reduce(rank: &Rank, buffer: u64) -> Said {
    said(rank.call(Function::AllReduce, buffer, buffer, floats(6)))
}

/// All calls in a group wait for all of the group's streams and block them.
fn several_streams(me: &TestRank) -> Said {
    let first = &me.own.stream;
    let second = driver(first.context().new_stream())?;
    let (mut x, mut y) = (me.buffer(4), me.buffer(4));
    let graph = capture(first, || {
        driver(second.wait(&driver(first.record_event(None))?))?;
        driver(second.memset_zeros(&mut x))?;
        driver(first.memset_zeros(&mut y))?;
        let group = in_group(|| {
            me.all_reduce(&x).unwrap();
            let all_reduce =
                me.own.call_on(&second, Function::AllReduce, address(&y), address(&y), floats(4));
            all_reduce.unwrap();
        });
        said(group)?;
        driver(second.memset_zeros(&mut x))?;
        driver(first.memset_zeros(&mut y))?;
        driver(first.wait(&driver(second.record_event(None))?))
    })?;
    driver(graph.launch())?;
    wait(first)
}

fn second_communicator(me: &TestRank) -> Said {
    let second = me.second();
    let (x, y) = (me.buffer(4), me.buffer(4));
    let graph = capture(&me.own.stream, || {
        driver(second.stream.wait(&driver(me.own.stream.record_event(None))?))?;
        me.all_reduce(&x)?;
        said(second.call(Function::AllReduce, address(&y), address(&y), floats(4)))?;
        driver(me.own.stream.wait(&driver(second.stream.record_event(None))?))
    })?;
    driver(graph.launch())?;
    assert_eq!(driver(me.own.stream.clone_dtoh(&x))?, [2.0; 4]);
    assert_eq!(driver(me.own.stream.clone_dtoh(&y))?, [2.0; 4]);
    Ok(())
}

fn one_captures(me: &TestRank) -> Said {
    let buffer = me.buffer(4);
    if me.is_wrong(1) {
        me.all_reduce(&buffer)?;
    } else {
        driver(capture(&me.own.stream, || me.all_reduce(&buffer))?.launch())?;
    }
    me.wait()
}

fn another_graph(me: &TestRank) -> Said {
    let buffer = me.buffer(4);
    let first = capture(&me.own.stream, || me.all_reduce(&buffer))?;
    let second = capture(&me.own.stream, || me.all_reduce(&buffer))?;
    driver(if me.is_wrong(1) { second.launch() } else { first.launch() })?;
    me.wait()
}

fn half_captured_message(me: &TestRank) -> Said {
    let buffer = me.buffer(4);
    let call = || match me.rank {
        0 => me.send(&buffer, 1),
        _ => me.receive(&buffer, 0),
    };
    if me.is_wrong(1) {
        call()?;
    } else {
        driver(capture(&me.own.stream, call)?.launch())?;
    }
    me.wait()
}

fn half_captured_group(me: &TestRank) -> Said {
    let second = driver(me.own.stream.context().new_stream())?;
    let (x, y) = (me.buffer(4), me.buffer(4));
    let graph = capture(&me.own.stream, || {
        if !me.wrong {
            driver(second.wait(&driver(me.own.stream.record_event(None))?))?;
        }
        let group = in_group(|| {
            me.all_reduce(&x).unwrap();
            let call = me.own.call_on(&second, Function::Broadcast, address(&y), address(&y), peer(0, 4));
            call.unwrap();
        });
        said(group)?;
        driver(me.own.stream.wait(&driver(second.record_event(None))?))
    })?;
    driver(graph.launch())?;
    me.wait()
}

fn not_launched(me: &TestRank) -> Said {
    let buffer = me.buffer(4);
    let graph = capture(&me.own.stream, || me.all_reduce(&buffer))?;
    driver(graph.launch())?;
    me.wait()?;
    if !me.is_wrong(1) {
        driver(graph.launch())?;
    }
    me.wait()
}

fn no_group(me: &TestRank) -> Said {
    let ranks = pair(me);
    let buffers =
        [driver(ranks[0].stream.alloc_zeros::<f32>(6))?, driver(ranks[1].stream.alloc_zeros::<f32>(6))?];
    ranks.iter().try_for_each(|rank| wait(&rank.stream))?;
    let call = |at: usize| all_reduce(&ranks[at], address(&buffers[at]));
    let graphs = if me.wrong {
        [capture(&ranks[0].stream, || call(0))?, capture(&ranks[1].stream, || call(1))?]
    } else {
        // Both captures are open when the group ends.
        let mut first = None;
        let second = capture(&ranks[1].stream, || {
            first = Some(capture(&ranks[0].stream, || {
                said(in_group(|| [0, 1].into_iter().for_each(|at| call(at).unwrap())))
            })?);
            Ok(())
        })?;
        [first.expect("a graph"), second]
    };
    graphs.iter().try_for_each(|graph| driver(graph.launch()))?;
    ranks.iter().try_for_each(|rank| wait(&rank.stream))
}

fn races(me: &TestRank) -> Said {
    let mut buffer = me.buffer(4);
    let other = driver(me.own.stream.context().new_stream())?;
    let graph = capture(&me.own.stream, || me.all_reduce(&buffer))?;
    driver(graph.launch())?;
    if !me.is_wrong(1) {
        driver(other.wait(&driver(me.own.stream.record_event(None))?))?;
    }
    driver(other.memset_zeros(&mut buffer))?;
    wait(&other)?;
    me.wait()
}

fn gone(me: &TestRank) -> Said {
    let buffer = me.buffer(4);
    let second = me.second();
    let stream = second.stream.clone();
    let graph = capture(&stream, || {
        said(second.call(Function::AllReduce, address(&buffer), address(&buffer), floats(4)))
    })?;
    driver(graph.launch())?;
    wait(&stream)?;
    if me.wrong {
        drop(second);
    }
    driver(graph.launch())?;
    wait(&stream)
}
