//! Records what ran when as a Chrome trace: JSON that <https://ui.perfetto.dev> and `chrome://tracing` can show ("Trace
//! Event Format").
//!
//! Each GPU is a process, and each of its streams is a track; the host is a process with a track for each thread.
//! Arrows go from an event's record to the waits for it. Numbers are in program order, so that two runs write the same
//! bytes.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Key, Span};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::thread::ThreadKey;

/// The process number of the host. GPU `n` has the number `FIRST_GPU + n`.
const HOST: usize = 1;
const FIRST_GPU: usize = 2;

/// The name of a call that queries whether an operation is over.
pub(super) const QUERY: &str = "query";

/// A description of an operation.
#[derive(Clone, Debug)]
pub struct Label {
    /// The operation's kind, by which Perfetto colors and filters.
    pub category: &'static str,
    /// Its name, such as that of the kernel.
    pub name: String,
    pub(crate) arguments: Map<String, Value>,
}

impl Label {
    /// Creates a label without arguments.
    pub fn new(category: &'static str, name: impl Into<String>) -> Self {
        Self { category, name: name.into(), arguments: Map::new() }
    }

    /// Adds an argument.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.arguments.insert(name.to_owned(), value.into());
        self
    }
}

/// An operation on a stream.
struct Operation {
    stream: StreamHandle,
    label: Label,
    /// The operations on other streams that it waits for.
    waits_for: Vec<Key>,
    ran: Option<Span>,
    /// When a communication's own stream reached it.
    came: Option<u64>,
}

/// An operation that ran, in modeled nanoseconds.
#[derive(Debug)]
pub struct OperationThatRan<'a> {
    /// Its stream.
    pub stream: StreamHandle,
    /// Its stream's name.
    pub stream_name: &'a str,
    /// Its description.
    pub label: &'a Label,
    /// When its stream reached it.
    pub start: u64,
    /// When it was done.
    pub end: u64,
}

/// A call by a host thread.
struct Call {
    span: Span,
    name: String,
    /// The number of times in a row that the call was made.
    times: u64,
}

/// Everything that happened.
#[derive(Default)]
pub(crate) struct Trace {
    operations: BTreeMap<Key, Operation>,
    streams: HashMap<(usize, StreamHandle), Arc<str>>,
    /// Calls by thread.
    calls: HashMap<ThreadKey, Vec<Call>>,
    /// The GPU that each thread used first, and how many threads had used it before.
    threads: HashMap<ThreadKey, (usize, usize)>,
}

/// A trace's tracks: the host threads, and then the streams of all GPUs.
struct Tracks {
    threads: Vec<ThreadKey>,
    streams: Vec<(usize, StreamHandle)>,
}

impl Tracks {
    fn of_stream(&self, gpu: usize, stream: StreamHandle) -> usize {
        let index = self.streams.iter().position(|known| *known == (gpu, stream));
        self.threads.len() + 1 + index.unwrap_or(0)
    }
}

impl Trace {
    pub(super) fn enqueued(
        &mut self,
        key: Key,
        (stream, name): (StreamHandle, &Arc<str>),
        label: Label,
        waits_for: Vec<Key>,
    ) {
        self.streams.entry((key.0, stream)).or_insert_with(|| name.clone());
        self.operations.insert(key, Operation { stream, label, waits_for, ran: None, came: None });
    }

    pub(super) fn named(&mut self, key: Key, label: Label) {
        if let Some(operation) = self.operations.get_mut(&key) {
            operation.label = label;
        }
    }

    pub(super) fn came(&mut self, key: Key, at: u64) {
        if let Some(operation) = self.operations.get_mut(&key) {
            operation.came = Some(at);
        }
    }

    pub(super) fn ran(&mut self, key: Key, span: Span) {
        if let Some(operation) = self.operations.get_mut(&key) {
            operation.ran = Some(span);
        }
    }

    pub(super) fn called(&mut self, thread: ThreadKey, gpu: usize, span: Span, name: String) {
        let before = self.threads.values().filter(|(first, _)| *first == gpu).count();
        self.threads.entry(thread).or_insert((gpu, before));
        let calls = self.calls.entry(thread).or_default();
        match calls.last_mut() {
            // A polling thread repeats its query.
            Some(last) if last.name == name && last.name == QUERY && last.span.end == span.start => {
                last.span.end = span.end;
                last.times += 1;
            }
            _ => calls.push(Call { span, name, times: 1 }),
        }
    }

    /// Returns a GPU's operations that ran and took time, in the order in which they were enqueued.
    pub(super) fn operations(&self, gpu: usize) -> impl Iterator<Item = OperationThatRan<'_>> {
        self.operations.range((gpu, 0)..(gpu + 1, 0)).filter_map(move |(_, operation)| {
            let Span { start, end } = operation.ran?;
            let start = operation.came.unwrap_or(start);
            let name = &self.streams[&(gpu, operation.stream)];
            let ran = OperationThatRan {
                stream: operation.stream,
                stream_name: name,
                label: &operation.label,
                start,
                end,
            };
            (start < end).then_some(ran)
        })
    }

    /// Returns all events, in file order.
    fn events(&self, preset: &str) -> Vec<Value> {
        let mut threads: Vec<ThreadKey> = self.threads.keys().copied().collect();
        threads.sort_by_key(|thread| self.threads[thread]);
        // Streams, in the order of their first operations.
        let mut streams: Vec<(usize, StreamHandle)> = Vec::new();
        for ((gpu, _), operation) in &self.operations {
            if !streams.contains(&(*gpu, operation.stream)) {
                streams.push((*gpu, operation.stream));
            }
        }
        let tracks = Tracks { threads, streams };
        let mut events = self.names(preset, &tracks);
        let mut timed = self.calls_of_threads(&tracks);
        timed.extend(self.operations_of_streams(&tracks));
        timed.retain(|event| event.length != Some(0));
        timed.sort_by_key(|event| (event.at, event.time, std::cmp::Reverse(event.length), event.arrow));
        events.extend(timed.into_iter().map(Event::into_json));
        events
    }

    /// Returns the events that name processes and tracks.
    fn names(&self, preset: &str, tracks: &Tracks) -> Vec<Value> {
        let mut events = vec![metadata(HOST, 0, "process_name", format!("host (modeled: {preset})"))];
        for (index, thread) in tracks.threads.iter().enumerate() {
            let name = format!("host thread {} (GPU {})", index + 1, self.threads[thread].0);
            events.push(metadata(HOST, index + 1, "thread_name", name));
        }
        let mut gpus: Vec<usize> = tracks.streams.iter().map(|(gpu, _)| *gpu).collect();
        gpus.dedup();
        for gpu in gpus {
            let name = format!("GPU {gpu} (modeled: {preset})");
            events.push(metadata(FIRST_GPU + gpu, 0, "process_name", name));
        }
        for &(gpu, stream) in &tracks.streams {
            let name = self.streams[&(gpu, stream)].to_string();
            events.push(metadata(FIRST_GPU + gpu, tracks.of_stream(gpu, stream), "thread_name", name));
        }
        events
    }

    /// Returns the host threads' calls.
    fn calls_of_threads(&self, tracks: &Tracks) -> Vec<Event> {
        let mut timed = Vec::new();
        for (index, thread) in tracks.threads.iter().enumerate() {
            let at = Track { process: HOST, track: index + 1 };
            for call in self.calls.get(thread).into_iter().flatten() {
                let mut arguments = Map::new();
                if call.times > 1 {
                    arguments.insert("times".to_owned(), call.times.into());
                }
                timed.push(at.slice(call.span, "call", &call.name, &arguments));
            }
        }
        timed
    }

    /// Returns the operations on streams, with arrows from what they waited for.
    fn operations_of_streams(&self, tracks: &Tracks) -> Vec<Event> {
        let mut timed = Vec::new();
        let mut arrows = 0;
        let track =
            |gpu: usize, stream| Track { process: FIRST_GPU + gpu, track: tracks.of_stream(gpu, stream) };
        for ((gpu, _), operation) in &self.operations {
            let Some(span) = operation.ran else { continue };
            let at = track(*gpu, operation.stream);
            let Label { category, name, arguments } = &operation.label;
            match operation.came {
                Some(came) => {
                    timed.push(at.slice(Span { start: came, end: span.end }, category, name, arguments));
                    let waits = Span { start: came, end: span.start };
                    if came < span.start {
                        timed.push(at.slice(waits, "wait", "waits for the other ranks", &Map::new()));
                    }
                }
                None => timed.push(at.slice(span, category, name, arguments)),
            }
            for from in &operation.waits_for {
                let Some(source) = self.operations.get(from) else { continue };
                let Some(ran) = source.ran.filter(|ran| ran.start < ran.end && span.start < span.end) else {
                    continue;
                };
                arrows += 1;
                timed.push(track(from.0, source.stream).arrow("s", ran.end - 1, arrows));
                timed.push(at.arrow("f", span.end - 1, arrows));
            }
        }
        timed
    }

    /// Writes the complete trace to a temporary file and renames the file, so that a partial trace is never visible.
    pub(super) fn write(&self, path: &Path, preset: &str) -> io::Result<()> {
        let temporary = temporary(path);
        let written = self.write_to(&temporary, preset).and_then(|()| std::fs::rename(&temporary, path));
        if written.is_err() {
            // The file may not exist.
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }

    fn write_to(&self, path: &Path, preset: &str) -> io::Result<()> {
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        let about = json!({ "preset": preset, "times": "modeled, not measured" });
        write!(file, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[")?;
        for (index, event) in self.events(preset).into_iter().enumerate() {
            write!(file, "{}{event}", if index == 0 { "\n" } else { ",\n" })?;
        }
        writeln!(file, "\n]}}")?;
        file.flush()
    }
}

/// Checks that a trace can be written to a path.
///
/// # Errors
/// Returns why it can't.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let temporary = temporary(path);
    std::fs::File::create(&temporary)?;
    std::fs::remove_file(&temporary)
}

/// Returns the path that the file is written to before it is renamed.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.partial", std::process::id()))
}

fn metadata(process: usize, track: usize, what: &str, name: String) -> Value {
    json!({ "ph": "M", "pid": process, "tid": track, "name": what, "args": { "name": name } })
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Track {
    process: usize,
    track: usize,
}

/// An event on a track.
struct Event {
    at: Track,
    /// Nanoseconds.
    time: u64,
    /// Nanoseconds; `None` for the end of an arrow.
    length: Option<u64>,
    arrow: u64,
    rest: Map<String, Value>,
}

impl Track {
    fn slice(self, span: Span, category: &str, name: &str, arguments: &Map<String, Value>) -> Event {
        let mut rest = Map::new();
        rest.insert("ph".to_owned(), "X".into());
        rest.insert("cat".to_owned(), category.into());
        rest.insert("name".to_owned(), name.into());
        if !arguments.is_empty() {
            rest.insert("args".to_owned(), Value::Object(arguments.clone()));
        }
        Event { at: self, time: span.start, length: Some(span.end - span.start), arrow: 0, rest }
    }

    /// Returns one end of an arrow: `s` starts the arrow, and `f` finishes it. The end belongs to the slice that
    /// surrounds it.
    fn arrow(self, end: &str, time: u64, arrow: u64) -> Event {
        let mut rest = Map::new();
        rest.insert("ph".to_owned(), end.into());
        rest.insert("cat".to_owned(), "wait".into());
        rest.insert("name".to_owned(), "event".into());
        rest.insert("id".to_owned(), arrow.into());
        if end == "f" {
            rest.insert("bp".to_owned(), "e".into());
        }
        Event { at: self, time, length: None, arrow, rest }
    }
}

impl Event {
    fn into_json(self) -> Value {
        let microseconds = |nanoseconds: u64| Value::from(nanoseconds as f64 / 1e3);
        let mut event = self.rest;
        event.insert("pid".to_owned(), self.at.process.into());
        event.insert("tid".to_owned(), self.at.track.into());
        event.insert("ts".to_owned(), microseconds(self.time));
        if let Some(length) = self.length {
            event.insert("dur".to_owned(), microseconds(length));
        }
        Value::Object(event)
    }
}
