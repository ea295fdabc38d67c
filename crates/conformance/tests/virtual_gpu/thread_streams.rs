//! Each thread's own default stream.
//!
//! Event tracking is off, because cudarc would order the streams itself.

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaSlice, CudaStream, DriverError};
use lab::Check;

use crate::device::untracked;
use crate::{contains, fails, text};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("thread_streams::work_on_one_is_done", work),
        Check::new("thread_streams::it_waits_for_the_legacy_default_stream", beside_the_default_stream),
        Check::new("thread_streams::it_waits_for_no_other_stream", beside_another_stream),
        Check::new("thread_streams::each_thread_has_its_own", each_thread_has_its_own),
        Check::new("thread_streams::each_context_has_its_own", each_context_has_its_own),
        Check::new("thread_streams::it_can_t_be_destroyed", not_destroyed),
    ]
}

fn races(stream: &CudaStream, words: &[&str]) -> anyhow::Result<()> {
    let Err(error) = stream.synchronize() else { anyhow::bail!("no race was reported") };
    contains(&text(error), words);
    Ok(())
}

fn work() -> anyhow::Result<()> {
    let stream = untracked(0).per_thread_stream();
    let mut buffer = stream.clone_htod(&[1u32, 2, 3])?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [1, 2, 3]);
    stream.memset_zeros(&mut buffer)?;
    let event = stream.record_event(None)?;
    event.synchronize()?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [0; 3]);
    stream.synchronize()?;
    Ok(())
}

fn beside_the_default_stream() -> anyhow::Result<()> {
    let context = untracked(0);
    let (own, default) = (context.per_thread_stream(), context.default_stream());
    let mut buffer = own.alloc_zeros::<u8>(64)?;
    default.memset_zeros(&mut buffer)?;
    own.memset_zeros(&mut buffer)?;
    default.memset_zeros(&mut buffer)?;
    Ok(own.synchronize()?)
}

fn beside_another_stream() -> anyhow::Result<()> {
    let context = untracked(0);
    let (own, other) = (context.per_thread_stream(), context.new_stream()?);
    let mut buffer = own.alloc_zeros::<u8>(64)?;
    other.memset_zeros(&mut buffer)?;
    races(&other, &["written by a memset on a thread's default stream", "written by a memset on stream 1"])
}

fn each_thread_has_its_own() -> anyhow::Result<()> {
    let context = untracked(0);
    let stream = context.per_thread_stream();
    let mut buffer = stream.alloc_zeros::<u8>(64)?;
    // Don't wait: the other thread's work is not ordered after this thread's.
    let other = {
        let stream = stream.clone();
        std::thread::spawn(move || -> Result<CudaSlice<u8>, DriverError> {
            stream.context().bind_to_thread()?;
            stream.memset_zeros(&mut buffer)?;
            Ok(buffer)
        })
    };
    std::mem::forget(other.join().unwrap()?);
    races(&stream, &["data race on GPU 0", "two threads enqueued the operations"])
}

fn each_context_has_its_own() -> anyhow::Result<()> {
    for gpu in [0, 1, 0] {
        let stream = untracked(gpu).per_thread_stream();
        assert_eq!(stream.clone_dtoh(&stream.clone_htod(&[gpu])?)?, [gpu]);
    }
    Ok(())
}

fn not_destroyed() -> anyhow::Result<()> {
    let stream = untracked(0).per_thread_stream();
    stream.synchronize()?;
    for handle in 0..3usize {
        // SAFETY: a default stream is refused.
        let destroyed = unsafe { sys::cuStreamDestroy_v2(handle as sys::CUstream) };
        let words = ["a default stream belongs to its context"];
        fails(destroyed.result(), CUresult::CUDA_ERROR_INVALID_HANDLE, &words);
    }
    Ok(stream.synchronize()?)
}
