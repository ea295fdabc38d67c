//! Tests what a program can ask about its modules, functions, libraries, kernels, and streams.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, DriverError};
use lab::Check;

use crate::fails;

const PTX: &CStr = c"
.version 8.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 to, .param .u32 value) { ret; }
.visible .entry nothing() { ret; }
";

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("introspection::a_module_lists_its_functions", functions),
        Check::new("introspection::a_library_lists_its_kernels", kernels),
        Check::new("introspection::a_stream_knows_how_it_was_made", streams),
    ]
}

/// Returns what a call writes.
fn asked<T>(call: impl FnOnce(*mut T) -> CUresult) -> Result<T, DriverError> {
    let mut value = MaybeUninit::uninit();
    call(value.as_mut_ptr()).result()?;
    // SAFETY: a call that succeeds has written its result.
    Ok(unsafe { value.assume_init() })
}

/// Returns the text at an address that the driver has given out.
fn text(name: *const std::ffi::c_char) -> String {
    // SAFETY: the driver's names end with a zero and stay.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

fn functions() -> anyhow::Result<()> {
    let _context = CudaContext::new(0)?;
    let nobody = 0x77 as *mut c_void;
    // SAFETY: each pointer is to a value of the type that the call writes, or is refused.
    unsafe {
        let mode = asked(|to| sys::cuModuleGetLoadingMode(to))?;
        assert_eq!(mode, sys::CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING);
        let module = asked(|to| sys::cuModuleLoadData(to, PTX.as_ptr().cast()))?;
        assert_eq!(asked(|to| sys::cuModuleGetFunctionCount(to, module))?, 2);
        let mut all = [null_mut(); 3];
        sys::cuModuleEnumerateFunctions(all.as_mut_ptr(), 3, module).result()?;
        let [nothing, store, none] = all;
        assert!(none.is_null());
        let known = asked(|to| sys::cuModuleGetFunction(to, module, c"store".as_ptr()))?;
        assert_eq!(store, known);
        let mut first = [null_mut(); 2];
        sys::cuModuleEnumerateFunctions(first.as_mut_ptr(), 1, module).result()?;
        assert_eq!(first, [nothing, null_mut()]);

        assert_eq!(text(asked(|to| sys::cuFuncGetName(to, store))?), "store");
        assert_eq!(text(asked(|to| sys::cuFuncGetName(to, nothing))?), "nothing");
        assert_eq!(asked(|to| sys::cuFuncGetModule(to, store))?, module);
        let loaded = sys::CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED;
        assert_eq!(asked(|to| sys::cuFuncIsLoaded(to, store))?, loaded);
        sys::cuFuncLoad(store).result()?;
        let parameter = |index| {
            let mut size = 0;
            asked(|offset| sys::cuFuncGetParamInfo(store, index, offset, &mut size))
                .map(|offset| (offset, size))
        };
        assert_eq!([parameter(0)?, parameter(1)?], [(0, 8), (8, 4)]);
        fails(parameter(2), CUresult::CUDA_ERROR_INVALID_VALUE, &["`store` has 2 parameters"]);
        assert_eq!(asked(|offset| sys::cuFuncGetParamInfo(store, 1, offset, null_mut()))?, 8);

        let bad = CUresult::CUDA_ERROR_INVALID_HANDLE;
        fails(asked(|to| sys::cuModuleGetFunctionCount(to, nobody.cast())), bad, &["is not a module"]);
        fails(asked(|to| sys::cuFuncGetName(to, nobody.cast())), bad, &["is not a function"]);
        fails(sys::cuFuncGetName(null_mut(), store).result(), CUresult::CUDA_ERROR_INVALID_VALUE, &["null"]);
    }
    Ok(())
}

fn kernels() -> anyhow::Result<()> {
    let _context = CudaContext::new(0)?;
    // SAFETY: as in `functions`.
    unsafe {
        let library = asked(|to| {
            let (none, nothing) = (null_mut(), null_mut());
            sys::cuLibraryLoadData(to, PTX.as_ptr().cast(), none, nothing, 0, null_mut(), null_mut(), 0)
        })?;
        assert_eq!(asked(|to| sys::cuLibraryGetKernelCount(to, library))?, 2);
        let mut all = [null_mut(); 2];
        sys::cuLibraryEnumerateKernels(all.as_mut_ptr(), 2, library).result()?;
        let store = asked(|to| sys::cuLibraryGetKernel(to, library, c"store".as_ptr()))?;
        assert_eq!(all[1], store);
        assert_eq!(text(asked(|to| sys::cuKernelGetName(to, all[0]))?), "nothing");
        assert_eq!(asked(|to| sys::cuKernelGetLibrary(to, store))?, library);
        let mut size = 0;
        assert_eq!(asked(|offset| sys::cuKernelGetParamInfo(store, 1, offset, &mut size))?, 8);
        assert_eq!(size, 4);
        let bad = CUresult::CUDA_ERROR_INVALID_HANDLE;
        fails(asked(|to| sys::cuKernelGetName(to, null_mut())), bad, &["is not a kernel"]);
        fails(asked(|to| sys::cuLibraryGetKernelCount(to, null_mut())), bad, &["is not a library"]);
    }
    Ok(())
}

fn streams() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let other = CudaContext::new(1)?;
    context.bind_to_thread()?;
    // SAFETY: as in `functions`.
    unsafe {
        let made = |flags, priority| asked(|to| sys::cuStreamCreateWithPriority(to, flags, priority));
        let flags = |stream| asked(|to| sys::cuStreamGetFlags(stream, to));
        let priority = |stream| asked(|to| sys::cuStreamGetPriority(stream, to));
        let (blocking, urgent, clamped) = (made(0, 0)?, made(1, -3)?, made(1, -1000)?);
        assert_eq!([flags(blocking)?, flags(urgent)?, flags(null_mut())?], [0, 1, 0]);
        assert_eq!([priority(blocking)?, priority(urgent)?, priority(clamped)?], [0, -3, -5]);
        assert_eq!(priority(null_mut())?, 0);
        let ids: Vec<u64> = [blocking, urgent, clamped, null_mut()]
            .into_iter()
            .map(|stream| asked(|to| sys::cuStreamGetId(stream, to)))
            .collect::<Result<_, _>>()?;
        assert!((1..4).all(|at| !ids[..at].contains(&ids[at])), "{ids:?}");
        let stream = other.new_stream()?;
        context.bind_to_thread()?;
        assert_eq!(asked(|to| sys::cuStreamGetDevice(stream.cu_stream(), to))?, 1);
        assert_eq!(asked(|to| sys::cuStreamGetDevice(null_mut(), to))?, 0);
        let bad = CUresult::CUDA_ERROR_INVALID_HANDLE;
        fails(flags(0x77 as sys::CUstream), bad, &["is not a stream"]);
    }
    Ok(())
}
