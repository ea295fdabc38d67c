//! Contexts other than the primary one, and a context's properties: its flags, limits, and preferences.

use std::sync::Arc;

use cudarc::driver::sys::{CUctx_flags, CUdevice_attribute, CUevent_flags, CUfunc_cache, CUlimit, CUresult};
use cudarc::driver::{CudaContext, DriverError, Profiler, result, sys};
use lab::Check;

use crate::child;
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
        Check::new("contexts::device_properties", device_properties),
        Check::new("contexts::a_gpu_is_found_by_its_pci_bus_id", pci_bus_ids),
        Check::new("contexts::the_primary_context_has_flags_and_a_state", primary_state),
        Check::new("contexts::a_reset_empties_the_primary_context", reset),
        Check::new("contexts::a_context_has_an_id_and_a_version", id_and_version),
        Check::new("contexts::settings_need_a_context", settings_need_a_context),
        Check::new("contexts::memory_is_freed_without_a_current_one", frees_need_no_context),
        Check::new("contexts::a_new_context_supplants_the_current_one", supplants),
        Check::new("contexts::destroying_one_takes_its_memory_with_it", destroyed_with_its_memory),
        Check::new("contexts::a_destroyed_context_stays_current_on_other_threads", destroyed_elsewhere),
        Check::new("contexts::streams_and_kernels_belong_to_one_context", belongs_to_one_context),
        Check::new("contexts::a_failure_does_not_leave_its_context", failure_stays),
        Check::new("contexts::a_gpu_reaches_another_s_memory", peers),
        Check::new("contexts::only_nvlink_reaches_another_gpu_s_memory", links),
        Check::new("contexts::a_thousand_gpus_have_memory_of_their_own", || {
            let (well, said) = child::start("contexts::thousand", &[("VIRTUAL_GPU_COUNT", "1024")])?;
            anyhow::ensure!(well, "{said}");
            Ok(())
        }),
        Check::new("contexts::bad_arguments_are_named", bad_arguments),
    ]
}

fn context() -> anyhow::Result<Arc<CudaContext>> {
    Ok(CudaContext::new(0)?)
}

fn peers() -> anyhow::Result<()> {
    let (one, other) = (context()?, CudaContext::new(1)?);
    one.bind_to_thread()?;
    // SAFETY: the number is writable, and the contexts are alive.
    unsafe {
        let mut value = 7;
        sys::cuDeviceCanAccessPeer(&mut value, 0, 1).result()?;
        assert_eq!(value, 1);
        sys::cuDeviceCanAccessPeer(&mut value, 1, 1).result()?;
        assert_eq!(value, 0, "a GPU is not its own peer");
        fails(
            sys::cuDeviceCanAccessPeer(&mut value, 0, 8).result(),
            CUresult::CUDA_ERROR_INVALID_DEVICE,
            &["8"],
        );
        let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
        sys::cuDeviceGetP2PAttribute(&mut value, attribute, 0, 1).result()?;
        assert_eq!(value, 1);
        let same = sys::cuDeviceGetP2PAttribute(&mut value, attribute, 1, 1).result();
        fails(same, CUresult::CUDA_ERROR_INVALID_DEVICE, &["both devices are 1"]);
        let enable = |peer: &CudaContext, flags| sys::cuCtxEnablePeerAccess(peer.cu_ctx(), flags).result();
        let disable = || sys::cuCtxDisablePeerAccess(other.cu_ctx()).result();
        fails(disable(), CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, &["could be disabled"]);
        fails(enable(&other, 1), CUresult::CUDA_ERROR_INVALID_VALUE, &["flags must be 0, not 1"]);
        fails(enable(&one, 0), CUresult::CUDA_ERROR_INVALID_CONTEXT, &["current context itself"]);
        enable(&other, 0)?;
        fails(enable(&other, 0), CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, &["already"]);
        disable()?;
        fails(disable(), CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, &["could be disabled"]);
    }
    Ok(())
}

fn links() -> anyhow::Result<()> {
    for (topology, count, reached) in [("pcie", "2", "1: 0\n"), ("2x8-h100", "9", "1: 1\n8: 0\n")] {
        let switches = [("VIRTUAL_GPU_TOPOLOGY", topology), ("VIRTUAL_GPU_COUNT", count)];
        let (well, said) = child::start("contexts::reach", &switches)?;
        anyhow::ensure!(well && said.ends_with(reached), "{topology}: {said}");
    }
    Ok(())
}

/// Prints whether GPU 0 can access the memory of GPU 1 and of GPU 8, and checks that nothing else says otherwise.
pub(crate) fn reach() -> anyhow::Result<()> {
    lab::attach(2)?;
    let (one, count) = (context()?, CudaContext::device_count()?);
    for gpu in [1, 8].into_iter().filter(|&gpu| gpu < count) {
        let other = CudaContext::new(gpu as usize)?;
        one.bind_to_thread()?;
        let mut reaches = 7;
        // SAFETY: the number is writable, and the contexts are alive.
        let enabled = unsafe {
            sys::cuDeviceCanAccessPeer(&mut reaches, 0, gpu).result()?;
            sys::cuCtxEnablePeerAccess(other.cu_ctx(), 0).result()
        };
        println!("{gpu}: {reaches}");
        match reaches {
            1 => enabled?,
            _ => fails(
                enabled,
                CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                &["cuDeviceCanAccessPeer returns 0"],
            ),
        }
    }
    Ok(())
}

/// Copies from the last of 1024 GPUs, uses managed memory, and asks for more memory than a GPU then has addresses for.
pub(crate) fn thousand() -> anyhow::Result<()> {
    lab::attach(2)?;
    assert_eq!(CudaContext::device_count()?, 1024);
    let values: Vec<u32> = (0..1000).collect();
    let (first, last) = (CudaContext::new(0)?.default_stream(), CudaContext::new(1023)?.default_stream());
    let on_last = last.clone_htod(&values)?;
    let on_first = first.clone_dtod(&on_last)?;
    last.synchronize()?;
    assert_eq!(first.clone_dtoh(&on_first)?, values);
    // SAFETY: the first call writes one address, which is that of 4096 bytes until they are freed.
    unsafe {
        let mut managed = 0;
        sys::cuMemAllocManaged(&mut managed, 4096, sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32)
            .result()?;
        sys::cuMemsetD8_v2(managed, 7, 4096).result()?;
        assert_eq!(*(managed as *const u8), 7);
        sys::cuMemFree_v2(managed).result()?;
    }
    let mut most = 0;
    // SAFETY: the call writes one address.
    let refused = unsafe { sys::cuMemAlloc_v2(&mut most, 70 << 30).result() };
    fails(refused, CUresult::CUDA_ERROR_OUT_OF_MEMORY, &["no room for them"]);
    Ok(())
}

fn limits() -> anyhow::Result<()> {
    let context = context()?;
    assert_eq!(context.get_limit(CUlimit::CU_LIMIT_STACK_SIZE)?, 1024);
    context.set_limit(CUlimit::CU_LIMIT_STACK_SIZE, 4096)?;
    assert_eq!(context.get_limit(CUlimit::CU_LIMIT_STACK_SIZE)?, 4096);
    assert_eq!(context.get_limit(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE)?, 8 << 20);
    // Each context has its own limit.
    assert_eq!(CudaContext::new(1)?.get_limit(CUlimit::CU_LIMIT_STACK_SIZE)?, 1024);

    let depth = CUlimit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH;
    assert_eq!(context.get_limit(depth)?, 2);
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
    // A priority out of range is clamped.
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
    let (state, value) = (CUresult::CUDA_ERROR_ILLEGAL_STATE, CUresult::CUDA_ERROR_INVALID_VALUE);
    for (flags, code, words) in [(1, state, "only for captures"), (6, value, "0x6 contains unknown flags")] {
        // SAFETY: the stream and the event are alive.
        let wait = unsafe { sys::cuStreamWaitEvent(stream.cu_stream(), event.cu_event(), flags) };
        fails(wait.result(), code, &[words]);
    }
    let mut made = std::ptr::null_mut();
    // SAFETY: `made` is writable.
    let stream = unsafe { sys::cuStreamCreate(&raw mut made, 2) };
    fails(stream.result(), CUresult::CUDA_ERROR_INVALID_VALUE, &["0x2 are not stream flags"]);
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
    // SAFETY: nothing else runs at the same time.
    unsafe { context.disable_event_tracking() };
    let stream = context.default_stream();
    let buffer = stream.alloc_zeros::<u8>(16)?;
    let address = buffer.device_ptr(&stream).0;
    let other = context.new_stream()?;
    context.set_flags(CUctx_flags::CU_CTX_SYNC_MEMOPS)?;
    // SAFETY: the buffer has 16 bytes.
    unsafe { sys::cuMemsetD8_v2(address, 7, 16) }.result()?;
    // A copy on a stream that waits for nothing sees the value, because the memset was synchronous.
    assert_eq!(other.clone_dtoh(&buffer)?, [7; 16]);
    Ok(())
}

fn device_attributes() -> anyhow::Result<()> {
    let context = context()?;
    let attribute = |attribute| context.attribute(attribute);
    assert_eq!(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?, 1024);
    assert_eq!(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)?, 1);
    assert_eq!(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID)?, 0x2330_10de);
    assert_eq!(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH)?, 131_072);
    assert_eq!(
        attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS)?,
        2046
    );
    assert_eq!(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH)?, 2_097_120);
    assert_eq!(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID)?, 0x16c1_10de);
    let mut value = 0;
    for number in 1..CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX as i32 {
        // SAFETY: every number in this range is an attribute, and the result is writable.
        unsafe {
            let attribute = std::mem::transmute::<i32, CUdevice_attribute>(number);
            sys::cuDeviceGetAttribute(&raw mut value, attribute, 0).result()?;
        }
    }
    let beyond = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX);
    fails(beyond, CUresult::CUDA_ERROR_INVALID_VALUE, &["144 is not a device attribute"]);
    Ok(())
}

fn device_properties() -> anyhow::Result<()> {
    result::init()?;
    // SAFETY: all fields are numbers.
    let mut properties: sys::CUdevprop = unsafe { std::mem::zeroed() };
    // SAFETY: the result is writable.
    unsafe { sys::cuDeviceGetProperties(&raw mut properties, 1) }.result()?;
    assert_eq!((properties.maxThreadsPerBlock, properties.maxThreadsDim), (1024, [1024, 1024, 64]));
    assert_eq!((properties.maxGridSize[2], properties.SIMDWidth, properties.textureAlign), (65_535, 32, 512));
    // SAFETY: as above.
    let beyond = unsafe { sys::cuDeviceGetProperties(&raw mut properties, 8) };
    fails(beyond.result(), CUresult::CUDA_ERROR_INVALID_DEVICE, &["there is no GPU 8"]);
    Ok(())
}

fn pci_bus_ids() -> anyhow::Result<()> {
    result::init()?;
    let mut text = [0x55_u8; 14];
    let ask = |text: &mut [u8; 14], len, device| {
        // SAFETY: there is room for 13 bytes.
        unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), len, device) }.result()
    };
    ask(&mut text, 13, 2)?;
    assert_eq!(&text, b"0000:03:00.0\0\x55");
    let words = ["an id takes 13 bytes, but there is room for 12"];
    fails(ask(&mut text, 12, 2), CUresult::CUDA_ERROR_INVALID_VALUE, &words);
    let find = |text: &std::ffi::CStr| {
        let mut device = -1;
        // SAFETY: the result is writable, and the text is a C string.
        unsafe { sys::cuDeviceGetByPCIBusId(&raw mut device, text.as_ptr()) }.result().map(|()| device)
    };
    for text in [c"0000:03:00.0", c"0:3:0", c"03:00.0"] {
        assert_eq!(find(text)?, 2, "{text:?}");
    }
    for text in [c"0000:09:00.0", c"0001:03:00.0", c"03:01.0"] {
        fails(find(text), CUresult::CUDA_ERROR_INVALID_DEVICE, &["there is no GPU at PCI bus id"]);
    }
    for text in [c"", c"3", c"03:00", c"x:03:00.0", c"0:03:00:00.0", c"+0:3:0"] {
        fails(
            find(text),
            CUresult::CUDA_ERROR_INVALID_VALUE,
            &["is not of the form domain:bus:device.function"],
        );
    }
    Ok(())
}

fn primary_state() -> anyhow::Result<()> {
    result::init()?;
    let state = || {
        let (mut flags, mut active) = (7, 7);
        // SAFETY: the results are writable.
        unsafe { sys::cuDevicePrimaryCtxGetState(1, &raw mut flags, &raw mut active) }.result()?;
        Ok::<_, DriverError>((flags, active))
    };
    assert_eq!(state()?, (0, 0));
    // SAFETY: GPU 1 exists.
    unsafe {
        sys::cuDevicePrimaryCtxSetFlags_v2(1, 4).result()?;
        assert_eq!(state()?, (4, 0));
        let context = CudaContext::new(1)?;
        context.bind_to_thread()?;
        assert_eq!(state()?, (4, 1));
        sys::cuDevicePrimaryCtxSetFlags_v2(1, 2).result()?;
        let mut flags = 0;
        sys::cuCtxGetFlags(&raw mut flags).result()?;
        assert_eq!((state()?, flags), ((2, 1), 2));
        let wrong = sys::cuDevicePrimaryCtxSetFlags_v2(1, 3);
        fails(wrong.result(), CUresult::CUDA_ERROR_INVALID_VALUE, &["context flags 0x3"]);
        drop(context);
        assert_eq!(state()?, (2, 0));
    }
    Ok(())
}

/// A reset frees memory and ends an error; the context stays current.
fn reset() -> anyhow::Result<()> {
    let context = context()?;
    let stream = context.default_stream();
    let free = context.mem_get_info()?.0;
    std::mem::forget(stream.alloc_zeros::<u8>(1 << 20)?);
    // SAFETY: the address is reserved for a second allocation, which nothing uses.
    let address = unsafe {
        let mut address = 0;
        sys::cuMemAlloc_v2(&raw mut address, 1 << 20).result()?;
        sys::cuDevicePrimaryCtxReset_v2(0).result()?;
        address
    };
    let again = context.default_stream();
    assert_eq!(again.clone_dtoh(&again.clone_htod(&[1_u8, 2])?)?, [1, 2]);
    // SAFETY: the address is refused.
    fails(unsafe { result::free_sync(address) }, CUresult::CUDA_ERROR_INVALID_VALUE, &["freed"]);
    assert!(context.mem_get_info()?.0 <= free);
    // SAFETY: nothing is reset on a GPU without a primary context.
    unsafe {
        sys::cuDevicePrimaryCtxReset_v2(3).result()?;
        fails(
            sys::cuDevicePrimaryCtxReset_v2(8).result(),
            CUresult::CUDA_ERROR_INVALID_DEVICE,
            &["there is no GPU 8"],
        );
    }
    Ok(())
}

fn id_and_version() -> anyhow::Result<()> {
    let (one, other) = (context()?, CudaContext::new(1)?);
    one.bind_to_thread()?;
    let id = |context| {
        let mut id = 0;
        // SAFETY: the result is writable.
        unsafe { sys::cuCtxGetId(context, &raw mut id) }.result().map(|()| id)
    };
    assert_eq!(id(std::ptr::null_mut())?, id(one.cu_ctx())?);
    assert_ne!(id(one.cu_ctx())?, id(other.cu_ctx())?);
    fails(id(std::ptr::dangling_mut()), CUresult::CUDA_ERROR_INVALID_CONTEXT, &["is not a context"]);
    let (mut version, mut banks) = (0, sys::CUsharedconfig::CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE);
    // SAFETY: the results are writable.
    unsafe {
        sys::cuCtxGetApiVersion(std::ptr::null_mut(), &raw mut version).result()?;
        sys::cuCtxSetSharedMemConfig(sys::CUsharedconfig::CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
            .result()?;
        sys::cuCtxGetSharedMemConfig(&raw mut banks).result()?;
    }
    assert_eq!((version, banks), (3020, sys::CUsharedconfig::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
    let mut plain = std::ptr::null_mut();
    // SAFETY: the result is writable, and nothing uses the context after it is destroyed.
    unsafe {
        sys::cuCtxCreate_v2(&raw mut plain, 1, 0).result()?;
        assert_eq!(current()?, Some(plain));
        sys::cuCtxDestroy_v2(plain).result()?;
    }
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

fn frees_need_no_context() -> anyhow::Result<()> {
    let context = context()?;
    // SAFETY: nothing uses the memory.
    let (of_gpu, pinned) = unsafe { (result::malloc_sync(64)?, result::malloc_host(64, 0)?) };
    // SAFETY: no context is current on the thread afterwards.
    unsafe { result::ctx::set_current(std::ptr::null_mut()) }?;
    // SAFETY: nothing uses the memory.
    unsafe {
        result::free_sync(of_gpu)?;
        result::free_host(pinned)?;
        // What is gone has no context.
        let again = result::free_sync(of_gpu);
        fails(again, CUresult::CUDA_ERROR_INVALID_CONTEXT, &["no context is current on this thread"]);
    }
    context.bind_to_thread()?;
    Ok(())
}

fn current() -> anyhow::Result<Option<sys::CUcontext>> {
    Ok(result::ctx::get_current()?)
}

/// Creates a context on GPU 0 in addition to its primary context, and makes it current on this thread.
fn create() -> anyhow::Result<sys::CUcontext> {
    result::init()?;
    // SAFETY: device 0 exists.
    Ok(unsafe { result::ctx::create_v3(0, 0) }?)
}

fn destroy(context: sys::CUcontext) -> Result<(), DriverError> {
    // SAFETY: no check uses the context's objects afterward; an invalid handle is refused.
    unsafe { sys::cuCtxDestroy_v2(context) }.result()
}

fn pop() -> Result<sys::CUcontext, DriverError> {
    let mut popped = std::ptr::null_mut();
    // SAFETY: the handle is writable.
    unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) }.result().map(|()| popped)
}

fn supplants() -> anyhow::Result<()> {
    let primary = context()?;
    let first = create()?;
    // SAFETY: device 1 exists, and no parameters are needed.
    let second = unsafe { result::ctx::create_v4(std::ptr::null_mut(), 4, 1) }?;
    assert_eq!(current()?, Some(second));
    assert_eq!(pop()?, second);
    assert_eq!(current()?, Some(first));
    // SAFETY: the context is alive.
    unsafe { sys::cuCtxPushCurrent_v2(second) }.result()?;
    // Destroying a current context pops it, and later the one below it.
    destroy(second)?;
    assert_eq!(current()?, Some(first));
    destroy(first)?;
    assert_eq!(current()?, Some(primary.cu_ctx()));
    // SAFETY: as above; a context that is not on top of the stack is not popped.
    unsafe {
        let third = result::ctx::create_v3(0, 0)?;
        sys::cuCtxPushCurrent_v2(primary.cu_ctx()).result()?;
        destroy(third)?;
    }
    assert_eq!(pop()?, primary.cu_ctx());
    let words = ["the context has been destroyed"];
    fails(result::stream::get_priority_range(), CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED, &words);
    pop()?;
    pop()?;
    fails(pop(), CUresult::CUDA_ERROR_INVALID_CONTEXT, &["none can be popped"]);
    Ok(())
}

fn destroyed_with_its_memory() -> anyhow::Result<()> {
    let primary = context()?;
    let (free, _) = primary.mem_get_info()?;
    let other = create()?;
    // SAFETY: each address is used only for its own allocation.
    unsafe {
        let own = result::malloc_sync(1 << 20)?;
        let freed = result::malloc_sync(1 << 20)?;
        result::free_sync(freed)?;
        let pooled = result::malloc_async(std::ptr::null_mut(), 1 << 20)?;
        destroy(other)?;
        // The pool holds 2 MiB.
        assert_eq!(primary.mem_get_info()?.0, free - (2 << 20));
        let words = ["freed again"];
        fails(result::free_sync(own), CUresult::CUDA_ERROR_INVALID_VALUE, &words);
        result::free_sync(pooled)?;
    }
    primary.synchronize()?;
    assert_eq!(primary.mem_get_info()?.0, free);
    Ok(())
}

fn destroyed_elsewhere() -> anyhow::Result<()> {
    let other = create()? as usize;
    std::thread::spawn(move || destroy(other as sys::CUcontext)).join().unwrap()?;
    assert_eq!(current()?, Some(other as sys::CUcontext));
    let words = ["the context has been destroyed"];
    let code = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    fails(result::ctx::synchronize(), code, &words);
    fails(destroy(other as sys::CUcontext), code, &words);
    Ok(())
}

fn belongs_to_one_context() -> anyhow::Result<()> {
    let primary = context()?;
    let stream = primary.new_stream()?;
    let made = create()?;
    // SAFETY: the context is new, and nothing else destroys it.
    let other = unsafe { CudaContext::from_raw_context(0, 0, made) }?;
    assert!(!other.is_primary());
    let values = other.new_stream()?.clone_htod(&[1u32, 2, 3])?;
    // An address belongs to the GPU, so every context can use it.
    assert_eq!(stream.clone_dtoh(&values)?, [1, 2, 3]);

    let event = other.new_event(None)?;
    // SAFETY: the event and the stream are alive.
    let recorded = unsafe { result::event::record(event.cu_event(), stream.cu_stream()) };
    let words = ["an event from GPU 0 (context 0x", "can't be recorded on a stream from GPU 0"];
    fails(recorded, CUresult::CUDA_ERROR_INVALID_HANDLE, &words);
    Ok(())
}

fn failure_stays() -> anyhow::Result<()> {
    let primary = context()?;
    let made = create()?;
    // SAFETY: as above.
    let other = unsafe { CudaContext::from_raw_context(0, 0, made) }?;
    let stream = other.new_stream()?;
    // SAFETY: the check expects that reading uninitialized memory fails.
    let unwritten = unsafe { stream.alloc::<u8>(4) }?;
    let words = ["bytes that nothing wrote"];
    fails(stream.clone_dtoh(&unwritten), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    let stream = primary.new_stream()?;
    assert_eq!(stream.clone_dtoh(&stream.clone_htod(&[5])?)?, [5]);
    Ok(())
}

fn bad_arguments() -> anyhow::Result<()> {
    let primary = context()?;
    let mut made = std::ptr::null_mut();
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let mut affinity: sys::CUexecAffinityParam = sys::CUexecAffinityParam {
        type_: sys::CUexecAffinityType::CU_EXEC_AFFINITY_TYPE_SM_COUNT,
        param: sys::CUexecAffinityParam_st__bindgen_ty_1 { smCount: sys::CUexecAffinitySmCount { val: 8 } },
    };
    // SAFETY: everything pointed to outlives each call; an invalid handle is refused.
    unsafe {
        let null = std::ptr::null_mut::<sys::CUexecAffinityParam>();
        let share = sys::cuCtxCreate_v3(&raw mut made, &raw mut affinity, 1, 0, 0);
        let words = ["execution affinities are not supported"];
        fails(share.result(), CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, &words);
        let count = sys::cuCtxCreate_v3(&raw mut made, null, 2, 0, 0);
        fails(count.result(), invalid, &["2 execution affinities, but the pointer to them is null"]);
        fails(result::ctx::create_v3(0x200, 0), invalid, &["0x200 are not context flags"]);
        fails(result::ctx::create_v3(0, 8), CUresult::CUDA_ERROR_INVALID_DEVICE, &["no GPU 8"]);
        let nowhere = sys::cuCtxCreate_v3(std::ptr::null_mut(), null, 0, 0, 0);
        fails(nowhere.result(), invalid, &["the pointer to the context is null"]);
        let words = ["the primary context of GPU 0 is released"];
        let destroyed = destroy(primary.cu_ctx());
        fails(destroyed, CUresult::CUDA_ERROR_INVALID_CONTEXT, &words);
        let unknown = sys::cuCtxPushCurrent_v2(0x12_3450 as sys::CUcontext);
        fails(unknown.result(), CUresult::CUDA_ERROR_INVALID_CONTEXT, &["0x123450 is not a context"]);
    }
    Ok(())
}
