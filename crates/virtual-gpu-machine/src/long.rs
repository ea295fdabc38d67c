//! Integer arithmetic on 64 bits, and between 32 and 64.

use super::features::vectorised;
use super::file::{Files, Longs, Span, WIDTH, Words};
use super::word::{bfe_s, bfe_u, bfi, bfind};
use virtual_gpu_ptx::instruction::{LongOp, LongWordOp, NarrowOp, Slot, WidenOp};

#[inline(always)]
fn map(file: &mut [Longs], mask: &[u16], [d, a, b, c]: [Span; 4], f: impl Fn(u64, u64, u64) -> u64) {
    for (chunk, &lanes) in mask.iter().enumerate() {
        if lanes == 0 {
            continue;
        }
        let (x, y, z) = (file[a.at(chunk)], file[b.at(chunk)], file[c.at(chunk)]);
        let mut result = Longs::ZERO;
        for lane in 0..WIDTH {
            result.0[lane] = f(x.0[lane], y.0[lane], z.0[lane]);
        }
        file[d.at(chunk)].take(result, lanes);
    }
}

vectorised! {
    /// `d = op(a, b, c)` in the lanes of `mask`; `spans` are `d`, `a`, `b`, `c`.
    fn execute(op: LongOp, file: &mut [Longs], mask: &[u16], spans: [Span; 4]) = execute_body
}

#[inline(always)]
fn execute_body(op: LongOp, file: &mut [Longs], mask: &[u16], spans: [Span; 4]) {
    use LongOp::*;
    macro_rules! run {
        ($f:expr) => {
            map(file, mask, spans, $f)
        };
    }
    match op {
        Move => run!(|a, _, _| a),
        Add => run!(|a, b, _| a.wrapping_add(b)),
        Sub => run!(|a, b, _| a.wrapping_sub(b)),
        Mul => run!(|a, b, _| a.wrapping_mul(b)),
        Mad => run!(|a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        And => run!(|a, b, _| a & b),
        Or => run!(|a, b, _| a | b),
        Xor => run!(|a, b, _| a ^ b),
        Not => run!(|a, _, _| !a),
        _ => run!(|a, b, c| scalar(op, a, b, c)),
    }
}

/// One lane. Division by zero gives all ones, as on the hardware (the manual leaves it open).
#[inline(always)]
fn scalar(op: LongOp, a: u64, b: u64, c: u64) -> u64 {
    use LongOp::*;
    let (sa, sb) = (a as i64, b as i64);
    let high_s = || ((i128::from(sa) * i128::from(sb)) >> 64) as u64;
    let high_u = || ((u128::from(a) * u128::from(b)) >> 64) as u64;
    match op {
        Move => a,
        Add => a.wrapping_add(b),
        Sub => a.wrapping_sub(b),
        Mul => a.wrapping_mul(b),
        Mad => a.wrapping_mul(b).wrapping_add(c),
        MulHighS => high_s(),
        MulHighU => high_u(),
        MadHighS => high_s().wrapping_add(c),
        MadHighU => high_u().wrapping_add(c),
        DivS if b == 0 => u64::MAX,
        DivS => sa.wrapping_div(sb) as u64,
        DivU => a.checked_div(b).unwrap_or(u64::MAX),
        RemS if b == 0 => a,
        RemS => sa.wrapping_rem(sb) as u64,
        RemU => a.checked_rem(b).unwrap_or(a),
        MinS => sa.min(sb) as u64,
        MinU => a.min(b),
        MaxS => sa.max(sb) as u64,
        MaxU => a.max(b),
        Abs => sa.wrapping_abs() as u64,
        Neg => sa.wrapping_neg() as u64,
        SadS => sa.abs_diff(sb).wrapping_add(c),
        SadU => a.abs_diff(b).wrapping_add(c),
        And => a & b,
        Or => a | b,
        Xor => a ^ b,
        Not => !a,
        Cnot => u64::from(a == 0),
        Brev => a.reverse_bits(),
        SignExtend(bits) => {
            let shift = u32::from(64 - bits.min(64));
            ((a << shift) as i64 >> shift) as u64
        }
        ZeroExtend(bits) => a & u64::MAX >> u32::from(64 - bits.min(64)),
    }
}

vectorised! {
    /// 64-bit operations whose `b` and `c` are 32-bit.
    fn execute_with_words(op: LongWordOp, files: &mut Files, mask: &[u16], slots: [Slot; 4]) = with_words_body
}

#[inline(always)]
fn with_words_body(op: LongWordOp, files: &mut Files, mask: &[u16], [d, a, b, c]: [Slot; 4]) {
    let (d, a) = (files.long(d), files.long(a));
    let (b, c) = (files.word(b), files.word(c));
    for (chunk, &lanes) in mask.iter().enumerate() {
        if lanes == 0 {
            continue;
        }
        let (x, y, z) = (files.longs[a.at(chunk)], files.words[b.at(chunk)], files.words[c.at(chunk)]);
        let mut result = Longs::ZERO;
        for lane in 0..WIDTH {
            let (x, y, z) = (x.0[lane], y.0[lane], z.0[lane]);
            result.0[lane] = match op {
                LongWordOp::Shl => {
                    if y > 63 {
                        0
                    } else {
                        x << (y & 63)
                    }
                }
                LongWordOp::ShrU => {
                    if y > 63 {
                        0
                    } else {
                        x >> (y & 63)
                    }
                }
                LongWordOp::ShrS => (x as i64 >> y.min(63)) as u64,
                LongWordOp::BfeU => bfe_u(x, y, z),
                LongWordOp::BfeS => bfe_s(x as i64, 64, y, z) as u64,
            };
        }
        files.longs[d.at(chunk)].take(result, lanes);
    }
}

vectorised! {
    /// From 32 to 64 bits; `slots` are `d`, `a`, `b`, `c`, of which `d` and `c` are 64-bit.
    fn widen(op: WidenOp, files: &mut Files, mask: &[u16], slots: [Slot; 4]) = widen_body
}

#[inline(always)]
fn widen_body(op: WidenOp, files: &mut Files, mask: &[u16], slots: [Slot; 4]) {
    let signed = |value: u32| i64::from(value as i32);
    match op {
        WidenOp::MulS => {
            widen_map(files, mask, slots, |a, b, c| (signed(a) * signed(b)).wrapping_add(c as i64) as u64)
        }
        WidenOp::MulU => {
            widen_map(files, mask, slots, |a, b, c| (u64::from(a) * u64::from(b)).wrapping_add(c))
        }
        WidenOp::SignExtend => widen_map(files, mask, slots, |a, _, _| signed(a) as u64),
        WidenOp::ZeroExtend => widen_map(files, mask, slots, |a, _, _| u64::from(a)),
        WidenOp::Pack => widen_map(files, mask, slots, |a, b, _| u64::from(a) | u64::from(b) << 32),
    }
}

#[inline(always)]
fn widen_map(files: &mut Files, mask: &[u16], [d, a, b, c]: [Slot; 4], f: impl Fn(u32, u32, u64) -> u64) {
    let (d, c) = (files.long(d), files.long(c));
    let (a, b) = (files.word(a), files.word(b));
    for (chunk, &lanes) in mask.iter().enumerate() {
        if lanes == 0 {
            continue;
        }
        let (x, y, z) = (files.words[a.at(chunk)], files.words[b.at(chunk)], files.longs[c.at(chunk)]);
        let mut result = Longs::ZERO;
        for lane in 0..WIDTH {
            result.0[lane] = f(x.0[lane], y.0[lane], z.0[lane]);
        }
        files.longs[d.at(chunk)].take(result, lanes);
    }
}

vectorised! {
    /// From 64 to 32 bits.
    fn narrow(op: NarrowOp, files: &mut Files, mask: &[u16], d: Slot, a: Slot) = narrow_body
}

#[inline(always)]
fn narrow_body(op: NarrowOp, files: &mut Files, mask: &[u16], d: Slot, a: Slot) {
    let (d, a) = (files.word(d), files.long(a));
    let positive = |value: u64| if (value as i64) < 0 { !value } else { value };
    for (chunk, &lanes) in mask.iter().enumerate() {
        if lanes == 0 {
            continue;
        }
        let x = files.longs[a.at(chunk)];
        let mut result = Words::ZERO;
        for lane in 0..WIDTH {
            let x = x.0[lane];
            result.0[lane] = match op {
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
        files.words[d.at(chunk)].take(result, lanes);
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

/// `bfi.b64`
pub(super) fn insert(files: &mut Files, mask: &[u16], [d, a, b, position, length]: [Slot; 5]) {
    for (chunk, &lanes) in mask.iter().enumerate() {
        for lane in super::file::bits(lanes).map(|lane| chunk * WIDTH + lane) {
            let (a, b) = (files.long_of(a, lane), files.long_of(b, lane));
            let (position, length) = (files.word_of(position, lane), files.word_of(length, lane));
            files.set_long(d, lane, bfi(a, b, 64, position, length));
        }
    }
}
