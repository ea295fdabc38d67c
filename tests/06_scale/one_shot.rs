//! Checks for `scale/one_shot`: a kernel that sums the data of all ranks, ordered by flags.
//!
//! The kernel sums in rank order, so the bits of each sum are those of the same sum on the host. The signal and the
//! wait are also tried on their own, in two small kernels on two GPUs.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{anyhow, bail};
use cudarc::driver::{CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nccl::{Comm, ReduceOp};
use cudarc::nvrtc::Ptx;
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, Kernels, PeerMemory, Readable, Stopwatch, each_call_fails,
    enable_peer_access, ensure, irregular, returns_at_once, world_of_one,
};

use super::in_flight::to_its_end;
use crate::scale::one_shot::{BLOCKS, OneShot, THREADS, connect, kernel, signal, wait};

pub(crate) fn checks() -> Vec<Check> {
    let checks = vec![
        Check::new("one_shot::a_signal_publishes_what_was_written", a_signal_publishes_what_was_written)
            .calls(&["signal"])
            .min_ranks(2),
        Check::new("one_shot::a_wait_sees_what_was_written", a_wait_sees_what_was_written)
            .calls(&["wait"])
            .min_ranks(2),
        Check::new("one_shot::a_wait_accepts_a_later_round", a_wait_accepts_a_later_round)
            .calls(&["wait"])
            .min_ranks(2),
        Check::new("one_shot::each_rank_has_all_addresses", each_rank_has_all_addresses)
            .calls(&["connect"])
            .min_ranks(2),
        Check::new("one_shot::each_gpu_has_access_to_the_others", each_gpu_has_access_to_the_others)
            .calls(&["connect"])
            .min_ranks(2),
        Check::new("one_shot::the_rounds_have_numbers", the_rounds_have_numbers)
            .calls(&["OneShot::all_reduce"])
            .min_ranks(2),
        Check::new("one_shot::the_sum_has_the_same_bits_on_every_rank", the_sum_has_the_same_bits)
            .calls(&["OneShot::all_reduce"])
            .min_ranks(2),
        Check::new("one_shot::a_round_leaves_the_last_one_alone", a_round_leaves_the_last_one_alone)
            .calls(&["OneShot::all_reduce"])
            .min_ranks(2),
        Check::new("one_shot::one_rank_is_a_world_too", || sums(1)).calls(&["OneShot::all_reduce"]),
        Check::new("one_shot::the_host_does_not_wait", the_host_does_not_wait)
            .calls(&["OneShot::all_reduce"])
            .min_ranks(2),
        Check::new("one_shot::a_sum_is_one_kernel", a_sum_is_one_kernel).min_ranks(2),
        Check::new("one_shot::a_small_sum_is_faster_than_nccl", a_small_sum_is_faster_than_nccl)
            .calls(&["OneShot::all_reduce"])
            .min_ranks(2),
        Check::new("one_shot::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ];
    checks.into_iter().map(Check::reads_peer_memory).collect()
}

/// The right text of a signal and a wait, for the other side of what is tried.
const RIGHT_SIGNAL: &str = "st.release.sys.global.u32 [%there], %round;";
const RIGHT_WAIT: &str = "AGAIN:
    ld.acquire.sys.global.u32 %seen, [%here];
    setp.lt.u32 %again, %seen, %round;
    @%again bra AGAIN;";

/// Two kernels with one thread each. `send` writes a word, and then signals the rounds from the first to the last
/// one, and a gate. `receive` waits for the gate, if `gated` is not 0, and then for a round, and copies the word.
const MESSAGE: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry send(
    .param .u64 data, .param .u64 flag, .param .u64 own, .param .u64 gate,
    .param .u32 word, .param .u32 round, .param .u32 last)
{
    .reg .u64 %data, %here, %there, %gate;
    .reg .u32 %word, %round, %last, %seen, %one;
    .reg .pred %again, %more;
    ld.param.u64 %data, [data];
    ld.param.u64 %there, [flag];
    ld.param.u64 %here, [own];
    ld.param.u64 %gate, [gate];
    ld.param.u32 %word, [word];
    ld.param.u32 %round, [round];
    ld.param.u32 %last, [last];
    st.global.u32 [%data], %word;
ROUND:
    { SIGNAL }
    add.u32 %round, %round, 1;
    setp.le.u32 %more, %round, %last;
    @%more bra ROUND;
    mov.u32 %one, 1;
    st.release.sys.global.u32 [%gate], %one;
    ret;
}
.visible .entry receive(
    .param .u64 data, .param .u64 flag, .param .u64 peer, .param .u64 gate,
    .param .u32 gated, .param .u64 out, .param .u32 round)
{
    .reg .u64 %data, %here, %there, %gate, %out;
    .reg .u32 %word, %round, %seen, %gated, %open;
    .reg .pred %again, %closed;
    ld.param.u64 %data, [data];
    ld.param.u64 %here, [flag];
    ld.param.u64 %there, [peer];
    ld.param.u64 %gate, [gate];
    ld.param.u32 %gated, [gated];
    ld.param.u64 %out, [out];
    ld.param.u32 %round, [round];
GATE:
    ld.acquire.sys.global.u32 %open, [%gate];
    setp.lt.u32 %closed, %open, %gated;
    @%closed bra GATE;
    { WAIT }
    ld.global.u32 %word, [%data];
    st.global.u32 [%out], %word;
    ret;
}
";

/// The text of a signal and a wait, in the two kernels.
struct Message {
    ptx: String,
}

/// What one message does.
struct Rounds {
    /// The round that the receiver waits for.
    awaited: u32,
    /// The rounds that the sender signals.
    signaled: std::ops::RangeInclusive<u32>,
    /// Whether the receiver waits for all signals before it executes the wait.
    late: bool,
}

/// The memory of the sender and the receiver.
struct Ends {
    streams: Vec<Arc<CudaStream>>,
    /// The word, and a flag that nothing may write.
    sender: PeerMemory,
    /// The flag, the gate, the copy of the word, and a flag that nothing may write.
    receiver: PeerMemory,
}

impl Ends {
    fn new() -> anyhow::Result<Self> {
        let streams = lab::streams(2)?;
        let (sender, receiver) = (PeerMemory::zeroed(&streams[0], 2)?, PeerMemory::zeroed(&streams[1], 4)?);
        enable_peer_access(streams[0].context(), 1)?;
        enable_peer_access(streams[1].context(), 0)?;
        Ok(Self { streams, sender, receiver })
    }
}

impl Message {
    fn new(signal: &str, wait: &str) -> Self {
        Self { ptx: MESSAGE.replace("SIGNAL", signal).replace("WAIT", wait) }
    }

    /// Sends a word from GPU 0 to GPU 1, and returns the flag and the received word. An error begins with `situation`.
    fn send(&self, ends: &Ends, word: u32, rounds: Rounds, situation: &str) -> anyhow::Result<(u32, u32)> {
        self.launch(ends, word, rounds)
            .map_err(|error| anyhow!("{situation}\n{}", with_ptx(&error, &self.ptx)))?;
        let (sender, receiver) = (ends.sender.read()?, ends.receiver.read()?);
        ensure!(
            (sender[1], receiver[3]) == (0, 0),
            "{situation}\na flag was written at the wrong address: `%there` is on the peer's GPU, and `%here` on the thread's own"
        );
        Ok((receiver[0], receiver[2]))
    }

    /// Sends a word in a round, and checks that the flag and the word arrive.
    fn arrives(&self, ends: &Ends, word: u32, round: u32, situation: &str) -> anyhow::Result<()> {
        let rounds = Rounds { awaited: round, signaled: round..=round, late: false };
        let (flag, got) = self.send(ends, word, rounds, situation)?;
        ensure!(
            flag == round && got == word,
            "{situation}\nthe flag is {flag}, expected {round}; the word is {got}, expected {word}"
        );
        Ok(())
    }

    fn launch(&self, ends: &Ends, word: u32, rounds: Rounds) -> anyhow::Result<()> {
        let (data, unused) = (ends.sender.address(), ends.sender.address() + 4);
        let [flag, gate, out, other] = [0, 4, 8, 12].map(|offset| ends.receiver.address() + offset);
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let load = |stream: &Arc<CudaStream>| stream.context().load_module(Ptx::from_src(&self.ptx));
        let (from, to) = (&ends.streams[0], &ends.streams[1]);
        let (send, receive) = (load(from)?.load_function("send")?, load(to)?.load_function("receive")?);
        let gated = u32::from(rounds.late);
        let (first, last) = rounds.signaled.into_inner();
        let mut launch = to.launch_builder(&receive);
        launch.arg(&data).arg(&flag).arg(&unused).arg(&gate).arg(&gated).arg(&out).arg(&rounds.awaited);
        // SAFETY: the arguments are those of the kernel, and each address has a word.
        unsafe { launch.launch(one) }?;
        let mut launch = from.launch_builder(&send);
        launch.arg(&data).arg(&flag).arg(&other).arg(&gate).arg(&word).arg(&first).arg(&last);
        // SAFETY: as above.
        let launched = unsafe { launch.launch(one) };
        let waited = [to, from].map(|stream| stream.synchronize());
        launched?;
        waited.into_iter().try_for_each(|waited| Ok(waited?))
    }
}

/// Adds to an error the lines of PTX that it names.
fn with_ptx(error: &anyhow::Error, ptx: &str) -> anyhow::Error {
    let mut text = lab::explain::error_text(error);
    let number = |at: &str| at.split(|next: char| !next.is_ascii_digit()).next()?.parse::<usize>().ok();
    let mut named: Vec<usize> = text.split("PTX line ").skip(1).filter_map(number).collect();
    named.sort_unstable();
    named.dedup();
    for line in named {
        if let Some(words) = ptx.lines().nth(line.wrapping_sub(1)) {
            text += &format!("\n  PTX line {line}: {}", words.trim());
        }
    }
    if text.contains("__threadfence_system()") {
        text += "\n  `__threadfence_system()` of CUDA C is `fence.sc.sys` in PTX";
    }
    anyhow!(text)
}

fn a_signal_publishes_what_was_written() -> anyhow::Result<()> {
    let (ends, message) = (Ends::new()?, Message::new(signal(), RIGHT_WAIT));
    for (round, word) in [(1, 4711), (2, 1234), (3, 99)] {
        let situation = format!(
            "round {round}: a thread on GPU 0 writes a word, and then executes your signal. A thread on GPU 1 waits for it with a \
             right wait, and reads the word."
        );
        message.arrives(&ends, word, round, &situation)?;
    }
    Ok(())
}

fn a_wait_sees_what_was_written() -> anyhow::Result<()> {
    let (ends, message) = (Ends::new()?, Message::new(RIGHT_SIGNAL, wait()));
    for (round, word) in [(1, 4711), (2, 1234), (3, 99)] {
        let situation = format!(
            "round {round}: a thread on GPU 0 writes a word, and then sets the flag from {} to {round} with a right signal. A thread \
             on GPU 1 executes your wait, and reads the word.",
            round - 1
        );
        message.arrives(&ends, word, round, &situation)?;
    }
    Ok(())
}

fn a_wait_accepts_a_later_round() -> anyhow::Result<()> {
    let (ends, message) = (Ends::new()?, Message::new(RIGHT_SIGNAL, wait()));
    let situation = "a peer is one round ahead, so its flag is already 2. A thread executes your wait for round 1, which must end.";
    let rounds = Rounds { awaited: 1, signaled: 1..=2, late: true };
    let (_, got) = message.send(&ends, 4711, rounds, situation)?;
    ensure!(got == 4711, "{situation}\nthe word is {got}, expected 4711");
    Ok(())
}

fn each_rank_has_all_addresses() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let ranks = rendezvous(&streams_in_reverse(world_size)?, |comm| {
            let stream = comm.stream();
            let (data, flags) = (PeerMemory::zeroed(&stream, 3)?, PeerMemory::zeroed(&stream, 3)?);
            let numbers = connect(&comm, &data, &flags)?;
            let numbers = stream.clone_dtoh(&numbers)?;
            stream.synchronize()?;
            Ok((stream.context().ordinal() as u64, data, flags, numbers))
        })?;
        let table = |of: &dyn Fn(usize) -> [u64; 3]| (0..world_size).flat_map(of).collect::<Vec<u64>>();
        let right = table(&|rank| [ranks[rank].0, ranks[rank].1.address(), ranks[rank].2.address()]);
        let swapped = table(&|rank| [ranks[rank].0, ranks[rank].2.address(), ranks[rank].1.address()]);
        let numbered = table(&|rank| [rank as u64, ranks[rank].1.address(), ranks[rank].2.address()]);
        for (rank, (_, _, _, got)) in ranks.iter().enumerate() {
            ensure!(
                got.len() == right.len(),
                "rank {rank}: `connect` returned {} numbers with world size {world_size}; expected three for each rank",
                got.len()
            );
            let own = right[3 * rank..3 * rank + 3].repeat(world_size);
            Expected::new(rank, "the table that `connect` returned", &right)
                .if_instead(&vec![0; right.len()], "nothing was gathered")
                .if_instead(&swapped, "data and flags are swapped")
                .if_instead(&numbered, "a rank's number is not that of its GPU")
                .if_instead(&own, "each rank has its own numbers")
                .exactly(got)?;
        }
    }
    Ok(())
}

/// Reads a word.
const READ: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry read(.param .u64 from)
{
    .reg .u64 %from;
    .reg .u32 %word;
    ld.param.u64 %from, [from];
    ld.volatile.global.u32 %word, [%from];
    ret;
}
";

fn each_gpu_has_access_to_the_others() -> anyhow::Result<()> {
    // The largest world comes first, while no access is enabled.
    for world_size in lab::world_sizes().into_iter().rev() {
        let ranks = rendezvous(&streams_in_reverse(world_size)?, |comm| {
            let stream = comm.stream();
            let (data, flags) = (PeerMemory::zeroed(&stream, 3)?, PeerMemory::zeroed(&stream, 3)?);
            let numbers = connect(&comm, &data, &flags)?;
            let numbers = stream.clone_dtoh(&numbers)?;
            stream.synchronize()?;
            let read = stream.context().load_module(Ptx::from_src(READ))?.load_function("read")?;
            let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
            let failed = numbers.chunks_exact(3).enumerate().find_map(|(peer, numbers)| {
                let mut launch = stream.launch_builder(&read);
                launch.arg(&numbers[1]);
                // SAFETY: the kernel reads one word.
                let launched = unsafe { launch.launch(one) };
                let error = launched.map(drop).and_then(|()| stream.synchronize()).err()?;
                Some((peer, lab::explain::error_text(&error.into())))
            });
            // The memory stays until all ranks have read it.
            Ok((failed, [data, flags]))
        })?;
        for (rank, (failed, _)) in ranks.iter().enumerate() {
            if let Some((peer, error)) = failed {
                bail!(
                    "rank {rank}: after `connect`, a kernel on its GPU can't read the memory of rank {peer}, with world size {world_size}\n{error}"
                );
            }
        }
    }
    Ok(())
}

/// Returns streams for `connect`, on which rank 0 does not have GPU 0, unless it is alone.
fn streams_in_reverse(world_size: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    let mut streams = lab::streams(world_size)?;
    streams.reverse();
    Ok(streams)
}

/// Runs `work` on every rank of a world. The ranks' memory stays until all of them are done, even if some fail.
fn on_all_ranks<T: Send>(
    world_size: usize,
    capacity: usize,
    work: impl Fn(&Comm, &mut OneShot) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let kept = Mutex::new(Vec::new());
    rendezvous(&lab::streams(world_size)?, |comm| {
        let mut one_shot = OneShot::new(&comm, capacity)?;
        let worked = work(&comm, &mut one_shot);
        let waited = comm.stream().synchronize();
        kept.lock().unwrap_or_else(PoisonError::into_inner).push(one_shot);
        let worked = worked.and_then(|value| {
            waited?;
            Ok(value)
        });
        worked.map_err(|error| with_ptx(&error, &kernel()))
    })
}

/// Returns a rank's input in a round.
fn values(round: usize, rank: usize, n: usize) -> Vec<f32> {
    irregular::fractions(100 * round + rank, n)
}

/// Sums the inputs of these ranks in a round, in this order, as the kernel does.
fn sum_of(round: usize, ranks: impl Iterator<Item = usize>, n: usize) -> Vec<f32> {
    let mut sum = vec![0.0; n];
    for rank in ranks {
        sum.iter_mut().zip(values(round, rank, n)).for_each(|(sum, value)| *sum += value);
    }
    sum
}

/// More elements than the grid has threads, and odd.
const CAPACITY: usize = BLOCKS * THREADS + 277;

/// The number of elements in each round.
const LENGTHS: [usize; 6] = [1, CAPACITY, 333, 0, 0, 577];

fn the_rounds_have_numbers() -> anyhow::Result<()> {
    const CALLS: usize = 9;
    for world_size in lab::world_sizes() {
        let numbers = Mutex::new(vec![Vec::new(); world_size]);
        let worked = on_all_ranks(world_size, 9, |comm, one_shot| {
            let (input, mut output) = (comm.stream().alloc_zeros(9)?, comm.stream().alloc_zeros(9)?);
            let mut of_rank = vec![one_shot.round];
            for _ in 0..CALLS {
                one_shot.all_reduce(&input.as_view(), &mut output.as_view_mut())?;
                of_rank.push(one_shot.round);
            }
            numbers.lock().unwrap_or_else(PoisonError::into_inner)[comm.rank()] = of_rank;
            Ok(())
        });
        let numbers = numbers.into_inner().unwrap_or_else(PoisonError::into_inner);
        // A rank without numbers has failed, which is reported.
        let numbers: Vec<_> =
            numbers.into_iter().enumerate().filter(|(_, of_rank)| !of_rank.is_empty()).collect();
        for (rank, of_rank) in &numbers {
            ensure!(
                of_rank.is_sorted_by(|earlier, later| earlier < later),
                "rank {rank}: after 0 to {CALLS} calls of `all_reduce`, `round` is {of_rank:?}; expected a larger number after each call"
            );
            ensure!(
                *of_rank == numbers[0].1,
                "after 0 to {CALLS} calls of `all_reduce`, `round` is {of_rank:?} on rank {rank}, but {:?} on rank {}; expected the same",
                numbers[0].1,
                numbers[0].0
            );
        }
        worked?;
    }
    Ok(())
}

fn the_sum_has_the_same_bits() -> anyhow::Result<()> {
    lab::world_sizes().into_iter().try_for_each(sums)
}

/// Compares the sums of several rounds, and waits after each of them.
fn sums(world_size: usize) -> anyhow::Result<()> {
    on_all_ranks(world_size, CAPACITY, |comm, one_shot| {
        let (rank, stream) = (comm.rank(), comm.stream());
        for (round, n) in LENGTHS.into_iter().enumerate() {
            let own = values(round, rank, n);
            let input = Guarded::new(&stream, &own)?;
            let mut output = Guarded::new(&stream, &irregular::integers(900 + rank, n))?;
            one_shot.all_reduce(&input.view(), &mut output.view_mut())?;
            let got = output.read()?;
            compare(rank, world_size, round, &got)?;
            let name = "the input, which `all_reduce` must only read,";
            Expected::new(rank, name, &own).exactly(&input.read()?)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn compare(rank: usize, world_size: usize, round: usize, got: &[f32]) -> anyhow::Result<()> {
    let n = got.len();
    let right = sum_of(round, 0..world_size, n);
    let name = format!("the sum of {n} elements in call {round} with world size {world_size}");
    let mut expected = Expected::new(rank, &name, &right);
    if world_size > 1 {
        let backward = sum_of(round, (0..world_size).rev(), n);
        let around = sum_of(round, (0..world_size).map(|step| (rank + step) % world_size), n);
        expected = expected
            .if_instead(&values(round, rank, n), "it is this rank's input, without those of the others")
            .if_instead(&backward, "the ranks are summed in reverse order, which rounds in another way")
            .if_instead(&around, "each rank starts with its own input, so each rounds in another way");
    }
    expected.exactly(got)
}

/// Enqueues one round, and then several in a row. No host waits in between, so only the flags order the ranks.
fn a_round_leaves_the_last_one_alone() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size > 1) {
        in_a_row(world_size, &[CAPACITY])?;
        in_a_row(world_size, &LENGTHS).map_err(|error| {
            anyhow!(
                "a first round is right, but rounds that follow each other without a wait of the host are not: a rank writes data that \
                 a peer may still read in the round before, or reads data that a peer may not have written yet\n{error}"
            )
        })?;
    }
    Ok(())
}

/// Enqueues rounds with these lengths in a row, and compares their sums.
fn in_a_row(world_size: usize, lengths: &[usize]) -> anyhow::Result<()> {
    on_all_ranks(world_size, CAPACITY, |comm, one_shot| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let kernels = Kernels::load(stream.context())?;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (round, &n) in lengths.iter().enumerate() {
            inputs.push(stream.clone_htod(&values(round, rank, n))?);
            outputs.push(stream.alloc_zeros::<f32>(n)?);
        }
        stream.synchronize()?;
        for (round, (input, output)) in inputs.iter().zip(&mut outputs).enumerate() {
            if round % world_size == rank {
                kernels.spin(&stream, 20_000)?;
            }
            one_shot.all_reduce(&input.as_view(), &mut output.as_view_mut())?;
        }
        for (round, output) in outputs.iter().enumerate() {
            let got = stream.clone_dtoh(output)?;
            stream.synchronize()?;
            compare(rank, world_size, round, &got)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn the_host_does_not_wait() -> anyhow::Result<()> {
    on_all_ranks(2, 9, |comm, one_shot| {
        let stream = comm.stream();
        let (input, mut output) = (stream.alloc_zeros(9)?, stream.alloc_zeros(9)?);
        returns_at_once("OneShot::all_reduce", &stream, || {
            one_shot.all_reduce(&input.as_view(), &mut output.as_view_mut())
        })
    })?;
    Ok(())
}

fn a_sum_is_one_kernel() -> anyhow::Result<()> {
    on_all_ranks(2, 9, |comm, one_shot| {
        let stream = comm.stream();
        let (input, mut output) = (stream.alloc_zeros(9)?, stream.alloc_zeros(9)?);
        let budget = Budget::of("OneShot::all_reduce")
            .any_collectives(0)
            .messages(0)
            .allocations(0)
            .copies(0)
            .fills(0)
            .modules(0)
            .host_waits(0)
            .polls(0)
            .kernels(1)
            .stream_of(comm);
        budget.spend(|| one_shot.all_reduce(&input.as_view(), &mut output.as_view_mut()))
    })?;
    Ok(())
}

/// Compares modeled times. At these sizes, NCCL's latency is longer than the time for reading all data over the
/// links. The shortest time over several rounds and all ranks is that of a rank whose peers have already arrived.
fn a_small_sum_is_faster_than_nccl() -> anyhow::Result<()> {
    const ROUNDS: usize = 3;
    for world_size in lab::world_sizes().into_iter().filter(|&size| size > 1) {
        for n in [16, 64] {
            let times = on_all_ranks(world_size, n, |comm, one_shot| {
                let stream = comm.stream();
                let (input, mut output) = (stream.alloc_zeros::<f32>(n)?, stream.alloc_zeros::<f32>(n)?);
                let mut shortest = [f64::INFINITY; 2];
                for _ in 0..ROUNDS {
                    comm.all_reduce(&input, &mut output, &ReduceOp::Sum).readable()?;
                    let own = Stopwatch::start(&stream)?;
                    one_shot.all_reduce(&input.as_view(), &mut output.as_view_mut())?;
                    shortest[0] = shortest[0].min(own.microseconds()?);
                    let nccl = Stopwatch::start(&stream)?;
                    comm.all_reduce(&input, &mut output, &ReduceOp::Sum).readable()?;
                    shortest[1] = shortest[1].min(nccl.microseconds()?);
                }
                Ok(shortest)
            })?;
            let shortest =
                |which: usize| times.iter().map(|of_rank| of_rank[which]).fold(f64::INFINITY, f64::min);
            let (own, nccl) = (shortest(0), shortest(1));
            ensure!(
                own < nccl || !lab::tier::times_are_modeled(),
                "a sum of {n} elements over {world_size} ranks takes {own:.1} µs, but NCCL's all-reduce takes only {nccl:.1} µs"
            );
        }
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("OneShot::new", || {
        let comm = world_of_one()?;
        Ok(move || to_its_end(&comm, || OneShot::new(&comm, 9)))
    })?;
    each_call_fails("OneShot::all_reduce", || {
        let comm = world_of_one()?;
        let stream = comm.stream();
        let mut one_shot = OneShot::new(&comm, 9)?;
        let (input, mut output) = (stream.alloc_zeros(9)?, stream.alloc_zeros(9)?);
        Ok(move || to_its_end(&comm, || one_shot.all_reduce(&input.as_view(), &mut output.as_view_mut())))
    })
}
