//! Wrong programs. Each must end by itself, without using the wall clock, with a report that contains the given words
//! and the lines on both sides. The right twin must cause no report.

use cudarc::nccl::sys::{self, ncclDataType_t, ncclRedOp_t};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::shape;
use crate::rank_processes::{self, Plan, Program};
use crate::raw::{Arguments, Function, address, answer, floats, in_group};
use crate::twins::{Said, TestRank, driver, pair, peer, said, split, twins, wait};

/// Words that differ if the other rank is in another process, because less is known about that rank.
const ELSEWHERE: [(&str, &str); 6] = [
    ("rank 2 never makes the call: its thread has ended", "rank 2 is gone: process"),
    // The process may end before another rank makes its call.
    ("ranks 0 and 1 wait in ncclAllReduce", "rank 2 is gone: process"),
    ("its thread is waiting in cuStreamSynchronize", "has not called it"),
    // Other ranks are not informed about a call that moves no data.
    ("ncclAllReduce(count 0, float32, sum), which NCCL drops", "rank 0 never called it"),
    ("the same count", "every rank must make every collective call"),
    ("deadlock: calls that never complete", "deadlock: a collective that never completes"),
];

/// Timeouts in seconds. A result that depends on another process may be determined by the wall clock, and a busy
/// machine may need more than the first timeout.
const TIMEOUT: [&str; 2] = ["0.5", "10"];

/// Like [`twins`], with one process per rank.
fn twins_in_processes(program: &str, n: usize, words: &[&str]) -> anyhow::Result<()> {
    let layout = vec![1; n];
    let reports = |timeout, wrong| -> anyhow::Result<Vec<String>> {
        let plan = Plan { program, layout: &layout, wrong, env: &[("VIRTUAL_GPU_TIMEOUT", timeout)] };
        Ok(rank_processes::run(&plan)?.into_iter().filter_map(Result::err).collect())
    };
    let [short, long] = TIMEOUT;
    let of_right = reports(long, false)?;
    anyhow::ensure!(of_right.is_empty(), "the right twin: {}", of_right.join("\n---\n"));
    let other =
        |word: &str| ELSEWHERE.iter().find(|(here, _)| *here == word).map(|(_, elsewhere)| *elsewhere);
    let missing =
        |said: &str| words.iter().map(|word| other(word).unwrap_or(word)).find(|word| !said.contains(word));
    let mut said = reports(short, true)?.join("\n---\n");
    if missing(&said).is_some() {
        said = reports(long, true)?.join("\n---\n");
    }
    match missing(&said) {
        Some(word) => anyhow::bail!("no `{word}` in:\n{said}"),
        None => Ok(()),
    }
}

/// Defines two checks for each program, one with threads and one with processes, from its name, its number of ranks,
/// the words, and the code for each rank.
macro_rules! programs {
    ($($name:ident($n:literal, [$($word:literal),*]) |$me:ident| $body:block)*) => {
        pub(crate) fn checks() -> Vec<Check> {
            let mut checks = Vec::new();
            $(
                checks.push(Check::new(
                    concat!("nccl_wrong::", stringify!($name)),
                    || twins($n, $name, &[$($word),*]),
                ));
                if $n > 1 {
                    checks.push(Check::new(
                        concat!("nccl_wrong::in_processes::", stringify!($name)),
                        || twins_in_processes(stringify!($name), $n, &[$($word),*]),
                    ));
                }
            )*
            checks
        }

        /// The programs that processes run.
        pub(crate) const PROGRAMS: &[(&str, Program)] = &[$((stringify!($name), $name)),*];

        $(fn $name($me: &TestRank) -> Said $body)*
    };
}

/// Makes the rank's GPU fail.
fn trap(me: &TestRank) -> Said {
    let stream = &me.own.stream;
    let module = driver(stream.context().load_module(Ptx::from_src(lab::kernels::TRAP)))?;
    let kernel = driver(module.load_function("trap"))?;
    let one = shape(1, 1);
    // SAFETY: the kernel has no arguments.
    driver(unsafe { stream.launch_builder(&kernel).launch(one) }).map(drop)
}

programs! {
    counts_differ(3, ["the 1st collective on this communicator differs between ranks", "ranks 0 and 1: ncclAllReduce(count 4,", "rank 2: ncclAllReduce(count 5,"]) |me| {
        let buffer = me.buffer(if me.is_wrong(2) { 5 } else { 4 });
        me.all_reduce(&buffer)?;
        me.wait()
    }

    types_differ(2, ["rank 0: ncclAllReduce(count 4, float32, sum)", "rank 1: ncclAllReduce(count 4, int32, sum)"]) |me| {
        let data_type = if me.is_wrong(1) { ncclDataType_t::ncclInt32 } else { ncclDataType_t::ncclFloat32 };
        me.call(Function::AllReduce, &me.buffer(4), Arguments { data_type, ..floats(4) })?;
        me.wait()
    }

    operators_differ(2, ["rank 0: ncclAllReduce(count 4, float32, sum)", "rank 1: ncclAllReduce(count 4, float32, max)"]) |me| {
        let operator = if me.is_wrong(1) { ncclRedOp_t::ncclMax } else { ncclRedOp_t::ncclSum };
        me.call(Function::AllReduce, &me.buffer(4), Arguments { operator, ..floats(4) })?;
        me.wait()
    }

    roots_differ(3, ["ranks 0 and 2: ncclBroadcast(count 4, float32, root 0)", "rank 1: ncclBroadcast(count 4, float32, root 1)"]) |me| {
        let buffer = me.buffer(4);
        me.call(Function::Broadcast, &buffer, peer(usize::from(me.is_wrong(1)), 4))?;
        me.wait()
    }

    functions_differ(2, ["rank 0: ncclAllReduce", "rank 1: ncclReduce"]) |me| {
        let function = if me.is_wrong(1) { Function::Reduce } else { Function::AllReduce };
        let buffer = me.buffer(4);
        me.call(function, &buffer, floats(4))?;
        me.wait()
    }

    order_of_calls_differs(2, ["the 1st collective on this communicator differs between ranks", "ncclAllReduce", "ncclBroadcast"]) |me| {
        let (one, other) = (me.buffer(4), me.buffer(4));
        let mut calls = [(Function::AllReduce, &one), (Function::Broadcast, &other)];
        if me.is_wrong(1) {
            calls.reverse();
        }
        for (function, buffer) in calls {
            me.call(function, buffer, floats(4))?;
        }
        me.wait()
    }

    parts_of_an_all_to_all_differ(2, ["rank 0: ncclAlltoAll(count 4,", "rank 1: ncclAlltoAll(count 3,"]) |me| {
        let (from, to) = (me.buffer(8), me.buffer(8));
        let count = if me.is_wrong(1) { 3 } else { 4 };
        said(me.own.call(Function::AllToAll, address(&from), address(&to), floats(count)))?;
        me.wait()
    }

    a_gather_to_two_roots(2, ["ncclGather(count 4, float32, root 0)", "ncclGather(count 4, float32, root 1)"]) |me| {
        let (from, to) = (me.buffer(4), me.buffer(8));
        let root = usize::from(me.is_wrong(1));
        said(me.own.call(Function::Gather, address(&from), address(&to), peer(root, 4)))?;
        me.wait()
    }

    a_rank_returns_early(3, ["ranks 0 and 1 wait in ncclAllReduce", "rank 2 never makes the call: its thread has ended"]) |me| {
        let buffer = me.buffer(4);
        if me.is_wrong(2) {
            // This is what happens if an error is returned and the communicator is leaked.
            me.own.leak();
            return Ok(());
        }
        me.all_reduce(&buffer)?;
        me.wait()
    }

    a_call_of_one_rank_alone(2, ["rank 0 waits in ncclAllReduce(count 4", "rank 1 never called it, and has destroyed its communicator"]) |me| {
        let buffer = me.buffer(4);
        me.all_reduce(&buffer)?;
        if me.is_wrong(0) {
            me.all_reduce(&buffer)?;
        }
        me.wait()
    }

    one_round_more(2, ["rank 1 waits in ncclAllReduce", "rank 0 never", "collective 4"]) |me| {
        let buffer = me.buffer(4);
        for _ in 0..3 + usize::from(me.is_wrong(1)) {
            me.all_reduce(&buffer)?;
        }
        me.wait()
    }

    two_communicators_in_opposite_order(2, ["deadlock", "its thread is waiting in cuStreamSynchronize", "the same calls in the same order"]) |me| {
        let second = me.second();
        let buffer = me.buffer(4);
        let mut order = [&me.own, &second];
        if me.is_wrong(1) {
            order.reverse();
        }
        for rank in order {
            said(rank.call(Function::AllReduce, address(&buffer), address(&buffer), floats(4)))?;
            wait(&rank.stream)?;
        }
        Ok(())
    }

    two_communicators_in_opposite_order_on_one_stream(2, ["has called it, but is stuck behind work that never completes", "in the same order on every rank"]) |me| {
        let second = me.second();
        let buffer = me.buffer(4);
        let mut order = [&me.own, &second];
        if me.is_wrong(1) {
            order.reverse();
        }
        for rank in order {
            said(rank.call_on(&me.own.stream, Function::AllReduce, address(&buffer), address(&buffer), floats(4)))?;
        }
        me.wait()
    }

    a_cycle_over_events_and_two_communicators(2, ["deadlock", "behind work that never completes", "ncclAllReduce", "ncclBroadcast"]) |me| {
        let second = me.second();
        let (one, other) = (me.buffer(4), me.buffer(4));
        let broadcast = || said(second.call(Function::Broadcast, address(&other), address(&other), floats(4)));
        // Each rank makes one communicator's stream wait for the other communicator's stream, and one rank does so in
        // reverse.
        if me.is_wrong(1) {
            broadcast()?;
            driver(me.own.stream.join(&second.stream))?;
            me.all_reduce(&one)?;
        } else {
            me.all_reduce(&one)?;
            driver(second.stream.join(&me.own.stream))?;
            broadcast()?;
        }
        wait(&second.stream)?;
        me.wait()
    }

    crossed_sends(2, ["rank 0 waits in ncclSend(count 4, float32, to rank 1)", "rank 1 waits in ncclSend(count 4, float32, to rank 0)", "rank 1 has called the matching ncclRecv, but is stuck behind work", "group_start"]) |me| {
        let (from, to) = (me.buffer(4), me.buffer(4));
        let other = 1 - me.rank;
        let exchange = || me.send(&from, other).and_then(|()| me.receive(&to, other));
        match me.wrong {
            true => exchange()?,
            false => said(in_group(|| exchange().unwrap()))?,
        }
        me.wait()
    }

    crossed_receives(2, ["rank 0 waits in ncclRecv", "rank 1 waits in ncclRecv", "behind work that never completes"]) |me| {
        let (from, to) = (me.buffer(4), me.buffer(4));
        let other = 1 - me.rank;
        // In the right twin, one rank sends first.
        if me.wrong || me.rank == 0 {
            me.receive(&to, other)?;
            me.send(&from, other)?;
        } else {
            me.send(&from, other)?;
            me.receive(&to, other)?;
        }
        me.wait()
    }

    a_ring_without_a_group(3, ["rank 0 waits in ncclSend", "rank 1 waits in ncclSend", "rank 2 waits in ncclSend", "between one group_start and one group_end"]) |me| {
        let (from, to) = (me.buffer(4), me.buffer(4));
        let (next, last) = ((me.rank + 1) % 3, (me.rank + 2) % 3);
        let pass = || me.send(&from, next).and_then(|()| me.receive(&to, last));
        match me.wrong {
            true => pass()?,
            false => said(in_group(|| pass().unwrap()))?,
        }
        me.wait()
    }

    a_receive_without_a_send(2, ["rank 1 waits in ncclRecv(count 4, float32, from rank 0)", "rank 0 never called the matching ncclSend", "destroyed"]) |me| {
        let buffer = me.buffer(4);
        match me.rank {
            1 => me.receive(&buffer, 0)?,
            _ if me.wrong => {}
            _ => me.send(&buffer, 1)?,
        }
        me.wait()
    }

    a_send_without_a_receive(2, ["rank 0 waits in ncclSend(count 4, float32, to rank 1)", "rank 1 never called the matching ncclRecv"]) |me| {
        let buffer = me.buffer(4);
        match me.rank {
            0 => me.send(&buffer, 1)?,
            _ if me.wrong => {}
            _ => me.receive(&buffer, 0)?,
        }
        me.wait()
    }

    a_send_to_the_wrong_rank(3, ["rank 0 waits in ncclSend(count 4, float32, to rank 2)", "rank 2 never called the matching ncclRecv"]) |me| {
        let buffer = me.buffer(4);
        match me.rank {
            0 => me.send(&buffer, if me.wrong { 2 } else { 1 })?,
            1 => me.receive(&buffer, 0)?,
            _ => {}
        }
        me.wait()
    }

    messages_of_different_sizes(2, ["ranks disagree about message 1 from rank 0 to rank 1", "rank 0: ncclSend(count 4, float32, to rank 1)", "rank 1: ncclRecv(count 3, float32, from rank 0)", "nccl_wrong.rs:"]) |me| {
        let buffer = me.buffer(if me.is_wrong(1) { 3 } else { 4 });
        match me.rank {
            0 => me.send(&buffer, 1)?,
            _ => me.receive(&buffer, 0)?,
        }
        me.wait()
    }

    messages_of_different_types(2, ["ncclSend(count 4, float32, to rank 1)", "ncclRecv(count 4, int32, from rank 0)"]) |me| {
        let buffer = me.buffer(4);
        let data_type = if me.is_wrong(1) { ncclDataType_t::ncclInt32 } else { ncclDataType_t::ncclFloat32 };
        match me.rank {
            0 => me.send(&buffer, 1)?,
            _ => me.call(Function::Recv, &buffer, Arguments { data_type, ..peer(0, 4) })?,
        }
        me.wait()
    }

    receives_in_another_order_than_the_sends(2, ["ranks disagree about message 1 from rank 0 to rank 1", "count 4", "count 7"]) |me| {
        let mut buffers = [me.buffer(4), me.buffer(7)];
        if me.is_wrong(1) {
            buffers.reverse();
        }
        said(in_group(|| {
            for buffer in &buffers {
                match me.rank {
                    0 => me.send(buffer, 1).unwrap(),
                    _ => me.receive(buffer, 0).unwrap(),
                }
            }
        }))?;
        me.wait()
    }

    a_broadcast_that_one_rank_receives(2, ["deadlock: calls that never complete", "rank 0 waits in ncclBroadcast", "rank 1 waits in ncclRecv"]) |me| {
        let buffer = me.buffer(4);
        match me.is_wrong(1) {
            true => me.receive(&buffer, 0)?,
            false => me.call(Function::Broadcast, &buffer, floats(4))?,
        }
        me.wait()
    }

    a_split_that_one_rank_skips(3, ["ranks 0 and 1 wait in ncclCommSplit", "rank 2 never makes the call", "NCCL_SPLIT_NOCOLOR"]) |me| {
        if !me.is_wrong(2) {
            let mut child = std::ptr::null_mut();
            let color = if me.rank == 2 { -1 } else { 0 };
            said(split(me.own.comm, color, &mut child))?;
            // SAFETY: the communicator belongs to this rank, or is null.
            unsafe { sys::ncclCommDestroy(child) };
        }
        Ok(())
    }

    a_shrink_that_one_rank_skips(3, ["rank 0 waits in ncclCommShrink", "rank 1 never makes the call", "every rank that is not excluded"]) |me| {
        if me.rank != 2 && !me.is_wrong(1) {
            let (mut excluded, mut smaller) = ([2], std::ptr::null_mut());
            let list = excluded.as_mut_ptr();
            // SAFETY: the list has one rank, and the result is writable.
            said(answer(unsafe { sys::ncclCommShrink(me.own.comm, list, 1, &mut smaller, std::ptr::null_mut(), 0) }))?;
            // SAFETY: the communicator belongs to this rank.
            unsafe { sys::ncclCommDestroy(smaller) };
        }
        Ok(())
    }

    a_window_that_one_rank_does_not_register(2, ["rank 0 waits in ncclCommWindowRegister", "rank 1 never makes the call"]) |me| {
        let buffer = me.buffer(1024);
        if !me.is_wrong(1) {
            let mut window = std::ptr::null_mut();
            let at = address(&buffer) as *mut _;
            // SAFETY: the result is writable.
            said(answer(unsafe { sys::ncclCommWindowRegister(me.own.comm, at, 4096, &mut window, 0) }))?;
        }
        Ok(())
    }

    a_collective_whose_other_rank_revokes(2, ["rank 0 waits in ncclAllReduce", "rank 1 never called it, and has revoked the communicator"]) |me| {
        let buffer = me.buffer(4);
        if me.is_wrong(1) {
            // SAFETY: the communicator is alive.
            return said(answer(unsafe { sys::ncclCommRevoke(me.own.comm, 0) }));
        }
        me.all_reduce(&buffer)?;
        me.wait()
    }

    a_split_where_another_rank_finalizes(2, ["ranks disagree about a call that all of them make together", "rank 0: ncclCommSplit", "rank 1: ncclCommFinalize"]) |me| {
        if me.wrong && me.rank == 1 {
            // SAFETY: the communicator is alive.
            return said(answer(unsafe { sys::ncclCommFinalize(me.own.comm) }));
        }
        let mut child = std::ptr::null_mut();
        said(split(me.own.comm, -1, &mut child))
    }

    a_finalize_that_one_rank_skips(2, ["rank 0 waits in ncclCommFinalize", "rank 1 never makes the call"]) |me| {
        // SAFETY: the communicator is alive.
        let finalize = || said(answer(unsafe { sys::ncclCommFinalize(me.own.comm) }));
        if me.is_wrong(1) { Ok(()) } else { finalize() }
    }

    use_after_an_abort(2, ["rank 0 waits in ncclAllReduce", "rank 1 never called it, and has aborted its communicator"]) |me| {
        let buffer = me.buffer(4);
        if me.is_wrong(1) {
            // SAFETY: the communicator is alive. It is destroyed a second time later, and that call is rejected.
            unsafe { sys::ncclCommAbort(me.own.comm) };
            return me.all_reduce(&buffer);
        }
        me.all_reduce(&buffer)?;
        me.wait()
    }

    an_abort_in_flight(2, ["aborts its communicator while a collective may be in flight", "ncclAllReduce(count 4", "ncclCommAbort"]) |me| {
        let buffer = me.buffer(4);
        me.all_reduce(&buffer)?;
        if !me.wrong {
            me.wait()?;
        }
        // SAFETY: the communicator is alive. It is destroyed a second time later, and that call is rejected.
        unsafe { sys::ncclCommAbort(me.own.comm) };
        me.wait()
    }

    a_group_that_is_never_ended(2, ["rank 0 waits in ncclAllReduce", "rank 1 never"]) |me| {
        let buffer = me.buffer(4);
        if me.is_wrong(1) {
            // SAFETY: the function takes no arguments.
            unsafe { sys::ncclGroupStart() };
            return me.all_reduce(&buffer);
        }
        said(in_group(|| me.all_reduce(&buffer).unwrap()))?;
        me.wait()
    }

    one_thread_that_groups_nothing(1, ["deadlock: rank 1 is missing from a group, and one thread drives all the ranks", "ncclAllReduce(count 4, float32, sum) by rank 0"]) |me| {
        let pair = pair(me);
        let buffers = pair.each_ref().map(|rank| rank.stream.clone_htod(&[1.0f32; 4]).unwrap());
        let call = |at: usize| said(pair[at].call(Function::AllReduce, address(&buffers[at]), address(&buffers[at]), floats(4)));
        match me.wrong {
            true => call(0).and_then(|()| call(1))?,
            false => said(in_group(|| call(0).and_then(|()| call(1)).unwrap()))?,
        }
        pair.iter().try_for_each(|rank| wait(&rank.stream))
    }

    one_thread_that_sends_to_itself_ungrouped(1, ["deadlock: rank 1 is missing from a group", "ncclSend(count 4, float32, to rank 1) by rank 0"]) |me| {
        let pair = pair(me);
        let buffers = pair.each_ref().map(|rank| rank.stream.clone_htod(&[1.0f32; 4]).unwrap());
        let call = |function, at: usize| said(pair[at].call(function, address(&buffers[at]), address(&buffers[at]), peer(1 - at, 4)));
        let both = || call(Function::Send, 0).and_then(|()| call(Function::Recv, 1));
        match me.wrong {
            true => both()?,
            false => said(in_group(|| both().unwrap()))?,
        }
        pair.iter().try_for_each(|rank| wait(&rank.stream))
    }

    a_result_that_is_used_in_its_own_group(2, ["two calls by rank", "in one group touch the same bytes", "written by ncclAllReduce", "read by ncclAllGather", "nccl_wrong.rs:"]) |me| {
        let (buffer, all) = (me.buffer(4), me.buffer(8));
        let gather = || said(me.own.call(Function::AllGather, address(&buffer), address(&all), floats(4)));
        match me.wrong {
            true => said(in_group(|| me.all_reduce(&buffer).and_then(|()| gather()).unwrap()))?,
            false => me.all_reduce(&buffer).and_then(|()| gather())?,
        }
        me.wait()
    }

    an_exchange_in_place(2, ["two calls by rank", "ncclSend(count 4", "ncclRecv(count 4"]) |me| {
        let (from, to) = (me.buffer(4), me.buffer(4));
        let target = if me.wrong { &from } else { &to };
        let other = 1 - me.rank;
        said(in_group(|| me.send(&from, other).and_then(|()| me.receive(target, other)).unwrap()))?;
        me.wait()
    }

    a_receive_buffer_that_is_too_short(2, ["rank 1's receive buffer can't be used (recvbuff)", "4 bytes outside", "nccl_wrong.rs:"]) |me| {
        let buffer = me.buffer(if me.is_wrong(1) { 3 } else { 4 });
        let (function, other) = if me.rank == 0 { (Function::Send, 1) } else { (Function::Recv, 0) };
        me.call(function, &buffer, peer(other, 4))?;
        me.wait()
    }

    data_that_nothing_wrote(2, ["ncclAllReduce(count 4, float32, sum) reads bytes that nothing wrote, on rank 0", "nccl_wrong.rs:"]) |me| {
        // SAFETY: the check is about uninitialized values.
        let mut buffer = unsafe { driver(me.own.stream.alloc::<f32>(4))? };
        if !me.is_wrong(0) {
            driver(me.own.stream.memset_zeros(&mut buffer))?;
        }
        me.all_reduce(&buffer)?;
        me.wait()
    }

    a_collective_that_does_not_wait_for_its_data(2, ["data race", "written by a memset", "ncclAllReduce", "nccl_wrong.rs:"]) |me| {
        let mut buffer = me.buffer(4);
        let other = driver(me.own.stream.context().new_stream())?;
        driver(other.memset_zeros(&mut buffer))?;
        if !me.wrong {
            driver(me.own.stream.join(&other))?;
        }
        me.all_reduce(&buffer)?;
        wait(&other)?;
        me.wait()
    }

    data_that_is_used_before_it_was_received(2, ["data race", "written by ncclRecv", "a copy", "nccl_wrong.rs:"]) |me| {
        let (buffer, mut copy) = (me.buffer(4), me.buffer(4));
        let other = driver(me.own.stream.context().new_stream())?;
        match me.rank {
            0 => me.send(&buffer, 1)?,
            _ => {
                me.receive(&buffer, 0)?;
                if !me.wrong {
                    driver(other.join(&me.own.stream))?;
                }
                driver(other.memcpy_dtod(&buffer, &mut copy))?;
            }
        }
        me.wait()?;
        wait(&other)
    }

    a_buffer_that_is_changed_while_it_is_sent(2, ["data race", "read by ncclSend", "a memset"]) |me| {
        let mut buffer = me.buffer(4);
        let other = driver(me.own.stream.context().new_stream())?;
        match me.rank {
            1 => me.receive(&buffer, 0)?,
            _ => {
                me.send(&buffer, 1)?;
                if !me.wrong {
                    driver(other.join(&me.own.stream))?;
                }
                driver(other.memset_zeros(&mut buffer))?;
            }
        }
        me.wait()?;
        wait(&other)
    }

    a_call_of_no_elements_on_one_rank(2, ["rank 1 waits in ncclAllReduce(count 4", "ncclAllReduce(count 0, float32, sum), which NCCL drops", "the same count"]) |me| {
        let buffer = me.buffer(4);
        me.call(Function::AllReduce, &buffer, floats(if me.is_wrong(0) { 0 } else { 4 }))?;
        me.wait()
    }

    a_gpu_that_fails_before_its_send(3, ["rank 0's GPU has failed", "can't complete: rank 1's GPU has failed", "the first failure: virtual GPU: kernel `trap` executed a trap"]) |me| {
        let buffer = me.buffer(4);
        if me.is_wrong(0) {
            trap(me)?;
        }
        if me.rank > 0 {
            me.receive(&buffer, me.rank - 1)?;
        }
        if me.rank < 2 {
            me.send(&buffer, me.rank + 1)?;
        }
        me.wait()
    }

    a_gpu_that_fails_and_its_thread_returns(2, ["rank 0 waits in ncclAllReduce", "rank 1's GPU has failed before: virtual GPU: kernel `trap` executed a trap", "fix that failure first"]) |me| {
        let buffer = me.buffer(4);
        if me.is_wrong(1) {
            trap(me)?;
            me.wait()?;
        }
        me.all_reduce(&buffer)?;
        me.wait()
    }
}
