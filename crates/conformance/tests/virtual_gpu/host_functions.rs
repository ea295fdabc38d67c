//! The program's host functions, which run in stream order.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::{shape, untracked};
use crate::symbols::symbol;
use crate::{contains, fails, text};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("host_functions::they_run_in_stream_order_on_another_thread", in_stream_order),
        Check::new("host_functions::later_work_waits_for_them", later_work_waits),
        Check::new("host_functions::a_message_orders_what_follows_it", message_orders),
        Check::new("host_functions::a_cuda_call_in_one_is_refused", no_cuda_calls),
        Check::new("host_functions::one_that_does_not_return_is_given_up", never_returns),
        Check::new("host_functions::one_learns_that_its_thread_waits", learns_that_its_thread_waits),
        Check::new("host_functions::none_runs_on_a_failed_gpu", none_after_a_failure),
        Check::new("host_functions::a_null_function_is_refused", null_function),
    ]
}

/// Enqueues a closure.
pub(crate) fn launch(
    stream: &CudaStream,
    function: impl FnOnce() + Send + 'static,
) -> Result<(), DriverError> {
    unsafe extern "C" fn call(data: *mut c_void) {
        // SAFETY: the driver passes the original pointer, once.
        let function = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
        function();
    }
    let function: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(function));
    // SAFETY: `call` takes this pointer, and is called at most once.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), call, Box::into_raw(function).cast()) }
}

fn stream() -> anyhow::Result<Arc<CudaStream>> {
    Ok(untracked(0).new_stream()?)
}

fn in_stream_order() -> anyhow::Result<()> {
    let stream = stream()?;
    let seen: Arc<Mutex<Vec<(usize, ThreadId)>>> = Arc::default();
    for number in 0..20 {
        let seen = seen.clone();
        launch(&stream, move || seen.lock().unwrap().push((number, std::thread::current().id())))?;
    }
    stream.synchronize()?;
    let seen = seen.lock().unwrap();
    assert!(seen.iter().map(|&(number, _)| number).eq(0..20));
    assert!(seen.iter().all(|&(_, thread)| thread != std::thread::current().id()));
    Ok(())
}

fn later_work_waits() -> anyhow::Result<()> {
    let (stream, other) = (stream()?, stream()?);
    let (send, receive): (Sender<()>, Receiver<()>) = channel();
    let gone = Arc::new(AtomicBool::new(false));
    let after = gone.clone();
    launch(&stream, move || receive.recv().unwrap())?;
    launch(&stream, move || after.store(true, Ordering::Relaxed))?;
    let event = stream.record_event(None)?;
    other.wait(&event)?;
    let mut buffer = other.alloc_zeros::<u8>(8)?;
    other.memset_zeros(&mut buffer)?;
    assert!(!event.is_complete() && !gone.load(Ordering::Relaxed));
    send.send(())?;
    // The copy waits for `other`, which waits for the functions.
    assert_eq!(other.clone_dtoh(&buffer)?, [0; 8]);
    assert!(gone.load(Ordering::Relaxed));
    Ok(())
}

fn message_orders() -> anyhow::Result<()> {
    let (stream, other) = (stream()?, stream()?);
    let mut buffer = stream.alloc_zeros::<u8>(64)?;
    let (send, receive) = channel();
    launch(&stream, move || send.send(()).unwrap())?;
    receive.recv()?;
    other.memset_zeros(&mut buffer)?;
    Ok(other.synchronize()?)
}

fn no_cuda_calls() -> anyhow::Result<()> {
    let stream = stream()?;
    let (send, receive) = channel();
    launch(&stream, move || {
        let reported = result::ctx::get_current().map(drop).map_err(|error| (error.0, text(error)));
        send.send(reported).unwrap();
    })?;
    let Err((code, said)) = receive.recv()? else { anyhow::bail!("the call was not refused") };
    assert_eq!(code, CUresult::CUDA_ERROR_NOT_PERMITTED);
    contains(&said, &["cuCtxGetCurrent was called in a host function"]);
    stream.synchronize()?;
    Ok(())
}

fn never_returns() -> anyhow::Result<()> {
    let stream = stream()?;
    let (send, receive): (Sender<()>, Receiver<()>) = channel();
    launch(&stream, move || receive.recv().unwrap_or_default())?;
    let words = [
        "a host function that does not return",
        "crates/conformance/tests/virtual_gpu/host_functions.rs:",
        &format!("given up after {} s", crate::TIMEOUT.as_secs()),
    ];
    fails(stream.synchronize(), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, &words);
    // The function finally returns, but its stream no longer waits for it.
    drop(send);
    let other = CudaContext::new(1)?.new_stream()?;
    let (send, receive) = channel();
    launch(&other, move || send.send(7).unwrap())?;
    other.synchronize()?;
    assert_eq!(receive.recv()?, 7);
    Ok(())
}

fn learns_that_its_thread_waits() -> anyhow::Result<()> {
    let is_awaited = symbol(c"virtualGpuHostFunctionIsAwaited");
    // SAFETY: this is the function's type in `virtual_cuda`.
    let is_awaited: extern "C" fn() -> c_int = unsafe { std::mem::transmute(is_awaited) };
    let (stream, other) = (stream()?, stream()?);
    assert_eq!(is_awaited(), 0);
    let (send, answers) = channel();
    let (go_on, may_go_on) = channel();
    launch(&stream, move || {
        may_go_on.recv().unwrap();
        send.send(is_awaited()).unwrap();
        while is_awaited() == 0 {
            std::thread::yield_now();
        }
        send.send(1).unwrap();
    })?;
    // Another thread waits for the function, and this one for work that does not depend on it.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| stream.synchronize());
        std::thread::sleep(Duration::from_millis(20));
        other.synchronize()?;
        go_on.send(())?;
        assert_eq!(answers.recv()?, 0);
        // This thread's wait leads to the function through an event.
        other.join(&stream)?;
        other.synchronize()?;
        waiting.join().unwrap()?;
        anyhow::Ok(())
    })?;
    assert_eq!((answers.recv()?, is_awaited()), (1, 0));
    Ok(())
}

fn none_after_a_failure() -> anyhow::Result<()> {
    const WRITES_NOWHERE: &str = "
        .version 8.0
        .target sm_70
        .address_size 64
        .visible .entry nowhere() {
            .reg .b64 %rd<2>;
            mov.u64 %rd1, 64;
            st.global.u32 [%rd1], 1;
            ret;
        }";
    let stream = stream()?;
    let nowhere = stream.context().load_module(Ptx::from_src(WRITES_NOWHERE))?.load_function("nowhere")?;
    let (send, receive): (Sender<()>, Receiver<()>) = channel();
    let called = Arc::new(AtomicBool::new(false));
    // The stream is blocked, so that everything is enqueued before the failure.
    launch(&stream, move || receive.recv().unwrap_or_default())?;
    let one = shape(1, 1);
    // SAFETY: this write is not safe; it has to fail.
    unsafe { stream.launch_builder(&nowhere).launch(one) }?;
    let function = called.clone();
    launch(&stream, move || function.store(true, Ordering::Relaxed))?;
    drop(send);
    fails(stream.synchronize(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &["kernel `nowhere`"]);
    assert!(!called.load(Ordering::Relaxed));
    Ok(())
}

fn null_function() -> anyhow::Result<()> {
    let stream = stream()?;
    // SAFETY: a null function is refused and not called.
    let launched = unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), None, std::ptr::null_mut()) };
    fails(launched.result(), CUresult::CUDA_ERROR_INVALID_VALUE, &["the function is null"]);
    Ok(())
}
