//! All-reduce through cudarc, in the columns of nccl-tests: `cargo bench -p lab --bench nccl`.
//!
//! `time`, `algbw` and `busbw` are of the wall clock: on the virtual GPU, what this CPU needs. `model` is the time that
//! events tell, which the virtual GPU works out for the machine of `VIRTUAL_GPU_TOPOLOGY`; it is no measurement.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUevent_flags;
use cudarc::nccl::safe::{Comm, Id, ReduceOp};

/// Bytes, from 8 to 64 MiB, each eight times the last.
const SIZES: [usize; 9] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20];
/// Bytes that a rank reduces at each size, so that every row takes about as long.
const BYTES_IN_ALL: usize = 128 << 20;

/// What one rank saw of a size: seconds of the wall clock and of events, for each call.
struct Row {
    wall: f64,
    model: f64,
}

fn main() -> anyhow::Result<()> {
    println!("tier: {}", lab::attach(8)?);
    println!("# all_reduce, out of place; bandwidths in GB/s, times in us");
    for ranks in [2, 4, 8] {
        let rows = run(ranks)?;
        println!("# {ranks} ranks");
        println!(
            "# {:>10} {:>12} {:>8} {:>6} {:>6} {:>10} {:>8} {:>8} {:>12}",
            "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "model"
        );
        for (size, row) in SIZES.iter().zip(rows) {
            let algorithm = *size as f64 / row.wall / 1e9;
            let bus = algorithm * 2.0 * (ranks - 1) as f64 / ranks as f64;
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

/// One row for each size; the slowest rank's.
fn run(ranks: usize) -> anyhow::Result<Vec<Row>> {
    let nccl = |error| anyhow!("NCCL: {error:?}");
    let id = Id::new().map_err(nccl)?;
    let start = Barrier::new(ranks);
    let of_ranks = lab::each_rank(ranks, |rank| {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let comm = Comm::from_rank(stream.clone(), rank, ranks, id).map_err(nccl)?;
        let most = SIZES[SIZES.len() - 1] / 4;
        let send = stream.clone_htod(&vec![1.0f32; most])?;
        let mut receive = stream.alloc_zeros::<f32>(most)?;
        let mut rows = Vec::new();
        for size in SIZES {
            let count = size / 4;
            let calls = (BYTES_IN_ALL / size).clamp(2, 1_000);
            let mut elapsed = Duration::ZERO;
            let mut model = 0.0;
            for (times, counts) in [(calls.min(20), false), (calls, true)] {
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
    Ok((0..SIZES.len()).map(slowest).collect())
}
