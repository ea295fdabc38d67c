//! Contexts: each GPU's primary context, other contexts, and each thread's current context.

use std::sync::Arc;

use super::module::ModuleHandle;
use super::settings::{self, Settings};
use super::stream::{Retired, StreamKind};
use super::{Engine, Failure, State};
use crate::order::OF_A_GRAPH;
use virtual_gpu_core::handle::{OperationNumber, StreamHandle};
use virtual_gpu_core::memory::{AllocationId, HeapOwner};
use virtual_gpu_core::number_map::NumberMap;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_machine::Printed;

/// A `CUcontext`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextHandle(pub u64);

/// A GPU's share of the engine's state.
#[derive(Default)]
pub(super) struct Device {
    primary: Option<ContextHandle>,
    /// The primary context's flags, which are also kept while it doesn't exist.
    primary_flags: u32,
    retained: u32,
    /// The number of streams created in it so far, which determines their names.
    streams: u32,
}

/// Allocations by address.
type Allocations = NumberMap<AllocationId>;

pub(super) struct Context {
    pub(super) device: usize,
    /// The legacy default stream, which is created with the context.
    pub(super) default_stream: StreamHandle,
    /// The first failure of an operation. All later operations in this context fail with the same error, as on a real
    /// GPU.
    pub(super) failure: Option<Arc<Failure>>,
    /// Among the races that have been found but not reported yet, the one with the earliest calls. Work continues until
    /// the race is reported, because how much work is done when a race is found depends on thread timing.
    pub(super) race: Option<([OperationNumber; 2], Failure)>,
    /// Whether a thread has received the failure. Before that, only calls that wait return it, so that thread timing
    /// does not determine which call returns it.
    pub(super) reported: bool,
    pub(super) settings: Settings,
    /// The memory that `cuMemAlloc` allocated in the context, by address. This memory is freed with the context, unlike
    /// memory from pools.
    allocations: Allocations,
    pub(super) modules: Vec<ModuleHandle>,
    /// Its kernels' output that has not been printed yet.
    pub(super) printed: Printed,
    /// Destroyed streams. A wait for the context also waits for their operations; then they are forgotten.
    pub(super) retired: Vec<Retired>,
}

impl Context {
    /// Returns whether `cuMemAlloc` allocated the memory that starts at `address` in this context.
    pub(super) fn owns(&self, address: u64) -> bool {
        self.allocations.get(address).is_some()
    }
}

impl Engine {
    /// `cuDevicePrimaryCtxRetain`.
    pub fn retain_primary(&self, device: i32) -> CudaResult<ContextHandle> {
        let gpu = self.check_device(device)?;
        let mut state = self.state();
        state.devices[gpu].retained += 1;
        if let Some(primary) = state.devices[gpu].primary {
            return Ok(primary);
        }
        let primary = state.new_context(gpu);
        state.devices[gpu].primary = Some(primary);
        state.apply_primary_flags(gpu);
        Ok(primary)
    }

    /// `cuDevicePrimaryCtxSetFlags`: sets the flags of the primary context, now if it exists, and whenever it is created.
    pub fn set_primary_flags(&self, device: i32, flags: u32) -> CudaResult<()> {
        let gpu = self.check_device(device)?;
        settings::check_flags(flags)?;
        let mut state = self.state();
        state.devices[gpu].primary_flags = flags;
        state.apply_primary_flags(gpu);
        Ok(())
    }

    /// `cuDevicePrimaryCtxGetState`: returns the primary context's flags, and whether it exists.
    pub fn primary_state(&self, device: i32) -> CudaResult<(u32, bool)> {
        let gpu = self.check_device(device)?;
        let state = self.state();
        let primary = state.devices[gpu].primary;
        let flags = primary.and_then(|primary| Some(state.contexts.get(&primary)?.settings.flags));
        Ok((flags.unwrap_or(state.devices[gpu].primary_flags), primary.is_some()))
    }

    /// `cuDevicePrimaryCtxReset`: destroys everything in the primary context. The context itself stays retained, and can be
    /// used as if it were new, even after an error.
    pub fn reset_primary(&self, device: i32) -> CudaResult<()> {
        let gpu = self.check_device(device)?;
        let Some(primary) = self.state().devices[gpu].primary else { return Ok(()) };
        self.tear_down(primary);
        let mut state = self.state();
        if state.devices[gpu].primary == Some(primary) && !state.contexts.contains_key(&primary) {
            state.add_context(primary, gpu);
            state.apply_primary_flags(gpu);
        }
        Ok(())
    }

    /// `cuDevicePrimaryCtxRelease`: the last release destroys the context with everything in it.
    pub fn release_primary(&self, device: i32) -> CudaResult<()> {
        let gpu = self.check_device(device)?;
        let mut state = self.state();
        let Some(primary) = state.devices[gpu].primary else {
            let message =
                format!("the primary context of GPU {gpu} was released more often than it was retained");
            return Err(Error::new(CudaStatus::InvalidContext, message));
        };
        state.devices[gpu].retained -= 1;
        if state.devices[gpu].retained > 0 {
            return Ok(());
        }
        state.devices[gpu].primary = None;
        drop(state);
        self.tear_down(primary);
        Ok(())
    }

    /// `cuCtxCreate`: creates a context in addition to the primary one and makes it current on the calling thread, on
    /// top of the current one.
    pub fn create_context(&self, device: i32, flags: u32) -> CudaResult<ContextHandle> {
        let gpu = self.check_device(device)?;
        settings::check_flags(flags)?;
        let mut state = self.state();
        let context = state.new_context(gpu);
        if let Some(entry) = state.contexts.get_mut(&context) {
            entry.settings.flags = flags;
        }
        state.thread().contexts.push(context);
        Ok(context)
    }

    /// `cuCtxDestroy`: destroys a context with everything in it. If it is current on the calling thread, the one below
    /// it becomes current again; on other threads it stays current, and using it is an error.
    ///
    /// # Errors
    /// Returns `InvalidContext` for a primary context, which is released instead.
    pub fn destroy_context(&self, context: ContextHandle) -> CudaResult<()> {
        let mut state = self.state();
        let device = state.context(context)?.device;
        if state.devices[device].primary == Some(context) {
            let message = format!(
                "the primary context of GPU {device} is released (cuDevicePrimaryCtxRelease), not destroyed"
            );
            return Err(Error::new(CudaStatus::InvalidContext, message));
        }
        state.thread().contexts.pop_if(|current| *current == context);
        drop(state);
        self.tear_down(context);
        Ok(())
    }

    /// Removes a context with its streams, events, modules, and memory.
    fn tear_down(&self, context: ContextHandle) {
        self.flush_printed(context);
        let call_site = CallSite::here();
        let Some((device, variables, owned)) = self.state().destroy_context(context) else { return };
        self.changed.notify_all();
        let of_kernels = self.memory(device).release_heap(HeapOwner(context.0));
        let mut state = self.state();
        of_kernels.into_iter().for_each(|allocation| state.order.forget_allocation(device, allocation));
        drop(state);
        let variables = variables.into_iter().map(|address| (device, address, None));
        let owned = owned
            .range(0..u64::MAX)
            .filter_map(|(address, &id)| Some((self.device_of(address)?, address, Some(id))));
        for (device, address, id) in variables.chain(owned) {
            let mut memory = self.memory(device);
            // The program may have freed the memory, so the address may belong to another allocation by now.
            let is_it = memory
                .range(address, 0)
                .is_ok_and(|(allocation, offset)| offset == 0 && id.is_none_or(|id| allocation.id() == id));
            let freed = is_it.then(|| memory.free(address, call_site.clone()).ok()).flatten();
            drop(memory);
            if let Some(allocation) = freed {
                let mut state = self.state();
                state.order.forget_allocation(device, allocation);
                state.advice.forget(allocation);
            }
        }
    }

    /// `cuCtxPushCurrent`: makes a context current on the calling thread, on top of the current one.
    pub fn push_current(&self, context: ContextHandle) -> CudaResult<()> {
        let mut state = self.state();
        state.context(context)?;
        state.thread().contexts.push(context);
        Ok(())
    }

    /// `cuCtxPopCurrent`: removes the calling thread's current context; the one below it becomes current again.
    ///
    /// # Errors
    /// Returns `InvalidContext` if none is current.
    pub fn pop_current(&self) -> CudaResult<ContextHandle> {
        let popped = self.state().thread().contexts.pop();
        popped.ok_or_else(|| {
            Error::new(CudaStatus::InvalidContext, "no context is current on this thread: none can be popped")
        })
    }

    /// `cuCtxSetCurrent`: replaces the calling thread's current context; `None` removes it.
    pub fn set_current(&self, context: Option<ContextHandle>) -> CudaResult<()> {
        let mut state = self.state();
        if let Some(context) = context {
            state.context(context)?;
        }
        let contexts = &mut state.thread().contexts;
        contexts.pop();
        contexts.extend(context);
        Ok(())
    }

    /// `cuCtxGetCurrent`.
    pub fn current(&self) -> Option<ContextHandle> {
        self.state().thread().contexts.last().copied()
    }

    /// Checks that a context exists.
    ///
    /// # Errors
    /// Returns `InvalidContext` or `ContextIsDestroyed`.
    pub fn check_context(&self, context: ContextHandle) -> CudaResult<()> {
        self.state().context(context).map(|_| ())
    }

    /// Returns the GPU of the calling thread's current context.
    ///
    /// # Errors
    /// Returns `InvalidContext` if no context is current.
    pub fn current_device(&self) -> CudaResult<usize> {
        let mut state = self.state();
        let current = state.current_context()?;
        Ok(state.context(current)?.device)
    }
}

impl State {
    fn new_context(&mut self, device: usize) -> ContextHandle {
        let context = ContextHandle(self.new_handle());
        self.add_context(context, device);
        context
    }

    /// Sets the flags that the program has chosen for a GPU's primary context, if the context exists.
    fn apply_primary_flags(&mut self, device: usize) {
        let Device { primary, primary_flags, .. } = self.devices[device];
        if let Some(entry) = primary.and_then(|primary| self.contexts.get_mut(&primary)) {
            entry.settings.flags = primary_flags;
        }
    }

    fn add_context(&mut self, context: ContextHandle, device: usize) {
        let default_stream = self.new_stream(context, device, true, StreamKind::Legacy);
        let settings = Settings::default();
        self.contexts.insert(
            context,
            Context {
                device,
                default_stream,
                failure: None,
                race: None,
                modules: Vec::new(),
                reported: false,
                settings,
                allocations: NumberMap::default(),
                printed: Printed::default(),
                retired: Vec::new(),
            },
        );
    }

    /// Removes the context and its handles. Returns its GPU, the addresses of its modules' variables, and its own
    /// allocations.
    fn destroy_context(&mut self, context: ContextHandle) -> Option<(usize, Vec<u64>, Allocations)> {
        let Context { device, allocations, modules, .. } = self.contexts.remove(&context)?;
        for stream in self.streams_of_contexts.remove(&context).unwrap_or_default() {
            // The stream's own memory is freed with the context, but no later access to memory from pools can be
            // ordered after the stream.
            self.remove_stream(stream, 0);
        }
        self.streams_of_threads.retain(|&(_, of), _| of != context);
        self.peer_access.retain(|&(from, to)| from != context && to != context);
        let of_context = self.imports.iter().filter(|(_, import)| import.context == Some(context));
        let gone: Vec<u64> = of_context.map(|(&at, _)| at).collect();
        gone.into_iter().for_each(|at| self.forget_import(at));
        self.events.retain(|_, event| event.context != context);
        self.arrays.retain(|_, array| array.context != context);
        self.objects.forget(context);
        let variables = modules.into_iter().flat_map(|module| self.remove_module(module)).collect();
        Some((device, variables, allocations))
    }

    /// Records a `cuMemAlloc` allocation in the current context.
    pub(super) fn own(&mut self, address: u64, allocation: AllocationId) -> CudaResult<()> {
        let context = self.current_context()?;
        if let Some(context) = self.contexts.get_mut(&context) {
            context.allocations.insert(address, allocation);
        }
        Ok(())
    }

    /// Forgets the owner of an address that has been freed.
    pub(super) fn disown(&mut self, address: u64) {
        self.contexts.values_mut().for_each(|context| {
            context.allocations.remove(address);
        });
    }

    pub(super) fn context(&self, context: ContextHandle) -> CudaResult<&Context> {
        self.contexts.get(&context).ok_or_else(|| {
            let known = context.0 != 0 && context.0.is_multiple_of(16) && context.0 / 16 < self.next_handle;
            match known {
                true => Error::new(CudaStatus::ContextIsDestroyed, "the context has been destroyed"),
                false => Error::new(CudaStatus::InvalidContext, format!("{:#x} is not a context", context.0)),
            }
        })
    }

    /// Returns the calling thread's current context if it is alive.
    pub(crate) fn current_context(&mut self) -> CudaResult<ContextHandle> {
        let Some(&context) = self.thread().contexts.last() else {
            let message =
                "no context is current on this thread: bind one first (stream.context().bind_to_thread())";
            return Err(Error::new(CudaStatus::InvalidContext, message));
        };
        self.context(context)?;
        Ok(context)
    }

    /// Returns the primary context of a GPU if it is retained.
    pub(super) fn primary_context(&self, device: usize) -> Option<ContextHandle> {
        self.devices[device].primary
    }

    /// Returns a context's name for a message: just its GPU if it is the primary context.
    pub(super) fn describe(&self, context: ContextHandle) -> String {
        match self.context(context).map(|entry| entry.device) {
            Ok(device) if self.devices[device].primary == Some(context) => format!("GPU {device}"),
            Ok(device) => format!("GPU {device} (context {:#x})", context.0),
            Err(_) => "a context that is gone".to_owned(),
        }
    }

    pub(crate) fn device_of_context(&self, context: ContextHandle) -> CudaResult<usize> {
        Ok(self.context(context)?.device)
    }

    /// Rejects work in a context whose failure has been reported, because a GPU's error is sticky.
    pub(super) fn check_usable(&self, context: ContextHandle) -> CudaResult<()> {
        match self.context(context)? {
            Context { reported: true, failure: Some(failure), .. } => Err(failure.to_error()),
            _ => Ok(()),
        }
    }

    /// Returns a failure in `context` to a call that waited for the context's work.
    pub(super) fn report_failure(&mut self, context: ContextHandle) -> CudaResult<()> {
        if let Some((_, race)) = self.contexts.get_mut(&context).and_then(|context| context.race.take()) {
            self.fail(context, race);
        }
        match self.contexts.get_mut(&context) {
            Some(Context { reported, device, failure: Some(failure), .. }) => {
                *reported = true;
                self.communication.note_gpu_failure(*device, failure);
                Err(failure.to_error())
            }
            _ => Ok(()),
        }
    }

    /// Returns a new stream's name for reports.
    pub(super) fn name_stream(&mut self, device: usize, kind: StreamKind) -> Arc<str> {
        match kind {
            StreamKind::Legacy => "the default stream".into(),
            StreamKind::OfThread => "a thread's default stream".into(),
            StreamKind::Made => {
                self.devices[device].streams += 1;
                format!("stream {}", self.devices[device].streams).into()
            }
            StreamKind::OfEvent => "an event".into(),
            StreamKind::OfGraph(captured) => format!("{captured}{OF_A_GRAPH}").into(),
        }
    }

    /// Records that an operation on `stream` failed.
    pub fn fail_stream(&mut self, stream: StreamHandle, failure: &Failure) {
        if let Some(context) = self.streams.get(&stream).map(|stream| stream.context) {
            self.fail(context, failure.clone());
        }
    }

    /// Records a race that an operation on `stream` takes part in, between calls with these sequence numbers.
    pub(super) fn fail_by_race(
        &mut self,
        stream: StreamHandle,
        calls: [OperationNumber; 2],
        failure: &Failure,
    ) {
        let Some(context) = self.streams.get(&stream).map(|stream| stream.context) else { return };
        self.any_failure = true;
        let Some(context) = self.contexts.get_mut(&context) else { return };
        if context.race.as_ref().is_none_or(|(known, _)| calls < *known) {
            context.race = Some((calls, failure.clone()));
        }
    }

    /// Records that an operation in `context` failed; only the first failure is kept.
    pub(crate) fn fail(&mut self, context: ContextHandle, failure: Failure) {
        self.any_failure = true;
        if let Some(context) = self.contexts.get_mut(&context) {
            context.failure.get_or_insert_with(|| Arc::new(failure));
        }
    }

    pub(super) fn has_failed(&self, context: ContextHandle) -> bool {
        self.contexts.get(&context).is_none_or(|context| context.failure.is_some())
    }

    /// Returns the failure that stopped `context`.
    pub fn failure_of(&self, context: ContextHandle) -> Option<Arc<Failure>> {
        // A collective asks for each rank, each time a rank arrives.
        if !self.any_failure {
            return None;
        }
        self.contexts.get(&context)?.failure.clone()
    }
}
