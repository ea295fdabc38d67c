//! Runs kernels that share memory with other GPUs, and which may therefore wait for each other. Each runs on a thread of
//! its own, but only one at a time: a kernel that waits lets the others run.
//!
//! A kernel is suspended when all its threads repeat themselves, until anything has changed in memory, or when it has run
//! for a while. The host threads that run operations resume it in between.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::kernel_report::waiting_report;
use super::launch::KernelLaunch;
use super::peers::Reach;
use super::run::Turn;
use super::stream::Op;
use super::touched::Outcome;
use super::wait::{Stuck, given_up};
use super::{Engine, Failure, State, lock};
use crate::order::View;
use crate::report::Report;
use crate::time::Ticket;
use virtual_gpu_core::handle::{OpRef, OperationNumber, StreamHandle};
use virtual_gpu_core::memory::DeviceMemory;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::CudaStatus;
use virtual_gpu_core::sync::{Condvar, Mutex, MutexGuard, spawn_for_good};
use virtual_gpu_core::thread::{ThreadKey, awake};
use virtual_gpu_machine::{Consistency, Others, Pause, ThreadReport};

/// The number of launches after which those that have ended are forgotten.
const REMEMBERED: usize = 256;

/// Launches that take turns with those on other GPUs.
#[derive(Default)]
pub(super) struct Launches {
    /// Those that let others run, the one that has waited longest first.
    suspended: VecDeque<Run>,
    known: VecDeque<Known>,
    /// The number of the first launch in `known`.
    first: usize,
    /// The number of times that a launch has changed memory before it was suspended.
    changes: u64,
    /// The number of passes over ready work.
    passes: u64,
    /// Since when nothing can change what the launches wait for.
    stuck: Stuck,
}

/// What the engine knows about a launch.
struct Known {
    op: OpRef,
    thread: ThreadKey,
    /// What will have happened when the launch is done.
    view: View,
    ticket: Ticket,
    call_site: CallSite,
    device: usize,
}

/// A launch whose turn has come.
pub(super) struct Start {
    launch: Box<KernelLaunch>,
    turn: Turn,
    place: Place,
    reach: Reach,
    /// [`State::changes`] now.
    seen: u64,
}

/// A launch's place among the others.
pub(super) struct Place {
    /// Its number.
    pub(super) number: usize,
    /// The launches that came before it.
    after: Vec<usize>,
    /// The first launch that is not forgotten.
    first: usize,
}

/// A launch that is under way.
pub(super) struct Run {
    stream: StreamHandle,
    what: String,
    number: usize,
    baton: Arc<Baton>,
    /// Why it is suspended.
    pause: Pause,
    /// [`State::changes`] that it has certainly seen: those when it was last resumed, and its own.
    seen: u64,
    /// The last pass in which it ran.
    pass: u64,
    /// Why it ends when it is resumed.
    ends: Option<Failure>,
}

/// A job for a launch.
pub(super) enum Together {
    Start { stream: StreamHandle, start: Start },
    Resume(Run),
}

/// How a launch has ended: what it did, and the other launches that it has learned of.
pub(super) struct Ended {
    pub(super) stream: StreamHandle,
    pub(super) what: String,
    pub(super) outcome: Outcome,
    pub(super) learned: Vec<usize>,
}

/// Passes control between the thread of a kernel and a thread that runs operations.
struct Baton {
    holder: Mutex<Holder>,
    passed: Condvar,
}

enum Holder {
    /// The kernel's thread runs. It ends with this failure, if there is one.
    Kernel(Option<Failure>),
    Suspended {
        pause: Pause,
        has_changed: bool,
    },
    Ended(Box<(Outcome, Vec<usize>)>),
    /// The kernel's thread has stopped, and the other thread knows it.
    Engine,
}

impl Baton {
    /// Waits until the kernel's thread has stopped, and returns why.
    fn wait(&self) -> Holder {
        let mut holder = lock(&self.holder);
        while matches!(*holder, Holder::Kernel(_)) {
            holder = self.passed.wait(holder).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        std::mem::replace(&mut holder, Holder::Engine)
    }

    fn set(&self, holder: Holder) {
        *lock(&self.holder) = holder;
        self.passed.notify_all();
    }

    /// Suspends the kernel's thread. Returns why the kernel ends, if it does.
    fn suspend(&self, pause: Pause, has_changed: bool) -> Option<Failure> {
        self.set(Holder::Suspended { pause, has_changed });
        let mut holder = lock(&self.holder);
        loop {
            match &mut *holder {
                Holder::Kernel(failure) => return failure.take(),
                _ => holder = self.passed.wait(holder).unwrap_or_else(|poisoned| poisoned.into_inner()),
            }
        }
    }
}

/// Ends a launch even if its thread panics.
struct Ending(Arc<Baton>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut holder = lock(&self.0.holder);
        if matches!(*holder, Holder::Kernel(_)) {
            let report =
                Report::new("the thread of a kernel has panicked: this is an error of the virtual GPU");
            let failure = Failure::announce(CudaStatus::Unknown, &report);
            *holder = Holder::Ended(Box::new((Err(failure), Vec::new())));
        }
        self.0.passed.notify_all();
    }
}

/// The memory that a launch uses, which is locked while it runs.
pub(super) struct SharedMemory<'e> {
    engine: &'e Engine,
    device: usize,
    sequence: OperationNumber,
    reach: Reach,
    baton: Arc<Baton>,
    /// The locked memories of the GPUs in ascending order, and managed memory.
    locked: Vec<(usize, MutexGuard<'e, DeviceMemory>)>,
    record: Option<MutexGuard<'e, Consistency>>,
    /// Why the launch ends without having run to its end.
    pub(super) ends: Option<Failure>,
}

impl<'e> SharedMemory<'e> {
    fn new(engine: &'e Engine, turn: &Turn, reach: Reach, baton: Arc<Baton>) -> Self {
        let &Turn { device, sequence, .. } = turn;
        Self { engine, device, sequence, reach, baton, locked: Vec::new(), record: None, ends: None }
    }

    /// Locks the memory and makes all that the launch can access accessible through `memory`.
    pub(super) fn lock(&mut self, memory: &mut DeviceMemory, consistency: &mut Consistency) {
        let all: BTreeSet<usize> =
            self.reach.gpus.iter().copied().chain([self.device, self.engine.managed()]).collect();
        for gpu in all {
            let guard = self.engine.memory_as_of(gpu, self.sequence);
            self.locked.push((gpu, guard));
        }
        let (device, managed) = (self.device, self.engine.managed());
        for (gpu, guard) in &mut self.locked {
            if *gpu == device {
                std::mem::swap(memory, &mut **guard);
            }
        }
        for (gpu, guard) in &mut self.locked {
            if *gpu != device {
                let reach = &self.reach;
                memory.borrow(guard, |allocation| *gpu == managed || reach.includes(*gpu, allocation));
            }
        }
        let mut record = lock(&self.engine.consistency);
        std::mem::swap(consistency, &mut *record);
        self.record = Some(record);
    }

    /// Undoes [`Self::lock`].
    pub(super) fn unlock(&mut self, memory: &mut DeviceMemory, consistency: &mut Consistency) {
        if let Some(mut record) = self.record.take() {
            std::mem::swap(consistency, &mut *record);
        }
        for (gpu, guard) in &mut self.locked {
            if *gpu != self.device {
                memory.give_back(guard);
            }
        }
        for (gpu, guard) in &mut self.locked {
            if *gpu == self.device {
                std::mem::swap(memory, &mut **guard);
            }
        }
        self.locked.clear();
    }
}

impl Others for &mut SharedMemory<'_> {
    fn run(
        &mut self,
        pause: Pause,
        has_changed: bool,
        memory: &mut DeviceMemory,
        consistency: &mut Consistency,
    ) -> bool {
        self.unlock(memory, consistency);
        self.ends = self.baton.suspend(pause, has_changed);
        self.lock(memory, consistency);
        self.ends.is_none()
    }
}

impl Place {
    /// Adds the launch to the record.
    pub(super) fn begin(&self, launch: &KernelLaunch, device: usize, consistency: &mut Consistency) {
        consistency.forget_before(self.first);
        let shape = launch.shape;
        consistency.begin(self.number, launch.kernel.clone(), device, [shape.grid, shape.block], &self.after);
    }
}

impl Engine {
    /// Starts or resumes a launch, and returns how it has ended, if it has.
    pub(super) fn run_together(&self, job: Together) -> Option<Ended> {
        let mut run = match job {
            Together::Resume(mut run) => {
                run.baton.set(Holder::Kernel(run.ends.take()));
                run
            }
            Together::Start { stream, start } => match self.start_together(stream, start) {
                Ok(run) => run,
                Err(ended) => return Some(*ended),
            },
        };
        match run.baton.wait() {
            Holder::Ended(ended) => {
                let (outcome, learned) = *ended;
                Some(Ended { stream: run.stream, what: run.what, outcome, learned })
            }
            Holder::Suspended { pause, has_changed } => {
                let mut state = self.state();
                state.together.changes += u64::from(has_changed);
                run.pause = pause;
                run.seen += u64::from(has_changed);
                run.pass = state.together.passes;
                state.together.suspended.push_back(run);
                None
            }
            Holder::Kernel(_) | Holder::Engine => None,
        }
    }

    /// Starts the thread of a launch.
    fn start_together(&self, stream: StreamHandle, start: Start) -> Result<Run, Box<Ended>> {
        let what = format!("kernel `{}`", start.launch.name());
        let (number, seen) = (start.place.number, start.seen);
        let baton = Arc::new(Baton { holder: Mutex::new(Holder::Kernel(None)), passed: Condvar::new() });
        let refuse = |why: &dyn std::fmt::Display| {
            let report = Report::new(format!("can't start a thread for {what}: {why}"));
            let outcome = Err(Failure::announce(CudaStatus::OperatingSystem, &report));
            Box::new(Ended { stream, what: what.clone(), outcome, learned: Vec::new() })
        };
        let Some(&engine) = self.whole.get() else { return Err(refuse(&"the engine is not shared")) };
        let of_thread = baton.clone();
        let run = move || {
            let ending = Ending(of_thread);
            let Start { launch, turn, place, reach, .. } = start;
            let memory = SharedMemory::new(engine, &turn, reach, ending.0.clone());
            let (outcome, learned) = engine.run_kernel_together(&launch, &turn, &place, memory);
            ending.0.set(Holder::Ended(Box::new((outcome, learned))));
        };
        spawn_for_good("kernel", run).map_err(|error| refuse(&error))?;
        let (pause, pass, ends) = (Pause::Slice, 0, None);
        Ok(Run { stream, what, number, baton, pause, seen, pass, ends })
    }

    /// Returns the GPU of a launch and where it was launched, if the launch is still known.
    pub(super) fn launch_site(&self, number: usize) -> Option<(usize, CallSite)> {
        let state = self.state();
        let known = state.together.known(number)?;
        Some((known.device, known.call_site.clone()))
    }

    /// Returns the tickets of launches that a launch has waited for.
    pub(super) fn tickets_of(&self, numbers: &[usize]) -> Vec<Ticket> {
        let state = self.state();
        numbers.iter().filter_map(|&number| Some(state.together.known(number)?.ticket.clone())).collect()
    }
}

impl Launches {
    fn known(&self, number: usize) -> Option<&Known> {
        self.known.get(number.checked_sub(self.first)?)
    }

    /// Starts a pass over ready work, in which every launch that has run for a while may go on once.
    pub(super) fn begin_pass(&mut self) {
        self.passes += 1;
    }

    /// Returns whether a launch could go on in another pass.
    pub(super) fn can_go_on(&self) -> bool {
        self.suspended.iter().any(|run| matches!(run.pause, Pause::Slice))
    }

    /// Lets every launch look again at memory that the host can write.
    pub(super) fn look_again(&mut self) {
        if !self.suspended.is_empty() {
            self.changes += 1;
        }
    }

    /// Returns whether an operation is a launch that is suspended.
    fn has(&self, stream: StreamHandle) -> bool {
        self.suspended.iter().any(|run| run.stream == stream)
    }
}

impl State {
    /// The number of times that memory may have changed.
    fn changes(&self) -> u64 {
        self.finished + self.together.changes
    }

    /// Prepares a launch that shares memory with other GPUs, and whose turn has come.
    pub(super) fn together(&mut self, launch: Box<KernelLaunch>, turn: Turn, op: OpRef) -> Option<Together> {
        let reach = self.reach_of(launch.context);
        let Op { view, thread, ticket, call_site, .. } = self.streams.get(&op.stream)?.queue.front()?;
        let (thread, before) = (*thread, view.clone());
        let mut after_it = before.clone();
        after_it.advance(op.stream, op.number);
        let known = Known {
            op,
            thread,
            view: after_it,
            ticket: ticket.clone(),
            call_site: call_site.clone(),
            device: turn.device,
        };
        let seen = self.changes();
        let (launches, order) = (&mut self.together, &self.order);
        let is_before = |known: &Known| {
            let clock = if known.thread == thread { &before.own } else { &before.any };
            known.op.stream == op.stream
                || clock.covers(known.op.stream, known.op.number)
                || order.is_forgotten(known.op.stream)
        };
        let numbers = (launches.first..).zip(&launches.known);
        let after = numbers.filter(|(_, known)| is_before(known)).map(|(number, _)| number).collect();
        let number = launches.first + launches.known.len();
        // No later launch can race with one that its own thread has waited for.
        let is_over = |known: &Known| order.is_seen_by(known.thread, known.op.stream, known.op.number);
        if launches.known.len() >= REMEMBERED && launches.known.iter().all(is_over) {
            launches.known.clear();
            launches.first = number;
        }
        launches.known.push_back(known);
        let first = launches.first;
        let place = Place { number, after, first };
        Some(Together::Start { stream: op.stream, start: Start { launch, turn, place, reach, seen } })
    }

    /// Takes a suspended launch that may go on: something has changed, or it ends, or it has not run in this pass.
    pub(super) fn take_suspended(&mut self) -> Option<Together> {
        let (changes, passes) = (self.changes(), self.together.passes);
        let may_go_on = |run: &Run| {
            run.ends.is_some()
                || match run.pause {
                    Pause::Slice => run.pass < passes,
                    Pause::Waits(_) => run.seen < changes,
                }
        };
        let at = self.together.suspended.iter().position(may_go_on)?;
        let run = self.together.suspended.remove(at)?;
        Some(Together::Resume(Run { seen: changes, ..run }))
    }

    /// Adds to what will have happened when the first operation on a stream is done: what its launch has learned.
    pub(super) fn learn(&mut self, stream: StreamHandle, learned: &[usize]) {
        let mut all = View::default();
        for known in learned.iter().filter_map(|&number| self.together.known(number)) {
            all.join(&known.view);
        }
        if let Some(op) = self.streams.get_mut(&stream).and_then(|stream| stream.queue.front_mut()) {
            op.view.join(&all);
        }
    }

    /// Ends all suspended launches if nothing can ever change what they wait for: nothing runs, and every thread of the process
    /// is blocked. A lock may block a thread for a moment, so this must hold for a while. Returns whether it has ended any.
    pub(super) fn end_stuck_launches(&mut self) -> bool {
        let now = self.are_launches_stuck().then(|| (self.changes(), self.enqueued));
        let is_proved = self.together.stuck.has_lasted(now);
        if is_proved {
            self.end_launches(|report| report);
        }
        is_proved
    }

    fn are_launches_stuck(&self) -> bool {
        let is_idle = self.under_way == 0
            && self.runnable.is_empty()
            && self.host_functions.is_empty()
            && !self.streams.values().any(|stream| stream.queue.front().is_some_and(Op::is_host_function));
        let waits = |run: &Run| matches!(run.pause, Pause::Waits(_)) && run.ends.is_none();
        let suspended = &self.together.suspended;
        is_idle
            && !self.shares_with_processes
            && !suspended.is_empty()
            && suspended.iter().all(waits)
            && awake().is_some_and(|awake| awake <= self.blocked.iter().count())
    }

    /// Ends the suspended launches that operations are waiting for, after so long a wait that it is given up. Returns
    /// whether there are any.
    pub(super) fn give_up_launches(&mut self, ops: &[OpRef]) -> bool {
        let waits_for_one = ops.iter().any(|&op| self.launch_ahead(op));
        if waits_for_one {
            let timeout = self.timeout;
            self.end_launches(|report| report.fact(given_up(timeout)));
        }
        waits_for_one
    }

    /// Returns whether there is a suspended launch that another process may wait for, or that may wait for another
    /// process.
    pub(super) fn waits_for_shared_memory(&self) -> bool {
        self.shares_with_processes && !self.together.suspended.is_empty()
    }

    /// Returns whether an operation ultimately waits for a suspended launch.
    fn launch_ahead(&self, mut op: OpRef) -> bool {
        loop {
            if self.together.has(op.stream) {
                return true;
            }
            match self.obstacle(op) {
                Some(super::run::Obstacle::Op(next)) => op = next,
                _ => return false,
            }
        }
    }

    /// Lets all suspended launches end with one report. If a context that shares memory has failed before, its failure is the
    /// reason: its kernels write nothing anymore.
    fn end_launches(&mut self, add: impl FnOnce(Report) -> Report) {
        let contexts = self.contexts.entries().iter().filter(|(context, _)| self.shares_memory(*context));
        let earlier = contexts.filter_map(|(_, context)| context.failure.clone()).next();
        let waiting: Vec<(ThreadReport, usize, CallSite)> = self
            .together
            .suspended
            .iter()
            .filter_map(|run| {
                let Pause::Waits(at) = &run.pause else { return None };
                let known = self.together.known(run.number)?;
                Some(((**at).clone(), known.device, known.call_site.clone()))
            })
            .collect();
        let failure = match earlier {
            Some(failure) => (*failure).clone(),
            None => Failure::announce(CudaStatus::LaunchTimeout, &add(waiting_report(waiting))),
        };
        for run in &mut self.together.suspended {
            run.ends = Some(failure.clone());
        }
    }
}
