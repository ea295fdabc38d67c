//! Calls of functions that may call themselves. A call saves the registers that the function uses, and gives it a frame on
//! the thread's stack, which lies behind the thread's other local memory.

use super::block::{Machine, Stop};
use super::execute::branch;
use super::fault::{Access as Kind, FaultKind};
use super::file::{Mask, WIDTH};
use super::schedule::{Group, Next, Readiness};
use virtual_gpu_core::memory::POISON;
use virtual_gpu_ptx::Frame;
use virtual_gpu_ptx::instruction::{Address, Call, Operation, Predicate, Slot};

/// 32-bit values that the threads of a block may save: 1 GiB.
const MOST_SAVED: usize = 1 << 28;

/// A thread's calls that have not returned.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CallStack {
    calls: Vec<Activation>,
    /// The callers' registers.
    saved: Vec<u32>,
}

impl CallStack {
    pub(super) fn saved_words(&self) -> usize {
        self.saved.len()
    }
}

/// A call under way.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Activation {
    /// Which of the kernel's frames.
    frame: u32,
    /// The call's instruction.
    pc: usize,
    /// The frame's first byte in local memory.
    base: u64,
}

impl Machine<'_> {
    /// The lanes of `mask` go to a function's start.
    pub(super) fn call(&mut self, call: &Call, group: &Group, mask: &Mask) -> Result<Next, Stop> {
        self.check_limit(0, mask)?;
        let kernel = self.kernel;
        let frame = &kernel.frames()[call.frame as usize];
        for lane in mask.lanes() {
            let stack = &self.block.stacks[lane];
            let base = stack.calls.last().map_or(u64::from(kernel.local_bytes()), |last| {
                last.base + u64::from(kernel.frames()[last.frame as usize].bytes)
            });
            let saves = saved_words(frame);
            if base + u64::from(frame.bytes) > self.local_bytes || self.saved + saves > MOST_SAVED {
                let fault =
                    FaultKind::StackOverflow { size: self.launch.stack, depth: stack.calls.len() as u64 };
                return Err(self.fault(fault, lane));
            }
            let place = self.local_offset(Kind::Write, lane, base, frame.bytes.into())?;
            self.block.local[place..place + frame.bytes as usize].fill(POISON);
            for (&from, &(offset, size)) in call.arguments.iter().zip(&frame.parameters) {
                let from = self.address_of(from, lane);
                self.copy_local(lane, from, base + u64::from(offset), size)?;
            }
            self.save(frame, lane);
            self.block.files.set_long(frame.base, lane, base);
            let activation = Activation { frame: call.frame, pc: self.pc, base };
            self.block.stacks[lane].calls.push(activation);
        }
        Ok(branch(call.target as usize, group, mask))
    }

    /// Each lane of `mask` goes behind its last call.
    pub(super) fn return_from_call(&mut self, group: &Group, mask: &Mask) -> Result<Next, Stop> {
        let kernel = self.kernel;
        let mut targets: Vec<(usize, Mask)> = Vec::new();
        for lane in mask.lanes() {
            let Some(Activation { frame, pc, base }) = self.block.stacks[lane].calls.pop() else { continue };
            let frame = &kernel.frames()[frame as usize];
            self.restore(frame, lane);
            if let Operation::Call(call) = &kernel.code()[pc].operation {
                for (&to, &(offset, size)) in call.results.iter().zip(&frame.results) {
                    let to = self.address_of(to, lane);
                    self.copy_local(lane, base + u64::from(offset), to, size)?;
                }
            }
            match targets.iter_mut().find(|(target, _)| *target == pc + 1) {
                Some((_, lanes)) => *lanes = lanes.or(&Mask::of(lane)),
                None => targets.push((pc + 1, Mask::of(lane))),
            }
        }
        if let [(target, lanes)] = targets[..]
            && lanes == group.mask
        {
            return Ok(Next::Jump(target));
        }
        let groups = targets.into_iter().map(|(pc, mask)| Group { pc, mask, state: Readiness::Ready });
        self.block.groups.extend(groups);
        Ok(Next::Leave(*mask))
    }

    fn copy_local(&mut self, lane: usize, from: u64, to: u64, len: u32) -> Result<(), Stop> {
        let len = u64::from(len);
        let from = self.local_offset(Kind::Read, lane, from, len)?;
        let to = self.local_offset(Kind::Write, lane, to, len)?;
        self.block.local.copy_within(from..from + len as usize, to);
        Ok(())
    }

    fn save(&mut self, frame: &Frame, lane: usize) {
        let super::block::Block { files, stacks, .. } = &mut *self.block;
        let saved = &mut stacks[lane].saved;
        for word in frame.words.clone() {
            saved.push(files.word_of(Slot::register(word), lane));
        }
        for long in frame.longs.clone() {
            let value = files.long_of(Slot::register(long), lane);
            saved.extend([value as u32, (value >> 32) as u32]);
        }
        for predicate in frame.predicates.clone() {
            let bits = files.predicates[files.predicate(Predicate(predicate)) + lane / WIDTH];
            saved.push(u32::from(bits >> (lane % WIDTH) & 1));
        }
        self.saved += saved_words(frame);
    }

    fn restore(&mut self, frame: &Frame, lane: usize) {
        let super::block::Block { files, stacks, .. } = &mut *self.block;
        let saved = &mut stacks[lane].saved;
        let mut values = saved.split_off(saved.len() - saved_words(frame)).into_iter();
        let mut next = || values.next().unwrap_or(0);
        for word in frame.words.clone() {
            files.set_word(Slot::register(word), lane, next());
        }
        for long in frame.longs.clone() {
            let value = u64::from(next()) | u64::from(next()) << 32;
            files.set_long(Slot::register(long), lane, value);
        }
        for predicate in frame.predicates.clone() {
            let bits = if next() != 0 { u16::MAX } else { 0 };
            files.set_predicate(Predicate(predicate), lane / WIDTH, bits, 1 << (lane % WIDTH));
        }
        self.saved -= saved_words(frame);
    }

    /// Up to eight bytes of a variable in local memory.
    pub(super) fn local_value(&self, lane: usize, address: Address, len: usize) -> Result<u64, Stop> {
        let at = self.local_offset(Kind::Read, lane, self.address_of(address, lane), len as u64)?;
        let mut value = [0; 8];
        value[..len].copy_from_slice(&self.block.local[at..at + len]);
        Ok(u64::from_le_bytes(value))
    }
}

/// 32-bit values that a call saves.
fn saved_words(frame: &Frame) -> usize {
    frame.words.len() + 2 * frame.longs.len() + frame.predicates.len()
}
