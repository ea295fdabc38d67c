//! User objects: resources of the program that graphs keep alive. Once nothing refers to an object, its destructor
//! runs.

use super::{Graph, GraphHandle, NodeWork};
use crate::engine::host::HostFunction;
use crate::engine::{Engine, State};
use virtual_gpu_core::handle::OpRef;
use virtual_gpu_core::sorted::SortedMap;
use virtual_gpu_core::status::{CudaResult, invalid};
use virtual_gpu_core::sync::MutexGuard;

/// A `CUuserObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserObjectHandle(pub u64);

/// How many references to each object a graph holds.
pub(super) type References = SortedMap<UserObjectHandle, u64>;

struct UserObject {
    references: u64,
    destroy: HostFunction,
}

/// All user objects.
#[derive(Default)]
pub(super) struct UserObjects {
    all: SortedMap<UserObjectHandle, UserObject>,
    /// References that executable graphs gave up while a launch, which ends with the operation, was running.
    held: Vec<(OpRef, References)>,
    /// Destructors to call.
    dead: Vec<HostFunction>,
}

impl UserObjects {
    fn retain(&mut self, object: UserObjectHandle, count: u64) -> CudaResult<()> {
        let entry = self.all.get_mut(&object).ok_or_else(|| not_an_object(object))?;
        entry.references += count;
        Ok(())
    }

    pub(super) fn retain_all(&mut self, references: &References) {
        for &(object, count) in references.entries() {
            // This succeeds because the graph that is copied keeps the object alive.
            let _ = self.retain(object, count);
        }
    }

    fn release(&mut self, object: UserObjectHandle, count: u64) -> CudaResult<()> {
        let entry = self.all.get_mut(&object).ok_or_else(|| not_an_object(object))?;
        if entry.references < count {
            let known = entry.references;
            return Err(invalid(format!("user object {:#x} has {known} references, not {count}", object.0)));
        }
        entry.references -= count;
        if entry.references == 0
            && let Some(removed) = self.all.remove(&object)
        {
            self.dead.push(removed.destroy);
        }
        Ok(())
    }

    pub(super) fn release_all(&mut self, references: &References) {
        for &(object, count) in references.entries() {
            // This succeeds because the graph has held the references.
            let _ = self.release(object, count);
        }
    }

    /// Releases the references of an executable graph once its last launch is done.
    pub(super) fn release_after(&mut self, last: Option<OpRef>, references: References) {
        match last {
            Some(op) => self.held.push((op, references)),
            None => self.release_all(&references),
        }
    }
}

fn not_an_object(
    object: UserObjectHandle,
) -> virtual_gpu_core::status::Error<virtual_gpu_core::status::CudaStatus> {
    invalid(format!("{:#x} is not a user object, or is no longer one", object.0))
}

fn add(to: &mut References, object: UserObjectHandle, count: u64) {
    *to.get_or_insert_with(object, || 0) += count;
}

impl Engine {
    /// `cuUserObjectCreate`: creates an object with this many references.
    pub fn create_user_object(&self, destroy: HostFunction, references: u64) -> UserObjectHandle {
        let mut state = self.state();
        let handle = UserObjectHandle(state.new_handle());
        state.graphs.objects.all.insert(handle, UserObject { references, destroy });
        handle
    }

    /// `cuUserObjectRetain`
    pub fn retain_user_object(&self, object: UserObjectHandle, count: u64) -> CudaResult<()> {
        self.state().graphs.objects.retain(object, count)
    }

    /// `cuUserObjectRelease`
    ///
    /// # Errors
    /// Returns `InvalidValue` if the object has fewer references.
    pub fn release_user_object(&self, object: UserObjectHandle, count: u64) -> CudaResult<()> {
        let mut state = self.state();
        state.graphs.objects.release(object, count)?;
        drop(self.destroy_objects(state));
        Ok(())
    }

    /// `cuGraphRetainUserObject`: gives a graph references, which are new unless the caller's are moved.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the object has fewer references than are moved.
    pub fn give_user_object(
        &self,
        graph: GraphHandle,
        object: UserObjectHandle,
        count: u64,
        moves: bool,
    ) -> CudaResult<()> {
        let mut state = self.state();
        state.graph(graph)?;
        if !moves {
            state.graphs.objects.retain(object, count)?;
        } else {
            let of_graphs = |graph: &Graph| graph.objects.get(&object).copied().unwrap_or(0);
            let of_graphs: u64 = state.graphs.all.values().map(of_graphs).sum();
            let known = state.graphs.objects.all.get(&object).ok_or_else(|| not_an_object(object))?;
            if known.references.saturating_sub(of_graphs) < count {
                let message =
                    format!("user object {:#x} has fewer than {count} references to move", object.0);
                return Err(invalid(message));
            }
        }
        add(&mut state.graph_mut(graph)?.objects, object, count);
        Ok(())
    }

    /// `cuGraphReleaseUserObject`
    ///
    /// # Errors
    /// Returns `InvalidValue` if the graph holds fewer references.
    pub fn take_user_object(
        &self,
        graph: GraphHandle,
        object: UserObjectHandle,
        count: u64,
    ) -> CudaResult<()> {
        let mut state = self.state();
        let objects = &mut state.graph_mut(graph)?.objects;
        let known = objects.get(&object).copied().unwrap_or(0);
        match known.checked_sub(count) {
            Some(0) => drop(objects.remove(&object)),
            Some(left) => objects.insert(object, left),
            None => {
                let message =
                    format!("graph {:#x} has {known} references to user object {:#x}", graph.0, object.0);
                return Err(invalid(message));
            }
        }
        state.graphs.objects.release(object, count)?;
        drop(self.destroy_objects(state));
        Ok(())
    }

    /// Calls the destructors of objects that nothing refers to anymore.
    pub(in crate::engine) fn destroy_objects<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        if !state.graphs.objects.held.is_empty() {
            let held = std::mem::take(&mut state.graphs.objects.held);
            for (op, references) in held {
                match state.is_done(op) {
                    true => state.graphs.objects.release_all(&references),
                    false => state.graphs.objects.held.push((op, references)),
                }
            }
        }
        if state.graphs.objects.dead.is_empty() {
            return state;
        }
        let dead = std::mem::take(&mut state.graphs.objects.dead);
        drop(state);
        dead.into_iter().for_each(|destroy| (destroy.call)());
        self.state()
    }
}

impl State {
    /// Returns the references that an executable graph gets: those of a graph and of the graphs in it.
    pub(super) fn references_of(&self, graph: &Graph) -> References {
        let mut all = graph.objects.clone();
        for node in &graph.nodes {
            if let NodeWork::Graph(child) = node.work
                && let Ok(child) = self.graph(child)
            {
                let inner = self.references_of(child);
                inner.entries().iter().for_each(|&(object, count)| add(&mut all, object, count));
            }
        }
        all
    }
}
