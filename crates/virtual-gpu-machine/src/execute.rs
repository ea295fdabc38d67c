//! Executes one operation for the threads in a mask.

use crate::arithmetic::{
    carry, compare, convert, double, half, long, mixed, predicate, select, single, word,
};
use crate::convergence::{ConvergenceGroup, Next};
use crate::fault::{FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::{FULL, Mask, bits};
use crate::memory::address::concrete;
use crate::order::Order;
use virtual_gpu_ptx::instruction::{Clock, Operation, Predicate, Scope, Slot, Space, Value};

impl Machine<'_> {
    /// Executes `operation` for the threads in `mask`: the threads in `group` for which the guard is true.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        operation: &Operation,
        group: &ConvergenceGroup,
        mask: &Mask,
    ) -> Result<Next, Stop> {
        match operation {
            Operation::Branch { target } => return Ok(Next::branch(*target as usize, group, mask)),
            Operation::Load(access) => self.load(access, mask)?,
            Operation::Store(access) => self.store(access, mask)?,
            Operation::Barrier(barrier) => return self.barrier(barrier, mask),
            Operation::Word { .. }
            | Operation::Long { .. }
            | Operation::Widen { .. }
            | Operation::Float32 { .. }
            | Operation::Compare { .. } => self.compute(operation, mask),
            _ => return self.execute_other(operation, group, mask),
        }
        Ok(Next::Follow)
    }

    /// Executes any other operation. It is a function of its own so that the common ones need little of the stack.
    #[inline(never)]
    fn execute_other(
        &mut self,
        operation: &Operation,
        group: &ConvergenceGroup,
        mask: &Mask,
    ) -> Result<Next, Stop> {
        match operation {
            Operation::Call(call) => return self.call(call, group, mask),
            Operation::Return => return self.return_from_call(group, mask),
            Operation::Exit => {
                self.block.exits.push((group.pc, *mask));
                self.leave_cluster(mask);
                return Ok(Next::Leave(*mask));
            }
            Operation::Trap => {
                if let Some(thread) = mask.first() {
                    return Err(self.fault(FaultKind::Trap, thread));
                }
            }
            Operation::ClusterBarrier(barrier) => return self.cluster_barrier(*barrier, group, mask),
            Operation::MapAddress { d, a, b, is_generic } => {
                self.map_address((*d, *a), *b, *is_generic, mask)?;
            }
            Operation::BlockOfAddress { d, a } => self.block_of_address(*d, *a, mask)?,
            Operation::StoreAsync(store) => self.store_async(store, mask)?,
            Operation::Mbarrier(mbarrier) => self.mbarrier(mbarrier, mask)?,
            Operation::Atomic(atomic) => self.atomic(atomic, mask)?,
            Operation::WarpBarrier { .. }
            | Operation::Shuffle { .. }
            | Operation::Vote { .. }
            | Operation::Match { .. }
            | Operation::Redux { .. }
            | Operation::Elect { .. }
            | Operation::LoadMatrices(_)
            | Operation::StoreMatrices(_)
            | Operation::TransposeMatrix { .. }
            | Operation::MultiplyMatrices(_)
            | Operation::LoadFragment(_)
            | Operation::StoreFragment(_)
            | Operation::MultiplyFragments(_) => return self.warp_operation(operation, group, mask),
            Operation::CopyToShared { to, from, bytes, present } => {
                self.begin_copies(*to, *from, usize::from(*bytes), *present, mask)?;
            }
            Operation::BulkCopy(copy) => self.bulk_copy(copy, mask)?,
            Operation::TensorCopy(copy) => self.tensor_copy(copy, mask)?,
            Operation::BulkReduction(reduction) => self.bulk_reduction(reduction, mask)?,
            Operation::FetchTexture(fetch) => self.fetch_texture(fetch, mask)?,
            Operation::QueryObject(query) => self.query_object(query, mask)?,
            Operation::AccessSurface(access) => self.access_surface(access, mask)?,
            Operation::CommitCopies => self.commit_copies(mask),
            Operation::WaitForCopies { pending } => self.end_copies(*pending, mask),
            Operation::ActiveMask { d } => self.active_mask(*d, mask),
            Operation::ReadClock { clock, shift, d } => self.read_clock(*clock, *shift, *d, mask),
            Operation::Sleep { nanoseconds } => self.sleep(*nanoseconds, group, mask),
            Operation::IsSpace { space, in_cluster, d, a } => {
                self.is_space(*space, *in_cluster, *d, *a, mask);
            }
            Operation::Fence(fence) => {
                self.observe_fence(fence, mask);
                self.order(Order::Fence(*mask, fence.scope > Scope::Block));
            }
            Operation::System(call) => self.system_call(**call, mask)?,
            Operation::Nothing => {}
            _ => self.compute_other(operation, mask),
        }
        Ok(Next::Follow)
    }

    /// Executes a common operation that uses only registers.
    #[inline(always)]
    fn compute(&mut self, operation: &Operation, mask: &Mask) {
        let files = &mut self.block.files;
        let (mask, whole) = (&mask.0[..files.chunks], self.is_whole);
        match *operation {
            Operation::Word { op, d, a, b, c } => {
                let (mask, spans) = files.words.prepare_operation([d, a, b, c], mask, whole);
                word::execute(op, &mut files.words, mask, spans);
            }
            Operation::Long { op, d, a, b, c } => {
                let (mask, spans) = files.longs.prepare_operation([d, a, b, c], mask, whole);
                long::execute(op, &mut files.longs, mask, spans);
            }
            Operation::Widen { op, d, a, b, c } => {
                let is_same = files.words.is_same(a) && files.words.is_same(b) && files.longs.is_same(c);
                let mask = files.longs.prepare(d, mask, whole && is_same);
                mixed::widen(op, files, mask, [d, a, b, c]);
            }
            Operation::Float32 { op, mode, d, a, b, c } => {
                let (mask, spans) = files.words.prepare_operation([d, a, b, c], mask, whole);
                single::execute(op, mode, &mut files.words, mask, spans);
            }
            Operation::Compare { comparison, kind, a, b, combine, c, d, complement } => {
                let what = compare::Compare { comparison, kind, a, b, combine, c, d, complement };
                compare::compare(what, files, mask);
            }
            _ => {}
        }
    }

    /// Executes any other operation that uses only registers.
    fn compute_other(&mut self, operation: &Operation, mask: &Mask) {
        let files = &mut self.block.files;
        let (mask, whole) = (&mask.0[..files.chunks], self.is_whole);
        match *operation {
            Operation::Half { op, signed, d, a, b, c } => {
                let (mask, spans) = files.words.prepare_operation([d, a, b, c], mask, whole);
                word::execute_half(op, signed, &mut files.words, mask, spans);
            }
            Operation::LongWord { op, d, a, b, c } => {
                let is_same = files.longs.is_same(a) && files.words.is_same(b) && files.words.is_same(c);
                let mask = files.longs.prepare(d, mask, whole && is_same);
                mixed::shift(op, files, mask, [d, a, b, c]);
            }
            Operation::Narrow { op, d, a } => {
                let mask = files.words.prepare(d, mask, whole && files.longs.is_same(a));
                mixed::narrow(op, files, mask, d, a);
            }
            Operation::InsertWord { d, a, b, position, length } => {
                word::insert(files, mask, [d, a, b, position, length]);
            }
            Operation::InsertLong { d, a, b, position, length } => {
                long::insert(files, mask, [d, a, b, position, length]);
            }
            Operation::Float64 { op, mode, d, a, b, c } => {
                let (mask, spans) = files.longs.prepare_operation([d, a, b, c], mask, whole);
                double::execute(op, mode, &mut files.longs, mask, spans);
            }
            Operation::Float16 { op, kind, mode, d, a, b, c } => {
                let (mask, spans) = files.words.prepare_operation([d, a, b, c], mask, whole);
                half::execute(op, kind, mode, &mut files.words, mask, spans);
            }
            Operation::Convert { conversion, d, a } => {
                let mask = files.prepare(d, mask, whole && files.is_same(a));
                convert::execute(conversion, files, mask, d, a);
            }
            Operation::Carry(what) => carry::execute(what, files, mask),
            Operation::TestNumber { kind, d, a } => predicate::test_number(kind, files, mask, d, a),
            Operation::SelectWord { d, a, b, condition } => {
                let mask = files.words.prepare(d, mask, false);
                select::select_words(files, mask, [d, a, b], condition);
            }
            Operation::SelectLong { d, a, b, condition } => {
                let mask = files.longs.prepare(d, mask, false);
                select::select_longs(files, mask, [d, a, b], condition);
            }
            Operation::Logic { op, d, a, b } => predicate::logic(op, files, mask, d, [a, b]),
            Operation::SetPredicate { d, value } => {
                let bits = if value { FULL } else { 0 };
                for (chunk, &active) in mask.iter().enumerate() {
                    files.set_predicate(d, chunk, bits, active);
                }
            }
            _ => {}
        }
    }

    fn read_clock(&mut self, clock: Clock, shift: u8, d: Value, mask: &Mask) {
        self.changes += 1;
        self.clock_reads += 1;
        let start = match clock {
            Clock::Instructions => 0,
            Clock::GlobalTimer => self.launch.start_ns,
        };
        for thread in mask.threads() {
            let now = start.wrapping_add(self.block.clocks[thread] + self.pending) >> shift;
            match d {
                Value::Word(d) => self.block.files.set_word(d, thread, now as u32),
                Value::Long(d) => self.block.files.set_long(d, thread, now),
            }
        }
    }

    /// Puts threads to sleep: their clocks continue, but they execute nothing.
    fn sleep(&mut self, nanoseconds: Slot, group: &ConvergenceGroup, mask: &Mask) {
        self.settle(&group.mask);
        for thread in mask.threads() {
            self.block.clocks[thread] += u64::from(self.block.files.word_of(nanoseconds, thread));
        }
    }

    fn is_space(&mut self, space: Space, in_cluster: bool, d: Predicate, a: Slot, mask: &Mask) {
        for chunk in 0..self.block.files.chunks {
            let mut found = 0;
            for i in bits(mask.0[chunk]) {
                let address = self.block.files.longs[self.block.files.long(a).at(chunk)].0[i];
                let (actual, within) = concrete(Space::Generic, address);
                let is_const = space == Space::Const && actual == Space::Global;
                let is_own = || self.owner(within).is_some_and(|(rank, _)| rank == self.cluster.rank);
                let is_here = space != Space::Shared || in_cluster || is_own();
                found |= u16::from((actual == space || is_const) && is_here) << i;
            }
            self.block.files.set_predicate(d, chunk, found, mask.0[chunk]);
        }
    }
}
