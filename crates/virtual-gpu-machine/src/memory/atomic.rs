//! Atomics: a block's threads execute them one after another, lowest thread first.

use ::half::{bf16, f16};

use super::access::read;
use super::address::concrete;
use super::bytes::Location;
use crate::arithmetic::half;
use crate::arithmetic::rounding::{add_odd, to_brain, to_half};
use crate::arithmetic::single::{canonical, flush};
use crate::fault::{Access as Kind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use virtual_gpu_core::memory::DeviceMemory;
use virtual_gpu_ptx::instruction::{
    Atomic, AtomicOp, AtomicType, FloatMode, FloatOp, FloatType, Rounding, Space, Value,
};

impl Machine<'_> {
    /// Executes `atom` and `red`.
    pub(crate) fn atomic(&mut self, atomic: &Atomic, mask: &Mask) -> Result<(), Stop> {
        let size = usize::from(atomic.kind.bytes());
        self.looks += 1;
        self.atomics += if atomic.space == Space::Shared { 0 } else { mask.count() };
        for thread in mask.threads() {
            let address = self.address_of(atomic.address, thread);
            let (a, b) = (self.value_of(atomic.a, thread), atomic.b.map_or(0, |b| self.value_of(b, thread)));
            if usize::from(atomic.align) > size {
                let (space, address) = concrete(atomic.space, address);
                self.check_alignment(space, Kind::Atomic, thread, address, atomic.align.into())?;
            }
            if self.postpone(atomic, thread, address, [a, b])? {
                continue;
            }
            self.scope = Some(atomic.scope);
            let old = self.update(atomic.space, thread, address, (atomic.op, atomic.kind), [a, b])?;
            self.scope = None;
            match atomic.destination {
                Some(Value::Word(slot)) => self.block.files.set_word(slot, thread, old as u32),
                Some(Value::Long(slot)) => self.block.files.set_long(slot, thread, old),
                None => {}
            }
        }
        Ok(())
    }

    /// Postpones a change to device memory that is kept apart until the blocks before have made theirs. Returns false if the
    /// memory isn't kept apart, or is shared memory.
    fn postpone(
        &mut self,
        atomic: &Atomic,
        thread: usize,
        address: u64,
        operands: [u64; 2],
    ) -> Result<bool, Stop> {
        if !self.memory.is_apart() {
            return Ok(false);
        }
        let size = u64::from(atomic.kind.bytes());
        let (space, address) = concrete(atomic.space, address);
        self.check_alignment(space, Kind::Atomic, thread, address, size)?;
        let Some((Location::Device(slot), offset)) = self.locate(space, address, size) else {
            return Ok(false);
        };
        self.memory.postpone(Update { slot, offset, op: atomic.op, kind: atomic.kind, operands });
        self.bytes_read += size;
        self.note_atomic(slot, offset, size);
        Ok(true)
    }

    /// Returns the slot and the offset of an address in memory that other processes may access.
    fn place_in_shared_memory(&mut self, space: Space, address: u64, size: u64) -> Option<(usize, u64)> {
        self.together.as_ref()?;
        let (Location::Device(slot), offset) = self.locate(space, address, size)? else { return None };
        let allocation = self.memory.in_slot(slot)?;
        allocation.is_shared_with_processes().then_some((slot, offset))
    }

    /// Like [`Self::update`], for memory that another process may change at the same time.
    fn update_shared(
        &mut self,
        (slot, offset): (usize, u64),
        space: Space,
        thread: usize,
        address: u64,
        (op, kind): (AtomicOp, AtomicType),
        [a, b]: [u64; 2],
    ) -> Result<u64, Stop> {
        let size = usize::from(kind.bytes());
        loop {
            let mut bytes = [0; 8];
            self.read_bytes(space, Kind::Atomic, thread, address, &mut bytes[..size])?;
            let Some(allocation) = self.memory.in_slot(slot) else { return Ok(0) };
            let (all, written) = allocation.parts();
            let found = &all[offset as usize..][..size];
            let mut expected = [0; 8];
            expected[..size].copy_from_slice(found);
            // Bytes that were never written are 0 in memory, but the kernel sees something else.
            let old = match written.covers(offset, size as u64) {
                true => u64::from_le_bytes(expected),
                false => u64::from_le_bytes(bytes),
            };
            let new = combine_in_global(op, kind, old, a, b);
            let whole = self.memory.whole();
            let Some(allocation) = whole.and_then(|it| it.in_slot_mut(slot)) else { return Ok(old) };
            if allocation.replace(offset, &expected[..size], &new.to_le_bytes()[..size]) {
                self.changes += u64::from(new != old);
                self.note_atomic(slot, offset, size as u64);
                return Ok(old);
            }
        }
    }

    /// Changes a value in memory in one step and returns what it was, within the scope of the instruction.
    pub(crate) fn update(
        &mut self,
        space: Space,
        thread: usize,
        address: u64,
        (op, kind): (AtomicOp, AtomicType),
        [a, b]: [u64; 2],
    ) -> Result<u64, Stop> {
        let size = usize::from(kind.bytes());
        let mut bytes = [0; 8];
        self.read_bytes(space, Kind::Atomic, thread, address, &mut bytes[..size])?;
        if let Some(place) = self.place_in_shared_memory(space, address, size as u64) {
            return self.update_shared(place, space, thread, address, (op, kind), [a, b]);
        }
        let observed = match self.is_observed() {
            true => self.locate(space, address, size as u64),
            false => None,
        };
        if let Some(at) = observed {
            self.observe_strong_read(at, thread, &mut bytes[..size], true);
        }
        let old = u64::from_le_bytes(bytes);
        let in_global = concrete(space, address).0 == Space::Global;
        let new = match in_global {
            true => combine_in_global(op, kind, old, a, b),
            false => combine(op, kind, old, a, b),
        };
        let new = new.to_le_bytes();
        self.changes += u64::from(new[..size] != bytes[..size]);
        self.watch_atomic(space, thread, address, size as u64);
        if let Some(at) = observed {
            self.observe_strong_write(at, thread, [&bytes[..size], &new[..size]], true);
        }
        self.write_bytes(space, Kind::Atomic, thread, address, &new[..size])?;
        if observed.is_some() {
            self.block.observer.end_write(thread);
        }
        Ok(old)
    }
}

/// A change in one step of a value in device memory.
#[derive(Debug)]
pub(crate) struct Update {
    slot: usize,
    /// The offset of the value in the allocation.
    offset: u64,
    op: AtomicOp,
    kind: AtomicType,
    operands: [u64; 2],
}

impl Update {
    /// Returns whether the value in memory has ever been written.
    pub(super) fn is_of_written(&self, memory: &DeviceMemory) -> bool {
        let allocation = memory.in_slot(self.slot);
        allocation.is_some_and(|it| it.parts().1.covers(self.offset, self.kind.bytes().into()))
    }

    /// Changes the value in memory.
    pub(super) fn apply(&self, memory: &mut DeviceMemory) {
        let Some(allocation) = memory.in_slot_mut(self.slot) else { return };
        let value = &mut allocation.bytes_mut()[self.offset as usize..][..usize::from(self.kind.bytes())];
        let new = combine_in_global(self.op, self.kind, read(value), self.operands[0], self.operands[1]);
        value.copy_from_slice(&new.to_le_bytes()[..value.len()]);
    }
}

/// Like [`combine`], for values in device memory: there, subnormals are flushed, unlike in shared memory.
fn combine_in_global(op: AtomicOp, kind: AtomicType, old: u64, a: u64, b: u64) -> u64 {
    match (op, kind) {
        (AtomicOp::Add, AtomicType::F32) => u64::from(add_flushed(old as u32, a as u32)),
        (op, kind) => combine(op, kind, old, a, b),
    }
}

/// Returns the new memory contents; the bits above the type's width are ignored.
pub(super) fn combine(op: AtomicOp, kind: AtomicType, old: u64, a: u64, b: u64) -> u64 {
    match op {
        AtomicOp::And => old & a,
        AtomicOp::Or => old | a,
        AtomicOp::Xor => old ^ a,
        AtomicOp::Exch => a,
        AtomicOp::Cas => {
            let compared = if kind == AtomicType::B16 { a & 0xffff } else { a };
            if old == compared { b } else { old }
        }
        AtomicOp::Add => add(kind, old, a),
        AtomicOp::Min | AtomicOp::Max if is_half(kind) => of_halves(op, kind, old, a),
        AtomicOp::Min => match kind {
            AtomicType::S32 => (old as i32).min(a as i32) as u64,
            AtomicType::S64 => (old as i64).min(a as i64) as u64,
            _ => old.min(a),
        },
        AtomicOp::Max => match kind {
            AtomicType::S32 => (old as i32).max(a as i32) as u64,
            AtomicType::S64 => (old as i64).max(a as i64) as u64,
            _ => old.max(a),
        },
        AtomicOp::Inc => {
            if old >= a {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Dec => {
            if old == 0 || old > a {
                a
            } else {
                old - 1
            }
        }
    }
}

fn is_half(kind: AtomicType) -> bool {
    matches!(kind, AtomicType::F16 | AtomicType::F16x2 | AtomicType::Bf16 | AtomicType::Bf16x2)
}

/// Returns the minimum or the maximum of 16-bit floating-point numbers, as `min` and `max` do.
fn of_halves(op: AtomicOp, kind: AtomicType, old: u64, a: u64) -> u64 {
    let op = if op == AtomicOp::Min { FloatOp::Min } else { FloatOp::Max };
    let kind = match kind {
        AtomicType::F16 | AtomicType::F16x2 => FloatType::F16,
        _ => FloatType::Bf16,
    };
    let half = |shift: u32| {
        let [old, a] = [old, a].map(|bits| (bits >> shift) as u16);
        u64::from(half::scalar(op, kind, FloatMode::default(), old, a, 0)) << shift
    };
    half(0) | half(16)
}

fn add(kind: AtomicType, old: u64, a: u64) -> u64 {
    let halves = |bits: u64| [bits as u16, (bits >> 16) as u16];
    let both = |add: fn(u16, u16) -> u16| {
        let ([low, high], [a_low, a_high]) = (halves(old), halves(a));
        u64::from(add(low, a_low)) | u64::from(add(high, a_high)) << 16
    };
    match kind {
        AtomicType::F32 => u64::from(canonical(f32::from_bits(old as u32) + f32::from_bits(a as u32))),
        AtomicType::F64 => (f64::from_bits(old) + f64::from_bits(a)).to_bits(),
        AtomicType::F16 => u64::from(add_half(old as u16, a as u16)),
        AtomicType::F16x2 => both(add_half),
        AtomicType::Bf16 => u64::from(add_brain(old as u16, a as u16)),
        AtomicType::Bf16x2 => both(add_brain),
        _ => old.wrapping_add(a),
    }
}

fn add_flushed(a: u32, b: u32) -> u32 {
    canonical(flush(flush(f32::from_bits(a)) + flush(f32::from_bits(b))))
}

/// The sums are first rounded to odd in double precision and then to sixteen bits.
fn add_half(a: u16, b: u16) -> u16 {
    let sum = add_odd(f16::from_bits(a).to_f64(), f16::from_bits(b).to_f64());
    if sum.is_nan() { 0x7fff } else { to_half(sum, Rounding::Nearest) }
}

fn add_brain(a: u16, b: u16) -> u16 {
    let sum = add_odd(bf16::from_bits(a).to_f64(), bf16::from_bits(b).to_f64());
    if sum.is_nan() { 0x7fff } else { to_brain(sum, Rounding::Nearest) }
}
