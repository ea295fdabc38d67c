//! Reports the memory that a program leaves allocated when it ends.

use std::cmp::Reverse;
use std::sync::TryLockError;

use super::Engine;
use crate::config::Checks;
use crate::report::{Report, size};
use virtual_gpu_core::sorted::{SortedMap, SortedSet};
use virtual_gpu_core::source_location::{CallSite, SourceLine};

/// The maximum number of source lines that are listed.
const LISTED: usize = 8;

/// The buffers that a source line has allocated in one GPU's memory or in managed memory.
struct Leak {
    call_site: CallSite,
    buffers: u64,
    bytes: u64,
}

impl Engine {
    /// Returns a report about the device and managed memory that is still allocated when the process ends, grouped by
    /// the lines that allocated it, most bytes first. Returns `None` if there is no such memory, if a GPU has failed
    /// (which has been reported), or if a thread is still working, because its buffers may be in use.
    pub fn leak_report(&self) -> Option<Report> {
        if self.config().checks == Checks::Off {
            return None;
        }
        let variables = {
            let state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            if state.any_failure {
                return None;
            }
            let mut variables = SortedSet::default();
            for module in state.modules.values() {
                for &address in module.globals.iter() {
                    variables.insert(address);
                }
            }
            // Other processes have allocated these.
            for &address in state.imports.keys() {
                variables.insert(address);
            }
            variables
        };
        let mut leaks: SortedMap<(usize, Option<SourceLine>), Leak> = SortedMap::default();
        let mut all_of_kernels = true;
        for (device, memory) in self.memories.iter().enumerate() {
            let Ok(memory) = memory.try_lock() else { return None };
            for allocation in
                memory.allocations().filter(|it| !variables.contains(&it.base()) && !it.id().is_pinned())
            {
                let call_site = allocation.call_site();
                all_of_kernels &= allocation.id().is_of_kernels();
                let leak = leaks.get_or_insert_with((device, call_site.line()), || Leak {
                    call_site: call_site.clone(),
                    buffers: 0,
                    bytes: 0,
                });
                leak.buffers += 1;
                leak.bytes += allocation.size();
            }
        }
        let bytes: u64 = leaks.values().map(|leak| leak.bytes).sum();
        if leaks.is_empty() {
            return None;
        }
        let mut report = Report::new(format!("{} still allocated when the program ends", size(bytes)));
        let mut leaks: Vec<_> = leaks.entries().iter().collect();
        leaks.sort_by_key(|(_, leak)| Reverse(leak.bytes));
        for ((device, _), Leak { call_site, buffers, bytes }) in leaks.iter().take(LISTED) {
            let memory = self.name_of(*device);
            let what = match buffers {
                1 => format!("a buffer of {} {memory}, allocated here", size(*bytes)),
                _ => format!("{buffers} buffers {memory}, {} in total, allocated here", size(*bytes)),
            };
            report = report.at(what, call_site);
        }
        if let Some(more @ 1..) = leaks.len().checked_sub(LISTED) {
            report = report.fact(format!("and at {more} more lines"));
        }
        Some(report.help(match all_of_kernels {
            true => "in a kernel, free each pointer that `malloc` or `new` returned in a kernel",
            false => {
                "drop what owns them: std::process::exit, mem::forget, leak(), and statics keep them allocated"
            }
        }))
    }
}
