//! Checks for `grouping/group`.

use anyhow::{Context, bail};
use cudarc::nccl::{Comm, group_start};
use init::init_all::communicators;
use lab::{
    Budget, Check, Expected, Guarded, NcclLog, Readable, each_call_fails, ensure, irregular,
    returns_at_once_on_each, without_panic,
};

use crate::exercise::open_group;
use crate::grouping::group::{average_all, in_group};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("group::every_gpu_gets_the_average", every_gpu_gets_the_average)
            .calls(&["average_all"])
            .min_ranks(2),
        Check::new("group::one_gpu_is_a_world_too", || check_average(1)).calls(&["average_all"]),
        Check::new("group::it_returns_before_the_average_is_done", it_returns_before_the_average_is_done)
            .calls(&["average_all"])
            .min_ranks(2),
        Check::new("group::the_result_of_the_calls_is_returned", the_result_of_the_calls_is_returned)
            .calls(&["in_group"]),
        Check::new("group::an_error_at_the_group_s_end_is_returned", an_error_at_the_group_s_end_is_returned)
            .calls(&["in_group"]),
        Check::new("group::the_error_of_the_calls_goes_first", the_error_of_the_calls_goes_first)
            .calls(&["in_group"]),
        Check::new("group::after_an_error_no_group_is_open", after_an_error_no_group_is_open)
            .calls(&["in_group"])
            .min_ranks(2),
        Check::new("group::an_error_ends_no_other_group", an_error_ends_no_other_group).calls(&["in_group"]),
        Check::new("group::a_group_inside_a_group_is_a_part_of_it", a_group_inside_a_group_is_a_part_of_it)
            .calls(&["in_group", "average_all"])
            .min_ranks(2),
        Check::new("group::a_missing_or_extra_buffer_is_an_error", a_buffer_too_few_or_too_many)
            .calls(&["average_all"])
            .min_ranks(2),
        Check::new("group::no_buffers_are_no_error", no_buffers_are_no_error).calls(&["average_all"]),
        Check::new("group::lengths_that_differ_are_an_error", lengths_that_differ_are_an_error)
            .calls(&["average_all"])
            .min_ranks(2),
        Check::new("group::an_average_is_one_all_reduce", an_average_is_one_all_reduce)
            .calls(&["average_all"])
            .min_ranks(3),
        Check::new("group::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// One element, fewer elements than ranks, and odd lengths larger than a warp and a block.
const LENGTHS: [usize; 4] = [1, 3, 37, 1031];

/// Returns the communicators for a world that this thread drives. With two ranks, no rank has the same number as its
/// GPU.
fn comms(world_size: usize) -> anyhow::Result<Vec<Comm>> {
    let mut streams = lab::streams(world_size)?;
    streams.reverse();
    communicators(&streams)
}

fn world_sizes() -> impl Iterator<Item = usize> {
    lab::world_sizes().into_iter().filter(|&size| size >= 2)
}

/// Returns one buffer per communicator, each with different irregular values.
fn buffers(comms: &[Comm], len: usize) -> anyhow::Result<Vec<Guarded<f32>>> {
    comms.iter().map(|comm| Guarded::new(&comm.stream(), &irregular::integers(comm.rank(), len))).collect()
}

fn average(comms: &[Comm], buffers: &mut [Guarded<f32>]) -> anyhow::Result<()> {
    let mut views: Vec<_> = buffers.iter_mut().map(Guarded::view_mut).collect();
    average_all(comms, &mut views)
}

fn check_average(world_size: usize) -> anyhow::Result<()> {
    let comms = comms(world_size)?;
    for len in LENGTHS {
        let mut buffers = buffers(&comms, len)?;
        average(&comms, &mut buffers)?;
        compare("the buffer", &buffers)?;
    }
    Ok(())
}

/// Compares the buffers with the average.
fn compare(name: &str, buffers: &[Guarded<f32>]) -> anyhow::Result<()> {
    let len = buffers[0].view().len();
    let world_size = buffers.len();
    let inputs: Vec<_> = (0..world_size).map(|rank| irregular::integers(rank, len)).collect();
    let total: Vec<f32> = (0..len).map(|index| inputs.iter().map(|input| input[index]).sum()).collect();
    let expected: Vec<f32> = total.iter().map(|value| value / world_size as f32).collect();
    // As in module 02: 1/n and each of the n products round by 2⁻²⁴, relative to at most 1000/n. Then n − 1 sums of at
    // most 1000 round, and so does the expected value.
    let bound = 1000.0 * (2.0 + world_size as f64) * f64::powi(2.0, -24);
    for (rank, buffer) in buffers.iter().enumerate() {
        Expected::new(rank, name, &expected)
            .if_instead(&inputs[rank], format!("these are rank {rank}'s own values: nothing was averaged"))
            .if_instead(&total, "this is the sum over all ranks, not divided by their number")
            .within(bound, &buffer.read()?)?;
    }
    Ok(())
}

fn every_gpu_gets_the_average() -> anyhow::Result<()> {
    world_sizes().try_for_each(check_average)
}

fn it_returns_before_the_average_is_done() -> anyhow::Result<()> {
    for world_size in world_sizes() {
        let comms = comms(world_size)?;
        let mut buffers = buffers(&comms, 37)?;
        let streams: Vec<_> = comms.iter().map(Comm::stream).collect();
        returns_at_once_on_each("average_all", &streams, || average(&comms, &mut buffers))?;
    }
    Ok(())
}

fn the_result_of_the_calls_is_returned() -> anyhow::Result<()> {
    let value = in_group(|| Ok(37))?;
    ensure!(value == 37, "in_group returned {value}, expected 37, the value that its calls returned");
    let result = without_panic("in_group when its calls return an error", || {
        in_group(|| -> anyhow::Result<()> { bail!("no batch is left") })
    })?;
    let Err(error) = result else {
        bail!("the calls returned an error, but in_group returned Ok; expected that error")
    };
    let text = format!("{error:#}");
    ensure!(
        text.contains("no batch is left"),
        "in_group must return the error from its calls, `no batch is left`; got: {text}"
    );
    Ok(())
}

/// If NCCL rejects a call, the end of its group fails, too, even if the call's own error is ignored.
fn an_error_at_the_group_s_end_is_returned() -> anyhow::Result<()> {
    let comms = comms(1)?;
    let buffer = Guarded::new(&comms[0].stream(), &irregular::integers(0, 37))?;
    let result = without_panic("in_group when NCCL rejects a call", || {
        in_group(|| {
            let refused = comms[0].send(&buffer.view(), 1);
            ensure!(
                refused.is_err(),
                "NCCL accepted a send to rank 1 in a world of one rank; expected an error"
            );
            Ok(())
        })
    })?;
    ensure!(
        result.is_err(),
        "NCCL rejected a call in the group, but in_group returned Ok, as its calls did; expected the error from the \
         end of the group"
    );
    Ok(())
}

fn the_error_of_the_calls_goes_first() -> anyhow::Result<()> {
    let comms = comms(1)?;
    let buffer = Guarded::new(&comms[0].stream(), &irregular::integers(0, 37))?;
    let result = without_panic("in_group when both its calls and the end of the group fail", || {
        in_group(|| -> anyhow::Result<()> {
            // NCCL rejects a send to rank 1 in a world of one rank, so the end of the group fails, too.
            drop(comms[0].send(&buffer.view(), 1));
            bail!("no batch is left")
        })
    })?;
    let Err(error) = result else {
        bail!(
            "both the calls and the end of the group failed, but in_group returned Ok; expected the calls' error"
        )
    };
    let text = format!("{error:#}");
    ensure!(
        text.contains("no batch is left"),
        "both the calls and the end of the group failed: in_group must return the error from its calls, `no batch is \
         left`, because it is the cause; got: {text}"
    );
    Ok(())
}

fn after_an_error_no_group_is_open() -> anyhow::Result<()> {
    for world_size in world_sizes() {
        let comms = comms(world_size)?;
        let result: anyhow::Result<()> = without_panic("in_group when its calls return an error", || {
            in_group(|| bail!("no batch is left"))
        })?;
        ensure!(result.is_err(), "the calls returned an error, but in_group returned Ok");
        let mut buffers = buffers(&comms, 37)?;
        let averaged = average(&comms, &mut buffers).and_then(|()| compare("the buffer", &buffers));
        averaged.with_context(|| {
            open_group::after("an in_group that returned an error from its calls", "an average failed")
        })?;
    }
    Ok(())
}

fn an_error_ends_no_other_group() -> anyhow::Result<()> {
    group_start().readable()?;
    let result: anyhow::Result<()> =
        without_panic("in_group when its calls return an error", || in_group(|| bail!("no batch is left")))?;
    let outer_is_open = open_group::was_open();
    ensure!(result.is_err(), "the calls returned an error, but in_group returned Ok");
    ensure!(
        outer_is_open,
        "in_group was called inside another group, and its calls returned an error: it also ended the outer group, but must \
         end only the group that it started"
    );
    Ok(())
}

fn a_group_inside_a_group_is_a_part_of_it() -> anyhow::Result<()> {
    for world_size in world_sizes() {
        let comms = comms(world_size)?;
        let (mut one, mut other) = (buffers(&comms, 37)?, buffers(&comms, 1031)?);
        in_group(|| {
            average(&comms, &mut one)?;
            average(&comms, &mut other)
        })?;
        compare("the first of two buffers in one group", &one)
            .and_then(|()| compare("the second of two buffers in one group", &other))
            .with_context(|| {
                open_group::after(
                    "an in_group with two averages, each of which is a group itself",
                    "a buffer is wrong",
                )
            })?;
    }
    Ok(())
}

fn a_buffer_too_few_or_too_many() -> anyhow::Result<()> {
    // SAFETY: the check has not started any other threads yet.
    let log = unsafe { NcclLog::open() };
    for world_size in world_sizes() {
        let comms = comms(world_size)?;
        for count in [0, world_size - 1, world_size + 1] {
            let mut some = buffers(&comms, 37)?;
            if count > world_size {
                some.push(Guarded::new(&comms[0].stream(), &irregular::integers(world_size, 37))?);
            }
            refused(&log, &comms, &mut some[..count], [world_size, count], "communicators and buffers")?;
        }
    }
    Ok(())
}

fn no_buffers_are_no_error() -> anyhow::Result<()> {
    average(&[], &mut [])
        .context("average_all without communicators and buffers returned an error; it has nothing to do")
}

fn lengths_that_differ_are_an_error() -> anyhow::Result<()> {
    // SAFETY: the check has not started any other threads yet.
    let log = unsafe { NcclLog::open() };
    for world_size in world_sizes() {
        let comms = comms(world_size)?;
        for other in 0..world_size {
            let mut some = buffers(&comms, 37)?;
            some[other] = Guarded::new(&comms[other].stream(), &irregular::integers(other, 41))?;
            refused(&log, &comms, &mut some, [37, 41], "elements in two buffers")?;
        }
    }
    Ok(())
}

/// Checks that no data is sent, and that the error contains both numbers. The log contains only calls made by rejected
/// averages.
fn refused(
    log: &NcclLog,
    comms: &[Comm],
    some: &mut [Guarded<f32>],
    numbers: [usize; 2],
    of: &str,
) -> anyhow::Result<()> {
    let [one, other] = numbers.map(|number| number.to_string());
    let call = format!("average_all with {one} and {other} {of}");
    let result = without_panic(&call, || average(comms, some))?;
    let Err(error) = result else {
        bail!("{one} and {other} {of}: average_all returned Ok; expected an error")
    };
    let text = format!("{error:#}");
    ensure!(
        text.contains(&one) && text.contains(&other),
        "{one} and {other} {of}: the error from average_all must contain both numbers; got: {text}"
    );
    let called = log.calls("AllReduce")?.len();
    ensure!(
        called == 0,
        "{one} and {other} {of}: average_all called NCCL {called} times before it failed, expected 0: compare before \
         the first call"
    );
    for (rank, buffer) in some.iter().enumerate() {
        let values = irregular::integers(rank, buffer.view().len());
        Expected::new(rank, "the buffer after a rejected average", &values).exactly(&buffer.read()?)?;
    }
    let again = || Ok(average(comms, some).is_err());
    Budget::of("average_all").case("with wrong lengths or numbers").groups(0).spend(again)?;
    Ok(())
}

fn an_average_is_one_all_reduce() -> anyhow::Result<()> {
    const LEN: usize = 37;
    for world_size in [1, 3] {
        let comms = comms(world_size)?;
        let mut buffers = buffers(&comms, LEN)?;
        let streams: Vec<_> = comms.iter().map(Comm::stream).collect();
        let streams: Vec<_> = streams.iter().map(|stream| (stream, "the communicators' streams")).collect();
        let budget = Budget::of("average_all").collectives(&vec![("AllReduce", LEN); world_size]);
        let budget = budget.messages(0).kernels(0).copies(0).fills(0).allocations(0).new_streams(0);
        let budget = budget.host_waits(0).polls(0).communicators(0).streams(&streams);
        budget.spend(|| average(&comms, &mut buffers))?;
        compare("the buffer", &buffers)?;
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let prepare = || {
        let comms = comms(1)?;
        let buffers = buffers(&comms, 37)?;
        anyhow::Ok((comms, buffers))
    };
    each_call_fails("in_group", || {
        let (comms, mut buffers) = prepare()?;
        Ok(move || {
            in_group(|| collectives::all_reduce::average_in_place(&comms[0], &mut buffers[0].view_mut()))
        })
    })?;
    each_call_fails("average_all", || {
        let (comms, mut buffers) = prepare()?;
        Ok(move || average(&comms, &mut buffers))
    })
}
