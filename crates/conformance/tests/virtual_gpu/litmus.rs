//! For each report about memory and kernels, two programs that differ in one detail. The report of the wrong program
//! names its lines, and the right program causes no report.

use std::cell::RefCell;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DriverError, LaunchArgs,
    PushKernelArg, result,
};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::contains;
use crate::device::{shape, untracked};
use crate::golden::is_kept;

use CUresult::{
    CUDA_ERROR_ILLEGAL_ADDRESS as ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE as INVALID_VALUE,
    CUDA_ERROR_LAUNCH_FAILED as LAUNCH_FAILED, CUDA_ERROR_LAUNCH_TIMEOUT as LAUNCH_TIMEOUT,
    CUDA_ERROR_MISALIGNED_ADDRESS as MISALIGNED_ADDRESS,
};

/// A program's result.
type Outcome = Result<(), DriverError>;

/// A program that is wrong or right, depending on its argument.
struct Litmus {
    name: &'static str,
    program: fn(&Bench, bool) -> Outcome,
    /// The error code of the wrong program.
    code: CUresult,
    /// Words in the report, in addition to the lines that the program has marked.
    says: &'static [&'static str],
}

/// Records that the report must name this line, and evaluates the expression.
macro_rules! named {
    ($bench:ident, $call:expr) => {{
        $bench.lines.borrow_mut().push(line!());
        $call
    }};
}

/// Like [`named`], for a kernel's launch.
macro_rules! launched {
    ($bench:ident, $launch:expr) => {{
        $bench.lines.borrow_mut().push(line!());
        // SAFETY: each program passes the arguments that its kernel takes, or tests what happens otherwise.
        unsafe { $launch }.map(drop)
    }};
}

pub(crate) fn checks() -> Vec<Check> {
    LITMUS
        .iter()
        .flat_map(|litmus| {
            let wrong = format!("litmus::{}_wrong", litmus.name);
            let right = format!("litmus::{}_right", litmus.name);
            [
                Check::new(wrong, move || is_reported(litmus)),
                Check::new(right, move || Ok((litmus.program)(&Bench::new()?, false)?)),
            ]
        })
        .collect()
}

fn is_reported(litmus: &Litmus) -> anyhow::Result<()> {
    let bench = Bench::new()?;
    let Err(error) = (litmus.program)(&bench, true) else { anyhow::bail!("nothing was reported") };
    assert_eq!(error.0, litmus.code, "{error}");
    let said = crate::text(error);
    contains(&said, litmus.says);
    for line in bench.lines.borrow().iter() {
        assert!(shows(&said, *line), "line {line} is not shown in:\n{said}");
    }
    is_kept(&format!("memory_{}", litmus.name), &said)
}

/// Returns whether a report shows a line in this file.
fn shows(report: &str, line: u32) -> bool {
    report.lines().any(|shown| shown.trim_start().starts_with(&format!("{line} |")))
}

/// The objects that the programs use.
struct Bench {
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    /// The lines that the report must name.
    lines: RefCell<Vec<u32>>,
}

impl Bench {
    fn new() -> anyhow::Result<Self> {
        let context = untracked(1);
        let module = context.load_module(Ptx::from_src(include_str!("litmus.ptx")))?;
        Ok(Self { stream: context.new_stream()?, module, lines: RefCell::default() })
    }

    fn kernel(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap()
    }

    fn build<'a>(&'a self, kernel: &'a CudaFunction) -> LaunchArgs<'a> {
        self.stream.launch_builder(kernel)
    }

    fn address<T>(&self, buffer: &CudaSlice<T>) -> u64 {
        buffer.device_ptr(&self.stream).0
    }

    fn end(&self) -> Outcome {
        self.stream.synchronize()
    }
}

const LITMUS: &[Litmus] = &[
    Litmus {
        name: "a_kernel_behind_the_end",
        program: behind_the_end,
        code: ILLEGAL_ADDRESS,
        says: &[
            "kernel `write` goes out of bounds",
            "block (1,0,0), thread (0,0,0) writes 4 bytes",
            "litmus.cu:6",
            "just past the end of the buffer of 256 bytes",
            "does the kernel check its index",
        ],
    },
    Litmus {
        name: "a_kernel_before_the_start",
        program: before_the_start,
        code: ILLEGAL_ADDRESS,
        says: &[
            "kernel `write` goes out of bounds",
            "4 bytes before the start of the buffer of 256 bytes",
            "litmus.cu:6",
        ],
    },
    Litmus {
        name: "a_kernel_in_freed_memory",
        program: in_freed_memory,
        code: ILLEGAL_ADDRESS,
        says: &["kernel `write` uses freed memory", "thread (0,0,0) writes 4 bytes"],
    },
    Litmus {
        name: "a_kernel_at_a_null_pointer",
        program: at_null,
        code: ILLEGAL_ADDRESS,
        says: &["kernel `write` uses an invalid address", "null"],
    },
    Litmus {
        name: "a_kernel_at_a_host_address",
        program: at_a_host_address,
        code: ILLEGAL_ADDRESS,
        says: &["kernel `write` uses an invalid address"],
    },
    Litmus {
        name: "a_kernel_at_another_gpu_s_address",
        program: at_another_gpu,
        code: ILLEGAL_ADDRESS,
        says: &["kernel `write` uses an invalid address", "on GPU 2 allocated", "its own GPU's memory"],
    },
    Litmus {
        name: "a_misaligned_address",
        program: misaligned,
        code: MISALIGNED_ADDRESS,
        says: &["kernel `write` uses a misaligned address", "must be a multiple of 4", "litmus.cu:6"],
    },
    Litmus {
        name: "a_misaligned_atomic",
        program: misaligned_atomic,
        code: MISALIGNED_ADDRESS,
        says: &["kernel `add_to` uses a misaligned address", "must be a multiple of 4", "litmus.cu:18"],
    },
    Litmus {
        name: "a_kernel_reads_what_nothing_wrote",
        program: kernel_reads_unwritten,
        code: LAUNCH_FAILED,
        says: &["kernel `increment` reads bytes that nothing wrote", "thread (32,0,0)", "litmus.cu:13"],
    },
    Litmus {
        name: "a_kernel_reads_shared_memory_that_nothing_wrote",
        program: reads_unwritten_tile,
        code: LAUNCH_FAILED,
        says: &["kernel `unwritten_tile` reads bytes that nothing wrote", "thread (7,0,0)", "litmus.cu:61"],
    },
    Litmus {
        name: "a_kernel_beyond_its_shared_memory",
        program: beyond_shared,
        code: ILLEGAL_ADDRESS,
        says: &[
            "kernel `tile` goes out of bounds",
            "256 bytes of shared memory",
            "thread (63,0,0)",
            "litmus.cu:50",
        ],
    },
    Litmus {
        name: "a_kernel_beyond_its_own_array",
        program: beyond_local,
        code: ILLEGAL_ADDRESS,
        says: &[
            "kernel `own_array` goes out of bounds",
            "a thread has 32 bytes of local memory",
            "litmus.cu:69",
        ],
    },
    Litmus {
        name: "a_trap",
        program: trap,
        code: LAUNCH_FAILED,
        says: &["kernel `stop` executed a trap", "thread (3,0,0)", "litmus.cu:23"],
    },
    Litmus {
        name: "a_barrier_that_not_all_threads_reach",
        program: divergent_barrier,
        code: LAUNCH_FAILED,
        says: &[
            "kernel `meet` has threads waiting at a barrier that others never reach",
            "48 of 64 threads",
            "litmus.cu:29",
        ],
    },
    Litmus {
        name: "a_shuffle_that_not_all_lanes_reach",
        program: divergent_warp,
        code: LAUNCH_FAILED,
        says: &[
            "kernel `meet_in_a_warp` has lanes waiting for others",
            "0xffffffff",
            "0x0000ffff",
            "litmus.cu:36",
        ],
    },
    Litmus {
        name: "a_kernel_without_end",
        program: endless,
        code: LAUNCH_TIMEOUT,
        says: &["kernel `wait_for` ", "end", "litmus.cu:44"],
    },
    Litmus {
        name: "a_copy_to_the_host_of_what_nothing_wrote",
        program: copy_unwritten,
        code: LAUNCH_FAILED,
        says: &["a copy to the host reads bytes that nothing wrote", "byte 0 is the first of them"],
    },
    Litmus {
        name: "a_copy_beyond_a_buffer",
        program: copy_beyond,
        code: INVALID_VALUE,
        says: &[
            "a copy to 65 bytes that are not all in one buffer",
            "1 byte outside",
            "the buffer of 64 bytes on GPU 1",
        ],
    },
    Litmus {
        name: "a_set_beyond_a_buffer",
        program: set_beyond,
        code: INVALID_VALUE,
        says: &[
            "a set of 65 bytes that are not all in one buffer",
            "1 byte outside",
            "the buffer of 64 bytes on GPU 1",
        ],
    },
    Litmus {
        name: "a_copy_whose_host_side_is_a_gpu_s",
        program: host_side_is_device,
        code: INVALID_VALUE,
        says: &["the copy's host pointer", "is a GPU address"],
    },
    Litmus {
        name: "a_second_free",
        program: second_free,
        code: INVALID_VALUE,
        says: &["a pointer that can't be freed", "freed again", "free each allocation once"],
    },
    Litmus {
        name: "a_free_of_a_part",
        program: free_of_a_part,
        code: INVALID_VALUE,
        says: &["a pointer that can't be freed", "the buffer of 64 bytes on GPU 1"],
    },
];

fn behind_the_end(bench: &Bench, wrong: bool) -> Outcome {
    let out = named!(bench, bench.stream.alloc_zeros::<f32>(64)?);
    let n: u32 = if wrong { 65 } else { 64 };
    let (kernel, first, second) = (bench.kernel("write"), bench.address(&out), n);
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(2, 64)))?;
    bench.end()
}

fn before_the_start(bench: &Bench, wrong: bool) -> Outcome {
    let out = named!(bench, bench.stream.alloc_zeros::<f32>(64)?);
    let first = bench.address(&out) - if wrong { 4 } else { 0 };
    let (kernel, first, second) = (bench.kernel("write"), first, 64_u32);
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    bench.end()
}

fn in_freed_memory(bench: &Bench, wrong: bool) -> Outcome {
    let out = named!(bench, bench.stream.alloc_zeros::<f32>(64)?);
    let address = bench.address(&out);
    let kept = (!wrong).then_some(out);
    let (kernel, first, second) = (bench.kernel("write"), address, 64_u32);
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    drop(kept);
    bench.end()
}

fn at_null(bench: &Bench, wrong: bool) -> Outcome {
    let out = bench.stream.alloc_zeros::<f32>(64)?;
    let address = if wrong { 0 } else { bench.address(&out) };
    let (kernel, first, second) = (bench.kernel("write"), address, 64_u32);
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    bench.end()
}

fn at_a_host_address(bench: &Bench, wrong: bool) -> Outcome {
    let out = bench.stream.alloc_zeros::<f32>(64)?;
    let host = [0_f32; 64];
    let address = if wrong { host.as_ptr() as u64 } else { bench.address(&out) };
    let (kernel, first, second) = (bench.kernel("write"), address, 64_u32);
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    bench.end()
}

fn at_another_gpu(bench: &Bench, wrong: bool) -> Outcome {
    let other = CudaContext::new(if wrong { 2 } else { 1 })?.new_stream()?;
    let out = other.alloc_zeros::<f32>(64)?;
    other.synchronize()?;
    let (kernel, first, second) = (bench.kernel("write"), out.device_ptr(&other).0, 64_u32);
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    bench.end()
}

fn misaligned(bench: &Bench, wrong: bool) -> Outcome {
    let out = bench.stream.alloc_zeros::<f32>(65)?;
    let address = bench.address(&out) + if wrong { 2 } else { 4 };
    let (kernel, first, second) = (bench.kernel("write"), address, 64_u32);
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    bench.end()
}

fn misaligned_atomic(bench: &Bench, wrong: bool) -> Outcome {
    let sum = bench.stream.alloc_zeros::<u32>(2)?;
    let address = bench.address(&sum) + if wrong { 1 } else { 0 };
    let (kernel, first) = (bench.kernel("add_to"), address);
    launched!(bench, bench.build(&kernel).arg(&first).launch(shape(1, 32)))?;
    bench.end()
}

fn kernel_reads_unwritten(bench: &Bench, wrong: bool) -> Outcome {
    // SAFETY: this check is about uninitialized memory.
    let data = named!(bench, unsafe { bench.stream.alloc::<f32>(64) }?);
    let written: u32 = if wrong { 32 } else { 64 };
    // The report does not name this line, because this kernel is correct.
    let (kernel, first, second) = (bench.kernel("write"), bench.address(&data), written);
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    bench.lines.borrow_mut().pop();
    let (kernel, first, second) = (bench.kernel("increment"), bench.address(&data), 64_u32);
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    bench.end()
}

fn reads_unwritten_tile(bench: &Bench, wrong: bool) -> Outcome {
    let out = bench.stream.alloc_zeros::<f32>(64)?;
    let (kernel, first, second) = (bench.kernel("unwritten_tile"), bench.address(&out), i32::from(wrong));
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    bench.end()
}

fn beyond_shared(bench: &Bench, wrong: bool) -> Outcome {
    let out = bench.stream.alloc_zeros::<f32>(64)?;
    let (kernel, first, second) = (bench.kernel("tile"), bench.address(&out), i32::from(wrong));
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    bench.end()
}

fn beyond_local(bench: &Bench, wrong: bool) -> Outcome {
    let out = bench.stream.alloc_zeros::<f32>(64)?;
    let at: u32 = if wrong { 8 } else { 7 };
    let (kernel, first, second) = (bench.kernel("own_array"), bench.address(&out), at);
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 1)))?;
    bench.end()
}

fn trap(bench: &Bench, wrong: bool) -> Outcome {
    let (kernel, first) = (bench.kernel("stop"), i32::from(wrong));
    launched!(bench, bench.build(&kernel).arg(&first).launch(shape(1, 32)))?;
    bench.end()
}

fn divergent_barrier(bench: &Bench, wrong: bool) -> Outcome {
    let out = bench.stream.alloc_zeros::<f32>(64)?;
    let (kernel, first, second) = (bench.kernel("meet"), bench.address(&out), i32::from(wrong));
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 64)))?;
    bench.end()
}

fn divergent_warp(bench: &Bench, wrong: bool) -> Outcome {
    let out = bench.stream.alloc_zeros::<u32>(32)?;
    let (kernel, first, second) = (bench.kernel("meet_in_a_warp"), bench.address(&out), i32::from(wrong));
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 32)))?;
    bench.end()
}

fn endless(bench: &Bench, wrong: bool) -> Outcome {
    let flag = bench.stream.alloc_zeros::<u32>(1)?;
    let (kernel, first, second) = (bench.kernel("wait_for"), bench.address(&flag), i32::from(wrong));
    launched!(bench, bench.build(&kernel).arg(&first).arg(&second).launch(shape(1, 1)))?;
    bench.end()
}

fn copy_unwritten(bench: &Bench, wrong: bool) -> Outcome {
    // SAFETY: this check is about uninitialized memory.
    let mut data = named!(bench, unsafe { bench.stream.alloc::<u8>(64) }?);
    if !wrong {
        bench.stream.memset_zeros(&mut data)?;
    }
    named!(bench, bench.stream.clone_dtoh(&data)).map(drop)
}

fn copy_beyond(bench: &Bench, wrong: bool) -> Outcome {
    let data = named!(bench, bench.stream.alloc_zeros::<u8>(64)?);
    bench.stream.synchronize()?;
    let host = vec![1_u8; if wrong { 65 } else { 64 }];
    // SAFETY: the driver checks the range.
    unsafe { named!(bench, result::memcpy_htod_sync(bench.address(&data), &host)) }
}

fn set_beyond(bench: &Bench, wrong: bool) -> Outcome {
    let data = named!(bench, bench.stream.alloc_zeros::<u8>(64)?);
    let (address, len) = (bench.address(&data), if wrong { 65 } else { 64 });
    // SAFETY: the driver checks the range.
    unsafe { named!(bench, result::memset_d8_async(address, 0, len, bench.stream.cu_stream()))? };
    bench.end()
}

fn host_side_is_device(bench: &Bench, wrong: bool) -> Outcome {
    let data = bench.stream.alloc_zeros::<u8>(64)?;
    bench.stream.synchronize()?;
    let host = [0_u8; 64];
    let from = if wrong { bench.address(&data) as *const u8 } else { host.as_ptr() };
    // SAFETY: the wrong address is refused before it is dereferenced.
    unsafe { cudarc::driver::sys::cuMemcpyHtoD_v2(bench.address(&data), from.cast(), 64).result() }
}

fn second_free(bench: &Bench, wrong: bool) -> Outcome {
    bench.stream.context().bind_to_thread()?;
    // SAFETY: the driver checks the address to be freed.
    unsafe {
        let address = named!(bench, result::malloc_sync(64)?);
        named!(bench, result::memory_free(address))?;
        if wrong { named!(bench, result::memory_free(address)) } else { Ok(()) }
    }
}

fn free_of_a_part(bench: &Bench, wrong: bool) -> Outcome {
    bench.stream.context().bind_to_thread()?;
    // SAFETY: the driver checks the address to be freed.
    unsafe {
        let address = named!(bench, result::malloc_sync(64)?);
        named!(bench, result::memory_free(address + if wrong { 8 } else { 0 }))
    }
}
