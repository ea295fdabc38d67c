//! Tests budgets and failing calls with functions that use too much or lose an error.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use cudarc::driver::{CudaContext, CudaStream, DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::result::{group_end, group_start};
use cudarc::nccl::{Comm, Id, NcclType, ReduceOp};
use half::{bf16, f16};
use lab::{Budget, Check, OneSidedComm, Readable, each_call_fails, with_bytes_sent, world_of_one};

fn main() -> ExitCode {
    lab::check::run(vec![
        Check::new("budget::calls_within_the_budget_pass", calls_within_the_budget_pass),
        Check::new("budget::each_limit_is_named_with_its_lines", each_limit_is_named_with_its_lines),
        Check::new("budget::collectives_are_compared_by_kind_and_length", collectives_are_compared),
        Check::new("budget::bytes_of_collectives_depend_on_the_type", bytes_of_collectives),
        Check::new("budget::bytes_of_sends_count_and_of_receives_do_not", bytes_of_messages),
        Check::new("budget::puts_count_and_signals_do_not", puts_count),
        Check::new("score::bytes_sent_are_those_of_a_ring", bytes_sent).min_ranks(2),
        Check::new("budget::other_streams_are_named", other_streams_are_named),
        Check::new("budget::lines_are_in_the_order_of_the_file", lines_are_in_the_order_of_the_file),
        Check::new("budget::nested_groups_are_one", nested_groups_are_one),
        Check::new("budget::a_missing_wait_is_named", a_missing_wait_is_named),
        Check::new("budget::threads_are_counted_apart", threads_are_counted_apart),
        Check::new("faults::an_error_that_is_returned_passes", an_error_that_is_returned_passes),
        Check::new("faults::a_lost_error_is_named_with_its_call", a_lost_error_is_named_with_its_call),
        Check::new("faults::a_panic_is_named", a_panic_is_named),
        Check::new("faults::an_error_without_its_cause_is_named", an_error_without_its_cause_is_named),
        Check::new("faults::an_open_group_is_named", an_open_group_is_named),
        Check::new("faults::a_destructor_need_not_report", a_destructor_need_not_report),
        Check::new("faults::a_function_without_calls_passes", a_function_without_calls_passes),
    ])
}

fn stream() -> anyhow::Result<Arc<CudaStream>> {
    Ok(lab::streams(1)?.remove(0))
}

fn puts_count() -> anyhow::Result<()> {
    let comm = OneSidedComm::from_rank(stream()?, 0, 1, Id::new().readable()?)?;
    let window = comm.window(4)?;
    let call = || {
        comm.put(&window, 0..2, 0, 2)?;
        comm.signal(0)?;
        comm.wait(&[0, 0])
    };
    let budget = Budget::of("call").messages(0).any_collectives(0).streams(&[(&comm.stream(), "its stream")]);
    budget.clone().puts(1).spend(call)?;
    refusal(budget.clone().puts(0).spend(call), &["`call` makes 1 put; none is needed"])?;
    let other = budget.streams(&[(&stream()?, "the other stream")]);
    refusal(other.spend(call), &["`call` enqueues work on another stream; expected only the other stream"])?;
    Ok(comm.stream().synchronize()?)
}

/// Checks that a result is an error whose text contains all of `words`.
fn refusal<T>(result: anyhow::Result<T>, words: &[&str]) -> anyhow::Result<()> {
    let error = result.err().ok_or_else(|| anyhow!("it passes"))?.to_string();
    for words in words {
        ensure!(error.contains(words), "{words:?} is not in\n{error}");
    }
    Ok(())
}

fn copy(stream: &Arc<CudaStream>, values: &[f32]) -> anyhow::Result<Vec<f32>> {
    let buffer = stream.clone_htod(values)?;
    Ok(stream.clone_dtoh(&buffer)?)
}

fn calls_within_the_budget_pass() -> anyhow::Result<()> {
    let stream = stream()?;
    let budget =
        Budget::of("copy").collectives(&[]).kernels(0).copies(2).bytes_to_device(12).bytes_to_host(12);
    let budget =
        budget.allocations(1).host_waits(0).polls(0).communicators(0).streams(&[(&stream, "the stream")]);
    let copied = budget.spend(|| copy(&stream, &[1.0, 2.0, 3.0]))?;
    ensure!(copied == [1.0, 2.0, 3.0], "the result is not passed on");
    let failed = budget.spend(|| Err::<(), _>(anyhow!("the disk is full")));
    refusal(failed, &["the disk is full"])
}

fn each_limit_is_named_with_its_lines() -> anyhow::Result<()> {
    let stream = stream()?;
    let spend = |budget: Budget| budget.spend(|| copy(&stream, &[1.0; 2000]));
    let of = || Budget::of("copy");
    refusal(
        spend(of().bytes_to_device(0)),
        &["`copy` copies 8,000 bytes from the host to a GPU; none is needed", "cost.rs:", "clone_htod"],
    )?;
    refusal(
        spend(of().bytes_to_host(1)),
        &["copies 8,000 bytes from a GPU to the host; one is enough", "clone_dtoh"],
    )?;
    refusal(spend(of().allocations(0)), &["`copy` allocates 1 buffer; none is needed"])?;
    let waited = of().host_waits(0).spend(|| Ok(stream.synchronize()?));
    refusal(waited, &["`copy` makes the host wait 1 time; none is needed", "stream.synchronize()"])?;
    refusal(spend(of().copies(1)), &["`copy` makes 2 copies; one is enough"])?;
    let zeros = Budget::of("zeros").fills(0).spend(|| Ok(stream.alloc_zeros::<f32>(3)?));
    refusal(zeros, &["`zeros` fills 1 buffer; none is needed"])?;
    let opened = Budget::of("open").contexts(0).spend(|| Ok(CudaContext::new(0)?));
    refusal(opened, &["`open` opens 1 context; none is needed", "CudaContext::new(0)"])
}

fn bytes_sent() -> anyhow::Result<()> {
    let (id, streams) = (Id::new().readable()?, lab::streams(2)?);
    lab::each_rank(2, |rank| {
        let stream = &streams[rank];
        stream.context().bind_to_thread()?;
        let comm = Comm::from_rank(stream.clone(), rank, 2, id).readable()?;
        let (mut whole, part) = (stream.alloc_zeros::<f32>(10)?, stream.alloc_zeros::<f32>(5)?);
        // All-reduce sends a half of 20 bytes twice, all-gather sends one half, and rank 0 sends a message of 20 bytes.
        let ((), sent) =
            with_bytes_sent(|| comm.all_reduce_in_place(&mut whole, &ReduceOp::Sum).readable().map(drop))?;
        let ((), gathered) = with_bytes_sent(|| comm.all_gather(&part, &mut whole).readable().map(drop))?;
        let ((), message) = with_bytes_sent(|| match rank {
            0 => comm.send(&part, 1).readable(),
            _ => comm.recv(&mut whole.slice_mut(..5), 0).readable().map(drop),
        })?;
        stream.synchronize()?;
        let got = [sent, gathered, message];
        let expected = [Some(40), Some(20), Some(if rank == 0 { 20 } else { 0 })];
        ensure!(got == expected || got == [None; 3], "rank {rank} sends {got:?}, expected {expected:?}");
        Ok(())
    })?;
    Ok(())
}

fn collectives_are_compared() -> anyhow::Result<()> {
    let comm = world_of_one()?;
    let stream = comm.stream();
    let mut buffer = stream.alloc_zeros::<f32>(4096)?;
    let mut in_halves = |budget: Budget| {
        budget.spend(|| {
            comm.all_reduce_in_place(&mut buffer.slice_mut(..2048), &ReduceOp::Sum).readable()?;
            comm.all_reduce_in_place(&mut buffer.slice_mut(2048..), &ReduceOp::Sum).readable()?;
            Ok(())
        })
    };
    in_halves(Budget::of("sum").collectives(&[("AllReduce", 2048), ("AllReduce", 2048)]))?;
    let refused = in_halves(Budget::of("sum").collectives(&[("AllReduce", 4096)]));
    refusal(
        refused,
        &[
            "`sum` makes 2 AllReduce of 2,048 elements each; expected one AllReduce of 4,096 elements",
            "cost.rs:",
        ],
    )?;
    in_halves(Budget::of("sum").any_collectives(2))?;
    let refused = in_halves(Budget::of("sum").any_collectives(1));
    refusal(refused, &["`sum` makes 2 collectives; one is enough", "cost.rs:"])?;
    let whole = Budget::of("sum").collectives(&[("AllReduce", 4096)]);
    in_halves(whole.clone().or_collectives(&[("AllReduce", 2048), ("AllReduce", 2048)]))?;
    let refused = in_halves(whole.or_collectives(&[("AllGather", 1)]));
    refusal(refused, &["expected one AllReduce of 4,096 elements, or one AllGather of 1 element"])?;
    let none = Budget::of("sum").collectives(&[("AllReduce", 4096)]).spend(|| Ok(()));
    refusal(none, &["`sum` makes no collective; expected one AllReduce of 4,096 elements"])?;
    let made = Budget::of("open").communicators(0).spend(world_of_one);
    refusal(made, &["`open` makes 1 communicator; none is needed"])
}

fn bytes_of_collectives() -> anyhow::Result<()> {
    fn bytes<T: NcclType + DeviceRepr + ValidAsZeroBits>(size: u64, name: &str) -> anyhow::Result<()> {
        let comm = world_of_one()?;
        let (part, mut whole) = (comm.stream().alloc_zeros::<T>(37)?, comm.stream().alloc_zeros::<T>(37)?);
        let mut gather = |budget: Budget| {
            budget.spend(|| {
                comm.all_gather(&part, &mut whole).readable()?;
                comm.all_reduce_in_place(&mut whole, &ReduceOp::Sum).readable()?;
                Ok(())
            })
        };
        gather(Budget::of("gather").bytes_to_nccl(74 * size))?;
        let refused = gather(Budget::of("gather").bytes_to_nccl(74 * size - 1));
        refusal(
            refused,
            &[&format!("`gather` passes {} bytes to NCCL; {} are enough", 74 * size, 74 * size - 1)],
        )
        .with_context(|| name.to_owned())
    }
    bytes::<u8>(1, "u8")?;
    bytes::<i8>(1, "i8")?;
    bytes::<f16>(2, "f16")?;
    bytes::<bf16>(2, "bf16")?;
    bytes::<f32>(4, "f32")?;
    bytes::<u32>(4, "u32")?;
    bytes::<i32>(4, "i32")?;
    bytes::<u64>(8, "u64")?;
    bytes::<i64>(8, "i64")?;
    bytes::<f64>(8, "f64")?;
    Budget::of("sum").bytes_to_nccl(0).spend(|| Ok(()))
}

fn bytes_of_messages() -> anyhow::Result<()> {
    let comm = world_of_one()?;
    let (from, mut to) = (comm.stream().alloc_zeros::<f32>(37)?, comm.stream().alloc_zeros::<f32>(37)?);
    let mut send = |budget: Budget| {
        budget.spend(|| {
            group_start().readable()?;
            comm.send(&from, 0).readable()?;
            comm.recv(&mut to, 0).readable()?;
            group_end().readable()?;
            Ok(())
        })
    };
    send(Budget::of("send").bytes_to_nccl(148))?;
    refusal(send(Budget::of("send").bytes_to_nccl(147)), &["`send` passes 148 bytes to NCCL; 147 are enough"])
}

fn lines_are_in_the_order_of_the_file() -> anyhow::Result<()> {
    let stream = stream()?;
    let budget = Budget::of("sum").case("over 3 elements").allocations(1);
    let made = budget.spend(|| {
        let permitted = stream.alloc_zeros::<f32>(3)?;
        let superfluous = stream.alloc_zeros::<f32>(4)?;
        Ok((permitted, superfluous))
    });
    let text = made.err().ok_or_else(|| anyhow!("it passes"))?.to_string();
    let place = |words: &str| text.find(words).ok_or_else(|| anyhow!("{words:?} is not in\n{text}"));
    ensure!(place("let permitted")? < place("let superfluous")?, "{text}");
    ensure!(text.starts_with("`sum` over 3 elements allocates 2 buffers; one is enough\n"), "{text}");
    Ok(())
}

fn nested_groups_are_one() -> anyhow::Result<()> {
    let group = || -> anyhow::Result<()> {
        group_start().readable()?;
        group_start().readable()?;
        group_end().readable()?;
        group_end().readable()?;
        Ok(())
    };
    let budget = Budget::of("send").groups(1);
    budget.spend(group)?;
    let refused = budget.spend(|| {
        group()?;
        group()
    });
    refusal(refused, &["`send` opens 2 groups; one is enough", "group_start().readable()"])
}

fn a_missing_wait_is_named() -> anyhow::Result<()> {
    let stream = stream()?;
    let buffer = stream.clone_htod(&[1.0_f32; 3])?;
    let budget = Budget::of("read").waits_for_values();
    budget.spend(|| Ok(stream.synchronize()?))?;
    budget.spend(|| {
        let values = stream.clone_dtoh(&buffer)?;
        let copied = stream.record_event(None)?;
        while !copied.try_is_complete()? {}
        Ok(values)
    })?;
    let refused = budget.spend(|| {
        stream.synchronize()?;
        Ok(stream.clone_dtoh(&buffer)?)
    });
    refusal(
        refused,
        &["`read` does not wait after its last copy to the host; expected a wait", "clone_dtoh"],
    )?;
    let other = stream.context().new_stream()?;
    let elsewhere = budget.spend(|| {
        let values = stream.clone_dtoh(&buffer)?;
        other.synchronize()?;
        Ok(values)
    });
    let words = [
        "`read` waits for the wrong stream after its last copy to the host",
        "clone_dtoh",
        "other.synchronize()",
    ];
    refusal(elsewhere, &words)?;
    budget.spend(|| {
        let values = stream.clone_dtoh(&buffer)?;
        other.wait(&stream.record_event(None)?)?;
        other.synchronize()?;
        Ok(values)
    })?;
    Ok(())
}

fn other_streams_are_named() -> anyhow::Result<()> {
    let stream = stream()?;
    let other = stream.context().new_stream()?;
    let budget = Budget::of("clear").streams(&[(&stream, "the compute stream")]);
    let mut buffer = stream.alloc_zeros::<f32>(3)?;
    budget.spend(|| Ok(stream.memset_zeros(&mut buffer)?))?;
    let refused = budget.spend(|| Ok(other.memset_zeros(&mut buffer)?));
    refusal(refused, &["`clear` enqueues work on another stream; expected only the compute stream"])?;
    let default = stream.context().default_stream();
    let refused = budget.spend(|| Ok(default.memset_zeros(&mut buffer)?));
    refusal(refused, &["`clear` enqueues work on the default stream"])
}

fn threads_are_counted_apart() -> anyhow::Result<()> {
    let stream = stream()?;
    let on_two_threads = || {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| copy(&stream, &[1.0]));
            copy(&stream, &[1.0])?;
            thread.join().map_err(|_| anyhow!("it panicked"))?
        })
    };
    Budget::of("copy").copies(2).spend(on_two_threads)?;
    refusal(Budget::of("copy").of_all_threads().copies(2).spend(on_two_threads), &["makes 4 copies"])
}

fn an_error_that_is_returned_passes() -> anyhow::Result<()> {
    each_call_fails("copy", || {
        let stream = stream()?;
        Ok(move || copy(&stream, &[1.0; 3]).map(drop))
    })?;
    each_call_fails("sum", || {
        let comm = world_of_one()?;
        let mut buffer = comm.stream().alloc_zeros::<f32>(3)?;
        Ok(move || {
            comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).readable()?;
            Ok(comm.stream().synchronize()?)
        })
    })
}

fn a_lost_error_is_named_with_its_call() -> anyhow::Result<()> {
    let refused = each_call_fails("clear", || {
        let stream = stream()?;
        let mut buffer = stream.alloc_zeros::<f32>(3)?;
        Ok(move || {
            let _ = stream.memset_zeros(&mut buffer);
            Ok(())
        })
    });
    refusal(refused, &["`clear` returned Ok although cuMemsetD8Async failed", "memset_zeros(&mut buffer)"])
}

fn a_panic_is_named() -> anyhow::Result<()> {
    let refused = each_call_fails("copy", || {
        let stream = stream()?;
        Ok(move || {
            let _ = stream.clone_htod(&[1.0_f32]).unwrap();
            Ok(())
        })
    });
    refusal(refused, &["`copy` panicked after ", "it must return the error", "panicked at"])
}

fn an_error_without_its_cause_is_named() -> anyhow::Result<()> {
    let refused = each_call_fails("wait", || {
        let stream = stream()?;
        Ok(move || stream.synchronize().map_err(|_| anyhow!("it went wrong")))
    });
    refusal(
        refused,
        &["`wait` returned an error without the cause", "it went wrong", "stream.synchronize()"],
    )?;
    // The error from the group's end also names the group's start, with a different code.
    let refused = each_call_fails("group", || {
        world_of_one()?;
        Ok(|| {
            let _ = group_start();
            group_end().readable().map(drop)
        })
    });
    refusal(refused, &["`group` returned an error without the cause after ncclGroupStart"])
}

fn an_open_group_is_named() -> anyhow::Result<()> {
    let refused = each_call_fails("sum", || {
        let comm = world_of_one()?;
        let mut buffer = comm.stream().alloc_zeros::<f32>(3)?;
        Ok(move || {
            group_start().readable()?;
            comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).readable()?;
            group_end().readable().map(drop)
        })
    });
    refusal(refused, &["`sum` left a group open after "])
}

fn a_destructor_need_not_report() -> anyhow::Result<()> {
    let stream = stream()?;
    each_call_fails("clear", || {
        let stream = stream.clone();
        Ok(move || {
            drop(stream.alloc_zeros::<f32>(3)?);
            Ok(())
        })
    })
}

fn a_function_without_calls_passes() -> anyhow::Result<()> {
    each_call_fails("nothing", || Ok(|| Ok(())))?;
    refusal(each_call_fails("nothing", || Ok(|| Err(anyhow!("the disk is full")))), &["the disk is full"])
}
