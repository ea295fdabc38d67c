//! Streams, events, and waits on the host.

use super::*;

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

    /// A wait refers to the last record before it.
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

    /// An enqueued wait still refers to the record that it saw.
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

    /// A query that reports completion is equivalent to a wait, but a single query may report that the work is not
    /// done.
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

    /// Two iterations share a buffer: the data of the second arrives while the first one computes.
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

    /// The legacy default stream waits only for streams that are not `NON_BLOCKING`.
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

    /// A thread's own default stream waits for the legacy default stream, but not for the default streams of other
    /// threads.
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

    /// `cuMemcpyDtoD` returns before the copy is done.
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

    /// `cuMemsetD8` also returns before it is done.
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
}
