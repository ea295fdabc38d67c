//! Limits what a function may use: collectives, copies, kernels, allocations, and waits, as counted by the virtual GPU.

mod cost;

use std::sync::Arc;

use anyhow::{bail, ensure};
use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;

use virtual_gpu_core::source_location::SourceLine;

pub(crate) use self::cost::sent;
use self::cost::{Cost, collective, enqueued_on, number, outermost_groups};
use crate::calls::{Call, Record, Threads, VirtualDriver, shown};
use crate::nccl_log::NcclLog;

/// The maximum number of lines that a message lists.
const LISTED: usize = 4;

/// The limits for a function of an exercise. Every limit is an upper bound, and nothing else is counted.
///
/// Only successful calls from lines of the exercise count.
#[derive(Clone)]
pub struct Budget {
    function: String,
    /// The situation, as in `over no elements`.
    case: Option<&'static str>,
    threads: Threads,
    /// The accepted sets of collectives; if there are none, collectives are not counted.
    collectives: Vec<Vec<(&'static str, usize)>>,
    limits: Vec<(Cost, u64)>,
    streams: Option<Vec<(u64, &'static str)>>,
    copies_on: Option<(u64, &'static str)>,
    waits_for_values: bool,
}

/// What is counted while a call runs.
enum Count {
    /// All calls, in the virtual driver's record with this number.
    Calls(VirtualDriver, Record),
    /// Collectives, because real GPUs don't record calls. These were in NCCL's log before; `None` if they are not counted either.
    Collectives(Option<Vec<(String, usize)>>),
}

impl Budget {
    /// Returns a budget without limits for the function with this name. Only calls of this thread count.
    pub fn of(function: &str) -> Self {
        Self {
            function: function.to_owned(),
            case: None,
            threads: Threads::This,
            collectives: Vec::new(),
            limits: Vec::new(),
            streams: None,
            copies_on: None,
            waits_for_values: false,
        }
    }

    /// Names the situation that the limits are for, as in `over no elements`. A message has it after the function.
    #[must_use]
    pub fn case(mut self, case: &'static str) -> Self {
        self.case = Some(case);
        self
    }

    /// Counts the calls of all threads. Use it for a function that starts threads.
    #[must_use]
    pub fn of_all_threads(mut self) -> Self {
        self.threads = Threads::All;
        self
    }

    /// Expects exactly these collectives, in any order. Each is a kind, such as `ncclAllReduce`, and the element count
    /// that is passed to NCCL.
    #[must_use]
    pub fn collectives(mut self, collectives: &[(&'static str, usize)]) -> Self {
        self.collectives.push(collectives.to_vec());
        self
    }

    /// Also accepts these collectives, as an alternative to those of [`Self::collectives`].
    #[must_use]
    pub fn or_collectives(self, collectives: &[(&'static str, usize)]) -> Self {
        self.collectives(collectives)
    }

    /// Limits the number of collectives of any kind and length, for exercises whose right answers use different ones.
    #[must_use]
    pub fn any_collectives(self, at_most: u64) -> Self {
        self.limit(Cost::Collectives, at_most)
    }

    /// Limits the bytes that are passed to collectives and sends: the element count of each call, times the size of an
    /// element. Receives don't count.
    #[must_use]
    pub fn bytes_to_nccl(self, at_most: u64) -> Self {
        self.limit(Cost::BytesToNccl, at_most)
    }

    /// Limits the number of sends and receives.
    #[must_use]
    pub fn messages(self, at_most: u64) -> Self {
        self.limit(Cost::Messages, at_most)
    }

    /// Limits the number of one-sided puts.
    #[must_use]
    pub fn puts(self, at_most: u64) -> Self {
        self.limit(Cost::Puts, at_most)
    }

    /// Limits the number of groups. A group within a group is a part of it.
    #[must_use]
    pub fn groups(self, at_most: u64) -> Self {
        self.limit(Cost::Groups, at_most)
    }

    /// Limits the number of kernel launches.
    #[must_use]
    pub fn kernels(self, at_most: u64) -> Self {
        self.limit(Cost::Kernels, at_most)
    }

    /// Limits the bytes that are copied from the host to GPUs.
    #[must_use]
    pub fn bytes_to_device(self, at_most: u64) -> Self {
        self.limit(Cost::BytesToDevice, at_most)
    }

    /// Limits the bytes that are copied from GPUs to the host.
    #[must_use]
    pub fn bytes_to_host(self, at_most: u64) -> Self {
        self.limit(Cost::BytesToHost, at_most)
    }

    /// Limits the bytes that are copied within a GPU or between GPUs.
    #[must_use]
    pub fn bytes_on_device(self, at_most: u64) -> Self {
        self.limit(Cost::BytesOnDevice, at_most)
    }

    /// Limits the number of copies in any direction.
    #[must_use]
    pub fn copies(self, at_most: u64) -> Self {
        self.limit(Cost::Copies, at_most)
    }

    /// Limits the number of fills of device memory, such as `memset_zeros`.
    #[must_use]
    pub fn fills(self, at_most: u64) -> Self {
        self.limit(Cost::Fills, at_most)
    }

    /// Limits the number of allocations of device, managed, or pinned memory.
    #[must_use]
    pub fn allocations(self, at_most: u64) -> Self {
        self.limit(Cost::Allocations, at_most)
    }

    /// Limits how often a context is opened.
    #[must_use]
    pub fn contexts(self, at_most: u64) -> Self {
        self.limit(Cost::Contexts, at_most)
    }

    /// Limits the number of new streams.
    #[must_use]
    pub fn new_streams(self, at_most: u64) -> Self {
        self.limit(Cost::Streams, at_most)
    }

    /// Limits the number of new events. If event tracking is on, every allocated buffer has two.
    #[must_use]
    pub fn events(self, at_most: u64) -> Self {
        self.limit(Cost::Events, at_most)
    }

    /// Limits how often the host waits for a stream, an event, a context, or a copy without a stream.
    #[must_use]
    pub fn host_waits(self, at_most: u64) -> Self {
        self.limit(Cost::HostWaits, at_most)
    }

    /// Limits the number of queries of a stream or an event. Many queries amount to a busy wait.
    #[must_use]
    pub fn polls(self, at_most: u64) -> Self {
        self.limit(Cost::Polls, at_most)
    }

    /// Limits the number of new communicators.
    #[must_use]
    pub fn communicators(self, at_most: u64) -> Self {
        self.limit(Cost::Communicators, at_most)
    }

    /// Limits the number of modules loaded.
    #[must_use]
    pub fn modules(self, at_most: u64) -> Self {
        self.limit(Cost::Modules, at_most)
    }

    /// Expects a wait after the last copy to the host: for a stream, an event, or a context. A query that reports completion also
    /// counts, and so does a copy without a stream.
    #[must_use]
    pub fn waits_for_values(mut self) -> Self {
        self.waits_for_values = true;
        self
    }

    /// Allows work only on these streams. Each has the name that the contract uses, such as `the communicator's stream`.
    #[must_use]
    pub fn streams(mut self, streams: &[(&Arc<CudaStream>, &'static str)]) -> Self {
        let handles = streams.iter().map(|(stream, role)| (stream.cu_stream() as u64, *role));
        self.streams = Some(handles.collect());
        self
    }

    /// Allows copies only on this stream, which has the name that the contract uses, such as `the copy stream`.
    #[must_use]
    pub fn copies_on(mut self, stream: &Arc<CudaStream>, role: &'static str) -> Self {
        self.copies_on = Some((stream.cu_stream() as u64, role));
        self
    }

    /// Allows work only on the stream of a communicator.
    #[must_use]
    pub fn stream_of(self, comm: &Comm) -> Self {
        self.streams(&[(&comm.stream(), "the communicator's stream")])
    }

    fn limit(mut self, cost: Cost, at_most: u64) -> Self {
        self.limits.push((cost, at_most));
        self
    }

    /// Runs `call`, and compares what it used with this budget. On real GPUs, only collectives are counted, using
    /// NCCL's log.
    ///
    /// # Errors
    /// Fails if the call copies on another stream, if it fails, or if it uses too much. The error lists the lines
    /// responsible.
    pub fn spend<T>(&self, call: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let count = self.start()?;
        let returned = call();
        self.check(count, returned.is_ok())?;
        returned
    }

    /// Starts counting.
    fn start(&self) -> anyhow::Result<Count> {
        if let Some(driver) = VirtualDriver::find()? {
            let record = driver.start_record(self.threads)?;
            return Ok(Count::Calls(driver, record));
        }
        println!("`{}`: on real GPUs, only collectives are counted", self.function);
        Ok(Count::Collectives(self.logged_collectives()?))
    }

    /// Ends counting. If the call has succeeded, compares everything with this budget.
    fn check(&self, count: Count, has_succeeded: bool) -> anyhow::Result<()> {
        let (driver, record) = match count {
            Count::Calls(driver, record) => (driver, record),
            Count::Collectives(before) if has_succeeded => return self.check_log(before),
            Count::Collectives(_) => return Ok(()),
        };
        let mut calls = driver.end_record(record)?;
        calls.retain(|call| call.code == 0);
        // After a copy on a stream of another GPU, cudarc can't record its event there. Its next call then fails with
        // an error that names neither the copy nor the stream.
        self.check_copies_on(&calls)?;
        if !has_succeeded {
            return Ok(());
        }
        self.check_collectives(&calls)?;
        for &(cost, at_most) in &self.limits {
            self.check_limit(cost, at_most, &calls)?;
        }
        self.check_streams(&calls)?;
        self.check_wait_for_values(&calls)
    }

    /// Returns the subject of a message.
    fn subject(&self) -> String {
        match self.case {
            Some(case) => format!("`{}` {case}", self.function),
            None => format!("`{}`", self.function),
        }
    }

    /// Returns the collectives so far in NCCL's log, in the order of the calls. Returns `None` if none are to be counted, or if there
    /// is no log.
    fn logged_collectives(&self) -> anyhow::Result<Option<Vec<(String, usize)>>> {
        let Some(log) = NcclLog::of_check().filter(|_| !self.collectives.is_empty()) else { return Ok(None) };
        // SAFETY: `gettid` has no arguments and can't fail.
        let thread = (self.threads == Threads::This).then(|| unsafe { libc::gettid() });
        log.collectives(thread).map(Some)
    }

    /// Compares only collectives: those in NCCL's log, without those that were there before.
    fn check_log(&self, before: Option<Vec<(String, usize)>>) -> anyhow::Result<()> {
        let (Some(before), Some(made)) = (before, self.logged_collectives()?) else { return Ok(()) };
        let made: Vec<(&str, usize)> =
            made[before.len()..].iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        self.compare_collectives(&made, &[])
    }

    fn check_collectives(&self, calls: &[Call]) -> anyhow::Result<()> {
        let made: Vec<(&Call, (&str, usize))> =
            calls.iter().filter_map(|call| Some((call, collective(call)?))).collect();
        let (lines, made): (Vec<&Call>, Vec<(&str, usize)>) = made.into_iter().unzip();
        self.compare_collectives(&made, &lines)
    }

    fn compare_collectives(&self, made: &[(&str, usize)], calls: &[&Call]) -> anyhow::Result<()> {
        let sorted = |collectives: &[(&'_ str, usize)]| {
            let mut sorted: Vec<(String, usize)> =
                collectives.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
            sorted.sort_unstable();
            sorted
        };
        let is_accepted = self.collectives.iter().any(|accepted| sorted(made) == sorted(accepted));
        let accepted: Vec<String> = self.collectives.iter().map(|accepted| in_words(accepted)).collect();
        ensure!(
            self.collectives.is_empty() || is_accepted,
            "{} makes {}; expected {}{}",
            self.subject(),
            in_words(made),
            accepted.join(", or "),
            listed(&self.unexpected(made, calls), repeated)
        );
        Ok(())
    }

    /// Returns the calls that share a line with an unexpected collective. Returns all calls if there is no such line, or
    /// if several sets of collectives are accepted.
    fn unexpected<'c>(&self, made: &[(&str, usize)], calls: &[&'c Call]) -> Vec<&'c Call> {
        let [accepted] = &self.collectives[..] else { return calls.to_vec() };
        let mut missing: Vec<(&str, usize)> = accepted.clone();
        let is_extra = |collective: &(&str, usize)| match missing.iter().position(|it| it == collective) {
            Some(at) => {
                missing.remove(at);
                false
            }
            None => true,
        };
        let extra: Vec<bool> = made.iter().map(is_extra).collect();
        let lines: Vec<&SourceLine> =
            calls.iter().zip(extra).filter_map(|(call, extra)| extra.then_some(&call.line)).collect();
        calls.iter().copied().filter(|call| lines.is_empty() || lines.contains(&&call.line)).collect()
    }

    fn check_limit(&self, cost: Cost, at_most: u64, calls: &[Call]) -> anyhow::Result<()> {
        let counted = if cost == Cost::Groups { outermost_groups(calls) } else { calls.iter().collect() };
        let mut amount = 0;
        // List the calls beyond the limit first, because the earlier calls may be necessary.
        let (mut within, mut beyond): (Vec<&Call>, Vec<&Call>) = Default::default();
        for (call, spent) in counted.into_iter().map(|call| (call, cost.of(call))).filter(|(_, it)| *it > 0) {
            amount += spent;
            if amount > at_most { beyond.push(call) } else { within.push(call) }
        }
        let lines = [beyond, within].concat();
        ensure!(
            amount <= at_most,
            "{} {}; {}{}",
            self.subject(),
            cost.in_words(amount),
            enough(at_most),
            listed(&lines, |calls| match cost.unit() {
                None => repeated(calls),
                Some(unit) => {
                    let amount = calls.iter().map(|call| cost.of(call)).sum();
                    Some(format!("{} {unit}", number(amount)))
                }
            })
        );
        Ok(())
    }

    fn check_streams(&self, calls: &[Call]) -> anyhow::Result<()> {
        let Some(streams) = &self.streams else { return Ok(()) };
        let elsewhere = calls.iter().filter_map(|call| Some((call, enqueued_on(call)?)));
        let elsewhere: Vec<(&Call, u64)> =
            elsewhere.filter(|(_, stream)| streams.iter().all(|(allowed, _)| allowed != stream)).collect();
        let Some((_, stream)) = elsewhere.first() else { return Ok(()) };
        let mut roles: Vec<&str> = streams.iter().map(|(_, role)| *role).collect();
        // The streams of several communicators share one role.
        roles.dedup();
        let calls: Vec<&Call> = elsewhere.iter().map(|(call, _)| *call).collect();
        ensure!(
            calls.is_empty(),
            "{} enqueues work on {}; expected only {}{}",
            self.subject(),
            if *stream == 0 { "the default stream" } else { "another stream" },
            roles.join(" and "),
            listed(&calls, repeated)
        );
        Ok(())
    }

    fn check_copies_on(&self, calls: &[Call]) -> anyhow::Result<()> {
        let Some((stream, role)) = self.copies_on else { return Ok(()) };
        let is_elsewhere = |call: &&Call| Cost::Copies.of(call) > 0 && enqueued_on(call) != Some(stream);
        let elsewhere: Vec<&Call> = calls.iter().filter(is_elsewhere).collect();
        ensure!(
            elsewhere.is_empty(),
            "{} enqueues copies on another stream than {role}{}",
            self.subject(),
            listed(&elsewhere, repeated)
        );
        Ok(())
    }

    fn check_wait_for_values(&self, calls: &[Call]) -> anyhow::Result<()> {
        let is_copy = |call: &Call| call.function == "cuMemcpyDtoHAsync";
        let Some(copy) = calls.iter().rposition(is_copy).filter(|_| self.waits_for_values) else {
            return Ok(());
        };
        let after = &calls[copy..];
        let is_wait = |call: &&Call| waits(call) || polls(call);
        // Another stream may wait for an event after the copy.
        let waits_for_event = |stream: u64| {
            after.iter().any(|call| call.function == "cuStreamWaitEvent" && call.arguments[0] == stream)
        };
        let is_for_copy = |call: &Call| match call.function.as_str() {
            "cuStreamSynchronize" | "cuStreamQuery" => {
                let stream = call.arguments[0];
                stream == calls[copy].arguments[3] || waits_for_event(stream)
            }
            _ => true,
        };
        if after.iter().filter(is_wait).any(is_for_copy) {
            return Ok(());
        }
        let (subject, line) = (self.subject(), listed(&[&calls[copy]], repeated));
        if let Some(elsewhere) = after.iter().find(is_wait) {
            bail!(
                "{subject} waits for the wrong stream after its last copy to the host{line}\n  the wait:{}",
                listed(&[elsewhere], repeated)
            );
        }
        bail!(
            "{subject} does not wait after its last copy to the host; expected a wait, such as `synchronize`: CUDA only says that the \
             copy may wait{line}"
        )
    }
}

/// Returns whether a call makes the host wait for the GPU.
pub(crate) fn waits(call: &Call) -> bool {
    Cost::HostWaits.of(call) > 0
}

/// Returns whether a call queries the completion of work.
pub(crate) fn polls(call: &Call) -> bool {
    Cost::Polls.of(call) > 0
}

/// Returns the wording of a limit.
fn enough(at_most: u64) -> String {
    match at_most {
        0 => "none is needed".to_owned(),
        1 => "one is enough".to_owned(),
        _ => format!("{} are enough", number(at_most)),
    }
}

/// Describes collectives: `2 AllReduce of 4,096 elements each`.
fn in_words(collectives: &[(&str, usize)]) -> String {
    if collectives.is_empty() {
        return "no collective".to_owned();
    }
    let mut kinds: Vec<((&str, usize), usize)> = Vec::new();
    for collective in collectives {
        match kinds.iter_mut().find(|(known, _)| known == collective) {
            Some((_, times)) => *times += 1,
            None => kinds.push((*collective, 1)),
        }
    }
    let listed: Vec<String> = kinds
        .iter()
        .map(|((kind, count), times)| {
            let count = format!("{} element{}", number(*count as u64), if *count == 1 { "" } else { "s" });
            match times {
                1 => format!("one {kind} of {count}"),
                _ => format!("{times} {kind} of {count} each"),
            }
        })
        .collect();
    listed.join(", ")
}

/// Lists the distinct lines of calls, with a note on the calls of each. If there are too many lines, those of the first
/// calls are listed. The order is that of the file.
fn listed(calls: &[&Call], note: impl Fn(&[&Call]) -> Option<String>) -> String {
    let mut lines: Vec<(&SourceLine, Vec<&Call>)> = Vec::new();
    for call in calls {
        match lines.iter_mut().find(|(known, _)| **known == call.line) {
            Some((_, calls)) => calls.push(call),
            None => lines.push((&call.line, vec![call])),
        }
    }
    let more = lines.len().saturating_sub(LISTED);
    lines.truncate(LISTED);
    lines.sort_by_key(|(line, _)| (&line.file, line.line, line.column));
    let mut text = String::new();
    for (line, calls) in lines {
        let shown = shown(line);
        text += "\n";
        text += &match (note(&calls), shown.split_once('\n')) {
            (Some(note), Some((place, code))) => format!("{place} ({note})\n{code}"),
            _ => shown,
        };
    }
    match more {
        0 => text,
        1 => text + "\n  and one more line",
        _ => text + &format!("\n  and {more} more lines"),
    }
}

/// Returns how often a line made its calls, if more than once.
fn repeated(calls: &[&Call]) -> Option<String> {
    (calls.len() > 1).then(|| format!("{} times", calls.len()))
}
