//! The programs, and what the reports about the wrong ones must contain.

use cudarc::driver::result;

use super::Arg::{Address as A, Int as I};
use super::Wrong::{Reported, Value};
use super::{Arg, Failed, ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, Node, Pair, RACE, Run, run};

// As in `kernels.cu`.
const NO_FENCE: i32 = 0;
const BLOCK: i32 = 1;
const DEVICE: i32 = 2;
const SYSTEM: i32 = 3;
const ACQUIRE_RELEASE: i32 = 4;

const PLAIN: i32 = 0;
const VOLATILE: i32 = 1;
const ATOMIC: i32 = 2;
const ATOMIC_SYSTEM: i32 = 3;
const STRONG_GPU: i32 = 4;
const STRONG_SYSTEM: i32 = 5;
const RELAXED_SYSTEM: i32 = 6;
const ADD_GPU: i32 = 7;
const ADD_SYSTEM: i32 = 8;

const SYNCED: i32 = 0;
const NO_BARRIER: i32 = 1;
const FENCE_OF_ONE: i32 = 2;
const FENCE_FIRST: i32 = 3;
const FENCE_OF_EACH: i32 = 4;

const ALONE: i32 = 0;
const SYNC_WARP: i32 = 1;
const EXCHANGE: i32 = 2;

/// One GPU sends a word and a flag, and another receives them.
struct Message {
    writers_fence: i32,
    write: i32,
    readers_fence: i32,
    read: i32,
    flag_first: i32,
    data_first: i32,
    /// The GPUs that have the data and the flag.
    homes: [usize; 2],
}

const RIGHT: Message = Message {
    writers_fence: SYSTEM,
    write: VOLATILE,
    readers_fence: SYSTEM,
    read: VOLATILE,
    flag_first: 0,
    data_first: 0,
    homes: [1, 1],
};

impl Message {
    fn is_received(&self, node: &Node) -> anyhow::Result<bool> {
        node.enable_all(2).map_err(Failed::from)?;
        let [data, flag] = self.homes.map(|gpu| node.words(gpu, 1));
        let (data, flag) = (data.map_err(Failed::from)?, flag.map_err(Failed::from)?);
        let out = node.words(1, 1).map_err(Failed::from)?;
        let send = [A(data), A(flag), I(self.writers_fence), I(self.write), I(self.flag_first)];
        let receive = [A(data), A(flag), A(out), I(self.readers_fence), I(self.read), I(self.data_first)];
        node.launch(&[run(0, "send", &send), run(1, "receive", &receive)])?;
        Ok(node.read(1, out, 1).map_err(Failed::from)? == [42])
    }
}

/// Sends and receives a message; the wrong program differs from the right one as stated.
macro_rules! message {
    ($name:literal, { $($right:tt)* }, { $($wrong:tt)* }, $says:expr) => {
        Pair {
            name: $name,
            program: |node, is_wrong| {
                let right = Message { $($right)* ..RIGHT };
                let message = if is_wrong { Message { $($wrong)* ..right } } else { right };
                message.is_received(node)
            },
            wrong: Reported(RACE, $says),
        }
    };
}

/// Chooses the argument of the wrong program or of the right one.
fn choose(is_wrong: bool, wrong: i32, right: i32) -> Arg {
    I(if is_wrong { wrong } else { right })
}

/// Allocates words on GPU 0 that GPU 1 can access, and the other way around.
fn words<const N: usize>(node: &Node, on: [(usize, usize); N]) -> Result<[u64; N], Failed> {
    node.enable_all(2)?;
    let mut all = [0; N];
    for (address, (gpu, count)) in all.iter_mut().zip(on) {
        *address = node.words(gpu, count)?;
    }
    Ok(all)
}

/// Runs a kernel on GPU 1, in which a thread hands over a number in GPU 0's memory to another one.
fn through(node: &Node, (kernel, blocks): (&'static str, u32), is_wrong: bool) -> anyhow::Result<bool> {
    let [data, out] = words(node, [(0, 1), (1, 1)])?;
    let args = [A(data), A(out), choose(is_wrong, 1, 0)];
    node.launch(&[Run { grid: blocks, block: 64, ..run(1, kernel, &args) }])?;
    Ok(node.read(1, out, 1).map_err(Failed::from)? == [42])
}

pub(super) const PAIRS: &[Pair] = &[
    message!("no_fence_before_the_flag", {}, { writers_fence: NO_FENCE, }, &["calls no fence before it", "__threadfence_system()"]),
    message!("a_device_fence_before_the_flag", {}, { writers_fence: DEVICE, }, &["no effect on threads of another GPU"]),
    message!("a_block_fence_before_the_flag", {}, { writers_fence: BLOCK, }, &["no effect on threads of another GPU"]),
    message!("no_fence_after_the_wait", {}, { readers_fence: NO_FENCE, }, &["no fence follows the read"]),
    message!("a_device_fence_after_the_wait", {}, { readers_fence: DEVICE, }, &["after the wait"]),
    message!("a_block_fence_after_the_wait", {}, { readers_fence: BLOCK, }, &["after the wait"]),
    message!("a_light_fence", { writers_fence: ACQUIRE_RELEASE, readers_fence: ACQUIRE_RELEASE, }, { writers_fence: NO_FENCE, }, &["calls no fence before it"]),
    message!("the_flag_before_the_data", {}, { flag_first: 1, }, &["`send`", "`receive`"]),
    message!("the_data_before_the_wait", {}, { data_first: 1, }, &["`send`", "`receive`"]),
    message!("an_exchange_of_device_scope", { write: ATOMIC_SYSTEM, }, { write: ATOMIC, }, &["scope", "system scope"]),
    message!("a_poll_of_device_scope", { read: ATOMIC_SYSTEM, }, { read: ATOMIC, }, &["scope", "system scope"]),
    message!("a_plain_flag", {}, { write: PLAIN, }, &["`send`", "`receive`"]),
    message!("a_release_of_device_scope", { write: STRONG_SYSTEM, writers_fence: NO_FENCE, }, { write: STRONG_GPU, }, &["scope", "system scope"]),
    message!("an_acquire_of_device_scope", { read: STRONG_SYSTEM, readers_fence: NO_FENCE, }, { read: STRONG_GPU, }, &["scope", "system scope"]),
    message!("a_relaxed_write", { write: STRONG_SYSTEM, writers_fence: NO_FENCE, }, { write: RELAXED_SYSTEM, }, &["calls no fence before it"]),
    message!("a_relaxed_read", { read: STRONG_SYSTEM, readers_fence: NO_FENCE, }, { read: RELAXED_SYSTEM, }, &["no fence follows the read"]),
    message!("a_reduction_of_device_scope", { write: ADD_SYSTEM, writers_fence: NO_FENCE, }, { write: ADD_GPU, }, &["scope", "system scope"]),
    message!("a_flag_on_the_other_gpu", { homes: [1, 0], }, { writers_fence: NO_FENCE, }, &["calls no fence before it"]),
    message!("data_on_the_other_gpu", { homes: [0, 1], }, { readers_fence: NO_FENCE, }, &["no fence follows the read"]),
    message!("data_and_flag_on_the_other_gpu", { homes: [0, 0], }, { writers_fence: DEVICE, }, &["no effect on threads of another GPU"]),
    Pair {
        name: "an_mbarrier_that_is_not_waited_for",
        program: |node, is_wrong| through(node, ("through_mbarrier", 1), is_wrong),
        wrong: Reported(RACE, &["`through_mbarrier`", "two of its threads"]),
    },
    Pair {
        name: "a_barrier_of_the_block_in_a_cluster",
        program: |node, is_wrong| through(node, ("through_cluster", 2), is_wrong),
        wrong: Reported(RACE, &["`through_cluster`", "two of its threads"]),
    },
    Pair {
        name: "a_poll_that_reads_once",
        program: |node, is_wrong| {
            let [data, flag, out] = words(node, [(1, 1), (1, 1), (1, 1)])?;
            let send = [A(data), A(flag), I(SYSTEM), I(VOLATILE), I(0)];
            let receive = [A(data), A(flag), A(out), choose(is_wrong, 1, 0)];
            // The receiver starts first, so that its one read comes before the write.
            node.launch_in_order(&[run(1, "receive_once", &receive), run(0, "send", &send)])?;
            Ok(node.read(1, out, 1).map_err(Failed::from)? == [42])
        },
        wrong: Reported(LAUNCH_TIMEOUT, &["`receive_once`"]),
    },
    Pair {
        name: "a_release_of_another_variable",
        program: |node, is_wrong| {
            let [data, flag, other, out] = words(node, [(1, 1), (1, 1), (1, 1), (1, 1)])?;
            let send = [A(data), A(flag), A(other), choose(is_wrong, 1, 0)];
            let receive = [A(data), A(flag), A(out), I(SYSTEM), I(VOLATILE), I(0)];
            node.launch(&[run(0, "send_beside", &send), run(1, "receive", &receive)])?;
            Ok(node.read(1, out, 1).map_err(Failed::from)? == [42])
        },
        wrong: Reported(RACE, &["calls no fence before it"]),
    },
    Pair {
        name: "volatile_data_without_a_fence_of_the_reader",
        program: |node, is_wrong| {
            let [data, flag, out] = words(node, [(1, 1), (1, 1), (1, 1)])?;
            let receive = [A(data), A(flag), A(out), choose(is_wrong, NO_FENCE, SYSTEM)];
            node.launch(&[
                run(0, "send_volatile", &[A(data), A(flag), I(SYSTEM)]),
                run(1, "receive_volatile", &receive),
            ])?;
            Ok(node.read(1, out, 1).map_err(Failed::from)? == [42])
        },
        wrong: Value,
    },
    Pair {
        name: "volatile_data_without_a_fence_of_the_writer",
        program: |node, is_wrong| {
            let [data, flag, out] = words(node, [(1, 1), (1, 1), (1, 1)])?;
            node.launch(&[
                run(0, "send_volatile", &[A(data), A(flag), choose(is_wrong, NO_FENCE, SYSTEM)]),
                run(1, "receive_volatile", &[A(data), A(flag), A(out), I(SYSTEM)]),
            ])?;
            Ok(node.read(1, out, 1).map_err(Failed::from)? == [42])
        },
        wrong: Value,
    },
    Pair {
        name: "a_word_and_its_flag_in_two_writes",
        program: |node, is_wrong| {
            let [lines, out] = words(node, [(1, 8), (1, 4)])?;
            let split = choose(is_wrong, 1, 0);
            node.launch(&[
                run(0, "send_lines", &[A(lines), I(4), split.clone()]),
                run(1, "receive_lines", &[A(lines), A(out), I(4), split]),
            ])?;
            Ok(node.read(1, out, 4).map_err(Failed::from)? == [101, 102, 103, 104])
        },
        wrong: Value,
    },
    Pair {
        name: "a_wait_with_a_limit",
        program: |node, is_wrong| {
            let [data, flag, out] = words(node, [(1, 1), (1, 1), (1, 1)])?;
            let attempts = I(1 << 20);
            let receive = [A(data), A(flag), A(out), choose(is_wrong, NO_FENCE, SYSTEM), attempts];
            node.launch(&[
                run(0, "send", &[A(data), A(flag), I(SYSTEM), I(VOLATILE), I(0)]),
                run(1, "receive_patiently", &receive),
            ])?;
            Ok(node.read(1, out, 1).map_err(Failed::from)? == [42])
        },
        wrong: Reported(RACE, &["no fence follows the read"]),
    },
    Pair {
        name: "no_barrier_before_the_flag",
        program: |node, is_wrong| block(node, choose(is_wrong, NO_BARRIER, SYNCED), I(SYNCED)),
        wrong: Reported(RACE, &["`send_block`", "without having waited for this one", "__syncthreads()"]),
    },
    Pair {
        name: "no_barrier_after_the_wait",
        program: |node, is_wrong| block(node, I(SYNCED), choose(is_wrong, NO_BARRIER, SYNCED)),
        // Whether a thread has waited by then depends on the order in which the kernels run.
        wrong: Reported(RACE, &["`send_block`", "`receive_block`"]),
    },
    Pair {
        name: "a_fence_of_one_thread_before_the_barrier",
        program: |node, is_wrong| block(node, choose(is_wrong, FENCE_OF_ONE, FENCE_OF_EACH), I(SYNCED)),
        wrong: Reported(RACE, &["`send_block`", "the last fence before the flag"]),
    },
    Pair {
        name: "a_fence_before_the_data",
        program: |node, is_wrong| block(node, choose(is_wrong, FENCE_FIRST, FENCE_OF_EACH), I(SYNCED)),
        wrong: Reported(RACE, &["`send_block`", "the last fence before the flag"]),
    },
    Pair {
        name: "no_warp_barrier_before_the_flag",
        program: |node, is_wrong| warp(node, choose(is_wrong, ALONE, SYNC_WARP), I(EXCHANGE)),
        wrong: Reported(RACE, &["`send_warp`", "without having waited for this one", "__syncwarp()"]),
    },
    Pair {
        name: "a_shuffle_before_the_flag",
        program: |node, is_wrong| warp(node, choose(is_wrong, EXCHANGE, SYNC_WARP), I(SYNC_WARP)),
        wrong: Reported(RACE, &["`send_warp`", "without having waited for this one", "__syncwarp()"]),
    },
    Pair {
        name: "no_exchange_after_the_flag",
        program: |node, is_wrong| warp(node, I(SYNC_WARP), choose(is_wrong, ALONE, EXCHANGE)),
        wrong: Reported(RACE, &["`receive_warp`"]),
    },
    Pair {
        name: "a_counter_that_is_read_too_early",
        program: |node, is_wrong| blocks(node, I(SYSTEM), I(ATOMIC_SYSTEM), choose(is_wrong, 3, 4)),
        wrong: Reported(RACE, &["`send_blocks`"]),
    },
    Pair {
        name: "a_counter_without_a_fence",
        program: |node, is_wrong| blocks(node, choose(is_wrong, NO_FENCE, SYSTEM), I(ATOMIC_SYSTEM), I(4)),
        wrong: Reported(RACE, &["calls no fence before it"]),
    },
    Pair {
        name: "a_counter_of_device_scope",
        program: |node, is_wrong| blocks(node, I(SYSTEM), choose(is_wrong, ATOMIC, ATOMIC_SYSTEM), I(4)),
        wrong: Reported(RACE, &["system scope"]),
    },
    Pair {
        name: "a_released_counter_of_device_scope",
        program: |node, is_wrong| blocks(node, I(NO_FENCE), choose(is_wrong, ADD_GPU, ADD_SYSTEM), I(4)),
        wrong: Reported(RACE, &["system scope"]),
    },
    Pair {
        name: "a_flag_that_is_used_again",
        program: |node, is_wrong| rounds(node, I(1), choose(is_wrong, 1, 0)),
        wrong: Reported(RACE, &["`send_rounds`", "`receive_rounds`"]),
    },
    Pair {
        name: "a_buffer_that_is_used_again_too_early",
        program: |node, is_wrong| rounds(node, choose(is_wrong, 0, 1), I(0)),
        wrong: Reported(RACE, &["`send_rounds`", "`receive_rounds`", "no flag and no barrier"]),
    },
    Pair {
        name: "a_slot_that_is_used_again_too_early",
        program: |node, is_wrong| {
            let [data, flag, ack, out] = words(node, [(1, 2), (1, 1), (0, 1), (1, 6)])?;
            let send = [A(data), A(flag), A(ack), I(6), I(2), choose(is_wrong, 3, 2)];
            node.launch(&[
                run(0, "send_slots", &send),
                run(1, "receive_slots", &[A(data), A(flag), A(ack), A(out), I(6), I(2)]),
            ])?;
            Ok(node.read(1, out, 6).map_err(Failed::from)? == [101, 102, 103, 104, 105, 106])
        },
        wrong: Reported(RACE, &["`send_slots`", "`receive_slots`"]),
    },
    Pair {
        name: "two_kernels_that_wait_first",
        program: |node, is_wrong| meet(node, is_wrong, 1),
        wrong: Reported(LAUNCH_TIMEOUT, &["`meet` on GPU 0", "`meet` on GPU 1", "kernels.cu"]),
    },
    Pair {
        name: "a_value_that_is_never_written",
        program: |node, is_wrong| meet(node, false, if is_wrong { 2 } else { 1 }),
        wrong: Reported(LAUNCH_TIMEOUT, &["`meet` on GPU 0", "`meet` on GPU 1"]),
    },
    Pair {
        name: "a_kernel_without_its_partner",
        program: |node, is_wrong| {
            let [data, flag, out] = words(node, [(1, 1), (1, 1), (1, 1)])?;
            let send = run(0, "send", &[A(data), A(flag), I(SYSTEM), I(VOLATILE), I(0)]);
            let receive = run(1, "receive", &[A(data), A(flag), A(out), I(SYSTEM), I(VOLATILE), I(0)]);
            if is_wrong {
                node.launch(&[receive])?;
                node.launch(&[send])?;
            } else {
                node.launch(&[receive, send])?;
            }
            Ok(node.read(1, out, 1).map_err(Failed::from)? == [42])
        },
        wrong: Reported(LAUNCH_TIMEOUT, &["kernel `receive` on GPU 1 waits forever"]),
    },
    Pair {
        name: "a_relay_without_a_fence",
        program: |node, is_wrong| {
            node.enable_all(3).map_err(Failed::from)?;
            let words = |gpu| node.words(gpu, 1).map_err(Failed::from);
            let (data, first, second, out) = (words(2)?, words(1)?, words(2)?, words(2)?);
            node.launch(&[
                run(0, "send", &[A(data), A(first), I(SYSTEM), I(VOLATILE), I(0)]),
                run(1, "relay", &[A(first), A(second), choose(is_wrong, NO_FENCE, SYSTEM)]),
                run(2, "receive", &[A(data), A(second), A(out), I(SYSTEM), I(VOLATILE), I(0)]),
            ])?;
            Ok(node.read(2, out, 1).map_err(Failed::from)? == [42])
        },
        wrong: Reported(RACE, &["`send`", "`receive`"]),
    },
    Pair {
        name: "a_relay_with_a_device_fence",
        program: |node, is_wrong| {
            node.enable_all(3).map_err(Failed::from)?;
            let words = |gpu| node.words(gpu, 1).map_err(Failed::from);
            let (data, first, second, out) = (words(0)?, words(0)?, words(0)?, words(2)?);
            node.launch(&[
                run(0, "send", &[A(data), A(first), I(SYSTEM), I(VOLATILE), I(0)]),
                run(1, "relay", &[A(first), A(second), choose(is_wrong, DEVICE, SYSTEM)]),
                run(2, "receive", &[A(data), A(second), A(out), I(SYSTEM), I(VOLATILE), I(0)]),
            ])?;
            Ok(node.read(2, out, 1).map_err(Failed::from)? == [42])
        },
        wrong: Reported(RACE, &["`send`", "`receive`"]),
    },
    Pair {
        name: "store_buffering_without_a_fence",
        program: |node, is_wrong| announce(node, choose(is_wrong, NO_FENCE, SYSTEM)),
        wrong: Reported(RACE, &["`announce`"]),
    },
    Pair {
        name: "store_buffering_with_a_light_fence",
        program: |node, is_wrong| announce(node, choose(is_wrong, ACQUIRE_RELEASE, SYSTEM)),
        wrong: Reported(RACE, &["`announce`"]),
    },
    Pair {
        name: "store_buffering_with_a_device_fence",
        program: |node, is_wrong| announce(node, choose(is_wrong, DEVICE, SYSTEM)),
        wrong: Reported(RACE, &["`announce`"]),
    },
    Pair {
        name: "a_lock_of_device_scope",
        program: |node, is_wrong| locked(node, choose(is_wrong, 1, 0)),
        wrong: Reported(RACE, &["`count_locked`"]),
    },
    Pair {
        name: "a_lock_without_a_fence_after_it",
        program: |node, is_wrong| locked(node, choose(is_wrong, 2, 0)),
        wrong: Reported(RACE, &["`count_locked`"]),
    },
    Pair {
        name: "a_lock_without_a_fence_before_its_release",
        program: |node, is_wrong| locked(node, choose(is_wrong, 3, 0)),
        wrong: Reported(RACE, &["`count_locked`"]),
    },
    Pair {
        name: "a_lock_that_is_released_by_a_plain_write",
        program: |node, is_wrong| locked(node, choose(is_wrong, 4, 0)),
        wrong: Reported(RACE, &["`count_locked`"]),
    },
    Pair {
        name: "no_lock",
        program: |node, is_wrong| locked(node, choose(is_wrong, 5, 0)),
        wrong: Reported(RACE, &["`count_locked`"]),
    },
    Pair {
        name: "atomics_of_device_scope",
        program: |node, is_wrong| counted(node, choose(is_wrong, ATOMIC, ATOMIC_SYSTEM)),
        wrong: Reported(RACE, &["both accesses are atomic", "atomicAdd_system"]),
    },
    Pair {
        name: "a_sum_without_atomics",
        program: |node, is_wrong| counted(node, choose(is_wrong, PLAIN, ATOMIC_SYSTEM)),
        wrong: Reported(RACE, &["`count`"]),
    },
    Pair {
        name: "one_byte_for_two_gpus",
        program: |node, is_wrong| {
            let [data] = words(node, [(0, 1)])?;
            node.launch(&[
                run(0, "write_byte", &[A(data), I(0), I(1)]),
                run(1, "write_byte", &[A(data), choose(is_wrong, 0, 1), I(2)]),
            ])?;
            Ok(node.read(0, data, 1).map_err(Failed::from)? == [0x201])
        },
        wrong: Reported(RACE, &["`write_byte`"]),
    },
    Pair {
        name: "no_peer_access",
        program: |node, is_wrong| {
            if !is_wrong {
                node.enable(1, 0).map_err(Failed::from)?;
            }
            copied(node)
        },
        wrong: Reported(ILLEGAL_ADDRESS, &["cuCtxEnablePeerAccess", "GPU 0"]),
    },
    Pair {
        name: "peer_access_in_the_other_direction",
        program: |node, is_wrong| {
            let [from, to] = if is_wrong { [0, 1] } else { [1, 0] };
            node.enable(from, to).map_err(Failed::from)?;
            copied(node)
        },
        wrong: Reported(ILLEGAL_ADDRESS, &["only its own GPU's memory", "cuCtxEnablePeerAccess"]),
    },
    Pair {
        name: "a_pool_without_access",
        program: |node, is_wrong| {
            // Peer access between contexts doesn't include memory in pools.
            let [to] = words(node, [(1, 8)])?;
            if !is_wrong {
                node.share_pool(0, 1).map_err(Failed::from)?;
            }
            let from = node.pooled(0, 8).map_err(Failed::from)?;
            node.launch(&[run(1, "copy", &[A(from), A(to), I(8)]).shape(1, 32)])?;
            Ok(true)
        },
        wrong: Reported(ILLEGAL_ADDRESS, &["GPU 0", "cuMemPoolSetAccess"]),
    },
    Pair {
        name: "a_mapping_without_access",
        program: |node, is_wrong| {
            let to = node.words(1, 8).map_err(Failed::from)?;
            let from = node.mapped(0, (!is_wrong).then_some(1)).map_err(Failed::from)?;
            node.launch(&[run(1, "copy", &[A(from), A(to), I(8)]).shape(1, 32)])?;
            Ok(true)
        },
        wrong: Reported(ILLEGAL_ADDRESS, &["GPU 0", "cuMemSetAccess"]),
    },
    Pair {
        name: "a_read_beyond_a_peer_s_buffer",
        program: |node, is_wrong| {
            let [from, to] = words(node, [(0, 8), (1, 9)])?;
            let copy = [A(from), A(to), choose(is_wrong, 9, 8)];
            node.launch(&[run(1, "copy", &copy).shape(1, 32)])?;
            Ok(true)
        },
        wrong: Reported(ILLEGAL_ADDRESS, &["just past the end of the buffer of 32 bytes"]),
    },
    Pair {
        name: "a_peer_s_bytes_that_nothing_wrote",
        program: |node, is_wrong| {
            let [to] = words(node, [(1, 8)])?;
            let from = match is_wrong {
                true => node.unwritten(0, 8),
                false => node.words(0, 8),
            };
            let from = from.map_err(Failed::from)?;
            node.launch(&[run(1, "copy", &[A(from), A(to), I(8)]).shape(1, 32)])?;
            Ok(true)
        },
        wrong: Reported(RACE, &["reads bytes that nothing wrote"]),
    },
    Pair {
        name: "a_peer_s_buffer_that_is_freed",
        program: |node, is_wrong| {
            let [from, to] = words(node, [(0, 8), (1, 8)])?;
            if is_wrong {
                node.gpu(0).map_err(Failed::from)?.0.bind_to_thread().map_err(Failed::from)?;
                // SAFETY: it frees what was allocated.
                unsafe { result::free_sync(from) }.map_err(Failed::from)?;
            }
            node.launch(&[run(1, "copy", &[A(from), A(to), I(8)]).shape(1, 32)])?;
            Ok(true)
        },
        wrong: Reported(ILLEGAL_ADDRESS, &["GPU 0"]),
    },
    Pair {
        name: "kernels_that_no_flag_orders",
        program: |node, is_wrong| {
            let [from, to] = words(node, [(0, 64), (1, 64)])?;
            let fill = run(0, "fill", &[A(from), I(5), I(64)]).shape(2, 32);
            let copy = run(1, "copy", &[A(from), A(to), I(64)]).shape(2, 32);
            if is_wrong {
                node.launch(&[fill, copy])?;
            } else {
                node.launch(&[fill])?;
                node.launch(&[copy])?;
            }
            Ok(node.read(1, to, 64).map_err(Failed::from)? == [5; 64])
        },
        wrong: Reported(RACE, &["`fill`", "`copy`", "no flag and no barrier"]),
    },
];

/// The threads of a block send, and those of another block receive.
fn block(node: &Node, send: Arg, receive: Arg) -> anyhow::Result<bool> {
    let [data, flag, out] = words(node, [(1, 128), (1, 1), (1, 128)])?;
    node.launch(&[
        run(0, "send_block", &[A(data), A(flag), send]).shape(1, 128),
        run(1, "receive_block", &[A(data), A(flag), A(out), receive]).shape(1, 128),
    ])?;
    Ok(node.read(1, out, 128).map_err(Failed::from)? == (0..128).rev().collect::<Vec<_>>())
}

/// The lanes of a warp send, and those of another warp receive.
fn warp(node: &Node, send: Arg, receive: Arg) -> anyhow::Result<bool> {
    let [data, flag, out] = words(node, [(1, 32), (1, 1), (1, 32)])?;
    node.launch(&[
        run(0, "send_warp", &[A(data), A(flag), send]).shape(1, 32),
        run(1, "receive_warp", &[A(data), A(flag), A(out), receive]).shape(1, 32),
    ])?;
    Ok(node.read(1, out, 32).map_err(Failed::from)? == (0..32).rev().collect::<Vec<_>>())
}

/// Four blocks send, and one block waits for `waits_for` of them.
fn blocks(node: &Node, fence: Arg, how: Arg, waits_for: Arg) -> anyhow::Result<bool> {
    let [data, count, out] = words(node, [(1, 128), (1, 1), (1, 128)])?;
    node.launch(&[
        run(0, "send_blocks", &[A(data), A(count), fence, how]).shape(4, 32),
        run(1, "receive_blocks", &[A(data), A(count), A(out), waits_for, I(128)]).shape(1, 32),
    ])?;
    let sent: Vec<u32> = (0..128).map(|at| at / 32).collect();
    Ok(node.read(1, out, 128).map_err(Failed::from)? == sent)
}

/// Sends three rounds through one buffer.
fn rounds(node: &Node, acked: Arg, same: Arg) -> anyhow::Result<bool> {
    let [data, flag, ack, out] = words(node, [(1, 1), (1, 1), (0, 1), (1, 3)])?;
    node.launch(&[
        run(0, "send_rounds", &[A(data), A(flag), A(ack), I(3), acked, same.clone()]),
        run(1, "receive_rounds", &[A(data), A(flag), A(ack), A(out), I(3), same]),
    ])?;
    Ok(node.read(1, out, 3).map_err(Failed::from)? == [101, 102, 103])
}

/// Two kernels exchange a word each.
fn meet(node: &Node, is_wrong: bool, target: i32) -> anyhow::Result<bool> {
    let [flag_0, flag_1, data_0, data_1, out_0, out_1] =
        words(node, [(0, 1), (1, 1), (0, 1), (1, 1), (0, 1), (1, 1)])?;
    let last = I(is_wrong.into());
    node.launch(&[
        run(0, "meet", &[A(flag_0), A(flag_1), A(data_0), A(data_1), A(out_0), last.clone(), I(target)]),
        run(1, "meet", &[A(flag_1), A(flag_0), A(data_1), A(data_0), A(out_1), last, I(target)]),
    ])?;
    let outs = [node.read(0, out_0, 1).map_err(Failed::from)?, node.read(1, out_1, 1).map_err(Failed::from)?];
    Ok(outs == [[7], [7]])
}

/// Two kernels announce themselves. At most one of them may count.
fn announce(node: &Node, fence: Arg) -> anyhow::Result<bool> {
    let [flag_0, flag_1, data] = words(node, [(0, 1), (1, 1), (0, 1)])?;
    node.launch(&[
        run(0, "announce", &[A(flag_0), A(flag_1), A(data), fence.clone()]),
        run(1, "announce", &[A(flag_1), A(flag_0), A(data), fence]),
    ])?;
    Ok(node.read(0, data, 1).map_err(Failed::from)?[0] <= 1)
}

/// Two kernels count under a lock.
fn locked(node: &Node, how: Arg) -> anyhow::Result<bool> {
    let [lock, count] = words(node, [(0, 1), (1, 1)])?;
    node.launch(&[
        run(0, "count_locked", &[A(lock), A(count), I(5), how.clone()]),
        run(1, "count_locked", &[A(lock), A(count), I(5), how]),
    ])?;
    Ok(node.read(1, count, 1).map_err(Failed::from)? == [10])
}

/// Two kernels count with all their threads.
fn counted(node: &Node, how: Arg) -> anyhow::Result<bool> {
    let [count] = words(node, [(0, 1)])?;
    node.launch(&[
        run(0, "count", &[A(count), how.clone()]).shape(2, 64),
        run(1, "count", &[A(count), how]).shape(2, 64),
    ])?;
    Ok(node.read(0, count, 1).map_err(Failed::from)? == [256])
}

/// A kernel on GPU 1 reads the memory of GPU 0.
fn copied(node: &Node) -> anyhow::Result<bool> {
    let (from, to) = (node.words(0, 8).map_err(Failed::from)?, node.words(1, 8).map_err(Failed::from)?);
    node.launch(&[run(1, "copy", &[A(from), A(to), I(8)]).shape(1, 32)])?;
    Ok(true)
}
