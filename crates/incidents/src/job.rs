//! A job of eight ranks whose calls are recorded as PyTorch records them.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::result::NcclError;
use cudarc::nccl::{Comm, Id, NcclType, ReduceOp};
use lab::Readable;
use lab::at_once::Block;
use lab::flight_recorder::{Call, Entry, State};

use crate::programs::Program;
use crate::watchdog;

/// The number of ranks of each job.
pub(crate) const WORLD_SIZE: usize = 8;

/// How long the job waits before it gives up. The recording itself does not wait that long.
pub(crate) const TIMEOUT_MS: u64 = 600_000;

/// How long a call may take to start, or to be seen as done, if nothing is in front of it.
const SOON: Duration = Duration::from_secs(5);

/// A process group.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) desc: &'static str,
    pub(crate) ranks: &'static [usize],
}

/// All ranks.
pub(crate) const WORLD: &str = "0";

/// The groups of the jobs: all ranks, pairs with parts of the same layer, and ranks with the same part.
pub(crate) const GROUPS: [Group; 7] = [
    Group { name: WORLD, desc: "default_pg", ranks: &[0, 1, 2, 3, 4, 5, 6, 7] },
    Group { name: "1", desc: "tensor_parallel", ranks: &[0, 1] },
    Group { name: "2", desc: "tensor_parallel", ranks: &[2, 3] },
    Group { name: "3", desc: "tensor_parallel", ranks: &[4, 5] },
    Group { name: "4", desc: "tensor_parallel", ranks: &[6, 7] },
    Group { name: "5", desc: "data_parallel", ranks: &[0, 2, 4, 6] },
    Group { name: "6", desc: "data_parallel", ranks: &[1, 3, 5, 7] },
];

/// What is known about one rank.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) thread: String,
    /// The numbers of its groups in its process.
    pub(crate) groups: BTreeMap<&'static str, u64>,
    pub(crate) calls: Vec<Recorded>,
    pub(crate) activity: Activity,
    /// Why its program ended.
    pub(crate) error: Option<String>,
    pub(crate) is_killed: bool,
}

/// A call and its events.
pub(crate) struct Recorded {
    pub(crate) entry: Entry,
    pub(crate) start: CudaEvent,
    /// `None` until the call has been enqueued, or if the GPU has failed.
    pub(crate) end: Option<CudaEvent>,
    /// Whether the GPU has failed since.
    has_failed: bool,
}

/// What a rank's program is doing.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Activity {
    #[default]
    Runs,
    /// It waits for its last call.
    Waits,
    /// It makes no more calls.
    Ended,
}

/// The records of all ranks.
pub(crate) struct Shared(Vec<Mutex<Record>>);

impl Shared {
    pub(crate) fn rank(&self, rank: usize) -> MutexGuard<'_, Record> {
        self.0[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the events of all calls, and returns whether any of them has come further.
    pub(crate) fn refresh(&self) -> bool {
        let mut changed = false;
        for rank in 0..WORLD_SIZE {
            changed |= self.rank(rank).calls.iter_mut().fold(false, |any, call| call.refresh() | any);
        }
        changed
    }

    /// Returns whether a call is in progress on all of its ranks. It ends soon, even on a busy machine.
    pub(crate) fn has_call_that_ends(&self) -> bool {
        let mut ranks: BTreeMap<Call, usize> = BTreeMap::new();
        for rank in 0..WORLD_SIZE {
            for call in self.rank(rank).calls.iter().filter(|call| call.is_in_progress()) {
                *ranks.entry(call.entry.call()).or_default() += 1;
            }
        }
        let needed = |call: &Call| match call {
            Call::Message { .. } => 2,
            Call::Collective { group, .. } => {
                GROUPS.iter().find(|known| known.name == group).map_or(0, |known| known.ranks.len())
            }
        };
        ranks.iter().any(|(call, &ranks)| ranks == needed(call))
    }
}

impl Recorded {
    /// Asks the call's events. A GPU that has failed no longer answers: then the state remains as it was.
    fn refresh(&mut self) -> bool {
        let mut has_failed = false;
        let mut is_complete = |event: &CudaEvent| {
            let answer = event.try_is_complete();
            has_failed |= answer.is_err();
            answer.unwrap_or(false)
        };
        let state = match (self.entry.state, &self.end) {
            (State::Completed, _) => State::Completed,
            (_, Some(end)) if is_complete(end) => State::Completed,
            (State::Scheduled, _) if is_complete(&self.start) => State::Started,
            (state, _) => state,
        };
        self.has_failed |= has_failed;
        std::mem::replace(&mut self.entry.state, state) != state
    }

    /// Returns whether the GPU has come to the call, and waits only for the other ranks.
    fn is_in_progress(&self) -> bool {
        self.entry.state == State::Started && self.end.is_some() && !self.has_failed
    }
}

/// One rank of a job: what its program calls.
pub(crate) struct Rank<'a> {
    pub(crate) rank: usize,
    shared: &'a Shared,
    stream: Arc<CudaStream>,
    comms: BTreeMap<&'static str, Comm>,
    /// All buffers, because a call may still use them when the program ends.
    buffers: Vec<Box<dyn Any>>,
    has_endless_work: bool,
}

impl Rank<'_> {
    /// Sums this many elements of type `T` over a group's ranks, and waits.
    pub(crate) fn all_reduce_of<T: Element>(
        &mut self,
        group: &'static str,
        count: usize,
    ) -> anyhow::Result<()> {
        self.sum::<T>(group, "all_reduce", count)
    }

    /// Sums this many elements over a group's ranks, without waiting.
    pub(crate) fn enqueue_all_reduce(&mut self, group: &'static str, count: usize) -> anyhow::Result<()> {
        let sum = |comm: &Comm, input: &CudaSlice<f32>, output: &mut CudaSlice<f32>| {
            comm.all_reduce(input, output, &ReduceOp::Sum).map(|_| ())
        };
        self.enqueue(group, "all_reduce", (count, count), sum).map(|_| ())
    }

    /// Sums this many elements over a group's ranks, and waits.
    pub(crate) fn all_reduce(&mut self, group: &'static str, count: usize) -> anyhow::Result<()> {
        self.all_reduce_of::<f32>(group, count)
    }

    /// Waits for all ranks of a group.
    pub(crate) fn barrier(&mut self, group: &'static str) -> anyhow::Result<()> {
        self.sum::<f32>(group, "all_reduce_barrier", 1)
    }

    fn sum<T: Element>(&mut self, group: &'static str, name: &str, count: usize) -> anyhow::Result<()> {
        self.call::<T>(group, name, (count, count), |comm, input, output| {
            comm.all_reduce(input, output, &ReduceOp::Sum).map(|_| ())
        })
    }

    /// Copies this many elements from a group's rank `root`, and waits.
    pub(crate) fn broadcast(&mut self, group: &'static str, count: usize, root: i32) -> anyhow::Result<()> {
        self.call::<f32>(group, "broadcast", (count, count), |comm, _, output| {
            comm.broadcast_in_place(output, root).map(|_| ())
        })
    }

    /// Gathers this many elements from each rank, and waits.
    pub(crate) fn all_gather(&mut self, group: &'static str, count: usize) -> anyhow::Result<()> {
        let whole = count * self.comms[group].world_size();
        self.call::<f32>(group, "_all_gather_base", (count, whole), |comm, input, output| {
            comm.all_gather(input, output).map(|_| ())
        })
    }

    /// Sums a part of this many elements for each rank, and waits.
    pub(crate) fn reduce_scatter(&mut self, group: &'static str, count: usize) -> anyhow::Result<()> {
        let whole = count * self.comms[group].world_size();
        self.call::<f32>(group, "_reduce_scatter_base", (whole, count), |comm, input, output| {
            comm.reduce_scatter(input, output, &ReduceOp::Sum).map(|_| ())
        })
    }

    /// Sends this many elements to another rank of the world, and waits.
    pub(crate) fn send(&mut self, count: usize, to: usize) -> anyhow::Result<()> {
        let name = format!("send {}->{to}", self.rank);
        self.call::<f32>(WORLD, &name, (count, count), |comm, input, _| comm.send(input, to as i32))
    }

    /// Receives this many elements from another rank of the world, and waits.
    pub(crate) fn receive(&mut self, count: usize, from: usize) -> anyhow::Result<()> {
        let name = format!("recv {}<-{from}", self.rank);
        self.call::<f32>(WORLD, &name, (count, count), |comm, _, output| {
            comm.recv(output, from as i32).map(|_| ())
        })
    }

    /// Does something else than to communicate, and never returns.
    pub(crate) fn never_returns(&self) {
        self.shared.rank(self.rank).activity = Activity::Ended;
        loop {
            std::thread::park();
        }
    }

    /// Makes the rank leave no dump, as if the system had killed it. Its program must make no more calls.
    pub(crate) fn is_killed(&self) {
        self.shared.rank(self.rank).is_killed = true;
    }

    /// Enqueues work that does not end.
    pub(crate) fn enqueue_endless_work(&mut self) -> anyhow::Result<()> {
        self.buffers.push(Box::new(Block::enqueue(&self.stream)?));
        self.has_endless_work = true;
        Ok(())
    }

    /// Allocates this many bytes.
    pub(crate) fn allocate(&mut self, bytes: usize) -> anyhow::Result<()> {
        let buffer = self.stream.alloc_zeros::<u8>(bytes);
        let buffer = buffer.map_err(|error| anyhow!("can't allocate {bytes} bytes: {:?}", error.0))?;
        self.buffers.push(Box::new(buffer));
        Ok(())
    }

    /// Waits until all other ranks have made the call that this one makes next.
    pub(crate) fn come_last(&self) {
        let next = self.shared.rank(self.rank).calls.len();
        let has_called =
            |rank: usize| self.shared.rank(rank).calls.get(next).is_some_and(|call| call.end.is_some());
        while !(0..WORLD_SIZE).all(|rank| rank == self.rank || has_called(rank)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Records a call, makes it, and waits for it.
    fn call<T: Element>(
        &mut self,
        group: &'static str,
        name: &str,
        counts: (usize, usize),
        call: impl FnOnce(&Comm, &CudaSlice<T>, &mut CudaSlice<T>) -> Result<(), NcclError>,
    ) -> anyhow::Result<()> {
        let index = self.enqueue(group, name, counts, call)?;
        self.wait(index);
        Ok(())
    }

    /// Records a call, and makes it. Returns its index.
    fn enqueue<T: Element>(
        &mut self,
        group: &'static str,
        name: &str,
        (input_count, output_count): (usize, usize),
        call: impl FnOnce(&Comm, &CudaSlice<T>, &mut CudaSlice<T>) -> Result<(), NcclError>,
    ) -> anyhow::Result<usize> {
        let input = self.stream.alloc_zeros::<T>(input_count)?;
        let mut output = self.stream.alloc_zeros::<T>(output_count)?;
        let start = self.stream.record_event(None)?;
        let index = self.shared.rank(self.rank).add(group, name, (input_count, output_count), T::NAME, start);
        self.until_started(index);
        let made = call(&self.comms[group], &input, &mut output);
        self.buffers.push(Box::new((input, output)));
        made.map_err(|error| anyhow!("{name}: NCCL returned {:?}", error.0))?;
        // Where the ranks disagree, a real GPU hangs. The virtual one fails, and then records no event.
        self.shared.rank(self.rank).calls[index].end = self.stream.record_event(None).ok();
        Ok(index)
    }

    /// Waits for a call, forever if necessary, and until it is seen on each rank that it is done. Otherwise, another
    /// rank's mistake in its next call could make a GPU fail before that is seen.
    fn wait(&self, index: usize) {
        self.shared.rank(self.rank).activity = Activity::Waits;
        let call = self.shared.rank(self.rank).calls[index].entry.call();
        let is_done = |record: &Record| record.calls[index].entry.state == State::Completed;
        while !is_done(&self.shared.rank(self.rank)) {
            self.shared.refresh();
            std::thread::sleep(Duration::from_millis(1));
        }
        let since = Instant::now();
        let is_open = |rank: usize| {
            let record = self.shared.rank(rank);
            let mut own = record.calls.iter().filter(|other| other.entry.call() == call);
            own.any(|other| other.entry.state != State::Completed)
        };
        // A message has no number, so it can't be told from the next one between the same ranks.
        let is_message = matches!(call, Call::Message { .. });
        while !is_message && (0..WORLD_SIZE).any(is_open) && since.elapsed() < SOON {
            self.shared.refresh();
        }
        self.shared.rank(self.rank).activity = Activity::Runs;
    }

    /// Waits until it is seen that the GPU has come to a call. If there is unfinished work in front, only the
    /// watchdog may see that, later.
    fn until_started(&self, index: usize) {
        let since = Instant::now();
        let is_scheduled = || {
            let record = self.shared.rank(self.rank);
            let is_first = record.calls[..index].iter().all(|call| call.entry.state == State::Completed);
            record.calls[index].entry.state == State::Scheduled && is_first && !self.has_endless_work
        };
        while is_scheduled() && since.elapsed() < SOON {
            self.shared.refresh();
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Record {
    /// Returns whether the rank's program can make a call, as far as this record shows.
    pub(crate) fn runs(&self) -> bool {
        let is_done = || self.calls.last().is_none_or(|call| call.entry.state == State::Completed);
        match self.activity {
            Activity::Runs => true,
            Activity::Waits => is_done(),
            Activity::Ended => false,
        }
    }

    /// Adds an entry as PyTorch does. Returns its index.
    fn add(
        &mut self,
        group: &'static str,
        name: &str,
        (input, output): (usize, usize),
        dtype: &str,
        start: CudaEvent,
    ) -> usize {
        let of_group = || self.calls.iter().filter(|call| call.entry.process_group.0 == group);
        let is_p2p = name.contains(' ');
        let messages = of_group().filter(|call| call.entry.is_p2p).count() as u64 + u64::from(is_p2p);
        let op_id = of_group().count() as u64 + 1;
        let desc = GROUPS.iter().find(|known| known.name == group).map_or("", |known| known.desc);
        let entry = Entry {
            record_id: self.calls.len() as u64,
            pg_id: self.groups[group],
            process_group: (group.to_owned(), desc.to_owned()),
            collective_seq_id: op_id - messages,
            p2p_seq_id: messages,
            op_id,
            profiling_name: format!("nccl:{name}"),
            input_sizes: vec![vec![input as u64]],
            input_dtypes: vec![dtype.to_owned()],
            output_sizes: vec![vec![output as u64]],
            output_dtypes: vec![dtype.to_owned()],
            state: State::Scheduled,
            timeout_ms: TIMEOUT_MS,
            is_p2p,
        };
        self.calls.push(Recorded { entry, start, end: None, has_failed: false });
        self.calls.len() - 1
    }
}

/// An element type, with the name that PyTorch gives it.
pub(crate) trait Element: NcclType + DeviceRepr + ValidAsZeroBits + 'static {
    const NAME: &'static str;
}

impl Element for f32 {
    const NAME: &'static str = "Float";
}

impl Element for half::f16 {
    const NAME: &'static str = "Half";
}

/// Runs a program on all ranks until it ends or hangs, and writes what is left of it to a folder.
pub(crate) fn record(program: &Program, folder: &Path) -> anyhow::Result<()> {
    let streams = lab::streams(WORLD_SIZE)?;
    let ids: Vec<Id> = GROUPS.iter().map(|_| Id::new().readable()).collect::<anyhow::Result<_>>()?;
    let shared = Shared((0..WORLD_SIZE).map(|_| Mutex::default()).collect());
    let (shared, ids) = (&shared, &ids);
    std::thread::scope(|scope| {
        for (rank, stream) in streams.into_iter().enumerate() {
            scope.spawn(move || {
                let ended = run(program, shared, rank, stream, ids);
                let mut record = shared.rank(rank);
                record.activity = Activity::Ended;
                record.error = ended.err().map(|error| format!("{error:#}"));
            });
        }
        let written = watchdog::until_over(shared).and_then(|()| watchdog::write(shared, folder));
        // The ranks' communicators and buffers still belong to calls that never complete.
        std::process::exit(match written {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("{error:#}");
                1
            }
        })
    })
}

fn run(
    program: &Program,
    shared: &Shared,
    rank: usize,
    stream: Arc<CudaStream>,
    ids: &[Id],
) -> anyhow::Result<()> {
    stream.context().bind_to_thread()?;
    let thread = std::fs::read_link("/proc/thread-self")?;
    let thread = thread.file_name().and_then(|name| name.to_str()).ok_or_else(|| anyhow!("no thread"))?;
    let mut comms = BTreeMap::new();
    for (group, id) in GROUPS.iter().zip(ids) {
        let Some(own) = group.ranks.iter().position(|&member| member == rank) else { continue };
        let comm = Comm::from_rank(stream.clone(), own, group.ranks.len(), *id).readable()?;
        comms.insert(group.name, comm);
    }
    {
        let mut record = shared.rank(rank);
        record.thread = thread.to_owned();
        record.groups = comms.keys().zip(0..).map(|(&name, number)| (name, number)).collect();
    }
    let mut own = Rank { rank, shared, stream, comms, buffers: Vec::new(), has_endless_work: false };
    let ended = (program.run)(&mut own);
    // A rank that drops its communicators aborts calls of the other ranks.
    std::mem::forget(own);
    ended
}
