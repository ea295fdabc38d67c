//! The engine: contexts, streams, events, and memory under one lock, and the work that runs outside the lock.
//!
//! An operation runs once its predecessors on its stream and the events that it waits for are done. It runs without the
//! engine's lock, on whichever host thread made it ready or is waiting for it. The results are those of a correct GPU
//! for a correctly synchronized program. Nothing here models when, or in what order, a GPU would produce them.

mod advice;
mod array;
mod capture;
mod cluster;
mod communication;
mod context;
mod elsewhere;
mod enqueue;
mod event;
mod free;
mod function;
mod graph;
mod host;
mod host_memory;
mod interprocess;
mod kernel_report;
mod kernel_run;
mod launch;
mod leaks;
mod managed;
mod module;
mod peers;
mod pointer;
mod pool;
mod print;
mod region;
mod run;
mod settings;
mod stream;
mod texture;
mod threads;
mod together;
mod touched;
mod transfer;
mod value;
mod virtual_memory;
mod wait;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock, TryLockError};
use std::time::Duration;

pub use advice::{RangeAnswer, RangeAttribute};
pub use array::{ArrayDescription, ArrayHandle};
pub use capture::{CaptureInfo, CaptureMode, CaptureStatus};
pub use context::ContextHandle;
pub use elsewhere::SharedEvent;
pub use event::EventHandle;
pub use graph::{
    CopySide, GraphCopy, GraphExecHandle, GraphHandle, GraphMemoryFigure, GraphNodeHandle, KernelNode,
    NodeKind, NodeParameters, UpdateFailure, UpdateResult, UserObjectHandle,
};
pub use host::HostFunction;
pub use host_memory::{Guard, HostKind, HostRead, HostSide, HostWrite, Memory};
pub use launch::LaunchShape;
pub use managed::{Advice, Attachment, Location};
pub use module::{FunctionHandle, ModuleHandle};
pub use pointer::{MemoryKind, Pointer};
pub use pool::{PoolFigure, PoolHandle};
pub use region::Region;
pub use settings::CachePreference;

pub use communication::{
    Awaiting, CapturedCalls, Communication, CommunicationJob, Deadlocked, Missing, SharedCalls,
};
pub use stream::{Awaited, Stream, StreamFigures, with_own_default_stream};
pub use texture::{ObjectHandle, Resource, ResourceView, TextureRequest, most_linear_elements};
pub use touched::Touched;
pub use transfer::address_report;
pub use value::{Condition, Value, ValueOperation};
pub use virtual_memory::{GRANULARITY, MakeShared, MemoryAccess, MemoryHandle};
pub use wait::{Wait, given_up};

use crate::config::{Checks, Config, Timeout};
use crate::device::TOTAL_MEMORY;
use crate::order::Order;
use crate::report::Report;
use crate::time::Time;
use crate::time::trace::OperationThatRan;
use communication::NoCommunication;
use virtual_gpu_core::handle::{OpRef, OperationNumber, StreamHandle};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::memory::{AFTER_ALL, DeviceMemory, addresses_per_gpu};
use virtual_gpu_core::sorted::{SortedMap, SortedSet};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::sync::{Condvar, Mutex, MutexGuard, thread};
use virtual_gpu_core::thread::ThreadKey;
use virtual_gpu_machine::Consistency;

/// How many times an ending process tries to get the lock for the trace, a millisecond apart.
const TRIES: usize = 1000;

/// A set of virtual GPUs, and everything that programs have created on them.
pub struct Engine {
    config: Config,
    /// The first device address.
    addresses: u64,
    /// The memory of each GPU; the last one is managed memory.
    memories: Vec<Mutex<DeviceMemory>>,
    /// The most recently parsed PTX texts, with their modules.
    parsed: Mutex<VecDeque<(Box<str>, Arc<virtual_gpu_ptx::Module>)>>,
    /// Host memory that GPUs can access: the address of the first byte, the number of bytes, and how often it has been
    /// pinned. It stays here until pending work no longer needs it.
    mapped: Mutex<BTreeMap<u64, (u64, usize)>>,
    virtual_memory: Mutex<virtual_memory::VirtualMemory>,
    /// What kernels that share memory with other GPUs did to it. Locked after the memories.
    consistency: Mutex<Consistency>,
    /// The engine itself, for the threads that run such kernels.
    whole: OnceLock<&'static Engine>,
    /// Locked after everything else.
    accessible: Mutex<virtual_memory::Accessible>,
    state: Mutex<State>,
    /// Notified whenever an operation is done, so that waiting threads check again.
    changed: Condvar,
    /// Notified when a host function is ready to run.
    host: Condvar,
    /// Notified when work waits for another process.
    elsewhere: Condvar,
}

/// Why an operation failed: the code that CUDA would return, or the closest equivalent, and the report.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The code.
    pub status: CudaStatus,
    /// The report, as it was printed.
    pub report: Arc<str>,
}

impl Failure {
    /// Creates a failure from a report and prints the report.
    pub fn announce(status: CudaStatus, report: &Report) -> Self {
        report.print();
        Self::quietly(status, report)
    }

    /// Reports a problem that a real GPU would not notice. Returns the failure if problems are errors. If they are only
    /// printed, each is printed once for the same lines of the program.
    pub fn of_problem(status: CudaStatus, report: &Report, checks: Checks) -> Option<Self> {
        match checks {
            Checks::Error => return Some(Self::announce(status, report)),
            Checks::Warn => report.print_once(),
            Checks::Off => {}
        }
        None
    }

    /// Creates a failure from a report that is like one that has already been printed.
    pub(crate) fn quietly(status: CudaStatus, report: &Report) -> Self {
        Self { status, report: report.to_string().into() }
    }

    /// Returns the failure in one line.
    pub fn headline(&self) -> &str {
        self.report.lines().next().unwrap_or_default()
    }

    fn to_error(&self) -> Error<CudaStatus> {
        Error::new(self.status, self.report.clone())
    }
}

/// Everything that the engine's lock protects.
pub struct State {
    next_handle: u64,
    devices: Vec<context::Device>,
    contexts: SortedMap<ContextHandle, context::Context>,
    streams: Map<StreamHandle, stream::Stream>,
    /// The streams of each context, in the order of their handles.
    streams_of_contexts: Map<ContextHandle, Vec<StreamHandle>>,
    /// Each thread's own default stream, by context.
    streams_of_threads: SortedMap<(ThreadKey, ContextHandle), StreamHandle>,
    events: Map<EventHandle, event::Event>,
    modules: Map<ModuleHandle, module::LoadedModule>,
    functions: Map<FunctionHandle, function::Function>,
    advice: advice::AllAdvice,
    arrays: array::Arrays,
    objects: texture::AllObjects,
    captures: capture::Captures,
    graphs: graph::Graphs,
    pools: pool::Pools,
    /// The contexts whose kernels can access memory of other contexts, with these.
    peer_access: BTreeSet<(ContextHandle, ContextHandle)>,
    /// Mappings that other GPUs than their own can access, by address.
    shared_mappings: BTreeMap<u64, peers::SharedMapping>,
    /// Launches that take turns with those on other GPUs.
    together: together::Launches,
    /// Memory of other processes, by the address here.
    imports: BTreeMap<u64, interprocess::Import>,
    /// Whether this process has exported memory to others, or opened memory of others.
    shares_with_processes: bool,
    elsewhere: elsewhere::Elsewhere,
    pinned: host_memory::Pinned,
    /// Copies to or from pinned memory that no thread has waited for yet.
    held: Vec<host_memory::Held>,
    threads: SortedMap<ThreadKey, threads::Thread>,
    /// Streams whose first operation may be ready.
    runnable: VecDeque<StreamHandle>,
    /// Streams whose first operation is waiting for something on another stream, which is the key.
    waiting: SortedMap<StreamHandle, Vec<StreamHandle>>,
    /// Whether any GPU has failed so far.
    any_failure: bool,
    /// The last operation's sequence number.
    enqueued: OperationNumber,
    /// Memory that was freed before all earlier operations were done, in call order.
    freed: VecDeque<free::Freed>,
    /// The operation that the release of the first of these waits for: its stream and its sequence number.
    release_waits_for: Option<(StreamHandle, OperationNumber)>,
    /// The number of operations completed so far.
    finished: u64,
    /// The number of operations that threads are running.
    under_way: usize,
    /// Host functions whose turn has come, each with its operation.
    host_functions: VecDeque<(OpRef, host::HostFunction)>,
    /// The operation of the host function that is running.
    running_host_function: Option<OpRef>,
    /// Streams whose first operation waits for a number in memory.
    value_waits: SortedMap<StreamHandle, value::Pending>,
    /// Since when nothing can end such a wait.
    values_stuck: wait::Stuck,
    has_host_thread: bool,
    /// Host threads that are blocked in the engine.
    blocked: SortedSet<ThreadKey>,
    /// What they wait for.
    waiters: wait::Waiters,
    /// The number of threads that are waiting for the times of completed operations.
    waiting_for_times: usize,
    /// The number of queries that returned "not done" because an operation had yet to end by the thread's clock.
    early_queries: u64,
    /// Whether the engine does everything that it may do, as configured.
    is_strict: bool,
    /// As configured.
    pub timeout: Timeout,
    /// As configured.
    pub bootstrap_timeout: Timeout,
    pub(crate) communication: &'static dyn Communication,
    /// Streams that no clock contains anymore and that have not been announced to other processes yet.
    forgotten_streams: Vec<StreamHandle>,
    /// The number of threads at which threads that have ended are forgotten.
    prune_threads_at: usize,
    /// The happens-before order.
    pub order: Order,
    /// The virtual clocks.
    pub time: Time,
}

/// Returns a lock's guard even if another thread panicked while it held the lock, because every function that changes
/// the state leaves it consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Engine {
    /// Checks that an engine can run on this processor.
    ///
    /// # Errors
    /// Fails if it was built for other processors. The message says what to do.
    pub fn check_processor() -> Result<(), &'static str> {
        virtual_gpu_machine::check_processor()
    }

    /// Creates the GPUs that `config` requests. Their addresses start at `addresses` and take up
    /// [`Engine::address_space`] bytes. Call [`Engine::check_processor`] first.
    pub fn start(config: Config, addresses: u64) -> &'static Self {
        let engine: &'static Self = Box::leak(Box::new(Self::new(config, addresses)));
        // This succeeds because the engine is new.
        let _ = engine.whole.set(engine);
        engine
    }

    fn new(config: Config, addresses: u64) -> Self {
        let space = addresses_per_gpu(config.gpus);
        let of = |gpu: usize| addresses + gpu as u64 * space..addresses + (gpu as u64 + 1) * space;
        let of_gpus: Vec<_> = (0..config.gpus).map(|gpu| DeviceMemory::new(of(gpu), TOTAL_MEMORY)).collect();
        let capacities = of_gpus.iter().map(|memory| memory.capacity().clone()).collect();
        let managed = DeviceMemory::managed(of(config.gpus), config.gpus as u64 * TOTAL_MEMORY);
        let memories = of_gpus.into_iter().chain([managed]).map(Mutex::new).collect();
        let state = State {
            next_handle: 1,
            devices: (0..config.gpus).map(|_| context::Device::default()).collect(),
            contexts: SortedMap::default(),
            streams: Map::default(),
            streams_of_contexts: Map::default(),
            streams_of_threads: SortedMap::default(),
            events: Map::default(),
            modules: Map::default(),
            functions: Map::default(),
            advice: advice::AllAdvice::default(),
            arrays: array::Arrays::default(),
            objects: texture::AllObjects::default(),
            captures: capture::Captures::default(),
            graphs: graph::Graphs::default(),
            pools: pool::Pools::new(capacities),
            peer_access: BTreeSet::new(),
            shared_mappings: BTreeMap::new(),
            together: together::Launches::default(),
            imports: BTreeMap::new(),
            shares_with_processes: false,
            elsewhere: elsewhere::Elsewhere::default(),
            pinned: host_memory::Pinned::default(),
            held: Vec::new(),
            threads: SortedMap::default(),
            runnable: VecDeque::new(),
            waiting: SortedMap::default(),
            any_failure: false,
            enqueued: OperationNumber::default(),
            freed: VecDeque::new(),
            release_waits_for: None,
            finished: 0,
            under_way: 0,
            host_functions: VecDeque::new(),
            running_host_function: None,
            value_waits: SortedMap::default(),
            values_stuck: wait::Stuck::default(),
            has_host_thread: false,
            blocked: SortedSet::default(),
            waiters: wait::Waiters::default(),
            waiting_for_times: 0,
            early_queries: 0,
            is_strict: config.strict_nccl.is_some(),
            timeout: config.timeout,
            bootstrap_timeout: config.bootstrap_timeout,
            communication: &NoCommunication,
            forgotten_streams: Vec::new(),
            prune_threads_at: threads::FEW_THREADS,
            order: Order::default(),
            time: Time::new(
                config.preset.clone(),
                config.gpus,
                config.trace.is_some(),
                config.strict_nccl.is_some(),
            ),
        };
        Self {
            config,
            addresses,
            memories,
            parsed: Mutex::default(),
            mapped: Mutex::default(),
            virtual_memory: Mutex::default(),
            consistency: Mutex::default(),
            whole: OnceLock::new(),
            accessible: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            host: Condvar::new(),
            elsewhere: Condvar::new(),
        }
    }

    /// Returns the number of addresses that this many GPUs may use, including their managed memory and what programs
    /// reserve.
    pub fn address_space(gpus: usize) -> u64 {
        (gpus as u64 + 1) * addresses_per_gpu(gpus) + virtual_memory::RESERVABLE
    }

    /// Writes the trace that `VIRTUAL_GPU_TRACE` requests when the process ends. The trace contains everything that is
    /// done by then.
    ///
    /// # Errors
    /// Returns a sentence that names the variable and the file.
    pub fn write_trace(&self) -> Result<(), String> {
        let Some(path) = &self.config.trace else { return Ok(()) };
        let say = |why: &dyn std::fmt::Display| format!("VIRTUAL_GPU_TRACE={}: {why}", path.display());
        for _ in 0..TRIES {
            match self.state.try_lock() {
                Ok(mut state) => return state.time.write_trace(path).map_err(|error| say(&error)),
                Err(TryLockError::Poisoned(_)) => return Err(say(&"not written: a thread has panicked")),
                // A thread is still working.
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            }
        }
        Err(say(&"not written: a thread keeps the GPU busy"))
    }

    /// Records, from now on, when each operation runs.
    pub fn record_operations(&self) {
        self.state().time.record();
    }

    /// Calls `visit` with each recorded operation of a GPU that has run, in the order in which they were enqueued.
    pub fn operations(&self, gpu: usize, visit: impl FnMut(OperationThatRan<'_>)) {
        self.state().time.operations(gpu).into_iter().for_each(visit);
    }

    /// Sets how the GPUs communicate. Until then, no stream ever reaches a communicator's call.
    pub fn set_communication(&self, communication: &'static dyn Communication) {
        self.state().communication = communication;
    }

    /// Returns the number of GPUs.
    pub fn device_count(&self) -> usize {
        self.config.gpus
    }

    /// Returns the name of each GPU.
    pub fn device_name(&self) -> &str {
        &self.config.name
    }

    /// Returns the node-wide number of the GPU that the process calls `gpu`.
    pub fn physical(&self, gpu: usize) -> usize {
        self.config.physical(gpu)
    }

    /// Returns the configuration that the engine was created with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Locks the state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Locks a GPU's memory, as seen by the program.
    pub fn memory(&self, device: usize) -> MutexGuard<'_, DeviceMemory> {
        self.memory_as_of(device, AFTER_ALL)
    }

    /// Locks a GPU's memory, as seen by the operation with this sequence number.
    pub(crate) fn memory_as_of(
        &self,
        device: usize,
        sequence: OperationNumber,
    ) -> MutexGuard<'_, DeviceMemory> {
        let mut memory = lock(&self.memories[device]);
        memory.as_of(sequence);
        memory
    }

    /// Returns the GPU that `address` belongs to; managed memory is treated as an additional GPU after the last one, and
    /// pinned host memory as managed memory.
    pub fn device_of(&self, address: u64) -> Option<usize> {
        if self.is_reservable(address) {
            return self.device_of_mapping(address);
        }
        let gpu =
            address.checked_sub(self.addresses).map(|offset| offset / addresses_per_gpu(self.config.gpus));
        let gpu = gpu.and_then(|gpu| usize::try_from(gpu).ok()).filter(|&gpu| gpu < self.memories.len());
        gpu.or_else(|| self.is_mapped(address).then_some(self.managed()))
    }

    /// Returns managed memory's index among the GPUs' memories.
    pub fn managed(&self) -> usize {
        self.config.gpus
    }

    /// Returns the words that describe where a memory is in a report.
    fn name_of(&self, device: usize) -> String {
        if device == self.managed() { "in managed memory".to_owned() } else { format!("on GPU {device}") }
    }

    /// Returns whether the address is one for a GPU's own memory, which the host can't access.
    pub fn is_device_address(&self, address: u64) -> bool {
        self.is_reservable(address) || self.device_of(address).is_some_and(|device| device != self.managed())
    }

    /// Wakes blocked threads so that they check again.
    pub fn wake_all(&self) {
        self.changed.notify_all();
    }

    /// Checks that a GPU with this number exists.
    ///
    /// # Errors
    /// Returns `InvalidDevice` with a message that contains the number and how many GPUs exist.
    pub fn check_device(&self, ordinal: i32) -> CudaResult<usize> {
        usize::try_from(ordinal).ok().filter(|&gpu| gpu < self.config.gpus).ok_or_else(|| {
            let count = self.config.gpus;
            Error::new(
                CudaStatus::InvalidDevice,
                format!("there is no GPU {ordinal}: this machine has {count}"),
            )
        })
    }
}

impl State {
    /// Returns a unique handle.
    pub fn new_handle(&mut self) -> u64 {
        // Multiples of 16 look like pointers and differ from the reserved stream handles 0, 1, and 2.
        let handle = self.next_handle * 16;
        self.next_handle += 1;
        handle
    }

    /// Returns a stream, unless it is gone.
    pub fn stream(&self, stream: StreamHandle) -> Option<&stream::Stream> {
        self.streams.get(&stream)
    }

    /// Tells other processes which streams are gone.
    fn announce_forgotten_streams(&mut self) {
        if !self.forgotten_streams.is_empty() {
            self.communication.streams_forgotten(&std::mem::take(&mut self.forgotten_streams));
        }
    }
}
