//! Other GPUs, graphs, managed and pinned memory, and memory that is freed or passed to another thread.

use super::*;

pairs! {
    a_buffer_is_freed_while_it_is_used |bench, wrong| {
        let mut x = buffer(&bench.one);
        bench.kernels.scale(&bench.two, &mut x, 2.0)?;
        if !wrong {
            bench.one.wait(&bench.two.record_event(None)?)?;
        }
        // This frees the buffer on the stream that allocated it.
        drop(x);
        bench.end()
    }

    a_buffer_is_used_before_it_is_allocated |bench, wrong| {
        // SAFETY: the buffer is written before it is read.
        let mut x = unsafe { bench.one.alloc::<f32>(1024) }?;
        bench.one.memset_zeros(&mut x)?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        bench.kernels.fill(&bench.two, &mut x, 1.0)?;
        bench.two.synchronize()?;
        bench.end()
    }

    /// Even without tracking, cudarc's copy waits for the slice's own stream, but not for another stream that wrote it.
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
        // SAFETY: the memory is written before it is read.
        let mut pinned = unsafe { bench.one.context().alloc_pinned::<f32>(1024) }?;
        bench.kernels.scale(&bench.one, &mut x, 2.0)?;
        if !wrong {
            bench.two.wait(&bench.one.record_event(None)?)?;
        }
        bench.two.memcpy_dtoh(&x, &mut pinned)?;
        bench.two.memcpy_htod(&pinned, &mut y)?;
        bench.end()
    }

    /// The host can't access a page that a copy fills until a thread has waited for the copy.
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
        // SAFETY: nothing uses the memory anymore.
        Ok(unsafe { result::free_host(pinned.as_mut_ptr().cast()) }?)
    }

    /// The host may read a page that a copy reads, but not write it.
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
        // SAFETY: nothing uses the memory anymore.
        Ok(unsafe { result::free_host(pinned.as_mut_ptr().cast()) }?)
    }

    /// Apart from waits, the driver can't see anything that orders the two threads.
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

    /// cudarc's tracking makes programs wait; without tracking, nothing makes them wait.
    event_tracking_is_off |_bench, wrong| {
        let context = CudaContext::new(2)?;
        let (one, two) = (context.new_stream()?, context.new_stream()?);
        if wrong {
            // SAFETY: the check tests exactly this use.
            unsafe { context.disable_event_tracking() };
        }
        let mut x = one.alloc_zeros::<u8>(4096)?;
        one.synchronize()?;
        one.memset_zeros(&mut x)?;
        two.memset_zeros(&mut x)?;
        Ok(two.synchronize()?)
    }

    /// cudarc keeps one event for the reads of a slice: if two streams read it, a later write waits only for the second
    /// read.
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
}
