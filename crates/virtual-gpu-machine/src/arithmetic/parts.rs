//! Operations on parts of a word: bytes, halves, and the low 24 bits.

use virtual_gpu_ptx::instruction::{Packed, Video, VideoOp};

/// Returns the low 24 bits, sign-extended.
pub(super) fn low24(value: u32) -> i32 {
    (value << 8) as i32 >> 8
}

/// `dp4a`: adds four byte products to `c`.
pub(super) fn dot_of_bytes(a: u32, b: u32, c: u32, [a_signed, b_signed]: [bool; 2]) -> u32 {
    let value = |byte: u8, signed: bool| if signed { i32::from(byte as i8) } else { i32::from(byte) };
    let bytes = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    let products = bytes.map(|(a, b)| value(a, a_signed) * value(b, b_signed));
    products.fold(c as i32, i32::wrapping_add) as u32
}

/// `dp2a`: adds two products of a half and a byte to `c`.
pub(super) fn dot_of_halves(a: u32, b: u32, c: u32, high: bool, [a_signed, b_signed]: [bool; 2]) -> u32 {
    let b = if high { b >> 16 } else { b };
    (0..2).fold(c, |sum, at| {
        let half = a >> (16 * at);
        let byte = b >> (8 * at);
        let half = if a_signed { i32::from(half as i16) } else { i32::from(half as u16) };
        let byte = if b_signed { i32::from(byte as i8) } else { i32::from(byte as u8) };
        sum.wrapping_add(half.wrapping_mul(byte) as u32)
    })
}

/// Applies an operation to both halves.
pub(super) fn packed(op: Packed, a: u32, b: u32) -> u32 {
    use Packed::*;
    let half = |a: u16, b: u16| match op {
        Add => a.wrapping_add(b),
        MinS => (a as i16).min(b as i16) as u16,
        MinU => a.min(b),
        MaxS => (a as i16).max(b as i16) as u16,
        MaxU => a.max(b),
    };
    u32::from(half(a as u16, b as u16)) | u32::from(half((a >> 16) as u16, (b >> 16) as u16)) << 16
}

/// Executes a SIMD video instruction on all parts in order.
pub(super) fn simd(Video { op, parts, signed, saturate, sum }: Video, a: u32, b: u32, c: u32) -> u32 {
    let bits = 32 / u32::from(parts);
    let part = |word: u32, at: u32, signed: bool| {
        let low = i64::from(word >> (bits * at)) & ((1 << bits) - 1);
        if signed { low << (64 - bits) >> (64 - bits) } else { low }
    };
    let (low, high) =
        if signed[0] { (-1 << (bits - 1), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    let mut word = 0;
    let mut total = c;
    for at in 0..u32::from(parts) {
        let (x, y): (i64, i64) = (part(a, at, signed[1]), part(b, at, signed[2]));
        let result = match op {
            VideoOp::Add => x + y,
            VideoOp::Sub => x - y,
            // Rounded away from zero, as the manual specifies for `.vavrg`.
            VideoOp::Average => (x + y + i64::from(x + y >= 0)) >> 1,
            VideoOp::AbsDiff => (x - y).abs(),
            VideoOp::Min => x.min(y),
            VideoOp::Max => x.max(y),
        };
        let result = if saturate { result.clamp(low, high) } else { result };
        word |= (result as u32 & (u32::MAX >> (32 - bits))) << (bits * at);
        total = total.wrapping_add(result as u32);
    }
    if sum { total } else { word }
}
