//! Contexts: a GPU's primary one and others, and which of them is current on which thread.

use std::sync::Arc;

use super::{Engine, Failure, State, StreamHandle};
use crate::site::Site;
use crate::status::{CudaResult, CudaStatus, Error};

/// A `CUcontext`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextHandle(pub u64);

/// A GPU's share of the engine's state.
#[derive(Default)]
pub(super) struct Device {
    primary: Option<ContextHandle>,
    retained: u32,
    /// Streams made on it, for their names.
    streams: u32,
}

pub(super) struct Context {
    pub(super) device: usize,
    /// The legacy default stream, made when the context is.
    pub(super) default_stream: StreamHandle,
    /// The first operation that failed. Everything after it in this context fails with it, as on a GPU.
    pub(super) failure: Option<Arc<Failure>>,
    /// Whether a thread has been told of the failure. Before that, only calls that wait say it, so that it does
    /// not depend on the threads' timing which call does.
    pub(super) told: bool,
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
        Ok(primary)
    }

    /// `cuDevicePrimaryCtxRelease`: the last release destroys the context with all that is in it.
    pub fn release_primary(&self, device: i32) -> CudaResult<()> {
        let gpu = self.check_device(device)?;
        let mut state = self.state();
        let Some(primary) = state.devices[gpu].primary else {
            let message = format!("the primary context of GPU {gpu} was released more often than retained");
            return Err(Error::new(CudaStatus::InvalidContext, message));
        };
        state.devices[gpu].retained -= 1;
        if state.devices[gpu].retained > 0 {
            return Ok(());
        }
        state.devices[gpu].primary = None;
        let allocated = state.destroy_context(primary);
        drop(state);
        self.changed.notify_all();
        let mut memory = self.memory(gpu);
        for address in allocated {
            // Freed already where the program freed it.
            let _ = memory.free(address, Site::unknown());
        }
        Ok(())
    }

    /// `cuCtxSetCurrent`: replaces the calling thread's current context; `None` takes it away.
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

    /// The GPU of the calling thread's current context.
    ///
    /// # Errors
    /// `InvalidContext` where no context is current.
    pub fn current_device(&self) -> CudaResult<usize> {
        let mut state = self.state();
        let current = state.current_context()?;
        Ok(state.context(current)?.device)
    }
}

impl State {
    fn new_context(&mut self, device: usize) -> ContextHandle {
        let context = ContextHandle(self.new_handle());
        let default_stream = self.new_stream(context, device, true, true);
        self.contexts.insert(context, Context { device, default_stream, failure: None, told: false });
        context
    }

    /// Takes the context and its handles away; returns the addresses that its modules' variables hold.
    fn destroy_context(&mut self, context: ContextHandle) -> Vec<u64> {
        self.contexts.remove(&context);
        let streams: Vec<_> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.context == context)
            .map(|(&key, _)| key)
            .collect();
        for stream in streams {
            self.streams.remove(&stream);
            // What waited for it goes on.
            let freed = self.waiting.remove(&stream).unwrap_or_default();
            self.runnable.extend(freed);
        }
        self.events.retain(|_, event| event.context != context);
        let of_context: Vec<_> = self
            .modules
            .iter()
            .filter(|(_, module)| module.context == context)
            .map(|(&key, _)| key)
            .collect();
        of_context.into_iter().flat_map(|module| self.remove_module(module)).collect()
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

    /// The calling thread's current context, alive.
    pub(crate) fn current_context(&mut self) -> CudaResult<ContextHandle> {
        let Some(&context) = self.thread().contexts.last() else {
            let message =
                "no context is current on this thread: bind one first (stream.context().bind_to_thread())";
            return Err(Error::new(CudaStatus::InvalidContext, message));
        };
        self.context(context)?;
        Ok(context)
    }

    pub(crate) fn device_of_context(&self, context: ContextHandle) -> CudaResult<usize> {
        Ok(self.context(context)?.device)
    }

    /// Refuses work in a context whose failure has been told: a GPU's error is sticky.
    pub(super) fn check_usable(&self, context: ContextHandle) -> CudaResult<()> {
        match self.context(context)? {
            Context { told: true, failure: Some(failure), .. } => Err(failure.to_error()),
            _ => Ok(()),
        }
    }

    /// Tells the caller of a failure in `context`, from a call that waited for its work.
    pub(super) fn tell(&mut self, context: ContextHandle) -> CudaResult<()> {
        match self.contexts.get_mut(&context) {
            Some(Context { told, failure: Some(failure), .. }) => {
                *told = true;
                Err(failure.to_error())
            }
            _ => Ok(()),
        }
    }

    /// A new stream's name in reports.
    pub(super) fn name_stream(&mut self, device: usize, legacy: bool) -> Arc<str> {
        if legacy {
            return "the default stream".into();
        }
        self.devices[device].streams += 1;
        format!("stream {}", self.devices[device].streams).into()
    }

    /// Remembers that an operation in `stream` failed.
    pub(crate) fn fail_stream(&mut self, stream: StreamHandle, failure: &Failure) {
        if let Some(context) = self.streams.get(&stream).map(|stream| stream.context) {
            self.fail(context, failure.clone());
        }
    }

    /// Remembers that an operation of `context` failed; the first failure stays.
    pub(crate) fn fail(&mut self, context: ContextHandle, failure: Failure) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.failure.get_or_insert_with(|| Arc::new(failure));
        }
    }

    pub(super) fn has_failed(&self, context: ContextHandle) -> bool {
        self.contexts.get(&context).is_none_or(|context| context.failure.is_some())
    }

    /// The report of the failure that stopped `context`.
    pub(crate) fn failure_of(&self, context: ContextHandle) -> Option<Arc<Failure>> {
        self.contexts.get(&context)?.failure.clone()
    }
}
