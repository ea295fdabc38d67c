//! Bit manipulation: shifts of register pairs, bit fields, byte permutations, and bit searches.

use virtual_gpu_ptx::instruction::PermuteMode;

/// Returns the low word of `high:low >> amount`.
pub(super) fn funnel(high: u32, low: u32, amount: u32) -> u32 {
    let pair = u64::from(high) << 32 | u64::from(low);
    (pair >> amount) as u32
}

/// Returns the low `bits` of a value, sign-extended.
#[inline(always)]
pub(super) fn sign_extend(value: u32, bits: u8) -> u32 {
    let shift = u32::from(32 - bits.min(32));
    ((value << shift) as i32 >> shift) as u32
}

/// Returns the position of the highest set bit, or all ones.
pub(super) fn bfind(value: u32) -> u32 {
    if value == 0 { u32::MAX } else { 31 - value.leading_zeros() }
}

/// Returns the shift that moves the highest set bit to the top bit, or all ones.
pub(super) fn bfind_shift(value: u32) -> u32 {
    if value == 0 { u32::MAX } else { value.leading_zeros() }
}

/// `bfe.u32` and `bfe.u64`: only the low bytes of the position and the length are used.
pub(super) fn bfe_u(value: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let moved = value.checked_shr(position).unwrap_or(0);
    if length >= 64 { moved } else { moved & ((1 << length) - 1) }
}

/// `bfe.s32` and `bfe.s64` on a sign-extended value: past the end of the value, the sign bit of the field is repeated.
pub(super) fn bfe_s(value: i64, bits: u32, position: u32, length: u32) -> i64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    let moved = value >> position.min(63);
    let length = length.min(bits.saturating_sub(position).max(1));
    let shift = 64 - length;
    moved << shift >> shift
}

/// `bfi` on a `bits`-bit value.
pub(super) fn bfi(a: u64, b: u64, bits: u32, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if position >= bits || length == 0 {
        return b;
    }
    let ones = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
    let field = ones << position;
    b & !field | a << position & field
}

/// `prmt`: each 4-bit group in the selector chooses one of eight bytes, or that byte's sign.
pub(super) fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |result, at| {
        let nibble = selector >> (4 * at) & 0xf;
        let byte = (bytes >> (8 * (nibble & 7))) as u8;
        let byte = if nibble & 8 != 0 { (byte as i8 >> 7) as u8 } else { byte };
        result | u32::from(byte) << (8 * at)
    })
}

/// The manual's table for the `prmt` modes: the byte that each of the four selectors chooses for each position.
pub(super) fn permute_selector(mode: PermuteMode, selector: u32) -> u32 {
    let rows = match mode {
        PermuteMode::Forward => [0x3210, 0x4321, 0x5432, 0x6543],
        PermuteMode::Backward => [0x5670, 0x6701, 0x7012, 0x0123],
        PermuteMode::Replicate8 => [0x0000, 0x1111, 0x2222, 0x3333],
        PermuteMode::ClampLeft => [0x3210, 0x3211, 0x3222, 0x3333],
        PermuteMode::ClampRight => [0x0000, 0x1110, 0x2210, 0x3210],
        PermuteMode::Replicate16 => [0x1010, 0x3232, 0x1010, 0x3232],
    };
    rows[selector as usize & 3]
}

/// `fns`: returns the index of the bit, or all ones if there are too few. An offset of 0 checks bit `base` itself.
pub(super) fn find_nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    let is_set = |at: &u32| mask & 1 << at != 0;
    let nth = offset.unsigned_abs().saturating_sub(1) as usize;
    let found = match offset {
        _ if base > 31 => None,
        0 => Some(base).filter(is_set),
        1.. => (base..32).filter(is_set).nth(nth),
        _ => (0..=base).rev().filter(is_set).nth(nth),
    };
    found.unwrap_or(u32::MAX)
}

/// `bmsk`: `count` ones, starting at bit `first`. Both are clamped to the width of a word, or taken modulo 32.
pub(super) fn bit_mask(first: u32, count: u32, clamp: bool) -> u32 {
    let [first, count] = if clamp { [first.min(32), count.min(32)] } else { [first % 32, count % 32] };
    // A 64-bit shift moves everything past bit 31 out of the low word.
    (((1_u64 << count) - 1) << first) as u32
}

/// `szext`: the low `bits` of a value, extended. `bits` is clamped to 32, or taken modulo 32.
pub(super) fn extend(value: u32, bits: u32, clamp: bool, signed: bool) -> u32 {
    let bits = if clamp { bits.min(32) } else { bits % 32 };
    match signed {
        true => bfe_s(i64::from(value as i32), 32, 0, bits) as u32,
        false => bfe_u(u64::from(value), 0, bits) as u32,
    }
}

/// `lop3`: for each bit position of the sources, the table's bit at index `4 * a + 2 * b + c`.
pub(super) fn lop3(table: u8, a: u32, b: u32, c: u32) -> u32 {
    (0..8_u8).filter(|row| table & 1 << row != 0).fold(0, |result, row| {
        let pick = |bit: u8, value: u32| if row & bit != 0 { value } else { !value };
        result | pick(4, a) & pick(2, b) & pick(1, c)
    })
}
