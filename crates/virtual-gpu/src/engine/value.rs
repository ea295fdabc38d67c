//! Numbers in memory that streams write and wait for: `cuStreamWriteValue32`, `cuStreamWaitValue32`, and their 64-bit
//! and batched forms.
//!
//! A wait is checked whenever an operation is done, and each time that a thread looks for work, because the host can
//! write pinned memory at any time. Work after a wait is ordered after the operation that last wrote the number, and
//! after all that have changed it atomically before.

use super::graph::NodeWork;
use super::run::{Obstacle, Turn};
use super::touched::Touched;
use super::transfer::address_report;
use super::wait::{Wait, given_up};
use super::work::Work;
use super::{Engine, Failure, State};
use crate::report::Report;
use crate::time::Cost;
use virtual_gpu_core::handle::{OpRef, StreamHandle};
use virtual_gpu_core::memory::AllocationId;
use virtual_gpu_core::sorted::SortedSet;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::thread::{ThreadKey, awake};

/// A number in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its address.
    pub at: u64,
    /// Its size in bytes: 4 or 8.
    pub size: usize,
    /// The number that is written, or that it is compared with.
    pub number: u64,
}

/// When a wait for a number is over, with the number in `CUstreamWaitValue_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The number is at least as large; the comparison is cyclic.
    AtLeast = 0,
    /// The number is the same.
    Equal = 1,
    /// The numbers have a common bit.
    And = 2,
    /// There is a bit that neither has.
    Nor = 3,
}

/// What a stream does with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueOperation {
    /// Writes it.
    Write(Value),
    /// Waits for it.
    Wait(Value, Condition),
    /// Orders what comes before and what comes after it. This changes nothing, because each operation sees what the
    /// earlier ones have done.
    Barrier,
}

/// The type of an operation on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// A write of this many bytes.
    Write(usize),
    /// A wait for this many bytes.
    Wait(usize),
    Barrier,
}

impl ValueOperation {
    fn value(&self) -> Option<&Value> {
        match self {
            Self::Write(value) | Self::Wait(value, _) => Some(value),
            Self::Barrier => None,
        }
    }

    pub(super) fn kind(&self) -> ValueKind {
        match self {
            Self::Write(value) => ValueKind::Write(value.size),
            Self::Wait(value, _) => ValueKind::Wait(value.size),
            Self::Barrier => ValueKind::Barrier,
        }
    }
}

impl Condition {
    /// Returns whether a wait for `value` is over when its memory holds `found`.
    fn is_met(self, value: Value, found: u64) -> bool {
        let bits = 8 * value.size as u32;
        let mask = u64::MAX >> (64 - bits);
        match self {
            Self::AtLeast => found.wrapping_sub(value.number) & mask < 1 << (bits - 1),
            Self::Equal => found == value.number & mask,
            Self::And => found & value.number != 0,
            Self::Nor => !(found | value.number) & mask != 0,
        }
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AtLeast => "at least",
            Self::Equal => "exactly",
            Self::And => "a number that has a 1 bit in common with",
            Self::Nor => "a number that has a 0 bit in common with",
        })
    }
}

/// A stream's wait for a number that was not there when it was checked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pending {
    /// How many operations had been completed when it was last checked.
    checked: Option<u64>,
    /// What the memory held then.
    found: u64,
}

/// A check of a stream's wait.
pub(super) struct Check {
    op: OpRef,
    value: Value,
    condition: Condition,
    turn: Turn,
    finished: u64,
}

/// What a check found, and where.
pub(super) struct Found {
    number: u64,
    device: usize,
    allocation: AllocationId,
    offset: u64,
}

impl Engine {
    /// `cuStreamWriteValue32`, `cuStreamWaitValue32`, and their other forms: enqueues all operations, or none of them.
    ///
    /// # Errors
    /// Returns `InvalidValue` for an address that is not a multiple of the number's size, that is in managed memory, or
    /// that is in no allocation.
    pub fn enqueue_values(&self, stream: StreamHandle, operations: &[ValueOperation]) -> CudaResult<()> {
        let call_site = CallSite::here();
        self.check_values(operations, &call_site)?;
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        if state.is_capturing(stream) && !operations.is_empty() {
            return state.add_node(stream, NodeWork::Values(operations.to_vec()), call_site);
        }
        for &operation in operations {
            drop(state.enqueue(stream, Work::Value(operation), Vec::new(), call_site.clone())?);
        }
        drop(self.run_ready(state));
        Ok(())
    }

    /// Checks the addresses of operations.
    pub(super) fn check_values(&self, operations: &[ValueOperation], call_site: &CallSite) -> CudaResult<()> {
        operations
            .iter()
            .filter_map(ValueOperation::value)
            .try_for_each(|value| self.check_value(value, call_site))
    }

    fn check_value(&self, value: &Value, call_site: &CallSite) -> CudaResult<()> {
        let &Value { at, size, .. } = value;
        let invalid = |message| Err(Error::new(CudaStatus::InvalidValue, message));
        if !at.is_multiple_of(size as u64) {
            return invalid(format!(
                "the address of a number of {size} bytes must be a multiple of {size}, not {at:#x}"
            ));
        }
        if self.device_of(at) == Some(self.managed()) && !self.state().is_pinned(at) {
            return invalid(format!(
                "{at:#x} is in managed memory, which streams can't write or wait for in this way"
            ));
        }
        self.check_range("number in", at, size as u64, call_site)
    }

    /// Writes a number whose turn has come.
    pub(super) fn write_value(&self, value: Value, turn: &Turn) -> Result<Vec<Touched>, Failure> {
        let bytes = value.number.to_le_bytes();
        let mut touched = self.write_bytes(value.at, &bytes[..value.size], turn)?;
        touched.iter_mut().flat_map(|it| &mut it.touches).for_each(|touch| touch.atomic = true);
        Ok(touched)
    }

    /// Checks a stream's wait.
    pub(super) fn run_check(&self, check: &Check) -> Result<Found, Failure> {
        let &Check { value: Value { at, size, .. }, ref turn, .. } = check;
        let device = self.device_of(at).unwrap_or(turn.device);
        let memory = self.memory_as_of(device, turn.sequence);
        match memory.range(at, size as u64) {
            Ok((allocation, offset)) => {
                let mut number = [0; 8];
                let bytes = allocation.seen(offset..offset + size as u64);
                number[..size].copy_from_slice(&bytes);
                let (number, allocation) = (u64::from_le_bytes(number), allocation.id());
                Ok(Found { number, device, allocation, offset })
            }
            Err(_) => {
                let headline = "a stream waits for a number in memory that was freed";
                let report = address_report(headline, &memory, at, size as u64, device);
                let report = report.at("enqueued", &turn.call_site);
                Err(Failure::announce(CudaStatus::IllegalAddress, &report))
            }
        }
    }

    /// Ends a stream's wait if it is over.
    pub(super) fn conclude_check(&self, state: &mut State, check: &Check, found: Result<Found, Failure>) {
        let stream = check.op.stream;
        let Some(entry) = state.streams.get(&stream).filter(|entry| entry.is_at(check.op)) else { return };
        let has_failed = state.has_failed(entry.context);
        match found {
            Err(failure) => {
                state.fail_stream(stream, &failure);
                state.finish(stream);
            }
            Ok(found) if has_failed || check.condition.is_met(check.value, found.number) => {
                let view = state.order.view_of_value(found.device, found.allocation, found.offset);
                state.finish_after(stream, &view.unwrap_or_default(), Cost::Nothing);
            }
            Ok(found) => {
                let pending = Pending { checked: Some(check.finished), found: found.number };
                state.value_waits.insert(stream, pending);
            }
        }
    }
}

impl State {
    /// Lets each wait for a number be checked again.
    pub(super) fn recheck_values(&mut self) {
        self.value_waits.values_mut().for_each(|pending| pending.checked = None);
    }

    /// Takes a wait that has not been checked since an operation was done.
    pub(super) fn take_check(&mut self) -> Option<Check> {
        let finished = self.finished;
        loop {
            let mut waits = self.value_waits.entries().iter();
            let stream = waits.find(|(_, pending)| pending.checked != Some(finished))?.0;
            self.value_waits.remove(&stream);
            // The stream is gone if its context was destroyed in the meantime.
            let Some(entry) = self.streams.get(&stream) else { continue };
            let Some(first) = entry.queue.front() else { continue };
            if let Work::Value(ValueOperation::Wait(value, condition)) = first.work {
                let turn = Turn::of(first, entry.device);
                let op = OpRef { stream, number: entry.done + 1 };
                return Some(Check { op, value, condition, turn, finished });
            }
        }
    }

    /// Returns the wait for a number that an operation is ultimately waiting for.
    fn value_ahead(&self, op: OpRef) -> Option<OpRef> {
        match self.last_obstacle(op)? {
            Obstacle::Value(wait) => Some(wait),
            _ => None,
        }
    }

    /// Ends the waits for numbers that keep a blocked thread waiting if nothing can write the numbers: nothing runs,
    /// and every thread of the process is blocked. A lock may block a thread for a moment, so this must hold for a
    /// while. Returns whether it has ended any.
    pub(super) fn end_stuck_values(&mut self, thread: ThreadKey) -> bool {
        let Some(Wait::Ops(ops)) = self.blocked(thread).map(|blocked| &blocked.wait) else { return false };
        let stuck: SortedSet<OpRef> = ops.iter().filter_map(|&op| self.value_ahead(op)).collect();
        if stuck.is_empty() {
            return false;
        }
        let now = self.is_at_rest().then_some((self.finished, self.enqueued));
        if !self.values_stuck.has_lasted(now) {
            return false;
        }
        // The program can write pinned memory in any thread.
        let is_hidden = |op: &OpRef| match self.wait_of(*op) {
            Some((value, _)) => !self.is_pinned(value.at),
            None => false,
        };
        let stuck: SortedSet<OpRef> = stuck.iter().copied().filter(is_hidden).collect();
        self.fail_values(&stuck, None);
        !stuck.is_empty()
    }

    /// Returns whether no operation runs or can run, and no thread can enqueue one at the moment.
    fn is_at_rest(&self) -> bool {
        let is_elsewhere = |work: &Work| matches!(work, Work::Collective(_) | Work::Host(None));
        let mut firsts = self.streams.values().filter(|stream| stream.busy).filter_map(|it| it.queue.front());
        let finished = Some(self.finished);
        !self.shares_with_processes
            && !self.has_waits_elsewhere()
            && self.under_way == 0
            && self.runnable.is_empty()
            && self.host_functions.is_empty()
            && !firsts.any(|first| is_elsewhere(&first.work))
            && self.value_waits.values().all(|pending| pending.checked == finished)
            && awake().is_some_and(|awake| awake <= self.blocked.iter().count())
            && !self.is_a_wait_over()
    }

    /// Returns the number that a stream's first operation waits for.
    fn wait_of(&self, op: OpRef) -> Option<(Value, Condition)> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        match stream.queue.front()?.work {
            Work::Value(ValueOperation::Wait(value, condition)) => Some((value, condition)),
            _ => None,
        }
    }

    /// Ends waits for numbers that have lasted too long. Returns `false` if none of `ops` is waiting for one.
    pub(super) fn give_up_values(&mut self, ops: &[OpRef]) -> bool {
        let late: SortedSet<OpRef> = ops.iter().filter_map(|&op| self.value_ahead(op)).collect();
        self.fail_values(&late, Some(given_up(self.timeout)));
        !late.is_empty()
    }

    fn fail_values(&mut self, waits: &SortedSet<OpRef>, not_proved: Option<String>) {
        for &op in waits {
            let Some((Value { at, size, number }, condition)) = self.wait_of(op) else { continue };
            let found = self.value_waits.remove(&op.stream).unwrap_or_default().found;
            let call_site = self.call_site_of(op).unwrap_or_else(CallSite::unknown);
            let name = self.streams.get(&op.stream).map(|stream| stream.name.clone()).unwrap_or_default();
            let what = if not_proved.is_some() { "has not been written" } else { "nothing will write" };
            let report = Report::new(format!("{name} waits for a number that {what}"))
                .at("waits", &call_site)
                .fact(format!(
                    "the number of {size} bytes at {at:#x} is {found}, but the wait is for {condition} {number}"
                ));
            let report = not_proved.iter().fold(report, |report, fact| report.fact(fact.clone()));
            let report = report.help(
                "on another stream, enqueue the operation that writes the number before a thread waits for this stream",
            );
            let failure = Failure::announce(CudaStatus::LaunchTimeout, &report);
            self.fail_stream(op.stream, &failure);
            self.finish(op.stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_those_of_the_header() {
        let met = |condition: Condition, size, number, found| {
            condition.is_met(Value { at: 0, size, number }, found)
        };
        assert!(met(Condition::AtLeast, 4, 5, 5) && met(Condition::AtLeast, 4, 5, 6));
        assert!(!met(Condition::AtLeast, 4, 5, 4));
        // The comparison ignores an overflow.
        assert!(met(Condition::AtLeast, 4, 0xffff_ffff, 0) && !met(Condition::AtLeast, 4, 0, 0xffff_ffff));
        assert!(met(Condition::AtLeast, 8, u64::MAX, 1) && !met(Condition::AtLeast, 8, 1 << 40, 0));
        assert!(met(Condition::Equal, 8, 7, 7) && !met(Condition::Equal, 4, 7, 8));
        assert!(met(Condition::And, 4, 6, 2) && !met(Condition::And, 4, 6, 1));
        assert!(met(Condition::Nor, 4, 6, 2) && !met(Condition::Nor, 4, 0xffff_0000, 0xffff));
    }
}
