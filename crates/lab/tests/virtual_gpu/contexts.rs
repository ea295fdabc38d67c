//! What a program asks of a context: its flags, limits and preferences.

use std::sync::Arc;

use cudarc::driver::sys::{CUctx_flags, CUdevice_attribute, CUevent_flags, CUfunc_cache, CUlimit, CUresult};
use cudarc::driver::{CudaContext, Profiler, result, sys};
use lab::Check;

use crate::fails;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("contexts::limits_are_kept_or_refused_by_name", limits),
        Check::new("contexts::flags_are_checked", flags),
        Check::new("contexts::a_cache_preference_is_kept", cache_preference),
        Check::new("contexts::streams_of_any_priority", priorities),
        Check::new("contexts::event_and_wait_flags_are_checked", event_flags),
        Check::new("contexts::the_profiler_has_nothing_to_tell", profiler),
        Check::new("contexts::synchronous_memory_operations", synchronous_memory_operations),
        Check::new("contexts::device_attributes", device_attributes),
        Check::new("contexts::settings_need_a_context", settings_need_a_context),
    ]
}

fn context() -> anyhow::Result<Arc<CudaContext>> {
    Ok(CudaContext::new(0)?)
}

fn limits() -> anyhow::Result<()> {
    let context = context()?;
    assert_eq!(context.get_limit(CUlimit::CU_LIMIT_STACK_SIZE)?, 1024);
    context.set_limit(CUlimit::CU_LIMIT_STACK_SIZE, 4096)?;
    assert_eq!(context.get_limit(CUlimit::CU_LIMIT_STACK_SIZE)?, 4096);
    assert_eq!(context.get_limit(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE)?, 8 << 20);
    // Each context has its own.
    assert_eq!(CudaContext::new(1)?.get_limit(CUlimit::CU_LIMIT_STACK_SIZE)?, 1024);

    let depth = CUlimit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH;
    fails(context.set_limit(depth, 2), CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT, &["limit 3", "9.0"]);
    let most = context.set_limit(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, 1 << 50);
    fails(most, CUresult::CUDA_ERROR_OUT_OF_MEMORY, &["limit 2", "more than the GPU's memory"]);
    Ok(())
}

fn flags() -> anyhow::Result<()> {
    let context = context()?;
    context.set_blocking_synchronize()?;
    context.set_flags(CUctx_flags::CU_CTX_SCHED_SPIN)?;
    let both = context.set_flags(CUctx_flags::CU_CTX_SCHED_MASK);
    fails(both, CUresult::CUDA_ERROR_INVALID_VALUE, &["0x7", "only one of"]);
    let dumps = context.set_flags(CUctx_flags::CU_CTX_COREDUMP_ENABLE);
    fails(dumps, CUresult::CUDA_ERROR_NOT_SUPPORTED, &["core dumps are not supported"]);
    Ok(())
}

fn cache_preference() -> anyhow::Result<()> {
    let context = context()?;
    assert_eq!(context.get_cache_config()?, CUfunc_cache::CU_FUNC_CACHE_PREFER_NONE);
    context.set_cache_config(CUfunc_cache::CU_FUNC_CACHE_PREFER_EQUAL)?;
    assert_eq!(context.get_cache_config()?, CUfunc_cache::CU_FUNC_CACHE_PREFER_EQUAL);
    Ok(())
}

fn priorities() -> anyhow::Result<()> {
    let context = context()?;
    assert_eq!(result::stream::get_priority_range()?, (0, -5));
    // Out of range is clamped.
    for priority in [0, -5, -100, 100] {
        let stream = context.new_stream_with_priority(priority)?;
        assert_eq!(stream.clone_dtoh(&stream.clone_htod(&[priority])?)?, [priority]);
    }
    // SAFETY: both pointers may be null.
    unsafe { sys::cuCtxGetStreamPriorityRange(std::ptr::null_mut(), std::ptr::null_mut()) }.result()?;
    Ok(())
}

fn event_flags() -> anyhow::Result<()> {
    let context = context()?;
    let alone = context.new_event(Some(CUevent_flags::CU_EVENT_INTERPROCESS));
    fails(alone, CUresult::CUDA_ERROR_INVALID_VALUE, &["needs CU_EVENT_DISABLE_TIMING"]);
    let (stream, event) = (context.new_stream()?, context.new_event(None)?);
    for (flags, words) in [(1, "captures only"), (6, "0x6 are no flags")] {
        // SAFETY: stream and event live.
        let wait = unsafe { sys::cuStreamWaitEvent(stream.cu_stream(), event.cu_event(), flags) };
        fails(wait.result(), CUresult::CUDA_ERROR_INVALID_VALUE, &[words]);
    }
    let mut made = std::ptr::null_mut();
    // SAFETY: `made` can be written.
    let stream = unsafe { sys::cuStreamCreate(&raw mut made, 2) };
    fails(stream.result(), CUresult::CUDA_ERROR_INVALID_VALUE, &["0x2 are no stream flags"]);
    Ok(())
}

fn profiler() -> anyhow::Result<()> {
    let _context = context()?;
    drop(Profiler::new()?);
    drop(Profiler::new()?);
    Ok(())
}

fn synchronous_memory_operations() -> anyhow::Result<()> {
    use cudarc::driver::DevicePtr;
    let context = context()?;
    // SAFETY: nothing here runs beside anything else.
    unsafe { context.disable_event_tracking() };
    let stream = context.default_stream();
    let buffer = stream.alloc_zeros::<u8>(16)?;
    let address = buffer.device_ptr(&stream).0;
    let other = context.new_stream()?;
    context.set_flags(CUctx_flags::CU_CTX_SYNC_MEMOPS)?;
    // SAFETY: 16 bytes are there.
    unsafe { sys::cuMemsetD8_v2(address, 7, 16) }.result()?;
    // A copy on a stream that waits for nothing sees it, since the memset has waited.
    assert_eq!(other.clone_dtoh(&buffer)?, [7; 16]);
    Ok(())
}

fn device_attributes() -> anyhow::Result<()> {
    let context = context()?;
    let attribute = |attribute| context.attribute(attribute);
    assert_eq!(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?, 1024);
    assert_eq!(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)?, 0);
    assert_eq!(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID)?, 0x2330_10de);
    let texture = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH);
    fails(texture, CUresult::CUDA_ERROR_NOT_SUPPORTED, &["device attribute 21 is not supported"]);
    let beyond = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX);
    fails(beyond, CUresult::CUDA_ERROR_INVALID_VALUE, &["144 is no device attribute"]);
    Ok(())
}

fn settings_need_a_context() -> anyhow::Result<()> {
    result::init()?;
    let words = ["no context is current on this thread"];
    fails(result::stream::get_priority_range(), CUresult::CUDA_ERROR_INVALID_CONTEXT, &words);
    fails(result::ctx::get_limit(CUlimit::CU_LIMIT_STACK_SIZE), CUresult::CUDA_ERROR_INVALID_CONTEXT, &words);
    fails(cudarc::driver::profiler_start(), CUresult::CUDA_ERROR_INVALID_CONTEXT, &words);
    Ok(())
}
