// Averages the tensors of a model in several ways, counts NCCL's calls, times them, and compares the results.

use std::process::{Command, ExitCode};

use anyhow::{Context, anyhow, ensure};
use clap::Parser;
use collectives::timing::gpu_milliseconds;
use cudarc::driver::{CudaSlice, CudaViewMut};
use cudarc::nccl::Comm;
use indicatif::{ProgressBar, ProgressStyle};
use init::rendezvous::rendezvous;
use lab::tier::whose_times;
use lab::{NcclLog, irregular};
use m03_grouping::fusion::{average_each, average_fused, average_grouped};

/// Average many small tensors over all GPUs: one call each, in one group, in one flat buffer
#[derive(Parser)]
#[command(after_help = "Example: cargo run -p m03_grouping -- --gpus 8 --tensors 100 --elements 1000")]
struct Arguments {
    /// Ranks, each with its own GPU
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    gpus: usize,
    /// Tensors of the model
    #[arg(long, default_value_t = 64, value_parser = at_least_one)]
    tensors: usize,
    /// Elements of the largest tensor; the others have fewer
    #[arg(long, default_value_t = 16, value_parser = at_least_one)]
    elements: usize,
    /// Rounds that are timed, after two that aren't
    #[arg(long, default_value_t = 10, value_parser = at_least_one)]
    rounds: usize,
    /// Print only the number of calls and of elements for each approach
    #[arg(long, hide = true)]
    count: bool,
}

/// The largest accepted number. A product of two such numbers does not overflow.
const MOST: usize = 1_000_000;
/// The number of rounds that aren't timed.
const WARM_UPS: usize = 2;

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("a whole number from 1 to {MOST}"))
}

/// A way to average.
struct Way {
    name: &'static str,
    /// Whether the tensors are in one flat buffer from the start, so that NCCL sees one tensor.
    flat: bool,
    average: fn(&Comm, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>,
}

const WAYS: [Way; 4] = [
    Way { name: "one call each", flat: false, average: average_each },
    Way { name: "one group", flat: false, average: average_grouped },
    Way { name: "packed into one buffer", flat: false, average: average_fused },
    Way { name: "in one buffer from the start", flat: true, average: average_each },
];

impl Way {
    /// Returns the lengths of the tensors that NCCL sees.
    fn lengths(&self, lengths: &[usize]) -> Vec<usize> {
        if self.flat { vec![lengths.iter().sum()] } else { lengths.to_vec() }
    }
}

/// Exits with 0 if all averages are right, with 1 if one is wrong, and with 2 on an error.
fn main() -> ExitCode {
    lab::exit_code(run(&Arguments::parse()))
}

/// One rank's measurements of one way.
struct Seen {
    /// The duration of a round in milliseconds, by the GPU's clock.
    milliseconds: f64,
    /// The largest error of an element.
    error: f64,
}

/// Runs everything, and returns whether every result is right.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let &Arguments { gpus, tensors, elements, rounds, count } = arguments;
    // The lengths decrease from the largest to 1, and then start over.
    let lengths: Vec<usize> = (0..tensors).map(|tensor| elements - tensor % elements).collect();
    if count {
        count_calls(gpus, &lengths)?;
        return Ok(true);
    }
    println!("tier: {}", lab::attach(gpus)?);
    let counted = counted()?;
    let streams = lab::streams(gpus)?;
    let total: usize = lengths.iter().sum();
    println!("world size {gpus}, {tensors} tensors of {total} elements in all");
    println!("times:  {}\n", whose_times()?);
    println!("{:<28}  calls    bytes  µs a round  off by at most", "");
    let progress = ProgressBar::new((WAYS.len() * (WARM_UPS + rounds)) as u64);
    progress.set_style(ProgressStyle::with_template("{bar:40} round {pos} of {len}  {msg}")?);
    let mut good = true;
    for (way, [calls, elements]) in WAYS.iter().zip(counted) {
        let name = way.name;
        progress.set_message(name);
        let seen = rendezvous(&streams, |comm| one_way(&comm, way, &lengths, rounds, &progress))?;
        let slowest = 1e3 * seen.iter().map(|seen| seen.milliseconds).fold(0.0, f64::max);
        let error = seen.iter().map(|seen| seen.error).fold(0.0, f64::max);
        good &= error <= bound(gpus) && elements == total;
        let bytes = elements * size_of::<f32>();
        progress.suspend(|| {
            println!("{name:<28}  {calls:>5}  {bytes:>7}  {slowest:>10.1}  {error:>14.1e}");
        });
    }
    progress.finish_and_clear();
    println!("\nverdict: {}", if good { "the same averages in every way" } else { "FAILED" });
    Ok(good)
}

/// Returns a rank's number of calls and of elements for each way, from NCCL's log. A separate process writes the log, because
/// logging would distort the times.
fn counted() -> anyhow::Result<[[usize; 2]; WAYS.len()]> {
    let own = std::env::current_exe().context("where is this program?")?;
    let output = Command::new(own).args(std::env::args_os().skip(1)).arg("--count").output()?;
    let (text, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "the calls couldn't be counted: {}", why.trim_end());
    // NCCL before 2.22 also prints its version there.
    let lines = text.lines().filter_map(|line| line.strip_prefix(COUNTED)?.split_once(' '));
    let pairs = lines.map(|(calls, elements)| Ok([calls.parse()?, elements.parse()?]));
    let each: Vec<[usize; 2]> = pairs.collect::<anyhow::Result<_>>()?;
    each.try_into().map_err(|each| anyhow!("expected call counts for {} ways, got {each:?}", WAYS.len()))
}

/// The beginning of a line with a way's number of calls and of elements.
const COUNTED: &str = "counted: ";

/// Averages once in each way, and prints the number of calls and of elements of a rank on a line.
fn count_calls(gpus: usize, lengths: &[usize]) -> anyhow::Result<()> {
    // SAFETY: no other thread runs yet.
    let log = unsafe { NcclLog::open() };
    lab::attach(gpus)?;
    let streams = lab::streams(gpus)?;
    let mut before = 0;
    for way in WAYS {
        let lengths = way.lengths(lengths);
        rendezvous(&streams, |comm| {
            let stream = comm.stream();
            let tensors = lengths.iter().map(|&len| Ok(stream.alloc_zeros::<f32>(len)?));
            let mut tensors = tensors.collect::<anyhow::Result<Vec<_>>>()?;
            (way.average)(&comm, &mut tensors.iter_mut().map(CudaSlice::as_view_mut).collect::<Vec<_>>())?;
            Ok(stream.synchronize()?)
        })?;
        let calls = log.calls("AllReduce")?;
        let new = &calls[before..];
        ensure!(new.len().is_multiple_of(gpus), "{} calls by {gpus} ranks: {}", new.len(), way.name);
        println!("{COUNTED}{} {}", new.len() / gpus, new.iter().sum::<usize>() / gpus);
        before = calls.len();
    }
    Ok(())
}

/// Returns how far an average of values up to 1000 may be off. 1/n and each of n products of at most 1000/n round by 2⁻²⁴,
/// relatively. So do n − 1 sums of at most 1000, and the expected value itself.
fn bound(ranks: usize) -> f64 {
    1000.0 * (2.0 + ranks as f64) * f64::powi(2.0, -24)
}

/// Measures one way on one rank. Rank 0 shows the progress.
fn one_way(
    comm: &Comm,
    way: &Way,
    lengths: &[usize],
    rounds: usize,
    progress: &ProgressBar,
) -> anyhow::Result<Seen> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    // Each rank's tensors, one after another.
    let inputs: Vec<_> =
        (0..world_size).map(|rank| irregular::integers(rank, lengths.iter().sum())).collect();
    let (mut tensors, mut rest) = (Vec::new(), &inputs[rank][..]);
    for len in way.lengths(lengths) {
        let (tensor, others) = rest.split_at(len);
        tensors.push(stream.clone_htod(tensor)?);
        rest = others;
    }
    let mut views: Vec<_> = tensors.iter_mut().map(CudaSlice::as_view_mut).collect();
    // Only the first average is compared. Later rounds average equal values, which costs the same.
    (way.average)(comm, &mut views)?;
    let mut got = Vec::new();
    for view in &views {
        got.extend(stream.clone_dtoh(view)?);
    }
    let distance = |(index, got): (usize, &f32)| {
        let sum: f32 = inputs.iter().map(|input| input[index]).sum();
        (f64::from(*got) - f64::from(sum) / world_size as f64).abs()
    };
    let error = got.iter().enumerate().map(distance).fold(0.0, f64::max);
    let milliseconds = gpu_milliseconds(&stream, WARM_UPS, rounds, || {
        if rank == 0 {
            progress.inc(1);
        }
        (way.average)(comm, &mut views)
    })?;
    Ok(Seen { milliseconds, error })
}
