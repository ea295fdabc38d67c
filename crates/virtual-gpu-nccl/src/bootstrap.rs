//! Bootstraps: how the ranks that were given the same id come together, in one process or in several.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::communicator::{Process, Rank, check_choice, ranks_share_gpus};
use super::config::CommConfig;
use super::id::UniqueId;
use super::membership::{Gathering, Membership};
use super::session::{Control, FIRST_TAG, Link, ProcessNumber, ROOT, SessionId};
use super::wire::{Malformed, structure};
use super::{Locked, Nccl};
use virtual_gpu::engine::{Awaiting, given_up};
use virtual_gpu::report::{Report, ranks};
use virtual_gpu_core::handle::CommHandle;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};
use virtual_gpu_core::thread::ThreadKey;

/// How many of the ranks that never came a report names.
const MOST_NAMED: usize = 1024;

/// How long a process waits for the root's answer after its own timeout.
const ANSWER: Duration = Duration::from_secs(1);

/// Ranks that have come with the same id, until all are there.
pub(crate) struct Bootstrap {
    world_size: usize,
    members: BTreeMap<usize, Member>,
    failed: Option<Error<NcclStatus>>,
    since: Instant,
}

/// A rank that has come.
pub(crate) struct Member {
    pub(crate) location: RankLocation,
    pub(crate) config: CommConfig,
    /// The GPU, as its process counts.
    pub(crate) device: usize,
    pub(crate) gpu: Gpu,
    pub(crate) call_site: CallSite,
}

/// Where a rank is.
#[derive(Clone, Copy)]
pub(crate) enum RankLocation {
    Here { handle: CommHandle, thread: ThreadKey },
    Elsewhere(Process),
}

/// A GPU of any machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Gpu {
    machine: u64,
    index: usize,
}

/// A rank of another process, as it joins at the root.
pub(crate) struct JoinRequest {
    pub(crate) world_size: usize,
    pub(crate) rank: usize,
    blocking: bool,
    device: usize,
    gpu: Gpu,
    call_site: CallSite,
}

/// The communicator, as the root describes it to another process.
pub(crate) struct Table {
    /// That process's own number.
    own: ProcessNumber,
    pids: Vec<(ProcessNumber, u32)>,
    ranks: Vec<Entry>,
}

/// A rank of a table.
struct Entry {
    process: ProcessNumber,
    blocking: bool,
    device: usize,
    call_site: CallSite,
}

structure! {
    Gpu { machine, index }
    JoinRequest { world_size, rank, blocking, device, gpu, call_site }
    Table { own, pids, ranks }
    Entry { process, blocking, device, call_site }
}

impl JoinRequest {
    pub(crate) fn member(self, process: ProcessNumber, pid: u32) -> Member {
        let Self { blocking, device, gpu, call_site, .. } = self;
        let location = RankLocation::Elsewhere(Process { number: process, pid });
        Member { location, config: CommConfig { blocking }, device, gpu, call_site }
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

impl Nccl {
    /// `ncclCommInitRank`: returns once all ranks have come. Inside a group, the group's end waits instead, and
    /// the handle is not usable before. One that is not blocking is not usable before it says so.
    ///
    /// # Errors
    /// `InvalidArgument` for numbers out of range and sizes that differ, `InvalidUsage` for ranks with one number or one GPU,
    /// `RemoteError` where a process is not there or ends, `Timeout` where a rank does not come.
    pub fn init_rank(
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
        let device = self.engine.current_device()?;
        check_choice()?;
        let session = self.session_for(id, number)?;

        let mut guard = self.lock();
        let mut state = guard.locked();
        let handle = CommHandle(state.engine.new_handle());
        let location = RankLocation::Here { handle, thread: state.engine.current_thread() };
        let gpu = Gpu { machine: machine(), index: self.engine.physical(device) };
        let member = Member { location, config, device, gpu, call_site: CallSite::here() };
        match session {
            None => state.join(id, size, number, member),
            Some(session) => state.join_elsewhere(session, size, number, member),
        }
        let awaiting = Awaiting::Communicator(handle);
        if let Some(group) = state.nccl.open_group() {
            group.joining.push(awaiting);
        } else if config.blocking {
            self.finish_joining(vec![awaiting], "ncclCommInitRank", guard)?;
        } else {
            self.unlock_and_wake(guard);
        }
        Ok(handle)
    }

    /// The session of an id that another process made. None where the ranks come together here.
    fn session_for(&'static self, id: UniqueId, rank: usize) -> NcclResult<Option<SessionId>> {
        // One thread connects; the others use its connection.
        static CONNECTING: Mutex<()> = Mutex::new(());
        if id.is_of_address() && rank == 0 {
            self.listen_as_root(id)?;
        }
        let is_here = || id.is_own() || self.lock().nccl.own_ids.contains(&id);
        if is_here() {
            return Ok(None);
        }
        let _one = CONNECTING.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.lock().nccl.gathering.get(&id).copied();
        match known.map_or_else(|| self.connect(id), Ok) {
            Err(_) if is_here() => Ok(None),
            session => session.map(Some),
        }
    }
}

impl Locked<'_> {
    /// A rank joins at a root in another process.
    fn join_elsewhere(&mut self, number: SessionId, world_size: usize, rank: usize, member: Member) {
        let RankLocation::Here { handle, .. } = member.location else { return };
        let Some(session) = self.nccl.sessions.get_mut(&number) else {
            let error = Error::new(NcclStatus::RemoteError, "the process that made the id has ended");
            self.nccl.memberships.insert(handle, Membership::Failed(error));
            return;
        };
        let Member { config, device, gpu, ref call_site, .. } = member;
        let (blocking, call_site) = (config.blocking, call_site.clone());
        let request = JoinRequest { world_size, rank, blocking, device, gpu, call_site };
        session.send_control(ROOT, &Control::Join(request));
        session.members.push((rank, member));
        self.nccl.memberships.insert(handle, Membership::Joining(Gathering::Remote(number), config));
    }

    /// One rank comes to a bootstrap; the last one makes the communicator.
    pub(crate) fn join(&mut self, id: UniqueId, world_size: usize, rank: usize, member: Member) {
        if let Some(first) = self.nccl.spent.get(&id) {
            let report = Report::new("this id has made its communicator already")
                .at("ncclCommInitRank", first)
                .at(format!("once more: ncclCommInitRank{}", in_process(member.location)), &member.call_site)
                .help("an id is for one communicator: give each communicator an id of its own");
            report.print();
            let error = Error::new(NcclStatus::InvalidUsage, report.to_string());
            self.refuse(id, vec![member.location], &error);
            return;
        }
        let bootstrap = self.nccl.bootstraps.entry(id).or_insert_with(|| Bootstrap {
            world_size,
            members: BTreeMap::new(),
            failed: None,
            since: Instant::now(),
        });
        if let Some(error) = bootstrap.failed.clone() {
            self.refuse(id, vec![member.location], &error);
            return;
        }
        let (size, location) = (bootstrap.world_size, member.location);
        if size != world_size {
            let report = disagreement_about_size(bootstrap, world_size, rank, &member);
            self.fail_bootstrap(id, NcclStatus::InvalidArgument, &report, Some(location));
            return;
        }
        if let Some(first) = bootstrap.members.get(&rank).filter(|_| rank < size) {
            let report = Report::new(format!("two ranks of one communicator are both rank {rank}"))
                .at(format!("ncclCommInitRank{}", in_process(first.location)), &first.call_site)
                .at(format!("ncclCommInitRank{}", in_process(location)), &member.call_site)
                .help(format!(
                    "give each of the {world_size} ranks a number of its own, 0 to {}, and each communicator an id of its own",
                    world_size - 1
                ));
            self.fail_bootstrap(id, NcclStatus::InvalidUsage, &report, Some(location));
            return;
        }
        if let RankLocation::Here { handle, .. } = location {
            let joining = Membership::Joining(Gathering::Id(id), member.config);
            self.nccl.memberships.insert(handle, joining);
        }
        bootstrap.members.insert(rank, member);
        if bootstrap.members.len() == world_size {
            self.complete_bootstrap(id);
        }
    }

    fn complete_bootstrap(&mut self, id: UniqueId) {
        let Some(bootstrap) = self.nccl.bootstraps.get(&id) else { return };
        if let Some(report) = shared_gpu(bootstrap) {
            self.fail_bootstrap(id, NcclStatus::InvalidUsage, &report, None);
            return;
        }
        let Some(bootstrap) = self.nccl.bootstraps.remove(&id) else { return };
        let processes: BTreeSet<ProcessNumber> =
            bootstrap.members.values().filter_map(|member| Some(member.location.process()?.number)).collect();
        let link =
            (!processes.is_empty()).then(|| self.nccl.gathering.remove(&id)).flatten().map(|session| {
                self.send_tables(session, &processes, &bootstrap);
                Link { session, tag: FIRST_TAG, others: processes.into_iter().collect() }
            });
        let call_site =
            bootstrap.members.values().next().map_or_else(CallSite::unknown, |first| first.call_site.clone());
        // An id of NCCL_COMM_ID is an address, and stays the same for all memberships.
        if !id.is_of_address() {
            self.nccl.spent.insert(id, call_site.clone());
        }
        let handles: Vec<_> = bootstrap.members.values().map(|member| member.location.handle()).collect();
        let ranks = bootstrap.members.into_values().map(Member::into_rank).collect();
        self.add_communicator("ncclCommInitRank", ranks, &handles, call_site, link);
    }

    fn send_tables(&self, session: SessionId, processes: &BTreeSet<ProcessNumber>, bootstrap: &Bootstrap) {
        let Some(session) = self.nccl.session(session) else { return };
        for &own in processes {
            let entry = |member: &Member| Entry {
                process: member.location.process().map_or(ROOT, |process| process.number),
                blocking: member.config.blocking,
                device: member.device,
                call_site: member.call_site.clone(),
            };
            let ranks = bootstrap.members.values().map(entry).collect();
            let pids = session.pids.iter().map(|(&process, &pid)| (process, pid)).collect();
            session.send_control(own, &Control::Made(Table { own, pids, ranks }));
        }
    }

    /// The root has sent that all ranks have come.
    ///
    /// # Errors
    /// [`Malformed`] where the table makes no sense.
    pub(crate) fn complete_elsewhere(&mut self, number: SessionId, table: Table) -> Result<(), Malformed> {
        let session = self.nccl.sessions.get_mut(&number).ok_or(Malformed)?;
        let Table { own, pids, ranks } = table;
        let of_own = ranks.iter().enumerate().filter(|(_, entry)| entry.process == own);
        let mut of_own = of_own.map(|(rank, _)| rank);
        if !of_own.all(|rank| session.members.iter().any(|(member, _)| *member == rank)) {
            return Err(Malformed);
        }
        session.own = own;
        session.pids = pids.into_iter().collect();
        let id = session.id;
        let mut members: BTreeMap<usize, Member> = std::mem::take(&mut session.members).into_iter().collect();
        let call_site = ranks.first().ok_or(Malformed)?.call_site.clone();
        let (mut made, mut handles, mut others) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (rank, Entry { process, blocking, device, call_site }) in ranks.into_iter().enumerate() {
            let member = if process == own {
                members.remove(&rank).ok_or(Malformed)?
            } else {
                others.insert(process);
                let location =
                    RankLocation::Elsewhere(Process { number: process, pid: session.pid(process) });
                let gpu = Gpu { machine: 0, index: device };
                Member { location, config: CommConfig { blocking }, device, gpu, call_site }
            };
            handles.push(member.location.handle());
            made.push(member.into_rank());
        }
        self.nccl.gathering.remove(&id);
        let link = Link { session: number, tag: FIRST_TAG, others: others.into_iter().collect() };
        self.add_communicator("ncclCommInitRank", made, &handles, call_site, Some(link));
        Ok(())
    }

    /// Ends a bootstrap: everyone who has come or will come gets the same error.
    fn fail_bootstrap(
        &mut self,
        id: UniqueId,
        status: NcclStatus,
        report: &Report,
        also: Option<RankLocation>,
    ) {
        report.print();
        let error = Error::new(status, report.to_string());
        let Some(bootstrap) = self.nccl.bootstraps.get_mut(&id) else { return };
        bootstrap.failed = Some(error.clone());
        let locations = bootstrap.members.values().map(|member| member.location).chain(also).collect();
        self.refuse(id, locations, &error);
    }

    /// Tells ranks that their communicator can't be made.
    fn refuse(&mut self, id: UniqueId, locations: Vec<RankLocation>, error: &Error<NcclStatus>) {
        let mut processes = BTreeSet::new();
        for location in locations {
            match location {
                RankLocation::Here { handle, .. } => {
                    self.nccl.memberships.insert(handle, Membership::Failed(error.clone()));
                }
                RankLocation::Elsewhere(process) => drop(processes.insert(process.number)),
            }
        }
        let session = self.nccl.gathering.get(&id).and_then(|&session| self.nccl.session(session));
        for process in processes {
            let (status, report) = (error.status, error.message.to_string());
            session.inspect(|session| session.send_control(process, &Control::Refused { status, report }));
        }
    }

    /// A guest's ranks are published that their communicator can't be made.
    pub(crate) fn fail_waiting_ranks(&mut self, number: SessionId, error: &Error<NcclStatus>) {
        let Some(session) = self.nccl.sessions.get_mut(&number) else { return };
        session.asked = None;
        for (_, member) in std::mem::take(&mut session.members) {
            // Who has left already needs no word.
            if let Some(handle) = member.location.handle()
                && self.nccl.memberships.contains_key(&handle)
            {
                self.nccl.memberships.insert(handle, Membership::Failed(error.clone()));
            }
        }
    }

    /// A guest's process has ended before the communicator was made.
    pub(crate) fn process_left_bootstrap(&mut self, id: UniqueId, process: ProcessNumber, who: &str) {
        let Some(bootstrap) = self.nccl.bootstraps.get(&id).filter(|bootstrap| bootstrap.failed.is_none())
        else {
            return;
        };
        let is_theirs = |member: &Member| member.location.process().is_some_and(|of| of.number == process);
        let of_it = bootstrap.members.iter().filter(|(_, member)| is_theirs(member));
        let lost: Vec<usize> = of_it.map(|(&rank, _)| rank).collect();
        if !lost.is_empty() {
            let verb = if lost.len() == 1 { "is" } else { "are" };
            let report = Report::new(format!(
                "{} {verb} gone: {who} ended before the communicator was made",
                ranks(&lost)
            ));
            self.fail_bootstrap(id, NcclStatus::RemoteError, &report, None);
        }
    }

    /// Ends a bootstrap to which ranks have not come for too long.
    pub(crate) fn give_up_bootstrap(&mut self, id: UniqueId) {
        let Some(bootstrap) = self.nccl.bootstraps.get(&id).filter(|bootstrap| bootstrap.failed.is_none())
        else {
            return;
        };
        let absent = (0..bootstrap.world_size).filter(|rank| !bootstrap.members.contains_key(rank));
        // A size may be any number.
        let mut missing: Vec<usize> = absent.take(MOST_NAMED + 1).collect();
        let more = if missing.len() > MOST_NAMED { " and more" } else { "" };
        missing.truncate(MOST_NAMED);
        let headline =
            format!("{}{more} of {} never came to the communicator", ranks(&missing), bootstrap.world_size);
        let mut report = Report::new(headline);
        for (rank, member) in &bootstrap.members {
            let text = format!("rank {rank} waits in ncclCommInitRank{}", in_process(member.location));
            report = report.at(text, &member.call_site);
        }
        let others = self.nccl.bootstraps.len() - 1;
        let report = report.fact(given_up(self.engine.timeout)).help(match others {
            0 => "every rank must call ncclCommInitRank with the same id, each in its own thread or process, or in one group",
            _ => {
                "ranks came with different ids: make the id once, and give the same one to every rank; \
                 ranks that make several communicators make them in one order"
            }
        });
        self.fail_bootstrap(id, NcclStatus::Timeout, &report, None);
    }

    /// A guest has waited for too long: it asks the host, which knows who is missing. `true` once that has not answered, either.
    pub(crate) fn give_up_on_root(&mut self, number: SessionId) -> bool {
        let timeout = self.engine.timeout;
        let Some(session) = self.nccl.sessions.get_mut(&number) else { return false };
        match session.asked {
            None => {
                session.asked = Some(Instant::now());
                session.send_control(ROOT, &Control::GiveUp);
                false
            }
            Some(asked) if asked.elapsed() < ANSWER => false,
            Some(_) => {
                let report =
                    Report::new("the process that made the id does not answer").fact(given_up(timeout));
                let error = Error::new(NcclStatus::Timeout, report.to_string());
                self.fail_waiting_ranks(number, &error);
                true
            }
        }
    }

    /// A thread asks for a communicator that is being made, and has done so for too long.
    pub(crate) fn poll_joining(&mut self, handle: CommHandle) {
        let since = match self.nccl.memberships.get(&handle) {
            Some(Membership::Joining(Gathering::Id(id), _)) => {
                self.nccl.bootstraps.get(id).map(|bootstrap| bootstrap.since)
            }
            Some(Membership::Joining(Gathering::Remote(session), _)) => {
                self.nccl.session(*session).map(|session| session.since)
            }
            _ => None,
        };
        if since.is_some_and(|since| since.elapsed() > self.engine.timeout) {
            self.give_up_joining(&[Awaiting::Communicator(handle)]);
        }
    }

    /// Someone gives up a bootstrap; the ranks that have come get the same error.
    pub(crate) fn leave_bootstrap(&mut self, id: UniqueId, error: &Error<NcclStatus>) {
        let Some(bootstrap) =
            self.nccl.bootstraps.get_mut(&id).filter(|bootstrap| bootstrap.failed.is_none())
        else {
            return;
        };
        bootstrap.failed = Some(error.clone());
        let members = std::mem::take(&mut bootstrap.members).into_values();
        let locations = members.map(|member| member.location);
        let is_still_there = |location: &RankLocation| {
            location.handle().is_none_or(|handle| self.nccl.memberships.contains_key(&handle))
        };
        let locations = locations.filter(is_still_there).collect();
        self.refuse(id, locations, error);
    }
}

impl RankLocation {
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
        match self.location {
            RankLocation::Here { thread, .. } => {
                let mut rank = Rank::new(self.device, thread, self.config);
                // One that is not blocking has to be asked before it is used.
                rank.polls = u32::from(!self.config.blocking);
                rank
            }
            RankLocation::Elsewhere(process) => Rank::elsewhere(process, self.device, self.config),
        }
    }
}

fn in_process(location: RankLocation) -> String {
    location.process().map_or_else(String::new, |process| format!(" in process {}", process.pid))
}

/// The report of two ranks on one GPU.
fn shared_gpu(bootstrap: &Bootstrap) -> Option<Report> {
    if ranks_share_gpus() {
        return None;
    }
    let mut seen = BTreeMap::new();
    bootstrap.members.iter().find_map(|(&rank, member)| {
        let (first, other) = seen.insert(member.gpu, (rank, member))?;
        let text = |rank: usize, member: &Member| {
            format!(
                "rank {rank}: ncclCommInitRank with GPU {} current{}",
                member.device,
                in_process(member.location)
            )
        };
        let report = Report::new(format!("ranks {first} and {rank} are both on GPU {}", member.gpu.index))
            .at(text(first, other), &other.call_site)
            .at(text(rank, member), &member.call_site);
        Some(report.help(match member.location.process().or(other.location.process()) {
            None => "bind each rank's own context first: stream.context().bind_to_thread()?",
            Some(_) => {
                "each process needs a GPU of its own: CudaContext::new(rank)?, or CUDA_VISIBLE_DEVICES"
            }
        }))
    })
}

fn disagreement_about_size(bootstrap: &Bootstrap, world_size: usize, rank: usize, member: &Member) -> Report {
    let mut sides: BTreeSet<(usize, usize)> =
        bootstrap.members.keys().map(|&rank| (rank, bootstrap.world_size)).collect();
    sides.insert((rank, world_size));
    let mut report = Report::new("ranks with the same id disagree about the world size");
    for (rank, size) in sides {
        let side = match bootstrap.members.get(&rank) {
            Some(known) if size == bootstrap.world_size => known,
            _ => member,
        };
        let text = format!("rank {rank} of {size}: ncclCommInitRank{}", in_process(side.location));
        report = report.at(text, &side.call_site);
    }
    report.help("every rank must give the same number of ranks")
}
