//! NCCL's state and its lock. Lock order: the engine's lock first, then this one.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::bootstrap::Bootstrap;
use super::communicator::Communicator;
use super::connection::Listeners;
use super::event::Foreign;
use super::group::Group;
use super::id::UniqueId;
use super::membership::Membership;
use super::registration::Window;
use super::session::{Session, SessionId};
use super::strict;
use virtual_gpu::engine::{Engine, State as EngineState, Wait};
use virtual_gpu_core::handle::{CommHandle, CommId};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::sync::{Mutex, MutexGuard};
use virtual_gpu_core::thread::ThreadKey;

/// NCCL on an engine's GPUs, with the functions of `nccl.h`.
pub struct Nccl {
    pub(crate) engine: &'static Engine,
    state: Mutex<State>,
    /// The addresses where this process listens for ranks in other processes.
    pub(crate) listeners: Mutex<Listeners>,
}

/// NCCL's state.
#[derive(Default)]
pub(crate) struct State {
    /// The ids that this process created and therefore listens for.
    pub(crate) own_ids: HashSet<UniqueId>,
    /// The bootstraps for ids whose ranks have not all joined.
    pub(crate) bootstraps: HashMap<UniqueId, Bootstrap>,
    /// The ids that have been used to create a communicator, with rank 0's call site.
    pub(crate) spent: HashMap<UniqueId, CallSite>,
    pub(crate) memberships: Map<CommHandle, Membership>,
    pub(crate) communicators: BTreeMap<CommId, Communicator>,
    /// The number of communicators created so far.
    pub(crate) communicators_made: u64,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// The number of sessions created so far.
    pub(crate) sessions_made: u64,
    /// Whether the process is ending. If so, it no longer matters whether other processes end.
    pub(crate) is_leaving: bool,
    /// Sessions whose first communicator has not been created yet.
    pub(crate) gathering: HashMap<UniqueId, SessionId>,
    pub(crate) foreign: Foreign,
    /// The registered buffers' handles, with the rank's communicator.
    pub(crate) registered: Map<u64, CommHandle>,
    /// The windows, by handle.
    pub(crate) windows: Map<u64, Window>,
    /// Each thread's open group.
    groups: Map<ThreadKey, Group>,
}

/// Guards of both locks.
pub(crate) struct Guard<'a> {
    pub(crate) engine: MutexGuard<'a, EngineState>,
    pub(crate) nccl: MutexGuard<'a, State>,
}

/// Both states, locked.
pub(crate) struct Locked<'a> {
    pub(crate) engine: &'a mut EngineState,
    pub(crate) nccl: &'a mut State,
}

impl Guard<'_> {
    pub(crate) fn locked(&mut self) -> Locked<'_> {
        Locked { engine: &mut self.engine, nccl: &mut self.nccl }
    }
}

impl Nccl {
    /// Creates NCCL for an engine's GPUs. Like the engine, it lives as long as the process.
    pub fn new(engine: &'static Engine) -> &'static Self {
        let nccl: &'static Self =
            Box::leak(Box::new(Self { engine, state: Mutex::default(), listeners: Mutex::default() }));
        engine.set_communication(nccl);
        strict::set(engine.config().strict_nccl);
        nccl
    }

    /// Locks the engine and then NCCL's state.
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.lock_after(self.engine.state())
    }

    /// Locks NCCL's state when the engine is already locked.
    pub(crate) fn lock_after<'a>(&'a self, engine: MutexGuard<'a, EngineState>) -> Guard<'a> {
        Guard { engine, nccl: self.lock_own() }
    }

    /// Locks NCCL's state in a function that the engine calls while it holds its own lock.
    pub(crate) fn lock_own(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs everything that is ready. NCCL's state is unlocked while it runs.
    pub(crate) fn run_ready<'a>(&'a self, guard: Guard<'a>) -> Guard<'a> {
        let Guard { engine, nccl } = guard;
        drop(nccl);
        self.lock_after(self.engine.run_ready(engine))
    }

    /// Runs everything that is ready and leaves both states unlocked.
    pub(crate) fn run_ready_and_unlock(&self, guard: Guard<'_>) {
        let Guard { engine, nccl } = guard;
        drop(nccl);
        drop(self.engine.run_ready(engine));
    }

    /// Blocks until `wait` is over. NCCL's state is unlocked while it blocks.
    pub(crate) fn block_on<'a>(&'a self, wait: Wait, caller: &'static str, guard: Guard<'a>) -> Guard<'a> {
        let Guard { engine, nccl } = guard;
        drop(nccl);
        self.lock_after(self.engine.block_on(wait, caller, engine))
    }

    /// Blocks until something has changed that a blocked thread may be waiting for. Both states are unlocked while it
    /// blocks.
    pub(crate) fn wait_for_change<'a>(&'a self, guard: Guard<'a>) -> Guard<'a> {
        let Guard { engine, nccl } = guard;
        drop(nccl);
        self.lock_after(self.engine.wait_for_change(engine))
    }

    /// Unlocks both states and makes blocked threads check their conditions again.
    pub(crate) fn unlock_and_wake(&self, guard: Guard<'_>) {
        drop(guard);
        self.engine.wake_all();
    }
}

impl State {
    /// Returns the calling thread's open group.
    pub(crate) fn open_group(&mut self) -> Option<&mut Group> {
        self.groups.get_mut(&ThreadKey::current())
    }

    /// Returns the calling thread's group, creating it if necessary.
    pub(crate) fn enter_group(&mut self) -> &mut Group {
        self.groups.entry(ThreadKey::current()).or_default()
    }

    /// Removes the calling thread's group when the group ends.
    pub(crate) fn take_group(&mut self) -> Option<Group> {
        self.groups.remove(&ThreadKey::current())
    }
}
