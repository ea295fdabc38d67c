//! NCCL's state and its lock. The order of locks is: the engine's, then this one.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::bootstrap::Bootstrap;
use super::communicator::Communicator;
use super::connection::Listeners;
use super::event::Foreign;
use super::group::Group;
use super::id::UniqueId;
use super::membership::Membership;
use super::session::{Session, SessionId};
use virtual_gpu::engine::{Engine, State as EngineState, Wait};
use virtual_gpu_core::handle::{CommHandle, CommId};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::sync::{Mutex, MutexGuard};
use virtual_gpu_core::thread::ThreadKey;

/// NCCL over an engine's GPUs: the functions of `nccl.h`.
pub struct Nccl {
    pub(crate) engine: &'static Engine,
    state: Mutex<State>,
    /// Where this process listens for the ranks of others.
    pub(crate) listeners: Mutex<Listeners>,
}

/// What NCCL keeps.
#[derive(Default)]
pub(crate) struct State {
    /// Ids that this process made, and so listens for.
    pub(crate) own_ids: HashSet<UniqueId>,
    /// Ids whose ranks have not all come.
    pub(crate) bootstraps: HashMap<UniqueId, Bootstrap>,
    /// Ids that have made their communicator, and where its rank 0 came.
    pub(crate) spent: HashMap<UniqueId, CallSite>,
    pub(crate) memberships: Map<CommHandle, Membership>,
    pub(crate) communicators: BTreeMap<CommId, Communicator>,
    /// Communicators made since the start.
    pub(crate) communicators_made: u64,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// Sessions made since the start.
    pub(crate) sessions_made: u64,
    /// The process ends: what others do matters no more.
    pub(crate) is_leaving: bool,
    /// Sessions whose first communicator is not made yet.
    pub(crate) gathering: HashMap<UniqueId, SessionId>,
    pub(crate) foreign: Foreign,
    /// The open groups of threads.
    groups: Map<ThreadKey, Group>,
}

/// Both locks.
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
    /// NCCL for the GPUs of an engine, which lives as long as the process does, as the engine does.
    pub fn new(engine: &'static Engine) -> &'static Self {
        let nccl: &'static Self =
            Box::leak(Box::new(Self { engine, state: Mutex::default(), listeners: Mutex::default() }));
        engine.set_communication(nccl);
        nccl
    }

    /// Locks the engine, then NCCL's state.
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.lock_after(self.engine.state())
    }

    /// Locks NCCL's state, where the engine is locked.
    pub(crate) fn lock_after<'a>(&'a self, engine: MutexGuard<'a, EngineState>) -> Guard<'a> {
        Guard { engine, nccl: self.lock_own() }
    }

    /// Locks NCCL's state, in a function that the engine calls with its own lock held.
    pub(crate) fn lock_own(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs whatever is ready. NCCL's state is unlocked meanwhile.
    pub(crate) fn run_ready<'a>(&'a self, guard: Guard<'a>) -> Guard<'a> {
        let Guard { engine, nccl } = guard;
        drop(nccl);
        self.lock_after(self.engine.run_ready(engine))
    }

    /// Runs whatever is ready, and leaves both states unlocked.
    pub(crate) fn run_ready_and_unlock(&self, guard: Guard<'_>) {
        let Guard { engine, nccl } = guard;
        drop(nccl);
        drop(self.engine.run_ready(engine));
    }

    /// Blocks until `wait` is over. NCCL's state is unlocked meanwhile.
    pub(crate) fn block_on<'a>(&'a self, wait: Wait, caller: &'static str, guard: Guard<'a>) -> Guard<'a> {
        let Guard { engine, nccl } = guard;
        drop(nccl);
        self.lock_after(self.engine.block_on(wait, caller, engine))
    }

    /// Unlocks, and makes blocked threads look again.
    pub(crate) fn unlock_and_wake(&self, guard: Guard<'_>) {
        drop(guard);
        self.engine.wake_all();
    }
}

impl State {
    /// The calling thread's open group.
    pub(crate) fn open_group(&mut self) -> Option<&mut Group> {
        self.groups.get_mut(&ThreadKey::current())
    }

    /// Opens a group, or one more inside of it.
    pub(crate) fn enter_group(&mut self) -> &mut Group {
        self.groups.entry(ThreadKey::current()).or_default()
    }

    /// Takes the calling thread's group away, at its end.
    pub(crate) fn take_group(&mut self) -> Option<Group> {
        self.groups.remove(&ThreadKey::current())
    }
}
