//! Collectives and messages that race with other streams.

use super::*;

pairs! {
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

    /// An event that is recorded inside the group precedes the collective.
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

    /// An all-gather writes all ranks' parts, including the rank's own.
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

    /// Each communicator has its own stream, and the two streams are unordered.
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

    /// After the collective, the ranks' streams are independent again.
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
