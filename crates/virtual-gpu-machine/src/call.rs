//! Calls to functions that may call themselves.

use crate::block::Block;
use crate::call_stack::{Activation, words_of};
use crate::convergence::{ConvergenceGroup, Next, Readiness};
use crate::fault::{Access as Kind, FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use virtual_gpu_core::memory::POISON;
use virtual_gpu_ptx::instruction::{Call, Operation};

/// The maximum number of 32-bit values that a block's threads may save: 1 GiB in total.
const MOST_SAVED: usize = 1 << 28;

impl Machine<'_> {
    /// Makes the threads of `mask` branch to the start of a function.
    pub(crate) fn call(&mut self, call: &Call, group: &ConvergenceGroup, mask: &Mask) -> Result<Next, Stop> {
        self.check_limit(0, mask)?;
        let kernel = self.kernel;
        let frame = &kernel.frames()[call.frame as usize];
        for thread in mask.threads() {
            let stack = &self.block.stacks[thread];
            let base = stack.calls.last().map_or(u64::from(kernel.local_bytes()), |last| {
                last.base + u64::from(kernel.frames()[last.frame as usize].bytes)
            });
            let saves = words_of(frame);
            if base + u64::from(frame.bytes) > self.local_bytes || self.saved + saves > MOST_SAVED {
                let fault =
                    FaultKind::StackOverflow { size: self.launch.stack, depth: stack.calls.len() as u64 };
                return Err(self.fault(fault, thread));
            }
            let first = self.local_offset(Kind::Write, thread, base, frame.bytes.into())?;
            self.block.local[first..first + frame.bytes as usize].fill(POISON);
            for (&from, &(offset, size)) in call.arguments.iter().zip(&frame.parameters) {
                let from = self.address_of(from, thread);
                self.copy_local(thread, from, base + u64::from(offset), size)?;
            }
            let Block { files, stacks, .. } = &mut *self.block;
            stacks[thread].save(files, frame, thread);
            files.set_long(frame.base, thread, base);
            stacks[thread].calls.push(Activation { frame: call.frame, pc: self.pc, base });
            self.saved += saves;
        }
        Ok(Next::branch(call.target as usize, group, mask))
    }

    /// Makes each thread of `mask` continue after its last call.
    pub(crate) fn return_from_call(&mut self, group: &ConvergenceGroup, mask: &Mask) -> Result<Next, Stop> {
        let kernel = self.kernel;
        let mut targets: Vec<(usize, Mask)> = Vec::new();
        for thread in mask.threads() {
            let Block { files, stacks, .. } = &mut *self.block;
            let Some(Activation { frame, pc, base }) = stacks[thread].calls.pop() else { continue };
            let frame = &kernel.frames()[frame as usize];
            stacks[thread].restore(files, frame, thread);
            self.saved -= words_of(frame);
            if let Operation::Call(call) = &kernel.code()[pc].operation {
                for (&to, &(offset, size)) in call.results.iter().zip(&frame.results) {
                    let to = self.address_of(to, thread);
                    self.copy_local(thread, base + u64::from(offset), to, size)?;
                }
            }
            match targets.iter_mut().find(|(target, _)| *target == pc + 1) {
                Some((_, threads)) => *threads = threads.or(&Mask::of(thread)),
                None => targets.push((pc + 1, Mask::of(thread))),
            }
        }
        if let [(target, threads)] = targets[..]
            && threads == group.mask
        {
            return Ok(Next::Jump(target));
        }
        let ready = |(pc, mask)| ConvergenceGroup { pc, mask, state: Readiness::Ready };
        self.block.groups.extend(targets.into_iter().map(ready));
        Ok(Next::Leave(*mask))
    }

    fn copy_local(&mut self, thread: usize, from: u64, to: u64, len: u32) -> Result<(), Stop> {
        let len = u64::from(len);
        let from = self.local_offset(Kind::Read, thread, from, len)?;
        let to = self.local_offset(Kind::Write, thread, to, len)?;
        self.block.local.copy_within(from..from + len as usize, to);
        Ok(())
    }
}
