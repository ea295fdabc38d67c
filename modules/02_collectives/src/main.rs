// Prints nccl-tests' table for one operation and some types, and compares a straight-line fit with the last row.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::result::{NcclError, group_end, group_start};
use cudarc::nccl::{Comm, NcclType, ReduceOp};
use half::{bf16, f16};
use init::rendezvous::rendezvous;
use lab::{HostGroup, Readable, irregular};
use m02_collectives::backends::{staged_sum, times_as_long};
use m02_collectives::bandwidth::{Operation, Row, fit, measure, operation_bytes};

/// What the ranks of a group do together
#[derive(Parser)]
#[command(
    after_help = "Example: cargo run -p m02_collectives -- --gpus 4 --operation all-gather --types float,half --to 16M"
)]
struct Arguments {
    /// Ranks, each with its own GPU
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    gpus: u64,
    /// The operation to measure
    #[arg(long, value_enum, default_value_t = Measured::AllReduce)]
    operation: Measured,
    /// The elements' types, by NCCL's names
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Type::Float])]
    types: Vec<Type>,
    /// The smallest size, in bytes; K, M and G are 2¹⁰, 2²⁰ and 2³⁰
    #[arg(long, default_value = "1K", value_parser = size)]
    from: usize,
    /// The largest size
    #[arg(long, default_value = "1M", value_parser = size)]
    to: usize,
    /// How many times larger each size is than the one before it
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=1024))]
    factor: u64,
    /// Write the table to a file as well
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measured {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    /// Each rank sends each rank a shard of its own
    AllToAll,
    /// The root receives each rank's shard
    Gather,
    /// The root sends each rank a shard
    Scatter,
    /// Each rank sends to the next one
    SendReceive,
}

impl Measured {
    /// Returns the collective whose bytes and bus bandwidth are computed in the same way (nccl-tests, `src/alltoall.cu`,
    /// `gather.cu`, `scatter.cu`, and `sendrecv.cu`).
    fn counted_as(self) -> Operation {
        match self {
            Self::AllReduce => Operation::AllReduce,
            Self::Broadcast | Self::SendReceive => Operation::Broadcast,
            Self::Reduce => Operation::Reduce,
            Self::AllGather | Self::AllToAll | Self::Gather | Self::Scatter => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
        }
    }

    /// Returns how many elements a rank sends and receives, for shards of `count` elements.
    fn lengths(self, ranks: usize, count: usize) -> (usize, usize) {
        match self {
            Self::AllGather | Self::Gather => (count, count * ranks),
            Self::ReduceScatter | Self::Scatter => (count * ranks, count),
            Self::AllToAll => (count * ranks, count * ranks),
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendReceive => (count, count),
        }
    }

    /// Returns whether only the root receives data.
    fn ends_at_the_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Gather)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Type {
    Uint8,
    Int32,
    Half,
    Bfloat16,
    Float,
    Double,
}

/// Parses a size in bytes, from 1 to 4G.
fn size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.to_ascii_uppercase().chars().last() {
        Some('K') => (&text[..text.len() - 1], 1 << 10),
        Some('M') => (&text[..text.len() - 1], 1 << 20),
        Some('G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    bytes
        .filter(|bytes| (1..=4 << 30).contains(bytes))
        .ok_or_else(|| "a size from 1 to 4G, such as 4096, 64K or 16M".to_owned())
}

/// Exits with 0 if every result is right, with 1 if one is wrong, and with 2 on an error.
fn main() -> ExitCode {
    lab::exit_code(run(&Arguments::parse()))
}

/// Runs everything, and returns whether every result is right.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let &Arguments { from, to, factor, .. } = arguments;
    let (ranks, operation) = (usize::try_from(arguments.gpus)?, arguments.operation);
    ensure!(from <= to, "there is no size from {from} to {to} bytes");
    let factor = usize::try_from(factor)?;
    let sizes: Vec<usize> = std::iter::successors(Some(from), |size| size.checked_mul(factor))
        .take_while(|size| *size <= to)
        .collect();
    println!("tier: {}", lab::attach(ranks)?);
    println!("# {operation:?} on {ranks} ranks, out of place; times are {}", lab::tier::whose_times()?);
    print_columns();
    let streams = lab::streams(ranks)?;
    let mut good = true;
    let mut csv = String::from("operation,type,world_size,bytes,time_us,algbw_gbps,busbw_gbps,times\n");
    for &kind in &arguments.types {
        let tables = rendezvous(&streams, |comm| match kind {
            Type::Uint8 => table::<u8>(&comm, operation, kind, &sizes),
            Type::Int32 => table::<i32>(&comm, operation, kind, &sizes),
            Type::Half => table::<f16>(&comm, operation, kind, &sizes),
            Type::Bfloat16 => table::<bf16>(&comm, operation, kind, &sizes),
            Type::Float => table::<f32>(&comm, operation, kind, &sizes),
            Type::Double => table::<f64>(&comm, operation, kind, &sizes),
        })?;
        let (rows, wrong) = tables.into_iter().next().unwrap_or_default();
        ensure!(
            !rows.is_empty(),
            "no size from {from} to {to} bytes has an element for each of {ranks} ranks"
        );
        good &= wrong == 0;
        predict(&rows);
        let clock = lab::tier::whose_times()?;
        for Row { bytes, microseconds, algbw, busbw } in rows {
            let (operation, kind) = (name(&operation), name(&kind));
            writeln!(
                csv,
                "{operation},{kind},{ranks},{bytes},{microseconds:.3},{algbw:.6},{busbw:.6},\"{clock}\""
            )?;
        }
    }
    if let Some(file) = &arguments.csv {
        std::fs::write(file, csv).with_context(|| format!("can't write {}", file.display()))?;
    }
    if operation == Measured::AllReduce {
        good &= backends(&streams, to)?;
    }
    println!("verdict: {}", if good { "every result is right" } else { "WRONG RESULTS" });
    Ok(good)
}

fn print_columns() {
    let columns = [
        ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"],
        ["(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", ""],
    ];
    for [size, count, kind, redop, root, time, algbw, busbw, wrong] in columns {
        println!(
            "# {size:>10} {count:>12} {kind:>8} {redop:>7} {root:>6} {time:>9} {algbw:>7} {busbw:>7} {wrong:>7}"
        );
    }
}

/// An element type to measure. Sums of small whole numbers are exact in it, in any order.
trait Measurable: NcclType + DeviceRepr + ValidAsZeroBits + Copy + PartialEq + From<u8> {}
impl<T: NcclType + DeviceRepr + ValidAsZeroBits + Copy + PartialEq + From<u8>> Measurable for T {}

/// The root of the operations that have one.
const ROOT: usize = 0;
/// Values are below this number, so that a sum over 64 ranks stays below 256. Up to there, `bf16` is exact and `u8`
/// does not overflow.
const VALUES: usize = 4;

/// After this many elements, a rank's values repeat.
const PERIOD: usize = 7 * VALUES;

/// Returns a rank's value at an index.
fn value(rank: usize, at: usize) -> u8 {
    ((rank + at + at / 7) % VALUES) as u8
}

/// Returns one row for each size, which rank 0 also prints, and the number of wrong elements on all ranks. If the operation has
/// shards, the size is that of all shards together, rounded down so that they are equal. Sizes with empty shards are skipped.
fn table<T: Measurable>(
    comm: &Comm,
    operation: Measured,
    kind: Type,
    sizes: &[usize],
) -> anyhow::Result<(Vec<Row>, u32)> {
    let (rank, ranks, stream) = (comm.rank(), comm.world_size(), comm.stream());
    // Computed once: in a build without optimization, adding the values of all ranks for each element would take seconds.
    let sums: Vec<u8> = (0..PERIOD).map(|at| (0..ranks).map(|rank| value(rank, at)).sum()).collect();
    let mut rows = Vec::new();
    let mut all_wrong = 0;
    for size in sizes {
        let elements = size / size_of::<T>();
        let counted = operation.counted_as();
        let shares = operation_bytes(counted, ranks, 1, 1);
        let count = elements / shares;
        if count == 0 {
            continue;
        }
        let bytes = operation_bytes(counted, ranks, count, size_of::<T>());
        let (sent, received) = operation.lengths(ranks, count);
        let own: Vec<T> = (0..sent).map(|at| value(rank, at).into()).collect();
        let send = stream.clone_htod(&own)?;
        let mut recv = stream.alloc_zeros::<T>(received)?;
        let row = measure(&stream, counted, ranks, bytes, || launch(comm, operation, &send, &mut recv))?;
        let got = stream.clone_dtoh(&recv)?;
        stream.synchronize()?;
        // If only the root receives data, the other ranks have nothing to compare.
        let got = if operation.ends_at_the_root() && rank != ROOT { &[][..] } else { &got };
        let expected = |at| T::from(expected(operation, &sums, rank, ranks, count, at));
        let wrong = got.iter().enumerate().filter(|&(at, &got)| got != expected(at)).count();
        let mut on_all = stream.clone_htod(&[u32::try_from(wrong)?])?;
        comm.all_reduce_in_place(&mut on_all, &ReduceOp::Sum).readable()?;
        let wrong = stream.clone_dtoh(&on_all)?[0];
        all_wrong += wrong;
        if rank == 0 {
            print_row(operation, kind, count, &row, wrong);
        }
        rows.push(row);
    }
    Ok((rows, all_wrong))
}

/// Enqueues the operation once.
fn launch<T: Measurable>(
    comm: &Comm,
    operation: Measured,
    send: &CudaSlice<T>,
    recv: &mut CudaSlice<T>,
) -> anyhow::Result<()> {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    // The ranges of peers. With several peers, peer `i` of a range gets shard `i` of the buffer; a single peer gets all
    // of it.
    let (all, next, previous) = (0..ranks, (rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let only = |peer: usize| peer..peer + 1;
    let at_root = |peers: Range<usize>| if rank == ROOT { peers } else { 0..0 };
    match operation {
        Measured::AllReduce => comm.all_reduce(send, recv, &ReduceOp::Sum).map(drop),
        Measured::Broadcast => comm.broadcast(Some(send), recv, ROOT as i32).map(drop),
        Measured::Reduce => comm.reduce(send, Some(recv), &ReduceOp::Sum, ROOT as i32).map(drop),
        Measured::AllGather => comm.all_gather(send, recv).map(drop),
        Measured::ReduceScatter => comm.reduce_scatter(send, recv, &ReduceOp::Sum).map(drop),
        Measured::AllToAll => exchange(comm, send, recv, all.clone(), all),
        Measured::Gather => exchange(comm, send, recv, only(ROOT), at_root(all)),
        Measured::Scatter => exchange(comm, send, recv, at_root(all), only(ROOT)),
        Measured::SendReceive => exchange(comm, send, recv, only(next), only(previous)),
    }
    .readable()
}

/// Sends to the ranks `to` and receives from the ranks `from`, in one group. The buffers are divided equally among these ranks.
fn exchange<T: Measurable>(
    comm: &Comm,
    send: &CudaSlice<T>,
    recv: &mut CudaSlice<T>,
    to: Range<usize>,
    from: Range<usize>,
) -> Result<(), NcclError> {
    let shard = |len: usize, peers: &Range<usize>, peer: usize| {
        let count = len / peers.len();
        let first = (peer - peers.start) * count;
        first..first + count
    };
    group_start()?;
    let sent =
        to.clone().try_for_each(|peer| comm.send(&send.slice(shard(send.len(), &to, peer)), peer as i32));
    let received = from.clone().try_for_each(|peer| {
        let range = shard(recv.len(), &from, peer);
        comm.recv(&mut recv.slice_mut(range), peer as i32).map(drop)
    });
    let ended = group_end();
    sent.and(received).and(ended.map(drop))
}

/// Returns the value that a rank must have received at an index. `sums` are the first [`PERIOD`] sums over all ranks.
fn expected(operation: Measured, sums: &[u8], rank: usize, ranks: usize, count: usize, at: usize) -> u8 {
    let sum = |at: usize| sums[at % PERIOD];
    let (shard, within) = (at / count, at % count);
    match operation {
        Measured::AllReduce | Measured::Reduce => sum(at),
        Measured::Broadcast => value(ROOT, at),
        Measured::AllGather | Measured::Gather => value(shard, within),
        Measured::ReduceScatter => sum(rank * count + at),
        Measured::AllToAll => value(shard, rank * count + within),
        Measured::Scatter => value(ROOT, rank * count + at),
        Measured::SendReceive => value((rank + ranks - 1) % ranks, at),
    }
}

/// Returns the name of an option's value on the command line.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Prints a row in nccl-tests' columns.
fn print_row(operation: Measured, kind: Type, count: usize, row: &Row, wrong: u32) {
    let Row { bytes, microseconds, algbw, busbw } = row;
    let redop = match operation {
        Measured::AllReduce | Measured::Reduce | Measured::ReduceScatter => "sum",
        _ => "none",
    };
    let root = match operation {
        Measured::Broadcast | Measured::Reduce | Measured::Gather | Measured::Scatter => ROOT.to_string(),
        _ => "-1".to_owned(),
    };
    let kind = name(&kind);
    let [algbw, busbw] = [algbw, busbw].map(|bandwidth| shown(*bandwidth));
    println!(
        "  {bytes:>10} {count:>12} {kind:>8} {redop:>7} {root:>6} {microseconds:>9.2} {algbw:>7} {busbw:>7} {wrong:>7}"
    );
}

/// Formats a bandwidth with two decimals, or with four if it is below 1.
fn shown(bandwidth: f64) -> String {
    if bandwidth < 1.0 { format!("{bandwidth:.4}") } else { format!("{bandwidth:.2}") }
}

/// Fits a line to all rows but the last, and prints its prediction for the last row.
fn predict(rows: &[Row]) {
    let Some((last, others)) = rows.split_last() else { return };
    match fit(others) {
        Ok(line) => {
            let (predicted, took) = (line.microseconds(last.bytes), last.microseconds);
            println!(
                "# all but the last: {:.2} us + size / {} GB/s; so the last should take {predicted:.2} us. It took {took:.2} \
                 ({:+.1}%)",
                line.alpha,
                shown(1e-3 / line.beta),
                (took / predicted - 1.0) * 100.0
            );
        }
        Err(error) => println!("# no prediction: {error}"),
    }
}

/// Sums this many bytes with both backends, but at most 4 MiB, and prints how their times compare. Returns whether the sums are
/// the same.
fn backends(streams: &[Arc<CudaStream>], bytes: usize) -> anyhow::Result<bool> {
    const ROUNDS: usize = 3;
    // In a development build, the host takes about 15 ns to add a number, and each rank adds the numbers of all ranks.
    const MOST: usize = 4 << 20;
    let len = (bytes.min(MOST) / size_of::<f32>()).max(1);
    let group = HostGroup::new(streams.len());
    let compared = rendezvous(streams, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let values = irregular::integers(rank, len);
        let (mut staged, mut by_nccl) = (stream.clone_htod(&values)?, stream.clone_htod(&values)?);
        staged_sum(&group, rank, &stream, &mut staged.as_view_mut())?;
        comm.all_reduce_in_place(&mut by_nccl, &ReduceOp::Sum).readable()?;
        let same = stream.clone_dtoh(&staged)? == stream.clone_dtoh(&by_nccl)?;
        let times = times_as_long(
            &stream,
            ROUNDS,
            || staged_sum(&group, rank, &stream, &mut staged.as_view_mut()),
            || {
                comm.all_reduce_in_place(&mut by_nccl, &ReduceOp::Sum).readable()?;
                Ok(())
            },
        )?;
        stream.synchronize()?;
        Ok((same, times))
    })?;
    let same = compared.iter().all(|(same, _)| *same);
    let slowest = compared.iter().map(|(_, times)| *times).fold(0.0, f64::max);
    println!(
        "# staged through the host: {}, {slowest:.1} times as long as NCCL, for {} bytes of float",
        if same { "the same sums" } else { "OTHER SUMS" },
        len * size_of::<f32>()
    );
    Ok(same)
}
