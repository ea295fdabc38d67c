//! Tests `VIRTUAL_GPU_TOPOLOGY`, `NCCL_ALGO`, and `NCCL_PROTO`: their effect on times, and that bad values are refused
//! before anything runs.

use std::path::PathBuf;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUevent_flags;
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use lab::Check;

use crate::{child, contains};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("topology::an_unknown_preset_is_an_error", unknown_preset),
        Check::new("topology::a_file_s_bad_figure_is_named", bad_figure),
        Check::new("topology::a_file_changes_how_long_things_take", own_file),
        Check::new("topology::eight_gpus_reach_the_published_bandwidth", published),
        Check::new("topology::nccl_algo_changes_how_long_a_collective_takes", algorithm),
        Check::new("topology::an_unknown_algorithm_is_an_nccl_error", unknown_algorithm),
        Check::new("topology::a_collective_that_no_allowed_algorithm_can_run_is_refused", nothing_left),
    ]
}

/// Starts the driver.
pub(crate) fn start() -> anyhow::Result<()> {
    lab::attach(1).map(drop)
}

/// Starts the driver, which must refuse the topology, and returns its message.
fn refused(topology: &str) -> anyhow::Result<String> {
    let (well, said) = child::start("topology::start", &[("VIRTUAL_GPU_TOPOLOGY", topology)])?;
    assert!(!well, "{said}");
    Ok(said)
}

/// Writes a file that belongs to this process.
fn file(content: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("topology_{}.toml", std::process::id()));
    std::fs::write(&path, content)?;
    Ok(path)
}

fn unknown_preset() -> anyhow::Result<()> {
    let words = "VIRTUAL_GPU_TOPOLOGY=moon: it must be one of classroom, dgx-h100, dgx-a100, pcie, 2x8-h100, or the path of a file";
    contains(&refused("moon")?, &[words]);
    contains(
        &refused("/nonexistent/mine.toml")?,
        &["VIRTUAL_GPU_TOPOLOGY=/nonexistent/mine.toml: cannot be read: No such file"],
    );
    Ok(())
}

fn bad_figure() -> anyhow::Result<()> {
    for (content, words) in [
        ("name = \"mine\"\n", "[gpu] is missing"),
        (
            "name = \"mine\"\nlike = \"pcie\"\n[copy]\nlatency_ns = -5\n",
            "copy.latency_ns = -5: it must be a number from 0",
        ),
        ("name = \"mine\"\nlike = \"pcie\"\n[copy]\nlatency = 5\n", "copy.latency: unknown figure"),
        ("name: mine\n", "is not valid TOML: TOML parse error at line 1, column 7"),
    ] {
        let path = file(content)?;
        let named = format!("VIRTUAL_GPU_TOPOLOGY={}: ", path.display());
        let said = refused(path.to_str().unwrap())?;
        std::fs::remove_file(path)?;
        contains(&said, &[&named, words]);
    }
    Ok(())
}

/// The variables for the number of ranks of [`reduce`], and the number of floats that it reduces.
const RANKS: &str = "LAB_TESTS_RANKS";
const LEN: &str = "LAB_TESTS_LEN";

/// Prints the time of an all-reduce in milliseconds.
pub(crate) fn reduce() -> anyhow::Result<()> {
    let (ranks, len) = (std::env::var(RANKS)?.parse()?, std::env::var(LEN)?.parse()?);
    lab::attach(ranks)?;
    let id = Id::new().unwrap();
    let elapsed = lab::each_rank(ranks, |rank| {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let comm = Comm::from_rank(stream.clone(), rank, ranks, id).unwrap();
        let mut buffer = stream.alloc_zeros::<f32>(len)?;
        stream.synchronize()?;
        let mark = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let start = mark()?;
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        let end = mark()?;
        Ok(start.elapsed_ms(&end)?)
    })?;
    println!("{}", elapsed[0]);
    Ok(())
}

/// Returns the time in milliseconds of an all-reduce over this many ranks and floats, with these variables set.
fn milliseconds(switches: &[(&str, &str)], ranks: usize, len: usize) -> anyhow::Result<f32> {
    let (ranks, len) = (ranks.to_string(), len.to_string());
    let size = [(RANKS, ranks.as_str()), (LEN, len.as_str())];
    let (well, said) = child::start("topology::reduce", &[switches, &size].concat())?;
    assert!(well, "{said}");
    Ok(said.trim().parse()?)
}

fn own_file() -> anyhow::Result<()> {
    let content = "name = \"mine\"\nlike = \"dgx-h100\"\n[host]\ncall_ns = 0\n[nccl]\nchannels = 9\n";
    let path = file(content)?;
    let (mine, dgx) = (path.to_str().unwrap(), "dgx-h100");
    let [mine, dgx] =
        [mine, dgx].map(|topology| milliseconds(&[("VIRTUAL_GPU_TOPOLOGY", topology)], 2, 1 << 24));
    std::fs::remove_file(&path)?;
    let (mine, dgx) = (mine?, dgx?);
    assert!((1.85..2.01).contains(&(mine / dgx)), "{mine} ms with half the channels, {dgx} ms");
    Ok(())
}

/// The times that a program's events measure agree with `MODEL.md`. The example is the bus bandwidth for eight ranks
/// whose data represents 10⁴ times as much data.
fn published() -> anyhow::Result<()> {
    let a100 = "name = \"slow-a100\"\nlike = \"dgx-a100\"\nthroughput_divided_by = 1e4\n";
    let path = file(a100)?;
    let len = 1 << 19;
    for (topology, ranks, published) in
        [("classroom", 8, 478.0), ("classroom", 4, 366.0), (path.to_str().unwrap(), 8, 200.0)]
    {
        let milliseconds = milliseconds(&[("VIRTUAL_GPU_TOPOLOGY", topology)], ranks, len)?;
        let gigabytes = (4 * len) as f32 * 1e4 / 1e9;
        let bus = gigabytes / (milliseconds / 1e3) * 2.0 * (ranks - 1) as f32 / ranks as f32;
        assert!((bus / published - 1.0).abs() < 0.1, "{topology}: {bus} GB/s, published {published} GB/s");
    }
    Ok(std::fs::remove_file(path)?)
}

fn algorithm() -> anyhow::Result<()> {
    let len = 1 << 16;
    let free = milliseconds(&[], 2, len)?;
    let tree = milliseconds(&[("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "^LL,LL128")], 2, len)?;
    assert!(tree > 1.2 * free, "{tree} ms with a tree, {free} ms without");
    Ok(())
}

fn set_algorithm(value: &str) {
    // SAFETY: no other thread is running yet, and NCCL has not read the variable.
    unsafe { std::env::set_var("NCCL_ALGO", value) };
}

fn unknown_algorithm() -> anyhow::Result<()> {
    set_algorithm("Rong");
    let stream = CudaContext::new(0)?.new_stream()?;
    let error = Comm::from_rank(stream, 0, 1, Id::new().unwrap()).err().unwrap();
    assert_eq!(error.0, cudarc::nccl::sys::ncclResult_t::ncclInvalidUsage);
    Ok(())
}

fn nothing_left() -> anyhow::Result<()> {
    set_algorithm("Tree");
    lab::each_rank(2, |rank| {
        let id = ID.get_or_init(|| Id::new().unwrap());
        let stream = CudaContext::new(rank)?.new_stream()?;
        let comm = Comm::from_rank(stream.clone(), rank, 2, *id).unwrap();
        let (send, mut receive) = (stream.alloc_zeros::<f32>(4)?, stream.alloc_zeros::<f32>(8)?);
        let error = comm.all_gather(&send, &mut receive).err().unwrap();
        assert_eq!(error.0, cudarc::nccl::sys::ncclResult_t::ncclInvalidUsage);
        let mut buffer = stream.alloc_zeros::<f32>(4)?;
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        stream.synchronize()?;
        Ok(())
    })?;
    Ok(())
}

static ID: std::sync::OnceLock<Id> = std::sync::OnceLock::new();
