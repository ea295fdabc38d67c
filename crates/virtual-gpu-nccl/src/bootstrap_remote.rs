//! Bootstraps whose root is in another process: the messages between the root and the other processes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::bootstrap::{Bootstrap, Gpu, Member, RankLocation};
use super::communicator::Process;
use super::config::CommConfig;
use super::membership::{Gathering, Membership};
use super::ranks::Ranks;
use super::session::{Control, FIRST_TAG, Link, ProcessNumber, ROOT, SessionId};
use super::wire::{EventError, Malformed, structure};
use super::{Locked, State};
use virtual_gpu::engine::given_up;
use virtual_gpu::report::Report;
use virtual_gpu_core::handle::Rank;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// How much longer than its own timeout a process waits for an answer from the root.
const ANSWER: Duration = Duration::from_secs(1);

/// A rank's request to join, which its process sends to the root in another process.
pub(crate) struct JoinRequest {
    pub(crate) world_size: usize,
    pub(crate) rank: Rank,
    blocking: bool,
    device: usize,
    gpu: Gpu,
    call_site: CallSite,
}

/// The description of the new communicator that the root sends to another process.
pub(crate) struct Table {
    /// The number of the process that receives the table.
    own: ProcessNumber,
    pids: Vec<(ProcessNumber, u32)>,
    ranks: Ranks<Entry>,
}

/// One rank's entry in a table.
struct Entry {
    process: ProcessNumber,
    blocking: bool,
    device: usize,
    call_site: CallSite,
}

structure! {
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

impl State {
    /// Asks the root in another process to add a rank.
    pub(crate) fn join_elsewhere(
        &mut self,
        number: SessionId,
        world_size: usize,
        rank: Rank,
        member: Member,
    ) {
        // A rank that joins at a remote root always runs in this process.
        let RankLocation::Here { handle, .. } = member.location else { return };
        let Some(session) = self.sessions.get_mut(&number) else {
            let error = Error::new(NcclStatus::RemoteError, "the process that created the id has ended");
            self.memberships.insert(handle, Membership::Failed(error));
            return;
        };
        let Member { config, device, gpu, ref call_site, .. } = member;
        let (blocking, call_site) = (config.blocking, call_site.clone());
        let request = JoinRequest { world_size, rank, blocking, device, gpu, call_site };
        session.send_control(ROOT, &Control::Join(request));
        session.members.push((rank, member));
        self.memberships.insert(handle, Membership::Joining(Gathering::Remote(number), config));
    }

    /// Sends the other processes the communicator that they are waiting for.
    ///
    /// # Errors
    /// Returns `InternalError` if the session is gone.
    pub(crate) fn send_tables(
        &self,
        session: SessionId,
        processes: &BTreeSet<ProcessNumber>,
        bootstrap: &Bootstrap,
    ) -> NcclResult<()> {
        let session = self.session(session)?;
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
        Ok(())
    }

    /// Fails the ranks of this process that are waiting for a root, because their communicator can't be created.
    ///
    /// # Errors
    /// Returns `InternalError` if the session is gone.
    pub(crate) fn fail_waiting_ranks(
        &mut self,
        number: SessionId,
        error: &Error<NcclStatus>,
    ) -> NcclResult<()> {
        let session = self.session_mut(number)?;
        session.asked = None;
        for (_, member) in std::mem::take(&mut session.members) {
            // A rank that has left does not need the error.
            if let Some(handle) = member.location.handle()
                && self.memberships.contains_key(&handle)
            {
                self.memberships.insert(handle, Membership::Failed(error.clone()));
            }
        }
        Ok(())
    }
}

impl Locked<'_> {
    /// Creates the communicator in this process, after the root has reported that all ranks have joined.
    ///
    /// # Errors
    /// Returns [`EventError::Malformed`] if the table is inconsistent.
    pub(crate) fn complete_elsewhere(&mut self, number: SessionId, table: Table) -> Result<(), EventError> {
        let session = self.nccl.session_mut(number)?;
        let Table { own, pids, ranks } = table;
        let is_known = |rank| session.members.iter().any(|(member, _)| *member == rank);
        if ranks.iter().any(|(rank, entry)| entry.process == own && !is_known(rank)) {
            return Err(EventError::Malformed);
        }
        session.own = own;
        session.pids = pids.into_iter().collect();
        let id = session.id;
        let mut members: BTreeMap<Rank, Member> = std::mem::take(&mut session.members).into_iter().collect();
        let call_site = ranks.get(Rank(0)).ok_or(Malformed)?.call_site.clone();
        let (mut made, mut handles, mut others) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (rank, entry) in ranks {
            let Entry { process, blocking, device, call_site } = entry;
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
            made.push(member.into_state());
        }
        self.nccl.gathering.remove(&id);
        let link = Link { session: number, tag: FIRST_TAG, others: others.into_iter().collect() };
        self.add_communicator("ncclCommInitRank", made.into(), &handles.into(), call_site, Some(link))?;
        Ok(())
    }

    /// Asks the root to give up, because this process has waited too long; only the root knows which ranks are missing.
    /// Returns `true` once the root has failed to answer that request, too.
    pub(crate) fn give_up_on_root(&mut self, number: SessionId) -> NcclResult<bool> {
        let timeout = self.engine.bootstrap_timeout;
        let session = self.nccl.session_mut(number)?;
        Ok(match session.asked {
            None => {
                session.asked = Some(Instant::now());
                session.send_control(ROOT, &Control::GiveUp);
                false
            }
            Some(asked) if asked.elapsed() < ANSWER => false,
            Some(_) => {
                let report =
                    Report::new("the process that created the id does not answer").fact(given_up(timeout));
                let error = Error::new(NcclStatus::Timeout, report.to_string());
                self.nccl.fail_waiting_ranks(number, &error)?;
                true
            }
        })
    }
}
