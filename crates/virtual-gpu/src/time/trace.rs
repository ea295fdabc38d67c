//! Records what ran when as a Chrome trace: JSON that <https://ui.perfetto.dev> and `chrome://tracing` can show ("Trace
//! Event Format").
//!
//! Each GPU is a process, and each of its streams is a track; the host is a process with a track for each thread.
//! Arrows go from an event's record to the waits for it. Numbers are in program order, so that two runs write the same
//! bytes.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::{Key, Span};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::sorted::SortedMap;
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
    arguments: Object,
}

impl Label {
    /// Creates a label without arguments.
    pub fn new(category: &'static str, name: impl Into<String>) -> Self {
        Self { category, name: name.into(), arguments: Object::default() }
    }

    /// Adds an argument.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.arguments.set(name, value);
        self
    }
}

/// A JSON object: the text of each field. It is written in the order of the fields' names, which need no escapes.
#[derive(Clone, Debug, Default)]
struct Object(SortedMap<&'static str, String>);

impl Object {
    fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.set_text(name, &value.into());
    }

    fn set_text(&mut self, name: &'static str, text: &dyn fmt::Display) {
        self.0.insert(name, text.to_string());
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<String> =
            self.0.entries().iter().map(|(name, text)| format!("\"{name}\":{text}")).collect();
        write!(f, "{{{}}}", fields.join(","))
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

/// What happened on a GPU.
#[derive(Default)]
struct OnGpu {
    /// The threads that used it before any other GPU, in order.
    threads: Vec<ThreadKey>,
    /// Its streams and their names, in the order of their first operations.
    streams: Vec<(StreamHandle, Arc<str>)>,
    /// Its operations, by their index. They are added in order.
    operations: SortedMap<u64, Operation>,
}

/// Everything that happened.
pub(crate) struct Trace {
    gpus: Vec<OnGpu>,
    /// Calls by thread.
    calls: SortedMap<ThreadKey, Vec<Call>>,
}

impl Trace {
    pub(super) fn new(gpus: usize) -> Self {
        Self { gpus: (0..gpus).map(|_| OnGpu::default()).collect(), calls: SortedMap::default() }
    }

    fn operation(&mut self, (gpu, index): Key) -> Option<&mut Operation> {
        self.gpus[gpu].operations.get_mut(&index)
    }

    pub(super) fn enqueued(
        &mut self,
        (gpu, index): Key,
        (stream, name): (StreamHandle, &Arc<str>),
        label: Label,
        waits_for: Vec<Key>,
    ) {
        let OnGpu { streams, operations, .. } = &mut self.gpus[gpu];
        if !streams.iter().any(|(known, _)| *known == stream) {
            streams.push((stream, name.clone()));
        }
        operations.insert(index, Operation { stream, label, waits_for, ran: None, came: None });
    }

    pub(super) fn named(&mut self, key: Key, label: Label) {
        if let Some(operation) = self.operation(key) {
            operation.label = label;
        }
    }

    pub(super) fn came(&mut self, key: Key, at: u64) {
        if let Some(operation) = self.operation(key) {
            operation.came = Some(at);
        }
    }

    pub(super) fn ran(&mut self, key: Key, span: Span) {
        if let Some(operation) = self.operation(key) {
            operation.ran = Some(span);
        }
    }

    pub(super) fn called(&mut self, thread: ThreadKey, gpu: usize, span: Span, name: String) {
        if !self.calls.contains_key(&thread) {
            self.gpus[gpu].threads.push(thread);
        }
        let calls = self.calls.get_or_insert_with(thread, Vec::new);
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
    pub(super) fn operations(&self, gpu: usize) -> Vec<OperationThatRan<'_>> {
        let Some(OnGpu { streams, operations, .. }) = self.gpus.get(gpu) else { return Vec::new() };
        let mut ran = Vec::new();
        for Operation { stream, label, came, ran: span, .. } in operations.values() {
            let Some(Span { start, end }) = *span else { continue };
            let start = came.unwrap_or(start);
            let known = streams.iter().find(|(known, _)| known == stream);
            if let Some((stream, stream_name)) = known.filter(|_| start < end) {
                ran.push(OperationThatRan { stream: *stream, stream_name, label, start, end });
            }
        }
        ran
    }

    /// Returns all tracks.
    fn tracks(&self) -> Tracks<'_> {
        let mut tracks = Tracks { threads: Vec::new(), streams: Vec::new() };
        for (gpu, OnGpu { threads, streams, .. }) in self.gpus.iter().enumerate() {
            tracks.threads.extend(threads.iter().map(|&thread| (thread, gpu)));
            tracks.streams.extend(streams.iter().map(|(stream, name)| (gpu, *stream, &**name)));
        }
        tracks
    }

    /// Returns all events, in file order.
    fn events(&self, preset: &str) -> Vec<Object> {
        let tracks = self.tracks();
        let mut timed = self.calls_of_threads(&tracks);
        timed.extend(self.operations_of_streams(&tracks));
        timed.retain(|event| event.length != Some(0));
        timed.sort_by_key(|event| (event.at, event.time, std::cmp::Reverse(event.length), event.arrow));
        let mut events = tracks.names(preset);
        events.extend(timed.into_iter().map(Event::into_json));
        events
    }

    /// Returns the host threads' calls.
    fn calls_of_threads(&self, tracks: &Tracks) -> Vec<Event> {
        let mut timed = Vec::new();
        for (index, (thread, _)) in tracks.threads.iter().enumerate() {
            let at = Track { process: HOST, track: index + 1 };
            for call in self.calls.get(thread).into_iter().flatten() {
                let mut arguments = Object::default();
                if call.times > 1 {
                    arguments.set("times", call.times);
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
        for (gpu, on_gpu) in self.gpus.iter().enumerate() {
            for operation in on_gpu.operations.values() {
                let Some(span) = operation.ran else { continue };
                let at = tracks.of_stream(gpu, operation.stream);
                let Label { category, name, arguments } = &operation.label;
                match operation.came {
                    Some(came) => {
                        timed.push(at.slice(Span { start: came, end: span.end }, category, name, arguments));
                        let waits = Span { start: came, end: span.start };
                        if came < span.start {
                            timed.push(at.slice(
                                waits,
                                "wait",
                                "waits for the other ranks",
                                &Object::default(),
                            ));
                        }
                    }
                    None => timed.push(at.slice(span, category, name, arguments)),
                }
                for &(from, index) in &operation.waits_for {
                    let Some(source) = self.gpus[from].operations.get(&index) else { continue };
                    let Some(ran) = source.ran.filter(|ran| ran.start < ran.end && span.start < span.end)
                    else {
                        continue;
                    };
                    arrows += 1;
                    timed.push(tracks.of_stream(from, source.stream).arrow("s", ran.end - 1, arrows));
                    timed.push(at.arrow("f", span.end - 1, arrows));
                }
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
        let mut about = Object::default();
        about.set("preset", preset);
        about.set("times", "modeled, not measured");
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

/// Returns the event that names a process or a track.
fn metadata(at: Track, what: &str, name: String) -> Object {
    let mut arguments = Object::default();
    arguments.set("name", name);
    let mut event = Object::default();
    event.set("ph", "M");
    event.set("pid", at.process);
    event.set("tid", at.track);
    event.set("name", what);
    event.set_text("args", &arguments);
    event
}

/// A trace's tracks.
struct Tracks<'a> {
    /// The host threads, each with the GPU that it used first.
    threads: Vec<(ThreadKey, usize)>,
    /// The streams of all GPUs: GPU, stream, and name. Their tracks have the numbers after the threads'.
    streams: Vec<(usize, StreamHandle, &'a str)>,
}

impl Tracks<'_> {
    fn of_stream(&self, gpu: usize, stream: StreamHandle) -> Track {
        let index = self.streams.iter().position(|(on, known, _)| (*on, *known) == (gpu, stream));
        Track { process: FIRST_GPU + gpu, track: self.threads.len() + 1 + index.unwrap_or(0) }
    }

    /// Returns the events that name processes and tracks.
    fn names(&self, preset: &str) -> Vec<Object> {
        let host = Track { process: HOST, track: 0 };
        let mut events = vec![metadata(host, "process_name", format!("host (modeled: {preset})"))];
        for (index, (_, gpu)) in self.threads.iter().enumerate() {
            let name = format!("host thread {} (GPU {gpu})", index + 1);
            events.push(metadata(Track { track: index + 1, ..host }, "thread_name", name));
        }
        let mut gpus: Vec<usize> = self.streams.iter().map(|(gpu, ..)| *gpu).collect();
        gpus.dedup();
        for gpu in gpus {
            let name = format!("GPU {gpu} (modeled: {preset})");
            events.push(metadata(Track { process: FIRST_GPU + gpu, track: 0 }, "process_name", name));
        }
        for &(gpu, stream, name) in &self.streams {
            events.push(metadata(self.of_stream(gpu, stream), "thread_name", name.to_owned()));
        }
        events
    }
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
    rest: Object,
}

impl Track {
    fn slice(self, span: Span, category: &str, name: &str, arguments: &Object) -> Event {
        let mut rest = Object::default();
        rest.set("ph", "X");
        rest.set("cat", category);
        rest.set("name", name);
        if !arguments.0.is_empty() {
            rest.set_text("args", arguments);
        }
        Event { at: self, time: span.start, length: Some(span.end - span.start), arrow: 0, rest }
    }

    /// Returns one end of an arrow: `s` starts the arrow, and `f` finishes it. The end belongs to the slice that
    /// surrounds it.
    fn arrow(self, end: &str, time: u64, arrow: u64) -> Event {
        let mut rest = Object::default();
        rest.set("ph", end);
        rest.set("cat", "wait");
        rest.set("name", "event");
        rest.set("id", arrow);
        if end == "f" {
            rest.set("bp", "e");
        }
        Event { at: self, time, length: None, arrow, rest }
    }
}

impl Event {
    fn into_json(self) -> Object {
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let mut event = self.rest;
        event.set("pid", self.at.process);
        event.set("tid", self.at.track);
        event.set("ts", microseconds(self.time));
        if let Some(length) = self.length {
            event.set("dur", microseconds(length));
        }
        event
    }
}
