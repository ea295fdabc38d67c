//! Measures all-reduce through cudarc, and prints the same columns as nccl-tests: `cargo bench -p lab --bench nccl`.
//!
//! The benchmark accepts some of nccl-tests' flags: `-b` and `-e`, the first and last sizes in bytes; `-f`, the factor
//! between sizes; `-g`, the number of ranks; and `-n`, the number of timed calls at each size. For example,
//! `cargo bench -p lab --bench nccl -- -b 8 -e 64 -g 4`.
//!
//! `time`, `algbw`, and `busbw` are wall-clock results: on the virtual GPU, they show how long this CPU takes. `model`
//! is the time between events. The virtual GPU models this time for the machine that `VIRTUAL_GPU_TOPOLOGY` names; it
//! is not a measurement.
//!
//! With `--peers`, the benchmark compares these times with those of the installed MPI libraries, on 4 ranks:
//! `cargo bench -p lab --bench nccl -- --peers`. It compiles `all_reduce.c`, which makes the same calls.

mod peers;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUevent_flags;
use cudarc::nccl::safe::{Comm, Id, ReduceOp};

/// The number of bytes that a rank reduces at each size, so that all rows take about the same time.
const BYTES_IN_ALL: usize = 256 << 20;

/// The default sizes for the comparison with MPI libraries.
const SIZES_WITH_PEERS: [usize; 4] = [8, 1 << 20, 16 << 20, 64 << 20];

/// One rank's result for one size: seconds per call, according to the wall clock and to events.
struct Row {
    wall: f64,
    model: f64,
}

/// The parameters of the measurement.
struct Plan {
    /// The sizes in bytes, in ascending order.
    sizes: Vec<usize>,
    ranks: Vec<usize>,
    /// The number of calls at each size. By default, enough calls to reduce [`BYTES_IN_ALL`], at most 1,000.
    calls: Option<usize>,
    /// Whether to compare with MPI libraries.
    has_peers: bool,
}

impl Plan {
    /// Parses nccl-tests' flags.
    ///
    /// # Errors
    /// Fails if a flag is unknown or is not followed by a positive number.
    fn from_args(args: impl IntoIterator<Item = String>) -> anyhow::Result<Self> {
        let (mut first, mut last, mut factor) = (None, None, None);
        let (mut ranks, mut calls, mut has_peers) = (None, None, false);
        // Cargo adds `--bench`.
        let mut args = args.into_iter().filter(|arg| arg != "--bench");
        while let Some(flag) = args.next() {
            if flag == "--peers" {
                has_peers = true;
                continue;
            }
            let value = args.next().and_then(|value| value.parse::<usize>().ok()).filter(|&value| value > 0);
            let value = value.with_context(|| format!("{flag} must be followed by a positive number"))?;
            match flag.as_str() {
                "-b" => first = Some(value.next_multiple_of(4)),
                "-e" => last = Some(value),
                "-f" => factor = Some(value.max(2)),
                "-g" => ranks = Some(vec![value]),
                "-n" => calls = Some(value),
                _ => bail!("unknown flag {flag}; the flags are -b, -e, -f, -g, -n, and --peers"),
            }
        }
        let ranks = ranks.unwrap_or_else(|| if has_peers { vec![4] } else { vec![2, 4, 8] });
        let sizes = match (first, last, factor) {
            (None, None, None) if has_peers => SIZES_WITH_PEERS.to_vec(),
            _ => {
                let (first, last, factor) =
                    (first.unwrap_or(8), last.unwrap_or(64 << 20), factor.unwrap_or(8));
                let sizes = std::iter::successors(Some(first), |size| size.checked_mul(factor));
                let sizes: Vec<usize> = sizes.take_while(|&size| size <= last).collect();
                ensure!(!sizes.is_empty(), "-b {first} -e {last}: this range contains no sizes");
                sizes
            }
        };
        Ok(Self { sizes, ranks, calls, has_peers })
    }

    /// Returns the number of timed calls at a size.
    fn calls_of(&self, size: usize) -> usize {
        self.calls.unwrap_or((BYTES_IN_ALL / size).clamp(2, 1_000))
    }

    /// Returns the number of calls to make before that many timed calls.
    fn warm_up_of(calls: usize) -> usize {
        calls.min(20)
    }
}

fn main() -> anyhow::Result<()> {
    let plan = Plan::from_args(std::env::args().skip(1))?;
    println!("tier: {}", lab::attach(plan.ranks.iter().copied().max().unwrap_or(1))?);
    println!("# all_reduce, out of place; bandwidths in GB/s, times in us");
    for &ranks in &plan.ranks {
        if plan.has_peers {
            peers::compare(ranks, &plan)?;
            continue;
        }
        let rows = run(ranks, &plan)?;
        println!("# {ranks} ranks");
        println!(
            "# {:>10} {:>12} {:>8} {:>6} {:>6} {:>10} {:>8} {:>8} {:>12}",
            "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "model"
        );
        for (size, row) in plan.sizes.iter().zip(rows) {
            let algorithm = *size as f64 / row.wall / 1e9;
            let bus = bus_bandwidth(*size, row.wall, ranks);
            println!(
                "  {size:>10} {:>12} {:>8} {:>6} {:>6} {:>10.2} {algorithm:>8.3} {bus:>8.3} {:>12.2}",
                size / 4,
                "float",
                "sum",
                -1,
                row.wall * 1e6,
                row.model * 1e6
            );
        }
    }
    Ok(())
}

/// Returns the bus bandwidth in GB/s of an all-reduce that takes this many seconds (nccl-tests' `PERFORMANCE.md`).
fn bus_bandwidth(size: usize, seconds: f64, ranks: usize) -> f64 {
    size as f64 / seconds / 1e9 * 2.0 * (ranks - 1) as f64 / ranks as f64
}

/// Measures all sizes and returns one row for each, with the times of the slowest rank.
fn run(ranks: usize, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let sizes = &plan.sizes;
    let nccl = |error| anyhow!("NCCL: {error:?}");
    let id = Id::new().map_err(nccl)?;
    let start = Barrier::new(ranks);
    let of_ranks = lab::each_rank(ranks, |rank| {
        let context = CudaContext::new(rank)?;
        // SAFETY: each rank has one stream, which orders all its work. nccl-tests records no events between calls,
        // either.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let comm = Comm::from_rank(stream.clone(), rank, ranks, id).map_err(nccl)?;
        let most = sizes.iter().max().map_or(0, |size| size / 4);
        let send = stream.clone_htod(&vec![1.0f32; most])?;
        let mut receive = stream.alloc_zeros::<f32>(most)?;
        let mut rows = Vec::new();
        for size in sizes {
            let count = size / 4;
            let calls = plan.calls_of(*size);
            let mut elapsed = Duration::ZERO;
            let mut model = 0.0;
            for (times, counts) in [(Plan::warm_up_of(calls), false), (calls, true)] {
                stream.synchronize()?;
                start.wait();
                let since = Instant::now();
                let first = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
                for _ in 0..times {
                    let mut target = receive.slice_mut(..count);
                    comm.all_reduce(&send.slice(..count), &mut target, &ReduceOp::Sum).map_err(nccl)?;
                }
                let last = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
                stream.synchronize()?;
                if counts {
                    elapsed = since.elapsed();
                    model = f64::from(first.elapsed_ms(&last)?) / 1e3;
                }
            }
            rows.push(Row { wall: elapsed.as_secs_f64() / calls as f64, model: model / calls as f64 });
        }
        Ok(rows)
    })?;
    let slowest = |row: usize| {
        let rows = of_ranks.iter().map(|rows| &rows[row]);
        rows.fold(Row { wall: 0.0, model: 0.0 }, |most, row| Row {
            wall: most.wall.max(row.wall),
            model: most.model.max(row.model),
        })
    };
    Ok((0..sizes.len()).map(slowest).collect())
}
