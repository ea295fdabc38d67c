//! Libraries and their kernels, launches with attributes, and callbacks on streams.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{self, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig, CUresult};
use lab::Check;

use crate::device::untracked;
use crate::fails;
use crate::raw::address;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("libraries::a_kernel_runs_in_each_context", kernels),
        Check::new("libraries::bad_libraries_are_named", bad_libraries),
        Check::new("libraries::launch_attributes_are_honored_or_refused_by_name", attributes),
        Check::new("libraries::parameters_in_one_buffer", one_buffer),
        Check::new("libraries::two_texts_are_linked", link),
        Check::new("libraries::a_text_may_call_a_function_of_a_later_one", link_calls),
        Check::new("libraries::a_link_writes_its_errors_to_the_log", link_errors),
        Check::new("libraries::a_callback_runs_in_stream_order", callback),
        Check::new("libraries::a_query_of_a_captured_event_is_refused", captured_event),
    ]
}

const PTX: &str = "
.version 8.0
.target sm_70
.address_size 64
.global .align 4 .u32 number = 7;
.visible .entry stores(.param .u64 to) {
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [to];
    ld.global.u32 %r1, [number];
    st.global.u32 [%rd1], %r1;
    ret;
}
\0";

fn load(image: *const c_void) -> Result<sys::CUlibrary, cudarc::driver::DriverError> {
    let mut library = std::ptr::null_mut();
    let null = std::ptr::null_mut;
    // SAFETY: there are no options, and the image is what its first bytes say.
    unsafe {
        sys::cuLibraryLoadData(
            &raw mut library,
            image,
            null(),
            null().cast(),
            0,
            null().cast(),
            null().cast(),
            0,
        )
    }
    .result()?;
    Ok(library)
}

fn kernels() -> anyhow::Result<()> {
    cudarc::driver::result::init()?;
    let library = load(PTX.as_ptr().cast())?;
    let mut kernel = std::ptr::null_mut();
    // SAFETY: the results are writable, and the arguments match the kernel's parameter.
    unsafe {
        sys::cuLibraryGetKernel(&raw mut kernel, library, c"stores".as_ptr()).result()?;
        for gpu in 0..2 {
            let stream = untracked(gpu).new_stream()?;
            let buffer = stream.alloc_zeros::<u32>(2)?;
            let (mut function, mut module, mut at, mut bytes) =
                (std::ptr::null_mut(), std::ptr::null_mut(), 0, 0);
            sys::cuKernelGetFunction(&raw mut function, kernel).result()?;
            sys::cuLibraryGetModule(&raw mut module, library).result()?;
            sys::cuLibraryGetGlobal(&raw mut at, &raw mut bytes, library, c"number".as_ptr()).result()?;
            assert_eq!(bytes, 4);
            let mut most = 0;
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
            sys::cuKernelGetAttribute(&raw mut most, attribute, kernel, gpu as i32).result()?;
            assert_eq!(most, 1024);
            // A kernel can be launched like a function.
            for (index, function) in [function, kernel.cast()].into_iter().enumerate() {
                let to = address(&buffer) + 4 * index as u64;
                let mut parameters = [(&raw const to).cast_mut().cast::<c_void>()];
                let (parameters, null) = (parameters.as_mut_ptr(), std::ptr::null_mut());
                let stream = stream.cu_stream();
                sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, null).result()?;
            }
            assert_eq!(stream.clone_dtoh(&buffer)?, [7, 7]);
        }
        sys::cuLibraryUnload(library).result()?;
        fails(
            sys::cuLibraryUnload(library).result(),
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            &["is not a library"],
        );
    }
    Ok(())
}

fn bad_libraries() -> anyhow::Result<()> {
    let _context = untracked(0);
    let no_binary = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
    fails(load(c"\x7fELF\x02".as_ptr().cast()), no_binary, &["a cubin is machine code", "load PTX"]);
    fails(load(c"hello".as_ptr().cast()), CUresult::CUDA_ERROR_INVALID_IMAGE, &["not PTX"]);
    fails(load(std::ptr::null()), CUresult::CUDA_ERROR_INVALID_VALUE, &["the image is null"]);
    let library = load(PTX.as_ptr().cast())?;
    let (mut kernel, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the results are writable.
    unsafe {
        let unknown = sys::cuLibraryGetKernel(&raw mut kernel, library, c"loads".as_ptr());
        let words = ["no kernel `loads`; it has `stores`"];
        fails(unknown.result(), CUresult::CUDA_ERROR_NOT_FOUND, &words);
        let none = sys::cuKernelGetFunction(&raw mut function, std::ptr::null_mut());
        fails(none.result(), CUresult::CUDA_ERROR_INVALID_HANDLE, &["is not a kernel of a library"]);
    }
    Ok(())
}

fn attributes() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let buffer = stream.alloc_zeros::<u32>(1)?;
    let library = load(PTX.as_ptr().cast())?;
    let mut kernel = std::ptr::null_mut();
    // SAFETY: the result is writable.
    unsafe { sys::cuLibraryGetKernel(&raw mut kernel, library, c"stores".as_ptr()) }.result()?;
    let launch = |id: CUlaunchAttributeID, value: u32, blocks: u32| {
        // SAFETY: all bits are valid for an attribute whose number is set, and the arguments match the kernel's parameter.
        unsafe {
            let mut attribute = std::mem::MaybeUninit::<CUlaunchAttribute>::zeroed();
            (*attribute.as_mut_ptr()).id = id;
            (&raw mut (*attribute.as_mut_ptr()).value).cast::<[u32; 3]>().write([value, 1, 1]);
            let config = CUlaunchConfig {
                gridDimX: blocks,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: 1,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: 0,
                hStream: stream.cu_stream(),
                attrs: attribute.as_mut_ptr(),
                numAttrs: 1,
            };
            let to = address(&buffer);
            let mut parameters = [(&raw const to).cast_mut().cast::<c_void>()];
            let null = std::ptr::null_mut();
            sys::cuLaunchKernelEx(&raw const config, kernel.cast(), parameters.as_mut_ptr(), null).result()
        }
    };
    use CUlaunchAttributeID::*;
    launch(CU_LAUNCH_ATTRIBUTE_PRIORITY, 1, 1)?;
    launch(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1, 1)?;
    launch(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 1, 1)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [7]);
    let large = launch(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1, 1 << 20);
    fails(large, CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, &["cooperative launch of `stores`"]);
    let words = ["launch attribute 7 is not supported"];
    let event = launch(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, 2, 2);
    fails(event, CUresult::CUDA_ERROR_NOT_SUPPORTED, &words);
    Ok(())
}

fn callback() -> anyhow::Result<()> {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn seen(stream: sys::CUstream, status: CUresult, data: *mut c_void) {
        assert_eq!(status, CUresult::CUDA_SUCCESS);
        SEEN.store(stream as u64 + data as u64, Ordering::Relaxed);
    }
    let context = untracked(0);
    let stream = context.new_stream()?;
    let (of, mut found) = (stream.cu_stream(), std::ptr::null_mut());
    let data = 3 as *mut c_void;
    // SAFETY: `seen` only adds its arguments.
    unsafe {
        sys::cuStreamGetCtx(of, &raw mut found).result()?;
        assert_eq!(found, context.cu_ctx());
        sys::cuStreamAddCallback(of, Some(seen), data, 0).result()?;
        stream.synchronize()?;
        assert_eq!(SEEN.load(Ordering::Relaxed), of as u64 + 3);
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        fails(
            sys::cuStreamAddCallback(of, Some(seen), data, 1).result(),
            invalid,
            &["flags must be 0, not 0x1"],
        );
        fails(sys::cuStreamAddCallback(of, None, data, 0).result(), invalid, &["the function is null"]);
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        let captured = sys::cuStreamAddCallback(of, Some(seen), data, 0);
        fails(captured.result(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, &["use cuLaunchHostFunc"]);
    }
    Ok(())
}

fn captured_event() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let event = stream.context().new_event(None)?;
    for mode in [
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ] {
        stream.begin_capture(mode)?;
        event.record(&stream)?;
        // SAFETY: the event exists.
        let query = unsafe { sys::cuEventQuery(event.cu_event()) };
        assert_eq!(query, CUresult::CUDA_ERROR_CAPTURED_EVENT, "{mode:?}");
        let mut graph = std::ptr::null_mut();
        // SAFETY: the result is writable.
        unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) };
    }
    Ok(())
}

fn link() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let other = PTX.replace("stores", "others").replace("number", "figure").replace("= 7", "= 8");
    let (mut state, mut image, mut size) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    let null = std::ptr::null_mut::<c_void>();
    let buffer = stream.alloc_zeros::<u32>(1)?;
    let kind = sys::CUjitInputType::CU_JIT_INPUT_PTX;
    // SAFETY: the results are writable, and the texts have these sizes.
    unsafe {
        sys::cuLinkCreate_v2(0, null.cast(), null.cast(), &raw mut state).result()?;
        for text in [PTX, &other] {
            let (data, name) = (text.as_ptr().cast_mut().cast(), c"text".as_ptr());
            sys::cuLinkAddData_v2(state, kind, data, text.len(), name, 0, null.cast(), null.cast())
                .result()?;
        }
        sys::cuLinkComplete(state, &raw mut image, &raw mut size).result()?;
        assert!(size > PTX.len());
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        sys::cuModuleLoadData(&raw mut module, image).result()?;
        for (name, value) in [(c"stores", 7), (c"others", 8)] {
            sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()).result()?;
            let to = address(&buffer);
            let mut parameters = [(&raw const to).cast_mut().cast::<c_void>()];
            let (parameters, of) = (parameters.as_mut_ptr(), stream.cu_stream());
            sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, of, parameters, std::ptr::null_mut())
                .result()?;
            assert_eq!(stream.clone_dtoh(&buffer)?, [value]);
        }
        sys::cuLinkDestroy(state).result()?;
        fails(
            sys::cuLinkDestroy(state).result(),
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            &["is not a pending link"],
        );
    }
    Ok(())
}

fn link_calls() -> anyhow::Result<()> {
    const HEAD: &str = ".version 8.0\n.target sm_70\n.address_size 64\n";
    let calls = format!(
        "{HEAD}.extern .func (.param .b32 result) doubled (.param .b32 x);
        .visible .entry calls(.param .u64 to) {{
            .reg .b32 %r<2>; .reg .b64 %rd<2>;
            ld.param.u64 %rd1, [to];
            {{
                .param .b32 x; .param .b32 result;
                st.param.b32 [x], 21;
                call.uni (result), doubled, (x);
                ld.param.b32 %r1, [result];
            }}
            st.global.u32 [%rd1], %r1;
            ret;
        }}\0"
    );
    let doubled = format!(
        "{HEAD}.visible .func (.param .b32 result) doubled (.param .b32 x) {{
            .reg .b32 %r<2>;
            ld.param.b32 %r1, [x];
            add.u32 %r1, %r1, %r1;
            st.param.b32 [result], %r1;
            ret;
        }}\0"
    );
    let stream = untracked(0).new_stream()?;
    let buffer = stream.alloc_zeros::<u32>(1)?;
    let (mut state, mut image, mut size) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    let null = std::ptr::null_mut::<c_void>();
    // SAFETY: the results are writable, and the texts have these sizes.
    unsafe {
        sys::cuLinkCreate_v2(0, null.cast(), null.cast(), &raw mut state).result()?;
        let add = |text: &str| {
            let (data, kind) = (text.as_ptr().cast_mut().cast(), sys::CUjitInputType::CU_JIT_INPUT_PTX);
            sys::cuLinkAddData_v2(state, kind, data, text.len(), c"it".as_ptr(), 0, null.cast(), null.cast())
                .result()
        };
        add(&calls)?;
        // Nothing has defined it yet.
        fails(
            sys::cuLinkComplete(state, &raw mut image, &raw mut size).result(),
            CUresult::CUDA_ERROR_INVALID_PTX,
            &["call to `doubled`, which is only declared here"],
        );
        add(&doubled)?;
        sys::cuLinkComplete(state, &raw mut image, &raw mut size).result()?;
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        sys::cuModuleLoadData(&raw mut module, image).result()?;
        sys::cuModuleGetFunction(&raw mut function, module, c"calls".as_ptr()).result()?;
        let to = address(&buffer);
        let mut parameters = [(&raw const to).cast_mut().cast::<c_void>()];
        let (parameters, of) = (parameters.as_mut_ptr(), stream.cu_stream());
        sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, of, parameters, std::ptr::null_mut()).result()?;
        assert_eq!(stream.clone_dtoh(&buffer)?, [42]);
        sys::cuLinkDestroy(state).result()?;
    }
    Ok(())
}

fn link_errors() -> anyhow::Result<()> {
    let _context = untracked(0);
    let mut log = [0x55_u8; 64];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), 64 as *mut c_void];
    let mut state = std::ptr::null_mut();
    let null = std::ptr::null_mut::<c_void>();
    use sys::CUjitInputType::*;
    // SAFETY: the log, the values, and the texts outlive the link.
    unsafe {
        sys::cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &raw mut state).result()?;
        let add = |kind, text: &std::ffi::CStr| {
            let (data, size) = (text.as_ptr().cast_mut().cast(), text.count_bytes());
            sys::cuLinkAddData_v2(state, kind, data, size, c"bad".as_ptr(), 0, null.cast(), null.cast())
                .result()
        };
        fails(add(CU_JIT_INPUT_PTX, c"hello"), CUresult::CUDA_ERROR_INVALID_IMAGE, &["not PTX"]);
        let end = values[1] as usize;
        crate::contains(std::str::from_utf8(&log[..end])?, &["bad: ", "not PTX"]);
        assert_eq!(log[end], 0);
        fails(add(CU_JIT_INPUT_CUBIN, c"hello"), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, &["only PTX"]);
        sys::cuLinkDestroy(state).result()?;
    }
    Ok(())
}

fn one_buffer() -> anyhow::Result<()> {
    let stream = untracked(0).new_stream()?;
    let buffer = stream.alloc_zeros::<u32>(1)?;
    let library = load(PTX.as_ptr().cast())?;
    let (mut kernel, to, of) = (std::ptr::null_mut(), address(&buffer), stream.cu_stream());
    // SAFETY: the result is writable.
    unsafe { sys::cuLibraryGetKernel(&raw mut kernel, library, c"stores".as_ptr()) }.result()?;
    let launch = |size: usize, parameters| {
        let [pointer, bytes] = [1_usize, 2].map(|name| name as *mut c_void);
        let extra = [pointer, (&raw const to).cast_mut().cast(), bytes];
        let mut extra =
            [extra.as_slice(), &[(&raw const size).cast_mut().cast(), std::ptr::null_mut()]].concat();
        // SAFETY: the buffer has the kernel's parameter, and the array ends with CU_LAUNCH_PARAM_END.
        unsafe { sys::cuLaunchKernel(kernel.cast(), 1, 1, 1, 1, 1, 1, 0, of, parameters, extra.as_mut_ptr()) }
            .result()
    };
    launch(8, std::ptr::null_mut())?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [7]);
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    fails(launch(4, std::ptr::null_mut()), invalid, &["it has 8 bytes of parameters, not 4"]);
    fails(launch(8, std::ptr::dangling_mut()), invalid, &["both kernelParams and extra"]);
    Ok(())
}
