//! 32-bit integer arithmetic.

use super::bits::{
    bfe_s, bfe_u, bfi, bfind, bfind_shift, bit_mask, extend, find_nth_set, funnel, lop3, permute,
    permute_selector, sign_extend,
};
use super::map::{Apply, Each, One};
use super::parts::{dot_of_bytes, dot_of_halves, low24, packed, simd};
use super::single::round_to_tf32;
use crate::features::vectorized;
use crate::mask::WIDTH;
use crate::registers::{Chunk, Span, Words};
use virtual_gpu_ptx::instruction::WordOp;

/// Passes the definition of `op` to `run`. Division by zero returns all ones, as on real hardware (the manual leaves it
/// undefined).
#[inline(always)]
fn define<A: Apply<u32>>(op: WordOp, run: A) -> A::Output {
    use WordOp::*;
    match op {
        Move => run.apply(|[a]| a),
        Add => run.apply(|[a, b]| a.wrapping_add(b)),
        Sub => run.apply(|[a, b]| a.wrapping_sub(b)),
        Mul => run.apply(|[a, b]| a.wrapping_mul(b)),
        MulHighS => run.apply(|[a, b]| high_s(a, b)),
        MulHighU => run.apply(|[a, b]| high_u(a, b)),
        Mad => run.apply(|[a, b, c]| a.wrapping_mul(b).wrapping_add(c)),
        MadHighS => run.apply(|[a, b, c]| high_s(a, b).wrapping_add(c)),
        MadHighU => run.apply(|[a, b, c]| high_u(a, b).wrapping_add(c)),
        MulHigh16 => run.apply(|[a, b]| a.wrapping_mul(b) >> 16),
        Mul24S => run.apply(|[a, b]| low24(a).wrapping_mul(low24(b)) as u32),
        Mul24U => run.apply(|[a, b]| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff)),
        Mul24HighS => run.apply(|[a, b]| ((i64::from(low24(a)) * i64::from(low24(b))) >> 16) as u32),
        Mul24HighU => {
            run.apply(|[a, b]| ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32)
        }
        AddSaturated => run.apply(|[a, b]| (a as i32).saturating_add(b as i32) as u32),
        SubSaturated => run.apply(|[a, b]| (a as i32).saturating_sub(b as i32) as u32),
        DivS => run.apply(|[a, b]| if b == 0 { u32::MAX } else { (a as i32).wrapping_div(b as i32) as u32 }),
        DivU => run.apply(|[a, b]| a.checked_div(b).unwrap_or(u32::MAX)),
        RemS => run.apply(|[a, b]| if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 }),
        RemU => run.apply(|[a, b]| a.checked_rem(b).unwrap_or(a)),
        MinS => run.apply(|[a, b]| (a as i32).min(b as i32) as u32),
        MinU => run.apply(|[a, b]| a.min(b)),
        MaxS => run.apply(|[a, b]| (a as i32).max(b as i32) as u32),
        MaxU => run.apply(|[a, b]| a.max(b)),
        Abs => run.apply(|[a]| (a as i32).wrapping_abs() as u32),
        Neg => run.apply(|[a]| a.wrapping_neg()),
        SadS => run.apply(|[a, b, c]| (a as i32).abs_diff(b as i32).wrapping_add(c)),
        SadU => run.apply(|[a, b, c]| a.abs_diff(b).wrapping_add(c)),
        And => run.apply(|[a, b]| a & b),
        Or => run.apply(|[a, b]| a | b),
        Xor => run.apply(|[a, b]| a ^ b),
        Not => run.apply(|[a]| !a),
        Cnot => run.apply(|[a]| u32::from(a == 0)),
        Shl => run.apply(|[a, b]| if b > 31 { 0 } else { a << (b & 31) }),
        ShrS => run.apply(|[a, b]| (a as i32 >> b.min(31)) as u32),
        ShrU => run.apply(|[a, b]| if b > 31 { 0 } else { a >> (b & 31) }),
        // The high word of the pair shifted left by `n` equals the low word of the pair shifted right by `32 - n`.
        ShfLeftWrap => run.apply(|[a, b, c]| funnel(b, a, 32 - (c & 31))),
        ShfLeftClamp => run.apply(|[a, b, c]| funnel(b, a, 32 - c.min(32))),
        ShfRightWrap => run.apply(|[a, b, c]| funnel(b, a, c & 31)),
        ShfRightClamp => run.apply(|[a, b, c]| funnel(b, a, c.min(32))),
        Popc => run.apply(|[a]| a.count_ones()),
        Clz => run.apply(|[a]| a.leading_zeros()),
        Brev => run.apply(|[a]| a.reverse_bits()),
        BfindS => run.apply(|[a]| bfind(if (a as i32) < 0 { !a } else { a })),
        BfindU => run.apply(|[a]| bfind(a)),
        BfindShiftS => run.apply(|[a]| bfind_shift(if (a as i32) < 0 { !a } else { a })),
        BfindShiftU => run.apply(|[a]| bfind_shift(a)),
        BfeS => run.apply(|[a, b, c]| bfe_s(i64::from(a as i32), 32, b, c) as u32),
        BfeU => run.apply(|[a, b, c]| bfe_u(u64::from(a), b, c) as u32),
        Prmt => run.apply(|[a, b, c]| permute(a, b, c)),
        PrmtMode(mode) => run.apply(|[a, b, c]| permute(a, b, permute_selector(mode, c & 3))),
        Lop3(table) => run.apply(|[a, b, c]| lop3(table, a, b, c)),
        SignExtend(bits) => run.apply(|[a]| sign_extend(a, bits)),
        ZeroExtend(bits) => run.apply(|[a]| a & u32::MAX >> u32::from(32 - bits.min(32))),
        Dp4a { signed } => run.apply(|[a, b, c]| dot_of_bytes(a, b, c, signed)),
        Dp2a { high, signed } => run.apply(|[a, b, c]| dot_of_halves(a, b, c, high, signed)),
        Fns => run.apply(|[a, b, c]| find_nth_set(a, b, c as i32)),
        BitMask { clamp } => run.apply(|[a, b]| bit_mask(a, b, clamp)),
        Extend { clamp, signed } => run.apply(|[a, b]| extend(a, b, clamp, signed)),
        Packed(op) => run.apply(|[a, b]| packed(op, a, b)),
        Video(video) => run.apply(|[a, b, c]| simd(video, a, b, c)),
        RoundToTf32 => run.apply(|[a]| round_to_tf32(a)),
        Pack16 => run.apply(|[a, b]| a & 0xffff | b << 16),
        High16 => run.apply(|[a]| a >> 16),
    }
}

#[inline(always)]
fn high_s(a: u32, b: u32) -> u32 {
    ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
}

#[inline(always)]
fn high_u(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

/// Computes `op(a, b, c)` for one thread.
#[inline(always)]
pub(crate) fn scalar(op: WordOp, a: u32, b: u32, c: u32) -> u32 {
    define(op, One([a, b, c]))
}

vectorized! {
    /// Computes `d = op(a, b, c)` in the threads of `mask`; `spans` are `d`, `a`, `b`, `c`.
    fn execute(op: WordOp, file: &mut [Words], mask: &[u16], spans: [Span; 4]) = execute_body
}

#[inline(always)]
fn execute_body(op: WordOp, file: &mut [Words], mask: &[u16], spans: [Span; 4]) {
    define(op, Each { file, mask, spans });
}

vectorized! {
    /// Executes 16-bit arithmetic: the sources are extended, and the result is truncated.
    fn execute_half(op: WordOp, signed: bool, file: &mut [Words], mask: &[u16], spans: [Span; 4]) = execute_half_body
}

#[inline(always)]
fn execute_half_body(op: WordOp, signed: bool, file: &mut [Words], mask: &[u16], spans: [Span; 4]) {
    let extend = |value: u32| if signed { value as u16 as i16 as u32 } else { value & 0xffff };
    Each { file, mask, spans }.apply(|[a, b, c]| scalar(op, extend(a), extend(b), extend(c)) & 0xffff);
}

vectorized! {
    /// Executes `bfi.b32`; `spans` are `d`, `a`, `b`, `position`, `length`.
    fn insert(file: &mut [Words], mask: &[u16], spans: [Span; 5]) = insert_body
}

#[inline(always)]
fn insert_body(file: &mut [Words], mask: &[u16], [d, a, b, position, length]: [Span; 5]) {
    for (chunk, &active) in mask.iter().enumerate() {
        let (a, b) = (file[a.at(chunk)], file[b.at(chunk)]);
        let (position, length) = (file[position.at(chunk)], file[length.at(chunk)]);
        let mut result = Chunk::zero();
        for i in 0..WIDTH {
            let (a, b) = (u64::from(a.0[i]), u64::from(b.0[i]));
            result.0[i] = bfi(a, b, 32, position.0[i], length.0[i]) as u32;
        }
        file[d.at(chunk)].take(result, active);
    }
}
