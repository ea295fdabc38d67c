//! When memory that belongs to a graph is allocated: its address is fixed, but only launches allocate it.

use super::device::BEFORE_ALL;
use crate::handle::OperationNumber;
use crate::source_location::CallSite;
use crate::sync::Mutex;

/// The operations that can access a graph's memory: for each launch that allocates it, those from the allocation to the
/// free.
#[derive(Debug, Default)]
pub struct Lives {
    all: Mutex<Vec<Life>>,
}

#[derive(Debug)]
struct Life {
    /// The operation that allocates the memory.
    from: OperationNumber,
    /// The call or operation that frees it.
    freed: Option<(OperationNumber, CallSite)>,
}

impl Lives {
    /// Begins a life with the operation that allocates the memory. Forgets lives that ended before the operation
    /// `oldest`, except for the last one, which reports may name.
    pub fn begin(&self, from: OperationNumber, oldest: OperationNumber) {
        let mut all = self.lock();
        let over = all.iter().take_while(|life| life.freed.as_ref().is_some_and(|freed| freed.0 < oldest));
        let forgotten = over.count().saturating_sub(1);
        all.drain(..forgotten);
        all.push(Life { from, freed: None });
    }

    /// Ends the last life.
    pub fn end(&self, by: OperationNumber, call_site: CallSite) {
        if let Some(life) = self.lock().last_mut() {
            life.freed.get_or_insert((by, call_site));
        }
    }

    /// Returns whether an operation can access the memory.
    pub(super) fn include(&self, operation: OperationNumber) -> bool {
        let is_in = |life: &Life| {
            life.from <= operation && life.freed.as_ref().is_none_or(|freed| operation < freed.0)
        };
        operation == BEFORE_ALL || self.lock().iter().any(is_in)
    }

    /// Returns the last free before an operation.
    pub(super) fn freed_before(&self, operation: OperationNumber) -> Option<CallSite> {
        let all = self.lock();
        let mut freed = all.iter().rev().filter_map(|life| life.freed.as_ref());
        freed.find(|(by, _)| *by <= operation).map(|(_, call_site)| call_site.clone())
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, Vec<Life>> {
        self.all.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_operations_between_the_allocation_and_the_free_find_the_memory() {
        let lives = Lives::default();
        let finds = |number| lives.include(OperationNumber(number));
        assert!(!finds(7) && finds(BEFORE_ALL.0));
        lives.begin(OperationNumber(5), OperationNumber(5));
        assert!(!finds(4) && finds(5) && finds(u64::MAX));
        lives.end(OperationNumber(8), CallSite::unknown());
        assert!(finds(7) && !finds(8) && !finds(u64::MAX));
        assert!(lives.freed_before(OperationNumber(7)).is_none());
        assert!(lives.freed_before(OperationNumber(8)).is_some());
        lives.begin(OperationNumber(10), OperationNumber(6));
        assert!(finds(7) && !finds(9) && finds(10));
        lives.end(OperationNumber(11), CallSite::unknown());
        lives.begin(OperationNumber(12), OperationNumber(12));
        assert_eq!(lives.lock().len(), 2, "the life of 5..8 is over for all operations");
    }
}
