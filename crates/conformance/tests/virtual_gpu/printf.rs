//! Kernel output and kernel assertions, on the program's standard output and standard error.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;

use cudarc::driver::sys::{CUlimit, CUresult};
use cudarc::driver::{CudaContext, CudaModule, CudaStream, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::shape;
use crate::{contains, fails};

const PRINT: &str = include_str!("../ptx/print.ptx");

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("printf::nothing_is_shown_before_a_synchronization", shown_when_synchronized),
        Check::new("printf::a_launch_and_a_blocking_copy_show_what_is_there", shown_by_launch_and_copy),
        Check::new("printf::the_buffer_has_the_size_of_its_limit", limited),
        Check::new("printf::a_closed_output_does_no_harm", closed_output),
        Check::new("printf::an_assertion_that_fails_is_sticky", assertion),
    ]
}

/// Standard output or standard error, redirected to an anonymous file.
struct Captured {
    descriptor: i32,
    before: i32,
    file: File,
}

impl Captured {
    fn new(descriptor: i32) -> Self {
        // SAFETY: this is a new descriptor, which nothing else owns.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"captured".as_ptr(), 0)) };
        // SAFETY: both descriptors are open, and `end` restores the copy.
        let before = unsafe {
            let before = libc::dup(descriptor);
            libc::dup2(file.as_raw_fd(), descriptor);
            before
        };
        Self { descriptor, before, file }
    }

    /// Returns the text written so far.
    fn text(&mut self) -> String {
        let mut text = String::new();
        self.file.rewind().unwrap();
        self.file.read_to_string(&mut text).unwrap();
        text
    }

    /// Restores the descriptor, and returns all text written.
    fn end(mut self) -> String {
        // SAFETY: `before` is a copy of the original descriptor.
        unsafe {
            libc::dup2(self.before, self.descriptor);
            libc::close(self.before);
        }
        self.text()
    }
}

fn module() -> (Arc<CudaContext>, Arc<CudaStream>, Arc<CudaModule>) {
    let context = CudaContext::new(0).unwrap();
    let module = context.load_module(Ptx::from_src(PRINT)).unwrap();
    (context.clone(), context.default_stream(), module)
}

fn print_lines(stream: &Arc<CudaStream>, module: &Arc<CudaModule>, count: i32) -> anyhow::Result<()> {
    // SAFETY: the kernel takes an `int`.
    unsafe { stream.launch_builder(&module.load_function("numbered")?).arg(&count).launch(shape(1, 1))? };
    Ok(())
}

fn shown_when_synchronized() -> anyhow::Result<()> {
    let (_, stream, module) = module();
    let mut output = Captured::new(1);
    print_lines(&stream, &module, 2)?;
    let before = output.text();
    stream.synchronize()?;
    let after = output.end();
    assert_eq!((before.as_str(), after.as_str()), ("", "line    0\nline    1\n"));
    Ok(())
}

fn shown_by_launch_and_copy() -> anyhow::Result<()> {
    let (_, stream, module) = module();
    let zeros = stream.alloc_zeros::<u8>(4)?;
    let mut output = Captured::new(1);
    print_lines(&stream, &module, 1)?;
    print_lines(&stream, &module, 2)?;
    let by_launch = output.text();
    let _ = stream.clone_dtoh(&zeros)?;
    let all = output.end();
    assert_eq!(by_launch, "line    0\n");
    assert_eq!(all, "line    0\nline    0\nline    1\n");
    Ok(())
}

fn limited() -> anyhow::Result<()> {
    let (context, stream, module) = module();
    context.bind_to_thread()?;
    // SAFETY: the arguments are a limit and a size.
    unsafe { sys::cuCtxSetLimit(CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE, 40) }.result()?;
    let output = Captured::new(1);
    print_lines(&stream, &module, 1000)?;
    stream.synchronize()?;
    let text = output.end();
    assert_eq!(text, "line  996\nline  997\nline  998\nline  999\n");
    Ok(())
}

fn closed_output() -> anyhow::Result<()> {
    let (_, stream, module) = module();
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors, which are closed again.
    let before = unsafe {
        libc::pipe(ends.as_mut_ptr());
        let before = libc::dup(1);
        libc::dup2(ends[1], 1);
        libc::close(ends[0]);
        libc::close(ends[1]);
        before
    };
    print_lines(&stream, &module, 3)?;
    let done = stream.synchronize();
    // SAFETY: `before` is a copy of the standard output.
    unsafe {
        libc::dup2(before, 1);
        libc::close(before);
    }
    Ok(done?)
}

fn assertion() -> anyhow::Result<()> {
    let (_, stream, module) = module();
    let x = stream.clone_htod(&[1.0_f32, -2.0, 3.0])?;
    let positive = module.load_function("positive")?;
    let (output, errors) = (Captured::new(1), Captured::new(2));
    // SAFETY: `x` has three elements.
    unsafe { stream.launch_builder(&positive).arg(&x).arg(&3_i32).launch(shape(1, 32))? };
    let done = stream.synchronize();
    let again = stream.synchronize();
    let (output, errors) = (output.end(), errors.end());
    assert_eq!(output, "before\n");
    contains(
        &errors,
        &[
            "print.cu:28: void positive(const float *, int): block: [0,0,0], thread: [1,0,0] Assertion `x[i] > 0` failed.\n",
            "kernel `positive` has an assertion that failed",
            "launched",
            "printf.rs:",
        ],
    );
    fails(done, CUresult::CUDA_ERROR_ASSERT, &["assertion `x[i] > 0`"]);
    fails(again, CUresult::CUDA_ERROR_ASSERT, &["assertion `x[i] > 0`"]);
    Ok(())
}
