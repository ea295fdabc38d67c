//! `ncclCommGrow`: a communicator with more ranks. The ranks of the parent keep their numbers.
//!
//! One rank of the parent has the id; in a call that all its ranks make together, the others learn it. Then all ranks, old
//! and new, join as those of any communicator do.

use super::Nccl;
use super::config::CommConfig;
use super::id::UniqueId;
use super::management::Purpose;
use virtual_gpu::report::Report;
use virtual_gpu_core::handle::{CommHandle, Rank};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// What a rank of the parent asks for.
#[derive(Clone, Copy)]
pub(crate) struct Grow {
    /// The number of ranks of the new communicator.
    pub(crate) world_size: i32,
    /// The new communicator's id, which exactly one rank has.
    pub(crate) id: Option<UniqueId>,
}

impl Grow {
    /// Returns a report if the ranks of the parent disagree, given each rank's call with its line.
    pub(crate) fn disagreement(calls: &[(Rank, Self, &CallSite)]) -> Option<Report> {
        let (_, first, _) = calls.first()?;
        let ids = calls.iter().filter(|(_, grow, _)| grow.id.is_some()).count();
        let is_one_size = calls.iter().all(|(_, grow, _)| grow.world_size == first.world_size);
        let (headline, help) = match (is_one_size, ids) {
            (true, 1) => return None,
            (false, _) => (
                "ranks disagree about the size of the communicator that ncclCommGrow makes".to_owned(),
                "every rank must pass the same number of ranks, old and new together",
            ),
            (true, count) => (
                format!("{count} ranks of the communicator pass an id to ncclCommGrow, and exactly one must"),
                "the rank that has called ncclCommGetUniqueId passes the id, and the other ranks of the communicator pass NULL",
            ),
        };
        let mut report = Report::new(headline);
        for (rank, grow, call_site) in calls {
            let id = if grow.id.is_some() { "an id" } else { "no id" };
            let text = format!("rank {rank}: ncclCommGrow({} ranks, {id})", grow.world_size);
            report = report.at(text, call_site);
        }
        Some(report.help(help))
    }
}

impl Nccl {
    /// Implements `ncclCommGrow` for a rank of the parent, which keeps its number. Returns once all ranks have joined.
    ///
    /// # Errors
    /// Returns `InvalidArgument` unless the communicator gets larger, `InvalidUsage` if its ranks disagree, in a group, and
    /// for a nonblocking communicator; otherwise, fails like [`Self::init_rank`].
    pub fn grow(
        &'static self,
        handle: CommHandle,
        world_size: i32,
        id: Option<UniqueId>,
        config: Option<CommConfig>,
    ) -> NcclResult<CommHandle> {
        let mut guard = self.lock();
        let (comm, rank) = guard.nccl.ready_member(handle)?;
        let entry = &guard.nccl.communicator(comm)?;
        let (size, own) = (entry.ranks.len(), &entry.ranks[rank]);
        let (device, sequence) = (own.device, own.management_calls.next());
        let (config, is_blocking) = (config.unwrap_or(own.config), own.config.blocking);
        if usize::try_from(world_size).is_ok_and(|wanted| wanted <= size) || world_size < 0 {
            let message = format!(
                "ncclCommGrow: the communicator has {size} ranks, so the new one must have more, not {world_size}"
            );
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        if !is_blocking || !config.blocking || guard.nccl.open_group().is_some() {
            let message =
                "virtual GPU: ncclCommGrow in a group, or for a nonblocking communicator, is not supported";
            return Err(Error::new(NcclStatus::InvalidUsage, message));
        }
        let purpose = Purpose::Grow(Grow { world_size, id });
        self.join_management_call(comm, rank, purpose, guard)?;
        let grown = self.lock().nccl.communicator(comm)?.grown.get(&sequence).copied();
        let id = grown
            .ok_or_else(|| super::internal::vanished(format_args!("an id that the ranks have agreed on")))?;
        self.join_ranks("ncclCommGrow", world_size, id, rank.0 as i32, device, config)
    }
}
