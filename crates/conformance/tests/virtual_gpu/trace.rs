//! `VIRTUAL_GPU_TRACE`: a file for trace viewers, which is the same on every run.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use cudarc::nccl::safe::{Comm, Id, ReduceOp, group_end, group_start};
use lab::{Check, Kernels};
use serde_json::Value;

use crate::{child, contains};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("trace::eight_threads_write_the_same_bytes_on_every_run", eight_threads),
        Check::new("trace::one_thread_writes_the_same_bytes_on_every_run", one_thread),
        Check::new("trace::slices_nest_and_arrows_have_both_ends", schema),
        Check::new("trace::a_path_that_can_t_be_written_is_an_error_from_the_start", bad_path),
    ]
}

fn path() -> PathBuf {
    std::env::temp_dir().join(format!("trace_{}.json", std::process::id()))
}

/// Runs a program. Returns what it prints, and the trace that it writes.
fn run(program: &str, pause: &str) -> anyhow::Result<(String, String)> {
    let file = path();
    let (well, said) =
        child::start(program, &[("VIRTUAL_GPU_TRACE", file.to_str().unwrap()), (PAUSE, pause)])?;
    assert!(well, "{said}");
    let trace = std::fs::read_to_string(&file)?;
    std::fs::remove_file(&file)?;
    let is_left = |name: &str| name.starts_with(&format!(".{}", file.file_name().unwrap().to_string_lossy()));
    let names = std::fs::read_dir(file.parent().unwrap())?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert!(!names.into_iter().any(|name| is_left(&name)), "no temporary file is left");
    Ok((said, trace))
}

/// The environment variable that determines how long the host pauses. The pauses must not change any result.
const PAUSE: &str = "LAB_TESTS_PAUSE";

fn mark(stream: &CudaStream) -> anyhow::Result<CudaEvent> {
    Ok(stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?)
}

const MICROSECOND: u64 = 1_000;

/// Runs one rank's pipeline on two streams: kernels and copies in parallel with all-reduces, polls, and waits. Returns
/// the times that its events measured. `pause` makes the host pause. The pauses must not change any result.
fn pipeline(
    comm: &Comm,
    kernels: &Kernels,
    compute: &Arc<CudaStream>,
    pause: impl Fn(),
) -> anyhow::Result<String> {
    let (rank, stream) = (comm.rank(), comm.stream());
    let mut said = Vec::new();
    let mut buffer = compute.clone_htod(&vec![rank as f32; 4096])?;
    let mut other = compute.clone_htod(&vec![1.0f32; 1 << 16])?;
    let start = mark(compute)?;
    for step in 0..4 {
        pause();
        kernels.spin(compute, (20 + 7 * ((rank as u64 + step) % 3)) * MICROSECOND)?;
        stream.wait(&mark(compute)?)?;
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        pause();
        // This kernel runs at the same time as the collective, and shares the GPU with it.
        kernels.scale(compute, &mut other.as_view_mut(), 1.0)?;
        let reduced = mark(&stream)?;
        if step == 2 {
            while !reduced.is_complete() {}
        }
        compute.wait(&reduced)?;
    }
    let end = mark(compute)?;
    said.push(start.elapsed_ms(&end)?);
    let back = compute.clone_dtoh(&other)?;
    assert!(back.iter().all(|value| *value == 1.0));
    compute.synchronize()?;
    stream.synchronize()?;
    said.push(start.elapsed_ms(&mark(compute)?)?);
    Ok(format!("rank {rank}: {said:?}"))
}

/// Runs eight ranks, each in its own thread, with different pauses in each run.
pub(crate) fn threads() -> anyhow::Result<()> {
    lab::attach(8)?;
    let run: u64 = std::env::var(PAUSE)?.parse()?;
    let id = Id::new().unwrap();
    let said = lab::each_rank(8, |rank| {
        let context = CudaContext::new(rank)?;
        let kernels = Kernels::load(&context)?;
        let compute = context.new_stream()?;
        let comm = Comm::from_rank(context.new_stream()?, rank, 8, id).unwrap();
        let pause = || std::thread::sleep(Duration::from_millis((rank as u64 * 5 + run * 3) % 7));
        pipeline(&comm, &kernels, &compute, pause)
    })?;
    eprintln!("{}", said.join("\n"));
    Ok(())
}

fn eight_threads() -> anyhow::Result<()> {
    let first = run("trace::threads", "0")?;
    for pause in ["1", "2", "3"] {
        let again = run("trace::threads", pause)?;
        assert_eq!(first.0, again.0, "the event times");
        assert!(first.1 == again.1, "the traces differ");
    }
    Ok(())
}

/// Runs eight ranks in one thread.
pub(crate) fn alone() -> anyhow::Result<()> {
    let streams = lab::streams(8)?;
    let comms = Comm::from_devices(streams.clone()).unwrap();
    let mut buffers = Vec::new();
    for (rank, stream) in streams.iter().enumerate() {
        stream.context().bind_to_thread()?;
        let kernels = Kernels::load(stream.context())?;
        kernels.spin(stream, rank as u64 * MICROSECOND)?;
        buffers.push(stream.clone_htod(&[rank as f32; 1000])?);
    }
    let events = streams.iter().map(|stream| mark(stream)).collect::<anyhow::Result<Vec<_>>>()?;
    group_start().unwrap();
    for (comm, buffer) in comms.iter().zip(&mut buffers) {
        comm.all_reduce_in_place(buffer, &ReduceOp::Sum).unwrap();
    }
    group_end().unwrap();
    for ((stream, start), buffer) in streams.iter().zip(&events).zip(&buffers) {
        stream.context().bind_to_thread()?;
        eprintln!("{}", start.elapsed_ms(&mark(stream)?)?);
        assert_eq!(stream.clone_dtoh(buffer)?, [28.0; 1000]);
    }
    Ok(())
}

fn one_thread() -> anyhow::Result<()> {
    let first = run("trace::alone", "0")?;
    let again = run("trace::alone", "0")?;
    assert_eq!(first.0, again.0, "the event times");
    assert!(first.1 == again.1, "the traces differ");
    Ok(())
}

/// An event's start and duration in µs, and the event.
type Slice<'a> = (f64, f64, &'a Value);

fn schema() -> anyhow::Result<()> {
    let (_, text) = run("trace::threads", "0")?;
    let trace: Value = serde_json::from_str(&text)?;
    assert_eq!(trace["otherData"]["preset"], "classroom");
    let mut names: HashMap<(u64, u64), &str> = HashMap::new();
    let mut tracks: BTreeMap<(u64, u64), Vec<Slice<'_>>> = BTreeMap::new();
    let mut arrows: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    let mut order = Vec::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let number = |key: &str| event[key].as_f64().unwrap_or_else(|| panic!("{key} of {event}"));
        match event["ph"].as_str().unwrap() {
            "M" => {
                assert!(order.is_empty(), "names come first");
                assert!(names.insert(track, event["args"]["name"].as_str().unwrap()).is_none(), "{event}");
                continue;
            }
            "X" => {
                assert!(number("ts") >= 0.0 && number("dur") > 0.0, "{event}");
                tracks.entry(track).or_default().push((number("ts"), number("dur"), event));
            }
            "s" | "f" => arrows.entry(event["id"].as_u64().unwrap()).or_default().push(event),
            other => panic!("{other}: {event}"),
        }
        order.push((track, number("ts")));
    }
    assert!(order.is_sorted_by(|(one, at), (other, then)| one < other || (one == other && at <= then)));

    // Each slice is either inside another slice or after it.
    for (track, slices) in &tracks {
        assert!(names.contains_key(track) && names[&(track.0, 0)].contains("classroom"), "{track:?}");
        let mut open: Vec<f64> = Vec::new();
        for (start, length, event) in slices {
            while open.last().is_some_and(|end| *end <= start + 1e-6) {
                open.pop();
            }
            assert!(open.last().is_none_or(|end| start + length <= end + 1e-6), "{event}");
            open.push(start + length);
        }
    }
    // There are eight GPUs with three streams each, one of which is the default stream, and eight threads.
    assert_eq!(tracks.keys().filter(|(process, _)| *process == 1).count(), 8);
    assert!((16..=24).contains(&tracks.keys().filter(|(process, _)| *process > 1).count()), "{names:?}");

    assert!(arrows.len() >= 8 * 8, "a wait for each all-reduce and one for each kernel: {}", arrows.len());
    for ends in arrows.values() {
        let [start, finish] = ends[..] else { panic!("{ends:?}") };
        let (start, finish) = if start["ph"] == "s" { (start, finish) } else { (finish, start) };
        assert!(start["ph"] == "s" && finish["ph"] == "f" && finish["bp"] == "e", "{ends:?}");
        assert!(start["ts"].as_f64() <= finish["ts"].as_f64(), "{ends:?}");
        for (end, name) in [(start, "record"), (finish, "wait")] {
            let track = (end["pid"].as_u64().unwrap(), end["tid"].as_u64().unwrap());
            let at = end["ts"].as_f64().unwrap();
            let around =
                tracks[&track].iter().find(|(start, length, _)| (*start..start + length).contains(&at));
            assert_eq!(around.unwrap().2["name"], name, "{end}");
        }
    }
    for name in ["spin", "scale", "ncclAllReduce", "copy to the host", "waits for the other ranks"] {
        assert!(tracks.values().flatten().any(|(_, _, event)| event["name"] == name), "{name}");
    }
    let reduce = tracks.values().flatten().find(|(_, _, event)| event["name"] == "ncclAllReduce").unwrap().2;
    assert_eq!((&reduce["args"]["bytes"], &reduce["args"]["ranks"]), (&16384.into(), &8.into()));
    Ok(())
}

fn bad_path() -> anyhow::Result<()> {
    for (path, why) in [("/nonexistent/trace.json", "No such file"), ("/tmp", "is a directory")] {
        let (well, said) = child::start("topology::start", &[("VIRTUAL_GPU_TRACE", path)])?;
        assert!(!well, "{said}");
        contains(&said, &[&format!("VIRTUAL_GPU_TRACE={path}: the file cannot be written: "), why]);
    }
    Ok(())
}
