//! Order: finds unordered accesses to the same bytes.
//!
//! An event is a snapshot of its stream's clock, a wait is a maximum, a collective is a join of its ranks' streams, and
//! a synchronization is a join with the host thread. The results depend on what was enqueued and which bytes were
//! accessed, but never on when an operation ran.

mod clock;
mod history;
mod page;

use std::ops::Range;
use std::sync::Arc;

use clock::Gone;
pub use clock::{Clock, View};
pub(crate) use history::{Accessor, Touch};

use crate::report::{Report, memory_of, size};
use history::{Conflict, History};
use virtual_gpu_core::handle::{OperationNumber, StreamHandle};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::memory::AllocationId;
use virtual_gpu_core::sorted::{SortedMap, SortedSet};
use virtual_gpu_core::source_location::{CallSite, SourceLine};
use virtual_gpu_core::thread::ThreadKey;

/// What host threads have seen, and which operations last touched which bytes.
#[derive(Default)]
pub struct Order {
    seen_by: SortedMap<ThreadKey, Clock>,
    /// Streams that were forgotten. They are remembered because a stored clock may still contain them.
    gone: SortedSet<StreamHandle>,
    /// The number of streams that were forgotten after the threads' clocks last forgot them.
    still_in_clocks: usize,
    seen: Clock,
    histories: Map<(usize, AllocationId), History>,
    /// For each stream, the allocations whose histories may contain it; some may be gone.
    touched_by: Map<StreamHandle, Vec<(usize, AllocationId)>>,
    /// The pairs of lines whose races have been reported.
    reported: Vec<[Option<SourceLine>; 2]>,
}

/// Clocks may keep at least this many forgotten streams.
const KEPT_IN_CLOCKS: usize = 16;

/// The name suffix of a stream that runs a branch of a graph.
pub(crate) const OF_A_GRAPH: &str = " of a graph";

/// The start of the name of a branch of nodes that the program added to a graph.
pub(crate) const OF_NODES: &str = "branch ";

/// The name suffix of a stream that is named after its role.
pub(crate) const OF_A_ROLE: &str = " stream";

/// Two unordered accesses to the same bytes, at least one of which is a write.
pub(crate) struct Race {
    pub(crate) report: Report,
    /// Whether it is the first race between its two source lines.
    pub(crate) is_new: bool,
    /// The sequence numbers of its calls, later call first.
    pub(crate) calls: [OperationNumber; 2],
    /// The stream of the other access.
    pub(crate) other: StreamHandle,
}

/// The allocation that was accessed, for a report.
pub(crate) struct TouchedBuffer<'a> {
    pub(crate) device: usize,
    pub(crate) allocation: AllocationId,
    pub(crate) size: u64,
    pub(crate) call_site: &'a CallSite,
}

impl Order {
    /// Returns what `thread` knows to have happened. A new thread knows about everything that is complete when it
    /// starts.
    pub fn view_of(&mut self, thread: ThreadKey) -> View {
        let own = self.seen_by.get_or_insert_with(thread, || self.seen.clone()).clone();
        View { own, any: self.seen.clone() }
    }

    /// Records that a thread has waited for an operation.
    pub(crate) fn saw(&mut self, thread: ThreadKey, done: &View) {
        let seen = &self.seen;
        self.seen_by.get_or_insert_with(thread, || seen.clone()).join(&done.own);
        self.seen.join(&done.any);
    }

    /// Returns whether any thread has seen the `number`th operation on a stream; 0 stands for none.
    pub(crate) fn is_seen(&self, stream: StreamHandle, number: u64) -> bool {
        number == 0 || self.seen.covers(stream, number)
    }

    /// Returns whether any thread has seen everything in a view that is on other streams.
    pub(crate) fn has_seen_others(&self, stream: StreamHandle, view: &View) -> bool {
        self.seen.includes_but(&view.any, |known| known == stream || self.is_forgotten(known))
    }

    /// Forgets a stream that is gone once any thread has seen the stream's last access to memory that may still exist,
    /// because no later access can race with it. Returns `false` if no thread has seen that access.
    pub(crate) fn forget_stream(&mut self, stream: StreamHandle, last_touch: u64) -> bool {
        if !self.is_seen(stream, last_touch) {
            return false;
        }
        self.gone.insert(stream);
        self.still_in_clocks += 1;
        for place in self.touched_by.remove(&stream).unwrap_or_default() {
            if let Some(history) = self.histories.get_mut(&place) {
                history.forget(stream);
            }
        }
        true
    }

    /// Removes the forgotten streams from the threads' clocks, and returns them for the other clocks. Returns `None` while
    /// the clocks still contain few of them: searching a thousand clocks for each stream would take too long.
    pub(crate) fn clear_clocks(&mut self) -> Option<Gone<'_>> {
        if self.still_in_clocks < KEPT_IN_CLOCKS.max(self.seen.size() / 2) {
            return None;
        }
        self.still_in_clocks = 0;
        let mut gone = Gone::new(&self.gone);
        self.seen.forget(&mut gone);
        self.seen_by.values_mut().for_each(|clock| clock.forget(&mut gone));
        Some(gone)
    }

    /// Returns whether the thread that enqueued an operation has seen it.
    pub(crate) fn is_seen_by(&self, thread: ThreadKey, stream: StreamHandle, number: u64) -> bool {
        let has_seen = self.seen_by.get(&thread).is_some_and(|clock| clock.covers(stream, number));
        self.is_forgotten(stream) || has_seen && self.seen.covers(stream, number)
    }

    /// Returns whether a stream was forgotten. All its operations come before anything that is enqueued now.
    pub(crate) fn is_forgotten(&self, stream: StreamHandle) -> bool {
        self.gone.contains(&stream)
    }

    /// Forgets what threads had seen that have since ended.
    pub(crate) fn forget_threads(&mut self, is_known: impl Fn(ThreadKey) -> bool) {
        self.seen_by.retain(|&thread, _| is_known(thread));
    }

    /// Returns what has happened if an operation reads a byte's present value.
    pub(crate) fn view_of_value(&self, device: usize, allocation: AllocationId, offset: u64) -> Option<View> {
        self.histories.get(&(device, allocation))?.view_of_value(offset)
    }

    /// Forgets an allocation that is gone.
    pub(crate) fn forget_allocation(&mut self, device: usize, allocation: AllocationId) {
        self.histories.remove(&(device, allocation));
    }

    /// Records that a stream has touched an allocation.
    fn add_place(&mut self, stream: StreamHandle, place: (usize, AllocationId)) {
        let places = self.touched_by.entry(stream).or_default();
        if places.len() == places.capacity() {
            // Before the list grows, those that are gone make room.
            places.retain(|place| self.histories.contains_key(place));
        }
        places.push(place);
    }

    /// Records one operation's accesses to one allocation. Returns the first race with an earlier access to the same
    /// bytes.
    pub(crate) fn touch(
        &mut self,
        buffer: &TouchedBuffer,
        by: &Accessor,
        view: &View,
        touches: &[Touch],
    ) -> Option<Race> {
        let by = Arc::new(Accessor {
            reads: touches.iter().any(|touch| touch.reads),
            writes: touches.iter().any(|touch| touch.writes),
            extent: extent(touches),
            ..by.clone()
        });
        let place = (buffer.device, buffer.allocation);
        let history = self.histories.entry(place).or_default();
        let is_first = history.add_stream(by.stream);
        let mut first: Option<Conflict> = None;
        for touch in touches {
            let conflict = history.touch(&by, view, touch);
            first = first.or(conflict);
        }
        if is_first {
            self.add_place(by.stream, place);
        }
        let conflict = first?;
        let mut lines = [conflict.other.call_site.line(), by.call_site.line()];
        if lines[0] > lines[1] {
            lines.reverse();
        }
        let is_new = !self.reported.contains(&lines);
        if is_new {
            self.reported.push(lines);
        }
        // The later call decides which race comes first.
        let calls = [conflict.other.enqueued.max(by.enqueued), conflict.other.enqueued.min(by.enqueued)];
        let (report, other) = (race_report(buffer, &by, &conflict), conflict.other.stream);
        Some(Race { report, is_new, calls, other })
    }
}

/// Returns the range from the first byte to the last byte.
fn extent(touches: &[Touch]) -> Range<u64> {
    let (mut first, mut last) = (u64::MAX, 0);
    for touch in touches {
        for range in &touch.ranges {
            first = first.min(range.start);
            last = last.max(range.end);
        }
    }
    first.min(last)..last
}

/// Reports a race. The two sides are in the order in which they were enqueued, regardless of which ran first.
fn race_report(buffer: &TouchedBuffer, by: &Accessor, conflict: &Conflict) -> Report {
    let Conflict { range, other } = conflict;
    let mut sides = [other.as_ref(), by];
    let is_reversed = match other.thread == by.thread {
        true => other.enqueued > by.enqueued,
        false => other.call_site.line() > by.call_site.line(),
    };
    if is_reversed {
        sides.reverse();
    }
    let [earlier, later] = sides;
    let of_two_gpus = earlier.stream_device != later.stream_device;
    // Each of the two GPUs has a stream 1.
    let name = |side: &Accessor| match of_two_gpus {
        true => format!("{} of GPU {}", side.stream_name, side.stream_device),
        false => side.stream_name.to_string(),
    };
    // The bytes only matter if the two operations access different parts.
    let allocated = match earlier.extent == later.extent {
        true => "the buffer was allocated here".to_owned(),
        false => format!(
            "the buffer of {} was allocated here; both access bytes {}..{}",
            size(buffer.size),
            range.start,
            range.end
        ),
    };
    // Don't ask the user to change a line outside the program's own sources.
    let [first_line, later_line] = sides.map(|side| side.call_site.own_line());
    // In a callback, such as a hook in a backward pass, the earlier operation may only be enqueued too early. A wait before
    // the line that runs the callback would not help.
    let is_in_callback = later_line
        .as_ref()
        .is_some_and(|line| first_line.as_ref() != Some(line) && earlier.call_site.is_below(line));
    // Put what to change first. If two threads enqueued the operations, they may have done so in either order, so no
    // direction is known.
    let is_of_one_thread = earlier.thread == later.thread;
    let missing = match is_of_one_thread && !is_in_callback {
        true => format!(": nothing makes {} wait for {}", name(later), name(earlier)),
        false => String::new(),
    };
    let headline = format!("data race {}{missing}", memory_of(buffer.allocation, buffer.device));
    let mut report = Report::new(headline).before_at(allocated, buffer.call_site);
    for side in sides {
        let verb = match (side.reads, side.writes) {
            (true, true) => "read and written",
            (false, true) => "written",
            _ => "read",
        };
        report = match side.frees {
            true => report.at(format!("freed on {}", name(side)), &side.call_site),
            false => report.at(format!("{verb} by {} on {}", side.what, name(side)), &side.call_site),
        };
    }
    let in_one_file = match (&first_line, &later_line) {
        (Some(one), Some(other)) => one.file == other.file,
        _ => true,
    };
    let place = |side: &Accessor, line: &Option<SourceLine>| match line {
        Some(line) if in_one_file => format!("line {}", line.line),
        Some(line) => line.to_string(),
        None if side.frees => "the buffer is freed".to_owned(),
        None if side.writes => format!("{} writes the buffer", side.what),
        None => format!("{} reads the buffer", side.what),
    };
    let [first_place, later_place] = [place(earlier, &first_line), place(later, &later_line)];
    let in_words = format!(
        "record an event on {} after {first_place}, and make {} wait for it before {later_place}",
        name(earlier),
        name(later)
    );
    // How the name of NCCL's operation that writes into another rank's memory begins.
    const PUT: &str = "ncclPutSignal";
    // Events order streams, but a rank's stream and the put of another rank meet only in signals.
    let is_put = |side: &Accessor| side.writes && side.what.starts_with(PUT);
    match [earlier, later].map(is_put) {
        [true, false] | [false, true] => {
            return report.help(
                "order a put by signals: wait for its signal (ncclWaitSignal) before you use what it writes, and send one \
                 back (ncclSignal), which it waits for, before it overwrites what you still use",
            );
        }
        [true, true] => {
            return report.help(
                "let the second put wait (ncclWaitSignal) for a signal that is sent after the first one has arrived, or put into \
                 another part of the window",
            );
        }
        [false, false] => {}
    }
    if !is_of_one_thread {
        return report.fact("two threads enqueued the operations, and neither waited for the other's operation to complete").help(
            "record an event on the stream that must come first, and make the other stream wait for it",
        );
    }
    let in_graph = |side: &Accessor| side.stream_name.ends_with(OF_A_GRAPH);
    const LAUNCHING: &str = "the stream on which the graph is launched";
    match (in_graph(earlier), in_graph(later)) {
        (true, false) => {
            let waits = format!("make {} wait for it before {later_place}", name(later));
            return report.help(format!("record an event on {LAUNCHING}, after the launch, and {waits}"));
        }
        (false, true) => {
            let records = format!("record an event on {} after {first_place}", name(earlier));
            return report.help(format!("{records}, and make {LAUNCHING} wait for it before the launch"));
        }
        _ => {}
    }
    let is_of_nodes = |side: &Accessor| in_graph(side) && side.stream_name.starts_with(OF_NODES);
    if is_of_nodes(earlier) && is_of_nodes(later) {
        return report.help(format!(
            "make the node of {later_place} depend on that of {first_place} (cuGraphAddDependencies)"
        ));
    }
    let is_of_earlier_round = match (&first_line, &later_line) {
        (Some(one), Some(other)) => in_one_file && one.line > other.line,
        _ => false,
    };
    if is_of_earlier_round {
        report = report.fact(format!(
            "{first_place} was enqueued first, and {later_place} after it, as in the next iteration of a loop"
        ));
    }
    if is_in_callback {
        let fact = format!(
            "{first_place} is in a callback that {later_place} calls; {} was enqueued first",
            earlier.what
        );
        return report.fact(fact).help(format!(
            "enqueue {} after everything else that accesses these bytes, or make {} wait for {} in between",
            earlier.what,
            name(later),
            name(earlier)
        ));
    }
    // A role is probably also the name of a variable in the program. The default stream has no variable.
    let role = |side: &Accessor| {
        let name = side.stream_name.trim_end_matches(OF_A_GRAPH).trim_start_matches("the ");
        let role = name.strip_suffix(OF_A_ROLE).filter(|role| *role != "default")?;
        Some(role.replace(' ', "_"))
    };
    let mut help = match (role(later), role(earlier), &later_line) {
        (Some(waits), Some(records), Some(_)) if !of_two_gpus => {
            format!("before {later_place}: {waits}.wait(&{records}.record_event(None)?)?")
        }
        _ => in_words,
    };
    if is_of_earlier_round && later.writes && !later.reads && !later.frees {
        help += ", or use another buffer";
    }
    report.help(help)
}
