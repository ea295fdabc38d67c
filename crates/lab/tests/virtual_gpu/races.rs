//! Programs that come as pairs: in the wrong one a call is missing, is made too early or for the wrong stream, or a buffer is used
//! twice. The wrong one earns the report that is kept in `reports/`, the right one none.
//!
//! Event tracking is off in all but the last ones: cudarc would add the missing call.

use std::sync::Arc;
use std::sync::mpsc::channel;

use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};
use cudarc::nccl::result::{group_end, group_start};
use cudarc::nccl::safe::{Comm, ReduceOp};
use lab::Check;
use lab::kernels::Kernels;

use crate::golden::is_kept;
use crate::text;

/// What the programs work with: two streams of GPU 0 and one of GPU 1, none of which waits for the others or for the default
/// stream.
struct Bench {
    one: Arc<CudaStream>,
    two: Arc<CudaStream>,
    far: Arc<CudaStream>,
    kernels: Kernels,
}

impl Bench {
    fn new() -> anyhow::Result<Self> {
        let (near, far) = (CudaContext::new(0)?, CudaContext::new(1)?);
        // SAFETY: the programs order their streams themselves, or are there to see what is said otherwise.
        unsafe {
            near.disable_event_tracking();
            far.disable_event_tracking();
        }
        let kernels = Kernels::load(&near)?;
        let bench =
            Self { one: near.new_stream()?, two: near.new_stream()?, far: far.new_stream()?, kernels };
        near.bind_to_thread()?;
        Ok(bench)
    }

    /// A stream that waits for the default stream, and that one for it.
    fn blocking_stream(&self) -> anyhow::Result<sys::CUstream> {
        self.one.context().bind_to_thread()?;
        Ok(result::stream::create(result::stream::StreamKind::Default)?)
    }

    /// A communicator of GPU 0 and GPU 1, on `two` and `far`.
    fn comms(&self) -> [Comm; 2] {
        let comms = Comm::from_devices(vec![self.two.clone(), self.far.clone()]).expect("communicators");
        let Ok(comms) = comms.try_into() else { panic!("not two communicators") };
        comms
    }

    /// Waits for everything; what any of it says.
    fn end(&self) -> anyhow::Result<()> {
        let ended = [&self.one, &self.two, &self.far].map(|stream| stream.synchronize());
        self.one.context().synchronize()?;
        ended.into_iter().try_for_each(|ended| Ok(ended?))
    }
}

/// A buffer of 1024 floats that were written, and waited for.
fn buffer(stream: &Arc<CudaStream>) -> CudaSlice<f32> {
    let buffer = stream.clone_htod(&vec![1.0; 1024]).expect("a buffer");
    stream.synchronize().expect("it was written");
    buffer
}

fn address(buffer: &CudaSlice<f32>) -> sys::CUdeviceptr {
    buffer.device_ptr(buffer.stream()).0
}

/// Pinned memory for 1024 floats.
fn pinned() -> anyhow::Result<&'static mut [f32]> {
    // SAFETY: the memory is made for as many, is zeroed, and any bits are a float.
    Ok(unsafe { std::slice::from_raw_parts_mut(result::malloc_host(4096, 0)?.cast(), 1024) })
}

fn grouped(calls: impl FnOnce()) {
    group_start().expect("a group");
    calls();
    group_end().expect("the group's calls");
}

type Program = fn(&Bench, bool) -> anyhow::Result<()>;

/// Runs the right program of a pair, and then the wrong one.
fn pair(name: &str, program: Program) -> anyhow::Result<()> {
    let bench = Bench::new()?;
    program(&bench, false).and_then(|()| bench.end())?;
    let Err(error) = program(&bench, true).and_then(|()| bench.end()) else {
        anyhow::bail!("nothing was said of the wrong one");
    };
    match error.downcast::<DriverError>() {
        Ok(error) => is_kept(&format!("race_{name}"), &text(error)),
        Err(other) => is_kept(&format!("race_{name}"), &format!("{other:#}")),
    }
}

/// A list of checks, and the programs.
macro_rules! pairs {
    ($($(#[doc = $doc:literal])* $name:ident |$bench:ident, $wrong:ident| $body:block)*) => {
        pub(crate) fn checks() -> Vec<Check> {
            vec![$(Check::new(
                concat!("races::", stringify!($name)),
                || pair(stringify!($name), $name),
            )),*]
        }
        $($(#[doc = $doc])* fn $name($bench: &Bench, $wrong: bool) -> anyhow::Result<()> $body)*
    };
}

pairs! {
    a_copy_back_that_does_not_wait |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        bench.two.clone_dtoh(&x)?;
        bench.end()
    }

    a_kernel_before_its_data_is_there |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.one.memcpy_htod(&[2.0; 1024], &mut x)?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    the_event_is_recorded_too_early |bench, wrong| {
        let mut x = buffer(&bench.one);
        let early = bench.one.record_event(None)?;
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        let late = bench.one.record_event(None)?;
        bench.two.wait(if wrong { &early } else { &late })?;
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    the_wait_comes_too_late |bench, wrong| {
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.two));
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        let event = bench.one.record_event(None)?;
        if !wrong {
            bench.two.wait(&event)?;
        }
        bench.kernels.axpy(&bench.two, &mut y, &x, 2.0)?;
        bench.two.wait(&event)?;
        bench.end()
    }

    the_wrong_stream_waits |bench, wrong| {
        let mut x = buffer(&bench.one);
        let third = bench.one.context().new_stream()?;
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        let event = bench.one.record_event(None)?;
        if wrong { third.wait(&event)? } else { bench.two.wait(&event)? }
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    the_event_of_another_stream |bench, wrong| {
        let mut x = buffer(&bench.one);
        let third = bench.one.context().new_stream()?;
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        let event = if wrong { third.record_event(None)? } else { bench.one.record_event(None)? };
        bench.two.wait(&event)?;
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    an_event_that_was_never_recorded |bench, wrong| {
        let mut x = buffer(&bench.one);
        let event = bench.one.context().new_event(None)?;
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        if !wrong {
            event.record(&bench.one)?;
        }
        bench.two.wait(&event)?;
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    /// A wait is for the last record before it.
    an_event_that_is_not_recorded_again |bench, wrong| {
        let mut x = buffer(&bench.one);
        let event = bench.one.record_event(None)?;
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        if !wrong {
            event.record(&bench.one)?;
        }
        bench.two.wait(&event)?;
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    /// A wait that was enqueued stays for the record that it saw.
    an_event_recorded_again_after_the_wait |bench, wrong| {
        let mut x = buffer(&bench.one);
        let event = bench.one.record_event(None)?;
        if wrong {
            bench.two.wait(&event)?;
        }
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        event.record(&bench.one)?;
        if !wrong {
            bench.two.wait(&event)?;
        }
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    the_host_waits_for_the_wrong_stream |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        if wrong { bench.two.synchronize()? } else { bench.one.synchronize()? }
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    the_host_does_not_wait_for_the_event |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        let event = bench.one.record_event(None)?;
        if !wrong {
            event.synchronize()?;
        }
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    the_host_does_not_wait_for_the_context |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        if !wrong {
            bench.one.context().synchronize()?;
        }
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    /// A query that says "done" is as good as a wait; one that is asked once may say "not yet".
    the_answer_of_a_query_is_ignored |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        let event = bench.one.record_event(None)?;
        while !event.is_complete() && !wrong {}
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    two_streams_write |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.one.memset_zeros(&mut x)?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        bench.two.memset_zeros(&mut x)?;
        bench.end()
    }

    a_write_before_the_reader_is_done |bench, wrong| {
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.one));
        bench.kernels.axpy(&bench.one, &mut y, &x, 2.0)?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        bench.kernels.fill(&bench.two, &mut x, 0.0)?;
        bench.end()
    }

    one_element_in_common |bench, wrong| {
        let mut x = buffer(&bench.one);
        let end = if wrong { 513 } else { 512 };
        bench.kernels.scale(&bench.one, &mut x.slice_mut(..end), 2.0)?;
        bench.kernels.scale(&bench.two, &mut x.slice_mut(512..), 3.0)?;
        bench.end()
    }

    two_readers_one_of_which_writes |bench, wrong| {
        let (mut x, mut y, mut z) = (buffer(&bench.one), buffer(&bench.one), buffer(&bench.two));
        bench.kernels.axpy(&bench.one, &mut y, &x, 2.0)?;
        if wrong { bench.kernels.axpy(&bench.two, &mut x, &z, 2.0)? } else { bench.kernels.axpy(&bench.two, &mut z, &x, 2.0)? }
        bench.end()
    }

    the_source_of_a_copy_is_written |bench, wrong| {
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.one));
        bench.one.memcpy_dtod(&x, &mut y)?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        bench.kernels.fill(&bench.two, &mut x, 0.0)?;
        bench.end()
    }

    /// Two iterations share a buffer: the second one's data arrives while the first one computes.
    one_buffer_for_two_iterations |bench, wrong| {
        let mut buffers = [buffer(&bench.one), buffer(&bench.one)];
        for iteration in 0..2 {
            let at = if wrong { 0 } else { iteration };
            bench.one.memcpy_htod(&[iteration as f32; 1024], &mut buffers[at])?;
            bench.two.wait(&bench.one.record_event(None)?)?;
            bench.kernels.scale(&bench.two, &mut buffers[at], 2.0)?;
        }
        bench.end()
    }

    /// The legacy default stream waits for streams that are not `NON_BLOCKING`, and only for those.
    the_default_stream_beside_a_non_blocking_one |bench, wrong| {
        let mut x = buffer(&bench.one);
        let default = bench.one.context().default_stream();
        let blocking = bench.blocking_stream()?;
        if wrong {
            bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        } else {
            // SAFETY: the buffer is alive.
            unsafe { result::memset_d8_async(address(&x), 0, 4096, blocking) }?;
        }
        bench.kernels.scale(&default, &mut x, 2.0)?;
        // SAFETY: nothing else uses the stream.
        unsafe { result::stream::destroy(blocking) }?;
        bench.end()
    }

    a_blocking_stream_waits_for_the_default_one |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.kernels.scale(&bench.one.context().default_stream(), &mut x, 2.0)?;
        let blocking = bench.blocking_stream()?;
        let stream = if wrong { bench.one.cu_stream() } else { blocking };
        // SAFETY: the buffer is alive.
        unsafe { result::memset_d8_async(address(&x), 0, 4096, stream) }?;
        bench.end()?;
        // SAFETY: nothing else uses the stream.
        unsafe { result::stream::destroy(blocking) }?;
        bench.end()
    }

    /// A thread's own default stream waits for the legacy one, and not for other threads'.
    the_default_streams_of_two_threads |bench, wrong| {
        let mut x = buffer(&bench.one);
        let context = bench.one.context();
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                let own = context.per_thread_stream();
                own.memset_zeros(&mut x)?;
                own.record_event(None)
            });
            let event = work.join().expect("no panic")?;
            if !wrong {
                context.per_thread_stream().wait(&event)?;
            }
            Ok::<_, DriverError>(())
        })?;
        bench.kernels.scale(&context.per_thread_stream(), &mut x, 2.0)?;
        context.per_thread_stream().synchronize()?;
        bench.end()
    }

    /// `cuMemcpyDtoD` returns before it is done.
    a_blocking_copy_that_does_not_block |bench, wrong| {
        let (x, mut y) = (buffer(&bench.one), buffer(&bench.one));
        // SAFETY: both buffers are alive.
        unsafe { result::memcpy_dtod_sync(address(&y), address(&x), 4096) }?;
        if !wrong {
            bench.one.context().default_stream().synchronize()?;
        }
        bench.kernels.scale(&bench.one, &mut y, 2.0)?;
        bench.end()
    }

    /// So does `cuMemsetD8`.
    a_blocking_set_that_does_not_block |bench, wrong| {
        let mut x = buffer(&bench.one);
        // SAFETY: the buffer is alive.
        unsafe { result::memset_d8_sync(address(&x), 0, 4096) }?;
        if !wrong {
            bench.one.context().default_stream().synchronize()?;
        }
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        bench.end()
    }

    a_buffer_is_freed_while_it_is_used |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        if !wrong {
            bench.one.wait(&bench.two.record_event(None)?)?;
        }
        // In the stream that it was made in.
        drop(x);
        bench.end()
    }

    a_buffer_is_used_before_it_is_allocated |bench, wrong| {
        // SAFETY: it is written before it is read.
        let mut x = unsafe { bench.one.alloc::<f32>(1024) }?;
        bench.one.memset_zeros(&mut x)?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        bench.kernels.fill(&bench.two, &mut x, 1.0)?;
        bench.two.synchronize()?;
        bench.end()
    }

    /// cudarc's copy waits for the slice's own stream, even where tracking is off, and not for another that wrote it.
    the_other_gpu_does_not_wait |bench, wrong| {
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.far));
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        if !wrong {
            bench.far.wait(&bench.two.record_event(None)?)?;
        }
        bench.far.memcpy_dtod(&x, &mut y)?;
        bench.end()
    }

    a_copy_to_a_gpu_that_is_reading |bench, wrong| {
        let (x, mut y) = (buffer(&bench.one), buffer(&bench.far));
        bench.far.clone_dtoh(&y)?;
        bench.one.memcpy_dtod(&x, &mut y)?;
        if !wrong {
            bench.far.wait(&bench.one.record_event(None)?)?;
        }
        bench.far.clone_dtoh(&y)?;
        bench.end()
    }

    the_gradient_is_not_there_yet |bench, wrong| {
        let [near, far] = bench.comms();
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.far));
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        grouped(|| {
            near.all_reduce_in_place(&mut x, &ReduceOp::Sum).unwrap();
            far.all_reduce_in_place(&mut y, &ReduceOp::Sum).unwrap();
        });
        bench.end()
    }

    the_step_does_not_wait_for_the_average |bench, wrong| {
        let [near, far] = bench.comms();
        let (mut x, mut y, mut model) = (buffer(&bench.one), buffer(&bench.far), buffer(&bench.one));
        grouped(|| {
            near.all_reduce_in_place(&mut x, &ReduceOp::Avg).unwrap();
            far.all_reduce_in_place(&mut y, &ReduceOp::Avg).unwrap();
        });
        if !wrong {
            bench.one.wait(&bench.two.record_event(None)?)?;
        }
        bench.kernels.sgd_step(&bench.one, &mut model, &x, 0.1)?;
        bench.end()
    }

    /// Recorded inside the group, the event stands before the collective.
    the_event_is_recorded_inside_the_group |bench, wrong| {
        let [near, far] = bench.comms();
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.far));
        let mut event = None;
        grouped(|| {
            near.all_reduce_in_place(&mut x, &ReduceOp::Sum).unwrap();
            event = wrong.then(|| bench.two.record_event(None).unwrap());
            far.all_reduce_in_place(&mut y, &ReduceOp::Sum).unwrap();
        });
        let event = event.map_or_else(|| bench.two.record_event(None), Ok)?;
        bench.one.wait(&event)?;
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        bench.end()
    }

    the_root_writes_what_it_broadcasts |bench, wrong| {
        let [near, far] = bench.comms();
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.far));
        grouped(|| {
            near.broadcast_in_place(&mut x, 0).unwrap();
            far.broadcast_in_place(&mut y, 0).unwrap();
        });
        if !wrong {
            bench.one.wait(&bench.two.record_event(None)?)?;
        }
        bench.kernels.fill(&bench.one, &mut x, 0.0)?;
        bench.end()
    }

    /// An all-gather writes the parts of all ranks, the own one too.
    a_part_of_what_is_gathered |bench, wrong| {
        let [near, far] = bench.comms();
        let (x, y) = (buffer(&bench.one), buffer(&bench.far));
        let (mut all, mut also_all) = (bench.one.alloc_zeros::<f32>(2048)?, bench.far.alloc_zeros::<f32>(2048)?);
        bench.end()?;
        grouped(|| {
            near.all_gather(&x, &mut all).unwrap();
            far.all_gather(&y, &mut also_all).unwrap();
        });
        if !wrong {
            bench.one.wait(&bench.two.record_event(None)?)?;
        }
        bench.kernels.fill(&bench.one, &mut all.slice_mut(1024..), 0.0)?;
        bench.end()
    }

    a_scattered_sum_is_read_early |bench, wrong| {
        let [near, far] = bench.comms();
        let (x, y) = (buffer(&bench.one), buffer(&bench.far));
        let (mut part, mut other_part) = (bench.one.alloc_zeros::<f32>(512)?, bench.far.alloc_zeros::<f32>(512)?);
        bench.end()?;
        grouped(|| {
            near.reduce_scatter(&x, &mut part, &ReduceOp::Sum).unwrap();
            far.reduce_scatter(&y, &mut other_part, &ReduceOp::Sum).unwrap();
        });
        if !wrong {
            bench.one.wait(&bench.two.record_event(None)?)?;
        }
        bench.one.clone_dtoh(&part)?;
        bench.end()
    }

    what_is_sent_is_written |bench, wrong| {
        let [near, far] = bench.comms();
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.far));
        grouped(|| {
            near.send(&x, 1).unwrap();
            far.recv(&mut y, 0).unwrap();
        });
        if !wrong {
            bench.one.wait(&bench.two.record_event(None)?)?;
        }
        bench.kernels.fill(&bench.one, &mut x, 0.0)?;
        bench.end()
    }

    what_is_received_is_read_early |bench, wrong| {
        let [near, far] = bench.comms();
        let (mut x, y) = (buffer(&bench.one), buffer(&bench.far));
        grouped(|| {
            near.recv(&mut x, 1).unwrap();
            far.send(&y, 0).unwrap();
        });
        if !wrong {
            bench.one.wait(&bench.two.record_event(None)?)?;
        }
        bench.one.clone_dtoh(&x)?;
        bench.end()
    }

    /// Each communicator has its stream, and nothing orders the two.
    two_communicators_on_one_buffer |bench, wrong| {
        let [near, far] = bench.comms();
        let second = Comm::from_devices(vec![bench.one.clone(), bench.far.clone()]).unwrap();
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.far));
        grouped(|| {
            near.all_reduce_in_place(&mut x, &ReduceOp::Sum).unwrap();
            far.all_reduce_in_place(&mut y, &ReduceOp::Sum).unwrap();
        });
        if !wrong {
            bench.one.wait(&bench.two.record_event(None)?)?;
        }
        grouped(|| {
            second[0].all_reduce_in_place(&mut x, &ReduceOp::Max).unwrap();
            second[1].all_reduce_in_place(&mut y, &ReduceOp::Max).unwrap();
        });
        bench.end()
    }

    /// After the collective the ranks' streams go their own ways again.
    a_rank_s_stream_is_no_other_rank_s |bench, wrong| {
        let [near, far] = bench.comms();
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.far));
        let mut shared = buffer(&bench.far.context().new_stream()?);
        grouped(|| {
            near.all_reduce_in_place(&mut x, &ReduceOp::Sum).unwrap();
            far.all_reduce_in_place(&mut y, &ReduceOp::Sum).unwrap();
        });
        bench.far.memset_zeros(&mut shared)?;
        if !wrong {
            bench.two.wait(&bench.far.record_event(None)?)?;
        }
        bench.two.memcpy_dtod(&shared, &mut x)?;
        bench.end()
    }

    branches_of_a_graph |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.one.begin_capture(THREAD_LOCAL)?;
        let fork = bench.one.record_event(None)?;
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        bench.two.wait(&if wrong { fork } else { bench.one.record_event(None)? })?;
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.one.wait(&bench.two.record_event(None)?)?;
        let graph = bench.one.end_capture(CUgraphInstantiate_flags(0))?.expect("a graph");
        graph.launch()?;
        bench.end()
    }

    a_kernel_beside_a_graph |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.one.begin_capture(THREAD_LOCAL)?;
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        let graph = bench.one.end_capture(CUgraphInstantiate_flags(0))?.expect("a graph");
        graph.launch()?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        bench.end()
    }

    managed_memory_is_shared_by_streams_too |bench, wrong| {
        // SAFETY: the memory is freed at the end, and used only by these streams.
        let address = unsafe {
            result::malloc_managed(4096, sys::CUmemAttach_flags_enum::CU_MEM_ATTACH_GLOBAL)
        }?;
        // SAFETY: as above.
        unsafe { result::memset_d8_async(address, 0, 4096, bench.one.cu_stream()) }?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        // SAFETY: as above.
        unsafe { result::memset_d8_async(address, 1, 4096, bench.two.cu_stream()) }?;
        bench.end()?;
        // SAFETY: as above.
        unsafe { result::memory_free(address) }?;
        bench.end()
    }

    pinned_memory_is_filled_in_stream_order |bench, wrong| {
        let (mut x, mut y) = (buffer(&bench.one), buffer(&bench.one));
        // SAFETY: it is written before it is read.
        let mut pinned = unsafe { bench.one.context().alloc_pinned::<f32>(1024) }?;
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        bench.two.memcpy_dtoh(&x, &mut pinned)?;
        bench.two.memcpy_htod(&pinned, &mut y)?;
        bench.end()
    }

    /// A page that a copy fills is closed to the host until a thread has waited for the copy.
    the_host_reads_before_the_copy_is_done |bench, wrong| {
        let x = buffer(&bench.one);
        let pinned = pinned()?;
        // SAFETY: `x` and the memory live until the copy is done.
        unsafe { result::memcpy_dtoh_async(pinned, address(&x), bench.one.cu_stream()) }?;
        if !wrong {
            bench.one.synchronize()?;
        }
        assert_eq!(pinned.iter().sum::<f32>(), 1024.0);
        bench.end()?;
        // SAFETY: nothing uses it any more.
        Ok(unsafe { result::free_host(pinned.as_mut_ptr().cast()) }?)
    }

    /// One that a copy reads may be read, and not written.
    the_host_writes_what_a_copy_reads |bench, wrong| {
        let x = buffer(&bench.one);
        let pinned = pinned()?;
        pinned.fill(1.0);
        // SAFETY: `x` and the memory live until the copy is done.
        unsafe { result::memcpy_htod_async(address(&x), pinned, bench.one.cu_stream()) }?;
        assert_eq!(pinned.iter().sum::<f32>(), 1024.0);
        if !wrong {
            bench.one.synchronize()?;
        }
        pinned.fill(2.0);
        bench.end()?;
        // SAFETY: nothing uses it any more.
        Ok(unsafe { result::free_host(pinned.as_mut_ptr().cast()) }?)
    }

    /// The threads share nothing that the driver could see but what was waited for.
    a_buffer_is_handed_over_too_early |bench, wrong| {
        let mut x = buffer(&bench.one);
        let (send, receive) = channel::<CudaSlice<f32>>();
        let other = bench.two.clone();
        let thread = std::thread::spawn(move || -> Result<(), DriverError> {
            let mut x = receive.recv().expect("a buffer");
            other.memset_zeros(&mut x)?;
            other.synchronize()
        });
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        if !wrong {
            bench.one.synchronize()?;
        }
        send.send(x)?;
        thread.join().expect("no panic")?;
        bench.end()
    }

    /// cudarc's tracking makes programs wait; where it is off, nothing does.
    event_tracking_is_off |_bench, wrong| {
        let context = CudaContext::new(2)?;
        let (one, two) = (context.new_stream()?, context.new_stream()?);
        if wrong {
            // SAFETY: that is what is tried.
            unsafe { context.disable_event_tracking() };
        }
        let mut x = one.alloc_zeros::<u8>(4096)?;
        one.synchronize()?;
        one.memset_zeros(&mut x)?;
        two.memset_zeros(&mut x)?;
        Ok(two.synchronize()?)
    }

    /// cudarc keeps one event for the reads of a slice: of two streams that read it, a later write waits for the second.
    event_tracking_forgets_a_read_before_the_last |_bench, wrong| {
        let context = CudaContext::new(2)?;
        let (one, two) = (context.new_stream()?, context.new_stream()?);
        let mut x = one.clone_htod(&[1_u8; 4096])?;
        let (mut first, mut second) = (one.alloc_zeros::<u8>(4096)?, two.alloc_zeros::<u8>(4096)?);
        one.memcpy_dtod(&x, &mut first)?;
        two.memcpy_dtod(&x, &mut second)?;
        if !wrong {
            two.join(&one)?;
        }
        two.memset_zeros(&mut x)?;
        Ok(two.synchronize()?)
    }

    /// In a group, cudarc records its event before anything is launched.
    event_tracking_sees_a_group_s_calls_too_early |_bench, wrong| {
        let streams: Vec<_> = [2, 3].into_iter().map(|gpu| CudaContext::new(gpu)?.new_stream()).collect::<Result<_, _>>()?;
        let comms = Comm::from_devices(streams.clone()).unwrap();
        let mut buffers: Vec<_> = streams.iter().map(|stream| stream.clone_htod(&[1.0_f32; 64])).collect::<Result<_, _>>()?;
        let copies = streams[0].context().new_stream()?;
        grouped(|| {
            for (comm, buffer) in comms.iter().zip(&mut buffers) {
                comm.all_reduce_in_place(buffer, &ReduceOp::Sum).unwrap();
            }
        });
        if !wrong {
            copies.join(&streams[0])?;
        }
        copies.clone_dtoh(&buffers[0])?;
        copies.synchronize()?;
        Ok(streams.iter().try_for_each(|stream| stream.synchronize())?)
    }
}
