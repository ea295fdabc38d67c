//! Integer arithmetic on 32 bits.

use super::features::vectorised;
use super::file::{Span, WIDTH, Words};
use virtual_gpu_ptx::instruction::{Packed, PermuteMode, Video, VideoOp, WordOp};

/// Applies `f` to each lane of `mask`.
#[inline(always)]
pub(super) fn map(
    file: &mut [Words],
    mask: &[u16],
    [d, a, b, c]: [Span; 4],
    f: impl Fn(u32, u32, u32) -> u32,
) {
    for (chunk, &lanes) in mask.iter().enumerate() {
        if lanes == 0 {
            continue;
        }
        let (x, y, z) = (file[a.at(chunk)], file[b.at(chunk)], file[c.at(chunk)]);
        let mut result = Words::ZERO;
        for lane in 0..WIDTH {
            result.0[lane] = f(x.0[lane], y.0[lane], z.0[lane]);
        }
        file[d.at(chunk)].take(result, lanes);
    }
}

vectorised! {
    /// `d = op(a, b, c)` in the lanes of `mask`; `spans` are `d`, `a`, `b`, `c`.
    fn execute(op: WordOp, file: &mut [Words], mask: &[u16], spans: [Span; 4]) = execute_body
}

#[inline(always)]
fn execute_body(op: WordOp, file: &mut [Words], mask: &[u16], spans: [Span; 4]) {
    use WordOp::*;
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
        MulHighS => run!(|a, b, _| high_s(a, b)),
        MulHighU => run!(|a, b, _| high_u(a, b)),
        MadHighS => run!(|a, b, c| high_s(a, b).wrapping_add(c)),
        MadHighU => run!(|a, b, c| high_u(a, b).wrapping_add(c)),
        MinS => run!(|a, b, _| (a as i32).min(b as i32) as u32),
        MinU => run!(|a, b, _| a.min(b)),
        MaxS => run!(|a, b, _| (a as i32).max(b as i32) as u32),
        MaxU => run!(|a, b, _| a.max(b)),
        And => run!(|a, b, _| a & b),
        Or => run!(|a, b, _| a | b),
        Xor => run!(|a, b, _| a ^ b),
        Not => run!(|a, _, _| !a),
        Shl => run!(|a, b, _| if b > 31 { 0 } else { a << (b & 31) }),
        ShrU => run!(|a, b, _| if b > 31 { 0 } else { a >> (b & 31) }),
        ShrS => run!(|a, b, _| (a as i32 >> b.min(31)) as u32),
        SignExtend(bits) => {
            let shift = u32::from(32 - bits.min(32));
            run!(|a, _, _| ((a << shift) as i32 >> shift) as u32);
        }
        ZeroExtend(bits) => {
            let keep = u32::MAX >> u32::from(32 - bits.min(32));
            run!(|a, _, _| a & keep);
        }
        _ => run!(|a, b, c| scalar(op, a, b, c)),
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

/// One lane. Division by zero gives all ones, as on the hardware (the manual leaves it open).
#[inline(always)]
pub(super) fn scalar(op: WordOp, a: u32, b: u32, c: u32) -> u32 {
    use WordOp::*;
    let (sa, sb) = (a as i32, b as i32);
    match op {
        Move => a,
        Add => a.wrapping_add(b),
        Sub => a.wrapping_sub(b),
        Mul => a.wrapping_mul(b),
        MulHighS => high_s(a, b),
        MulHighU => high_u(a, b),
        Mad => a.wrapping_mul(b).wrapping_add(c),
        MadHighS => high_s(a, b).wrapping_add(c),
        MadHighU => high_u(a, b).wrapping_add(c),
        MulHigh16 => a.wrapping_mul(b) >> 16,
        Mul24S => low24_s(a).wrapping_mul(low24_s(b)) as u32,
        Mul24U => (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff),
        Mul24HighS => ((i64::from(low24_s(a)) * i64::from(low24_s(b))) >> 16) as u32,
        Mul24HighU => ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32,
        AddSaturated => sa.saturating_add(sb) as u32,
        SubSaturated => sa.saturating_sub(sb) as u32,
        DivS if b == 0 => u32::MAX,
        DivS => sa.wrapping_div(sb) as u32,
        DivU => a.checked_div(b).unwrap_or(u32::MAX),
        RemS if b == 0 => a,
        RemS => sa.wrapping_rem(sb) as u32,
        RemU => a.checked_rem(b).unwrap_or(a),
        MinS => sa.min(sb) as u32,
        MinU => a.min(b),
        MaxS => sa.max(sb) as u32,
        MaxU => a.max(b),
        Abs => sa.wrapping_abs() as u32,
        Neg => sa.wrapping_neg() as u32,
        SadS => sa.abs_diff(sb).wrapping_add(c),
        SadU => a.abs_diff(b).wrapping_add(c),
        And => a & b,
        Or => a | b,
        Xor => a ^ b,
        Not => !a,
        Cnot => u32::from(a == 0),
        Shl => a.checked_shl(b).unwrap_or(0),
        ShrS => (sa >> b.min(31)) as u32,
        ShrU => a.checked_shr(b).unwrap_or(0),
        ShfLeftWrap => funnel(b, a, b_left(c & 31)),
        ShfLeftClamp => funnel(b, a, b_left(c.min(32))),
        ShfRightWrap => funnel(b, a, c & 31),
        ShfRightClamp => funnel(b, a, c.min(32)),
        Popc => a.count_ones(),
        Clz => a.leading_zeros(),
        Brev => a.reverse_bits(),
        BfindS => bfind(if sa < 0 { !a } else { a }),
        BfindU => bfind(a),
        BfindShiftS => bfind_shift(if sa < 0 { !a } else { a }),
        BfindShiftU => bfind_shift(a),
        BfeS => bfe_s(i64::from(sa), 32, b, c) as u32,
        BfeU => bfe_u(u64::from(a), b, c) as u32,
        Prmt => prmt(a, b, c),
        Lop3(table) => lop3(table, a, b, c),
        SignExtend(bits) => {
            let shift = u32::from(32 - bits.min(32));
            ((a << shift) as i32 >> shift) as u32
        }
        ZeroExtend(bits) => a & u32::MAX >> u32::from(32 - bits.min(32)),
        Dp4aSS => dp4a(a, b, c, |byte| byte as i8 as i32, |byte| byte as i8 as i32),
        Dp4aUU => dp4a(a, b, c, i32::from, i32::from),
        Dp4aSU => dp4a(a, b, c, |byte| byte as i8 as i32, i32::from),
        Dp4aUS => dp4a(a, b, c, i32::from, |byte| byte as i8 as i32),
        PrmtMode(mode) => prmt(a, b, mode_selector(mode, c & 3)),
        Dp2a { high, signed } => dp2a(a, b, c, high, signed),
        Fns => fns(a, b, c as i32),
        BitMask { clamp } => bit_mask(a, b, clamp),
        Extend { clamp, signed } => extend(a, b, clamp, signed),
        Packed(op) => packed(op, a, b),
        Video(video) => simd(video, a, b, c),
        RoundToTf32 if f32::from_bits(a).is_nan() => super::float::NAN,
        // A carry goes on into the exponent, at last to infinity.
        RoundToTf32 => a.wrapping_add(1 << 12) & !0x1fff,
        Pack16 => a & 0xffff | b << 16,
        High16 => a >> 16,
    }
}

fn low24_s(value: u32) -> i32 {
    (value << 8) as i32 >> 8
}

/// The low word of `high:low >> amount`.
fn funnel(high: u32, low: u32, amount: u32) -> u32 {
    let pair = u64::from(high) << 32 | u64::from(low);
    (pair >> amount) as u32
}

/// A left shift of the pair by `n` leaves in its high word what a right shift by `32 - n` leaves in its low one.
fn b_left(amount: u32) -> u32 {
    32 - amount
}

/// The highest bit set, or all ones.
pub(super) fn bfind(value: u32) -> u32 {
    if value == 0 { u32::MAX } else { 31 - value.leading_zeros() }
}

fn bfind_shift(value: u32) -> u32 {
    if value == 0 { u32::MAX } else { value.leading_zeros() }
}

/// `bfe.u32` and `bfe.u64`: only the low byte of position and length counts.
pub(super) fn bfe_u(value: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let moved = value.checked_shr(position).unwrap_or(0);
    if length >= 64 { moved } else { moved & ((1 << length) - 1) }
}

/// `bfe.s32` and `bfe.s64` on a sign-extended value: beyond the value, the sign bit of the field is repeated.
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

fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |result, at| {
        let nibble = selector >> (4 * at) & 0xf;
        let byte = (bytes >> (8 * (nibble & 7))) as u8;
        let byte = if nibble & 8 != 0 { (byte as i8 >> 7) as u8 } else { byte };
        result | u32::from(byte) << (8 * at)
    })
}

/// The manual's table: which byte goes where, for each of the four selectors.
fn mode_selector(mode: PermuteMode, selector: u32) -> u32 {
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

fn dp2a(a: u32, b: u32, c: u32, high: bool, [a_signed, b_signed]: [bool; 2]) -> u32 {
    let b = if high { b >> 16 } else { b };
    (0..2).fold(c, |sum, at| {
        let half = a >> (16 * at);
        let byte = b >> (8 * at);
        let half = if a_signed { i32::from(half as i16) } else { i32::from(half as u16) };
        let byte = if b_signed { i32::from(byte as i8) } else { i32::from(byte as u8) };
        sum.wrapping_add(half.wrapping_mul(byte) as u32)
    })
}

/// The bit's place, or all ones where there are not so many. An offset of 0 asks about bit `base` itself.
fn fns(mask: u32, base: u32, offset: i32) -> u32 {
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

/// `count` ones from bit `first` on; either is cut to what a word has, or taken modulo 32.
fn bit_mask(first: u32, count: u32, clamp: bool) -> u32 {
    let [first, count] = if clamp { [first.min(32), count.min(32)] } else { [first % 32, count % 32] };
    // Beyond bit 31, a shift of 64 bits leaves nothing in the low word.
    (((1_u64 << count) - 1) << first) as u32
}

/// The low `bits` of a value, extended; as many as it has, or taken modulo 32.
fn extend(value: u32, bits: u32, clamp: bool, signed: bool) -> u32 {
    let bits = if clamp { bits.min(32) } else { bits % 32 };
    match signed {
        true => bfe_s(i64::from(value as i32), 32, 0, bits) as u32,
        false => bfe_u(u64::from(value), 0, bits) as u32,
    }
}

fn packed(op: Packed, a: u32, b: u32) -> u32 {
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

fn simd(Video { op, parts, signed, saturate, sum }: Video, a: u32, b: u32, c: u32) -> u32 {
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
            // Rounded away from zero, as the manual says for `.vavrg`.
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

fn lop3(table: u8, a: u32, b: u32, c: u32) -> u32 {
    (0..8_u8).filter(|row| table & 1 << row != 0).fold(0, |result, row| {
        let pick = |bit: u8, value: u32| if row & bit != 0 { value } else { !value };
        result | pick(4, a) & pick(2, b) & pick(1, c)
    })
}

fn dp4a(a: u32, b: u32, c: u32, left: impl Fn(u8) -> i32, right: impl Fn(u8) -> i32) -> u32 {
    let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes()).map(|(x, y)| left(x) * right(y));
    products.fold(c as i32, i32::wrapping_add) as u32
}

vectorised! {
    /// 16-bit arithmetic: sources extended, result cut.
    fn execute_half(op: WordOp, signed: bool, file: &mut [Words], mask: &[u16], spans: [Span; 4]) = half_body
}

#[inline(always)]
fn half_body(op: WordOp, signed: bool, file: &mut [Words], mask: &[u16], spans: [Span; 4]) {
    let extend = |value: u32| if signed { value as u16 as i16 as u32 } else { value & 0xffff };
    map(file, mask, spans, |a, b, c| match op {
        // -32768 / -1 and x / 0 must come out of the 16-bit rules.
        WordOp::DivS if extend(b) == 0 => 0xffff,
        _ => scalar(op, extend(a), extend(b), extend(c)) & 0xffff,
    });
}

vectorised! {
    /// `bfi.b32`; `spans` are `d`, `a`, `b`, `position`, `length`.
    fn insert(file: &mut [Words], mask: &[u16], spans: [Span; 5]) = insert_body
}

#[inline(always)]
fn insert_body(file: &mut [Words], mask: &[u16], [d, a, b, position, length]: [Span; 5]) {
    for (chunk, &lanes) in mask.iter().enumerate() {
        let (a, b) = (file[a.at(chunk)], file[b.at(chunk)]);
        let (position, length) = (file[position.at(chunk)], file[length.at(chunk)]);
        let mut result = Words::ZERO;
        for lane in 0..WIDTH {
            let (a, b) = (u64::from(a.0[lane]), u64::from(b.0[lane]));
            result.0[lane] = bfi(a, b, 32, position.0[lane], length.0[lane]) as u32;
        }
        file[d.at(chunk)].take(result, lanes);
    }
}

/// `bfi` on a value of `bits` bits.
pub(super) fn bfi(a: u64, b: u64, bits: u32, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if position >= bits || length == 0 {
        return b;
    }
    let ones = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
    let field = ones << position;
    b & !field | a << position & field
}
