//! What nothing orders is found; what one more call orders is not. Each pair differs by that call.
//!
//! Event tracking is off in all of them: cudarc would add the missing call.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};

/// Runs `program` in a process of its own and returns what it printed on stderr.
fn reports(name: &str, program: impl FnOnce()) -> Option<String> {
    if std::env::var("ALONE").is_ok() {
        program();
        return None;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env("ALONE", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    Some(text)
}

fn silent(name: &str, program: impl FnOnce()) {
    if let Some(text) = reports(name, program) {
        assert!(!text.contains("virtual GPU:"), "{text}");
    }
}

fn races(name: &str, words: &[&str], program: impl FnOnce()) {
    if let Some(text) = reports(name, program) {
        for words in words {
            assert!(text.contains(words), "no `{words}` in:\n{text}");
        }
    }
}

/// Two streams of GPU 0 and a written buffer.
fn two_streams() -> (Arc<CudaStream>, Arc<CudaStream>, CudaSlice<u8>) {
    lab::attach(2).unwrap();
    let context = CudaContext::new(0).unwrap();
    // SAFETY: these programs order their streams themselves, or show what happens otherwise.
    unsafe { context.disable_event_tracking() };
    let (one, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let buffer = one.alloc_zeros(4096).unwrap();
    one.synchronize().unwrap();
    (one, other, buffer)
}

#[test]
fn two_writes_without_a_wait() {
    let words = [
        "data race on GPU 0",
        "bytes 0..4096 of the buffer of 4 KiB",
        "written by a memset on stream 1",
        "written by a memset on stream 2",
        "nothing makes stream 2 wait for stream 1",
    ];
    races("two_writes_without_a_wait", &words, || {
        let (one, other, mut buffer) = two_streams();
        one.memset_zeros(&mut buffer).unwrap();
        other.memset_zeros(&mut buffer).unwrap();
        assert!(other.synchronize().is_err());
    });
}

#[test]
fn two_writes_with_a_wait() {
    silent("two_writes_with_a_wait", || {
        let (one, other, mut buffer) = two_streams();
        one.memset_zeros(&mut buffer).unwrap();
        other.wait(&one.record_event(None).unwrap()).unwrap();
        other.memset_zeros(&mut buffer).unwrap();
        other.synchronize().unwrap();
    });
}

#[test]
fn two_writes_with_a_host_wait_between() {
    silent("two_writes_with_a_host_wait_between", || {
        let (one, other, mut buffer) = two_streams();
        one.memset_zeros(&mut buffer).unwrap();
        one.synchronize().unwrap();
        other.memset_zeros(&mut buffer).unwrap();
        other.synchronize().unwrap();
    });
}

#[test]
fn an_event_recorded_too_early_orders_nothing() {
    races(
        "an_event_recorded_too_early_orders_nothing",
        &["data race", "nothing makes stream 2 wait"],
        || {
            let (one, other, mut buffer) = two_streams();
            let event = one.record_event(None).unwrap();
            one.memset_zeros(&mut buffer).unwrap();
            other.wait(&event).unwrap();
            other.memset_zeros(&mut buffer).unwrap();
            assert!(other.synchronize().is_err());
        },
    );
}

#[test]
fn other_parts_of_a_buffer_are_no_race() {
    silent("other_parts_of_a_buffer_are_no_race", || {
        let (one, other, mut buffer) = two_streams();
        one.memset_zeros(&mut buffer.slice_mut(..100)).unwrap();
        other.memset_zeros(&mut buffer.slice_mut(100..)).unwrap();
        other.synchronize().unwrap();
        one.synchronize().unwrap();
    });
}

#[test]
fn a_stream_orders_itself_behind_a_dropped_one() {
    silent("a_stream_orders_itself_behind_a_dropped_one", || {
        let (one, other, mut buffer) = two_streams();
        let third = other.context().new_stream().unwrap();
        third.memset_zeros(&mut buffer).unwrap();
        third.synchronize().unwrap();
        drop(third);
        one.memset_zeros(&mut buffer).unwrap();
        one.synchronize().unwrap();
    });
}

#[test]
fn a_buffer_handed_to_another_thread_after_a_wait() {
    silent("a_buffer_handed_to_another_thread_after_a_wait", || {
        let (one, other, mut buffer) = two_streams();
        let (send, receive) = std::sync::mpsc::channel::<CudaSlice<u8>>();
        let thread = std::thread::spawn(move || {
            let mut buffer = receive.recv().unwrap();
            other.memset_zeros(&mut buffer).unwrap();
            other.synchronize().unwrap();
        });
        one.memset_zeros(&mut buffer).unwrap();
        one.synchronize().unwrap();
        send.send(buffer).unwrap();
        thread.join().unwrap();
    });
}

/// A collective on one stream beside work on another, on two ranks. `wait` adds the missing call.
fn collective_beside(wait: bool) {
    lab::attach(2).unwrap();
    let id = Id::new().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let context = CudaContext::new(rank).unwrap();
                // SAFETY: as above.
                unsafe { context.disable_event_tracking() };
                let (compute, comm) = (context.new_stream().unwrap(), context.new_stream().unwrap());
                let comm = Comm::from_rank(comm, rank, 2, id).unwrap();
                let mut buffer = compute.alloc_zeros::<f32>(1000).unwrap();
                compute.synchronize().unwrap();
                compute.memcpy_htod(&[1.5; 1000], &mut buffer).unwrap();
                if wait {
                    comm.stream().wait(&compute.record_event(None).unwrap()).unwrap();
                }
                comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
                assert_eq!(comm.stream().synchronize().is_ok(), wait);
                if wait {
                    assert_eq!(comm.stream().clone_dtoh(&buffer).unwrap(), [3.0; 1000]);
                } else {
                    std::mem::forget((comm, buffer));
                }
            });
        }
    });
}

#[test]
fn a_collective_that_nothing_makes_wait() {
    let words = [
        "data race on GPU",
        "written by a copy from the host on stream 1",
        "read by ncclAllReduce on stream 2",
        "crates/lab/tests/virtual_order.rs:",
    ];
    races("a_collective_that_nothing_makes_wait", &words, || collective_beside(false));
}

#[test]
fn a_collective_that_waits() {
    silent("a_collective_that_waits", || collective_beside(true));
}

#[test]
fn a_buffer_freed_while_another_stream_uses_it() {
    races("a_buffer_freed_while_another_stream_uses_it", &["data race", "by its free on stream 1"], || {
        let (one, other, mut buffer) = two_streams();
        other.memset_zeros(&mut buffer).unwrap();
        drop(buffer);
        assert!(one.synchronize().is_err());
    });
}

#[test]
fn the_default_stream_waits_for_blocking_streams_only() {
    races("the_default_stream_waits_for_blocking_streams_only", &["the default stream"], || {
        let (one, _, mut buffer) = two_streams();
        one.memset_zeros(&mut buffer).unwrap();
        let default = one.context().default_stream();
        default.memset_zeros(&mut buffer).unwrap();
        assert!(default.synchronize().is_err());
    });
}
