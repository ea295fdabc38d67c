//! Memory that kernels allocate and free (`malloc`, `free`, `new`, `delete`).

use std::sync::Arc;

use cudarc::driver::sys::{CUlimit, CUresult};
use cudarc::driver::{
    CudaContext, CudaModule, CudaSlice, CudaStream, DevicePtr, DriverError, LaunchArgs, PushKernelArg,
    result, sys,
};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::{shape, untracked};
use crate::leaks::standard_error_of;
use crate::{contains, fails, golden, text};

const HEAP: &str = include_str!("heap.ptx");

/// A node of a kernel's list, in bytes: a value and a pointer.
const NODE: u64 = 16;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("heap::memory_lives_until_a_kernel_frees_it", lists),
        Check::new("heap::a_full_heap_returns_null", full),
        Check::new("heap::the_heap_has_the_size_of_its_limit", limit),
        Check::new("heap::addresses_are_aligned_and_the_same_on_every_run", aligned),
        Check::new("heap::each_context_has_its_own_heap", contexts),
        Check::new("heap::freed_memory_is_reused", reused),
        Check::new("heap::an_access_beyond_an_allocation_is_reported", beyond),
        Check::new("heap::a_use_after_free_is_reported", afterwards),
        Check::new("heap::bytes_that_nothing_wrote_are_reported", unwritten),
        Check::new("heap::a_second_free_is_reported", twice),
        Check::new("heap::a_free_inside_an_allocation_is_reported", inside),
        Check::new("heap::a_free_of_the_hosts_memory_is_reported", of_the_host),
        Check::new("heap::the_host_can_neither_copy_nor_free_it", host),
        Check::new("heap::an_unordered_free_is_a_race", race),
        Check::new("heap::memory_that_is_never_freed_is_reported_when_the_program_ends", leaked),
    ]
}

/// A GPU with the kernels.
struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
}

impl Gpu {
    fn new() -> anyhow::Result<Self> {
        let context = untracked(0);
        let (stream, module) = (context.default_stream(), context.load_module(Ptx::from_src(HEAP))?);
        Ok(Self { context, stream, module })
    }

    /// Launches a kernel with one block on a stream.
    fn launch_on<'a>(
        &'a self,
        stream: &'a Arc<CudaStream>,
        kernel: &str,
        threads: u32,
        arguments: impl FnOnce(&mut LaunchArgs<'a>),
    ) -> Result<(), DriverError> {
        let function = Box::leak(Box::new(self.module.load_function(kernel)?));
        let mut launch = stream.launch_builder(function);
        arguments(&mut launch);
        // SAFETY: each check passes what its kernel takes, or shows what happens otherwise.
        unsafe { launch.launch(shape(1, threads)) }?;
        Ok(())
    }

    /// Like [`Self::launch_on`], on the GPU's stream, and waits for the kernel.
    fn run<'a>(
        &'a self,
        kernel: &str,
        threads: u32,
        arguments: impl FnOnce(&mut LaunchArgs<'a>),
    ) -> Result<(), DriverError> {
        self.launch_on(&self.stream, kernel, threads, arguments)?;
        self.stream.synchronize()
    }

    /// Lets each thread allocate `bytes`, and returns the addresses, on the GPU and on the host.
    fn allocate(&self, threads: u32, bytes: u64) -> Result<(CudaSlice<u64>, Vec<u64>), DriverError> {
        let pointers = self.stream.alloc_zeros::<u64>(threads as usize)?;
        self.run("allocates", threads, |launch| {
            launch.arg(&bytes).arg(&pointers);
        })?;
        let addresses = self.stream.clone_dtoh(&pointers)?;
        Ok((pointers, addresses))
    }

    /// Returns how many allocations of `bytes` the heap has room for.
    fn room(&self, bytes: u64) -> Result<i32, DriverError> {
        let count = self.stream.alloc_zeros::<i32>(1)?;
        self.run("fill", 1, |launch| {
            launch.arg(&bytes).arg(&count);
        })?;
        Ok(self.stream.clone_dtoh(&count)?[0])
    }

    /// Lets each thread free its pointer plus an offset.
    fn free(&self, pointers: &CudaSlice<u64>, threads: u32, offset: i32) -> Result<(), DriverError> {
        self.run("frees", threads, |launch| {
            launch.arg(pointers).arg(&offset);
        })
    }
}

fn lists() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let heads = gpu.stream.alloc_zeros::<u64>(64)?;
    let sums = gpu.stream.alloc_zeros::<f32>(64)?;
    let sum = || -> anyhow::Result<Vec<f32>> {
        gpu.run("sum", 64, |launch| {
            launch.arg(&heads).arg(&sums);
        })?;
        Ok(gpu.stream.clone_dtoh(&sums)?)
    };
    for value in [1.0_f32, 10.0, 100.0] {
        gpu.run("push", 64, |launch| {
            launch.arg(&heads).arg(&value);
        })?;
    }
    assert_eq!(sum()?, (0..64).map(|i| 111.0 + 3.0 * i as f32).collect::<Vec<_>>());
    gpu.run("pop", 64, |launch| {
        launch.arg(&heads);
    })?;
    assert_eq!(sum()?, (0..64).map(|i| 11.0 + 2.0 * i as f32).collect::<Vec<_>>());
    Ok(())
}

fn full() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    // The default heap has 8 MiB, and needs some of them for its own purposes on a real GPU.
    assert_eq!(gpu.room(1 << 20)?, 8);
    let (_, addresses) = gpu.allocate(4, 16)?;
    assert_eq!(addresses, [0; 4]);
    Ok(())
}

fn limit() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let heap = CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE;
    gpu.context.set_limit(heap, 1 << 16)?;
    assert_eq!(gpu.room(NODE)?, (1 << 16) / NODE as i32);
    // A kernel that allocates has been launched.
    fails(gpu.context.set_limit(heap, 1 << 20), CUresult::CUDA_ERROR_INVALID_VALUE, &["first launch"]);
    assert_eq!(gpu.context.get_limit(heap)?, 1 << 16);
    Ok(())
}

fn aligned() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let (_, addresses) = gpu.allocate(32, 20)?;
    assert!(addresses.iter().all(|address| *address != 0 && address.is_multiple_of(16)));
    let steps: Vec<u64> = addresses.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
    let pointers = gpu.stream.alloc_zeros::<u64>(2)?;
    for (alignment, is_valid) in [(256_u64, true), (4096, true), (48, false), (0, false)] {
        gpu.run("aligned", 2, |launch| {
            launch.arg(&20_u64).arg(&alignment).arg(&pointers);
        })?;
        for address in gpu.stream.clone_dtoh(&pointers)? {
            assert_eq!(address != 0, is_valid, "{alignment}");
            assert!(!is_valid || address.is_multiple_of(alignment));
        }
    }
    Ok(())
}

fn contexts() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    assert_eq!(gpu.room(1 << 20)?, 8);
    let mut other = std::ptr::null_mut();
    // SAFETY: the pointer is valid. The call makes the context current, so the module is loaded in it.
    unsafe {
        sys::cuCtxCreate_v2(&raw mut other, 0, 0).result()?;
        let text = std::ffi::CString::new(HEAP)?;
        let module = result::module::load_data(text.as_ptr().cast())?;
        let function = result::module::get_function(module, c"fill".to_owned())?;
        let mut count = result::malloc_sync(4)?;
        result::memset_d8_sync(count, 0, 4)?;
        let mut bytes = 1_u64 << 20;
        let mut arguments = [(&raw mut bytes).cast(), (&raw mut count).cast()];
        result::launch_kernel(function, (1, 1, 1), (1, 1, 1), 0, std::ptr::null_mut(), &mut arguments)?;
        let mut full = [0_i32];
        result::memcpy_dtoh_sync(&mut full, count)?;
        assert_eq!(full, [8]);
        sys::cuCtxDestroy_v2(other).result()?;
    }
    Ok(())
}

fn reused() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let different = gpu.stream.alloc_zeros::<u32>(1)?;
    gpu.run("reuses", 1, |launch| {
        launch.arg(&100_000_i32).arg(&different);
    })?;
    // A stale pointer differs from the next allocation.
    assert_eq!(gpu.stream.clone_dtoh(&different)?, [100_000]);
    assert_eq!(gpu.room(1 << 20)?, 8);
    Ok(())
}

/// Checks the report of a kernel that fails.
fn reports(
    name: &str,
    outcome: Result<(), DriverError>,
    code: CUresult,
    words: &[&str],
) -> anyhow::Result<()> {
    let error = outcome.expect_err("the kernel fails");
    assert_eq!(error.0, code, "{error}");
    let said = text(error);
    contains(&said, words);
    golden::is_kept(name, &said)
}

fn beyond() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    gpu.run("beyond", 1, |launch| {
        launch.arg(&3_i32);
    })?;
    let outcome = gpu.run("beyond", 1, |launch| {
        launch.arg(&4_i32);
    });
    let words = ["goes out of bounds", "just past the end of the buffer of 16 bytes", "values[i] = 1"];
    reports("heap_beyond", outcome, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words)
}

fn afterwards() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let out = gpu.stream.alloc_zeros::<f32>(1)?;
    let outcome = gpu.run("afterwards", 1, |launch| {
        launch.arg(&out);
    });
    let words = ["uses freed memory", "byte 4 of the buffer of 16 bytes", "delete[] values"];
    reports("heap_freed", outcome, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words)
}

fn unwritten() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let out = gpu.stream.alloc_zeros::<f32>(1)?;
    let outcome = gpu.run("unwritten", 1, |launch| {
        launch.arg(&out);
    });
    fails(
        outcome,
        CUresult::CUDA_ERROR_LAUNCH_FAILED,
        &["kernel `unwritten` reads bytes that nothing wrote"],
    );
    Ok(())
}

fn twice() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let (pointers, _) = gpu.allocate(1, 100)?;
    gpu.free(&pointers, 1, 0)?;
    let words = ["frees an address that it can't free", "byte 0 of the buffer of 100 bytes", "freed"];
    reports("heap_freed_twice", gpu.free(&pointers, 1, 0), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words)
}

fn inside() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let (pointers, _) = gpu.allocate(1, 100)?;
    reports(
        "heap_freed_inside",
        gpu.free(&pointers, 1, 16),
        CUresult::CUDA_ERROR_LAUNCH_FAILED,
        &["is byte 16"],
    )
}

fn of_the_host() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let buffer = gpu.stream.alloc_zeros::<f32>(10)?;
    let address = buffer.device_ptr(&gpu.stream).0;
    let pointers = gpu.stream.clone_htod(&[address])?;
    let words = ["the buffer of 40 bytes allocated here", "`malloc`"];
    reports("heap_freed_hosts", gpu.free(&pointers, 1, 0), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words)
}

fn host() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let (pointers, addresses) = gpu.allocate(1, 64)?;
    let address = addresses[0];
    let code = CUresult::CUDA_ERROR_INVALID_VALUE;
    let words = ["only kernels can use and free this memory", "heap.cu"];
    // SAFETY: the call copies nothing.
    fails(unsafe { result::memcpy_dtoh_sync(&mut [0_u8; 4], address) }, code, &words);
    // SAFETY: the call frees nothing.
    fails(unsafe { result::free_sync(address) }, code, &words);
    let mut kind = 0_u32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: the result has the attribute's size.
    let asked = unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), attribute, address) };
    assert_eq!(asked, code);
    gpu.free(&pointers, 1, 0)?;
    Ok(())
}

fn race() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let heads = gpu.stream.alloc_zeros::<u64>(1)?;
    let sums = gpu.stream.alloc_zeros::<f32>(1)?;
    gpu.run("push", 1, |launch| {
        launch.arg(&heads).arg(&1.0_f32);
    })?;
    let pointers = gpu.stream.clone_htod(&gpu.stream.clone_dtoh(&heads)?)?;
    gpu.stream.synchronize()?;
    let (first, second) = (gpu.context.new_stream()?, gpu.context.new_stream()?);
    gpu.launch_on(&first, "sum", 1, |launch| {
        launch.arg(&heads).arg(&sums);
    })?;
    gpu.launch_on(&second, "frees", 1, |launch| {
        launch.arg(&pointers).arg(&0_i32);
    })?;
    let words = ["data race on GPU 0", "kernel `sum`", "kernel `frees`", "heap.cu"];
    fails(gpu.context.synchronize(), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn leaked() -> anyhow::Result<()> {
    let said = standard_error_of(|| {
        let gpu = Gpu::new()?;
        gpu.allocate(3, 32)?;
        std::mem::forget(gpu);
        Ok(())
    })?;
    let words = [
        "96 bytes still allocated when the program ends",
        "3 buffers on GPU 0, 96 bytes in total, allocated here",
        "heap.cu",
        "help: in a kernel, free each pointer",
    ];
    contains(&said, &words);
    Ok(())
}
