//! 32-bit integer arithmetic.

use super::bits::{
    bfe_s, bfe_u, bfi, bfind, bfind_shift, bit_mask, extend, find_nth_set, funnel, lop3, permute,
    permute_selector, sign_extend,
};
use super::map::{Apply, Each, One, Rows, write_each_chunk};
use super::parts::{dot_of_bytes, dot_of_halves, low24, packed, simd};
use super::single::round_to_tf32;
use crate::features::vectorized;
use crate::mask::{WIDTH, bits};
use crate::registers::{Files, Span, Words};
use virtual_gpu_ptx::instruction::{Slot, WordOp};

/// Passes the definition of `op` to `run`.
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
        MinS => run.apply(|[a, b]| (a as i32).min(b as i32) as u32),
        MinU => run.apply(|[a, b]| a.min(b)),
        MaxS => run.apply(|[a, b]| (a as i32).max(b as i32) as u32),
        MaxU => run.apply(|[a, b]| a.max(b)),
        Abs => run.apply(|[a]| (a as i32).wrapping_abs() as u32),
        Neg => run.apply(|[a]| a.wrapping_neg()),
        And => run.apply(|[a, b]| a & b),
        Or => run.apply(|[a, b]| a | b),
        Xor => run.apply(|[a, b]| a ^ b),
        Not => run.apply(|[a]| !a),
        Shl => run.apply(|[a, b]| if b > 31 { 0 } else { a << (b & 31) }),
        ShrS => run.apply(|[a, b]| (a as i32 >> b.min(31)) as u32),
        ShrU => run.apply(|[a, b]| if b > 31 { 0 } else { a >> (b & 31) }),
        SignExtend(bits) => run.apply(|[a]| sign_extend(a, bits)),
        ZeroExtend(bits) => run.apply(|[a]| a & u32::MAX >> u32::from(32 - bits.min(32))),
        Pack16 => run.apply(|[a, b]| a & 0xffff | b << 16),
        High16 => run.apply(|[a]| a >> 16),
        _ => run.apply(|[a, b, c]| uncommon(op, a, b, c)),
    }
}

/// The definitions of the operations that few kernels use, or that the compiler can't vectorize. A
/// division by zero has the quotient and the remainder all ones, as measured on an H200 (the manual leaves it undefined).
#[inline(never)]
fn uncommon(op: WordOp, a: u32, b: u32, c: u32) -> u32 {
    use WordOp::*;
    match op {
        MadHighS => high_s(a, b).wrapping_add(c),
        MadHighU => high_u(a, b).wrapping_add(c),
        MulHigh16 => a.wrapping_mul(b) >> 16,
        Mul24S => low24(a).wrapping_mul(low24(b)) as u32,
        Mul24U => (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff),
        Mul24HighS => ((i64::from(low24(a)) * i64::from(low24(b))) >> 16) as u32,
        Mul24HighU => ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32,
        AddSaturated => (a as i32).saturating_add(b as i32) as u32,
        SubSaturated => (a as i32).saturating_sub(b as i32) as u32,
        DivS | RemS if b == 0 => u32::MAX,
        DivS => (a as i32).wrapping_div(b as i32) as u32,
        DivU => a.checked_div(b).unwrap_or(u32::MAX),
        RemS => (a as i32).wrapping_rem(b as i32) as u32,
        RemU => a.checked_rem(b).unwrap_or(u32::MAX),
        SadS => (a as i32).abs_diff(b as i32).wrapping_add(c),
        SadU => a.abs_diff(b).wrapping_add(c),
        Cnot => u32::from(a == 0),
        // The high word of the pair shifted left by `n` equals the low word of the pair shifted right by `32 - n`.
        ShfLeftWrap => funnel(b, a, 32 - (c & 31)),
        ShfLeftClamp => funnel(b, a, 32 - c.min(32)),
        ShfRightWrap => funnel(b, a, c & 31),
        ShfRightClamp => funnel(b, a, c.min(32)),
        Popc => a.count_ones(),
        Clz => a.leading_zeros(),
        Brev => a.reverse_bits(),
        BfindS => bfind(if (a as i32) < 0 { !a } else { a }),
        BfindU => bfind(a),
        BfindShiftS => bfind_shift(if (a as i32) < 0 { !a } else { a }),
        BfindShiftU => bfind_shift(a),
        BfeS => bfe_s(i64::from(a as i32), 32, b, c) as u32,
        BfeU => bfe_u(u64::from(a), b, c) as u32,
        Prmt => permute(a, b, c),
        PrmtMode(mode) => permute(a, b, permute_selector(mode, c & 3)),
        Lop3(table) => lop3(table, a, b, c),
        Dp4a { signed } => dot_of_bytes(a, b, c, signed),
        Dp2a { high, signed } => dot_of_halves(a, b, c, high, signed),
        Fns => find_nth_set(a, b, c as i32),
        BitMask { clamp } => bit_mask(a, b, clamp),
        Extend { clamp, signed } => extend(a, b, clamp, signed),
        Packed(op) => packed(op, a, b),
        Video(video) => simd(video, a, b, c),
        RoundToTf32 => round_to_tf32(a),
        Move | Add | Sub | Mul | MulHighS | MulHighU | Mad | MinS | MinU | MaxS | MaxU | Abs | Neg | And
        | Or | Xor | Not | Shl | ShrS | ShrU | SignExtend(_) | ZeroExtend(_) | Pack16 | High16 => {
            unreachable!("a common operation")
        }
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
pub(crate) fn scalar(op: WordOp, a: u32, b: u32, c: u32) -> u32 {
    define(op, One([a, b, c]))
}

vectorized! {
    /// Computes `d = op(a, b, c)` in the threads of `mask`; `spans` are `d`, `a`, `b`, `c`.
    fn execute(op: WordOp, file: &mut [Words], mask: &[u16], spans: [Span; 4]) = execute_body
}

#[inline(always)]
fn execute_body(op: WordOp, file: &mut [Words], mask: &[u16], [d, from @ ..]: [Span; 4]) {
    define(op, Rows { file, mask, d, from });
}

/// Executes 16-bit arithmetic: the sources are extended, and the result is truncated.
pub(crate) fn execute_half(
    op: WordOp,
    signed: bool,
    file: &mut [Words],
    mask: &[u16],
    [d, from @ ..]: [Span; 4],
) {
    let extend = |value: u32| if signed { value as u16 as i16 as u32 } else { value & 0xffff };
    let compute = |[a, b, c]: [u32; 3]| scalar(op, extend(a), extend(b), extend(c)) & 0xffff;
    write_each_chunk!(file, mask, d, |chunk| Each::of(file, from, chunk).apply(compute));
}

/// `bfi.b32`
pub(crate) fn insert(files: &mut Files, mask: &[u16], [d, a, b, position, length]: [Slot; 5]) {
    for (chunk, &active) in mask.iter().enumerate() {
        for thread in bits(active).map(|i| chunk * WIDTH + i) {
            let (a, b) = (files.word_of(a, thread), files.word_of(b, thread));
            let (position, length) = (files.word_of(position, thread), files.word_of(length, thread));
            files.set_word(d, thread, bfi(a.into(), b.into(), 32, position, length) as u32);
        }
    }
}
