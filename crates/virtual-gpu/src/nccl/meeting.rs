//! Meetings: how the ranks that were given the same id come together, in one process or in several.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::assembly::Awaiting;
use super::communicator::{
    CommHandle, Communicator, Gathering, Process, Rank, check_choice, ranks_share_gpus,
};
use super::config::CommConfig;
use super::given_up;
use super::id::UniqueId;
use super::session::{Control, FIRST_TAG, HOST, Link};
use super::wire::structure;
use crate::engine::{Engine, State};
use crate::report::{Report, ranks};
use virtual_gpu_core::source_location::Site;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};
use virtual_gpu_core::thread::ThreadKey;

/// How many of the ranks that never came a report names.
const MOST_NAMED: usize = 1024;

/// How long a guest waits for what the host says at the end of its patience.
const ANSWER: Duration = Duration::from_secs(1);

/// Ranks that have come with the same id, until all are there.
pub(super) struct Meeting {
    world_size: usize,
    members: BTreeMap<usize, Member>,
    failed: Option<Error<NcclStatus>>,
    since: Instant,
}

/// A rank that has come.
pub(super) struct Member {
    pub(super) seat: Seat,
    pub(super) config: CommConfig,
    /// The GPU, as its process counts.
    pub(super) device: usize,
    pub(super) gpu: Gpu,
    pub(super) site: Site,
}

/// Where a rank is.
#[derive(Clone, Copy)]
pub(super) enum Seat {
    Here { handle: CommHandle, thread: ThreadKey },
    Elsewhere(Process),
}

/// A GPU, wherever it is: the machine, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gpu {
    machine: u64,
    place: usize,
}

/// A guest's rank, as it comes to the host.
pub(super) struct Attendance {
    pub(super) world_size: usize,
    pub(super) rank: usize,
    blocking: bool,
    device: usize,
    gpu: Gpu,
    site: Site,
}

/// What a guest is told of the communicator.
pub(super) struct Table {
    /// The guest's own number.
    own: u16,
    pids: Vec<(u16, u32)>,
    ranks: Vec<Entry>,
}

/// A rank of a table.
struct Entry {
    process: u16,
    blocking: bool,
    device: usize,
    site: Site,
}

structure! {
    Gpu { machine, place }
    Attendance { world_size, rank, blocking, device, gpu, site }
    Table { own, pids, ranks }
    Entry { process, blocking, device, site }
}

impl Attendance {
    pub(super) fn member(self, process: u16, pid: u32) -> Member {
        let Self { blocking, device, gpu, site, .. } = self;
        let seat = Seat::Elsewhere(Process { number: process, pid });
        Member { seat, config: CommConfig { blocking }, device, gpu, site }
    }
}

/// Which machine this is, as NCCL tells machines apart: by `NCCL_HOSTID`, or by the host's name and its last start.
fn machine() -> u64 {
    static KEY: OnceLock<u64> = OnceLock::new();
    *KEY.get_or_init(|| {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        match std::env::var("NCCL_HOSTID") {
            Ok(id) if !id.is_empty() => id.hash(&mut hasher),
            _ => {
                read("/proc/sys/kernel/hostname").hash(&mut hasher);
                read("/proc/sys/kernel/random/boot_id").hash(&mut hasher);
            }
        }
        hasher.finish()
    })
}

impl Engine {
    /// `ncclCommInitRank`: returns once all ranks have come. Inside a group, the group's end waits instead, and
    /// the handle is not usable before. One that is not blocking is not usable before it says so.
    ///
    /// # Errors
    /// `InvalidArgument` for numbers out of range and sizes that differ, `InvalidUsage` for ranks with one number or one GPU,
    /// `RemoteError` where a process is not there or ends, `Timeout` where a rank does not come.
    pub fn nccl_init_rank(
        &'static self,
        world_size: i32,
        id: UniqueId,
        rank: i32,
        config: CommConfig,
    ) -> NcclResult<CommHandle> {
        let bad = |message: String| Error::new(NcclStatus::InvalidArgument, message);
        let size = usize::try_from(world_size).ok().filter(|&size| size > 0);
        let size =
            size.ok_or_else(|| bad(format!("a communicator of {world_size} ranks: at least 1 is needed")))?;
        let number = usize::try_from(rank).ok().filter(|&rank| rank < size);
        let number =
            number.ok_or_else(|| bad(format!("rank {rank} of {size}: ranks go from 0 to {}", size - 1)))?;
        let device = self.current_device()?;
        check_choice()?;
        let session = self.session_for(id, number)?;

        let mut state = self.state();
        let handle = CommHandle(state.new_handle());
        let seat = Seat::Here { handle, thread: state.current_thread() };
        let gpu = Gpu { machine: machine(), place: self.physical(device) };
        let member = Member { seat, config, device, gpu, site: Site::here() };
        match session {
            None => state.join(id, size, number, member),
            Some(session) => state.join_elsewhere(session, size, number, member),
        }
        let awaiting = Awaiting::Communicator(handle);
        if state.thread().group.is_open() {
            state.thread().group.joining.push(awaiting);
        } else if config.blocking {
            self.finish_joining(vec![awaiting], "ncclCommInitRank", state)?;
        } else {
            drop(state);
            self.wake_all();
        }
        Ok(handle)
    }

    /// The session of an id that another process made. None where the ranks come together here.
    fn session_for(&'static self, id: UniqueId, rank: usize) -> NcclResult<Option<u64>> {
        // One thread connects; the others use its connection.
        static CONNECTING: Mutex<()> = Mutex::new(());
        if id.is_of_address() && rank == 0 {
            self.host_address(id)?;
        }
        let is_here = || id.is_own() || self.state().nccl.hosted.contains(&id);
        if is_here() {
            return Ok(None);
        }
        let _one = CONNECTING.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.state().nccl.gathering.get(&id).copied();
        match known.map_or_else(|| self.connect(id), Ok) {
            Err(_) if is_here() => Ok(None),
            session => session.map(Some),
        }
    }
}

impl State {
    /// A rank comes to the host of another process.
    fn join_elsewhere(&mut self, number: u64, world_size: usize, rank: usize, member: Member) {
        let Seat::Here { handle, .. } = member.seat else { return };
        let Some(session) = self.nccl.sessions.get_mut(&number) else {
            let error = Error::new(NcclStatus::RemoteError, "the process that made the id has ended");
            self.nccl.communicators.insert(handle, Communicator::Failed(error));
            return;
        };
        let Member { config, device, gpu, ref site, .. } = member;
        let (blocking, site) = (config.blocking, site.clone());
        let attendance = Attendance { world_size, rank, blocking, device, gpu, site };
        session.tell(HOST, &Control::Join(attendance));
        session.members.push((rank, member));
        self.nccl.communicators.insert(handle, Communicator::Joining(Gathering::Guest(number), config));
    }

    /// One rank comes to a meeting; the last one makes the communicator.
    pub(super) fn join(&mut self, id: UniqueId, world_size: usize, rank: usize, member: Member) {
        if let Some(first) = self.nccl.spent.get(&id) {
            let report = Report::new("this id has made its communicator already")
                .at("ncclCommInitRank", first)
                .at(format!("once more: ncclCommInitRank{}", in_process(member.seat)), &member.site)
                .help("an id is for one communicator: give each communicator an id of its own");
            report.print();
            let error = Error::new(NcclStatus::InvalidUsage, report.to_string());
            self.refuse(id, vec![member.seat], &error);
            return;
        }
        let meeting = self.nccl.meetings.entry(id).or_insert_with(|| Meeting {
            world_size,
            members: BTreeMap::new(),
            failed: None,
            since: Instant::now(),
        });
        if let Some(error) = meeting.failed.clone() {
            self.refuse(id, vec![member.seat], &error);
            return;
        }
        let (size, seat) = (meeting.world_size, member.seat);
        if size != world_size {
            let report = disagreement_about_size(meeting, world_size, rank, &member);
            self.fail_meeting(id, NcclStatus::InvalidArgument, &report, Some(seat));
            return;
        }
        if let Some(first) = meeting.members.get(&rank).filter(|_| rank < size) {
            let report = Report::new(format!("two ranks of one communicator are both rank {rank}"))
                .at(format!("ncclCommInitRank{}", in_process(first.seat)), &first.site)
                .at(format!("ncclCommInitRank{}", in_process(seat)), &member.site)
                .help(format!(
                    "give each of the {world_size} ranks a number of its own, 0 to {}, and each communicator an id of its own",
                    world_size - 1
                ));
            self.fail_meeting(id, NcclStatus::InvalidUsage, &report, Some(seat));
            return;
        }
        if let Seat::Here { handle, .. } = seat {
            let joining = Communicator::Joining(Gathering::Id(id), member.config);
            self.nccl.communicators.insert(handle, joining);
        }
        meeting.members.insert(rank, member);
        if meeting.members.len() == world_size {
            self.complete_meeting(id);
        }
    }

    fn complete_meeting(&mut self, id: UniqueId) {
        let Some(meeting) = self.nccl.meetings.get(&id) else { return };
        if let Some(report) = shared_gpu(meeting) {
            self.fail_meeting(id, NcclStatus::InvalidUsage, &report, None);
            return;
        }
        let Some(meeting) = self.nccl.meetings.remove(&id) else { return };
        let processes: BTreeSet<u16> =
            meeting.members.values().filter_map(|member| Some(member.seat.process()?.number)).collect();
        let link =
            (!processes.is_empty()).then(|| self.nccl.gathering.remove(&id)).flatten().map(|session| {
                self.tell_guests(session, &processes, &meeting);
                Link { session, tag: FIRST_TAG, others: processes.into_iter().collect() }
            });
        let site = meeting.members.values().next().map_or_else(Site::unknown, |first| first.site.clone());
        // An id of NCCL_COMM_ID is an address, and stays the same for all communicators.
        if !id.is_of_address() {
            self.nccl.spent.insert(id, site.clone());
        }
        let handles: Vec<_> = meeting.members.values().map(|member| member.seat.handle()).collect();
        let ranks = meeting.members.into_values().map(Member::into_rank).collect();
        self.add_clique("ncclCommInitRank", ranks, &handles, site, link);
    }

    fn tell_guests(&self, session: u64, processes: &BTreeSet<u16>, meeting: &Meeting) {
        let Some(session) = self.nccl.session(session) else { return };
        for &own in processes {
            let entry = |member: &Member| Entry {
                process: member.seat.process().map_or(HOST, |process| process.number),
                blocking: member.config.blocking,
                device: member.device,
                site: member.site.clone(),
            };
            let ranks = meeting.members.values().map(entry).collect();
            let pids = session.pids.iter().map(|(&process, &pid)| (process, pid)).collect();
            session.tell(own, &Control::Made(Table { own, pids, ranks }));
        }
    }

    /// A guest is told that all ranks have come. `None` where it makes no sense.
    pub(super) fn meet_elsewhere(&mut self, number: u64, table: Table) -> Option<()> {
        let session = self.nccl.sessions.get_mut(&number)?;
        let Table { own, pids, ranks } = table;
        let of_own = ranks.iter().enumerate().filter(|(_, entry)| entry.process == own);
        let mut of_own = of_own.map(|(rank, _)| rank);
        if !of_own.all(|rank| session.members.iter().any(|(member, _)| *member == rank)) {
            return None;
        }
        session.own = own;
        session.pids = pids.into_iter().collect();
        let id = session.id;
        let mut members: BTreeMap<usize, Member> = std::mem::take(&mut session.members).into_iter().collect();
        let site = ranks.first()?.site.clone();
        let (mut made, mut handles, mut others) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (rank, Entry { process, blocking, device, site }) in ranks.into_iter().enumerate() {
            let member = if process == own {
                members.remove(&rank)?
            } else {
                others.insert(process);
                let seat = Seat::Elsewhere(Process { number: process, pid: session.pid(process) });
                let gpu = Gpu { machine: 0, place: device };
                Member { seat, config: CommConfig { blocking }, device, gpu, site }
            };
            handles.push(member.seat.handle());
            made.push(member.into_rank());
        }
        self.nccl.gathering.remove(&id);
        let link = Link { session: number, tag: FIRST_TAG, others: others.into_iter().collect() };
        self.add_clique("ncclCommInitRank", made, &handles, site, Some(link));
        Some(())
    }

    /// Ends a meeting: everyone who has come or will come gets the same error.
    fn fail_meeting(&mut self, id: UniqueId, status: NcclStatus, report: &Report, also: Option<Seat>) {
        report.print();
        let error = Error::new(status, report.to_string());
        let Some(meeting) = self.nccl.meetings.get_mut(&id) else { return };
        meeting.failed = Some(error.clone());
        let seats = meeting.members.values().map(|member| member.seat).chain(also).collect();
        self.refuse(id, seats, &error);
    }

    /// Tells ranks that their communicator can't be made.
    fn refuse(&mut self, id: UniqueId, seats: Vec<Seat>, error: &Error<NcclStatus>) {
        let mut processes = BTreeSet::new();
        for seat in seats {
            match seat {
                Seat::Here { handle, .. } => {
                    self.nccl.communicators.insert(handle, Communicator::Failed(error.clone()));
                }
                Seat::Elsewhere(process) => drop(processes.insert(process.number)),
            }
        }
        let session = self.nccl.gathering.get(&id).and_then(|&session| self.nccl.session(session));
        for process in processes {
            let (status, report) = (error.status, error.message.to_string());
            session.inspect(|session| session.tell(process, &Control::Refused { status, report }));
        }
    }

    /// A guest's ranks are told that their communicator can't be made.
    pub(super) fn fail_guests(&mut self, number: u64, error: &Error<NcclStatus>) {
        let Some(session) = self.nccl.sessions.get_mut(&number) else { return };
        session.asked = None;
        for (_, member) in std::mem::take(&mut session.members) {
            // Who has left already needs no word.
            if let Some(handle) = member.seat.handle()
                && self.nccl.communicators.contains_key(&handle)
            {
                self.nccl.communicators.insert(handle, Communicator::Failed(error.clone()));
            }
        }
    }

    /// A guest's process has ended before the communicator was made.
    pub(super) fn guest_gone(&mut self, id: UniqueId, process: u16, who: &str) {
        let Some(meeting) = self.nccl.meetings.get(&id).filter(|meeting| meeting.failed.is_none()) else {
            return;
        };
        let is_theirs = |member: &Member| member.seat.process().is_some_and(|of| of.number == process);
        let of_it = meeting.members.iter().filter(|(_, member)| is_theirs(member));
        let lost: Vec<usize> = of_it.map(|(&rank, _)| rank).collect();
        if !lost.is_empty() {
            let verb = if lost.len() == 1 { "is" } else { "are" };
            let report = Report::new(format!(
                "{} {verb} gone: {who} ended before the communicator was made",
                ranks(&lost)
            ));
            self.fail_meeting(id, NcclStatus::RemoteError, &report, None);
        }
    }

    /// Ends a meeting to which ranks have not come for too long.
    pub(super) fn give_up_meeting(&mut self, id: UniqueId) {
        let Some(meeting) = self.nccl.meetings.get(&id).filter(|meeting| meeting.failed.is_none()) else {
            return;
        };
        let absent = (0..meeting.world_size).filter(|rank| !meeting.members.contains_key(rank));
        // A size may be any number.
        let mut missing: Vec<usize> = absent.take(MOST_NAMED + 1).collect();
        let more = if missing.len() > MOST_NAMED { " and more" } else { "" };
        missing.truncate(MOST_NAMED);
        let headline =
            format!("{}{more} of {} never came to the communicator", ranks(&missing), meeting.world_size);
        let mut report = Report::new(headline);
        for (rank, member) in &meeting.members {
            let text = format!("rank {rank} waits in ncclCommInitRank{}", in_process(member.seat));
            report = report.at(text, &member.site);
        }
        let others = self.nccl.meetings.len() - 1;
        let report = report.fact(given_up(self.patience)).help(match others {
            0 => "every rank must call ncclCommInitRank with the same id, each in its own thread or process, or in one group",
            _ => {
                "ranks came with different ids: make the id once, and give the same one to every rank; \
                 ranks that make several communicators make them in one order"
            }
        });
        self.fail_meeting(id, NcclStatus::Timeout, &report, None);
    }

    /// A guest has waited for too long: it asks the host, which knows who is missing. `true` once that has not answered, either.
    pub(super) fn give_up_guests(&mut self, number: u64) -> bool {
        let patience = self.patience;
        let Some(session) = self.nccl.sessions.get_mut(&number) else { return false };
        match session.asked {
            None => {
                session.asked = Some(Instant::now());
                session.tell(HOST, &Control::GiveUp);
                false
            }
            Some(asked) if asked.elapsed() < ANSWER => false,
            Some(_) => {
                let report =
                    Report::new("the process that made the id does not answer").fact(given_up(patience));
                let error = Error::new(NcclStatus::Timeout, report.to_string());
                self.fail_guests(number, &error);
                true
            }
        }
    }

    /// A thread asks for a communicator that is being made, and has done so for too long.
    pub(super) fn poll_joining(&mut self, comm: CommHandle) {
        let since = match self.nccl.communicators.get(&comm) {
            Some(Communicator::Joining(Gathering::Id(id), _)) => {
                self.nccl.meetings.get(id).map(|meeting| meeting.since)
            }
            Some(Communicator::Joining(Gathering::Guest(session), _)) => {
                self.nccl.session(*session).map(|session| session.since)
            }
            _ => None,
        };
        if since.is_some_and(|since| since.elapsed() > self.patience) {
            self.give_up_joining(&[Awaiting::Communicator(comm)]);
        }
    }

    /// Someone gives up a meeting; the ranks that have come get the same error.
    pub(super) fn leave_meeting(&mut self, id: UniqueId, error: &Error<NcclStatus>) {
        let Some(meeting) = self.nccl.meetings.get_mut(&id).filter(|meeting| meeting.failed.is_none()) else {
            return;
        };
        meeting.failed = Some(error.clone());
        let members = std::mem::take(&mut meeting.members).into_values();
        let seats = members.map(|member| member.seat);
        let is_still_there =
            |seat: &Seat| seat.handle().is_none_or(|handle| self.nccl.communicators.contains_key(&handle));
        let seats = seats.filter(is_still_there).collect();
        self.refuse(id, seats, error);
    }
}

impl Seat {
    fn handle(self) -> Option<CommHandle> {
        match self {
            Self::Here { handle, .. } => Some(handle),
            Self::Elsewhere(_) => None,
        }
    }

    fn process(self) -> Option<Process> {
        match self {
            Self::Here { .. } => None,
            Self::Elsewhere(process) => Some(process),
        }
    }
}

impl Member {
    fn into_rank(self) -> Rank {
        match self.seat {
            Seat::Here { thread, .. } => {
                let mut rank = Rank::new(self.device, thread, self.config);
                // One that is not blocking has to be asked before it is used.
                rank.polls = u32::from(!self.config.blocking);
                rank
            }
            Seat::Elsewhere(process) => Rank::elsewhere(process, self.device, self.config),
        }
    }
}

fn in_process(seat: Seat) -> String {
    seat.process().map_or_else(String::new, |process| format!(" in process {}", process.pid))
}

/// The report of two ranks on one GPU.
fn shared_gpu(meeting: &Meeting) -> Option<Report> {
    if ranks_share_gpus() {
        return None;
    }
    let mut seen = BTreeMap::new();
    meeting.members.iter().find_map(|(&rank, member)| {
        let (first, other) = seen.insert(member.gpu, (rank, member))?;
        let text = |rank: usize, member: &Member| {
            format!(
                "rank {rank}: ncclCommInitRank with GPU {} current{}",
                member.device,
                in_process(member.seat)
            )
        };
        let report = Report::new(format!("ranks {first} and {rank} are both on GPU {}", member.gpu.place))
            .at(text(first, other), &other.site)
            .at(text(rank, member), &member.site);
        Some(report.help(match member.seat.process().or(other.seat.process()) {
            None => "bind each rank's own context first: stream.context().bind_to_thread()?",
            Some(_) => {
                "each process needs a GPU of its own: CudaContext::new(rank)?, or CUDA_VISIBLE_DEVICES"
            }
        }))
    })
}

fn disagreement_about_size(meeting: &Meeting, world_size: usize, rank: usize, member: &Member) -> Report {
    let mut sides: BTreeSet<(usize, usize)> =
        meeting.members.keys().map(|&rank| (rank, meeting.world_size)).collect();
    sides.insert((rank, world_size));
    let mut report = Report::new("ranks with the same id disagree about the world size");
    for (rank, size) in sides {
        let side = match meeting.members.get(&rank) {
            Some(known) if size == meeting.world_size => known,
            _ => member,
        };
        let text = format!("rank {rank} of {size}: ncclCommInitRank{}", in_process(side.seat));
        report = report.at(text, &side.site);
    }
    report.help("every rank must give the same number of ranks")
}
