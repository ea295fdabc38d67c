//! Reports about memory that a program has not freed before it ends.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::exit;

use cudarc::driver::CudaContext;
use lab::Check;
use lab::kernels::Kernels;

use crate::contains;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("leaks::leaked_memory_is_reported_when_the_program_ends", kept),
        Check::new("leaks::dropped_memory_is_not_reported", dropped),
        Check::new("leaks::a_failure_is_reported_alone", after_a_failure),
    ]
}

/// Runs `program` in a separate process, and returns what the process writes to standard error.
pub(crate) fn standard_error_of(program: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<String> {
    let mut ends = [0; 2];
    // SAFETY: the array has space for both ends.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the two descriptors are new, and nothing else uses them.
    let (mut read, write) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    // SAFETY: no other thread in this process holds a lock: the driver has not been called yet.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: both are open.
        unsafe { libc::dup2(write.as_raw_fd(), libc::STDERR_FILENO) };
        exit(i32::from(program().is_err()));
    }
    drop(write);
    let mut said = String::new();
    read.read_to_string(&mut said)?;
    let mut status = 0;
    // SAFETY: this waits for the child that was just created.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "{said}");
    Ok(said)
}

fn kept() -> anyhow::Result<()> {
    let said = standard_error_of(|| {
        let context = CudaContext::new(1)?;
        let stream = context.new_stream()?;
        // The modules' variables don't count as the program's memory.
        let kernels = Kernels::load(&context)?;
        for _ in 0..3 {
            std::mem::forget(stream.alloc_zeros::<f32>(1024)?);
        }
        let kept = stream.alloc_zeros::<u8>(10)?;
        std::mem::forget((kept, kernels));
        Ok(())
    })?;
    let words = [
        "virtual GPU: 12298 bytes still allocated when the program ends",
        "3 buffers on GPU 1, 12 KiB in total, allocated here",
        "a buffer of 10 bytes on GPU 1, allocated here",
        "crates/conformance/tests/virtual_gpu/leaks.rs:",
        "help: drop what owns them",
    ];
    contains(&said, &words);
    assert_eq!(said.matches("allocated here\n").count(), 2, "{said}");
    Ok(())
}

fn dropped() -> anyhow::Result<()> {
    let said = standard_error_of(|| {
        let context = CudaContext::new(1)?;
        let stream = context.new_stream()?;
        let kernels = Kernels::load(&context)?;
        let mut buffer = stream.alloc_zeros::<f32>(1024)?;
        kernels.scale(&stream, &mut buffer, 2.0)?;
        std::mem::forget(kernels);
        Ok(())
    })?;
    assert_eq!(said, "");
    Ok(())
}

fn after_a_failure() -> anyhow::Result<()> {
    let said = standard_error_of(|| {
        let stream = CudaContext::new(0)?.new_stream()?;
        // SAFETY: the memory is never written, which is the failure to test.
        let unwritten = unsafe { stream.alloc::<u8>(16) }?;
        assert!(stream.clone_dtoh(&unwritten).is_err());
        std::mem::forget(unwritten);
        Ok(())
    })?;
    contains(&said, &["reads bytes that nothing wrote"]);
    assert!(!said.contains("still allocated"), "{said}");
    Ok(())
}
