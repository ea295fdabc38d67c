//! 64-bit integer arithmetic.

use super::bits::bfi;
use super::map::{Apply, Rows};
use crate::features::vectorized;
use crate::mask::{WIDTH, bits};
use crate::registers::{Files, Longs, Span};
use virtual_gpu_ptx::instruction::{LongOp, Slot};

/// Passes the definition of `op` to `run`.
#[inline(always)]
fn define<A: Apply<u64>>(op: LongOp, run: A) -> A::Output {
    use LongOp::*;
    match op {
        Move => run.apply(|[a]| a),
        Add => run.apply(|[a, b]| a.wrapping_add(b)),
        Sub => run.apply(|[a, b]| a.wrapping_sub(b)),
        Mul => run.apply(|[a, b]| a.wrapping_mul(b)),
        Mad => run.apply(|[a, b, c]| a.wrapping_mul(b).wrapping_add(c)),
        Neg => run.apply(|[a]| a.wrapping_neg()),
        And => run.apply(|[a, b]| a & b),
        Or => run.apply(|[a, b]| a | b),
        Xor => run.apply(|[a, b]| a ^ b),
        Not => run.apply(|[a]| !a),
        MinS => run.apply(|[a, b]| (a as i64).min(b as i64) as u64),
        MinU => run.apply(|[a, b]| a.min(b)),
        MaxS => run.apply(|[a, b]| (a as i64).max(b as i64) as u64),
        MaxU => run.apply(|[a, b]| a.max(b)),
        SignExtend(bits) => run.apply(|[a]| {
            let shift = u32::from(64 - bits.min(64));
            ((a << shift) as i64 >> shift) as u64
        }),
        ZeroExtend(bits) => run.apply(|[a]| a & u64::MAX >> u32::from(64 - bits.min(64))),
        _ => run.apply(|[a, b, c]| uncommon(op, a, b, c)),
    }
}

/// The definitions of the operations that few kernels use, or that the compiler can't vectorize. Division by zero
/// returns all ones, as on real hardware (the manual leaves it undefined).
#[inline(never)]
fn uncommon(op: LongOp, a: u64, b: u64, c: u64) -> u64 {
    use LongOp::*;
    match op {
        MulHighS => high_s(a, b),
        MulHighU => high_u(a, b),
        MadHighS => high_s(a, b).wrapping_add(c),
        MadHighU => high_u(a, b).wrapping_add(c),
        DivS | RemS if b == 0 => u64::MAX,
        DivS => (a as i64).wrapping_div(b as i64) as u64,
        DivU => a.checked_div(b).unwrap_or(u64::MAX),
        RemS => (a as i64).wrapping_rem(b as i64) as u64,
        RemU => a.checked_rem(b).unwrap_or(u64::MAX),
        Abs => (a as i64).wrapping_abs() as u64,
        SadS => (a as i64).abs_diff(b as i64).wrapping_add(c),
        SadU => a.abs_diff(b).wrapping_add(c),
        Cnot => u64::from(a == 0),
        Brev => a.reverse_bits(),
        Move | Add | Sub | Mul | Mad | Neg | And | Or | Xor | Not | MinS | MinU | MaxS | MaxU
        | SignExtend(_) | ZeroExtend(_) => unreachable!("a common operation"),
    }
}

#[inline(always)]
fn high_s(a: u64, b: u64) -> u64 {
    ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
}

#[inline(always)]
fn high_u(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

vectorized! {
    /// Computes `d = op(a, b, c)` in the threads of `mask`; `spans` are `d`, `a`, `b`, `c`.
    fn execute(op: LongOp, file: &mut [Longs], mask: &[u16], spans: [Span; 4]) = execute_body
}

#[inline(always)]
fn execute_body(op: LongOp, file: &mut [Longs], mask: &[u16], [d, from @ ..]: [Span; 4]) {
    define(op, Rows { file, mask, d, from });
}

/// `bfi.b64`
pub(crate) fn insert(files: &mut Files, mask: &[u16], [d, a, b, position, length]: [Slot; 5]) {
    for (chunk, &active) in mask.iter().enumerate() {
        for thread in bits(active).map(|i| chunk * WIDTH + i) {
            let (a, b) = (files.long_of(a, thread), files.long_of(b, thread));
            let (position, length) = (files.word_of(position, thread), files.word_of(length, thread));
            files.set_long(d, thread, bfi(a, b, 64, position, length));
        }
    }
}
