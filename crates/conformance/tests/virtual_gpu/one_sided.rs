//! One-sided NCCL calls: puts to windows, signals, and waits for signals.

use std::ptr::null_mut;

use anyhow::ensure;
use cudarc::driver::DriverError;
use cudarc::driver::sys::{
    CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode, cuMemcpyDtoDAsync_v2, cuMemcpyDtoHAsync_v2,
    cuMemcpyHtoD_v2, cuMemsetD32Async,
};
use cudarc::nccl::sys::{self, ncclDataType_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t};
use lab::Check;

use crate::contains;
use crate::rank_processes::{self, Plan};
use crate::raw::{Answer, Function, Rank, answer, in_group, raw_ranks};
use crate::twins::{Said, TestRank, driver, peer, run, said, twins, wait};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("one_sided::neighbors_exchange_numbers", exchange),
        Check::new("one_sided::a_put_is_waited_for", || twins(2, waits, &RACE)),
        Check::new("one_sided::a_window_is_written_again", || twins(2, again, &RACE)),
        Check::new("one_sided::a_signal_that_never_comes", || twins(2, counts, &NEVER)),
        Check::new("one_sided::both_ranks_wait_first", || twins(2, waits_first, &STUCK)),
        Check::new("one_sided::a_window_that_is_gone", || twins(2, deregistered, &GONE)),
        Check::new("one_sided::all_to_all_after_a_barrier", all_to_all),
        Check::new("one_sided::a_rank_puts_to_itself", to_itself),
        Check::new("one_sided::a_graph_puts_at_each_launch", captured),
        Check::new("one_sided::a_put_takes_as_long_as_a_send", time),
        Check::new("one_sided::an_abort_ends_a_wait", aborted),
        Check::new("one_sided::wrong_arguments_are_named", wrong_arguments),
        Check::new("one_sided::between_processes", processes),
    ]
}

const RACE: [&str; 3] = [
    "data race on GPU",
    "written by ncclPutSignal",
    "help: order a put by signals: wait for its signal (ncclWaitSignal)",
];
const NEVER: [&str; 3] =
    ["a wait for a signal that never comes", "1 signal has not come", "rank 0 never sends it"];
const STUCK: [&str; 2] =
    ["a wait for a signal that never comes", "is stuck behind work that never completes"];
const GONE: [&str; 2] = ["outside of rank 1's window", "has deregistered it"];

/// `NCCL_WIN_COLL_SYMMETRIC`
const SYMMETRIC: i32 = 1;

/// Words of GPU memory that are registered as a window.
#[derive(Clone, Copy)]
struct Window {
    address: u64,
    handle: ncclWindow_t,
}

impl Window {
    fn register(of: &Rank, words: usize, flags: i32) -> Self {
        let (mut memory, mut handle) = (null_mut(), null_mut());
        // SAFETY: the pointer is writable.
        answer(unsafe { sys::ncclMemAlloc(&mut memory, 4 * words) }).unwrap();
        let address = memory as u64;
        Self { address, handle }.write(&vec![0; words]);
        // SAFETY: the pointer is writable, and all ranks register a window of this size.
        let registered =
            unsafe { sys::ncclCommWindowRegister(of.comm, memory, 4 * words, &mut handle, flags) };
        answer(registered).unwrap();
        Self { address, handle }
    }

    fn new(of: &Rank, words: usize) -> Self {
        Self::register(of, words, SYMMETRIC)
    }

    fn write(&self, words: &[u32]) {
        // SAFETY: the window has room for the words.
        unsafe { cuMemcpyHtoD_v2(self.address, words.as_ptr().cast(), 4 * words.len()) }.result().unwrap();
    }

    /// Copies four words, after everything that the rank's stream has been given.
    fn copy_from(&self, of: &Rank, from: &Self) -> Result<(), DriverError> {
        // SAFETY: both windows have four words.
        unsafe { cuMemcpyDtoDAsync_v2(self.address, from.address, 16, of.stream.cu_stream()) }.result()
    }

    /// Reads words after everything that the rank's stream has been given.
    fn read(&self, of: &Rank, words: usize) -> Result<Vec<u32>, String> {
        let mut read = vec![0; words];
        let stream = of.stream.cu_stream();
        // SAFETY: both sides have room for the words, and the stream is synchronized before the array is used.
        let copied =
            unsafe { cuMemcpyDtoHAsync_v2(read.as_mut_ptr().cast(), self.address, 4 * words, stream) };
        driver(copied.result())?;
        wait(&of.stream)?;
        Ok(read)
    }
}

/// Puts words at an offset in words.
fn put(of: &Rank, from: u64, count: usize, peer: usize, to: ncclWindow_t, offset: usize) -> Answer {
    let (stream, data_type) = (of.stream.cu_stream().cast(), ncclDataType_t::ncclUint32);
    // SAFETY: the library checks the arguments.
    answer(unsafe {
        sys::ncclPutSignal(
            from as *const _,
            count,
            data_type,
            peer as i32,
            to,
            4 * offset,
            0,
            0,
            0,
            of.comm,
            stream,
        )
    })
}

fn signal(of: &Rank, peer: usize) -> Answer {
    // SAFETY: the library checks the arguments.
    answer(unsafe { sys::ncclSignal(peer as i32, 0, 0, 0, of.comm, of.stream.cu_stream().cast()) })
}

fn wait_for(of: &Rank, signals: &[(usize, i32)]) -> Answer {
    let describe = |&(peer, count): &(usize, i32)| ncclWaitSignalDesc_t {
        opCnt: count,
        peer: peer as i32,
        sigIdx: 0,
        ctx: 0,
    };
    let mut descriptions: Vec<_> = signals.iter().map(describe).collect();
    let (count, stream) = (descriptions.len() as i32, of.stream.cu_stream().cast());
    // SAFETY: there are this many descriptions.
    answer(unsafe { sys::ncclWaitSignal(count, descriptions.as_mut_ptr(), of.comm, stream) })
}

fn ensure_equal(got: &[u32], expected: &[u32]) -> Said {
    if got == expected { Ok(()) } else { Err(format!("{got:?} instead of {expected:?}")) }
}

/// Each rank puts numbers into its right neighbor's window.
pub(crate) fn neighbors(me: &TestRank) -> Said {
    let own = &me.own;
    let (send, receive) = (Window::new(own, 4), Window::new(own, 4));
    let (left, right) = ((me.rank + me.n - 1) % me.n, (me.rank + 1) % me.n);
    send.write(&[me.rank as u32 + 10; 4]);
    said(put(own, send.address, 3, right, receive.handle, 1))?;
    said(wait_for(own, &[(left, 1)]))?;
    let number = left as u32 + 10;
    ensure_equal(&receive.read(own, 4)?, &[0, number, number, number])
}

/// Rank 0 puts, and rank 1 copies what it gets. The wrong twin doesn't wait for the put. Neither thread waits for its stream
/// before the other one has made its calls.
fn waits(me: &TestRank) -> Said {
    let own = &me.own;
    let (window, copy) = (Window::new(own, 4), Window::new(own, 4));
    if me.rank == 0 {
        said(put(own, copy.address, 4, 1, window.handle, 0))?;
        said(wait_for(own, &[(1, 1)]))?;
        said(signal(own, 1))?;
    } else {
        if !me.wrong {
            said(wait_for(own, &[(0, 1)]))?;
        }
        driver(copy.copy_from(own, &window))?;
        said(signal(own, 0))?;
        said(wait_for(own, &[(0, if me.wrong { 2 } else { 1 })]))?;
    }
    wait(&own.stream)
}

/// Rank 0 puts twice to the same bytes. The second time, it must know that rank 1 has read the first.
pub(crate) fn again(me: &TestRank) -> Said {
    let own = &me.own;
    let (window, copy) = (Window::new(own, 4), Window::new(own, 4));
    if me.rank == 0 {
        for number in 1..=2 {
            if number == 2 && !me.wrong {
                said(wait_for(own, &[(1, 1)]))?;
            }
            // SAFETY: the window has four words.
            driver(unsafe { cuMemsetD32Async(window.address, number, 4, own.stream.cu_stream()) }.result())?;
            said(put(own, window.address, 4, 1, window.handle, 0))?;
        }
        said(wait_for(own, &[(1, 1)]))?;
        return wait(&own.stream);
    }
    said(wait_for(own, &[(0, 1)]))?;
    driver(copy.copy_from(own, &window))?;
    if !me.wrong {
        said(signal(own, 0))?;
    }
    said(wait_for(own, &[(0, 1)]))?;
    said(signal(own, 0))?;
    wait(&own.stream)?;
    ensure_equal(&copy.read(own, 4)?, &[1; 4])?;
    ensure_equal(&window.read(own, 4)?, &[2; 4])
}

/// Rank 1 waits for three signals, and rank 0 sends them, or one too few.
pub(crate) fn counts(me: &TestRank) -> Said {
    let own = &me.own;
    let window = Window::new(own, 4);
    if me.rank == 0 {
        said(put(own, window.address, 4, 1, window.handle, 0))?;
        for _ in 0..if me.wrong { 1 } else { 2 } {
            said(signal(own, 1))?;
        }
    } else {
        said(wait_for(own, &[(0, 1)]))?;
        said(wait_for(own, &[(0, 2)]))?;
    }
    wait(&own.stream)
}

/// In the wrong twin, both ranks wait for each other before they signal.
pub(crate) fn waits_first(me: &TestRank) -> Said {
    let (own, other) = (&me.own, 1 - me.rank);
    if me.wrong {
        said(wait_for(own, &[(other, 1)]))?;
    }
    said(signal(own, other))?;
    if !me.wrong {
        said(wait_for(own, &[(other, 1)]))?;
    }
    wait(&own.stream)
}

/// In the wrong twin, rank 1 deregisters its window before the put.
pub(crate) fn deregistered(me: &TestRank) -> Said {
    let own = &me.own;
    let window = Window::new(own, 4);
    if me.is_wrong(1) {
        // SAFETY: the window is one of this communicator.
        said(answer(unsafe { sys::ncclCommWindowDeregister(own.comm, window.handle) }))?;
    }
    if me.rank == 1 {
        said(signal(own, 0))?;
        said(wait_for(own, &[(0, 1)]))?;
    } else {
        said(wait_for(own, &[(1, 1)]))?;
        wait(&own.stream)?;
        said(put(own, window.address, 4, 1, window.handle, 0))?;
    }
    wait(&own.stream)
}

fn exchange() -> anyhow::Result<()> {
    for said in run(3, neighbors, false) {
        said.map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

fn all_to_all() -> anyhow::Result<()> {
    raw_ranks(0, 4, |own| {
        let (send, receive) = (Window::new(&own, 4), Window::new(&own, 4));
        let all: Vec<(usize, i32)> = (0..4).map(|rank| (rank, 1)).collect();
        for round in 0..3 {
            send.write(&std::array::from_fn::<u32, 4, _>(|to| (100 * round + 10 * own.rank + to) as u32));
            // A barrier: every rank has read the results of the last round.
            in_group(|| (0..4).for_each(|rank| signal(&own, rank).unwrap())).unwrap();
            wait_for(&own, &all).unwrap();
            in_group(|| {
                (0..4).for_each(|rank| {
                    put(&own, send.address + 4 * rank as u64, 1, rank, receive.handle, own.rank).unwrap();
                })
            })
            .unwrap();
            wait_for(&own, &all).unwrap();
            let expected: Vec<u32> = (0..4).map(|from| (100 * round + 10 * from + own.rank) as u32).collect();
            assert_eq!(receive.read(&own, 4).unwrap(), expected);
        }
    });
    Ok(())
}

fn to_itself() -> anyhow::Result<()> {
    raw_ranks(0, 1, |own| {
        let (send, receive) = (Window::new(&own, 4), Window::new(&own, 4));
        send.write(&[1, 2, 3, 4]);
        put(&own, send.address, 2, 0, receive.handle, 2).unwrap();
        // A put of nothing is a signal.
        put(&own, send.address, 0, 0, receive.handle, 0).unwrap();
        wait_for(&own, &[(0, 2)]).unwrap();
        assert_eq!(receive.read(&own, 4).unwrap(), [0, 0, 1, 2]);
    });
    Ok(())
}

fn captured() -> anyhow::Result<()> {
    raw_ranks(0, 2, |own| {
        let window = Window::new(&own, 1);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        own.stream.begin_capture(mode).unwrap();
        if own.rank == 0 {
            put(&own, window.address, 1, 1, window.handle, 0).unwrap();
        } else {
            wait_for(&own, &[(0, 1)]).unwrap();
        }
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = own.stream.end_capture(flags).unwrap().expect("a graph");
        for number in [7, 8] {
            if own.rank == 0 {
                window.write(&[number]);
            }
            graph.launch().unwrap();
            own.stream.synchronize().unwrap();
            assert_eq!(window.read(&own, 1).unwrap(), [number]);
            // Rank 0 puts again once rank 1 has read.
            match own.rank {
                0 => wait_for(&own, &[(1, 1)]).unwrap(),
                _ => signal(&own, 0).unwrap(),
            }
        }
        own.stream.synchronize().unwrap();
    });
    Ok(())
}

fn time() -> anyhow::Result<()> {
    const WORDS: usize = 16 << 20;
    raw_ranks(0, 2, |own| {
        let window = Window::new(&own, WORDS);
        let other = 1 - own.rank;
        let mark = || own.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
        let milliseconds = |call: &dyn Fn()| {
            // The streams begin at the same time.
            signal(&own, other).unwrap();
            wait_for(&own, &[(other, 1)]).unwrap();
            let start = mark();
            call();
            start.elapsed_ms(&mark()).unwrap()
        };
        let one_sided = milliseconds(&|| match own.rank {
            0 => put(&own, window.address, WORDS, 1, window.handle, 0).unwrap(),
            _ => wait_for(&own, &[(0, 1)]).unwrap(),
        });
        let two_sided = milliseconds(&|| {
            let function = if own.rank == 0 { Function::Send } else { Function::Recv };
            own.call(function, window.address, window.address, peer(other, WORDS)).unwrap();
        });
        assert!(
            two_sided > 0.1 && (one_sided / two_sided - 1.0).abs() < 0.05,
            "{one_sided} ms, {two_sided} ms"
        );
    });
    Ok(())
}

fn aborted() -> anyhow::Result<()> {
    raw_ranks(0, 2, |own| {
        if own.rank == 0 {
            wait_for(&own, &[(1, 1)]).unwrap();
            // SAFETY: a query has no requirements.
            let _ = unsafe { cudarc::driver::sys::cuStreamQuery(own.stream.cu_stream()) };
            // SAFETY: the communicator is not used again.
            answer(unsafe { sys::ncclCommAbort(own.comm) }).unwrap();
            own.leaked.set(true);
            own.stream.synchronize().unwrap();
        }
    });
    Ok(())
}

fn wrong_arguments() -> anyhow::Result<()> {
    raw_ranks(0, 2, |own| {
        let (window, plain) = (Window::new(&own, 4), Window::register(&own, 4, 0));
        let refused = |answer: Answer, words: &[&str]| {
            let (code, text) = answer.expect_err("an error");
            assert_eq!(code, ncclResult_t::ncclInvalidArgument, "{text}");
            contains(&text, words);
        };
        refused(put(&own, window.address, 1, 2, window.handle, 0), &["peer 2 of 2 ranks"]);
        refused(put(&own, window.address, 1, 1, null_mut(), 0), &["is not a window of this communicator"]);
        refused(put(&own, window.address, 4, 1, window.handle, 1), &["16 bytes at offset 4", "16 bytes"]);
        refused(
            put(&own, window.address, 1, 1, plain.handle, 0),
            &["is not symmetric", "NCCL_WIN_COLL_SYMMETRIC"],
        );
        refused(put(&own, plain.address, 1, 1, window.handle, 0), &["in no symmetric window of this rank"]);
        refused(signal(&own, 9), &["peer 9 of 2 ranks"]);
        refused(wait_for(&own, &[]), &["at least one description"]);
        refused(wait_for(&own, &[(1, 0)]), &["opCnt must be at least 1"]);
        refused(wait_for(&own, &[(1, 1), (5, 1)]), &["peer 5 of 2 ranks"]);
        let stream = own.stream.cu_stream().cast();
        // SAFETY: the library checks the arguments.
        let reserved = unsafe { sys::ncclSignal(1, 0, 1, 0, own.comm, stream) };
        refused(answer(reserved), &["sigIdx, ctx, and flags must be 0"]);
        own.stream.synchronize().unwrap();
    });
    Ok(())
}

fn processes() -> anyhow::Result<()> {
    let long = [("VIRTUAL_GPU_TIMEOUT", "60")];
    let right = |program, layout: &[usize]| {
        let said = rank_processes::run(&Plan { program, layout, wrong: false, env: &long })?;
        said.into_iter().try_for_each(|said| said.map_err(anyhow::Error::msg))
    };
    right("one_sided_neighbors", &[1, 1, 1])?;
    right("one_sided_neighbors", &[2, 1])?;
    right("one_sided_again", &[1, 1])?;
    right("one_sided_counts", &[1, 1])?;
    right("one_sided_deregistered", &[1, 1])?;
    let wrong = |program, words: &[&str]| -> anyhow::Result<()> {
        let short = [("VIRTUAL_GPU_TIMEOUT", "2")];
        let said = rank_processes::run(&Plan { program, layout: &[1, 1], wrong: true, env: &short })?;
        let fits =
            |said: &Said| said.as_ref().is_err_and(|text| words.iter().all(|word| text.contains(word)));
        ensure!(said.iter().any(fits), "no {words:?} in {said:?}");
        Ok(())
    };
    wrong("one_sided_counts", &["a wait for a signal that never comes", "1 signal has not come"])?;
    wrong("one_sided_deregistered", &GONE)
}
