//! Memberships: what an `ncclComm_t` refers to, from the call that requests a communicator to the rank that uses it.

use super::config::CommConfig;
use super::id::UniqueId;
use super::session::{Control, ROOT, SessionId};
use super::{Guard, Locked, Nccl, State};
use virtual_gpu::engine::{Awaiting, Failure, Wait};
use virtual_gpu_core::handle::{CommHandle, CommId, ManagementId, Rank};
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

/// What a communicator handle refers to.
pub(crate) enum Membership {
    /// The rank is waiting for the others.
    Joining(Gathering, CommConfig),
    /// The communicator could not be created.
    Failed(Error<NcclStatus>),
    /// The rank can communicate.
    Member {
        /// The communicator.
        comm: CommId,
        /// The rank's number in it.
        rank: Rank,
    },
}

/// Where a new communicator's ranks find each other.
#[derive(Clone, Copy)]
pub(crate) enum Gathering {
    /// With an id that this process created.
    Id(UniqueId),
    /// With an id that another process created, in this session.
    Remote(SessionId),
    /// In a split of another communicator.
    Split(ManagementId),
}

impl Nccl {
    /// Blocks until these communicators, splits, and finalizes have completed or failed.
    pub(crate) fn finish_joining(
        &self,
        awaiting: Vec<Awaiting>,
        caller: &'static str,
        guard: Guard<'_>,
    ) -> NcclResult<()> {
        let mut guard = self.block_on(Wait::Communicators(awaiting.clone()), caller, guard);
        let state = guard.locked();
        let mut result = Ok(());
        for awaiting in awaiting {
            let failed = match awaiting {
                Awaiting::Communicator(handle) => match state.nccl.memberships.get(&handle) {
                    Some(Membership::Failed(error)) => {
                        let error = error.clone();
                        state.nccl.memberships.remove(&handle);
                        Some(error)
                    }
                    _ => None,
                },
                // The call may have completed, and its ranks may have left.
                Awaiting::Management(id) => {
                    let comm = state.nccl.communicators.get(&id.comm);
                    comm.and_then(|comm| comm.management_failure(id.sequence))
                }
            };
            result = result.and(failed.map_or(Ok(()), Err));
        }
        drop(guard);
        result
    }

    /// Implements `ncclCommCount`, `ncclCommUserRank`, and `ncclCommCuDevice`: returns the world size, the rank, and
    /// the GPU.
    pub fn identity(&self, handle: CommHandle) -> NcclResult<(usize, Rank, usize)> {
        let guard = self.lock();
        let (comm, rank) = guard.nccl.ready_member(handle)?;
        let ranks = &guard.nccl.communicator(comm)?.ranks;
        Ok((ranks.len(), rank, ranks[rank].device))
    }

    /// Implements `ncclCommGetAsyncError`: returns `None` if there is no error, `InProgress` while a nonblocking
    /// communicator can't be used, or the asynchronous error.
    ///
    /// A call on a nonblocking communicator stays in progress until this function has reported `InProgress` once. A
    /// program that does not query in a loop therefore fails on every run.
    pub fn async_error(&self, handle: CommHandle) -> NcclResult<Option<Error<NcclStatus>>> {
        let in_progress = Ok(Some(NcclStatus::InProgress.into()));
        let mut guard = self.run_ready(self.lock());
        let mut state = guard.locked();
        match state.nccl.memberships.get(&handle) {
            Some(Membership::Joining(..)) => {
                state.poll_joining(handle)?;
                return in_progress;
            }
            Some(Membership::Failed(error)) => return Ok(Some(error.clone())),
            _ => {}
        }
        let (comm, rank) = state.nccl.member(handle)?;
        let entry = state.nccl.communicator_mut(comm)?;
        if let Some(sequence) = entry.ranks[rank].awaits {
            if !entry.is_complete_or_failed(sequence) {
                return in_progress;
            }
            if let Some(error) = entry.management_failure(sequence) {
                return Ok(Some(error));
            }
        }
        entry.ranks[rank].awaits = None;
        if entry.ranks[rank].polls > 0 {
            entry.ranks[rank].polls -= 1;
            return in_progress;
        }
        Ok(entry.failed.clone())
    }
}

impl State {
    /// Returns whether a communicator that is being created is ready or has failed.
    pub(crate) fn is_settled(&self, awaiting: Awaiting) -> bool {
        match awaiting {
            Awaiting::Communicator(handle) => {
                !matches!(self.memberships.get(&handle), Some(Membership::Joining(..)))
            }
            // Another thread may have aborted the communicator's last rank.
            Awaiting::Management(id) => {
                let comm = self.communicators.get(&id.comm);
                comm.is_none_or(|comm| comm.is_complete_or_failed(id.sequence))
            }
        }
    }

    /// Like [`Self::member`], but fails while a call on the communicator is in progress.
    pub(crate) fn unfinished_member(&self, handle: CommHandle) -> NcclResult<(CommId, Rank)> {
        let (comm, rank) = self.member(handle)?;
        let entry = &self.communicator(comm)?.ranks[rank];
        if entry.polls > 0 || entry.awaits.is_some() {
            let message = "the communicator is in progress (blocking = 0): call ncclCommGetAsyncError until it no longer is";
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        Ok((comm, rank))
    }

    /// Like [`Self::member`], but fails unless the communicator can be used now.
    pub(crate) fn ready_member(&self, handle: CommHandle) -> NcclResult<(CommId, Rank)> {
        let (comm, rank) = self.open_member(handle)?;
        self.communicator(comm)?.check_all_there().map(|()| (comm, rank))
    }

    /// Like [`Self::ready_member`], but also if processes with other ranks have ended.
    pub(crate) fn open_member(&self, handle: CommHandle) -> NcclResult<(CommId, Rank)> {
        let (comm, rank) = self.unfinished_member(handle)?;
        let entry = self.communicator(comm)?;
        match entry.ranks[rank].finalized {
            true => Err(Error::new(NcclStatus::InvalidArgument, "the communicator has been finalized")),
            false => Ok((comm, rank)),
        }
    }

    /// Returns the communicator and rank of a handle that can be used.
    pub(crate) fn member(&self, handle: CommHandle) -> NcclResult<(CommId, Rank)> {
        let message = match self.memberships.get(&handle) {
            Some(&Membership::Member { comm, rank }) => return Ok((comm, rank)),
            Some(Membership::Joining(_, CommConfig { blocking: true })) => {
                "the communicator is not ready until its group ends".to_owned()
            }
            Some(Membership::Joining(..)) => {
                "the communicator is in progress (blocking = 0): call ncclCommGetAsyncError until it no longer is"
                    .to_owned()
            }
            Some(Membership::Failed(error)) => return Err(error.clone()),
            None if handle.0 == 0 => "the communicator is NULL".to_owned(),
            None => format!("{:#x} is not a communicator, or is no longer one", handle.0),
        };
        Err(Error::new(NcclStatus::InvalidArgument, message))
    }
}

impl Locked<'_> {
    /// Fails bootstraps, splits, and finalizes whose other ranks have not called within the timeout. Returns `false` if
    /// an answer from another process is still pending.
    ///
    /// # Errors
    /// Returns `InternalError` if the communicator or session is gone.
    pub(crate) fn give_up_joining(&mut self, awaited: &[Awaiting]) -> NcclResult<bool> {
        let mut ended = false;
        for awaiting in awaited {
            match *awaiting {
                Awaiting::Communicator(handle) => match self.nccl.memberships.get(&handle) {
                    Some(&Membership::Joining(Gathering::Id(id), _)) => {
                        self.give_up_bootstrap(id);
                        ended = true;
                    }
                    Some(&Membership::Joining(Gathering::Remote(session), _)) => {
                        ended |= self.give_up_on_root(session)?;
                    }
                    Some(&Membership::Joining(Gathering::Split(id), _)) => {
                        self.give_up_management_call(id)?;
                        ended = true;
                    }
                    _ => {}
                },
                Awaiting::Management(id) if !self.nccl.is_settled(*awaiting) => {
                    self.give_up_management_call(id)?;
                    ended = true;
                }
                Awaiting::Management { .. } => {}
            }
        }
        Ok(ended)
    }
}

impl State {
    /// Withdraws a thread that is giving up from everything it was joining; the other ranks get the same error.
    ///
    /// # Errors
    /// Returns `InternalError` if the communicator or session is gone.
    pub(crate) fn leave_bootstraps(
        &mut self,
        joining: &[Awaiting],
        error: &Error<NcclStatus>,
    ) -> NcclResult<()> {
        for awaiting in joining {
            let handle = match *awaiting {
                Awaiting::Communicator(handle) => handle,
                Awaiting::Management(id) => {
                    let failure = Failure { status: CudaStatus::LaunchFailed, report: error.message.clone() };
                    // Inside the group, the thread may have aborted its rank, which may have been the last one.
                    if self.communicators.contains_key(&id.comm) {
                        self.fail_management_call(id, error.status, &failure)?;
                    }
                    continue;
                }
            };
            match self.memberships.remove(&handle) {
                Some(Membership::Joining(Gathering::Id(id), _)) => self.leave_bootstrap(id, error),
                Some(Membership::Joining(Gathering::Remote(number), _)) => {
                    let (status, report) = (error.status, error.message.to_string());
                    self.session(number)?.send_control(ROOT, &Control::Withdraw { status, report });
                }
                _ => {}
            }
        }
        Ok(())
    }
}
