//! The stream and event functions.

use std::ffi::{CString, c_int, c_uint};
use std::sync::Arc;

use virtual_gpu::device::PRIORITIES;
use virtual_gpu::engine::{ContextHandle, EventHandle};
use virtual_gpu_core::recorded::StreamOperation;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::capture;
use crate::engine;
use crate::pointer::Out;
use crate::shared_event::EventFile;
use crate::types::{Context, Event, GreenContext, Stream, handle, stream};

/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`
const EXTERNAL: c_uint = 1;

/// `CU_STREAM_NON_BLOCKING`, the only stream flag.
const STREAM_NON_BLOCKING: c_uint = 1;

/// All bits of `CUevent_flags`: blocking sync, disable timing, interprocess.
const EVENT_FLAGS: c_uint = 0b111;

/// `CU_EVENT_DISABLE_TIMING`
const EVENT_DISABLE_TIMING: c_uint = 0b010;

/// `CU_EVENT_INTERPROCESS`
const EVENT_INTERPROCESS: c_uint = 0b100;

pub(crate) fn create_stream(to: Out<Stream>, flags: c_uint) -> CudaResult<()> {
    create(to, flags, 0)
}

/// Clamps a priority that is out of range, as the driver does. A priority affects when work runs but never its results, so
/// it is only kept.
pub(crate) fn create_stream_with_priority(to: Out<Stream>, flags: c_uint, priority: c_int) -> CudaResult<()> {
    let (least, greatest) = PRIORITIES;
    create(to, flags, priority.clamp(greatest, least))
}

fn create(to: Out<Stream>, flags: c_uint, priority: c_int) -> CudaResult<()> {
    if flags & !STREAM_NON_BLOCKING != 0 {
        return Err(invalid(format!("cuStreamCreate: {flags:#x} are not stream flags")));
    }
    let made = engine::get()?.create_stream_with_priority(flags & STREAM_NON_BLOCKING != 0, priority)?;
    to.give(handle(made.0))
}

/// Names a stream for reports. If there is no driver or no such stream, no error is reported.
pub(crate) fn name(of: Stream, role: &str) {
    let _ = engine::get().and_then(|engine| engine.name_stream(stream(of), role));
}

/// Records, from now on, when each operation runs.
pub(crate) fn record_operations() {
    if let Ok(engine) = engine::get() {
        engine.record_operations();
    }
}

/// Returns whether the thread that enqueued the running host function is blocked until that function returns.
pub(crate) fn host_function_is_awaited() -> bool {
    engine::get().is_ok_and(|engine| engine.host_function_is_awaited())
}

/// Calls `visit` with each recorded operation of a GPU that has run.
pub(crate) fn operations(gpu: c_int, mut visit: impl FnMut(&StreamOperation)) {
    let (Ok(engine), Ok(gpu)) = (engine::get(), usize::try_from(gpu)) else { return };
    let text = |text: &str| CString::new(text).unwrap_or_default();
    engine.operations(gpu, |operation| {
        let [stream_name, category, name] =
            [operation.stream_name, operation.label.category, &operation.label.name].map(text);
        visit(&StreamOperation {
            stream: operation.stream.0,
            stream_name: stream_name.as_ptr(),
            category: category.as_ptr(),
            name: name.as_ptr(),
            start: operation.start,
            end: operation.end,
        });
    });
}

pub(crate) fn destroy_stream(of: Stream) -> CudaResult<()> {
    engine::get()?.destroy_stream(stream(of))?;
    capture::forget_list(of);
    Ok(())
}

pub(crate) fn synchronize_stream(of: Stream) -> CudaResult<()> {
    engine::get()?.synchronize_stream(stream(of))
}

fn not_ready(done: bool) -> CudaResult<()> {
    if done { Ok(()) } else { Err(CudaStatus::NotReady.into()) }
}

pub(crate) fn query_stream(of: Stream) -> CudaResult<()> {
    not_ready(engine::get()?.query_stream(stream(of))?)
}

pub(crate) fn wait_event(of: Stream, event: Event, flags: c_uint) -> CudaResult<()> {
    let (engine, stream, event) = (engine::get()?, stream(of), EventHandle(event as u64));
    match flags {
        0 => engine.wait_event(stream, event),
        EXTERNAL => engine.wait_external_event(stream, event),
        _ => Err(invalid(format!("cuStreamWaitEvent: {flags:#x} contains unknown flags"))),
    }
}

pub(crate) fn create_event(to: Out<Event>, flags: c_uint) -> CudaResult<()> {
    if flags & !EVENT_FLAGS != 0 {
        return Err(invalid(format!("cuEventCreate: {flags:#x} are not event flags")));
    }
    if flags & EVENT_INTERPROCESS != 0 && flags & EVENT_DISABLE_TIMING == 0 {
        return Err(invalid("cuEventCreate: CU_EVENT_INTERPROCESS needs CU_EVENT_DISABLE_TIMING"));
    }
    let engine = engine::get()?;
    let made = match flags & EVENT_INTERPROCESS {
        0 => engine.create_event(flags & EVENT_DISABLE_TIMING == 0),
        _ => {
            let gpu = engine.physical(engine.current_device()?);
            let file = EventFile::new(gpu).map_err(|error| {
                let message = format!("cuEventCreate: can't share an event between processes: {error}");
                Error::new(CudaStatus::OperatingSystem, message)
            })?;
            engine.create_shared_event(Arc::new(file))
        }
    };
    to.give(handle(made?.0))
}

pub(crate) fn destroy_event(event: Event) -> CudaResult<()> {
    engine::get()?.destroy_event(EventHandle(event as u64))
}

pub(crate) fn record_event(event: Event, of: Stream) -> CudaResult<()> {
    engine::get()?.record_event(EventHandle(event as u64), stream(of))
}

pub(crate) fn record_event_with(event: Event, of: Stream, flags: c_uint) -> CudaResult<()> {
    let (engine, stream, event) = (engine::get()?, stream(of), EventHandle(event as u64));
    match flags {
        0 => engine.record_event(event, stream),
        EXTERNAL => engine.record_external_event(event, stream),
        _ => Err(invalid(format!("cuEventRecordWithFlags: {flags:#x} contains unknown flags"))),
    }
}

/// `cuCtxRecordEvent`: records everything that is enqueued in a context.
pub(crate) fn record_context(of: Context, event: Event) -> CudaResult<()> {
    engine::get()?.record_context(ContextHandle(of as u64), EventHandle(event as u64))
}

/// `cuCtxWaitEvent`: makes all later work in a context wait.
pub(crate) fn wait_in_context(of: Context, event: Event) -> CudaResult<()> {
    engine::get()?.wait_in_context(ContextHandle(of as u64), EventHandle(event as u64))
}

/// `cuStreamGetCtx_v2`: also returns the stream's green context, which is null because there are none.
pub(crate) fn contexts(of: Stream, to: Out<Context>, green: Out<GreenContext>) -> CudaResult<()> {
    context(of, to)?;
    green.give_if_wanted(std::ptr::null_mut());
    Ok(())
}

pub(crate) fn synchronize_event(event: Event) -> CudaResult<()> {
    engine::get()?.synchronize_event(EventHandle(event as u64))
}

pub(crate) fn query_event(event: Event) -> CudaResult<()> {
    not_ready(engine::get()?.query_event(EventHandle(event as u64))?)
}

pub(crate) fn elapsed(to: Out<f32>, start: Event, end: Event) -> CudaResult<()> {
    to.give(engine::get()?.elapsed(EventHandle(start as u64), EventHandle(end as u64))?)
}

pub(crate) fn context(of: Stream, to: Out<Context>) -> CudaResult<()> {
    to.give(handle(engine::get()?.context_of_stream(stream(of))?.0))
}
