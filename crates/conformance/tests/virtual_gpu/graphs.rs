//! Stream capture and graphs, according to the rules in the CUDA Programming Guide.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::{self, CUgraphInstantiate_flags as Flags, CUresult};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DriverError, result};
use lab::Check;
use lab::kernels::Kernels;

use crate::device::untracked;
use crate::{contains, fails, text};

use sys::CUstreamCaptureMode::{
    CU_STREAM_CAPTURE_MODE_GLOBAL as GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL,
};
use sys::CUstreamCaptureStatus::{
    CU_STREAM_CAPTURE_STATUS_ACTIVE as ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED as INVALIDATED,
    CU_STREAM_CAPTURE_STATUS_NONE as NONE,
};

const NO_FLAGS: Flags = Flags(0);

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("graphs::nothing_is_done_before_the_launch_and_all_at_each", at_each_launch),
        Check::new("graphs::kernels_copies_and_sets_over_two_streams", over_two_streams),
        Check::new("graphs::two_gpus_in_one_graph", two_gpus),
        Check::new("graphs::host_functions_run_at_each_launch", host_functions),
        Check::new("graphs::host_memory_is_read_and_written_at_each_launch", host_memory),
        Check::new("graphs::a_launch_waits_for_the_last_one_and_for_its_stream", in_order),
        Check::new("graphs::a_graph_in_a_graph", nested),
        Check::new("graphs::a_destroyed_one_still_ends", destroyed_while_running),
        Check::new("graphs::branches_without_a_wait_race", || branches(false)),
        Check::new("graphs::branches_with_a_wait_don_t", || branches(true)),
        Check::new("graphs::a_launch_races_with_other_streams", || beside_a_stream(false)),
        Check::new("graphs::a_launch_that_is_waited_for_doesn_t", || beside_a_stream(true)),
        Check::new("graphs::a_failed_kernel_is_reported", failed_kernel),
        Check::new("graphs::instantiation_flags", instantiation_flags),
        Check::new("graphs::rules_about_streams", rules_about_streams),
        Check::new("graphs::rules_about_events", rules_about_events),
        Check::new("graphs::rules_about_the_default_stream", rules_about_the_default_stream),
        Check::new("graphs::rules_about_threads", rules_about_threads),
        Check::new("graphs::rules_about_unsafe_calls", rules_about_unsafe_calls),
        Check::new("graphs::memory_in_a_capture", memory_in_a_capture),
        Check::new("graphs::work_that_is_not_joined", unjoined),
        Check::new("graphs::bad_handles_and_modes", bad_arguments),
    ]
}

/// Captures a stream's calls into a graph.
fn capture(
    stream: &Arc<CudaStream>,
    calls: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<CudaGraph> {
    stream.begin_capture(THREAD_LOCAL)?;
    calls()?;
    Ok(stream.end_capture(NO_FLAGS)?.expect("a graph"))
}

fn at_each_launch() -> anyhow::Result<()> {
    let context = untracked(0);
    let stream = context.new_stream()?;
    let kernels = Kernels::load(&context)?;
    let mut x = stream.clone_htod(&[1.0_f32, 2.0, 3.0])?;
    assert_eq!(stream.capture_status()?, NONE);
    let graph = capture(&stream, || {
        assert_eq!(stream.capture_status()?, ACTIVE);
        kernels.scale(&stream, &mut x, 2.0)
    })?;
    assert_eq!(stream.capture_status()?, NONE);
    assert_eq!(stream.clone_dtoh(&x)?, [1.0, 2.0, 3.0]);
    graph.upload()?;
    for launches in 1..=3 {
        graph.launch()?;
        let factor = f32::from(1_u8 << launches);
        assert_eq!(stream.clone_dtoh(&x)?, [factor, 2.0 * factor, 3.0 * factor]);
    }
    Ok(())
}

/// Captures a fork through an event, and the join that ends it.
fn over_two_streams() -> anyhow::Result<()> {
    let context = untracked(0);
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    let kernels = Kernels::load(&context)?;
    let mut x = one.clone_htod(&[1.0_f32; 100])?;
    let mut y = one.clone_htod(&[5.0_f32; 100])?;
    let mut copy = one.alloc_zeros::<f32>(100)?;
    let graph = capture(&one, || {
        kernels.scale(&one, &mut x, 3.0)?;
        other.wait(&one.record_event(None)?)?;
        assert_eq!(other.capture_status()?, ACTIVE);
        other.memset_zeros(&mut y)?;
        other.memcpy_dtod(&x, &mut copy)?;
        one.wait(&other.record_event(None)?)?;
        kernels.axpy(&one, &mut y, &x, 10.0)
    })?;
    one.synchronize()?;
    graph.launch()?;
    graph.launch()?;
    assert_eq!(one.clone_dtoh(&y)?, [90.0; 100]);
    assert_eq!(one.clone_dtoh(&copy)?, [9.0; 100]);
    Ok(())
}

fn two_gpus() -> anyhow::Result<()> {
    let (first, second) = (untracked(0), untracked(1));
    let (one, other) = (first.new_stream()?, second.new_stream()?);
    let mut x = one.clone_htod(&[1.0_f32; 8])?;
    let mut y = other.alloc_zeros::<f32>(8)?;
    let kernels = Kernels::load(&first)?;
    other.synchronize()?;
    let graph = capture(&one, || {
        kernels.scale(&one, &mut x, 2.0)?;
        other.wait(&one.record_event(None)?)?;
        other.memcpy_dtod(&x, &mut y)?;
        one.wait(&other.record_event(None)?)?;
        Ok(())
    })?;
    graph.launch()?;
    graph.launch()?;
    one.synchronize()?;
    assert_eq!(other.clone_dtoh(&y)?, [4.0; 8]);
    Ok(())
}

unsafe extern "C" fn count(counter: *mut c_void) {
    // SAFETY: the caller passes a counter that outlives the launches.
    unsafe { &*counter.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
}

fn host_functions() -> anyhow::Result<()> {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let stream = untracked(0).new_stream()?;
    let counter = (&raw const COUNTER).cast_mut().cast();
    let graph = capture(&stream, || {
        // SAFETY: the counter is a static.
        Ok(unsafe { result::stream::launch_host_function(stream.cu_stream(), count, counter) }?)
    })?;
    assert_eq!(COUNTER.load(Ordering::Relaxed), 0);
    for launches in 1..=3 {
        graph.launch()?;
        stream.synchronize()?;
        assert_eq!(COUNTER.load(Ordering::Relaxed), launches);
    }
    Ok(())
}

/// "Programmers should not change the memory that a captured copy refers to": the copy reads the memory when it runs.
fn host_memory() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let mut x = stream.alloc_zeros::<u32>(4)?;
    let mut source = vec![1_u32; 4];
    let mut target = vec![0_u32; 4];
    let graph = capture(&stream, || {
        stream.memcpy_htod(&source, &mut x)?;
        stream.memcpy_dtoh(&x, &mut target)?;
        Ok(())
    })?;
    assert_eq!(target, [0; 4]);
    for value in [7, 8] {
        source.fill(value);
        graph.launch()?;
        stream.synchronize()?;
        assert_eq!(target, [value; 4]);
    }
    Ok(())
}

fn in_order() -> anyhow::Result<()> {
    let context = untracked(0);
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    let kernels = Kernels::load(&context)?;
    let mut x = one.clone_htod(&[1.0_f32])?;
    let graph = capture(&one, || kernels.scale(&one, &mut x, 2.0))?;
    one.synchronize()?;
    // SAFETY: the graph is used by this thread alone.
    unsafe { result::graph::launch(graph.cu_graph_exec(), other.cu_stream()) }?;
    // The same graph on another stream runs after the previous launch, although nothing else orders the two.
    graph.launch()?;
    assert_eq!(one.clone_dtoh(&x)?, [4.0]);
    Ok(())
}

fn nested() -> anyhow::Result<()> {
    let context = untracked(0);
    let stream = context.new_stream()?;
    let kernels = Kernels::load(&context)?;
    let mut x = stream.clone_htod(&[1.0_f32])?;
    let double = capture(&stream, || kernels.scale(&stream, &mut x, 2.0))?;
    let whole = capture(&stream, || {
        double.launch()?;
        kernels.scale(&stream, &mut x, 10.0)?;
        double.launch()?;
        Ok(())
    })?;
    drop(double);
    whole.launch()?;
    assert_eq!(stream.clone_dtoh(&x)?, [40.0]);
    Ok(())
}

fn destroyed_while_running() -> anyhow::Result<()> {
    let context = untracked(0);
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    let mut x = one.clone_htod(&[1_u8; 16])?;
    let graph = capture(&one, || Ok(one.memset_zeros(&mut x)?))?;
    other.wait(&one.record_event(None)?)?;
    // SAFETY: the graph is used by this thread alone.
    unsafe { result::graph::launch(graph.cu_graph_exec(), other.cu_stream()) }?;
    drop(graph);
    assert_eq!(other.clone_dtoh(&x)?, [0; 16]);
    Ok(())
}

fn branches(joined: bool) -> anyhow::Result<()> {
    let context = untracked(0);
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    let mut x = one.alloc_zeros::<u8>(4096)?;
    one.synchronize()?;
    let graph = capture(&one, || {
        let fork = one.record_event(None)?;
        one.memset_zeros(&mut x)?;
        other.wait(&if joined { one.record_event(None)? } else { fork })?;
        other.memset_zeros(&mut x)?;
        one.wait(&other.record_event(None)?)?;
        Ok(())
    })?;
    graph.launch()?;
    let done = one.synchronize();
    if joined {
        return Ok(done?);
    }
    let words = [
        "data race on GPU 0",
        "the buffer was allocated here",
        "written by a memset on stream 1 of a graph",
        "written by a memset on stream 2 of a graph",
        "help: record an event on stream 1 of a graph after line ",
        "crates/conformance/tests/virtual_gpu/graphs.rs:",
    ];
    fails(done, CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn beside_a_stream(waits: bool) -> anyhow::Result<()> {
    let context = untracked(0);
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    let mut x = one.alloc_zeros::<u8>(4096)?;
    one.synchronize()?;
    let graph = capture(&one, || Ok(one.memset_zeros(&mut x)?))?;
    graph.launch()?;
    if waits {
        other.wait(&one.record_event(None)?)?;
    }
    other.memset_zeros(&mut x)?;
    let done = other.synchronize();
    if waits {
        return Ok(done?);
    }
    let words = ["data race on GPU 0", "stream 1 of a graph", "on the stream on which the graph is launched"];
    fails(done, CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn failed_kernel() -> anyhow::Result<()> {
    let context = untracked(0);
    let stream = context.new_stream()?;
    let x = stream.clone_htod(&[1.0_f32; 4])?;
    let mut y: CudaSlice<f32> = stream.alloc_zeros(4)?;
    let graph = capture(&stream, || Ok(stream.memcpy_dtod(&x, &mut y)?))?;
    stream.synchronize()?;
    drop(y);
    stream.synchronize()?;
    graph.launch()?;
    fails(
        stream.synchronize(),
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        &["freed before a copy of it ran", "graphs.rs:"],
    );
    Ok(())
}

fn instantiation_flags() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let mut x = stream.clone_htod(&[1_u32; 4])?;
    let bad = [
        Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
            | Flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH,
        Flags::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
        Flags(1 << 7),
    ];
    for flags in bad {
        stream.begin_capture(GLOBAL)?;
        let Err(error) = stream.end_capture(flags) else { anyhow::bail!("{flags:?} were taken") };
        assert_eq!(error.0, CUresult::CUDA_ERROR_INVALID_VALUE);
        contains(&text(error), &["cuGraphInstantiateWithFlags"]);
    }
    let good = [
        NO_FLAGS,
        Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
        Flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
    ];
    for flags in good {
        stream.begin_capture(GLOBAL)?;
        stream.memset_zeros(&mut x)?;
        let graph = stream.end_capture(flags)?.expect("a graph");
        stream.memcpy_htod(&[2; 4], &mut x)?;
        graph.launch()?;
        assert_eq!(stream.clone_dtoh(&x)?, [0; 4]);
    }
    Ok(())
}

/// Asserts that the capture of `stream` is invalid, and ends it.
#[track_caller]
fn is_broken(stream: &Arc<CudaStream>, words: &[&str]) {
    assert_eq!(stream.capture_status().unwrap(), INVALIDATED);
    fails(stream.end_capture(NO_FLAGS).map(drop), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, words);
    assert_eq!(stream.capture_status().unwrap(), NONE);
}

fn rules_about_streams() -> anyhow::Result<()> {
    let context = untracked(0);
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    fails(
        one.end_capture(NO_FLAGS).map(drop),
        CUresult::CUDA_ERROR_ILLEGAL_STATE,
        &["stream 1 is not being captured"],
    );
    one.begin_capture(THREAD_LOCAL)?;
    fails(one.begin_capture(THREAD_LOCAL), CUresult::CUDA_ERROR_ILLEGAL_STATE, &["already being captured"]);
    // Another stream is not affected.
    other.synchronize()?;
    fails(
        one.synchronize(),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        &["cuStreamSynchronize on stream 1, which is being captured"],
    );
    let mut x = other.alloc_zeros::<u8>(4)?;
    fails(
        one.memset_zeros(&mut x),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        &["the capture is invalid since cuStreamSynchronize"],
    );
    is_broken(&one, &["cuStreamSynchronize on stream 1"]);

    one.begin_capture(THREAD_LOCAL)?;
    fails(context.synchronize(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, &["cuCtxSynchronize"]);
    is_broken(&one, &["cuCtxSynchronize"]);

    one.begin_capture(THREAD_LOCAL)?;
    other.wait(&one.record_event(None)?)?;
    fails(
        other.end_capture(NO_FLAGS).map(drop),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        &["capture began on stream 1"],
    );
    assert!(one.end_capture(NO_FLAGS)?.is_some());
    assert_eq!(other.capture_status()?, NONE);
    Ok(())
}

fn rules_about_events() -> anyhow::Result<()> {
    let context = untracked(0);
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    let before = other.record_event(None)?;
    one.begin_capture(THREAD_LOCAL)?;
    fails(
        one.wait(&before),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        &["recorded outside of the capture", "disable_event_tracking"],
    );
    is_broken(&one, &["recorded outside"]);

    one.begin_capture(THREAD_LOCAL)?;
    let inside = one.record_event(None)?;
    fails(inside.synchronize(), CUresult::CUDA_ERROR_CAPTURED_EVENT, &["cuEventSynchronize"]);
    is_broken(&one, &["cuEventSynchronize"]);
    // The event belongs to a capture that has ended.
    fails(other.wait(&inside), CUresult::CUDA_ERROR_INVALID_VALUE, &["that has ended"]);
    inside.record(&other)?;
    inside.synchronize()?;

    one.begin_capture(THREAD_LOCAL)?;
    other.begin_capture(THREAD_LOCAL)?;
    let event = one.record_event(None)?;
    fails(other.wait(&event), CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE, &["an event from another"]);
    is_broken(&one, &["an event from another"]);
    is_broken(&other, &["an event from another"]);
    Ok(())
}

/// A stream made without `CU_STREAM_NON_BLOCKING`, which waits for the legacy default stream.
fn blocking_stream(context: &CudaContext) -> anyhow::Result<sys::CUstream> {
    context.bind_to_thread()?;
    Ok(result::stream::create(result::stream::StreamKind::Default)?)
}

fn rules_about_the_default_stream() -> anyhow::Result<()> {
    let context = untracked(0);
    let default = context.default_stream();
    let mut x = default.alloc_zeros::<u8>(4)?;
    fails(
        default.begin_capture(GLOBAL),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        &["legacy default stream"],
    );
    let stream = blocking_stream(&context)?;
    // SAFETY: the stream is alive.
    unsafe { result::stream::begin_capture(stream, RELAXED) }?;
    fails(default.capture_status(), CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, &["default stream"]);
    fails(default.memset_zeros(&mut x), CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, &["default stream"]);
    // SAFETY: as above.
    let ended = unsafe { result::stream::end_capture(stream) };
    fails(ended, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, &["default stream"]);
    default.memset_zeros(&mut x)?;

    // A non-blocking stream is independent of the default stream.
    let other = context.new_stream()?;
    other.begin_capture(RELAXED)?;
    default.memset_zeros(&mut x)?;
    assert!(other.end_capture(NO_FLAGS)?.is_some());
    Ok(())
}

fn rules_about_threads() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let end_elsewhere = || -> Result<(), DriverError> {
        std::thread::scope(|scope| scope.spawn(|| stream.end_capture(NO_FLAGS).map(drop)).join().unwrap())
    };
    stream.begin_capture(GLOBAL)?;
    fails(
        end_elsewhere(),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        &["another thread, which must end it"],
    );
    assert!(stream.end_capture(NO_FLAGS)?.is_some());
    stream.begin_capture(RELAXED)?;
    end_elsewhere()?;
    Ok(())
}

fn rules_about_unsafe_calls() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    // SAFETY: the memory is never used.
    let allocate = || unsafe { result::malloc_sync(16) }.map(drop);
    let elsewhere = || {
        std::thread::scope(|scope| {
            let bound = || stream.context().bind_to_thread().and_then(|()| allocate());
            scope.spawn(bound).join().unwrap()
        })
    };
    let here_words = ["cuMemAlloc can't be captured, but was called during a capture"];
    let there_words =
        ["cuMemAlloc was called in another thread than the capture's, which the global capture mode forbids"];
    for (mode, here, there) in [(GLOBAL, false, false), (THREAD_LOCAL, false, true), (RELAXED, true, true)] {
        let calls = [(&allocate as &dyn Fn() -> _, here, here_words), (&elsewhere, there, there_words)];
        for (call, allowed, words) in calls {
            stream.begin_capture(mode)?;
            let called: Result<(), DriverError> = call();
            if allowed {
                called?;
                assert!(stream.end_capture(NO_FLAGS)?.is_some(), "{mode:?}");
            } else {
                // The words of an error can only be had in the thread that got it.
                fails(called, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, &[]);
                is_broken(&stream, &words);
            }
        }
    }
    Ok(())
}

/// Memory that a graph owns is not supported, and a graph can't free memory that was allocated before the capture.
fn memory_in_a_capture() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let mut buffer = stream.alloc_zeros::<u8>(16)?;
    let outside = stream.alloc_zeros::<u8>(16)?;
    stream.synchronize()?;
    let address = outside.leak();
    stream.begin_capture(THREAD_LOCAL)?;
    {
        // The graph owns this memory, and frees it at the end of the block.
        let mut inside = stream.alloc_zeros::<u8>(16)?;
        stream.memcpy_htod(&[3; 16], &mut inside)?;
        stream.memcpy_dtod(&inside, &mut buffer)?;
    }
    // SAFETY: the memory belongs to this function.
    let free = || unsafe { result::free_async(address, stream.cu_stream()) };
    fails(free(), CUresult::CUDA_ERROR_INVALID_VALUE, &["a graph can't free other memory"]);
    let graph = stream.end_capture(NO_FLAGS)?.unwrap();
    graph.launch()?;
    graph.launch()?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [3; 16]);
    Ok(free()?)
}

fn unjoined() -> anyhow::Result<()> {
    let context = untracked(0);
    let (one, other) = (context.new_stream()?, context.new_stream()?);
    let mut x = one.alloc_zeros::<u8>(4)?;
    one.synchronize()?;
    one.begin_capture(THREAD_LOCAL)?;
    other.wait(&one.record_event(None)?)?;
    other.memset_zeros(&mut x)?;
    fails(
        one.end_capture(NO_FLAGS).map(drop),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        &["stream 1 does not wait for a memset on stream 2", "graphs.rs:"],
    );
    // Both streams can be used again.
    other.memset_zeros(&mut x)?;
    one.wait(&other.record_event(None)?)?;
    Ok(one.synchronize()?)
}

fn bad_arguments() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let handle = stream.cu_stream();
    // SAFETY: the driver checks the mode and the handles before it uses them.
    let begun = unsafe {
        let begin: unsafe extern "C" fn(sys::CUstream, u32) -> CUresult =
            std::mem::transmute(symbol("cuStreamBeginCapture_v2"));
        begin(handle, 3)
    };
    fails(begun.result(), CUresult::CUDA_ERROR_INVALID_VALUE, &["3 is not a CUstreamCaptureMode"]);
    let nothing = 0xdead0_usize as *mut c_void;
    // SAFETY: as above.
    unsafe {
        let words = ["is not an executable graph"];
        fails(result::graph::launch(nothing.cast(), handle), CUresult::CUDA_ERROR_INVALID_VALUE, &words);
        fails(result::graph::exec_destroy(nothing.cast()), CUresult::CUDA_ERROR_INVALID_VALUE, &words);
        let words = ["is not a graph"];
        fails(result::graph::destroy(nothing.cast()), CUresult::CUDA_ERROR_INVALID_VALUE, &words);
        let made = result::graph::instantiate(nothing.cast(), NO_FLAGS);
        fails(made.map(drop), CUresult::CUDA_ERROR_INVALID_VALUE, &words);
    }
    Ok(())
}

/// Returns a function of the virtual driver, to be called with arguments that cudarc's types can't represent.
fn symbol(name: &str) -> *const c_void {
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: both are C strings, and the library stays loaded.
    let found = unsafe {
        let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW);
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!found.is_null());
    found
}
