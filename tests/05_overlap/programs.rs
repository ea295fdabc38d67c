//! Checks for the files that the module's programs write about a run. They are part of the
//! solutions' package, because Cargo tells only a package's own tests where its programs are.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use lab::disk::Folder;
use lab::{Check, ensure};

// The paths of the programs.
const LADDER: &str = env!("CARGO_BIN_EXE_s05_overlap");
const INTERLEAVE: &str = env!("CARGO_BIN_EXE_s05_overlap_interleave");
const TIMELINES: &str = env!("CARGO_BIN_EXE_s05_overlap_timelines");

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("programs::interleave_writes_its_timeline", interleave_writes_its_timeline).min_ranks(2),
        Check::new("programs::the_ladder_writes_a_timeline_of_each_way", the_ladder_writes_each_way)
            .min_ranks(2),
        Check::new("programs::each_exercise_has_its_timeline", each_exercise_has_its_timeline).min_ranks(2),
    ]
}

/// A span of a trace, in microseconds.
struct Event {
    gpu: usize,
    kind: String,
    name: String,
    start: f64,
    end: f64,
}

/// Runs the program, checks that it succeeds, and returns its output.
fn printed(program: &str, arguments: &[&str], folder: &Path) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).current_dir(folder).output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{program} {arguments:?}: {}\n{stdout}{stderr}", output.status);
    Ok(stdout.into_owned())
}

/// Returns the value of a key in an object of the trace. The object must not contain nested objects.
fn value<'a>(object: &'a str, key: &str) -> anyhow::Result<&'a str> {
    let key = format!("\"{key}\":");
    let from = object.find(&key).with_context(|| format!("no {key} in {object}"))? + key.len();
    Ok(object[from..].split(',').next().unwrap_or_default().trim_matches('"'))
}

/// Reads the spans from a trace. The picture must contain the same number of spans.
fn events(folder: &Path, name: &str) -> anyhow::Result<Vec<Event>> {
    let read = |extension: &str| {
        let path = folder.join(name).with_extension(extension);
        std::fs::read_to_string(&path).with_context(|| format!("{} was not written", path.display()))
    };
    let (trace, picture) = (read("json")?, read("svg")?);
    let mut events = Vec::new();
    for object in trace.split(['{', '}']).filter(|object| object.contains("\"ph\":\"X\"")) {
        let start: f64 = value(object, "ts")?.parse()?;
        events.push(Event {
            gpu: value(object, "pid")?.parse()?,
            kind: value(object, "cat")?.to_owned(),
            name: value(object, "name")?.to_owned(),
            start,
            end: start + value(object, "dur")?.parse::<f64>()?,
        });
    }
    // The picture itself also has a title.
    let drawn = picture.matches("<title>").count().saturating_sub(1);
    ensure!(
        drawn == events.len(),
        "{name}: the trace has {} spans, but the picture has {drawn}",
        events.len()
    );
    Ok(events)
}

/// Checks that each of the two GPUs has this many spans of the given kind.
fn ensure_each_has(name: &str, events: &[Event], kind: &str, expected: usize) -> anyhow::Result<()> {
    for gpu in 0..2 {
        let got = events.iter().filter(|event| event.gpu == gpu && event.kind == kind).count();
        ensure!(got == expected, "{name}: GPU {gpu} has {got} spans of {kind}, expected {expected}");
    }
    Ok(())
}

fn interleave_writes_its_timeline() -> anyhow::Result<()> {
    let folder = Folder::temporary()?;
    let arguments =
        ["--gpus", "2", "--iterations", "3", "--timeline", "pipeline.json", "--svg", "pipeline.svg"];
    let text = printed(INTERLEAVE, &arguments, folder.path())?;
    ensure!(text.contains("Results verified: PASSED"), "{text}");
    let events = events(folder.path(), "pipeline")?;
    ensure_each_has("pipeline", &events, "compute", 2 * 3)?;
    ensure_each_has("pipeline", &events, "comm", 3)
}

fn each_exercise_has_its_timeline() -> anyhow::Result<()> {
    let folder = Folder::temporary()?;
    // The numbers of compute, communication, and copy spans in all rows: three runs, two GPUs, or one GPU.
    for (exercise, compute, comm, copy) in [
        ("waiting", 3 * 4, 2 + 2 + 1, 0),
        ("depth", 3 * 2 * 4, 3 * 4, 0),
        ("layerwise", 2 * 2 * 8, 2 * 8, 0),
        ("pipeline-parallel", 2 * 6, 2 * 2 * 6, 0),
        ("copies", 5, 5, 2 * 5),
    ] {
        let files = [format!("{exercise}.json"), format!("{exercise}.svg")];
        let arguments = [exercise, "--gpus", "2", "--timeline", &files[0], "--svg", &files[1]];
        let text = printed(TIMELINES, &arguments, folder.path())?;
        ensure!(text.contains("Results verified: PASSED"), "{exercise}: {text}");
        let events = events(folder.path(), exercise)?;
        for (kind, expected) in [("compute", compute), ("comm", comm), ("copy", copy)] {
            let got = events.iter().filter(|event| event.kind == kind).count();
            ensure!(got == expected, "{exercise} has {got} spans of {kind}, expected {expected}");
        }
        let backward = events.iter().find(|event| event.end < event.start);
        ensure!(
            backward.is_none(),
            "{exercise}: {} ends before it starts",
            backward.map_or("", |event| &event.name)
        );
    }
    Ok(())
}

fn the_ladder_writes_each_way() -> anyhow::Result<()> {
    // The medium network has 6 layers with 9 parameters each.
    const LAYERS: usize = 6;
    let folder = Folder::temporary()?;
    let arguments = ["--model-size", "medium", "--world-size", "2", "--warmup", "0", "--steps", "1"];
    let arguments = [&arguments[..], &["--timeline", "ladder.json", "--svg", "ladder.svg"]].concat();
    let text = printed(LADDER, &arguments, folder.path())?;
    for (way, calls, cleared) in
        [("naive", 9 * LAYERS, 0), ("flat", 1, 0), ("overlapped", 9 * LAYERS, 1), ("bucketed", LAYERS, 1)]
    {
        let name = format!("ladder-medium-{way}");
        for extension in ["json", "svg"] {
            ensure!(text.contains(&format!("written: {name}.{extension}")), "{name}.{extension}: {text}");
        }
        let events = events(folder.path(), &name)?;
        ensure_each_has(&name, &events, "comm", calls)?;
        // The forward pass, each layer's backward pass, and the optimizer's step. With hooks, the gradients are cleared
        // first.
        ensure_each_has(&name, &events, "compute", 1 + cleared + LAYERS + 1)?;
        follows_the_backward_pass(&name, &events, cleared == 1)?;
    }
    Ok(())
}

/// Checks that the first all-reduce starts during the backward pass with hooks, and after it without hooks. The
/// optimizer's step must be last.
fn follows_the_backward_pass(name: &str, events: &[Event], hooks: bool) -> anyhow::Result<()> {
    let own = |wanted: &str| events.iter().find(|event| event.gpu == 0 && event.name == wanted);
    let (Some(forward), Some(first_layer), Some(step)) = (own("forward"), own("back 0"), own("step")) else {
        bail!("{name} has no span of the forward pass, the first layer's backward pass, or the step")
    };
    let calls = || events.iter().filter(|event| event.gpu == 0 && event.kind == "comm");
    let begins = calls().map(|call| call.start).fold(f64::INFINITY, f64::min);
    let ends = calls().map(|call| call.end).fold(0.0, f64::max);
    ensure!(
        begins >= forward.end && (begins < first_layer.end) == hooks && ends <= step.start,
        "{name}: wrong order: all-reduces from {begins:.1} to {ends:.1} µs, the backward pass from {:.1} to {:.1}, the \
         step from {:.1}",
        forward.end,
        first_layer.end,
        step.start
    );
    Ok(())
}
