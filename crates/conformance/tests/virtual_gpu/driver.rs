//! The driver's functions and errors, and the reports about failing kernels.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::shape;
use crate::leaks::standard_error_of;
use crate::raw::address;
use crate::{contains, fails, text};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("driver::a_copy_comes_back", a_copy_comes_back),
        Check::new("driver::a_gpu_that_is_not_there_is_named", no_such_gpu),
        Check::new("driver::more_memory_than_there_is", more_memory_than_there_is),
        Check::new("driver::bytes_that_nothing_wrote", unwritten_bytes),
        Check::new("driver::text_that_is_no_ptx", no_ptx),
        Check::new("driver::machine_code_is_refused_by_kind", machine_code),
        Check::new("driver::a_kernel_that_the_module_lacks", no_such_kernel),
        Check::new("driver::launches_over_the_limits", launches_over_the_limits),
        Check::new("driver::a_kernel_out_of_bounds", kernel_out_of_bounds),
        Check::new("driver::a_kernel_that_reads_what_nothing_wrote", kernel_reads_unwritten),
        Check::new("driver::a_failed_gpu_stays_failed", failed_gpu),
        Check::new("driver::a_missing_function_is_reported_by_name", unsupported),
        Check::new("driver::memsets_of_each_width", memsets_of_each_width),
        Check::new("driver::what_older_programs_call", what_older_programs_call),
        Check::new("driver::codes_that_are_never_given_have_a_name_too", names_of_codes),
        Check::new("driver::a_fork_after_the_first_call_is_refused", forks),
        Check::new("driver::device_memory_is_not_host_memory", || no_host_memory(false)),
        Check::new("driver::device_memory_is_not_host_memory_even_with_guarded_pages", || {
            no_host_memory(true)
        }),
    ]
}

/// `fill` sets `out[i] = x` for the first `n` elements, with a bounds check; `add` adds to each element, without one.
const KERNELS: &str = r#"
.version 8.0
.target sm_70
.address_size 64

.visible .entry fill(.param .u64 out, .param .f32 x, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.f32 %f1, [x];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.f32 [%rd4], %f1;
DONE:
    ret;
}

.visible .entry add(.param .u64 out, .param .f32 x)
{
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.f32 %f1, [x];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.f32 %f2, [%rd4];
    add.f32 %f3, %f2, %f1;
    st.global.f32 [%rd4], %f3;
    ret;
}
"#;

fn stream() -> anyhow::Result<Arc<CudaStream>> {
    Ok(CudaContext::new(0)?.new_stream()?)
}

fn kernel(stream: &CudaStream, name: &str) -> anyhow::Result<CudaFunction> {
    Ok(stream.context().load_module(Ptx::from_src(KERNELS))?.load_function(name)?)
}

fn a_copy_comes_back() -> anyhow::Result<()> {
    let stream = stream()?;
    let sent: Vec<u64> = (0..1001).map(|i| i * i).collect();
    let buffer = stream.clone_htod(&sent)?;
    let copy = buffer.try_clone()?;
    assert_eq!(stream.clone_dtoh(&copy.slice(10..))?, sent[10..]);
    let other = CudaContext::new(1)?.new_stream()?;
    let mut elsewhere = other.alloc_zeros::<u64>(1001)?;
    other.memcpy_dtod(&copy, &mut elsewhere)?;
    assert_eq!(other.clone_dtoh(&elsewhere)?, sent);
    Ok(())
}

fn no_such_gpu() -> anyhow::Result<()> {
    let words = ["there is no GPU 8: this machine has 8"];
    fails(CudaContext::new(8), CUresult::CUDA_ERROR_INVALID_DEVICE, &words);
    Ok(())
}

fn more_memory_than_there_is() -> anyhow::Result<()> {
    let stream = stream()?;
    let words = ["GPU 0 has 81920 MiB free, but 102400 MiB were requested"];
    fails(stream.alloc_zeros::<u8>(100 << 30), CUresult::CUDA_ERROR_OUT_OF_MEMORY, &words);
    // The context still works.
    assert_eq!(stream.clone_dtoh(&stream.alloc_zeros::<u8>(3)?)?, [0; 3]);
    Ok(())
}

fn unwritten_bytes() -> anyhow::Result<()> {
    let stream = stream()?;
    // SAFETY: all bytes but the last are written below.
    let mut buffer = unsafe { stream.alloc::<u8>(100) }?;
    stream.memcpy_htod(&[1u8; 99], &mut buffer.slice_mut(..99))?;
    assert_eq!(stream.clone_dtoh(&buffer.slice(..99))?, [1; 99]);
    let words = ["byte 99 is the first of them", "in the buffer of 100 bytes on GPU 0 allocated"];
    fails(stream.clone_dtoh(&buffer), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn no_ptx() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let load = |source: &str| context.load_module(Ptx::from_src(source)).map(drop);
    for source in ["", "hello", "__global__ void f() {}"] {
        fails(load(source), CUresult::CUDA_ERROR_INVALID_IMAGE, &["not PTX"]);
    }
    let wrong = KERNELS.replace("add.f32", "tanhh.f32").replace("mul.wide.u32", "wmma.load");
    fails(load(&wrong), CUresult::CUDA_ERROR_INVALID_PTX, &["tanhh", "wmma"]);
    Ok(())
}

fn machine_code() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let load = |image: &[u8]| context.load_module(Ptx::from_binary(image.to_vec())).map(drop);
    fails(load(b"\x7fELF\x02\0"), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, &["a cubin is machine code"]);
    fails(load(b"\xff\xfe.\0v\0"), CUresult::CUDA_ERROR_INVALID_IMAGE, &["not PTX"]);
    Ok(())
}

fn no_such_kernel() -> anyhow::Result<()> {
    let module = CudaContext::new(0)?.load_module(Ptx::from_src(KERNELS))?;
    let words = ["no kernel `axpy`", "it has `add`, `fill`"];
    fails(module.load_function("axpy"), CUresult::CUDA_ERROR_NOT_FOUND, &words);
    Ok(())
}

fn launches_over_the_limits() -> anyhow::Result<()> {
    let stream = stream()?;
    let add = kernel(&stream, "add")?;
    let mut buffer = stream.alloc_zeros::<f32>(2000)?;
    let shapes = [
        (shape(1, 0), "launch of `add`: block dimension x is 0: it must be 1 to 1024"),
        (shape(1, 2000), "launch of `add`: block dimension x is 2000: it must be 1 to 1024"),
        (shape(0, 32), "launch of `add`: grid dimension x is 0"),
        (LaunchConfig { block_dim: (64, 64, 1), ..shape(1, 1) }, "64 x 64 x 1 = 4096 threads in a block"),
        (LaunchConfig { grid_dim: (1, 70_000, 1), ..shape(1, 1) }, "grid dimension y is 70000"),
        (LaunchConfig { shared_mem_bytes: 100_000, ..shape(1, 1) }, "100000 bytes of dynamic shared memory"),
    ];
    for (shape, words) in shapes {
        // SAFETY: the arguments match the parameters of `add`.
        let result = unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&1f32).launch(shape) };
        fails(result, CUresult::CUDA_ERROR_INVALID_VALUE, &[words]);
    }
    let bound = KERNELS.replace(".param .f32 x)\n{", ".param .f32 x)\n.maxntid 64, 1, 1\n{");
    let bound = stream.context().load_module(Ptx::from_src(bound))?.load_function("add")?;
    // SAFETY: as above.
    let result = unsafe { stream.launch_builder(&bound).arg(&mut buffer).arg(&1f32).launch(shape(1, 65)) };
    fails(
        result,
        CUresult::CUDA_ERROR_INVALID_VALUE,
        &["65 threads in a block: the kernel allows at most 64"],
    );
    // A refused launch does nothing and has no effect on later calls.
    assert_eq!(stream.clone_dtoh(&buffer)?, [0.0; 2000]);
    Ok(())
}

fn kernel_out_of_bounds() -> anyhow::Result<()> {
    let stream = stream()?;
    let add = kernel(&stream, "add")?;
    let mut buffer = stream.alloc_zeros::<f32>(100)?;
    // SAFETY: this launch is wrong on purpose: 128 threads for 100 elements, without a bounds check.
    unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&1f32).launch(shape(2, 64)) }?;
    let words = [
        "kernel `add` goes out of bounds",
        "block (1,0,0), thread (36,0,0) reads 4 bytes",
        "just past the end of the buffer of 400 bytes allocated here",
        "crates/conformance/tests/virtual_gpu/driver.rs:",
        "launched",
    ];
    fails(stream.synchronize(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words);
    Ok(())
}

fn kernel_reads_unwritten() -> anyhow::Result<()> {
    let stream = stream()?;
    let (fill, add) = (kernel(&stream, "fill")?, kernel(&stream, "add")?);
    // SAFETY: `fill` writes all but the last element.
    let mut buffer = unsafe { stream.alloc::<f32>(64) }?;
    // SAFETY: the arguments match the kernels' parameters, and the buffer has an element for each thread.
    unsafe {
        stream.launch_builder(&fill).arg(&mut buffer).arg(&2f32).arg(&63u32).launch(shape(1, 64))?;
        stream.launch_builder(&add).arg(&mut buffer.slice_mut(..63)).arg(&1f32).launch(shape(1, 63))?;
        assert_eq!(stream.clone_dtoh(&buffer.slice(..63))?, [3.0; 63]);
        stream.launch_builder(&add).arg(&mut buffer).arg(&1f32).launch(shape(1, 64))?;
    }
    let words = ["kernel `add` reads bytes that nothing wrote", "thread (63,0,0) reads 4 bytes"];
    fails(stream.synchronize(), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn failed_gpu() -> anyhow::Result<()> {
    let stream = stream()?;
    let add = kernel(&stream, "add")?;
    let mut buffer = stream.alloc_zeros::<f32>(1)?;
    // SAFETY: see `kernel_out_of_bounds`.
    unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&1f32).launch(shape(1, 2)) }?;
    let code = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    fails(stream.synchronize(), code, &["out of bounds"]);
    fails(stream.synchronize(), code, &["out of bounds"]);
    fails(stream.alloc_zeros::<f32>(1), code, &["out of bounds"]);
    fails(stream.context().new_stream(), code, &["out of bounds"]);
    // The other GPUs still work.
    let other = CudaContext::new(1)?.new_stream()?;
    assert_eq!(other.clone_dtoh(&other.alloc_zeros::<f32>(2)?)?, [0.0; 2]);
    Ok(())
}

fn unsupported() -> anyhow::Result<()> {
    let mut memory = std::ptr::null_mut();
    // SAFETY: the handle is writable, and the function reads nothing.
    let imported = unsafe { sys::cuImportExternalMemory(&raw mut memory, std::ptr::null()) };
    let words = ["virtual GPU: cuImportExternalMemory is not supported"];
    fails(imported.result(), CUresult::CUDA_ERROR_NOT_SUPPORTED, &words);
    Ok(())
}

fn memsets_of_each_width() -> anyhow::Result<()> {
    let stream = stream()?;
    let buffer = stream.alloc_zeros::<u8>(24)?;
    let (at, of) = (address(&buffer), stream.cu_stream());
    // SAFETY: all written bytes are within the buffer.
    unsafe {
        sys::cuMemsetD32Async(at, 0x0403_0201, 3, of).result()?;
        sys::cuMemsetD16Async(at + 14, 0x0605, 3, of).result()?;
        sys::cuMemsetD8Async(at + 21, 7, 1, of).result()?;
    }
    let expected = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 5, 6, 5, 6, 5, 6, 0, 7, 0, 0];
    assert_eq!(stream.clone_dtoh(&buffer)?, expected);
    // SAFETY: as above; these are on the default stream.
    unsafe {
        sys::cuMemsetD32_v2(at, u32::MAX, 1).result()?;
        sys::cuMemsetD16_v2(at + 4, 0x0908, 1).result()?;
    }
    stream.context().synchronize()?;
    assert_eq!(stream.clone_dtoh(&buffer)?[..8], [255, 255, 255, 255, 8, 9, 3, 4]);
    let refused =
        |result: CUresult, words: &str| fails(result.result(), CUresult::CUDA_ERROR_INVALID_VALUE, &[words]);
    // SAFETY: each call is refused or writes nothing.
    unsafe {
        refused(sys::cuMemsetD32Async(at + 2, 0, 1, of), "4-byte elements must start at a multiple of 4");
        refused(sys::cuMemsetD16Async(at + 1, 0, 1, of), "2-byte elements must start at a multiple of 2");
        refused(sys::cuMemsetD32Async(at, 0, 7, of), "28 bytes");
        refused(sys::cuMemsetD32Async(at, 0, usize::MAX / 2, of), "are too many");
        sys::cuMemsetD32Async(at, 0, 0, of).result()?;
    }
    Ok(())
}

fn what_older_programs_call() -> anyhow::Result<()> {
    let stream = stream()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both numbers are writable.
    unsafe { sys::cuDeviceComputeCapability(&raw mut major, &raw mut minor, 0) }.result()?;
    assert_eq!((major, minor), stream.context().compute_capability()?);
    let mut memory = std::ptr::null_mut();
    // SAFETY: the pointer is writable.
    unsafe { sys::cuMemAllocHost_v2(&raw mut memory, 64) }.result()?;
    // SAFETY: the allocation has 64 bytes.
    unsafe { memory.cast::<[u8; 64]>().write([7; 64]) };
    // SAFETY: the memory is freed once.
    unsafe { sys::cuMemFreeHost(memory) }.result()?;
    let mut module = std::ptr::null_mut();
    let image = c".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }";
    let (mut option, mut value) =
        (sys::CUjit_option::CU_JIT_OPTIMIZATION_LEVEL, std::ptr::without_provenance_mut(4));
    // SAFETY: the image ends in a zero, and there is one option with its value.
    unsafe {
        let image = image.as_ptr().cast();
        sys::cuModuleLoadDataEx(&raw mut module, image, 1, &raw mut option, &raw mut value).result()?;
        sys::cuModuleUnload(module).result()?;
    }
    Ok(())
}

fn names_of_codes() -> anyhow::Result<()> {
    let codes = [
        (CUresult::CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
        (CUresult::CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
        (CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
        (CUresult::CUDA_ERROR_INVALID_PC, "invalid program counter"),
        (CUresult::CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
        (CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph update was not performed"),
    ];
    for (code, meaning) in codes {
        let error = DriverError(code);
        assert_eq!(error.error_name()?.to_str()?, format!("{code:?}"));
        contains(&text(error), &[meaning]);
    }
    Ok(())
}

/// Checks that a fork of a process that has used CUDA can't use it, and that its end reports nothing.
fn forks() -> anyhow::Result<()> {
    let said = standard_error_of(|| {
        let stream = stream()?;
        let buffer = stream.clone_htod(&[7_u8; 3])?;
        // SAFETY: no other thread in this process holds a lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            fails(
                stream.clone_dtoh(&buffer).map(drop),
                CUresult::CUDA_ERROR_NOT_INITIALIZED,
                &["was forked", "spawn"],
            );
            // SAFETY: this has no other requirements.
            let again = unsafe { sys::cuInit(0) };
            assert_eq!(again, CUresult::CUDA_ERROR_NOT_INITIALIZED);
            std::process::exit(5);
        }
        let mut status = 0;
        // SAFETY: this waits for the child that was just created.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 5));
        assert_eq!(stream.clone_dtoh(&buffer)?, [7; 3]);
        Ok(())
    })?;
    assert_eq!(said, "");
    Ok(())
}

/// Checks that the operating system kills a process that dereferences a device pointer, as with a real GPU. With
/// `guarded`, the virtual GPU handles faults itself and has to pass this one on.
fn no_host_memory(guarded: bool) -> anyhow::Result<()> {
    use cudarc::driver::DevicePtr;
    let stream = stream()?;
    let buffer = stream.alloc_zeros::<u8>(4096)?;
    if guarded {
        // SAFETY: the copy fills the memory.
        let mut pinned = unsafe { stream.context().alloc_pinned::<u8>(4096) }?;
        stream.memcpy_dtoh(&buffer, &mut pinned)?;
        assert_eq!(pinned.as_slice()?, [0; 4096]);
    }
    let address = buffer.device_ptr(&stream).0;
    // SAFETY: the child only reads one byte and ends; it touches no lock and allocates nothing.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: this access is not safe; it has to fault.
        let byte = unsafe { std::ptr::read_volatile(address as *const u8) };
        // SAFETY: this ends the child without running anything else.
        unsafe { libc::_exit(i32::from(byte)) };
    }
    let mut status = 0;
    // SAFETY: this waits for the child that was just created.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "status {status:#x}");
    Ok(())
}
