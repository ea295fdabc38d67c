//! Integer operations that combine 32-bit and 64-bit values.

use super::bits::{bfe_s, bfe_u, bfind};
use crate::features::vectorized;
use crate::mask::WIDTH;
use crate::registers::{Chunk, Files, Longs};
use virtual_gpu_ptx::instruction::{LongWordOp, NarrowOp, Slot, WidenOp};

vectorized! {
    /// Executes 64-bit operations whose `b` and `c` are 32-bit; `slots` are `d`, `a`, `b`, `c`.
    fn shift(op: LongWordOp, files: &mut Files, mask: &[u16], slots: [Slot; 4]) = shift_body
}

#[inline(always)]
fn shift_body(op: LongWordOp, files: &mut Files, mask: &[u16], [d, a, b, c]: [Slot; 4]) {
    let (d, a) = (files.long(d), files.long(a));
    let (b, c) = (files.word(b), files.word(c));
    for (chunk, &active) in mask.iter().enumerate() {
        if active == 0 {
            continue;
        }
        let (x, y, z) = (files.longs[a.at(chunk)], files.words[b.at(chunk)], files.words[c.at(chunk)]);
        let mut result = Chunk::zero();
        for i in 0..WIDTH {
            let (x, y, z) = (x.0[i], y.0[i], z.0[i]);
            result.0[i] = match op {
                LongWordOp::Shl if y > 63 => 0,
                LongWordOp::Shl => x << (y & 63),
                LongWordOp::ShrU if y > 63 => 0,
                LongWordOp::ShrU => x >> (y & 63),
                LongWordOp::ShrS => (x as i64 >> y.min(63)) as u64,
                LongWordOp::BfeU => bfe_u(x, y, z),
                LongWordOp::BfeS => bfe_s(x as i64, 64, y, z) as u64,
            };
        }
        files.longs[d.at(chunk)].take(result, active);
    }
}

vectorized! {
    /// Executes operations with 32-bit sources and a 64-bit result; `slots` are `d`, `a`, `b`, `c`, where `d` and `c`
    /// are 64-bit.
    fn widen(op: WidenOp, files: &mut Files, mask: &[u16], slots: [Slot; 4]) = widen_body
}

#[inline(always)]
fn widen_body(op: WidenOp, files: &mut Files, mask: &[u16], [d, a, b, c]: [Slot; 4]) {
    let (d, c) = (files.long(d), files.long(c));
    let (a, b) = (files.word(a), files.word(b));
    let signed = |value: u32| i64::from(value as i32);
    for (chunk, &active) in mask.iter().enumerate() {
        if active == 0 {
            continue;
        }
        let (x, y) = (&files.words[a.at(chunk)].0, &files.words[b.at(chunk)].0);
        let z = &files.longs[c.at(chunk)].0;
        let result = match op {
            WidenOp::MulS => Longs::of(|i| (signed(x[i]) * signed(y[i])).wrapping_add(z[i] as i64) as u64),
            WidenOp::MulU => Longs::of(|i| (u64::from(x[i]) * u64::from(y[i])).wrapping_add(z[i])),
            WidenOp::SignExtend => Longs::of(|i| signed(x[i]) as u64),
            WidenOp::ZeroExtend => Longs::of(|i| u64::from(x[i])),
            WidenOp::Pack => Longs::of(|i| u64::from(x[i]) | u64::from(y[i]) << 32),
        };
        files.longs[d.at(chunk)].take(result, active);
    }
}

vectorized! {
    /// Executes operations with 64-bit sources and a 32-bit result.
    fn narrow(op: NarrowOp, files: &mut Files, mask: &[u16], d: Slot, a: Slot) = narrow_body
}

#[inline(always)]
fn narrow_body(op: NarrowOp, files: &mut Files, mask: &[u16], d: Slot, a: Slot) {
    let (d, a) = (files.word(d), files.long(a));
    let positive = |value: u64| if (value as i64) < 0 { !value } else { value };
    for (chunk, &active) in mask.iter().enumerate() {
        if active == 0 {
            continue;
        }
        let x = files.longs[a.at(chunk)];
        let mut result = Chunk::zero();
        for i in 0..WIDTH {
            let x = x.0[i];
            result.0[i] = match op {
                NarrowOp::Low => x as u32,
                NarrowOp::High => (x >> 32) as u32,
                NarrowOp::Popc => x.count_ones(),
                NarrowOp::Clz => x.leading_zeros(),
                NarrowOp::BfindU => find(x),
                NarrowOp::BfindS => find(positive(x)),
                NarrowOp::BfindShiftU => find_shift(x),
                NarrowOp::BfindShiftS => find_shift(positive(x)),
            };
        }
        files.words[d.at(chunk)].take(result, active);
    }
}

fn find(value: u64) -> u32 {
    match (value >> 32) as u32 {
        0 => bfind(value as u32),
        high => 32 + bfind(high),
    }
}

fn find_shift(value: u64) -> u32 {
    if value == 0 { u32::MAX } else { value.leading_zeros() }
}
