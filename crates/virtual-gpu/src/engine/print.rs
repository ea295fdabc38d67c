//! Kernel output, which is kept in the context and printed when CUDA would print it.
//!
//! "The buffer is flushed only when one of these actions is performed: kernel launch, synchronization, blocking copies,
//! module loading and unloading, context destruction, prior to a stream callback" ("CUDA C++ Programming Guide",
//! formatted output). Output that has not been flushed when the program ends is lost, as with CUDA.

use std::io::Write;

use super::{ContextHandle, Engine, State, lock};
use virtual_gpu_core::sync::Mutex;
use virtual_gpu_machine::Printed;

/// Held while a buffer is taken and written, so that output is written in the order in which it was taken.
static OUTPUT: Mutex<()> = Mutex::new(());

impl Engine {
    /// Writes what a context's kernels have printed to standard output.
    pub(super) fn flush_printed(&self, context: ContextHandle) {
        let has_printed =
            |state: &State| state.contexts.get(&context).is_some_and(|it| !it.printed.is_empty());
        if !has_printed(&self.state()) {
            return;
        }
        let _turn = lock(&OUTPUT);
        let taken = self.state().contexts.get_mut(&context).map(|it| std::mem::take(&mut it.printed));
        let text = taken.unwrap_or_default().concat();
        // Standard output may be closed.
        let mut output = std::io::stdout().lock();
        let _ = output.write_all(&text).and_then(|()| output.flush());
    }

    /// Like [`Self::flush_printed`], for the calling thread's current context, if it has one.
    pub(super) fn flush_current(&self) {
        let current = self.state().current_context();
        if let Ok(context) = current {
            self.flush_printed(context);
        }
    }
}

impl State {
    /// Adds a kernel's output to its context's buffer of `capacity` bytes.
    pub(super) fn add_printed(&mut self, context: ContextHandle, printed: Printed, capacity: u64) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.printed.append(printed, capacity);
        }
    }
}
