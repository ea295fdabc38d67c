//! Comparison and Selection Instructions, and Half Precision Comparison Instructions.

use super::modifiers::{Modifiers, Resolution, only_kind, operands, unsupported, wrong_number};
use crate::instruction::{BoolOp, CompareAs, Comparison};
use crate::resolved::{Compare, CompareResult, Form};
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// 1.0 in half precision.
const HALF_ONE: u64 = 0x3c00;

/// 1.0 as a bfloat.
const BRAIN_ONE: u64 = 0x3f80;

/// `setp`
///
/// ```text
/// setp.CmpOp{.ftz}.type         p[|q], a, b;
/// setp.CmpOp.BoolOp{.ftz}.type  p[|q], a, b, {!}c;
/// .CmpOp = { eq, ne, lt, le, gt, ge, lo, ls, hi, hs, equ, neu, ltu, leu, gtu, geu, num, nan };
/// .BoolOp = { and, or, xor };
/// .type = { .b16, .b32, .b64, .u16, .u32, .u64, .s16, .s32, .s64, .f32, .f64 };
///
/// setp.CmpOp{.ftz}.f16           p, a, b;      setp.CmpOp.BoolOp{.ftz}.f16    p, a, b, {!}c;
/// setp.CmpOp{.ftz}.f16x2         p|q, a, b;    setp.CmpOp.BoolOp{.ftz}.f16x2  p|q, a, b, {!}c;
/// setp.CmpOp.bf16                p, a, b;      setp.CmpOp.BoolOp.bf16         p, a, b, {!}c;
/// setp.CmpOp.bf16x2              p|q, a, b;    setp.CmpOp.BoolOp.bf16x2       p|q, a, b, {!}c;
/// .CmpOp = { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };
/// ```
pub(super) fn setp<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let test = Test::take(modifiers, kind.half().unwrap_or(kind))?;
    let (d, a, b, c) = compared(written, test.combine)?;
    let result = match (kind.half(), d) {
        (None, Operand::Pair(..)) if matches!(kind, Type::F16 | Type::Bf16) => return wrong_number(written),
        (None, d) => CompareResult::Predicate(d),
        (Some(_), Operand::Pair(low, high)) => CompareResult::Predicates([low, high]),
        (Some(_), _) => return wrong_number(written),
    };
    Ok(test.compare(a, b, c, result))
}

/// `set`: the result is a number; true is all ones or 1.0.
///
/// ```text
/// set.CmpOp{.ftz}.dtype.stype         d, a, b;
/// set.CmpOp.BoolOp{.ftz}.dtype.stype  d, a, b, {!}c;
/// .dtype = { .u32, .s32, .f32 };
/// .stype = { .b16, .b32, .b64, .u16, .u32, .u64, .s16, .s32, .s64, .f32, .f64 };
///
/// set.CmpOp{.ftz}.f16.stype      d, a, b;     .stype = { .b16 to .f64 as above, .f16 };
/// set.CmpOp.bf16.stype           d, a, b;     .stype = { .b16 to .f64 as above, .f16 };
/// set.CmpOp{.ftz}.dtype.f16      d, a, b;     .dtype = { .u16, .s16, .u32, .s32 };
/// set.CmpOp.dtype.bf16           d, a, b;     .dtype = { .u16, .s16, .u32, .s32 };
/// set.CmpOp{.ftz}.dtype.f16x2    d, a, b;     .dtype = { .f16x2, .u32, .s32 };
/// set.CmpOp.dtype.bf16x2         d, a, b;     .dtype = { .bf16x2, .u32, .s32 };
/// Each form also exists with .BoolOp after .CmpOp and with {!}c.
/// ```
///
/// `set.CmpOp.bf16.bf16` is not in the manual, but NVIDIA's `cuda_bf16.h` uses it.
pub(super) fn set<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let to = modifiers.kind()?;
    let is_half = matches!(kind, Type::F16 | Type::Bf16);
    let yes = match (kind, to) {
        (Type::F16x2, Type::F16x2) => HALF_ONE,
        (Type::Bf16x2, Type::Bf16x2) => BRAIN_ONE,
        (Type::F16x2 | Type::Bf16x2, Type::U32 | Type::S32) => 0xffff,
        (_, Type::U16 | Type::S16) if is_half => 0xffff,
        (Type::F16x2 | Type::Bf16x2, _) => return unsupported(written),
        (_, Type::U32 | Type::S32) => 0xffff_ffff,
        (_, Type::F32) if !is_half => u64::from(1.0_f32.to_bits()),
        (_, Type::F16) if kind != Type::Bf16 => HALF_ONE,
        (_, Type::Bf16) if !modifiers.rest.contains(&"ftz") => BRAIN_ONE,
        _ => return unsupported(written),
    };
    let test = Test::take(modifiers, kind.half().unwrap_or(kind))?;
    let (d, a, b, c) = compared(written, test.combine)?;
    let result = match kind.half() {
        None => CompareResult::Number(d, to, yes),
        Some(_) => CompareResult::Numbers(d, yes),
    };
    Ok(test.compare(a, b, c, result))
}

/// The operands of a comparison: `d`, `a`, `b`, and `c` if the result is combined with it.
type Compared<'a> = (Operand<'a>, Operand<'a>, Operand<'a>, Option<Operand<'a>>);

fn compared<'a>(written: &mut Written<'a>, combine: BoolOp) -> Resolution<Compared<'a>> {
    let count = if combine == BoolOp::First { 3 } else { 4 };
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    match (operands.len() == count, operands.next(), operands.next(), operands.next()) {
        (true, Some(d), Some(a), Some(b)) => Ok((d, a, b, operands.next())),
        _ => wrong_number(written),
    }
}

/// The modifiers of a comparison.
struct Test {
    comparison: Comparison,
    compare_as: CompareAs,
    combine: BoolOp,
    kind: Type,
}

impl Test {
    fn take(mut modifiers: Modifiers<'_, '_>, kind: Type) -> Resolution<Self> {
        let flush = modifiers.take("ftz");
        let combine = modifiers.choose(|name| match name {
            "and" => Some(BoolOp::And),
            "or" => Some(BoolOp::Or),
            "xor" => Some(BoolOp::Xor),
            _ => None,
        });
        let Some((comparison, numbers)) = modifiers.choose(comparison_named) else {
            return modifiers.unsupported();
        };
        let compare_as = match kind {
            Type::F32 if flush => CompareAs::F32Flush,
            Type::F32 => CompareAs::F32,
            Type::F16 if flush => CompareAs::F16Flush,
            _ if flush => return modifiers.unsupported(),
            Type::F64 => CompareAs::F64,
            Type::F16 => CompareAs::F16,
            Type::Bf16 => CompareAs::Bf16,
            Type::S32 | Type::S64 => CompareAs::Signed,
            Type::S16 => CompareAs::Signed16,
            Type::U16 | Type::B16 => CompareAs::Unsigned16,
            Type::U32 | Type::B32 | Type::U64 | Type::B64 => CompareAs::Unsigned,
            _ => return modifiers.unsupported(),
        };
        if !numbers.include(kind) {
            return modifiers.unsupported();
        }
        modifiers.finish()?;
        Ok(Self { comparison, compare_as, combine: combine.unwrap_or(BoolOp::First), kind })
    }

    fn compare<'a>(
        self,
        a: Operand<'a>,
        b: Operand<'a>,
        c: Option<Operand<'a>>,
        result: CompareResult<'a>,
    ) -> Form<'a> {
        let Self { comparison, compare_as, combine, kind } = self;
        Form::Compare(Compare { comparison, compare_as, combine, kind, a, b, c, result })
    }
}

/// The types that a comparison accepts.
#[derive(Clone, Copy)]
enum Numbers {
    /// `eq`, `ne`
    All,
    /// `lt` to `ge`: all types except untyped bits.
    Ordered,
    /// `lo` to `hs`
    Unsigned,
    /// `equ` to `nan`
    Float,
}

/// Returns the comparison with this name and the types that it accepts.
fn comparison_named(name: &str) -> Option<(Comparison, Numbers)> {
    let comparison = match name {
        "eq" => Comparison::Eq,
        "ne" => Comparison::Ne,
        "lt" | "lo" => Comparison::Lt,
        "le" | "ls" => Comparison::Le,
        "gt" | "hi" => Comparison::Gt,
        "ge" | "hs" => Comparison::Ge,
        "equ" => Comparison::Equ,
        "neu" => Comparison::Neu,
        "ltu" => Comparison::Ltu,
        "leu" => Comparison::Leu,
        "gtu" => Comparison::Gtu,
        "geu" => Comparison::Geu,
        "num" => Comparison::Num,
        "nan" => Comparison::Nan,
        _ => return None,
    };
    let numbers = match name {
        "eq" | "ne" => Numbers::All,
        "lt" | "le" | "gt" | "ge" => Numbers::Ordered,
        "lo" | "ls" | "hi" | "hs" => Numbers::Unsigned,
        _ => Numbers::Float,
    };
    Some((comparison, numbers))
}

impl Numbers {
    /// Returns whether these types include the given one (Integer and Bit-Size Comparisons, and Floating Point
    /// Comparisons).
    fn include(self, kind: Type) -> bool {
        let is_bits = matches!(kind, Type::B16 | Type::B32 | Type::B64);
        match self {
            Self::All => true,
            Self::Ordered => !is_bits,
            Self::Unsigned => matches!(kind, Type::U16 | Type::U32 | Type::U64),
            Self::Float => kind.is_float(),
        }
    }
}

/// Returns whether `selp` and `slct` can select values of a type.
fn is_selectable(kind: Type) -> bool {
    matches!(kind.bits(), 16 | 32 | 64) && (!kind.is_float() || matches!(kind, Type::F32 | Type::F64))
}

/// `selp`: `a` if the predicate is true, otherwise `b`.
///
/// ```text
/// selp.type  d, a, b, c;
/// .type = { .b16, .b32, .b64, .u16, .u32, .u64, .s16, .s32, .s64, .f32, .f64 };
/// ```
pub(super) fn selp<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let kind = only_kind(written)?;
    if !is_selectable(kind) {
        return unsupported(written);
    }
    Ok(Form::Select { kind, operands: operands(written)? })
}

/// `slct`: `a` if `c` is not negative, otherwise `b`.
///
/// ```text
/// slct.dtype.s32        d, a, b, c;
/// slct{.ftz}.dtype.f32  d, a, b, c;
/// .dtype = { .b16, .b32, .b64, .u16, .u32, .u64, .s16, .s32, .s64, .f32, .f64 };
/// ```
pub(super) fn slct<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let by = modifiers.kind()?;
    let kind = modifiers.kind()?;
    let flush = modifiers.take("ftz");
    modifiers.finish()?;
    let compare_as = match (by, flush) {
        _ if !is_selectable(kind) => return unsupported(written),
        (Type::S32, false) => CompareAs::Signed,
        (Type::F32, true) => CompareAs::F32Flush,
        (Type::F32, false) => CompareAs::F32,
        _ => return unsupported(written),
    };
    let operands = operands(written)?;
    Ok(Form::SelectBySign { kind, by, compare_as, operands })
}
